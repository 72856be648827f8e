"""Which views the newest run was asked for: a manifest names them only when they are built."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.store.layout import Store


@dataclass(frozen=True)
class Asked:
    """What a run was asked for.

    Attributes:
        views: names of the views.
        files: files and folders that they were read from, absolute; none: nobody knows.
    """

    views: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def keep_asked(store: Store, views: Sequence[str], files: Sequence[str] = ()) -> None:
    """Note what a run is asked for; in place of those of the run before."""
    put(store.asked, checked(asdict(Asked(tuple(views), tuple(files)))))


def asked_views(store: Store) -> tuple[str, ...]:
    """The views that the newest run was asked for, built or not; empty: nobody knows."""
    return _asked(store).views


def asked_files(store: Store) -> tuple[str, ...]:
    """The files and folders of the newest run; empty: nobody knows."""
    return _asked(store).files


def _asked(store: Store) -> Asked:
    # It only tells more: one that is damaged hides nothing else.
    with suppress(CorruptionError):
        return read_checked(store.asked, partial(record, Asked), "", "")
    return Asked()
