"""Folders that sinks write in: where they are, and whether they can be written."""

from __future__ import annotations

import os
from pathlib import Path

from mview.errors import TargetError
from mview.follower import FollowerTarget

#: What to look at where a table names files that are not there: others may have deleted them.
LOST = "the table: files of it are gone. Drop what is left of it, and it is filled anew"


def folder_of(place: str) -> Path | None:
    """The folder of a place on this machine; None: it is elsewhere."""
    if place.startswith("file://"):
        return Path(place.removeprefix("file://"))
    return None if "://" in place else Path(place).expanduser().absolute()


def check_folder(target: FollowerTarget, folder: Path) -> None:
    """Refuse a folder that can be neither written nor made; makes nothing.

    Args:
        target: the view and the sink.
        folder: is there, or is to be made with all above it.

    Raises:
        TargetError: what is in the way.
    """
    # Of a folder that may not be looked into, `exists` says no: so what is above it is asked.
    there = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return
    raise TargetError(
        f"sink {target.sink} cannot write in its folder",
        where=str(folder),
        got=f"{there} " + ("may not be written by this user" if there.is_dir() else "is no folder"),
        safe="nothing was written there",
        hint="let the user that runs mview write there, or name another folder",
    )
