"""Which queries stay planned, where there are more than may be; how their results come."""

from __future__ import annotations

import datetime as dt
import math
import random
import threading
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from mview.execute import queries as queries_module
from mview.execute.queries import Queries

ROWS = pa.table({"a": [1, 2, 3]})


def run(queries: Queries, number: int) -> int:
    answer = queries.run(f"SELECT sum(a) + {number} AS s FROM t", {"t": ROWS})
    assert answer["s"].to_pylist() == [6 + number]
    return queries.plans


def test_going_round_more_queries_than_stay_planned_finds_those_that_do() -> None:
    queries = Queries(most=20)
    for _ in range(3):
        for number in range(25):
            run(queries, number)
    before = queries.plans
    for _ in range(10):
        for number in range(25):
            run(queries, number)
    # Five of each round have no room; with the oldest gone for the newest, it were all 25.
    assert queries.plans - before <= 10 * 5 + 10
    queries.close()


def test_what_is_asked_for_now_takes_the_place_of_what_was_once() -> None:
    queries = Queries(most=10)
    for _ in range(30):
        for number in range(10):
            run(queries, number)
    for _ in range(30):
        for number in range(100, 110):
            run(queries, number)
    before = queries.plans
    for number in range(100, 110):
        run(queries, number)
    assert queries.plans == before
    queries.close()


def test_threads_run_queries_of_which_each_takes_the_place_of_another() -> None:
    queries, failed = Queries(most=2), []

    def many(seed: int) -> None:
        try:
            for turn in range(200):
                run(queries, (turn * seed) % 5)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    queries.close()


#: By the SQL type, values at its ends; of texts and bytes, some that are hard to hand over.
VALUES: dict[str, list[object]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127],
    "BIGINT": [-(2**63), 2**63 - 1],
    "HUGEINT": [str(1 - 10**38), str(10**38 - 1)],
    "DECIMAL(4,2)": [Decimal("-99.99"), Decimal("0.10")],
    "DECIMAL(38,10)": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1e-10")],
    "FLOAT": [-0.0, 0.1, math.nan, -math.inf],
    "DOUBLE": [-0.0, 0.1, math.nan, math.inf, 5e-324],
    "VARCHAR": ["", "a\0b", "é" * 20, "\U0001f600"],
    "BLOB": [b"", b"\0\xff"],
    "DATE": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "TIMESTAMP": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "BIGINT[]": [[], [1, None]],
}


@pytest.mark.parametrize("kind", VALUES)
def test_results_of_few_and_of_many_rows_have_the_same_values(kind: str) -> None:
    queries = Queries()
    chance = random.Random(kind)
    sql = f"SELECT CAST(x AS {kind}) AS x, n FROM t ORDER BY n"
    values = pa.array([*VALUES[kind], None]).cast(ARROW.get(kind, pa.string()))
    few, still = queries_module._FEW_ROWS, queries_module._FEW_ROWS * queries_module._STILL
    for count in (3, 0, few, few + 1, 2, still, 2, still + 1, 2):
        x = values.take(pa.array([chance.randrange(len(values)) for _ in range(count)], pa.int64()))
        rows = pa.table({"x": x, "n": range(count)}, pa.schema([("x", x.type), ("n", pa.int64())]))
        answer = queries.run(sql, {"t": rows})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queries_module._Planned, "_few", lambda planned: None)
            expected = queries.run(sql, {"t": rows})
        assert answer.schema == expected.schema
        assert repr(answer.to_pydict()) == repr(expected.to_pydict())
        assert answer["n"].to_pylist() == list(range(count))
    assert queries.plans == 1
    queries.close()


#: Types that are given as they are, of others the texts.
ARROW = {
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
    "BIGINT[]": pa.list_(pa.int64()),
}


@pytest.mark.parametrize(
    ("select", "value", "given"),
    [
        ("x", pa.array([b"\xff"]).view(pa.string()), ["1"]),
        ("CAST(x AS HUGEINT)", pa.array([str(2**127 - 1)]), ["1"]),
    ],
    ids=["a text that is none", "39 digits"],
)
def test_what_python_or_arrow_would_not_take_comes_all_the_same(
    select: str, value: pa.Array, given: list[str]
) -> None:
    queries = Queries()
    sql = f"SELECT {select} AS x FROM t"
    (first,) = queries.run(sql, {"t": pa.table({"x": value})})["x"].chunks
    assert queries.run(sql, {"t": pa.table({"x": given})}).num_rows == 1
    (again,) = queries.run(sql, {"t": pa.table({"x": value})})["x"].chunks
    assert again.equals(first)
    queries.close()


def test_a_query_that_fails_over_few_rows_says_so() -> None:
    queries = Queries()
    sql = "SELECT CAST(x AS INTEGER) AS x FROM t"
    for text in ("1", "2"):
        assert queries.run(sql, {"t": pa.table({"x": [text]})})["x"].to_pylist() == [int(text)]
        with pytest.raises(duckdb.ConversionException):
            queries.run(sql, {"t": pa.table({"x": ["a"]})})
    queries.close()


@pytest.mark.parametrize(("size", "few"), [(10, True), (1 << 20, False)])
def test_large_values_are_not_read_one_by_one(size: int, few: bool) -> None:
    queries = Queries()
    rows = pa.table({"x": ["a" * size, None, "b"]})
    assert queries.run("SELECT * FROM t", {"t": rows}).equals(rows)
    (planned,) = queries._planned.values()
    assert (planned._schema is not None) == few
    assert queries.run("SELECT * FROM t", {"t": rows}).equals(rows)
    queries.close()
