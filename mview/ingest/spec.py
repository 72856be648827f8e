"""What a streaming query needs to know, as one JSON file: Spark options carry only its path.

The file holds names, schemas, chunk bounds and offsets; never a secret: executors read the
configuration again and reveal secrets where they connect. It must name the same places still: a
range of offsets is of a log, and a chunk of a database.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from mview.changelog import ChangeEvent, EventBlock
from mview.clock import END_OF_TIME, SourceMs, SystemClock
from mview.config import Config, EngineSettings
from mview.config.file import config_of, load_config
from mview.connector import (
    AHEAD_MS,
    Changelog,
    Database,
    Format,
    LogReader,
    Message,
    Offsets,
    block_of,
    load,
    passed_by,
    place_of,
    reload_hint,
)
from mview.errors import CorruptionError, DecodeError, UserError
from mview.files.durable import put
from mview.ingest.decode.statements import Named, names_in
from mview.memory import MESSAGE_PART, Memory
from mview.relation import RelationId, TableName
from mview.rows.where import Condition, parse_where
from mview.schema import TableSchema
from mview.snapshot import Chunk, ChunkPlan
from mview.store.identity import named_by


@dataclass(frozen=True)
class TableSpec:
    """One source table as a query reads it.

    Attributes:
        name: the table.
        schema: columns and key, frozen when the table was added.
        base: folder of the mirror's base.
        stage: folder for chunk files, below `base`.
        plan: the chunks while the table is loading, else None.
        since: by source partition, the offset at which the load began. What stands before it is in
            the chunks: it is not looked at, whatever it is. Empty when the table is loaded: by then
            the log was read beyond it.
        rereads: rows of a connector's snapshot are handed on: the table is read anew then. Else
            they are refused.
    """

    name: RelationId
    schema: TableSchema
    base: Path
    stage: str
    plan: ChunkPlan | None
    since: Mapping[str, int] = field(default_factory=dict)
    rereads: bool = False

    @property
    def connection(self) -> str:
        """The connection's name."""
        return self.name.connection

    @cached_property
    def column_names(self) -> frozenset[str]:
        """The names of the schema's columns."""
        return frozenset(self.schema.names)

    @cached_property
    def key_names(self) -> frozenset[str]:
        """The names of the key's columns."""
        return frozenset(self.schema.key)

    @cached_property
    def altered_as(self) -> tuple[str, dict[str, bool]]:
        """What a statement would name: the table, and its columns, each with whether it is NULL."""
        name = TableName.of(self.source_name).table
        return name, {column.name: column.nullable for column in self.schema.columns}

    @cached_property
    def condition(self) -> Condition | None:
        """The condition that all rows fulfil, if there is one."""
        return parse_where(self.schema.where) if self.schema.where else None

    @property
    def source_name(self) -> str:
        """The table's name in its database."""
        return self.name.name


@dataclass(frozen=True)
class QuerySpec:
    """One life of a streaming query.

    Attributes:
        generation: number of this life; a new one begins with every new checkpoint.
        config: the configuration, whose file is read again by executors.
        tables: all tables of the store, by name.
        start: offsets of each connection's changelog at which this query begins.
        watermark: the watermark at the start, source milliseconds; -1 unknown.
        tasks: how many tasks a batch may use.
        once: bounded run: take what is there and end.
        pinned_ms: what `now()` was in the epoch before this query.
        tick_ms: how often it moves; 0: no view asks.
        light: see `LogReader`.
        token: of the runner's lease.
    """

    generation: int
    config: Config
    tables: dict[RelationId, TableSpec]
    start: dict[str, Offsets]
    watermark: int
    tasks: int
    once: bool
    pinned_ms: int = 0
    tick_ms: int = 0
    light: str = ""
    token: int = 0

    @property
    def reader(self) -> LogReader:
        """Who reads."""
        return log_reader(self.config, self.light)

    @property
    def chunks(self) -> list[tuple[TableSpec, Chunk]]:
        """The chunks of all loading tables, interleaved so that tables finish together."""
        queue: list[tuple[float, RelationId, TableSpec, Chunk]] = []
        for table in self.tables.values():
            if table.plan is not None:
                chunks = table.plan.chunks
                queue += [
                    (chunk.number / len(chunks), table.name, table, chunk) for chunk in chunks
                ]
        return [(table, chunk) for _, _, table, chunk in sorted(queue, key=lambda q: q[:2])]

    def chunks_after(self, handed: Mapping[RelationId, int]) -> list[tuple[TableSpec, Chunk]]:
        """The chunks that are left when those of each table below a number were handed out."""
        return [
            (table, chunk)
            for table, chunk in self.chunks
            if chunk.number >= handed.get(table.name, 0)
        ]

    def tables_of(self, connection: str) -> list[TableSpec]:
        """The tables of one connection."""
        return [table for table in self.tables.values() if table.connection == connection]

    def write(self, file: Path) -> str:
        """Write the spec as JSON; returns what `read_spec` takes: it names this content, too."""
        data = {
            "generation": self.generation,
            "config": str(self.config.path),
            "settings": self.config.read_by,
            "tables": [
                {
                    "name": str(table.name),
                    "schema": table.schema.to_json(),
                    "base": str(table.base),
                    "stage": table.stage,
                    "plan": None if table.plan is None else table.plan.to_json(),
                    "since": table.since,
                    "rereads": table.rereads,
                }
                for table in self.tables.values()
            ],
            "start": self.start,
            "watermark": self.watermark,
            "tasks": self.tasks,
            "once": self.once,
            "pinned_ms": self.pinned_ms,
            "tick_ms": self.tick_ms,
            "light": self.light,
            "token": self.token,
        }
        content = json.dumps(data).encode()
        put(file, content)
        return f"{file}#{_digest_of(content)}"


def spec_file(reference: str) -> Path:
    """The file of a spec that `QuerySpec.write` wrote."""
    return Path(reference.rpartition("#")[0])


#: Every light view of a run reads by a spec of its own.
@lru_cache(maxsize=64)
def read_spec(reference: str) -> QuerySpec:
    """The spec of a file, with the configuration that the run began with; cached per process.

    Args:
        reference: what `QuerySpec.write` returned, in the driver.

    Raises:
        CorruptionError: the file is not what was written: it says where to read and write.
    """
    file, content = spec_file(reference), spec_file(reference).read_bytes()
    if _digest_of(content) != reference.rpartition("#")[2]:
        raise CorruptionError(
            "somebody changed what a query is to read, while it ran",
            where=str(file),
            safe="nothing of it was done; every published epoch stays",
            hint="find out who writes into the store; then run the same command again: the file "
            "is written anew",
        )
    data: dict[str, Any] = json.loads(content)
    tables = {
        (name := RelationId.of(table["name"])): TableSpec(
            name,
            TableSchema.from_json(table["schema"]),
            Path(table["base"]),
            table["stage"],
            None if table["plan"] is None else ChunkPlan.from_json(table["plan"]),
            table["since"],
            table["rereads"],
        )
        for table in data["tables"]
    }
    return QuerySpec(
        data["generation"],
        # Not by what its file has now: offsets of a log, and chunks of a database, are of no other.
        config_of(data["settings"], Path(data["config"])),
        tables,
        data["start"],
        data["watermark"],
        data["tasks"],
        data["once"],
        data["pinned_ms"],
        data["tick_ms"],
        data["light"],
        data["token"],
    )


def check_unedited(config: Config) -> None:
    """Make sure that a run reads by the places that who asks it for views has looked at.

    Args:
        config: of the run.

    Raises:
        ConfigError: its file cannot be read any more.
        UserError: connections or changelogs were edited there since.
    """
    if _places_of(load_config(config.path)) != _places_of(config):
        raise UserError(
            "connections or changes were edited in the configuration while a run reads by them",
            where=str(config.path),
            safe="nothing was changed; the run goes on by what stood there at its start",
            hint="end the run and start it again, with these files, too: it goes on where it was, "
            "by what stands there then",
        )


def _places_of(config: Config) -> str:
    """A digest of where databases and changelogs are, and how they are read."""
    settings = config.model_dump(mode="json", include={"connections", "changes"})
    for connection in settings["connections"].values():
        # How gently is read may be edited at any time: it is no place, and counts from the next
        # start on.
        for part in (connection, *connection["tables"].values()):
            del part["load"]
        tables = connection["tables"].items()
        connection["tables"] = {name: said for name, said in tables if any(said.values())}
    return _digest_of(json.dumps(settings, sort_keys=True).encode())


def _digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def chunk_bytes(engine: EngineSettings) -> int:
    """Bytes of a chunk at the most: it becomes a file of the table's mirror."""
    return min(engine.chunk_bytes, Memory(engine.memory).file)


#: Seconds that a chunk of a table with a rate takes at the most: reads come in small steps.
_CHUNK_S = 10


def load_chunk_rows(config: Config, table: RelationId) -> int:
    """Rows of a chunk of a load at the most."""
    connection = config.connections[table.connection]
    loads = (connection.load, connection.table(table.name).load)
    rates = [load.rows_per_second * _CHUNK_S for load in loads if load.rows_per_second]
    return min(config.engine.chunk_rows, *rates) if rates else config.engine.chunk_rows


def chunks_per_epoch(engine: EngineSettings, tasks: int) -> int:
    """Chunks that are read in an epoch; more of them where a small budget makes them small."""
    return engine.chunks_per_epoch or 2 * tasks * max(1, engine.chunk_bytes // chunk_bytes(engine))


def open_database(config: Config, connection: str) -> Database:
    """The database of a connection, by the dialect of its drivername."""
    settings = config.connections[connection]
    dialect = settings.drivername.partition("+")[0]
    database: Database = load("databases", dialect)(settings)
    return database


class BoundedFormat:
    """A format that refuses messages before they are decoded that `engine.memory` is no match for.

    Args:
        format: decodes the others.
        memory: bytes of `engine.memory`.
    """

    def __init__(self, format: Format, memory: int) -> None:
        self._format, self._most = format, Memory(memory).message
        self.in_band_heartbeats = format.in_band_heartbeats
        #: Not by a method of ours: it is asked for every column.
        self.convert = format.convert

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """See `Format`."""
        if message.value is not None and len(message.value) > self._most:
            size = len(message.value)
            error = DecodeError(
                "a change message is too large for engine.memory",
                where=place_of(message),
                got=f"{size} bytes",
                allowed=f"up to {self._most} bytes, a {MESSAGE_PART}th of engine.memory: it is "
                "needed several times at once",
                safe="nothing after it was taken; published epochs are untouched",
                hint=f"set engine.memory to {MESSAGE_PART * size} or more and run the same command "
                "again",
            )
            raise passed_by(error, reload_hint(), "; or")
        return self._format.decode(message)

    def decode_block(self, messages: Sequence[Message]) -> EventBlock | None:
        """See `Format`."""
        if max(len(message.value or b"") for message in messages) > self._most:
            return None
        return block_of(self._format, messages)


class ScopedFormat:
    """A format whose events name tables as we do (`TableName`): those of all schemas apart.

    Args:
        format: decodes messages; its events have the name in the schema, and maybe the schema.
        own: the schema of tables that are named without one; None: there are no schemas.
        folds: names of schemas may differ by their letters' case only for some servers.
        is_own_log: it tells a statement for each table that is concerned; else for one of them.
    """

    def __init__(
        self, format: Format, own: str | None, *, folds: bool = False, is_own_log: bool = False
    ) -> None:
        self._format, self._own, self._folds, self._is_own_log = format, own, folds, is_own_log
        self._names: dict[tuple[str | None, str], str] = {}
        self.in_band_heartbeats = format.in_band_heartbeats
        self.convert = format.convert

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """See `Format`."""
        try:
            return [
                named
                for event in self._format.decode(message)
                for named in self._all_named(event, message)
            ]
        except DecodeError as error:
            if error.table is not None:
                error.table = None, self._name(*error.table, message)
            raise

    def decode_block(self, messages: Sequence[Message]) -> EventBlock | None:
        """See `Format`."""
        block = block_of(self._format, messages)
        if block is None:
            return None
        named = [*zip(block.namespaces, block.tables, strict=True)]
        ours = {name: self._name(*name, messages[0]) for name in dict.fromkeys(named)}
        return block._replace(tables=[ours[name] for name in named])

    def _all_named(self, event: ChangeEvent, message: Message) -> list[ChangeEvent]:
        """The event; a statement is one for each table, or whole schema, that it names."""
        if event.kind != "ddl" or self._is_own_log:
            return [self._named(event, message)]
        told = {Named(event.namespace or "", event.table)} if event.table else set()
        for schema, table in names_in(event.detail or ""):
            place = schema or event.namespace or ""
            if self._folds:
                # The letters' case is of who wrote the statement; the server may not care for it.
                is_own = self._own is not None and place.lower() == self._own.lower()
                place = self._own or "" if is_own else place
                told.add(Named(place if is_own else place.lower(), table.lower()))
            told.add(Named(place, table))
        events = [
            self._named(event._replace(namespace=schema or None, table=table), message)
            for schema, table in sorted(told)
        ]
        return [*{named.table: named for named in events}.values()]

    def _named(self, event: ChangeEvent, message: Message) -> ChangeEvent:
        name = self._name(event.namespace, event.table, message)
        return event if name == event.table else event._replace(table=name)

    def _name(self, schema: str | None, table: str, message: Message) -> str:
        """What we call a table of a schema."""
        own = self._own
        name = self._names.get((schema, table))
        if name is None:
            if (
                self._folds
                and None not in (schema, own)
                and schema != own
                and str(schema).lower() == str(own).lower()
            ):
                raise _other_case(str(schema), message, str(own))
            is_ours = schema is None or own is None or schema == own
            name = str(TableName("" if is_ours else str(schema), table))
            self._names[schema, table] = name
        return name


def _other_case(schema: str, message: Message, own: str) -> DecodeError:
    error = DecodeError(
        "a change is of a database whose name differs in case from the connection's",
        where=place_of(message),
        got=schema,
        allowed=f"{own}, as under 'connections'",
        safe="nothing after it was taken; published epochs are untouched",
        hint="write the name under 'connections' as the server does",
    )
    return passed_by(error, reload_hint())


def open_format(config: Config, connection: str) -> Format:
    """The change format of a connection."""
    settings = config.changes[connection]
    decoder: Format = load("formats", settings.format)(settings.options)
    database = config.connections[connection]
    folds = database.drivername.startswith(("mysql", "mariadb"))
    own, is_own_log = database.own_schema, settings.is_own_log
    decoder = ScopedFormat(decoder, own, folds=folds, is_own_log=is_own_log)
    return BoundedFormat(decoder, config.engine.memory)


def latest_time(config: Config, connection: str) -> SourceMs:
    """The newest time that a change of a connection may have; a later one ends the run.

    Any, in a database's own log: its watermark goes by the server's clock and the end of the log.
    A time of a change moves it only where that clock agrees, and is ahead of it where a session has
    set it so, or the clock was set back since.
    """
    if config.changes[connection].is_own_log:
        return END_OF_TIME
    return SourceMs(SystemClock().now() + AHEAD_MS)


def log_reader(config: Config, light: str = "") -> LogReader:
    """Who reads a database's own log for the store.

    Args:
        config: the configuration.
        light: see `LogReader`.
    """
    return LogReader(named_by(config.store), light)


def open_changelog(
    config: Config,
    connection: str,
    tables: list[str],
    columns: Mapping[str, Collection[str]] | None = None,
    loading: Collection[str] = (),
    reader: LogReader | None = None,
) -> Changelog:
    """The changelog of a connection for these tables (names as the database has them).

    Args:
        config: the configuration.
        connection: its name.
        tables: those that are followed.
        columns: those that are read, by table. A changelog that looks whether tables are as they
            were (it has a method `only`) need not look at others.
        loading: those of which not every row counts yet; told by the same method.
        reader: who reads; None: the epochs of the store.
    """
    settings = config.changes[connection].of_schema(config.connections[connection].own_schema)
    format = open_format(config, connection)
    factory = load("changelogs", settings.source)
    changelog: Changelog
    if (own := getattr(factory, "of_database", None)) is not None:
        database = config.connections[connection]
        changelog = own(settings, database, format, tables, reader or log_reader(config))
    else:
        changelog = factory(settings, format, tables)
    if columns is not None and (only := getattr(changelog, "only", None)) is not None:
        only(columns, loading)
    return changelog
