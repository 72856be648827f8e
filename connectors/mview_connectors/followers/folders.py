"""Folders and tables of sinks: whether they can be written, and what others have done to them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from mview.config import Filled
from mview.errors import RetryableError, TargetError
from mview.follower import FollowerTarget

#: What to look at where a table names files that are not there: others may have deleted them.
LOST = "the table: files of it are gone. Drop what is left of it, and it is filled anew"


#: `s3:/bucket/path` is no URL, and as a folder would lie beside the run.
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")


def _no_half_url(place: str) -> str:
    if half := _ONE_SLASH.match(place):
        raise ValueError(f"must be a folder, or a URL: {half[1]}://…, with two slashes")
    return place


#: A setting: a folder, or a URL.
Place = Annotated[Filled, AfterValidator(_no_half_url)]


#: What Arrow says of an S3 that does not let somebody in; 400 is its answer to a token that has
#: expired, and to another region's.
_REFUSED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|ExpiredToken|InvalidToken|"
    r"HTTP status 40[013]\b"
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|Bucket '.*' not found")


def refused_by_store(text: str) -> str | None:
    """What somebody must see to where Arrow tells of an object store that refuses; else None."""
    if _REFUSED.search(text):
        return "the credentials of the storage and its region, and the rights there"
    return "the warehouse: its bucket is not there" if _NO_BUCKET.search(text) else None


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


def reread(target: FollowerTarget, error: Exception) -> RetryableError:
    """The end of a reader whose files are gone, as the table has other ones now.

    Args:
        target: the view and the sink.
        error: the client's.
    """
    return RetryableError(
        f"the table {target.table} has changed while it was read, and what was read is gone",
        where=f"sinks.{target.sink}",
        got=" ".join(str(error).split())[:200],
        safe="nothing was written; the table has a newer state",
        hint="read it again: run the same command again, or set sinks."
        f"{target.sink}.history longer than it takes",
    )


def overtaken(target: FollowerTarget, got: str = "") -> RetryableError:
    """The end of a step whose table another commit has changed.

    Args:
        target: the view and the sink.
        got: how the target refused it.
    """
    return RetryableError(
        f"the table {target.table} has changed since the step was staged",
        where=f"sinks.{target.sink}",
        got=got,
        safe="nothing of the step was shown; it is staged again",
    )


def columns_changed(target: FollowerTarget, there: Iterable[str]) -> TargetError:
    """The refusal of a table whose columns are not those that it was made with.

    Args:
        target: the view and the sink.
        there: the columns that it has.
    """
    return TargetError(
        f"somebody has changed the columns of the table {target.table}",
        where=f"sinks.{target.sink}",
        got=", ".join(there),
        allowed=f"{', '.join(target.schema.names)}: those that it was made with",
        safe="nothing was written there since this was seen",
        hint="drop the table there: it is made and filled anew",
    )
