"""Files that have a number for a name: whoever makes the next one has decided it."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: Their names.
NUMBERED = re.compile(r"^(\d{20})\.json$")


def numbered(folder: Path, number: int) -> Path:
    """The file of a number; names are in the order of their numbers."""
    return folder / f"{number:020d}.json"


def numbers(folder: Path, names: re.Pattern[str] = NUMBERED) -> list[int]:
    """The numbers of the files in a folder that have such names, ascending."""
    # Not by Path: the lease is asked before every write, a dozen times per epoch.
    with os.scandir(folder) as files:
        matches = [names.match(file.name) for file in files]
    return sorted(int(match.group(1)) for match in matches if match)


def numbers_if_any(folder: Path, names: re.Pattern[str] = NUMBERED) -> list[int]:
    """The same; none where the folder has not been made yet."""
    return numbers(folder, names) if folder.is_dir() else []
