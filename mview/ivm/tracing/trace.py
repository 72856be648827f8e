"""Closed slices: which rows must be at hand so that a change of a table can be evaluated.

The claim. Let S_old be some of the old rows of every table, and S_new the same rows after the
epoch's changes. If every operator finds complete what it needs for the keys that changed, then
Q(S_new) - Q(S_old) = Q(R_new) - Q(R_old), whatever else is in the slices.

Why. Split the input of an operator into parts: one row each for filters and projections; rows of
one join key for joins; one group, partition or distinct row for aggregates, windows and sets.
An operator works on its parts independently. Go up the plan and assume that the change of the
input, seen on the slices, is the true change (it is for scans: the changes themselves are in the
slices). For a part that did not change, the slices hold the same rows before and after, so the
output of that part is the same before and after, right or wrong, and cancels. For a part that did
change we make the slices hold *all* its rows, so its output is right before and after. Either way
the change of the output is the true change, and the same holds at the next operator. An inner join
needs only the other side complete, as dL * R and L * dR see each changed row with all its partners.

Two walks do this for each scan. `climb` goes from the scan to the root and completes the changed
parts of every operator on the way. `pull` completes a part inside a subtree: all rows of its
output whose columns equal one of the keys; it goes down to the scan that has the columns, and from
the rows found there outwards along join keys and partitions. Supersets are always allowed:
a composite key may be fetched by some of its columns, and the values of a key may be too many.

Keys are sent only where both ends are plain base columns of one comparable type (`lineage`). Where
there is no such column, the inputs are fetched whole, and the reason is kept for `explain`.

The time. A clock's value is attached to every row, so a tick changes every row. But where the value
is only used in comparisons of a column of these rows with a bound f(value), the rows might as well
have the outcomes as columns in its place: nothing above sees more of it. (An outer join above puts
NULL there, which the comparison gives, too.) The outcome of `column < f(value)` differs before and
after a tick only if the column lies between f(old) and f(new), both included, whatever f is and
whichever is larger; so it does for the other comparisons. A NULL column gives NULL at all times.
Hence the changed rows are those of the *bands* between the old and the new bounds, and `pull` goes
down with a band as it does with keys. A bound that is NULL, fails or is of a type that is not
compared as the column's integers is found when the tick comes (rows/ranges.py): then all rows
are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

from sqlglot import exp

from mview.ivm.facts.exact import is_ordered, number_type, pairs_by_value
from mview.ivm.facts.lineage import branch_columns, group_column, origins
from mview.ivm.tracing.bands import bands
from mview.ivm.tracing.fetches import Between, Env, Fetches, Keys, merge, needed
from mview.ivm.tracing.notes import (
    COMPUTED_KEY,
    GLOBAL,
    GLOBAL_FLOAT,
    GLOBAL_SETS,
    LIMIT,
    NO_EQUALITY,
    NOT_IN,
    NULL_EXTENDED,
    TIME,
    VALUE,
    WINDOW,
    Note,
)
from mview.ivm.tracing.steps import Trace
from mview.plan.clocks import is_clock
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema


@dataclass
class Tracer:
    """Walks a plan for the changes of one scan.

    Attributes:
        view: the whole plan.
        fetches: what the walk has found to be needed.
    """

    view: ir.Node
    fetches: Fetches

    # -- climb: from the changed scan to the root ------------------------------------------

    @singledispatchmethod
    def climb(self, node: ir.Node, scan: ir.Scan) -> Env:
        """Complete the changed parts of all operators from the scan up to the node.

        Returns:
            The rows from which the node's changed rows are made.
        """
        raise TypeError(f"no trace through {type(node).__name__}")

    @climb.register
    def _(self, node: ir.Scan, scan: ir.Scan) -> Env:
        return {node.relation: frozenset()}

    @climb.register(ir.Filter)
    @climb.register(ir.Projection)
    @climb.register(ir.Generate)
    def _(self, node: ir.Filter | ir.Projection | ir.Generate, scan: ir.Scan) -> Env:
        return self.climb(node.child, scan)

    @climb.register
    def _(self, node: ir.Limit, scan: ir.Scan) -> Env:
        self.climb(node.child, scan)
        return self.fetches.whole(node, LIMIT, node.child)

    @climb.register
    def _(self, node: ir.Aggregate, scan: ir.Scan) -> Env:
        env = self.climb(node.child, scan)
        columns = [group_column(node, ref) for ref in node.columns[: len(node.group)]]
        note = COMPUTED_KEY
        if not node.group or node.sets is not None:
            note = _of_all(node, self.fetches.schemas)
        return merge(env, self._complete(node, node.child, env, columns, note))

    @climb.register
    def _(self, node: ir.Distinct, scan: ir.Scan) -> Env:
        env = self.climb(node.child, scan)
        return merge(env, self._complete(node, node.child, env, node.columns, COMPUTED_KEY))

    @climb.register
    def _(self, node: ir.Window, scan: ir.Scan) -> Env:
        env = self.climb(node.child, scan)
        note = COMPUTED_KEY if node.partition else WINDOW
        return merge(env, self._complete(node, node.child, env, partition_columns(node), note))

    @climb.register
    def _(self, node: ir.SetOp, scan: ir.Scan) -> Env:
        branch = _owner(node, scan)
        env = self.climb(branch, scan)
        if node.kind == "union all":
            return env
        keys = self.fetches.keys(branch, branch.columns, env, node, node.columns, null_safe=True)
        if keys is None:
            return self.fetches.whole(
                node, self._why(branch, branch.columns, env, COMPUTED_KEY), node
            )
        return merge(env, self.pull(node, keys))

    @climb.register
    def _(self, node: ir.Join, scan: ir.Scan) -> Env:
        here = _owner(node, scan)
        env = self.climb(here, scan)
        from_left = here is node.left
        if (value := value_side(node)) is not None:
            if here is value:
                return merge(env, self._new_value(node, scan))
            return merge(env, self.fetches.whole(node, None, value))
        if node.null_aware and not from_left:
            return self.fetches.whole(node, NOT_IN, node)
        reached = merge(env, self._outward(node, from_left, env))
        optional = ("right", "full") if from_left else ("left", "full", "semi", "anti", "mark")
        if node.kind in optional:
            # Whether a row has a partner at all depends on every row of its own key.
            reached = merge(reached, self._own_key(node, from_left, env))
        return reached

    def _new_value(self, node: ir.Join, scan: ir.Scan) -> Env:
        """The rows that a value concerns when it changes."""
        if not is_clock(scan.table):
            return self.fetches.whole(node, VALUE, node)
        ranges = bands(self.view, node, scan, self.fetches.schemas)
        if ranges is None:
            return self.fetches.whole(node, TIME, node)
        return merge(*(self.pull(node.left, band) for band in ranges))

    def _complete(
        self,
        node: ir.Node,
        child: ir.Node,
        env: Env,
        columns: Sequence[Ref | None],
        note: Note,
    ) -> Env:
        """All rows of the changed groups of `child`."""
        plain = [ref for ref in columns if ref is not None]
        keys = self.fetches.keys(child, plain, env, child, plain, null_safe=True)
        if keys is None:
            return self.fetches.whole(node, self._why(child, plain, env, note), child)
        return self.pull(child, keys)

    def _why(self, node: ir.Node, columns: Sequence[Ref], env: Env, note: Note) -> Note | None:
        """The reason why there are no keys; None when an operator below reads all rows already."""
        alternatives = origins(node, columns)
        if any(
            self.fetches.is_whole(origin, env)
            for alternative in alternatives
            for origin in alternative
        ):
            return None
        extended = any(
            o is not None and o.extended for alternative in alternatives for o in alternative
        )
        return NULL_EXTENDED if columns and extended else note

    def _outward(self, node: ir.Join, from_left: bool, env: Env) -> Env:
        """The other side of a join for the rows at hand on this side."""
        here, there = (node.left, node.right) if from_left else (node.right, node.left)
        if there is value_side(node):
            return self.fetches.whole(node, None, there)
        if node.null_aware:
            return self.fetches.whole(node, NOT_IN, there)
        mine, other = _pair_columns(node, from_left)
        safe = any(pair.null_safe for pair in node.pairs)
        keys = self.fetches.keys(here, mine, env, there, other, null_safe=safe)
        if keys is None:
            return self.fetches.whole(node, self._why(here, mine, env, NO_EQUALITY), there)
        return self.pull(there, keys)

    def _own_key(self, node: ir.Join, from_left: bool, env: Env) -> Env:
        """This side of a join for the join keys of the rows at hand on this side."""
        here = node.left if from_left else node.right
        # By what is equal as values alone: else rows of other values have the same partners.
        pairs = pairs_by_value(node, self.fetches.schemas)
        mine = [pair.left if from_left else pair.right for pair in pairs]
        safe = any(pair.null_safe for pair in pairs)
        keys = self.fetches.keys(here, mine, env, here, mine, null_safe=safe)
        if keys is None:
            return self.fetches.whole(node, self._why(here, mine, env, NO_EQUALITY), here)
        return self.pull(here, keys)

    # -- pull: complete some keys, or a band, inside a subtree -----------------------------

    @singledispatchmethod
    def pull(self, node: ir.Node, keys: Keys | Between) -> Env:
        """Complete the rows of a node whose columns equal one of the keys, or are in the band.

        Returns:
            The rows from which those rows are made.
        """
        raise TypeError(f"no trace into {type(node).__name__}")

    @pull.register
    def _(self, node: ir.Scan, keys: Keys | Between) -> Env:
        columns = tuple(ref.column for ref in keys.columns)
        if isinstance(keys, Between):
            return {node.relation: self.fetches.band(node, columns[0], keys)}
        return {node.relation: self.fetches.fetch(node, columns, keys)}

    @pull.register
    def _(self, node: ir.Values, keys: Keys | Between) -> Env:
        return {}

    @pull.register(ir.Filter)
    @pull.register(ir.Distinct)
    @pull.register(ir.Generate)
    def _(self, node: ir.Filter | ir.Distinct | ir.Generate, keys: Keys | Between) -> Env:
        return self.pull(node.child, keys)

    @pull.register
    def _(self, node: ir.Limit, keys: Keys | Between) -> Env:
        return self.fetches.whole(node, LIMIT, node.child)

    @pull.register
    def _(self, node: ir.Projection, keys: Keys | Between) -> Env:
        items = dict(node.items)
        return self.pull(
            node.child, _rename(keys, [ir.as_ref(items[r.column]) for r in keys.columns])
        )

    @pull.register
    def _(self, node: ir.Aggregate, keys: Keys | Between) -> Env:
        return self.pull(node.child, _rename(keys, [group_column(node, r) for r in keys.columns]))

    @pull.register
    def _(self, node: ir.Window, keys: Keys | Between) -> Env:
        partition = partition_columns(node)
        env = self.pull(node.child, keys)
        if set(keys.columns) <= set(partition):
            return env
        note = COMPUTED_KEY if node.partition else WINDOW
        return merge(env, self._complete(node, node.child, env, partition, note))

    @pull.register
    def _(self, node: ir.SetOp, keys: Keys | Between) -> Env:
        return merge(
            *(
                self.pull(branch, _rename(keys, branch_columns(node, branch, keys.columns)))
                for branch in node.branches
            )
        )

    @pull.register
    def _(self, node: ir.Join, keys: Keys | Between) -> Env:
        merged = dict(node.merged)
        if any(ref in merged for ref in keys.columns):
            pairs = [merged[ref] for ref in keys.columns]
            left = self.pull(node.left, _rename(keys, [pair.left for pair in pairs]))
            return merge(left, self.pull(node.right, _rename(keys, [p.right for p in pairs])))
        from_left = keys.columns[0] in node.left.columns
        env = self.pull(node.left if from_left else node.right, keys)
        return merge(env, self._outward(node, from_left, env))


def partition_columns(node: ir.Window) -> list[Ref]:
    """The partition keys of a window that are plain columns."""
    refs = (ir.as_ref(value) for value in node.partition)
    return [ref for ref in refs if ref is not None and ref in node.child.columns]


def _of_all(node: ir.Aggregate, schemas: Mapping[RelationId, TableSchema]) -> Note:
    """Why groups of very many rows are computed from them."""
    if node.sets is not None:
        return GLOBAL_SETS
    calls = [call.this if isinstance(call, exp.Filter) else call for _, call in node.aggregates]
    sums = [call.this for call in calls if isinstance(call, exp.Sum | exp.Avg)]
    ends = [call.this for call in calls if isinstance(call, exp.Min | exp.Max)]
    kept = (exp.Count, exp.CountIf, exp.LogicalOr, exp.LogicalAnd)
    inexact = any(number_type(call, node.child, schemas) is None for call in sums)
    inexact |= not all(is_ordered(call, node.child, schemas) for call in ends)
    others = len(calls) - len(sums) - len(ends) - sum(isinstance(call, kept) for call in calls)
    return GLOBAL_FLOAT if inexact and not others else GLOBAL


def value_side(node: ir.Join) -> ir.Node | None:
    """The side of a join that has the one row of a part, when nothing but its place connects it.

    Every row of the other side meets that row, whatever `residual` makes of it: a change of other
    rows needs this row alone, and a change of this row needs all the others.
    """
    if node.pairs or node.null_aware:
        return None
    if node.kind == "mark":
        return None if node.residual or _one_row_of(node.right) is None else node.right
    if node.kind in ("inner", "left") and _one_row_of(node.right) is not None:
        return node.right
    return node.left if node.kind == "inner" and _one_row_of(node.left) is not None else None


def value_part(node: ir.Node) -> ir.Scan | None:
    """The part whose one value a `mark` join attaches to every row."""
    if not isinstance(node, ir.Join) or node.kind != "mark" or value_side(node) is None:
        return None
    return _one_row_of(node.right)


def is_genuine(node: ir.Node) -> bool:
    """Whether all rows of an operator over slices are rows of it over the whole tables.

    They are not where a row, or a value of it, depends on rows that are missing: of a part that did
    not change the slices may hold a few rows, as another part needs them, and a row of an outer
    join then seems to have no partner. Before the epoch and after it that is the same, so it
    cancels in sums; not in a smallest or largest value.
    """
    if isinstance(node, ir.Join):
        plain = node.kind in ("inner", "semi") or value_side(node) is not None
    elif isinstance(node, ir.SetOp):
        plain = node.kind == "union all"
    else:
        plain = isinstance(node, _ROW_BY_ROW)
    return plain and all(map(is_genuine, node.children))


#: Operators whose rows do not depend on rows that are missing.
_ROW_BY_ROW = (ir.Scan, ir.Values, ir.Filter, ir.Projection, ir.Generate, ir.Distinct)


def _one_row_of(below: ir.Node) -> ir.Scan | None:
    """The part of one row that an input is."""
    while isinstance(below, ir.Projection):
        below = below.child
    return below if isinstance(below, ir.Scan) and below.table.is_inner else None


def _owner(node: ir.Node, scan: ir.Scan) -> ir.Node:
    return next(child for child in node.children if scan in ir.scans(child))


def _pair_columns(node: ir.Join, from_left: bool) -> tuple[list[Ref], list[Ref]]:
    left, right = [pair.left for pair in node.pairs], [pair.right for pair in node.pairs]
    return (left, right) if from_left else (right, left)


def _rename(keys: Keys | Between, columns: Sequence[Ref | None]) -> Keys | Between:
    renamed = tuple(ref for ref in columns if ref is not None)
    assert len(renamed) == len(keys.columns), "keys are only made for base columns"
    return replace(keys, columns=renamed)


def trace(
    root: ir.Node,
    scan: ir.Scan,
    schemas: Mapping[RelationId, TableSchema],
    indexes: Collection[RelationId],
    view: ir.Node,
) -> tuple[Trace, Fetches]:
    """What must be fetched when the rows of a scan change.

    Args:
        root: the operator whose output is wanted.
        scan: one of the scans below it.
        indexes: tables that only look-ups read.
        view: the whole plan; the root is it, or a part of it.

    Returns:
        The trace, and the fetches with the reasons of whole reads.
    """
    tracer = Tracer(view, Fetches(schemas))
    tracer.climb(root, scan)
    return Trace(scan.table, scan.relation, needed(tracer.fetches.steps, indexes)), tracer.fetches
