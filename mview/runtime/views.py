"""Opening views in DAG order: analyze, compile, find the sink; one view's columns feed the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from mview.config import Config
from mview.connector import WEIGHT, Sink
from mview.errors import UserError
from mview.ivm.compile import Analyze, OtherColumnsError, compile_view
from mview.ivm.maintained import STATE, VALUE, Maintained
from mview.ivm.plan import ViewPlan
from mview.plan.definition import ViewDefinition
from mview.runtime.analyze import analyze
from mview.runtime.definitions import digest_of, load_definition
from mview.runtime.engine import LiveView
from mview.runtime.functions import folder_of
from mview.runtime.sinks import open_sink
from mview.runtime.spark_functions import register_functions
from mview.schema import TableSchema, type_name
from mview.store.layout import Store
from mview.store.manifest import Manifest


def open_views(
    config: Config,
    spark: SparkSession,
    definitions: Sequence[ViewDefinition],
    tables: Mapping[str, TableSchema],
) -> dict[str, LiveView]:
    """Compile all views.

    Args:
        config: the configuration.
        spark: analyzes the SQL.
        definitions: in DAG order.
        tables: schemas of the source tables.

    Raises:
        UserError: a view cannot be compiled; nothing has been changed.
    """
    store = Store(config.store)
    register_functions(spark, definitions, folder_of(config))
    schemas = dict(tables)
    read = {name for definition in definitions for name in definition.table_names}
    views: dict[str, LiveView] = {}
    for definition in definitions:
        result = analyze(spark, definition, schemas)
        plan = compile_view(definition, schemas, analyzer(spark))
        if unknown := [name for name in plan.key if name not in result.names]:
            raise UserError(
                f"key column {unknown[0]!r} is not in view {definition.name}",
                where=definition.file,
                allowed=", ".join(result.names),
            )
        schema = TableSchema(result.columns, plan.key)
        schemas[definition.name] = schema
        views[definition.name] = LiveView(
            definition,
            plan,
            schema,
            open_sink(config, store, definition, schema, digest_of(definition)),
            definition.name in read,
        )
    _check_keys_of_read_views(views)
    return views


def analyzer(spark: SparkSession) -> Analyze:
    """What Spark says of the columns of plans.

    A `finalize` that Spark reads with other names or types than the user's text is not used.
    """

    def analyzed(plan: ViewPlan, schemas: Mapping[str, TableSchema]) -> ViewPlan:
        result = _result(spark, plan, schemas)
        state = None
        if plan.state_definition is not None:
            state = _loose(analyze(spark, plan.state_definition, schemas))
        if plan.maintained is not None and plan.plain is not None:
            assert state is not None
            if _final_types(spark, plan.maintained, state, schemas) != result.types:
                return replace(plan.plain, result=result)
        return replace(plan, result=result, state_result=state)

    return analyzed


def _result(spark: SparkSession, plan: ViewPlan, schemas: Mapping[str, TableSchema]) -> pa.Schema:
    """The columns of a plan's text.

    Raises:
        OtherColumnsError: the text is ours, over parts or clocks, and Spark refuses it or finds
            other columns in it than in the user's own text.
    """
    declared = plan.declared
    if declared is None or declared.sql == plan.definition.sql:
        return _loose(analyze(spark, plan.definition, schemas))
    wanted = _loose(analyze(spark, declared, schemas))
    try:
        found = _loose(analyze(spark, plan.definition, schemas))
    except UserError:
        raise OtherColumnsError from None
    if found != wanted:
        raise OtherColumnsError
    return wanted


def _final_types(
    spark: SparkSession,
    maintained: Maintained,
    state: pa.Schema,
    schemas: Mapping[str, TableSchema],
) -> list[pa.DataType]:
    """The types of the view's columns as `finalize` makes them."""
    weighted = pa.schema([pa.field(WEIGHT, pa.int32()), *state])
    frames = {STATE: weighted} | {
        f"{VALUE}{number}": schemas[table].arrow for number, table in enumerate(maintained.values)
    }
    for name, schema in frames.items():
        ddl = ", ".join(f"`{field.name}` {type_name(field.type)}" for field in schema)
        spark.createDataFrame([], ddl).createOrReplaceTempView(name)
    try:
        struct = spark.sql(maintained.finalize).schema
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)
    return list(to_arrow_schema(struct, timezone="UTC").types[1:])


def _loose(schema: TableSchema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema.arrow])


def _check_keys_of_read_views(views: Mapping[str, LiveView]) -> None:
    for view in views.values():
        if view.is_read and not view.schema.key:
            raise UserError(
                f"view {view.name} is read by another view and has no key",
                where=view.definition.file,
                hint="declare one: CREATE MATERIALIZED VIEW … WITH (key='…') AS …",
            )


def open_sinks(config: Config, manifest: Manifest) -> dict[str, Sink]:
    """The sinks of the views of a manifest, as they were when published."""
    store = Store(config.store)
    return {
        name: open_sink(
            config, store, load_definition(store, manifest, name), state.schema, state.definition
        )
        for name, state in manifest.views.items()
    }


def strategy_of(plan: ViewPlan) -> str:
    """The strategy of the whole view: of its top operator that is not linear."""
    if plan.evaluation == "full":
        return "FULL"
    return next((n.strategy for n in plan.nodes if n.strategy != "LINEAR"), "LINEAR")
