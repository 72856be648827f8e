"""Marks: small files that say whose a folder is. Without one, nothing in it is touched."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from mview.errors import CorruptionError
from mview.files.durable import is_aside, put_if_absent

#: Of what else a mark says: a flipped bit in an id must not make the folder somebody else's.
_DIGEST = "digest"


def read_mark(file: Path, *names: str, **older: str) -> dict[str, str] | None:
    """What a mark says under these names; None: there is none.

    Args:
        file: the mark.
        names: what it must tell.
        older: what it may tell, and what counts where it does not.

    Raises:
        CorruptionError: it cannot be read, or does not say that.
    """
    try:
        content: dict[str, Any] = orjson.loads(file.read_bytes())
        said = content.pop(_DIGEST, None)
        if said is not None and said != _digest_of(content):
            raise ValueError("the digest does not fit the content")
        told = {**older, **content}
        mark: dict[str, str] = {name: told[name] for name in (*names, *older)}
        if not all(isinstance(text, str) for text in mark.values()):
            raise ValueError("not a mark")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, AttributeError, KeyError, IsADirectoryError) as error:
        raise CorruptionError(
            "the mark that says whose a folder is cannot be read",
            where=str(file),
            got=str(error),
            safe="nothing was changed",
            hint="restore the file from a copy; what it says stands in the properties mview.store "
            "and mview.view of the Delta tables, too",
        ) from None
    return mark


def put_mark(file: Path, mark: Mapping[str, str]) -> None:
    """Put a mark, all of it or nothing; who comes second changes nothing."""
    put_if_absent(file, content_of(mark))


def content_of(mark: Mapping[str, str]) -> bytes:
    """The content of the file of a mark."""
    return orjson.dumps({**mark, _DIGEST: _digest_of(mark)})


def _digest_of(mark: Mapping[str, str]) -> str:
    content = orjson.dumps(dict(mark), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()[:16]


def without_mark(folder: Path, mark: str) -> list[str]:
    """What is in the place of a folder that has no mark; one that is just being put is nothing.

    Another process may make the folder and put its mark while it is looked at: it is asked once
    for what is there, and a mark that has come since makes all of it the owner's.
    """
    try:
        names = [file.name for file in folder.iterdir()]
    except FileNotFoundError:
        return [f"{folder.name} (a link to nothing)"] if folder.is_symlink() else []
    except NotADirectoryError:  # it, or what is above it
        return [f"{folder.name} (a file)"] if os.path.lexists(folder) else []
    if others := sorted(name for name in names if name != mark and not is_aside(name)):
        return [] if (folder / mark).exists() else others
    return []
