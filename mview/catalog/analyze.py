"""What Spark says of a view: its columns and types. The user's text is the definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from mview.errors import UserError
from mview.ivm.facts.result_types import no_such_type
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.schema import Column, TableSchema, type_name
from mview.session.spark_errors import first_words


class SparkRefusesError(UserError):
    """Spark does not take a view's text, which `mview check` cannot always tell."""


_NUMBERS = count(1)


def relation_names(tables: Iterable[str]) -> dict[str, str]:
    """New names for tables and views in the SQL of one query.

    Spark takes names that differ in case only for one, and knows one name of a temporary view in
    the whole session, where several queries may run at a time.
    """
    return {name: f"__relation_{next(_NUMBERS)}" for name in tables}


@contextmanager
def temporary_views(
    spark: SparkSession, frames: Mapping[str, DataFrame]
) -> Iterator[dict[str, str]]:
    """Tables as temporary views of one query; yields their names there."""
    names = relation_names(frames)
    try:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(names[name])
        yield names
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)


def analyze(
    spark: SparkSession, definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> TableSchema:
    """The view's columns as Spark analyzes the user's text; the key is left empty.

    Raises:
        SparkRefusesError: Spark does not take the text.
        UserError: two columns have one name, or a type has no equal.
    """
    frames = {name: spark.createDataFrame([], schemas[name].ddl) for name in definition.table_names}
    try:
        with temporary_views(spark, frames) as names:
            frame = spark.sql(bind_tables(definition, names))
            struct = frame.schema
            if definition.called:
                # Where functions may not stand, Spark says only when it optimizes.
                frame._jdf.queryExecution().optimizedPlan()
    except (PySparkException, Py4JJavaError) as error:
        raise SparkRefusesError(
            f"Spark refuses view {definition.name}: {first_words(error)}", where=definition.file
        ) from None
    return _schema(definition, struct)


def _schema(definition: ViewDefinition, struct: StructType) -> TableSchema:
    columns = tuple(_column(definition, field) for field in struct.fields)
    try:
        return TableSchema(columns, ())
    except UserError as error:
        raise UserError(
            f"view {definition.name}: {error.what}",
            where=definition.file,
            hint="give every column of the SELECT a name of its own with AS",
        ) from None


def _column(definition: ViewDefinition, field: StructField) -> Column:
    try:
        arrow = to_arrow_type(field.dataType, timezone="UTC")
        type_name(arrow)
    except (UserError, PySparkException):
        raise no_such_type(definition, field.name, field.dataType.simpleString()) from None
    return Column(field.name, arrow, field.nullable)
