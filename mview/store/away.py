"""Connections that a run cannot read right now, kept in the store for those who look at it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from mview.clock import WallMs
from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.numbered import numbered
from mview.files.records import record
from mview.store.layout import Store


@dataclass(frozen=True)
class Away:
    """A connection that cannot be read right now.

    Attributes:
        since_ms: wall time of the first error since it was last read.
        error: the last error, without secrets.
    """

    since_ms: WallMs
    error: str


def read_away(store: Store, token: int) -> dict[str, Away]:
    """By connection, why a runner cannot read it.

    Args:
        token: of the runner's lease. What another one wrote, perhaps after it was paused and
            replaced, does not count.
    """
    file = numbered(store.away, token)
    # A damaged file tells nothing, and one that goes at this moment no more: the run knows.
    with suppress(CorruptionError):
        if file.exists():
            return read_checked(file, _parse, "", "")
    return {}


def write_away(store: Store, token: int, away: Mapping[str, Away]) -> None:
    """Keep which connections a runner cannot read; no file: it can read all.

    Args:
        token: of the runner's lease. What runners before it have left goes.
    """
    file = numbered(store.away, token)
    if away:
        put(file, checked({name: asdict(told) for name, told in away.items()}))
    for older in store.away.glob("*.json"):
        if older.name < file.name or (older.name == file.name and not away):
            older.unlink(missing_ok=True)


def _parse(body: Mapping[str, Mapping[str, object]]) -> dict[str, Away]:
    return {name: record(Away, told) for name, told in body.items()}
