"""Tables whose loads are paused: a request that stands until it is taken back.

From any process; what reads chunks looks for it before it takes another one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.relation import RelationId
from mview.store.layout import Store, folder_name


@dataclass(frozen=True)
class PausedTable:
    """A table that is paused.

    Attributes:
        table: its name.
        since_ms: wall time of the request.
    """

    table: str
    since_ms: int


def pause(store: Store, table: RelationId, now_ms: int) -> bool:
    """Have no more chunks of a table be read; returns whether it was going on."""
    file = _file(store, table)
    if file.exists():
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    put(file, checked(asdict(PausedTable(str(table), now_ms))))
    return True


def resume(store: Store, table: RelationId) -> bool:
    """Have its chunks be read again; returns whether it was paused."""
    try:
        _file(store, table).unlink()
    except FileNotFoundError:
        return False
    return True


def paused_tables(store: Store) -> frozenset[RelationId]:
    """The tables that are paused.

    Raises:
        CorruptionError: a request is damaged.
    """
    tables = []
    for file in store.paused.glob("*.json"):
        try:
            tables.append(RelationId.of(_read(file).table))
        except CorruptionError:
            if file.exists():
                raise
            continue  # taken back meanwhile
    return frozenset(tables)


def _read(file: Path) -> PausedTable:
    return read_checked(
        file,
        partial(record, PausedTable),
        "a request to pause a table cannot be read",
        "remove the file, and ask again: mview pause TABLE",
        "nothing more of its chunks was read; what was published stays",
    )


def _file(store: Store, table: RelationId) -> Path:
    return store.paused / f"{folder_name('table', str(table))}.json"
