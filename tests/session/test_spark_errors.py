"""Errors that come through Spark as text become the errors they were."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mview.catalog.spark_functions import function_errors
from mview.epoch.halts import told_of
from mview.errors import (
    CorruptionError,
    DataLostError,
    DecodeError,
    ExitCode,
    RetryableError,
    of_the_system,
    subject_of,
)
from mview.session.spark_errors import (
    SPARK_ERRORS,
    WorkerEndedError,
    WorkerStartError,
    first_words,
    translate_failure,
    unread_file,
    unwrapped,
)

TRACE = """[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure:
  File "/x/worker.py", line 1, in main
{} SQLSTATE: XXKST
=== Streaming Query ==="""


def test_the_block_of_a_worker_is_rebuilt() -> None:
    raised = DecodeError("not JSON", where="t/0, offset 7", got="{oops", safe="all", hint="fix it")
    text = TRACE.format(f"mview.errors.DecodeError: {raised.render()}")
    found = translate_failure(text)
    assert type(found) is DecodeError
    assert found.render() == raised.render()


def test_the_exit_code_survives() -> None:
    text = TRACE.format(
        f"mview.errors.DataLostError: {DataLostError('gone', where='t/0').render()}"
    )
    assert translate_failure(text).exit_code == ExitCode.DATA_LOST


def test_any_other_failure_can_be_retried_and_says_so() -> None:
    found = translate_failure(TRACE.format("java.io.IOException: disk"))
    assert isinstance(found, RetryableError)
    assert "java.io.IOException: disk" in str(found.got)


def test_a_worker_that_did_not_start_is_told_from_other_failures() -> None:
    found = translate_failure(TRACE.format("SparkException: Python worker failed to connect back."))
    assert isinstance(found, WorkerStartError)
    assert found.exit_code == ExitCode.CHECK_FAILED


@pytest.mark.parametrize(
    "words",
    [
        "Python worker exited unexpectedly (crashed).",
        "EOFException occurred while reading the port number from pyspark.daemon's stdout and "
        "terminated with code: 137.",
    ],
)
def test_a_worker_that_was_killed_is_no_bug(words: str) -> None:
    """In a batch, Java's error has no class in pyspark: it is Spark's all the same."""
    text = f"Py4JJavaError: ... SparkException: {words}"
    assert issubclass(Py4JJavaError, SPARK_ERRORS)
    found = translate_failure(TRACE.format(text))
    assert isinstance(found, WorkerEndedError)
    assert "was killed" in found.what
    assert "memory" in str(found.hint)


class Said(PySparkException):
    """As what pyspark makes of Java's errors: the words of the cause are not in its own."""

    def __init__(self, text: str, cause: PySparkException | None = None) -> None:
        super().__init__(text)
        self._cause = cause


def test_who_only_waited_for_a_part_of_a_query_is_not_whom_it_is_told_of() -> None:
    part = Said("Job aborted", Said("its own cause"))
    waited = "org.apache.spark.SparkException: Exception thrown in awaitResult: "
    assert unwrapped(Said(waited, Said(waited, part))) is part
    assert unwrapped(part) is part
    alone = Said(waited)
    assert unwrapped(alone) is alone
    cause = Said("java.util.NoSuchElementException: key not found: x#3")
    told = told_of(Said(waited, Said(waited, cause)), "view v")
    assert told.what == "view v fails: NoSuchElementException: key not found: x#3"


def test_what_others_waited_for_is_told_of_an_error_without_a_class() -> None:
    """As pyspark leaves an error of Java that it has no class for: with Java's whole trace."""
    waited = "org.apache.spark.SparkException: Exception thrown in awaitResult: "
    trace = (
        f"An error occurred while calling o5.collectToPython.\n: {waited}\n\tat a.B.c(B.scala:1)\n"
        f"Caused by: {waited}\n\tat a.B.d(B.scala:2)\n"
        "Caused by: java.util.NoSuchElementException: key not found: x#3\n\tat a.C.e(C.scala:3)\n"
        "Caused by: java.lang.Error: behind it\n\t... 3 more"
    )
    assert first_words(Py4JError(trace)) == "NoSuchElementException: key not found: x#3"
    alone = trace.partition("\nCaused by: ")[0]
    assert first_words(Py4JError(alone)).startswith("SparkException: Exception thrown in await")


def test_an_error_that_passes_is_not_its_own_cause() -> None:
    """Who looks through the causes for one of the system would look for ever."""
    error = PySparkException("other")
    with pytest.raises(PySparkException) as caught, function_errors():
        raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert of_the_system(error) is None


def test_a_ring_of_causes_is_gone_through_once() -> None:
    inner, outer = ValueError("inner"), ValueError("outer")
    inner.__cause__, outer.__cause__ = outer, inner
    assert of_the_system(outer) is None


@pytest.mark.spark
@pytest.mark.parametrize("collect", ["toArrow", "count", "collect"])
def test_a_file_that_spark_cannot_read_is_named(
    spark: SparkSession, tmp_path: Path, collect: str
) -> None:
    file = tmp_path / "ä 50%" / "rows.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"id": range(1000)}), file)
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(SPARK_ERRORS) as failed:
        getattr(spark.read.schema("id bigint").parquet(str(file)), collect)()
    told = told_of(failed.value, "view v")
    assert isinstance(told, CorruptionError)
    assert (told.where, subject_of(told)) == (str(file), "view v")
    assert unread_file(RuntimeError(f"{file} is away")) is None
    rows = spark.read.schema("id bigint").parquet(str(file))
    file.unlink()  # as a run that compacts does
    with pytest.raises(SPARK_ERRORS) as gone:
        getattr(rows, collect)()
    assert unread_file(gone.value) is None


@pytest.mark.spark
@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 / 0",
        "SELECT 1 % 0",
        "SELECT 2147483647 + CAST(id AS int) + 1 FROM range(1)",
        "SELECT CAST(id AS decimal(4, 2)) FROM range(1000, 1001)",
        "SELECT make_date(2026, 13, CAST(id AS int)) FROM range(1)",
        "SELECT CAST(current_timestamp() AS boolean)",
    ],
)
def test_no_setting_is_advised_that_views_refuse(spark: SparkSession, query: str) -> None:
    """Spark ends such words by how to switch its errors off, which `check_meaning` refuses."""
    with pytest.raises(PySparkException) as failed:
        spark.sql(query).collect()
    assert "spark.sql.ansi.enabled" in str(failed.value)
    for said in (str(told_of(failed.value, "view v")), first_words(failed.value)):
        assert "spark.sql" not in said
        assert not said.rstrip().endswith("bypass this error.")
