"""The rows of tables from which a view's row is made, at one epoch.

The rows are found as the engine finds those of a changed group (`mview.ivm.tracing.trace`): the
values of the row go down the plan, and every table gives the rows that belong to them. That may be
more than the row is made of, never less. Then the query itself says which of them count: it is run
over fewer and fewer rows for as long as it gives this row.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mview.admin.why.filtered import conditions, passing
from mview.admin.why.narrowing import Rows, narrowed
from mview.errors import MviewError
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.program import Request, fetch_slices
from mview.execute.refusal import RefusalError
from mview.execute.slices import Changes, weighted
from mview.ivm.plan import ViewPlan
from mview.ivm.rewrites.total_order import in_total_order
from mview.ivm.tracing.fetches import Fetches
from mview.ivm.tracing.steps import Trace
from mview.ivm.tracing.trace import Tracer
from mview.plan.clocks import CLOCKS, is_clock, pinned_rows, with_clocks
from mview.plan.definition import ViewDefinition
from mview.plan.operators import ir
from mview.plan.operators.build import build
from mview.plan.operators.rules import rewrite
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.rows.match import match
from mview.schema import Column, TableSchema
from mview.store.layout import Store
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror

#: So many rows of a table are looked at; a row that is made of more is not taken apart.
MOST_ROWS = 200_000

#: Seconds for which rows are narrowed down.
SECONDS = 2.0

#: So many digits of a DOUBLE count: a sum of fewer rows, or in another order, differs after them.
_DIGITS = 12

#: What the row that is asked for is called among the tables; no user can give such a name.
_ASKED = RelationId("clock", "asked")


class UntellableError(Exception):
    """What is behind a row cannot be told; says why."""


@dataclass(frozen=True)
class Behind:
    """What a row is made of.

    Attributes:
        looked: rows that were looked at, per table or view that is read.
        rows: of these, few from which alone the query gives the row.
        complete: whether every one of them was tried; else there may be more than needed.
    """

    looked: Rows
    rows: Rows
    complete: bool


@dataclass(frozen=True)
class _Query:
    """A view's query as it is run here, at an epoch.

    Attributes:
        sql: its text, over relations of other names.
        names: by relation, its name there.
        clocks: by clock, the time of the epoch.
        shape: the columns of the result.
    """

    sql: str
    names: Mapping[RelationId, str]
    clocks: Mapping[RelationId, pa.Table]
    shape: pa.Schema


class Sources:
    """What a view reads, at published epochs.

    Args:
        store: where it is.
        definition: the view, as it was published.
        key: the columns that tell its rows apart; empty: all do.
    """

    def __init__(self, store: Store, definition: ViewDefinition, key: Sequence[str]) -> None:
        self._store, self._definition, self._key = store, definition, tuple(key)
        self._evaluator = LocalEvaluator()
        self._queries: dict[int, _Query] = {}
        self.names = tuple(n for n in definition.table_names if not is_clock(n))

    def close(self) -> None:
        """Free what evaluates queries."""
        self._evaluator.close()

    def behind(self, manifest: Manifest, row: pa.Table) -> Behind:
        """What a row is made of at an epoch.

        Args:
            manifest: of the epoch.
            row: the row once, with the view's columns; with no row of it the answer is empty.

        Raises:
            UntellableError: it cannot be told.
        """
        looked = self.looked_at(manifest, row)
        wanted = self.rows_like(manifest, looked, row)
        if not wanted:
            raise UntellableError("the query over the rows that were looked at gives no such row")
        ends = time.monotonic() + SECONDS

        def holds(rows: Rows) -> bool:
            return self.rows_like(manifest, rows, row) == wanted

        met = self._met(manifest, looked, holds)
        few = narrowed(met, holds, lambda: time.monotonic() < ends)
        return Behind(looked, few, time.monotonic() < ends)

    def _met(self, manifest: Manifest, looked: Rows, holds: Callable[[Rows], bool]) -> Rows:
        """The rows without those that the view's conditions drop; never other than `holds`."""
        root, kept = self._root(self._schemas(manifest)), dict(looked)
        for name, terms in conditions(root).items() if root is not None else ():
            if name in kept:
                fewer = {**kept, name: passing(kept[name], terms, self._evaluator)}
                kept = fewer if holds(fewer) else kept
        return kept

    def _root(self, schemas: Mapping[RelationId, TableSchema]) -> ir.Node | None:
        """The query as a tree; None: there is none."""
        try:
            return rewrite(build(self._definition, {**schemas, **CLOCKS}).root)
        except ir.Unsupported:
            return None

    def looked_at(self, manifest: Manifest, row: pa.Table) -> dict[RelationId, pa.Table]:
        """All rows that a row is made of, and perhaps more.

        Raises:
            UntellableError: they are too many, or a table is not there as it was.
        """
        plan = self._plan(manifest, row)
        rounds = fetch_slices(plan, {_ASKED: Changes(weighted(row, 1))}, self._evaluator)
        answers: list[pa.Table] | None = None
        while True:
            try:
                requests = next(rounds) if answers is None else rounds.send(answers)
            except StopIteration as end:
                slices = end.value.relations
                break
            answers = [self._fetch(manifest, request) for request in requests]
        return {name: slices[plan.slice_name(name, "old")] for name in self.names}

    def rows_like(
        self, manifest: Manifest, rows: Rows, row: pa.Table
    ) -> Counter[tuple[Hashable, ...]]:
        """What the query gives of rows with the key of a row, from these rows of its tables.

        Raises:
            UntellableError: only Spark could run the query.
        """
        query = self._query(manifest)
        relations = {
            text: query.clocks[name] if name in query.clocks else rows[name]
            for name, text in query.names.items()
        }
        try:
            result = self._evaluator.run(query.sql, relations, query.shape)
        except RefusalError as error:
            raise UntellableError(f"only Spark could run the query: {error}") from None
        columns = list(self._key) or row.column_names
        hit, _ = match(result.select(columns), row.select(columns))
        return told_rows(result.take(pa.array(hit)))

    def _query(self, manifest: Manifest) -> _Query:
        """The query at an epoch, made once: narrowing runs it thousands of times."""
        if (query := self._queries.get(manifest.epoch)) is None:
            # The time as a row of a clock: as a literal, only Spark would read it.
            timed = with_clocks(in_total_order(self._definition, self._schemas(manifest)))
            names = {name: f"b{number}" for number, name in enumerate(timed.table_names)}
            query = self._queries[manifest.epoch] = _Query(
                bind_tables(timed, names),
                names,
                {name: pinned_rows(name, manifest.pinned_ms) for name in names if is_clock(name)},
                manifest.views[self._definition.name].schema.arrow,
            )
        return query

    def key_of(self, manifest: Manifest, name: RelationId) -> tuple[str, ...]:
        """The columns that tell rows of what is read apart; of one without a key all."""
        schema = self._schemas(manifest)[name]
        return schema.key or schema.names

    def with_keys(self, manifest: Manifest, name: RelationId, keys: pa.Table) -> pa.Table:
        """The rows of a table with some keys, at an epoch.

        Raises:
            UntellableError: they cannot be read.
        """
        return self._fetch(manifest, Request(name, keys, self._schemas(manifest)[name].names))

    # --- the plan of the question ----------------------------------------------------------------

    def _plan(self, manifest: Manifest, row: pa.Table) -> ViewPlan:
        """A plan in which the row is what has changed."""
        schemas = self._schemas(manifest)
        values = [name for name in row.column_names if row[name].null_count == 0]
        asked = TableSchema(
            tuple(Column(f.name, f.type, nullable=f.name not in values) for f in row.schema), ()
        )
        known = {**schemas, _ASKED: asked}
        fetches = Fetches(known)
        root = self._root(schemas)
        if root is None or not self._pulled(fetches, root, asked, values):
            fetches = Fetches(known)
            for name in self.names:
                scan = ir.Scan(name, str(name), (), ())
                fetches.whole(scan, None, scan)
        return ViewPlan(
            definition=self._definition,
            root=root,
            columns=(),
            key=(),
            schemas=known,
            used={name: schema.names for name, schema in known.items()},
            traces=(Trace(_ASKED, str(_ASKED), tuple(fetches.steps)),),
            evaluation="slice_diff",
            indexes=(_ASKED,),
        )

    def _pulled(
        self, fetches: Fetches, root: ir.Node, asked: TableSchema, values: Sequence[str]
    ) -> bool:
        """Send the values of the row down to the tables; whether one of them gets there."""
        here = ir.Scan(_ASKED, str(_ASKED), asked.names, (), frozenset(values))
        shown = {ref.column.lower(): ref for ref in root.columns}
        for names in (self._key, asked.names):
            known = [name for name in names if name.lower() in shown]
            keys = fetches.keys(
                here,
                [ir.Ref(here.relation, name) for name in known],
                {here.relation: frozenset()},
                root,
                [shown[name.lower()] for name in known],
                null_safe=True,
            )
            if keys is not None:
                Tracer(root, fetches).pull(root, keys)
                return True
        return False

    def _schemas(self, manifest: Manifest) -> dict[RelationId, TableSchema]:
        """What the view reads, as queries see it.

        Raises:
            UntellableError: something of it was not there.
        """
        schemas = {}
        for name in self.names:
            if name not in manifest.tables:
                raise UntellableError(f"{name} was not there at epoch {manifest.epoch:,}")
            view = manifest.views.get(name.view) if name.view else None
            schemas[name] = manifest.tables[name].schema if view is None else view.schema
        return schemas

    # --- rows ------------------------------------------------------------------------------------

    def _fetch(self, manifest: Manifest, request: Request) -> pa.Table:
        """The rows of a look-up; see `Lookups`."""
        state = manifest.tables[request.table]
        if request.keys is None and state.rows > MOST_ROWS:
            raise self._too_many(request.table)
        mirror = Mirror(self._store.mirror(request.table), state.schema)
        kept, count = [], 0
        try:
            for part in mirror.parts(state):
                if request.keys is not None:
                    hit, _ = match(part.select(request.keys.column_names), request.keys)
                    part = part.take(pa.array(hit))
                count += part.num_rows
                if count > MOST_ROWS:
                    raise self._too_many(request.table)
                kept.append(part.select(list(request.select)))
        except (OSError, MviewError) as error:
            raise UntellableError(
                f"{request.table} as of epoch {manifest.epoch:,} cannot be read (any more): {error}"
            ) from None
        return pa.concat_tables(kept)

    def _too_many(self, table: RelationId) -> UntellableError:
        return UntellableError(
            f"more than {MOST_ROWS:,} rows of {table} may be behind it, or no column of the row "
            "leads to it unchanged"
        )


def told_rows(rows: pa.Table) -> Counter[tuple[Hashable, ...]]:
    """Rows that can be compared: how often each is there."""
    return Counter(tuple(_told(value) for value in row.values()) for row in rows.to_pylist())


def _told(value: Any) -> Hashable:
    if isinstance(value, float):
        return f"{value + 0.0:.{_DIGITS}g}"
    if isinstance(value, list):
        return tuple(map(_told, value))
    if isinstance(value, Mapping):
        return tuple((name, _told(part)) for name, part in value.items())
    return value  # type: ignore[no-any-return]
