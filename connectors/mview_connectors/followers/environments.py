"""What sinks need that cannot live beside what mview needs: made once, by a command, in the cache.

It is named by what it is made of: another version of mview that needs another one makes its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mview.errors import ConfigError, MviewError
from mview.files.modes import make_shared_folder


@dataclass(frozen=True)
class SideEnvironment:
    """A folder in `$MVIEW_CACHE`, else in `~/.cache/mview`.

    Attributes:
        name: of the target, as people write it.
        tag: more that it depends on, for the folder's name.
        sources: the files that say what it is made of.
        module: makes it as a program: `python -m …`.
        build: makes it in an empty folder, or raises.
    """

    name: str
    tag: str
    sources: Sequence[Path]
    module: str
    build: Callable[[Path], None]

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        root = os.environ.get("MVIEW_CACHE")
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(source.read_bytes())
        name = f"{self.name.lower()}-{self.tag}-{digest.hexdigest()[:12]}"
        return (Path(root) if root else Path.home() / ".cache" / "mview") / name

    def made(self) -> Path:
        """The folder.

        Raises:
            ConfigError: it has not been made.
        """
        folder = self.folder
        if not folder.exists():
            raise ConfigError(
                f"the environment for {self.name} has not been made",
                where=str(folder),
                safe="nothing was written",
                hint=f"run once: python -m {self.module}",
            )
        return folder

    def make(self) -> Path:
        """Make it, if it is not there.

        Raises:
            MviewError: it cannot be made, with what was said.
        """
        folder = self.folder
        if not folder.exists():
            make_shared_folder(folder.parent)
            # Whole or not at all: it gets its name when it is done.
            new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                self.build(new)
                if not folder.exists():
                    new.rename(folder)
            finally:
                shutil.rmtree(new, ignore_errors=True)
        return folder

    def main(self) -> int:
        """Make it and say where it is: the program."""
        try:
            print(f"{self.name} sinks run with {self.make()}")
        except MviewError as error:
            print(error.render(), file=sys.stderr)
            return 1
        return 0


def run(name: str, hint: str, *command: str) -> None:
    """A step of making an environment.

    Raises:
        ConfigError: it failed, with what was said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"the environment for {name} cannot be made",
            where=" ".join(command[:4])[:200],
            got=" ".join((done.stderr or done.stdout).split())[-800:],
            hint=hint,
        )
