"""Property: admitted functions within one another are what Spark makes of them.

Each entry is compared by itself in test_admission.py; here its operands are other entries, as they
come: what a function makes of a value that no column has, and where parentheses are needed. More:
MVIEW_NESTED=2000.
"""

from __future__ import annotations

import os
import random
import re
from functools import cache

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mview.execute.local.admission import translate
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.local.parsing.reading import read
from mview.execute.refusal import NotAdmittedError
from mview.schema import type_name
from tests.execute.local.test_admission import (
    ENTRIES,
    INT,
    ROWS,
    TYPES,
    column,
    evaluator,
    local_values,
    normal,
    plain,
    rows,
    spark_schema,
)
from tests.seeds import seeds

__all__ = ["evaluator", "rows"]  # fixtures

COUNT = int(os.environ.get("MVIEW_NESTED", "40"))
#: Of an entry with many types, as many calls as give each entry its turn.
CALLS = 25
KINDS = {column("a", kind)[2:]: kind for kind in TYPES}
OPERAND = re.compile(rf"\b[abc]_({'|'.join(sorted(KINDS, key=len, reverse=True))})\b")
COLUMNS = {field.name: field.type for field in ROWS.schema}


def kind_of(call: str) -> pa.DataType:
    """The type of an expression; raises where it is not admitted."""
    tree = read(f"SELECT {call} AS v FROM rows")
    return dict(translate(tree, {"rows": COLUMNS}).columns)["v"]


@cache
def calls() -> dict[str, list[str]]:
    """Calls over columns by the type of what they give."""
    chance, made = random.Random(1), dict[str, list[str]]()
    for cases in ENTRIES:
        for _, call in chance.sample(cases, min(len(cases), CALLS)):
            made.setdefault(type_name(kind_of(call)), []).append(call)
    return made


def nested(chance: random.Random, kind: str, depth: int) -> str:
    """An expression of a type, so many calls deep."""
    known = calls().get(kind, [])
    if not depth or not known or chance.random() < 0.15:
        return column(chance.choice("abc"), kind)

    def operand(place: re.Match[str]) -> str:
        inner = nested(chance, KINDS[place[1]], depth - 1)
        return inner if OPERAND.fullmatch(inner) else f"({inner})"

    return OPERAND.sub(operand, chance.choice(known))


@pytest.mark.spark
@pytest.mark.slow
def test_nested_expressions_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, rows: pa.Table
) -> None:
    compared = 0
    for seed in seeds(COUNT, first=80_000):
        chance = random.Random(seed)
        kind = chance.choice([kind for kind in calls() if kind in TYPES])
        call = nested(chance, kind, chance.choice([2, 2, 3]))
        try:
            made = kind_of(call)
        except NotAdmittedError:
            continue  # literals are asked for, or a decimal has no place
        field = spark_schema(spark, f"SELECT {call} AS v FROM rows").field("v")
        assert field.type == made, f"seed {seed}: {call}"
        mine = local_values(evaluator, call, pa.schema([("id", INT), field]), rows)
        wanted = values_of(spark, call, sorted(set(range(rows.num_rows)) - set(mine)))
        if wanted is None:
            continue  # Spark raises, as rows of what is left out of its plan do
        assert {row: wanted[row] for row in mine} == mine, f"seed {seed}: {call}"
        compared += len(mine)
    assert compared > COUNT * 50


def values_of(spark: SparkSession, call: str, left_out: list[int]) -> dict[int, object] | None:
    """Row id -> value in Spark, of rows but some; None: it raises."""
    text = f"({call})"
    if left_out:
        text = f"CASE WHEN id NOT IN ({', '.join(map(str, left_out))}) THEN {text} END"
    try:
        table = spark.sql(f"SELECT id, {text} AS v FROM rows").toArrow()
    except PySparkException:
        return None
    return dict(zip(table["id"].to_pylist(), map(normal, plain(table["v"])), strict=True))
