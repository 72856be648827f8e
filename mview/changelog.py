"""Changes: the envelope every format decodes to, and the batches that cross Spark.

A change event never crosses Spark row by row. A reader packs the events of one (table, chunk) into
one Arrow IPC blob (`ChangeBatch`), typed by the table's schema: one decode, no second encoding.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from mview.clock import SourceMs
from mview.schema import TableSchema


class RowKind(str, Enum):
    """What a changelog row does to the row it carries."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    @property
    def weight(self) -> int:
        """+1 for `+I +U`, -1 for `-U -D`."""
        return 1 if self.value[0] == "+" else -1


Kind = Literal["c", "u", "d", "r", "truncate", "ddl", "altered", "unreadable", "heartbeat"]

#: A value that the source did not send (an unchanged TOAST column, a partial image):
#: it is taken from the mirror, never read as NULL.
UNCHANGED = type("Unchanged", (), {"__repr__": lambda self: "UNCHANGED"})()


class ChangeEvent(NamedTuple):
    """One decoded message of a changelog, before it is typed by a table's schema.

    Attributes:
        table: table name as the source says it, without the connection.
        kind: c create, u update, d delete, r row of a snapshot that the connector reads, truncate,
            ddl, altered (no later change of the table can be read: `detail` goes on after its name
            and says why), unreadable (a change of a row of which `detail` says why), heartbeat.
        key: key columns by name; None when the message carries none.
        before: row before, or None when the source did not send one. May be partial.
        after: row after (c, u, r). Raw values for the format's `convert`, or UNCHANGED.
        position: the source's own order as comparable integers, e.g. (binlog file, pos, row, 0);
            empty when there is none (also for snapshot rows of a connector): then partition and
            offset order the events and nothing is dropped. Never smaller than that of the event
            before it in the partition, but maybe equal: PostgreSQL's COPY writes many rows at one
            LSN. So a re-sent event is one *below* the highest position taken; one at it is taken
            again, which changes nothing.
        source_ms: commit time on the source's clock in milliseconds; None when unknown.
        partition: where it came from, e.g. `pg.shop.orders/0` or a file name.
        offset: the offset in that partition.
        transaction: the source's transaction id, if it sends one.
        detail: the statement of a ddl event, for messages.
        namespace: the database (MySQL) or schema (PostgreSQL) of the table, by which tables of one
            name are told apart; None when the message does not say.
        origin: the name of what sent it, where it says so: heartbeats of another one say nothing.
    """

    table: str
    kind: Kind
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    position: tuple[int, ...]
    source_ms: SourceMs | None
    partition: str
    offset: int
    transaction: str | None = None
    detail: str | None = None
    namespace: str | None = None
    origin: str | None = None


class EventBlock(NamedTuple):
    """Events of many messages, one of each, field by field: lists of one length; see `ChangeEvent`.

    Only what is usual: changes of rows and heartbeats (`kinds`: c, u, d, heartbeat) with whole
    rows, none of which is UNCHANGED. A c or u has an after-image. Of a message that tells nothing,
    as a tombstone, the kind and the table are empty.
    """

    tables: Sequence[str]
    kinds: Sequence[str]
    keys: Sequence[dict[str, Any] | None]
    befores: Sequence[dict[str, Any] | None]
    afters: Sequence[dict[str, Any] | None]
    positions: Sequence[tuple[int, ...]]
    times: Sequence[SourceMs | None]
    namespaces: Sequence[str | None]

    def at(self, places: Sequence[int]) -> EventBlock:
        """Those at some places."""
        if len(places) < 2:
            return EventBlock._make([field[place] for place in places] for field in self)
        return EventBlock._make(map(itemgetter(*places), self))


def encode_position(position: Sequence[int]) -> str:
    """A position as text that sorts as the integers do, given the same number of parts.

    >>> encode_position((3, 77744)) < encode_position((3, 100000))
    True
    """
    return _template(len(position)) % tuple(position)


def encode_positions(positions: Sequence[tuple[int, ...]]) -> list[str]:
    """`encode_position` of many."""
    sizes = set(map(len, positions))
    if len(sizes) != 1:
        return [*map(encode_position, positions)]
    return [*map(_template(*sizes).__mod__, positions)]


def _template(size: int) -> str:
    return ".".join(["%020d"] * size)


#: Column of changelog rows: a `RowKind`.
KIND = "__kind"

#: Column of a change batch: what a change does to the row of its key (c u d), or truncate.
OP = "__op"

#: Columns that stand before the table's own in a change batch.
META = (
    (OP, pa.string()),
    ("__position", pa.string()),  # encode_position, never null
    ("__source_ms", pa.int64()),
    ("__partition", pa.string()),
    ("__offset", pa.int64()),
    ("__unchanged", pa.list_(pa.string())),  # columns to take from the mirror; null = none
)


def batch_schema(table: TableSchema) -> pa.Schema:
    """The Arrow schema of a change batch: META, then the table's columns, all nullable.

    A delete carries at least the key columns; the others may be null and are never read.
    """
    return pa.schema(
        [pa.field(name, kind) for name, kind in META]
        + [pa.field(c.name, c.type) for c in table.columns]
    )


def to_ipc(table: pa.Table) -> bytes:
    """A table as one Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_ipc(blob: bytes | pa.Buffer) -> pa.Table:
    """The table of one Arrow IPC stream."""
    with pa.ipc.open_stream(blob) as reader:
        return reader.read_all()


#: The one row shape that crosses Spark, for all sources and the merge operator's output.
#: kind: `changes` (body: change batch), `marker`, `release`, `halt`, `reject` (JSON), `heartbeat`
#: (no body).
#: event_time is NULL but for heartbeats: see design, "Watermark".
STREAM_DDL = "kind string, `table` string, chunk int, rows long, event_time timestamp, body binary"
STREAM_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("table", pa.string()),
        ("chunk", pa.int32()),
        ("rows", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("body", pa.binary()),
    ]
)


@dataclass(frozen=True)
class StreamRow:
    """One row of the stream that crosses Spark; see STREAM_DDL."""

    kind: Literal["changes", "marker", "release", "halt", "reject", "heartbeat"]
    table: str = ""
    chunk: int = 0
    rows: int = 0
    event_time: SourceMs | None = None
    body: bytes = field(default=b"", repr=False)


def stream_batch(rows: Iterable[StreamRow]) -> pa.RecordBatch:
    """Stream rows as one Arrow batch of STREAM_ARROW."""
    listed = list(rows)
    return pa.record_batch(
        [
            pa.array([row.kind for row in listed], pa.string()),
            pa.array([row.table for row in listed], pa.string()),
            pa.array([row.chunk for row in listed], pa.int32()),
            pa.array([row.rows for row in listed], pa.int64()),
            pa.array(
                [None if row.event_time is None else row.event_time * 1000 for row in listed],
                pa.timestamp("us", tz="UTC"),
            ),
            pa.array([row.body for row in listed], pa.binary()),
        ],
        schema=STREAM_ARROW,
    )
