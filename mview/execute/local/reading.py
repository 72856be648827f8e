"""How a query for the in-process engine is read: calls that sqlglot takes for others stay apart."""

from __future__ import annotations

from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

#: log10(x) would become log(10, x), which Spark rounds otherwise.
_APART = ("LOG10", "LOG2")


class _ApartParser(SparkParser):
    FUNCTIONS: ClassVar = {
        name: build for name, build in SparkParser.FUNCTIONS.items() if name not in _APART
    }


class _Apart(Spark):
    Parser = _ApartParser


def read(sql: str) -> exp.Expr:
    """The tree of a query in Spark's SQL.

    Raises:
        sqlglot.errors.SqlglotError: it cannot be parsed.
    """
    return sqlglot.parse_one(sql, dialect=_Apart)
