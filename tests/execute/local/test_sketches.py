"""approx_count_distinct in process against Spark, over sets of all sizes."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.sketches.cardinality import estimates, register_codes
from mview.execute.sketches.xxhash import of_integers, of_texts
from mview.schema import parse_type, type_name
from tests.seeds import daily

#: About where another formula takes over (400, 1,280, 2,560 values), below and beyond.
SIZES = (0, 1, 2, 40, 380, 400, 420, 700, 1_100, 1_280, 1_400, 1_900, 2_400, 2_560, 2_700, 9_000)
#: Bytes of a text: the hash takes 32, 8, 4 and 1 at a time.
LENGTHS = (0, 1, 3, 4, 5, 7, 8, 11, 12, 15, 16, 24, 31, 32, 33, 63, 64, 100)
TYPES = {
    "i": "int", "s": "smallint", "b": "bigint", "t": "string", "d": "date", "at": "timestamp",
    "local": "timestamp_ntz", "ok": "boolean",
}  # fmt: skip
EPOCH = dt.date(1970, 1, 1)


def some_rows() -> pa.Table:
    """Groups of each size; within, some values come again, and some are NULL."""
    chance = random.Random(daily())
    columns: dict[str, list[object]] = {"g": [], **{name: [] for name in TYPES}}
    for group, size in enumerate(SIZES):
        for number in chance.choices(range(size), k=size + size // 10):
            # Of each value the same one comes of the same number.
            own = random.Random(number * 1_000 + group)
            long = own.randrange(-(2**63), 2**63)
            text = "".join(own.choices("aä€\U0001f600z", k=own.choice(LENGTHS)))[:100]
            values = (
                own.randrange(-(2**31), 2**31), own.randrange(-(2**15), 2**15), long, text,
                EPOCH + dt.timedelta(days=own.randrange(-700_000, 2_000_000)),
                long % 10**16 - 10**15, long % 10**15, number % 2 == 0,
            )  # fmt: skip
            columns["g"].append(group)
            for name, value in zip(TYPES, values, strict=True):
                columns[name].append(None if chance.random() < 0.01 else value)
    kinds = {"g": "int", **TYPES}
    return pa.table(
        {name: pa.array(column, parse_type(kinds[name])) for name, column in columns.items()}
    )


@pytest.fixture
def evaluator() -> Iterator[LocalEvaluator]:
    evaluator = LocalEvaluator()
    yield evaluator
    evaluator.close()


@pytest.mark.spark
def test_estimates_equal_spark(
    spark: SparkSession, evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    rows = some_rows()
    pq.write_table(rows, tmp_path / "rows.parquet")
    ddl = ", ".join(f"{field.name} {type_name(field.type)}" for field in rows.schema)
    spark.read.schema(ddl).parquet(str(tmp_path / "rows.parquet")).createOrReplaceTempView("rows")
    calls = [f"approx_count_distinct({name}) AS n_{name}" for name in TYPES]
    calls.append("approx_count_distinct(DISTINCT b) FILTER (WHERE ok) AS filtered")
    groups = f"SELECT g, {', '.join(calls)} FROM rows GROUP BY g"
    window = (
        "SELECT g, b, approx_count_distinct(t) OVER (PARTITION BY g) AS n FROM rows WHERE g < 6"
    )
    for sql in (groups, window, f"SELECT {', '.join(calls)} FROM rows"):
        wanted = spark.sql(sql).toArrow()
        kinds = pa.schema([(name, wanted.schema.field(name).type) for name in wanted.column_names])
        got = evaluator.run(sql, {"rows": rows}, kinds)
        key = [(name, "ascending") for name in wanted.column_names]
        assert got.sort_by(key).to_pylist() == wanted.sort_by(key).to_pylist()


def test_the_hash_is_xxh64() -> None:
    # Of the algorithm's own test vectors.
    known = {"": 0xEF46DB3751D8E999, "a": 0xD24EC4F1A98C6E5B, "abc": 0x44BC2CF5AD770999}
    assert of_texts(pa.array(list(known)), 0).tolist() == list(known.values())
    # A part of an array, and an integer by its bytes.
    texts = pa.array(["abc", "abcdefgh", "abcd"])
    (eight,) = np.frombuffer(b"abcdefgh", np.int64)
    (four,) = np.frombuffer(b"abcd", np.int32)
    assert of_texts(texts.slice(1, 1), 7) == of_integers(np.array([eight]), 7)
    assert of_texts(texts.slice(2), 7) == of_integers(np.array([four]), 7)


def test_the_same_value_again_changes_no_estimate() -> None:
    codes = register_codes(of_integers(np.arange(500, dtype=np.int64), 42))
    once = estimates(codes, np.zeros(500, np.int64), 2)
    assert once == estimates(np.repeat(codes, 3), np.zeros(1_500, np.int64), 2)
    assert once[1] == 0
    assert abs(once[0] - 500) < 50
