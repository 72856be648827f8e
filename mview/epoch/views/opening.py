"""Opening views in DAG order: analyze, compile, find the sink; one view's columns feed the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from mview.catalog.analyze import Analyst, SparkRefusesError
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
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.session.lazy import Spark
from mview.store.layout import Store
from mview.store.manifest import Manifest


class OpenedViews(NamedTuple):
    """Views that can be worked on, in DAG order, and why others cannot."""

    views: dict[str, LiveView]
    refused: dict[str, MviewError]


def open_views(
    config: Config,
    spark: Spark,
    definitions: Sequence[ViewDefinition],
    tables: Mapping[RelationId, TableSchema],
    fence: Fence = UNFENCED,
    refused: Mapping[str, MviewError] | None = None,
    mirrored: Collection[str] | None = None,
) -> OpenedViews:
    """Compile all views. One that cannot be is left out, with those that read it.

    Args:
        spark: analyzes the SQL that it has not analyzed before.
        definitions: in DAG order.
        tables: schemas of the source tables.
        fence: the right to write to their sinks.
        refused: views that are not opened, and why.
        mirrored: views whose rows are kept as a mirror, too; None: those that are read or followed.
    """
    store = Store(config.store)
    folder = folder_of(config)
    spark.once_started(lambda session: register_functions(session, definitions, folder))
    analyst = Analyst(spark, store.analyses if spark.is_ours else None, config)
    schemas = dict(tables)
    are_all = mirrored is None
    if mirrored is None:
        mirrored = {name for definition in definitions for name in definition.read_views}
        mirrored |= {definition.name for definition in definitions if definition.sinks}
    opened = OpenedViews({}, dict(refused or {}))
    for definition in definitions:
        name = definition.name
        if name in opened.refused:
            continue
        try:
            if reads := opened.refused.keys() & set(definition.read_views):
                raise reads_halted(name, min(reads))
            with concerning(f"view {name}"):
                plan, schema = _planned(analyst, definition, schemas)
                sink = open_sink(config, store, definition, schema, digest_of(definition), fence)
        except Exception as error:
            opened.refused[name] = halting(error, name, store, spark)
            continue
        schemas[definition.relation] = schema
        opened.views[name] = LiveView(definition, plan, schema, sink, name in mirrored)
    if are_all:  # else what Spark said of other views would be forgotten, and asked again
        analyst.keep()
    return opened


def _planned(
    analyst: Analyst, definition: ViewDefinition, schemas: Mapping[RelationId, TableSchema]
) -> tuple[ViewPlan, TableSchema]:
    try:
        result = analyst.columns(definition, schemas)
    except SparkRefusesError:
        compile_view(definition, schemas)  # what `check` tells has its place, and refuses the start
        raise
    plan = compile_view(definition, schemas, analyzer(analyst))
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


def analyzer(analyst: Analyst) -> Analyze:
    """What Spark says of the columns of plans.

    A `finalize` that Spark reads with other names or types than the user's text is not used.
    """

    def analyzed(plan: ViewPlan, schemas: Mapping[RelationId, TableSchema]) -> ViewPlan:
        result = _result(analyst, plan, schemas)
        state = None
        if plan.state_definition is not None:
            state = _loose(analyst.columns(plan.state_definition, schemas))
        if plan.maintained is not None and plan.plain is not None:
            assert state is not None
            shown = plan.maintained.shown_schema(state)
            final = shown and _final_types(analyst, plan.maintained, shown, schemas)
            if final != result.types:
                return replace(plan.plain, result=result)
        return replace(plan, result=result, state_result=state)

    return analyzed


def _result(
    analyst: Analyst, plan: ViewPlan, schemas: Mapping[RelationId, TableSchema]
) -> pa.Schema:
    """The columns of a plan's text.

    Raises:
        OtherColumnsError: the text is ours, over parts or clocks, and Spark refuses it or finds
            other columns in it than in the user's own text.
    """
    declared = plan.declared
    if declared is None or declared.sql == plan.definition.sql:
        return _loose(analyst.columns(plan.definition, schemas))
    wanted = _loose(analyst.columns(declared, schemas))
    try:
        analyzed = _loose(analyst.columns(plan.definition, schemas))
    except UserError:
        raise OtherColumnsError from None
    if analyzed != wanted:
        raise OtherColumnsError
    return wanted


def _final_types(
    analyst: Analyst,
    maintained: Maintained,
    shown: pa.Schema,
    schemas: Mapping[RelationId, TableSchema],
) -> list[pa.DataType]:
    """The types of the view's columns as `finalize` makes them."""
    weighted = pa.schema([pa.field(WEIGHT, pa.int32()), *shown])
    reads = {STATE: weighted} | {
        f"{VALUE}{number}": schemas[table].arrow for number, table in enumerate(maintained.values)
    }
    return analyst.types(maintained.finalize, reads)[1:]


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
