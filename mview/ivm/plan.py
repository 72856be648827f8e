"""A compiled view: everything an executor needs, nothing of the SQL left to understand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa

from mview.connector import WEIGHT
from mview.ivm.aggregates.by_order import is_by_order
from mview.ivm.aggregates.maintained import Maintained
from mview.ivm.facts.exact import number_type
from mview.ivm.facts.keys import unique_columns
from mview.ivm.facts.lineage import origins
from mview.ivm.rewrites.top import Top, part_definition
from mview.ivm.tracing.notes import Note
from mview.ivm.tracing.steps import Trace
from mview.plan.clocks import is_clock
from mview.plan.definition import ViewDefinition
from mview.plan.operators import ir
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import Column, TableSchema

Strategy = Literal["LINEAR", "DELTA_JOIN", "SELF_MAINTAINED", "AFFECTED_KEYS", "FULL"]
Evaluation = Literal["slice_diff", "maintained", "top", "full"]


@dataclass(frozen=True)
class NodeNote:
    """The strategy of one operator, and for FULL the reason."""

    node: ir.Node
    strategy: Strategy
    note: Note | None = None


@dataclass(frozen=True)
class ViewPlan:
    """How one view is maintained.

    Attributes:
        definition: the view, reading its parts where it has some.
        root: its IR; None when the IR cannot express it.
        columns: names of the view's columns in order; () when only Spark knows them.
        key: declared or derived key columns; () for a multiset.
        schemas: of the tables that are read.
        used: the columns read of every table, with its primary key, in table order.
        traces: what is fetched when a table changes, one per use of a table.
        evaluation: how the delta is computed from the slices.
        maintained: SQL for evaluation `maintained`.
        nodes: strategies for `explain`.
        refused: why the IR cannot express the view, if so.
        indexes: parts that only look-ups read, not the text; of a view that the IR cannot express,
            the clocks that the text asks.
        parts: results in between that are kept as tables, in the order they read each other.
        declared: the view as declared; None for parts, and where the IR cannot express it.
        plain: the plan without a state table, should Spark read `finalize` another way.
        top: what is kept for evaluation `top`.
        result: the view's columns as Spark analyzes the text; set by whoever has asked Spark.
        state_result: the same for `state_definition`.
    """

    definition: ViewDefinition
    root: ir.Node | None
    columns: tuple[str, ...]
    key: tuple[str, ...]
    schemas: Mapping[RelationId, TableSchema]
    used: Mapping[RelationId, tuple[str, ...]]
    traces: tuple[Trace, ...]
    evaluation: Evaluation
    maintained: Maintained | None = None
    nodes: tuple[NodeNote, ...] = ()
    refused: Note | None = None
    indexes: tuple[RelationId, ...] = ()
    parts: tuple[ViewPlan, ...] = ()
    declared: ViewDefinition | None = None
    plain: ViewPlan | None = None
    top: Top | None = None
    result: pa.Schema | None = None
    state_result: pa.Schema | None = None

    @property
    def strategy(self) -> str:
        """The strategy of the whole view: of its top operator that is not linear."""
        if self.evaluation == "full":
            return "FULL"
        return next((n.strategy for n in self.nodes if n.strategy != "LINEAR"), "LINEAR")

    @property
    def keys(self) -> dict[RelationId, Sequence[str]]:
        """What tells the rows of all that is kept apart, those of the view among them."""
        plans = (*self.parts, self)
        keys: dict[RelationId, Sequence[str]] = {plan.relation: plan.key for plan in plans}
        keys |= {plan.state: plan.state_key for plan in plans if plan.state is not None}
        return keys

    @property
    def has_proven_key(self) -> bool:
        """Whether no two rows can have one key, by the keys of what the view reads."""
        if self.root is None or (known := unique_columns(self.root, self.schemas)) is None:
            return False
        return {ref.column for ref in known} <= set(self.key)

    @property
    def state_definition(self) -> ViewDefinition | None:
        """The state table as a query; None when the view has none."""
        if self.maintained is not None:
            return self.maintained.partial
        if self.top is None:
            return None
        return part_definition(self.definition, self.top)

    @property
    def state_columns(self) -> tuple[str, ...]:
        """Names of the state table's columns in order; () where its query lists them."""
        return () if self.top is None else tuple(self.schemas[self.top.part].names)

    @property
    def state_key(self) -> tuple[str, ...]:
        """The key of the state table."""
        if self.maintained is not None:
            return self.maintained.groups
        return () if self.top is None else self.schemas[self.top.part].key

    @property
    def delta_schema(self) -> pa.Schema | None:
        """The columns of `delta_sql`, when known."""
        result = self.state_result if self.maintained else self.result
        return None if result is None else _weighted(result)

    @property
    def finalize_schema(self) -> pa.Schema | None:
        """The columns of `maintained.finalize`, when known."""
        return None if self.result is None else _weighted(self.result)

    @property
    def relation(self) -> RelationId:
        """What the view or part is called where it is read."""
        return self.definition.relation

    @property
    def state(self) -> RelationId | None:
        """What is kept to maintain it, where something is."""
        return None if self.state_definition is None else self.relation.state

    @cached_property
    def tables(self) -> tuple[RelationId, ...]:
        """The tables, views, parts and clocks that are read, in text order; indexes last."""
        return (*self.definition.table_names, *self.indexes)

    @property
    def full_definition(self) -> ViewDefinition:
        """The query by which a view or part is computed as a whole: the user's own text.

        Of rows that are equal in ORDER BY, a LIMIT takes any: there it is the text that takes the
        same ones as the state does.
        """
        return self.declared if self.top is None and self.declared else self.definition

    @cached_property
    def is_by_order(self) -> bool:
        """Whether a value in it depends on the order of rows: computed again, it may differ."""
        return self.root is not None and is_by_order(self.root, self.schemas)

    @property
    def is_exact(self) -> bool:
        """Whether its rows, computed again, are the same to the last bit, at any time."""
        return self.root is not None and not self.is_by_order and not self.clocks

    @property
    def clocks(self) -> tuple[RelationId, ...]:
        """The clocks that the view or a part of it asks."""
        names = [name for plan in (*self.parts, self) for name in plan.tables if is_clock(name)]
        return tuple(dict.fromkeys(names))

    @property
    def sources(self) -> tuple[RelationId, ...]:
        """The tables and views that the user's text reads."""
        return (self.declared or self.definition).table_names

    @property
    def output(self) -> TableSchema:
        """The view as a table; without Spark, columns have their types that come unchanged.

        Whole numbers that are computed count as such, other computed columns as texts.
        """
        if self.result is not None:
            return TableSchema(tuple(Column(f.name, f.type) for f in self.result), self.key)
        assert self.root is not None
        columns = []
        for ref in self.root.columns:
            number = number_type(ir.column(ref), self.root, self.schemas)
            computed = pa.int64() if number == "int" else pa.string()
            kinds = {
                computed
                if origin is None
                else self.schemas[origin.scan.table].column(origin.column).type
                for (origin,) in origins(self.root, [ref])
            }
            columns.append(Column(ref.column, kinds.pop() if len(kinds) == 1 else pa.string()))
        return TableSchema(tuple(columns), self.key)

    def slice_name(self, table: RelationId, when: Literal["old", "new"]) -> str:
        """The relation name of a table's slice in the SQL of this plan."""
        return f"__{when}_{self.tables.index(table)}"

    @cached_property
    def slice_schemas(self) -> Mapping[RelationId, TableSchema]:
        """The schema of each table's slice."""
        return {
            table: TableSchema(
                tuple(c for c in self.schemas[table].columns if c.name in self.used[table]),
                self.schemas[table].key,
            )
            for table in self.tables
        }

    @cached_property
    def delta_sql(self) -> str:
        """The view over the new slices minus the view over the old ones, as weighted rows."""
        new, old = self._over("new"), self._over("old")
        return (
            f"SELECT 1 AS {WEIGHT}, * FROM ({new}) UNION ALL SELECT -1 AS {WEIGHT}, * FROM ({old})"
        )

    def _over(self, when: Literal["old", "new"]) -> str:
        names = {table: self.slice_name(table, when) for table in self.definition.table_names}
        # A line break: the text may end in a comment.
        sql = bind_tables(self.maintained.partial if self.maintained else self.definition, names)
        return f"{sql}\n"


def _weighted(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(WEIGHT, pa.int32()), *schema])
