"""How a table will be loaded: its chunks, and what was in the log before the load began."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from mview.changelog import encode_position
from mview.clock import SourceMs
from mview.config import Config
from mview.connector import Changelog, LogReader, Offsets
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.ingest.spec import chunk_bytes, load_chunk_rows, open_changelog, open_database
from mview.relation import RelationId, by_connection
from mview.schema import TableSchema
from mview.snapshot import ChunkPlan
from mview.store.manifest import Manifest


@dataclass(frozen=True)
class LoadStart:
    """Where a load query begins, in all its lives.

    Spark asks for it again when it replays the first batch, which may be published by then: what
    that batch held must go into the merge's state again, or its rows come twice.

    Attributes:
        offsets: of each connection's changelog.
        watermark: source milliseconds; -1 unknown.
        pinned_ms: what `now()` was before.
    """

    offsets: Mapping[str, Offsets]
    watermark: int
    pinned_ms: int

    @classmethod
    def at(cls, manifest: Manifest) -> LoadStart:
        """Where the published epochs end."""
        watermark = -1 if manifest.watermark is None else manifest.watermark
        return cls(manifest.offsets, watermark, manifest.pinned_ms)


@dataclass(frozen=True)
class LoadPlan:
    """Frozen before the first chunk is read.

    Attributes:
        start: of the query that loads it; the same for all tables of one query.
        chunks: the table's chunks.
        begin: see `LoadingTable.begin`.
        since: see `TableSpec.since`.
        asked_ms: the database's clock, after `begin`: what stands before `begin` is older.
    """

    start: LoadStart
    chunks: ChunkPlan
    begin: Mapping[str, str]
    since: Mapping[str, int]
    asked_ms: SourceMs


def plan_load(
    config: Config,
    table: RelationId,
    schema: TableSchema,
    start: LoadStart,
    begin: Mapping[str, str],
    since: Mapping[str, int],
) -> LoadPlan:
    """Ask the database how to split a table."""
    database = open_database(config, table.connection)
    try:
        asked = database.clock()
        size = chunk_bytes(config.engine)
        chunks = database.plan(table.name, schema, load_chunk_rows(config, table), size)
    finally:
        database.close()
    return LoadPlan(start, replace(chunks, table=str(table)), begin, since, asked)


def write_plan(file: Path, plan: LoadPlan) -> None:
    """Keep a plan; replaces an older one."""
    body = {
        "start": asdict(plan.start),
        "chunks": plan.chunks.to_json(),
        "begin": plan.begin,
        "since": plan.since,
        "asked_ms": plan.asked_ms,
    }
    put(file, checked(body))


def read_plan(file: Path) -> LoadPlan:
    """A plan that was kept.

    Raises:
        CorruptionError: it is not what was written.
    """
    return read_checked(
        file,
        partial(record, LoadPlan),
        "the plan of a load cannot be read",
        "restore the file from a copy of the store; or `mview drop` the table and run again: it is "
        "loaded anew",
    )


def begin_offsets(
    config: Config,
    read: Mapping[str, Offsets],
    tables: Iterable[RelationId],
    new: Collection[RelationId],
    schemas: Mapping[RelationId, TableSchema],
    reader: LogReader | None = None,
) -> tuple[dict[str, Offsets], dict[str, Offsets]]:
    """By connection, where reading goes on when tables are added, and where the logs end now.

    What other tables are read from goes on where it is; a partition that it got meanwhile is left
    out, as whatever stands in it was not read. What only new tables are read from begins at its
    end: whatever stands before, and could not be read, is left.

    Args:
        read: by connection, up to where its logs were read.
        tables: all tables to follow.
        new: those of them whose load begins.
        schemas: what is read of them; of other columns it does not matter whether a log has them.
        reader: who reads; None: the epochs of the store.
    """
    offsets: dict[str, Offsets] = {}
    ends: dict[str, Offsets] = {}
    for connection, names in by_connection(tables).items():
        relations = {name: RelationId("table", name, connection) for name in names}
        columns = {n: schemas[table].names for n, table in relations.items() if table in schemas}
        changelog = open_changelog(config, connection, names, columns, reader=reader)
        kept = [name for name, table in relations.items() if table not in new]
        others = open_changelog(config, connection, kept) if kept else None

        def is_kept(entry: str, others: Changelog | None = others) -> bool:
            return others is not None and others.has(entry)

        before = {
            entry: offset
            for entry, offset in read.get(connection, {}).items()
            if is_kept(entry) or not changelog.has(entry)
        }
        try:
            end = changelog.begin(before if others is not None else None)
            fresh = {entry: offset for entry, offset in end.items() if not is_kept(entry)}
            ends[connection], offsets[connection] = end, {**fresh, **before}
        finally:
            changelog.close()
    return offsets, ends


def begin_positions(
    config: Config, table: RelationId, ends: Mapping[str, Offsets], taken: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, int]]:
    """By partition, the first position after what was sent before `ends`; and these ends.

    Not the database's own position: its transactions commit in another order than they write,
    and what is read from may be another server than the one the connector reads.

    Args:
        config: the configuration.
        table: the table.
        ends: by connection, where the logs end now.
        taken: by partition, positions that are taken in any case.
    """
    changelog = open_changelog(config, table.connection, [table.name])
    end = ends[table.connection]
    try:
        sent, since = changelog.sent(table.name, end), changelog.first(end)
    finally:
        changelog.close()
    begin = dict(taken)
    for partition, (*parts, last) in sent.items():
        after = encode_position((*parts, last + 1))
        begin[partition] = max(after, begin.get(partition, ""))
    return begin, since
