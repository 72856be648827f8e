"""Threads that take turns: one at a time, others come in where it waits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.spark.executor import SparkExecutor
from mview.execute.turns import aside, seconds, turn
from mview.session.lazy import Spark

_PATIENCE = 30


def test_one_has_the_turn() -> None:
    inside: list[int] = []

    def work(number: int) -> None:
        with turn():
            inside.append(number)
            time.sleep(0.005)
            assert inside == [number]
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(20)))


def test_another_comes_in_where_one_waits() -> None:
    came = Event()

    def wait() -> bool:
        with turn(), aside():
            return came.wait(_PATIENCE)

    def come() -> None:
        with turn():
            came.set()

    with ThreadPoolExecutor(2) as pool:
        waited = pool.submit(wait)
        pool.submit(come).result()
        assert waited.result()


def test_without_a_turn_nothing_is_given_away() -> None:
    with aside():
        pass
    with turn():
        pass


def test_an_error_gives_the_turn_back() -> None:
    with pytest.raises(ZeroDivisionError), turn(), aside():
        raise ZeroDivisionError
    with turn():
        pass


def test_the_clock_stands_still_while_a_thread_waits_for_its_turn() -> None:
    began, asked, done = Event(), Event(), Event()

    def hold() -> None:
        with turn():
            began.set()
            done.wait(_PATIENCE)

    def wait() -> tuple[float, float]:
        own, wall = seconds(), time.monotonic()
        asked.set()
        with turn():
            pass
        return seconds() - own, time.monotonic() - wall

    with ThreadPoolExecutor(2) as pool:
        pool.submit(hold)
        assert began.wait(_PATIENCE)
        waiting = pool.submit(wait)
        assert asked.wait(_PATIENCE)
        time.sleep(0.5)
        done.set()
        own, wall = waiting.result()
    assert wall > 0.4
    assert own < wall / 2


def test_threads_that_run_the_same_query_get_their_own_rows() -> None:
    evaluator = LocalEvaluator()
    sql = "SELECT a, sum(b) AS total FROM t GROUP BY a"

    def work(number: int) -> None:
        rows = pa.table({"a": [number] * 100, "b": pa.array(range(100), pa.int64())})
        with turn():
            found = evaluator.run(sql, {"t": rows}, None)
        assert found.to_pydict() == {"a": [number], "total": [4950]}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(200)))
    evaluator.close()


@pytest.mark.spark
def test_views_that_spark_computes_get_their_own_rows(spark: SparkSession) -> None:
    executor = SparkExecutor(Spark.of(spark), {})

    def work(number: int) -> None:
        rows = pa.table({"a": pa.array([number] * 3, pa.int64())})
        with turn():
            found = executor.run(
                "SELECT a, count(*) AS n FROM new_t GROUP BY a", {"new_t": rows}, None
            )
        assert found.to_pydict() == {"a": [number], "n": [3]}

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(9)))


def test_another_comes_in_while_spark_computes() -> None:
    asked, came = Event(), Event()

    class Session:
        """One that answers when another thread has had its turn."""

        catalog = SimpleNamespace(dropTempView=lambda name: None)

        def createDataFrame(self, *args: Any, **named: Any) -> Any:
            return SimpleNamespace(createOrReplaceTempView=lambda name: None)

        def sql(self, text: str) -> Any:
            asked.set()
            assert came.wait(_PATIENCE)
            schema = StructType().add("a", LongType())
            return SimpleNamespace(schema=schema, toArrow=lambda: pa.table({"a": [1]}))

    executor = SparkExecutor(Spark.of(cast(SparkSession, Session())), {})

    def compute() -> Any:
        with turn():
            return executor.run("SELECT 1 AS a", {"t": pa.table({"a": [7]})}, None)

    def come() -> None:
        assert asked.wait(_PATIENCE)
        with turn():
            came.set()

    with ThreadPoolExecutor(2) as pool:
        computed = pool.submit(compute)
        pool.submit(come).result()
        assert computed.result().to_pydict() == {"a": [1]}
