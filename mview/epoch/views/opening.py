"""Opening views in DAG order: analyze, compile, find the sink; one view's columns feed the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from mview.catalog.analyze import SparkRefusesError, analyze
from mview.catalog.definitions import digest_of, load_definitions
from mview.catalog.functions import folder_of
from mview.catalog.sinks import open_sink
from mview.catalog.spark_functions import register_functions
from mview.config import Config
from mview.connector import WEIGHT, Sink
from mview.epoch.engine import LiveView
from mview.epoch.halts import ReadsHaltedError, halting, reads_halted
from mview.errors import MviewError, UserError, concerning
from mview.files.fence import UNFENCED, Fence
from mview.ivm.aggregates.maintained import STATE, VALUE, Maintained
from mview.ivm.compile import Analyze, OtherColumnsError, compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.definition import ViewDefinition
from mview.schema import TableSchema, quoted, type_name
from mview.store.layout import Store
from mview.store.manifest import Manifest


class OpenedViews(NamedTuple):
    """Views that can be worked on, in DAG order, and why others cannot."""

    views: dict[str, LiveView]
    refused: dict[str, MviewError]


def open_views(
    config: Config,
    spark: SparkSession,
    definitions: Sequence[ViewDefinition],
    tables: Mapping[str, TableSchema],
    fence: Fence = UNFENCED,
    refused: Mapping[str, MviewError] | None = None,
    mirrored: Collection[str] | None = None,
) -> OpenedViews:
    """Compile all views. One that cannot be is left out, with those that read it.

    Args:
        spark: analyzes the SQL.
        definitions: in DAG order.
        tables: schemas of the source tables.
        fence: the right to write to their sinks.
        refused: views that are not opened, and why.
        mirrored: views whose rows are kept as a mirror, too; None: those that are read or followed.
    """
    store = Store(config.store)
    register_functions(spark, definitions, folder_of(config))
    schemas = dict(tables)
    if mirrored is None:
        mirrored = {name for definition in definitions for name in definition.table_names}
        mirrored |= {definition.name for definition in definitions if definition.sinks}
    opened = OpenedViews({}, dict(refused or {}))
    for definition in definitions:
        name = definition.name
        if name in opened.refused:
            continue
        try:
            if reads := opened.refused.keys() & set(definition.table_names):
                raise reads_halted(name, min(reads))
            with concerning(f"view {name}"):
                plan, schema = _planned(spark, definition, schemas)
                sink = open_sink(config, store, definition, schema, digest_of(definition), fence)
        except Exception as error:
            opened.refused[name] = halting(error, name, store, spark)
            continue
        schemas[name] = schema
        opened.views[name] = LiveView(definition, plan, schema, sink, name in mirrored)
    return opened


def _planned(
    spark: SparkSession, definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> tuple[ViewPlan, TableSchema]:
    try:
        result = analyze(spark, definition, schemas)
    except SparkRefusesError:
        compile_view(definition, schemas)  # what `check` tells has its place, and refuses the start
        raise
    plan = compile_view(definition, schemas, analyzer(spark))
    if unknown := [name for name in plan.key if name not in result.names]:
        raise UserError(
            f"key column {unknown[0]!r} is not in view {definition.name}",
            where=definition.file,
            allowed=", ".join(result.names),
        )
    return plan, TableSchema(result.columns, plan.key)


def wrong_texts(
    definitions: Sequence[ViewDefinition], refused: Mapping[str, MviewError], manifest: Manifest
) -> list[UserError]:
    """Why new or edited views are refused, as far as `mview check` tells it as well."""
    new = [definition.name for definition in definitions if not _is_kept(definition, manifest)]
    return [
        error
        for error in map(refused.get, new)
        if isinstance(error, UserError)
        and not isinstance(error, SparkRefusesError | ReadsHaltedError)
        and error.__cause__ is None
    ]


def _is_kept(definition: ViewDefinition, manifest: Manifest) -> bool:
    """Whether the store has had content of the view by this text."""
    state = manifest.views.get(definition.name)
    return state is not None and bool(state.sink) and state.definition == digest_of(definition)


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
            shown = plan.maintained.shown_schema(state)
            final = shown and _final_types(spark, plan.maintained, shown, schemas)
            if final != result.types:
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
        analyzed = _loose(analyze(spark, plan.definition, schemas))
    except UserError:
        raise OtherColumnsError from None
    if analyzed != wanted:
        raise OtherColumnsError
    return wanted


def _final_types(
    spark: SparkSession,
    maintained: Maintained,
    shown: pa.Schema,
    schemas: Mapping[str, TableSchema],
) -> list[pa.DataType]:
    """The types of the view's columns as `finalize` makes them."""
    weighted = pa.schema([pa.field(WEIGHT, pa.int32()), *shown])
    frames = {STATE: weighted} | {
        f"{VALUE}{number}": schemas[table].arrow for number, table in enumerate(maintained.values)
    }
    for name, schema in frames.items():
        ddl = ", ".join(f"{quoted(field.name)} {type_name(field.type)}" for field in schema)
        spark.createDataFrame([], ddl).createOrReplaceTempView(name)
    try:
        struct = spark.sql(maintained.finalize).schema
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)
    return list(to_arrow_schema(struct, timezone="UTC").types[1:])


def _loose(schema: TableSchema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema.arrow])


def open_sinks(config: Config, manifest: Manifest, fence: Fence) -> dict[str, Sink]:
    """The sinks of the views of a manifest, as they were when published.

    Those of views whose definition is damaged are left out.
    """
    store, views = Store(config.store), manifest.views
    return {
        name: open_sink(config, store, view, views[name].schema, views[name].definition, fence)
        for name, view in load_definitions(store, manifest).views.items()
    }


def strategy_of(plan: ViewPlan) -> str:
    """The strategy of the whole view: of its top operator that is not linear."""
    if plan.evaluation == "full":
        return "FULL"
    return next((n.strategy for n in plan.nodes if n.strategy != "LINEAR"), "LINEAR")
