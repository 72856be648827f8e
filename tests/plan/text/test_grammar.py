"""What binds tighter: as Spark's parser has it, in views' texts and in queries in process."""

from __future__ import annotations

import random

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from sqlglot import exp

from mview.execute.local.parsing.reading import read
from mview.plan.text.dialect import parse, write
from tests.seeds import daily

_OPERATORS = (
    "+", "-", "||", "*", "/", "%", "DIV", "<<", ">>", "&", "^", "|", "=", "==", "<>", "!=", "<",
    "<=", ">", ">=", "<=>",
)  # fmt: skip
_LEAVES = (
    "a",
    "b",
    "t.c",
    "1",
    "-1",
    "'x'",
    "f(a)",
    "a::int",
    "-1::string",
    "-.5::string",
    "xs[0]",
    "(a)",
)
_ASKED = (
    "IS NULL", "IS TRUE", "IS NOT FALSE", "IN ({0}, {1})", "NOT IN ({0})",
    "BETWEEN {0} AND {1}", "NOT BETWEEN {0} AND {1}", "LIKE {0}", "NOT LIKE {0}", "RLIKE {0}",
    "IS DISTINCT FROM {0}", "IS NOT DISTINCT FROM {0}", "ILIKE {0}",
)  # fmt: skip
#: Nodes that have operands without commas or brackets around them.
_OPEN = (
    exp.Binary, exp.Unary, exp.Between, exp.In, exp.Not, exp.Is, exp.Like, exp.ILike,
    exp.RegexpLike, exp.NullSafeNEQ,
)  # fmt: skip


def some_text(chance: random.Random) -> str:
    """A condition without parentheses."""

    def value() -> str:
        words = [chance.choice(("", "", "", "-", "~")) + chance.choice(_LEAVES)]
        for _ in range(chance.randrange(4)):
            sign = chance.choice(("", "", "", "- ", "~"))
            words += [chance.choice(_OPERATORS), sign + chance.choice(_LEAVES)]
        return " ".join(words).replace("--", "- -")

    def test() -> str:
        asked = chance.choice(("", *_ASKED)).format(value(), value())
        return f"{chance.choice(('', '', 'NOT ', '! '))}{value()} {asked}".strip()

    tests = [test() for _ in range(chance.randrange(1, 4))]
    return "".join(f"{text} {chance.choice(('AND', 'OR'))} " for text in tests[:-1]) + tests[-1]


def with_parentheses(tree: exp.Expr) -> exp.Expr:
    """The tree with each operator within another one in parentheses."""
    tree = tree.copy()
    for node in reversed(list(tree.walk())):
        both = (node, node.parent)
        if all(isinstance(n, _OPEN) and not isinstance(n, exp.Paren) for n in both):
            node.replace(exp.Paren(this=node.copy()))
    return tree


def of(tree: exp.Expr) -> exp.Expr:
    return tree.expressions[0].unalias()


@pytest.mark.spark
def test_what_binds_tighter_is_as_in_spark(spark: SparkSession) -> None:
    state: JavaObject = spark._jsparkSession.sessionState()  # type: ignore[attr-defined]
    parser, chance = state.sqlParser(), random.Random(daily())
    for _ in range(100):
        text = some_text(chance)
        meant = parser.parseExpression(text).toString()
        (view,) = parse(f"SELECT {text}")
        assert view is not None
        for tree in (view, read(f"SELECT {text}")):
            for again in (write(of(tree)), write(with_parentheses(of(tree)))):
                assert parser.parseExpression(again).toString() == meant, (text, again)
