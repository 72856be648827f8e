"""What a streaming query needs to know, as one JSON file: Spark options carry only its path.

The file holds names, schemas, chunk bounds and offsets; never a secret: executors read the
configuration again and reveal secrets where they connect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from mview.config import Config, load_config
from mview.connector import Changelog, Database, Format, Offsets, load
from mview.schema import TableSchema
from mview.snapshot import Chunk, ChunkPlan


@dataclass(frozen=True)
class TableSpec:
    """One source table as a query reads it.

    Attributes:
        name: `<connection>.<table>`.
        schema: columns and key, frozen when the table was added.
        base: folder of the mirror's base.
        stage: folder for chunk files, below `base`.
        plan: the chunks while the table is loading, else None.
    """

    name: str
    schema: TableSchema
    base: Path
    stage: str
    plan: ChunkPlan | None

    @property
    def connection(self) -> str:
        """The connection's name."""
        return self.name.partition(".")[0]

    @cached_property
    def column_names(self) -> frozenset[str]:
        """The names of the schema's columns."""
        return frozenset(self.schema.names)

    @property
    def source_name(self) -> str:
        """The table's name in its database."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class QuerySpec:
    """One life of a streaming query.

    Attributes:
        generation: number of this life; a new one begins with every new checkpoint.
        config_path: the configuration file, read again by executors.
        tables: all tables of the store, by name.
        start: offsets of each connection's changelog at which this query begins.
        watermark: the watermark at the start, source milliseconds; -1 unknown.
        tasks: how many tasks a batch may use.
        once: bounded run: take what is there and end.
        pinned_ms: what `now()` was in the epoch before this query.
        tick_ms: how often it moves; 0: no view asks.
    """

    generation: int
    config_path: Path
    tables: dict[str, TableSpec]
    start: dict[str, Offsets]
    watermark: int
    tasks: int
    once: bool
    pinned_ms: int = 0
    tick_ms: int = 0

    @property
    def chunks(self) -> list[tuple[TableSpec, Chunk]]:
        """The chunks of all loading tables, interleaved so that tables finish together."""
        queue: list[tuple[float, str, TableSpec, Chunk]] = []
        for table in self.tables.values():
            if table.plan is not None:
                chunks = table.plan.chunks
                queue += [
                    (chunk.number / len(chunks), table.name, table, chunk) for chunk in chunks
                ]
        return [(table, chunk) for _, _, table, chunk in sorted(queue, key=lambda q: q[:2])]

    def tables_of(self, connection: str) -> list[TableSpec]:
        """The tables of one connection."""
        return [table for table in self.tables.values() if table.connection == connection]

    def write(self, file: Path) -> None:
        """Write the spec as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "generation": self.generation,
            "config": str(self.config_path),
            "tables": [
                {
                    "name": table.name,
                    "schema": table.schema.to_json(),
                    "base": str(table.base),
                    "stage": table.stage,
                    "plan": None if table.plan is None else table.plan.to_json(),
                }
                for table in self.tables.values()
            ],
            "start": self.start,
            "watermark": self.watermark,
            "tasks": self.tasks,
            "once": self.once,
            "pinned_ms": self.pinned_ms,
            "tick_ms": self.tick_ms,
        }
        file.write_text(json.dumps(data))


def read_spec(path: str) -> tuple[QuerySpec, Config]:
    """The spec of a file and the configuration it names; cached per worker process."""
    # Workers outlive queries, and a load that goes on writes its file again.
    return _read_spec(path, Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_spec(path: str, written_ns: int) -> tuple[QuerySpec, Config]:
    data: dict[str, Any] = json.loads(Path(path).read_text())
    tables = {
        table["name"]: TableSpec(
            table["name"],
            TableSchema.from_json(table["schema"]),
            Path(table["base"]),
            table["stage"],
            None if table["plan"] is None else ChunkPlan.from_json(table["plan"]),
        )
        for table in data["tables"]
    }
    spec = QuerySpec(
        data["generation"],
        Path(data["config"]),
        tables,
        data["start"],
        data["watermark"],
        data["tasks"],
        data["once"],
        data["pinned_ms"],
        data["tick_ms"],
    )
    return spec, load_config(spec.config_path)


def open_database(config: Config, connection: str) -> Database:
    """The database of a connection, by the dialect of its drivername."""
    settings = config.connections[connection]
    dialect = settings.drivername.partition("+")[0]
    database: Database = load("databases", dialect)(settings)
    return database


def open_format(config: Config, connection: str) -> Format:
    """The change format of a connection."""
    settings = config.changes[connection]
    decoder: Format = load("formats", settings.format)(settings.options)
    return decoder


def open_changelog(config: Config, connection: str, tables: list[str]) -> Changelog:
    """The changelog of a connection for these tables (names as the database has them)."""
    settings = config.changes[connection]
    changelog: Changelog = load("changelogs", settings.source)(
        settings, open_format(config, connection), tables
    )
    return changelog
