"""Errors that come through Spark as text become the errors they were."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError

from mview.errors import DataLostError, DecodeError, ExitCode, RetryableError
from mview.session.spark_errors import SPARK_ERRORS, WorkerStartError, translate_failure

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


def test_a_worker_that_was_killed_is_no_bug() -> None:
    """In a batch, Java's error has no class in pyspark: it is Spark's all the same."""
    text = "Py4JJavaError: ... SparkException: Python worker exited unexpectedly (crashed)."
    assert issubclass(Py4JJavaError, SPARK_ERRORS)
    found = translate_failure(TRACE.format(text))
    assert isinstance(found, RetryableError)
    assert "was killed" in found.what
    assert "memory" in str(found.hint)
