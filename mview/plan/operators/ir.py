"""The relational IR: one frozen dataclass per operator, columns bound to (relation, name).

The IR is never run. Views are evaluated with the user's own query; the IR only answers which rows
of which tables an output row depends on, so ORDER BY and the values of expressions do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Literal

from sqlglot import exp

from mview.relation import RelationId

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "mark"]
SetKind = Literal["union all", "union", "intersect", "except"]


class Unsupported(Exception):  # noqa: N818 - not an error: it selects the FULL strategy
    """The IR cannot express a construct: the view is maintained by FULL, with this reason.

    Args:
        code: short reason code for `explain`.
        message: what it is.
        hint: what to change in the SQL.
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


@dataclass(frozen=True)
class Ref:
    """A column of one relation instance. Instance names are unique in a plan."""

    relation: str
    column: str

    def __str__(self) -> str:
        return f"{self.relation}.{self.column}"


def as_ref(expression: exp.Expr) -> Ref | None:
    """The column an expression is, when it is a bound column and nothing else."""
    while isinstance(expression, exp.Paren | exp.Alias):
        expression = expression.this
    if isinstance(expression, exp.Column) and isinstance(expression.this, exp.Identifier):
        return Ref(expression.table, expression.name)
    return None


def refs_of(expression: exp.Expr) -> tuple[Ref, ...]:
    """The columns in an expression, each once, in the order of the text."""
    read = (as_ref(column) for column in expression.find_all(exp.Column, bfs=False))
    return tuple(dict.fromkeys(ref for ref in read if ref is not None))


def column(ref: Ref) -> exp.Column:
    """The expression that reads a column."""
    return exp.column(exp.to_identifier(ref.column), table=exp.to_identifier(ref.relation))


#: Columns, and the expressions that they are.
Made = Mapping[Ref, exp.Expr]


def _made(relation: str, items: Iterable[tuple[str, exp.Expr]]) -> Made:
    return {Ref(relation, name): expression for name, expression in items}


@dataclass(frozen=True)
class Node:
    """Base of all operators."""

    @property
    def children(self) -> tuple[Node, ...]:
        """The inputs."""
        return ()

    @property
    def columns(self) -> tuple[Ref, ...]:
        """The output columns."""
        raise TypeError(f"{type(self).__name__} has no columns")


@dataclass(frozen=True)
class Scan(Node):
    """All rows of a table or of another view. `key` is its primary key."""

    table: RelationId
    relation: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    not_null: frozenset[str] = frozenset()

    @cached_property
    def columns(self) -> tuple[Ref, ...]:
        """One per column of the table."""
        return tuple(Ref(self.relation, name) for name in self.names)


@dataclass(frozen=True)
class Values(Node):
    """Constant rows, also the one row of a SELECT without FROM."""

    relation: str
    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[Ref, ...]:
        """The named columns."""
        return tuple(Ref(self.relation, name) for name in self.names)


@dataclass(frozen=True)
class Unary(Node):
    """Base of operators with one input whose columns pass through."""

    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """The input."""
        return (self.child,)

    @property
    def columns(self) -> tuple[Ref, ...]:
        """Those of the input."""
        return self.child.columns


@dataclass(frozen=True)
class Filter(Unary):
    """Rows for which the condition is true."""

    condition: exp.Expr


@dataclass(frozen=True)
class Projection(Unary):
    """Computed columns, row by row."""

    relation: str
    items: tuple[tuple[str, exp.Expr], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.items]
        if len(set(names)) != len(names):
            raise ValueError(f"column names of {self.relation} are not unique")

    @cached_property
    def columns(self) -> tuple[Ref, ...]:
        """The items."""
        return tuple(Ref(self.relation, name) for name, _ in self.items)

    @cached_property
    def made(self) -> Made:
        """What its own columns are made by."""
        return _made(self.relation, self.items)


@dataclass(frozen=True)
class Pair:
    """Equality of a left and a right column; `null_safe` for `<=>`."""

    left: Ref
    right: Ref
    null_safe: bool = False


@dataclass(frozen=True)
class Join(Node):
    """Two inputs. What the pairs do not say is in `residual`, and is not looked at.

    Kind `mark` gives every left row once, with an opaque value computed from the right rows at its
    keys: a scalar subquery, or EXISTS/IN inside an expression; `made_of` are the columns that the
    value is made of. `merged` are USING columns of a full join. `null_aware` is NOT IN: one NULL on
    the right side concerns every left row.
    """

    left: Node
    right: Node
    kind: JoinKind
    pairs: tuple[Pair, ...] = ()
    residual: tuple[exp.Expr, ...] = ()
    merged: tuple[tuple[Ref, Pair], ...] = ()
    null_aware: bool = False
    value: Ref | None = None
    made_of: tuple[Ref, ...] = ()

    def __post_init__(self) -> None:
        left, right = set(self.left.columns), set(self.right.columns)
        for pair in self.pairs:
            if pair.left not in left or pair.right not in right:
                raise ValueError(f"join key {pair.left} = {pair.right} is not left = right")

    @property
    def children(self) -> tuple[Node, ...]:
        """Left, right."""
        return (self.left, self.right)

    @cached_property
    def columns(self) -> tuple[Ref, ...]:
        """Left, right and merged columns; only the left ones for semi and anti."""
        if self.kind in ("semi", "anti"):
            return self.left.columns
        if self.kind == "mark":
            return (*self.left.columns, *([self.value] if self.value else []))
        return (*self.left.columns, *self.right.columns, *(ref for ref, _ in self.merged))


@dataclass(frozen=True)
class Aggregate(Unary):
    """One row per group; `group` () is one row always.

    `sets`: of ROLLUP, CUBE and GROUPING SETS all sets of positions in `group`; one may come twice.
    """

    relation: str
    group: tuple[tuple[str, exp.Expr], ...]
    aggregates: tuple[tuple[str, exp.Expr], ...]
    sets: tuple[tuple[int, ...], ...] | None = None

    @property
    def repeats(self) -> bool:
        """Whether a grouping set comes twice, and with it every row of it."""
        return self.sets is not None and len(set(self.sets)) < len(self.sets)

    @cached_property
    def columns(self) -> tuple[Ref, ...]:
        """Group columns, then aggregates."""
        return tuple(Ref(self.relation, name) for name, _ in (*self.group, *self.aggregates))

    @cached_property
    def made(self) -> Made:
        """What its own columns are made by."""
        return _made(self.relation, (*self.group, *self.aggregates))


@dataclass(frozen=True)
class Distinct(Unary):
    """Each row once."""


@dataclass(frozen=True)
class Window(Unary):
    """Functions over partitions; `partition` () is all rows as one partition."""

    relation: str
    partition: tuple[exp.Expr, ...]
    functions: tuple[tuple[str, exp.Expr], ...]

    @cached_property
    def columns(self) -> tuple[Ref, ...]:
        """Those of the input, then one per function."""
        return (*self.child.columns, *(Ref(self.relation, name) for name, _ in self.functions))

    @cached_property
    def made(self) -> Made:
        """What its own columns are made by."""
        return _made(self.relation, self.functions)


@dataclass(frozen=True)
class Limit(Unary):
    """The first rows of the whole input in some order."""

    text: str


@dataclass(frozen=True)
class Generate(Unary):
    """Rows made from each row: explode, LATERAL VIEW. `made_of` are the columns that make them."""

    relation: str
    names: tuple[str, ...]
    made_of: tuple[Ref, ...]
    text: str

    @property
    def columns(self) -> tuple[Ref, ...]:
        """Those of the input, then the generated ones."""
        return (*self.child.columns, *(Ref(self.relation, name) for name in self.names))


@dataclass(frozen=True)
class SetOp(Node):
    """Rows of branches by position. `all` keeps duplicates (EXCEPT ALL, INTERSECT ALL)."""

    branches: tuple[Node, ...]
    kind: SetKind
    relation: str
    names: tuple[str, ...]
    all: bool = False

    def __post_init__(self) -> None:
        if any(len(branch.columns) != len(self.names) for branch in self.branches):
            raise ValueError("branches differ in their number of columns")

    @property
    def children(self) -> tuple[Node, ...]:
        """The branches."""
        return self.branches

    @property
    def columns(self) -> tuple[Ref, ...]:
        """The names of the first branch."""
        return tuple(Ref(self.relation, name) for name in self.names)


def scans(node: Node) -> tuple[Scan, ...]:
    """All scans below a node, left to right."""
    if isinstance(node, Scan):
        return (node,)
    return tuple(scan for child in node.children for scan in scans(child))


@singledispatch
def computed(node: Node) -> Made:
    """The columns that a node computes itself, over its only input, and what of."""
    raise TypeError(f"nobody knows what {type(node).__name__} computes")


@computed.register(Projection)
@computed.register(Aggregate)
@computed.register(Window)
def _(node: Projection | Aggregate | Window) -> Made:
    return node.made


@computed.register(Scan)
@computed.register(Values)
@computed.register(Filter)
@computed.register(Join)
@computed.register(Distinct)
@computed.register(Limit)
@computed.register(Generate)
@computed.register(SetOp)
def _(node: Node) -> Made:
    return {}
