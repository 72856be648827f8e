"""Connections that a run cannot read right now, kept in the store for those who look at it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from mview.clock import WallMs
from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
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


def read_away(store: Store) -> dict[str, Away]:
    """By connection, why it cannot be read; a damaged file tells nothing: the run knows."""
    if store.away.exists():
        with suppress(CorruptionError):
            return read_checked(store.away, _parse, "", "")
    return {}


def write_away(store: Store, away: Mapping[str, Away]) -> None:
    """Keep which connections cannot be read; no file: all can."""
    if away:
        put(store.away, checked({name: asdict(told) for name, told in away.items()}))
    else:
        store.away.unlink(missing_ok=True)


def _parse(body: Mapping[str, Mapping[str, object]]) -> dict[str, Away]:
    return {name: record(Away, told) for name, told in body.items()}
