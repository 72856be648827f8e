"""What Spark says of a view: its columns and types. The user's text is the definition."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.schema import Column, TableSchema


def relation_name(name: str) -> str:
    """A plain identifier for a table or view in generated SQL."""
    return "r_" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in name)


def analyze(
    spark: SparkSession, definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> TableSchema:
    """The view's columns as Spark analyzes the user's text; the key is left empty.

    Raises:
        UserError: Spark refuses the text, two columns have one name, or a type has no equal.
    """
    names = {name: relation_name(name) for name in definition.table_names}
    for name, relation in names.items():
        spark.createDataFrame([], schemas[name].ddl).createOrReplaceTempView(relation)
    try:
        frame = spark.sql(bind_tables(definition, names))
        struct = frame.schema
        if definition.called:
            # Where functions may not stand, Spark says only when it optimizes.
            frame._jdf.queryExecution().optimizedPlan()
    except (AnalysisException, ParseException) as error:
        reason = str(error).split(" SQLSTATE")[0].splitlines()[0]
        raise UserError(
            f"Spark refuses view {definition.name}: {reason}", where=definition.file
        ) from None
    finally:
        for relation in names.values():
            spark.catalog.dropTempView(relation)
    arrow = to_arrow_schema(struct, timezone="UTC")
    try:
        return TableSchema(tuple(Column(f.name, f.type, f.nullable) for f in arrow), ())
    except UserError as error:
        raise UserError(
            f"view {definition.name}: {error.what}",
            where=definition.file,
            hint="give every column of the SELECT a name of its own with AS",
        ) from None
