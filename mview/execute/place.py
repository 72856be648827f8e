"""Where the epochs of a view run, as told by its plan: in process, or on Spark and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from mview.execute.local.admission import translate
from mview.execute.local.parsing.reading import read
from mview.execute.refusal import NotAdmittedError
from mview.ivm.aggregates.maintained import STATE, VALUE
from mview.ivm.plan import ViewPlan
from mview.ivm.rewrites.top import NUMBER, RANKED
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import TableSchema

Types = Mapping[str, pa.DataType]

_AGAIN = "all rows are computed again"


class _UnknownTypesError(Exception):
    """A part is read whose types only Spark knows."""


def places(plan: ViewPlan) -> dict[RelationId, str]:
    """Where the epochs of a view and of its parts run, a line each, as `explain` prints it.

    What a run does may differ: a table that does not fit into memory is read by Spark, and so is an
    epoch with a row whose outcome only Spark decides.
    """
    results: dict[RelationId, Types | None] = {}
    lines: dict[RelationId, str] = {}
    for part in (*plan.parts, plan):
        look = _PlanPlace(part, results)
        lines[part.relation] = look.line()
        results[part.relation] = look.result()
    return lines


class _PlanPlace:
    """At one view or part; the types of what it reads are known from the parts before it."""

    def __init__(self, plan: ViewPlan, results: Mapping[RelationId, Types | None]) -> None:
        self._plan, self._results = plan, results

    def line(self) -> str:
        """Where its epochs run."""
        if self._plan.evaluation == "full":
            return self._whole()
        try:
            self._check()
        except NotAdmittedError as error:
            return f"runs on Spark: {error.reason}"
        except _UnknownTypesError as error:
            return f"runs where a run finds out: only Spark knows the types of {error}"
        return "runs in process"

    def _whole(self) -> str:
        """Where all rows are computed again."""
        definition = self._plan.full_definition
        names = {table: f"t{number}" for number, table in enumerate(definition.table_names)}
        near = self._plan.is_exact
        try:
            schemas = {n: self._types(self._plan.schemas[t], t) for t, n in names.items() if near}
            if near:
                _translated(bind_tables(definition, names), schemas)
        except (NotAdmittedError, _UnknownTypesError):
            near = False
        if near:
            return f"{_AGAIN}: in process while tables are small, else on Spark"
        return f"runs on Spark: {_AGAIN}"

    def result(self) -> Types | None:
        """The types of its columns; None: only Spark knows them."""
        if self._plan.evaluation == "full":
            return None
        names = {
            table: self._plan.slice_name(table, "new")
            for table in self._plan.definition.table_names
        }
        try:
            return _translated(bind_tables(self._plan.definition, names), self._slices())
        except (NotAdmittedError, _UnknownTypesError):
            return None

    def _check(self) -> None:
        maintained, top = self._plan.maintained, self._plan.top
        if top is not None:
            ranked = {NUMBER: pa.int64(), **self._types(self._plan.schemas[top.part], top.part)}
            _translated(top.ranking, {RANKED: ranked})
            return
        kept = _translated(self._plan.delta_sql, self._slices())
        if maintained is None or maintained.shown is not None:
            return
        shown = maintained.shown_schema(pa.schema(list(kept.items())))
        if shown is not None:
            values = {
                f"{VALUE}{number}": self._types(self._plan.slice_schemas[table], table)
                for number, table in enumerate(maintained.values)
            }
            state = dict(zip(shown.names, shown.types, strict=True))
            _translated(maintained.finalize, {STATE: state, **values})

    def _slices(self) -> dict[str, Types]:
        return {
            self._plan.slice_name(table, when): self._types(self._plan.slice_schemas[table], table)
            for table in self._plan.definition.table_names
            for when in _WHEN
        }

    def _types(self, schema: TableSchema, table: RelationId) -> Types:
        if table not in self._results:
            return {column.name: column.type for column in schema.columns}
        known = self._results[table]
        if known is None:
            raise _UnknownTypesError(table)
        kinds = {name.lower(): kind for name, kind in known.items()}
        return {
            column.name: kinds.get(column.name.lower(), column.type) for column in schema.columns
        }


_WHEN: tuple[Literal["old", "new"], ...] = ("old", "new")


def _translated(sql: str, tables: Mapping[str, Types]) -> Types:
    return dict(translate(read(sql), tables).columns)
