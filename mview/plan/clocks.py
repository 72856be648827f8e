"""The time functions as tables of one row, the clocks: every epoch has one pinned time.

For a delta, `current_date()` is a value like that of any uncorrelated subquery: it is read from a
clock, changes from one epoch to the next, and what depends on it is evaluated with the old and the
new one. The day has a clock of its own, so that a view of days alone rests until midnight. A batch
query has the pinned time as literals instead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import Token

from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.plan.functions import TIME, function_name
from mview.plan.pieces import word_of
from mview.plan.place import Edit, edited, span
from mview.plan.syntax import parse_select
from mview.schema import Column, TableSchema

#: The clocks; like those of parts, their names are none that a user can give.
DAY, INSTANT = "clock:day", "clock:now"

#: What views see of the clocks. Each has one column: a value that is kept by itself is one. No
#: alias of a user may hide it.
CLOCKS: Mapping[str, TableSchema] = {
    DAY: TableSchema((Column("__today", pa.date32(), nullable=False),), ()),
    INSTANT: TableSchema((Column("__now", pa.timestamp("us", "UTC"), nullable=False),), ()),
}

#: The clock of each function, and what the function makes of its value.
_FUNCTIONS = {
    "current_date": (DAY, "{}"),
    "curdate": (DAY, "{}"),
    "current_timestamp": (INSTANT, "{}"),
    "now": (INSTANT, "{}"),
    "localtimestamp": (INSTANT, "CAST({} AS TIMESTAMP_NTZ)"),
    "unix_timestamp": (INSTANT, "unix_timestamp({})"),
}
#: Those that Spark takes without parentheses.
_BARE = ("CURRENT_DATE", "CURRENT_TIMESTAMP")

#: Texts that Spark takes for times, and what makes times of them.
_WORDS = ("now", "today", "tomorrow", "yesterday")
_DATES = (exp.Cast, exp.TryCast, exp.TsOrDsToDate, exp.StrToTime, exp.StrToDate, exp.Timestamp)


def is_clock(name: str) -> bool:
    """Whether a name in SQL is that of a clock."""
    return name in CLOCKS


def clocks_of(definition: ViewDefinition) -> tuple[str, ...]:
    """The clocks that a view's text asks."""
    called = [clock for _, _, clock, _ in _calls(definition.sql, parse_select(definition.text))]
    return tuple(dict.fromkeys(called))


def with_clocks(definition: ViewDefinition) -> ViewDefinition:
    """The view with subqueries over the clocks in the place of time functions.

    Raises:
        UserError: the time is asked for in a way that cannot be pinned.
    """
    tree = parse_select(definition.text)
    _check_no_words_for_times(definition, tree)
    values = {name: f"(SELECT {schema.names[0]} FROM `{name}`)" for name, schema in CLOCKS.items()}
    edits = _edits(definition.sql, tree, values)
    changed = definition.with_sql(edited(definition.sql, edits)) if edits else definition
    if _asks_the_time(parse_select(changed.text), changed.sql):
        raise _not_pinned(definition, tree, {start for start, _, _ in edits})
    return changed


def pinning_edits(sql: str, tree: exp.Query, pinned_ms: int) -> list[Edit]:
    """Edits that put the pinned time in the place of time functions."""
    return _edits(sql, tree, _literals(pinned_ms))


def pinned_relations(pinned_ms: int) -> dict[str, str]:
    """SQL of the clocks at a pinned time."""
    literals = _literals(pinned_ms)
    return {
        name: f"(SELECT {literals[name]} AS {schema.names[0]})" for name, schema in CLOCKS.items()
    }


def pinned_rows(clock: str, pinned_ms: int) -> pa.Table:
    """The one row of a clock at a pinned time."""
    schema = CLOCKS[clock].arrow
    value = _instant(pinned_ms)
    return pa.table([pa.array([value.date() if clock == DAY else value], schema.types[0])], schema)


def _instant(pinned_ms: int) -> dt.datetime:
    start = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return start + dt.timedelta(milliseconds=pinned_ms)


def _literals(pinned_ms: int) -> dict[str, str]:
    """The values of the clocks in SQL; the session's time zone is always UTC."""
    value = _instant(pinned_ms)
    return {DAY: f"DATE'{value:%Y-%m-%d}'", INSTANT: f"TIMESTAMP'{value:%Y-%m-%d %H:%M:%S.%f}Z'"}


def _edits(sql: str, tree: exp.Query, values: Mapping[str, str]) -> list[Edit]:
    calls = _calls(sql, tree)
    return [(start, end, form.format(values[clock])) for start, end, clock, form in calls]


def _calls(sql: str, tree: exp.Query) -> list[tuple[int, int, str, str]]:
    """Every call of a time function: characters [start, end), its clock, what it makes of it."""
    if not _asks_the_time(tree, sql):
        return []
    found = []
    tokens = sqlglot.tokenize(sql, read="spark")
    for index, token in enumerate(tokens):
        last = _last_of_call(tokens, index)
        if last is not None:
            clock, form = _FUNCTIONS[word_of(token).lower()]
            found.append((token.start, tokens[last].end + 1, clock, form))
    return found


def _last_of_call(tokens: list[Token], index: int) -> int | None:
    """The last token of a call without arguments that begins at an index; None: there is none."""
    before, name, *after = (
        word_of(tokens[i]) if 0 <= i < len(tokens) else "" for i in range(index - 1, index + 3)
    )
    if name.lower() not in _FUNCTIONS or before in (".", "AS"):
        return None
    if after == ["(", ")"]:
        return index + 2
    return index if name in _BARE and after[0] not in ("(", ".") else None


def _asks_the_time(tree: exp.Query, sql: str) -> bool:
    return any(function_name(node, sql) in TIME for node in tree.walk())


def _not_pinned(definition: ViewDefinition, tree: exp.Query, found: set[int]) -> UserError:
    """The error for a time function that is not written as one of `_FUNCTIONS`."""
    names = {*TIME, *_FUNCTIONS}
    node = next(
        node
        for node in tree.walk()
        if function_name(node, definition.sql) in names and node.meta.get("start") not in found
    )
    return definition.text.error(
        f"{function_name(node, definition.sql)}() cannot be pinned to the time of an epoch "
        "(TIME_DEPENDENT)",
        span(node),
        allowed=", ".join(f"{one}()" for one in _FUNCTIONS),
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
