"""Declared functions in Spark: told to a session, and their errors taken out of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf

from mview.execute.calls import Callee
from mview.plan.definition import ViewDefinition
from mview.session.spark_errors import SparkWorkerError, translate_failure, unwrapped


def register_functions(
    spark: SparkSession, definitions: Sequence[ViewDefinition], folder: str
) -> None:
    """Make the functions that views call known to Spark; what had such a name is replaced.

    Args:
        folder: of the configuration file: modules of functions may lie there.
    """
    for function in {function for definition in definitions for function in definition.called}:
        call = _hinted(Callee(function, folder))
        # The stubs want the kind as an argument, of which Spark warns.
        udf = arrow_udf(call, function.returns)  # type: ignore[call-overload]
        spark.udf.register(function.name, udf)


def _hinted(callee: Callee) -> Callable[..., pa.Array]:
    """As Spark wants it: it tells kinds of functions by the hints."""

    def call(*columns: pa.Array) -> pa.Array:
        return callee(*columns)

    return call


@contextmanager
def function_errors() -> Iterator[None]:
    """Raise what a declared function raised in a worker, in the place of what Spark makes of it.

    Also where a worker could not be started, or has ended; other errors of Spark pass.
    """
    try:
        yield
    except PySparkException as error:
        known = unwrapped(error)
        told = translate_failure(str(known))
        if "mview.errors." in str(known) or isinstance(told, SparkWorkerError):
            raise told from None
        if known is error:
            raise
        raise known from None
