"""The time functions as tables of one row, the clocks: every epoch has one pinned time.

For a delta, `current_date()` is a value like that of any uncorrelated subquery: it is read from a
clock, changes from one epoch to the next, and what depends on it is evaluated with the old and the
new one. The day has a clock of its own, so that a view of days alone rests until midnight. A batch
query has the pinned time as literals instead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

import pyarrow as pa
from sqlglot import exp

from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.plan.functions.effects import TIME, function_name
from mview.plan.text.dialect import called_as, fragment, verbatim
from mview.plan.text.place import span
from mview.relation import RelationId
from mview.schema import Column, TableSchema

#: The clocks; like those of parts, their names are none that a user can give.
DAY, INSTANT = (RelationId("clock", name) for name in ("day", "now"))

#: What views see of the clocks. Each has one column: a value that is kept by itself is one. No
#: alias of a user may hide it.
CLOCKS: Mapping[RelationId, TableSchema] = {
    DAY: TableSchema((Column("__today", pa.date32(), nullable=False),), ()),
    INSTANT: TableSchema((Column("__now", pa.timestamp("us", "UTC"), nullable=False),), ()),
}

#: The clock of each function, and what the function makes of its value `v`.
_FUNCTIONS = {
    "current_date": (DAY, "v"),
    "curdate": (DAY, "v"),
    "current_timestamp": (INSTANT, "v"),
    "now": (INSTANT, "v"),
    "localtimestamp": (INSTANT, "CAST(v AS TIMESTAMP_NTZ)"),
    "unix_timestamp": (INSTANT, "unix_timestamp(v)"),
}
#: Those that Spark takes without parentheses.
_BARE = (exp.CurrentDate, exp.CurrentTimestamp)

#: Texts that Spark takes for times, and what makes times of them.
_WORDS = ("now", "today", "tomorrow", "yesterday")
_DATES = (exp.Cast, exp.TryCast, exp.TsOrDsToDate, exp.StrToTime, exp.StrToDate, exp.Timestamp)


def is_clock(name: RelationId) -> bool:
    """Whether a relation is a clock."""
    return name in CLOCKS


def clocks_of(definition: ViewDefinition) -> tuple[RelationId, ...]:
    """The clocks that a view's text asks."""
    return tuple(dict.fromkeys(clock for _, clock, _ in _calls(definition.tree)))


def with_clocks(definition: ViewDefinition) -> ViewDefinition:
    """The view with subqueries over the clocks in the place of time functions.

    Raises:
        UserError: the time is asked for in a way that cannot be pinned.
    """
    _check_no_words_for_times(definition, definition.tree)
    tree = definition.tree.copy()
    values = {name: _value_of(name, schema.names[0]) for name, schema in CLOCKS.items()}
    is_changed = _put(tree, values)
    left = next((node for node in tree.walk() if function_name(node) in TIME), None)
    if left is not None:
        raise _not_pinned(definition, left)
    return definition.with_tree(tree) if is_changed else definition


def _value_of(clock: RelationId, column: str) -> exp.Expr:
    table = exp.Table(this=exp.to_identifier(clock.sql_name, quoted=True))
    return exp.select(exp.column(column)).from_(table).subquery()


def pin_time(tree: exp.Query, pinned_ms: int) -> None:
    """Put the pinned time in the place of time functions, in a tree."""
    _put(tree, {name: verbatim(sql) for name, sql in _literals(pinned_ms).items()})


def pinned_relations(pinned_ms: int) -> dict[RelationId, str]:
    """SQL of the clocks at a pinned time."""
    literals = _literals(pinned_ms)
    return {
        name: f"(SELECT {literals[name]} AS {schema.names[0]})" for name, schema in CLOCKS.items()
    }


def pinned_rows(clock: RelationId, pinned_ms: int) -> pa.Table:
    """The one row of a clock at a pinned time."""
    schema = CLOCKS[clock].arrow
    value = _instant(pinned_ms)
    return pa.table([pa.array([value.date() if clock == DAY else value], schema.types[0])], schema)


def _instant(pinned_ms: int) -> dt.datetime:
    start = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return start + dt.timedelta(milliseconds=pinned_ms)


def _literals(pinned_ms: int) -> dict[RelationId, str]:
    """The values of the clocks in SQL; the session's time zone is always UTC."""
    value = _instant(pinned_ms)
    return {DAY: f"DATE'{value:%Y-%m-%d}'", INSTANT: f"TIMESTAMP'{value:%Y-%m-%d %H:%M:%S.%f}Z'"}


def _put(tree: exp.Query, values: Mapping[RelationId, exp.Expr]) -> bool:
    """Put the values of the clocks in the place of time functions; whether there are some."""
    calls = list(_calls(tree))
    for node, clock, form in calls:
        node.replace(fragment(form, v=values[clock]))
    return bool(calls)


def _calls(tree: exp.Query) -> Iterator[tuple[exp.Expr, RelationId, str]]:
    """Every call of a time function: its node, its clock, what it makes of it."""
    for node in tree.walk(prune=_is_call):
        if _is_call(node):
            yield node, *_FUNCTIONS[function_name(node) or ""]


def _is_call(node: exp.Expr) -> bool:
    """Whether a node is a call of a time function, without arguments."""
    called = called_as(node)
    if called is None:
        return isinstance(node, _BARE) and not any(node.args.values())
    return called.name in _FUNCTIONS and not called.arguments


def _not_pinned(definition: ViewDefinition, node: exp.Expr) -> UserError:
    """The error for a time function that is not written as one of `_FUNCTIONS`."""
    return definition.text.error(
        f"{function_name(node)}() cannot be pinned to the time of an epoch (TIME_DEPENDENT)",
        span(node),
        allowed=", ".join(f"{name}()" for name in _FUNCTIONS),
    )


def _check_no_words_for_times(definition: ViewDefinition, tree: exp.Query) -> None:
    """Refuse `DATE 'today'` and such, for which Spark takes the time at which it runs."""
    for literal in tree.find_all(exp.Literal):
        words = literal.name.split()
        if not words or words[0].lower() not in _WORDS or not isinstance(literal.parent, _DATES):
            continue
        raise definition.text.error(
            f"{literal.name!r} as a date or timestamp is the time at which Spark runs, which "
            "cannot be pinned to an epoch "
            "(TIME_DEPENDENT)",
            span(literal.parent),
            hint="write current_date() or now()",
        )
