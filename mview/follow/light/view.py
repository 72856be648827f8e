"""Views in light mode: filters and projections of one table, a row of the view for one of it.

What such a view shows of a row depends on that row alone. So nothing need be kept of the table to
know what a change does to the view: the new row is put by its key, or the key is deleted, whatever
was there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from mview.catalog.definitions import digest_of
from mview.errors import UserError
from mview.execute.local.admitted.entries import SPARK_DECIDES
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.refusal import EvaluationError, NotAdmittedError
from mview.ivm.compile import compile_view
from mview.ivm.facts.lineage import origins
from mview.ivm.plan import ViewPlan
from mview.plan.definition import ViewDefinition
from mview.plan.operators import ir
from mview.plan.operators.tree import describe
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.store.fold import without

#: What the rows are called in the query.
_ROWS = "__rows"

_FULL = "run it in the full mode: without mode = 'light'"


@dataclass(frozen=True)
class LightView:
    """A view in light mode over its table as it was when its load began.

    Attributes:
        definition: the view.
        source: the table's columns and primary key.
        schema: the view's columns; its key is the table's, by the view's names.
    """

    definition: ViewDefinition
    source: TableSchema
    schema: TableSchema
    _plain: tuple[str, ...] | None = None
    _evaluator: LocalEvaluator = field(default_factory=LocalEvaluator, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The view's name."""
        return self.definition.name

    @property
    def table(self) -> RelationId:
        """The table that it reads."""
        return self.definition.table_names[0]

    @property
    def digest(self) -> str:
        """What must be equal for its tables in sinks to go on."""
        return digest_of(self.definition)

    @cached_property
    def _sql(self) -> str:
        return bind_tables(self.definition.bare, {self.table: _ROWS})

    def shown(self, rows: pa.Table) -> pa.Table:
        """What the view shows of rows of the table.

        Raises:
            UserError: the query fails on one of them.
        """
        loose = pa.schema([column.with_nullable(True) for column in self.schema.arrow])
        if self._plain is not None:
            return rows.select(self._plain).rename_columns(loose.names).cast(loose)
        try:
            return self._evaluator.run(self._sql, {_ROWS: rows}, loose)
        except EvaluationError as error:
            raise UserError(
                f"the query of view {self.name} fails on the data of {self.table}",
                got=str(error).splitlines()[0],
                safe="nothing of the commit was brought; other sinks go on",
                hint="correct the row or the query: try_divide(…), try_cast(…)",
            ) from error

    def keys(self, rows: pa.Table) -> pa.Table:
        """The keys of rows of the table, as the view calls them."""
        return rows.select(list(self.source.key)).rename_columns(list(self.schema.key))

    def hidden(self, rows: pa.Table, shown: pa.Table) -> pa.Table:
        """The keys of the rows that the view does not show.

        Args:
            rows: rows of the table.
            shown: what the view shows of them.
        """
        keys = self.keys(rows)
        return (
            keys
            if not shown.num_rows
            else without(keys, shown.select(list(self.schema.key)), self.schema.key)
        )


def open_light(definition: ViewDefinition, tables: Mapping[RelationId, TableSchema]) -> LightView:
    """A view in light mode.

    Args:
        definition: the view.
        tables: the schemas of the tables that it reads.

    Raises:
        UserError: it cannot be one, and why.
    """
    plan = compile_view(definition, tables)
    if why := _refusal(plan):
        raise _refused(definition, why)
    assert plan.root is not None
    source = tables[definition.table_names[0]]
    columns = plan.root.columns
    ((*bases,),) = origins(plan.root, columns)
    plain = tuple(base.column if base is not None else "" for base in bases)
    missing = [name for name in source.key if name not in plain]
    if missing:
        raise _refused(
            definition,
            f"it does not show {', '.join(missing)}, by which {definition.table_names[0]} tells "
            "its rows apart",
            hint=f"add {', '.join(missing)} to the select list, or " + _FULL,
        )
    names = tuple(ref.column for ref in columns)
    key = tuple(names[plain.index(name)] for name in source.key)
    if definition.key and set(definition.key) != set(key):
        raise _refused(definition, f"its key is that of its table: {', '.join(key)}")
    renames = all(plain) and not any(isinstance(node, ir.Filter) for node in _nodes(plan.root))
    if renames:
        kinds = [source.column(name).type for name in plain]
        shown: tuple[str, ...] | None = plain
    else:
        kinds, shown = _kinds(definition, source), None
    schema = TableSchema(tuple(map(Column, names, kinds)), key)
    return LightView(definition, source, schema, shown)


def _refusal(plan: ViewPlan) -> str:
    """Why a view is more than filters and projections of one table; empty: it is not."""
    if plan.refused is not None:
        return plan.refused.message
    if plan.clocks:
        return "it asks for the time, and rows would come and go without a change"
    if plan.definition.called:
        return f"it calls {plan.definition.called[0].name}(), a function of the configuration"
    assert plan.root is not None
    for node in _nodes(plan.root):
        if isinstance(node, ir.Scan):
            if not node.table.is_table:
                return f"it reads {node.table}, which is no table of a connection"
        elif not isinstance(node, ir.Filter | ir.Projection):
            return f"a row of it is not one of its table's: {describe(node)}"
    return ""


def _nodes(node: ir.Node) -> list[ir.Node]:
    return [node, *(below for child in node.children for below in _nodes(child))]


def _kinds(definition: ViewDefinition, source: TableSchema) -> list[pa.DataType]:
    """The types of the view's columns, which are Spark's, without Spark."""
    sql = bind_tables(definition.bare, {definition.table_names[0]: _ROWS})
    evaluator = LocalEvaluator()
    try:
        text, schema = evaluator.prepare(sql, {_ROWS: source.arrow}, None)
        if SPARK_DECIDES in text:
            raise NotAdmittedError("operator", "an expression that needs Spark for some values")
        return list(schema.types)
    except NotAdmittedError as reason:
        raise _refused(definition, str(reason)) from None
    finally:
        evaluator.close()


def _refused(definition: ViewDefinition, why: str, hint: str = _FULL) -> UserError:
    return UserError(
        f"view {definition.name} cannot be light: {why}",
        where=f"{definition.file}:{definition.line}",
        allowed="filters and projections of one table, with its primary key",
        hint=hint,
    )
