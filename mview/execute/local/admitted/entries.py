"""What an admitted operator or function is, and short ways to write one down."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import Formatter
from typing import Any

from sqlglot import exp

from mview.execute.local.admitted.signatures import Sign, Signature
from mview.execute.local.admitted.spark_types import Typed

#: Places of a text that take all operands, however many.
_LISTS = {"all", "rest", "joined", "present"}


@dataclass(frozen=True)
class Admitted:
    """One operator or function.

    Attributes:
        name: unique name, shown in test names.
        node: the class sqlglot parses it to.
        spark: how a user writes it; `{0}` is the first operand.
        duckdb: what runs instead. `{0}` … are operands cast as the signature says, `{all}` is the
            list of them, `{scale}` that of the result. In an aggregate, `{distinct}` comes before
            its operand and `{tail}`, its FILTER and window, after each call.
        sign: the signature for operands of these types; None: not admitted.
        parts: the arguments of `node` that are operands, in order (a list counts as many).
        fixed: arguments of `node` that are not operands, with the SQL texts they may have.
        arity: numbers of operands: the most it takes, but where the text has them as a list.
        aggregate: whether it is an aggregate, which may also stand over a window.
        form: arguments that tell this entry from others of the same node, as texts in lower case:
            the name of a function that sqlglot has no class for, `position` of TRIM.
        defers: some rows raise here that have a value in Spark, which then runs that epoch.
        by_order: its last digits hang on the order of the rows, in Spark, too.
    """

    name: str
    node: type[exp.Expr]
    spark: str
    duckdb: str
    sign: Sign
    parts: tuple[str, ...] = ("this", "expression")
    fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    arity: tuple[int, ...] = (2,)
    aggregate: bool = False
    form: dict[str, str] = field(default_factory=dict)
    defers: bool = False
    by_order: bool = False

    def signature(self, values: list[Typed]) -> Signature | None:
        """The signature for operands; None: it is not admitted for these, or for so many."""
        least, any_number = self._takes
        fits = least <= len(values) and (any_number or len(values) <= max(self.arity))
        return self.sign(values) if fits else None

    @cached_property
    def _takes(self) -> tuple[int, bool]:
        """How many operands the text has places for at least, and whether it takes any number."""
        places = {name for _, name, _, _ in Formatter().parse(self.duckdb) if name}
        numbers = [int(name) + 1 for name in places if name.isdigit()]
        return max(numbers, default=0), bool(places & _LISTS)

    def is_of(self, node: exp.Expr) -> bool:
        """Whether a node of this entry's class is this entry."""
        return all(argument(node, name) == text for name, text in self.form.items())


def argument(node: exp.Expr, name: str) -> str:
    """An argument of a node as text in lower case; "" where it has none."""
    value = node.args.get(name)
    return str(value.sql("spark") if isinstance(value, exp.Expr) else value or "").lower()


# The digits of a decimal as a whole number, and one such number by another, half rounded up.
_DIGITS = "CAST(replace(CAST(%s AS VARCHAR), '.', '') AS HUGEINT)"
_HALF_UP = "((2 * abs({0}) + abs({1})) // (2 * abs({1})))"
_ROUNDED = (
    "CASE WHEN sign({0}) * sign({1}) < 0 THEN '-' ELSE '' END "
    f"|| CAST({_HALF_UP} // {{{{power}}}} AS VARCHAR) "
    f"|| '.' || lpad(CAST({_HALF_UP} % {{{{power}}}} AS VARCHAR), {{{{scale}}}}, '0')"
)


def rounded_text(decimal: str, divisor: str) -> str:
    """DuckDB text: a decimal by a whole number, rounded to `{scale}` digits; NULL by zero."""
    return _ROUNDED.format(_DIGITS % decimal, f"nullif({divisor}, 0)")


def whole_digits(decimal: str) -> str:
    """DuckDB text: the digits of a decimal as a whole number."""
    return _DIGITS % decimal


#: Ends a query whose outcome only Spark decides: Spark runs that epoch.
SPARK_DECIDES = "error('Spark decides')"

_RAISED = re.compile(r"error\('([^']*)'\)")


def raised_by_casts(text: str) -> str:
    """DuckDB text that raises by a cast: keys of a window may not have `error`, it is volatile."""
    return _RAISED.sub(r"CAST(CAST('\1' AS INTEGER) AS VARCHAR)", text)


def years_alike(day: str, text: str) -> str:
    """DuckDB text: a date or time as `text` writes it; Spark decides on other than four digits."""
    written = f"{day} >= DATE '0001-01-01' AND {day} < DATE '10000-01-01'"
    other = f"WHEN {day} IS NOT NULL THEN {SPARK_DECIDES}"
    return f"(CASE WHEN {written} THEN {text} {other} END)"


#: Arguments that sqlglot sets to steer its own generators.
FLAGS = {"typed": (False,), "safe": (True, False), "big_int": (True,), "coalesce": (False,)}


def unary(name: str, node: type[exp.Expr], text: str, sign: Sign, duckdb: str = "") -> Admitted:
    """One operand, `this`."""
    return Admitted(name, node, text, duckdb or text, sign, ("this",), FLAGS, arity=(1,))


def binary(name: str, node: type[exp.Expr], text: str, sign: Sign, duckdb: str = "") -> Admitted:
    """Two operands, `this` and `expression`."""
    return Admitted(name, node, text, f"({duckdb or text})", sign, fixed=FLAGS)


def many(name: str, node: type[exp.Expr], text: str, sign: Sign) -> Admitted:
    """Operands `this` and any number of `expressions`."""
    flags: dict[str, tuple[Any, ...]] = {"ignore_nulls": (True,)}
    parts = ("this", "expressions")
    return Admitted(name, node, text, f"({text})", sign, parts, flags, arity=(2, 3))


def aggregate(name: str, node: type[exp.Expr], text: str, sign: Sign) -> Admitted:
    """An aggregate of one operand."""
    duckdb = f"{name}({{distinct}}{{0}}){{tail}}"
    return replace(unary(name, node, text, sign, duckdb), aggregate=True)
