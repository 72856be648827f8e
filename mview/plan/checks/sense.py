"""What can be parsed and still makes no sense to Spark: said here, with its place, before a run."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from mview.plan.functions.effects import aggregate_calls, function_name, is_aggregate, windows
from mview.plan.functions.names import GENERATORS
from mview.plan.text.place import Text, span

#: Functions that need OVER.
OVER_ONLY = frozenset(
    """
    row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value
    """.split()  # noqa: SIM905
)


def check_sense(text: Text, tree: exp.Query) -> None:
    """Make sure that clauses fit together; names and types are looked at elsewhere.

    Raises:
        UserError: Spark would refuse the text; with line, column, and the reason.
    """
    for node in tree.walk():
        if isinstance(node, exp.Select):
            _check_select(text, node)
        elif isinstance(node, exp.Limit | exp.Offset):
            _check_number(text, node)
        elif isinstance(node, exp.In) and not (node.expressions or node.args.get("query")):
            raise text.error("syntax error: IN () without a value", span(node))
        elif isinstance(node, exp.Interval):
            _check_interval(text, node)
        elif isinstance(node, exp.Join):
            _check_join(text, node)
        elif isinstance(node, exp.Distinct) and not node.expressions and _is_argument(node):
            raise text.error("syntax error: DISTINCT without an argument", span(node))
        elif isinstance(node, exp.Any | exp.All) and not isinstance(node.parent, exp.Binary):
            raise text.error(
                f"{node.key.upper()} (…) without LIKE", span(node), hint="write bool_or, or EXISTS"
            )
        elif isinstance(node, exp.Any | exp.All) and not isinstance(
            node.parent, exp.Like | exp.ILike
        ):
            raise text.error(
                f"{node.key.upper()} (…) after a comparison", span(node), hint="write IN, or EXISTS"
            )
        elif isinstance(node, exp.WindowSpec):
            _check_frame(text, node)
        elif isinstance(node, exp.Func):
            _check_call(text, node)
        if isinstance(node, exp.Alias) and not isinstance(node.args.get("alias"), exp.Identifier):
            raise text.error("syntax error: a name that is none", span(node))


def _is_argument(node: exp.Distinct) -> bool:
    return isinstance(node.parent, exp.Func)


def _check_select(text: Text, select: exp.Select) -> None:
    places = [("WHERE", select.args.get("where")), ("GROUP BY", select.args.get("group"))]
    places += [("ON", join.args.get("on")) for join in select.args.get("joins") or []]
    for name, place in places:
        if place is None:
            continue
        for call in aggregate_calls(place):
            hint = "test groups with HAVING" if name == "WHERE" else None
            raise text.error(f"an aggregate cannot stand in {name}", span(call), hint=hint)
        for window in windows(place):
            raise text.error(
                f"a window function cannot stand in {name}",
                span(window),
                hint="use QUALIFY, or a subquery" if name == "WHERE" else None,
            )
    having = select.args.get("having")
    for window in windows(having) if having is not None else ():
        raise text.error("a window function cannot stand in HAVING", span(window), hint="QUALIFY")
    _check_windows(text, select)
    many = [node for item in select.expressions for node in _generators(item)]
    if len(many) > 1:
        raise text.error(
            "two generators in one select list", span(many[1]), hint="use LATERAL VIEW"
        )
    if having is not None and select.args.get("group") is None:
        items = [*select.expressions, having.this]
        if not any(aggregate_calls(expr) for expr in items):
            raise text.error("HAVING without groups", span(having), hint="write WHERE")


def _check_windows(text: Text, select: exp.Select) -> None:
    named = {declared.name.lower() for declared in select.args.get("windows") or []}
    for item in (*select.expressions, *filter(None, [select.args.get("qualify")])):
        for window in windows(item):
            name = window.alias.lower()
            if name and name not in named:
                raise text.error(f"there is no window {window.alias!r}", span(window))
            parts = [window.this, window.args.get("order"), *window.args.get("partition_by", [])]
            inner = next((inside for p in parts if p is not None for inside in windows(p)), None)
            if inner is not None:
                raise text.error("a window function inside another", span(inner))


def _generators(item: exp.Expr) -> Iterator[exp.Expr]:
    for node in item.walk(prune=lambda below: isinstance(below, exp.Query)):
        if function_name(node) in GENERATORS:
            yield node


def _check_number(text: Text, clause: exp.Expr) -> None:
    number = clause.args.get("expression")
    plain = isinstance(number, exp.Literal) and not number.is_string and number.name.isdigit()
    everything = isinstance(number, exp.Column | exp.Var) and number.name.upper() == "ALL"
    if not plain and not everything:
        raise text.error(
            f"{clause.key.upper()} takes a whole number that is written out", span(clause)
        )


def _check_interval(text: Text, node: exp.Interval) -> None:
    number = node.this
    if node.args.get("unit") is None and (
        not isinstance(number, exp.Literal) or not any(c.isalpha() for c in number.name)
    ):
        raise text.error("syntax error: INTERVAL without a unit", span(node), hint="INTERVAL 1 DAY")


def _check_join(text: Text, join: exp.Join) -> None:
    conditions = [join.args.get("on"), join.args.get("using"), join.method or None]
    if sum(1 for condition in conditions if condition) > 1:
        raise text.error("a join with two conditions", span(join), hint="write ON, or USING")


def _check_frame(text: Text, frame: exp.WindowSpec) -> None:
    start, end = frame.args.get("start"), frame.args.get("end")
    if frame.args.get("start") is not None and end is None and frame.args.get("end_side"):
        raise text.error("syntax error: a window frame without an end", span(frame))
    for bound in (start, end):
        if isinstance(bound, exp.Neg):
            raise text.error("a window frame with a negative bound", span(frame))


def _check_call(text: Text, node: exp.Func) -> None:
    name = function_name(node)
    if name in OVER_ONLY and not _has_over(node):
        raise text.error(
            f"{name}() needs OVER (…)",
            span(node),
            hint=f"{name}(…) OVER (PARTITION BY … ORDER BY …)",
        )
    if name in OVER_ONLY and not _is_ordered(node):
        raise text.error(
            f"{name}() needs an order: OVER (… ORDER BY …)",
            span(node),
        )
    if is_aggregate(node) and not _has_over(node):
        _check_inside(text, node)
    if name in ("grouping", "grouping_id") and not _has_sets(node):
        raise text.error(f"{name}() without ROLLUP, CUBE or GROUPING SETS", span(node))


def _check_inside(text: Text, call: exp.Func) -> None:
    """Look at what an aggregate is made of."""
    above = call.parent
    parts = [*call.iter_expressions()]
    if isinstance(above, exp.Filter):
        parts.append(above.expression)
    for part in parts:
        for inner in aggregate_calls(part):
            raise text.error("an aggregate inside another", span(inner), hint="use a subquery")
        for window in windows(part):
            raise text.error(
                "a window function inside an aggregate", span(window), hint="use a subquery"
            )


def _has_sets(node: exp.Expr) -> bool:
    select = node.find_ancestor(exp.Select)
    group = select.args.get("group") if select is not None else None
    return group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None


def _is_ordered(node: exp.Expr) -> bool:
    """Whether a window function has an ORDER BY, be it in a named window."""
    window = node.find_ancestor(exp.Window)
    if window is None:
        return False
    select = window.find_ancestor(exp.Select)
    named = (select.args.get("windows") or []) if select is not None else []
    same = [declared for declared in named if declared.name.lower() == window.alias.lower()]
    return any(each.args.get("order") is not None for each in (window, *same))


def _has_over(node: exp.Expr) -> bool:
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.Filter | exp.WithinGroup):
        node, above = above, above.parent
    return isinstance(above, exp.Window) and above.this is node
