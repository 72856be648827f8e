"""Conditions on single rows of a table, evaluated by us alone: the same for a load and a change.

A small part of SQL: comparisons of a column with a literal, IN, IS NULL, AND, OR, NOT, with SQL's
third truth value. Texts are compared byte by byte, whatever the collation of the column is.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from mview.errors import literal
from mview.schema import TableSchema, type_name

Operator = Literal["=", "<>", "<", "<=", ">", ">="]

#: A literal as it is written: a text, a number, or a truth value.
Value: TypeAlias = str | Decimal | bool


@dataclass(frozen=True)
class Compared:
    """A column compared with a literal."""

    column: str
    operator: Operator
    value: Value

    def __str__(self) -> str:
        return f"{_name(self.column)} {self.operator} {literal(self.value)}"


@dataclass(frozen=True)
class Among:
    """A column that has a value of a list; or none of it."""

    column: str
    values: tuple[Value, ...]
    is_not: bool = False

    def __str__(self) -> str:
        word = "NOT IN" if self.is_not else "IN"
        return f"{_name(self.column)} {word} ({', '.join(map(literal, self.values))})"


@dataclass(frozen=True)
class IsNull:
    """A column that is NULL; or is not."""

    column: str
    is_not: bool = False

    def __str__(self) -> str:
        return f"{_name(self.column)} IS {'NOT ' if self.is_not else ''}NULL"


@dataclass(frozen=True)
class Both:
    """Two conditions, of which both hold, or any. There is no NOT: it stands in what they join."""

    left: Condition
    word: Literal["AND", "OR"]
    right: Condition

    def __str__(self) -> str:
        return f"({self.left} {self.word} {self.right})"


Condition: TypeAlias = Compared | Among | IsNull | Both

_OPPOSITE: Mapping[Operator, Operator] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}

_COMPARE: Mapping[Operator, Callable[..., Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def leaves(condition: Condition) -> Iterator[Compared | Among | IsNull]:
    """The conditions of single columns."""
    if isinstance(condition, Both):
        yield from leaves(condition.left)
        yield from leaves(condition.right)
    else:
        yield condition


def columns_of(condition: Condition) -> frozenset[str]:
    """The columns that a condition needs."""
    return frozenset(leaf.column for leaf in leaves(condition))


# --- of rows -------------------------------------------------------------------------------------


def typed(column: str, value: Value, schema: TableSchema) -> pa.Scalar:
    """A literal as a value of its column.

    Raises:
        ValueError: the column has no such value, or is of a type that is not compared.
    """
    kind = schema.column(column).type
    made: Any = None
    is_number, is_text = isinstance(value, Decimal), isinstance(value, str)
    try:
        if pa.types.is_boolean(kind):
            made = value if isinstance(value, bool) else None
        elif pa.types.is_integer(kind):
            made = int(value) if is_number and value == int(value) else None
        elif pa.types.is_decimal(kind):
            made = value if is_number else None
        elif pa.types.is_string(kind):
            made = value if is_text else None
        elif pa.types.is_temporal(kind) and is_text and _MOMENT.fullmatch(str(value)):
            made = dt.datetime.fromisoformat(str(value))
            if pa.types.is_date(kind):
                made = made.date() if len(str(value)) == len("2024-02-29") else None
            elif kind.tz is not None:
                made = made.replace(tzinfo=dt.timezone.utc)
        if made is not None:
            return pa.scalar(made, kind)
    except (pa.ArrowException, OverflowError, ValueError):
        pass
    raise ValueError(f"{literal(value)} is no value of column {column!r} ({type_name(kind)})")


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{3}(\d{3})?)?)?")


def check(condition: Condition, schema: TableSchema) -> None:
    """Make sure that rows of a table can be asked.

    Raises:
        ValueError: a literal is no value of its column, or a column cannot be compared.
    """
    for leaf in leaves(condition):
        if not isinstance(leaf, IsNull):
            values = leaf.values if isinstance(leaf, Among) else (leaf.value,)
            for value in values:
                typed(leaf.column, value, schema)
        if (
            isinstance(leaf, Compared)
            and isinstance(leaf.value, bool)
            and leaf.operator not in ("=", "<>")
        ):
            raise ValueError(f"{leaf}: truth values are only equal, or not")


def holds(condition: Condition, rows: Mapping[str, pa.Array], schema: TableSchema) -> pa.Array:
    """For each row whether the condition is true; neither false nor unknown.

    Args:
        condition: one that `check` has let pass.
        rows: the columns that the condition needs, in the types of the schema.
        schema: the table.
    """
    return pc.fill_null(_truth(condition, rows, schema), False)


def _truth(condition: Condition, rows: Mapping[str, pa.Array], schema: TableSchema) -> Any:
    match condition:
        case Both(left, word, right):
            sides = _truth(left, rows, schema), _truth(right, rows, schema)
            return (pc.and_kleene if word == "AND" else pc.or_kleene)(*sides)
        case IsNull(column, is_not):
            return (pc.is_valid if is_not else pc.is_null)(rows[column])
        case Compared(column, operator, value):
            return _COMPARE[operator](rows[column], typed(column, value, schema))
        case Among(column, values, is_not):
            equal = [pc.equal(rows[column], typed(column, value, schema)) for value in values]
            any_of = reduce(pc.or_kleene, equal)
            return pc.invert(any_of) if is_not else any_of


# --- of text -------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?: (?P<text>'(?:[^']|'')*') | (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?![\w.]))
      | `(?P<quoted>(?:[^`]|``)+)` | (?P<word>[^\W\d]\w*) | (?P<sign><=|>=|<>|!=|[=<>(),]) )""",
    re.VERBOSE,
)
_WORDS = frozenset(["AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE", "FALSE"])
#: Parentheses and NOTs inside one another, and single conditions: walks over them recurse.
_DEEPEST, _MOST = 50, 200

ALLOWED = (
    "comparisons of a column with a text, number, TRUE or FALSE ('…'; names in backticks where "
    "need be), IN (…), IS NULL, IS NOT NULL, AND, OR, NOT and parentheses"
)


def parse_where(text: str) -> Condition:
    """The condition of a text.

    >>> str(parse_where("town = 'Bath' and not (age < 18 or vip is null)"))
    "(town = 'Bath' AND (age >= 18 AND vip IS NOT NULL))"

    Raises:
        ValueError: what is wrong, and where.
    """
    parser = _WhereParser(text)
    condition = parser.condition(False, 0)
    if parser.leaves > _MOST:
        raise ValueError(f"more than {_MOST} conditions; IN (…) takes many values")
    if parser.kind:
        raise parser.wrong("AND, OR or the end")
    return condition


class _WhereParser:
    """Reads a text from left to right; a NOT is brought down to what it stands before."""

    def __init__(self, text: str) -> None:
        self._text, self._end = text, 0
        self.kind, self.token = "", ""
        self.leaves = 0
        self._step()

    def _step(self) -> str:
        """Go to the next token; returns the one before."""
        before, at = self.token, self._end
        match = _TOKEN.match(self._text, at)
        if match is None:
            if self._text[at:].strip():
                self.kind, self.token = "?", self._text[at:].split()[0]
                raise self.wrong(ALLOWED)
            self.kind, self.token = "", ""
            return before
        self._end, self.kind = match.end(), str(match.lastgroup)
        self.token = match[self.kind]
        if self.kind == "word" and self.token.upper() in _WORDS:
            self.kind = self.token = self.token.upper()
        elif self.kind == "sign":
            self.kind = self.token
        return before

    def _accept(self, *kinds: str) -> bool:
        if self.kind not in kinds:
            return False
        self._step()
        return True

    def _expect(self, kind: str) -> None:
        if not self._accept(kind):
            raise self.wrong(kind)

    def wrong(self, wanted: str) -> ValueError:
        """The error about the token that is next."""
        got = self.token or "the end"
        return ValueError(f"{got} in {self._text!r} where {wanted} is expected")

    def condition(self, is_not: bool, depth: int) -> Condition:
        """What OR joins."""
        if depth > _DEEPEST:
            raise ValueError("too many parentheses and NOTs inside one another")
        made = self._conjunction(is_not, depth)
        while self._accept("OR"):
            made = Both(made, "AND" if is_not else "OR", self._conjunction(is_not, depth))
        return made

    def _conjunction(self, is_not: bool, depth: int) -> Condition:
        made = self._part(is_not, depth)
        while self._accept("AND"):
            made = Both(made, "OR" if is_not else "AND", self._part(is_not, depth))
        return made

    def _part(self, is_not: bool, depth: int) -> Condition:
        if self._accept("NOT"):
            if depth > _DEEPEST:
                raise ValueError("too many parentheses and NOTs inside one another")
            return self._part(not is_not, depth + 1)
        if self._accept("("):
            made = self.condition(is_not, depth + 1)
            self._expect(")")
            return made
        return self._leaf(is_not)

    def _leaf(self, is_not: bool) -> Condition:
        if self.kind not in ("word", "quoted"):
            raise self.wrong("a column")
        self.leaves += 1
        is_quoted = self.kind == "quoted"
        column = self._step()
        column = column.replace("``", "`") if is_quoted else column
        if self._accept("IS"):
            negated = self._accept("NOT")
            self._expect("NULL")
            return IsNull(column, negated != is_not)
        if self.kind in ("NOT", "IN"):
            negated = self._accept("NOT")
            self._expect("IN")
            self._expect("(")
            values = [self._value()]
            while self._accept(","):
                values.append(self._value())
            self._expect(")")
            return Among(column, tuple(values), negated != is_not)
        sign = "<>" if self.kind == "!=" else self.kind
        for operator, opposite in _OPPOSITE.items():
            if operator == sign:
                self._step()
                return Compared(column, opposite if is_not else operator, self._value())
        raise self.wrong("a comparison (=, <>, <, <=, >, >=), IN or IS")

    def _value(self) -> Value:
        kind = self.kind
        if kind not in ("text", "number", "TRUE", "FALSE"):
            raise self.wrong("a text in '…', a number, TRUE or FALSE")
        text = self._step()
        if kind == "text":
            return text[1:-1].replace("''", "'")
        return Decimal(text) if kind == "number" else kind == "TRUE"


def _name(column: str) -> str:
    plain = re.fullmatch(r"[^\W\d]\w*", column) and column.upper() not in _WORDS
    return column if plain else f"`{column.replace('`', '``')}`"


# --- for a database ------------------------------------------------------------------------------


def weakened(
    condition: Condition, may_ask: Callable[[Compared | Among | IsNull], bool]
) -> Sequence[Sequence[Compared | Among | IsNull]]:
    """What a database may be asked for: at least the rows for which the condition is true.

    Args:
        condition: the condition.
        may_ask: whether the database takes at least as many rows as we do for a part.

    Returns:
        Parts of which all must hold; of each, conditions of which any must hold. Nothing: it has
        to give all rows.
    """
    match condition:
        case Both(left, "AND", right):
            return [*weakened(left, may_ask), *weakened(right, may_ask)]
        case Both():
            every = list(leaves(condition))
            # AND inside of an OR is not asked for: its parts are weaker, and no less true.
            return [every] if all(map(may_ask, every)) else []
        case _:
            return [[condition]] if may_ask(condition) else []
