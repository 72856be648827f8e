"""A view's query over rows of the databases as they are now: without a store, and without changes.

Each table is read in one piece, up to so many rows. What is made of a table that has more is a
sample, and is said to be one: sums are too small, and rows of joins may lack their partners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.catalog.definitions import load_definitions
from mview.catalog.tables import describe_tables, source_tables
from mview.config import Config
from mview.errors import UserError
from mview.execute.queries import limit_memory
from mview.ingest.chunks import chunk_rows
from mview.ingest.spec import TableSpec, open_database
from mview.ivm.compile import compile_view
from mview.ivm.rewrites.total_order import in_total_order
from mview.memory import Memory
from mview.plan.clocks import is_clock, pinned_rows
from mview.plan.definition import ViewDefinition, load_views, order_views, parse_view
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.schema import Column, TableSchema, type_name
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.trial.files import TrialProject, engine
from mview.trial.world import TrialEngine

#: More than any table has: it is read in one piece.
_ALL = 1 << 62


@dataclass(frozen=True)
class PreviewedTable:
    """A table that was read.

    Attributes:
        table: its name.
        rows: rows that were read.
        about: about how many it has.
        sampled: whether it has more than were read.
    """

    table: str
    rows: int
    about: int
    sampled: bool


@dataclass(frozen=True)
class Preview:
    """What a query gives.

    Attributes:
        view: its name.
        tables: what was read, of views that it reads, too.
        columns: names and Spark's types of the result.
        rows: the first rows of the result.
        count: how many rows it has.
        sampled: whether a table was read in part: then the result is one of a sample.
        on_spark: why Spark ran a query; empty: none needed it.
        seconds: that it took.
    """

    view: str
    tables: tuple[PreviewedTable, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Mapping[str, Any], ...]
    count: int
    sampled: bool
    on_spark: str
    seconds: float


def preview(
    config: Config,
    what: str,
    beside: Sequence[str],
    sample: int,
    most: int,
    note: Callable[[str], None],
) -> Preview:
    """What a view's query gives of the databases as they are now. Nothing is written.

    Args:
        config: has the connections.
        what: a file, the name of a view of the store, or the text of a query.
        beside: files and folders of views that it reads; others are taken from the store.
        sample: rows that are read of each table at the most.
        most: rows of the result that are told.
        note: told when Spark is started, and why.

    Raises:
        UserError: the query is wrong.
        RetryableError: a database cannot be reached.
    """
    began = time.monotonic()
    limit_memory(Memory(config.engine.memory).queries)
    project = TrialProject(config)
    asked, views = _views(config, project, what, beside)
    schemas = describe_tables(config, views, {})
    read: dict[RelationId, pa.Table] = {}
    tables = []
    for name in source_tables(views):
        told, rows = _read(config, name, schemas[name], sample)
        tables.append(told)
        read[name] = rows
    with engine(project, views) as queries:
        result = _computed(queries, views, asked, schemas, read)
        on_spark = "; ".join(sorted(set(queries.reasons.values())))
    if on_spark:
        note(f"Spark was needed: {on_spark}")
    return Preview(
        asked.name,
        tuple(tables),
        tuple((column.name, type_name(column.type)) for column in result.schema),
        tuple(result.slice(0, most).to_pylist()),
        result.num_rows,
        any(table.sampled for table in tables),
        on_spark,
        time.monotonic() - began,
    )


def _views(
    config: Config, project: TrialProject, what: str, beside: Sequence[str]
) -> tuple[ViewDefinition, list[ViewDefinition]]:
    """The view that is asked for, and all that must be computed for it, in DAG order."""
    given = {view.name: view for view in load_views(beside)} if beside else {}
    manifest = ManifestLog(Store(config.store).manifests).latest()
    kept = {} if manifest is None else load_definitions(Store(config.store), manifest).views
    known = {**kept, **given}
    asked = _asked(what, known)
    needed = {asked.name: asked}
    waiting = [asked]
    while waiting:
        for name in waiting.pop().read_views:
            if name not in known:
                raise UserError(
                    f"view {name!r} is not known",
                    where=asked.file,
                    hint=did_you_mean(name, known) or "give its file: --with FILE",
                )
            if name not in needed:
                needed[name] = known[name]
                waiting.append(known[name])
    views = project.with_functions(order_views(list(needed.values())))
    return next(view for view in views if view.name == asked.name), views


def _asked(what: str, known: Mapping[str, ViewDefinition]) -> ViewDefinition:
    is_there = False
    with suppress(OSError, ValueError):  # a query that is too long to be the name of a file
        is_there = Path(what).exists()
    if what in known and not is_there:
        return known[what]
    if is_there or what.endswith(".sql"):
        views = load_views([what])
        if len(views) != 1:
            raise UserError(f"{what} has {len(views)} views", hint="name the file of one of them")
        return views[0]
    if len(what.split()) < 2:
        raise UserError(
            f"{what!r} is no file, no view of the store and no query",
            hint=did_you_mean(what, known) or "mview preview 'SELECT …'",
        )
    return parse_view(what, "preview", "the query")


def _read(
    config: Config, name: RelationId, schema: TableSchema, most: int
) -> tuple[PreviewedTable, pa.Table]:
    """The first rows of a table, as a load reads them."""
    with closing(open_database(config, name.connection)) as database:
        plan = database.plan(name.name, schema, _ALL, _ALL)
    table = TableSpec(name, schema, Path(), "", plan)
    (chunk,) = plan.open_chunks
    shape = pa.schema([field.with_nullable(True) for field in schema.arrow])

    def take(batches: Iterator[pa.RecordBatch]) -> tuple[pa.Table, bool]:
        parts, count = [shape.empty_table()], 0
        for batch in batches:
            left = most - count
            count += batch.num_rows
            parts.append(pa.Table.from_batches([batch]).cast(shape).slice(0, left))
            if count > most:
                return pa.concat_tables(parts), True
        return pa.concat_tables(parts), False

    (rows, sampled), _ = chunk_rows(config, table, chunk, take)
    about = max(plan.rows, rows.num_rows) if sampled else rows.num_rows
    return PreviewedTable(str(name), rows.num_rows, about, sampled), rows


def _computed(
    queries: TrialEngine,
    views: Sequence[ViewDefinition],
    asked: ViewDefinition,
    schemas: Mapping[RelationId, TableSchema],
    read: dict[RelationId, pa.Table],
) -> pa.Table:
    """The rows of the view that is asked for, after those that it reads."""
    now_ms = time.time_ns() // 1_000_000
    known = dict(schemas)
    for view in views:
        plan = compile_view(view, known)
        # The time as a row of a clock: as a literal, only Spark would read it.
        rows = queries.view(
            in_total_order(view, known),
            lambda name: pinned_rows(name, now_ms) if is_clock(name) else read[name],
            plan.columns,
        )
        read[view.relation] = rows
        columns = tuple(Column(field.name, field.type) for field in rows.schema)
        known[view.relation] = TableSchema(columns, plan.key)
    return read[asked.relation]
