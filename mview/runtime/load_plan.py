"""How a table will be loaded: its chunks, and what was in the log before the load began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from mview.clock import SourceMs
from mview.config import Config
from mview.runtime.spec import open_database
from mview.schema import TableSchema
from mview.snapshot import ChunkPlan


@dataclass(frozen=True)
class LoadPlan:
    """Frozen before the first chunk is read.

    Attributes:
        chunks: the table's chunks.
        begin: see `LoadingTable.begin`.
        asked_ms: the database's clock, after `begin`: what stands before `begin` is older.
    """

    chunks: ChunkPlan
    begin: Mapping[str, str]
    asked_ms: SourceMs


def plan_load(
    config: Config, table: str, schema: TableSchema, begin: Mapping[str, str]
) -> LoadPlan:
    """Ask the database how to split a table."""
    connection, _, name = table.partition(".")
    database = open_database(config, connection)
    try:
        asked = database.clock()
        chunks = database.plan(name, schema, config.engine.chunk_rows, config.engine.chunk_bytes)
    finally:
        database.close()
    return LoadPlan(ChunkPlan.from_json({**chunks.to_json(), "table": table}), begin, asked)


def write_plan(file: Path, plan: LoadPlan) -> None:
    """Keep a plan; replaces an older one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".tmp")
    body = {"chunks": plan.chunks.to_json(), "begin": plan.begin, "asked_ms": plan.asked_ms}
    staged.write_bytes(orjson.dumps(body))
    staged.replace(file)


def read_plan(file: Path) -> LoadPlan:
    """A plan that was kept."""
    data = orjson.loads(file.read_bytes())
    return LoadPlan(ChunkPlan.from_json(data["chunks"]), data["begin"], data["asked_ms"])


def group_by_connection(tables: Iterable[str]) -> dict[str, list[str]]:
    """Table names as their databases have them, by connection."""
    found: dict[str, list[str]] = {}
    for name in sorted(tables):
        connection, _, table = name.partition(".")
        found.setdefault(connection, []).append(table)
    return found
