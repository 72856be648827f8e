"""Views against their batch query over the same cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from mview.admin.content import StoredView, of_kept_epochs, published
from mview.admin.lights import sides
from mview.admin.mending.quarantine import aside_below, degraded_text
from mview.catalog.analyze import temporary_views
from mview.catalog.definitions import load_definition, load_definitions, load_lights
from mview.catalog.environments import as_quarantined
from mview.catalog.followers import open_follower
from mview.catalog.functions import folder_of, is_declared
from mview.catalog.spark_functions import function_errors, register_functions
from mview.config import Config, secret_values
from mview.connector import WEIGHT
from mview.epoch.halts import halting, has_halted, in_a_batch, told_of
from mview.epoch.views.results import is_small, result_parts
from mview.errors import (
    AGAIN,
    MviewError,
    RetryableError,
    UserError,
    concerning,
    known_error,
    typed,
)
from mview.execute.pieces import differences
from mview.follow.cursor import CursorLog, check_not_back
from mview.ivm.rewrites.total_order import in_total_order
from mview.memory import Memory
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.session.jvm import jvm_errors
from mview.session.lazy import Spark
from mview.session.spark import spark_session
from mview.session.texts import query
from mview.store.frames import mirror_dataframe
from mview.store.layout import Store
from mview.store.manifest import Manifest, schemas_of
from mview.store.mirror import Mirror

#: Differing rows that `verify` shows of each kind.
_SAMPLE = 5

#: Looks at a sink that a run writes meanwhile: its mark and its rows are not read as one.
_TRIES = 10

#: What sinks hold that do not hold the view's rows, by mode.
_INCOMPARABLE = {
    "changelog": "it holds changes, not the rows of the view",
    "append": "it holds all rows that ever came",
}


@dataclass(frozen=True)
class VerifyResult:
    """A view against its batch query over the same epoch.

    Attributes:
        view: its name.
        epoch: the epoch that was compared.
        rows: rows of the batch result.
        equal: whether the table holds exactly these.
        missing: rows that the table lacks (a sample).
        extra: rows that only the table has (a sample).
        error: why it cannot be compared: the view has halted, or its batch query fails; empty: it
            was compared.
        sink: what follows the view and was compared with it; empty: this is the view itself.
        degraded: changes of which tables of the view are in quarantine: what was compared lacks
            them on both sides. Empty: none are.
        incomparable: why a sink has nothing that a view could be compared with; empty: it has.
    """

    view: str
    epoch: int
    rows: int
    equal: bool
    missing: tuple[Mapping[str, object], ...]
    extra: tuple[Mapping[str, object], ...]
    error: str = ""
    sink: str = ""
    degraded: str = ""
    incomparable: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it is as its sources say, as far as that can be seen."""
        return (self.equal or bool(self.incomparable)) and not self.degraded


def verify(config: Config, views: Sequence[ViewDefinition]) -> list[VerifyResult]:
    """Recompute views as batch queries over the published epoch and compare with their sinks.

    Raises:
        UserError: a view is not published.
    """
    lights = [view.name for view in views if view.mode == "light"]
    views = [view for view in views if view.mode == "full"]
    checked = [result for name in lights for result in _light(config, name)]
    if not views:
        return checked
    manifest = published(config)
    readable = [
        StoredView(config, v.name, manifest) for v in views if not _halted(manifest, v.name)
    ]
    compared = {}
    if readable:
        with jvm_errors():
            spark = spark_session(config)
            compared = {
                stored.name: _verified(config, spark, manifest, stored) for stored in readable
            }
    results = []
    for view in views:
        results.append(compared.get(view.name) or _not_compared(manifest, view.name))
        if view.name in compared:
            results += _followers_of(config, manifest, view.name)
    definitions = load_definitions(Store(config.store), manifest).views
    aside = aside_below(definitions, as_quarantined(config, manifest))
    results = [
        replace(result, degraded=degraded_text(aside[result.view]))
        if result.view in aside
        else result
        for result in results
    ]
    return [*results, *checked]


def _light(config: Config, view: str) -> list[VerifyResult]:
    """The sinks of a view in light mode against the query over its table as it is now."""
    kept = load_lights(Store(config.store)).get(view)
    if kept is None:
        raise UserError(f"light view {view} was not run yet", hint=f"mview run {typed(view)}.sql")
    from mview.execute.queries import limit_memory

    memory = Memory(config.engine.memory)
    limit_memory(memory.queries)
    results = []
    for sink in kept.definition.sinks:
        try:
            with sides(config, kept, sink) as both:
                held = _held(view, both.epoch, both.schema, both.query, both.sink, memory.whole)
                results.append(replace(held, sink=sink))
        except Exception as error:
            results.append(_not_read(config, view, sink, error))
    return results


def _not_read(config: Config, view: str, sink: str, error: Exception) -> VerifyResult:
    known = known_error(error)
    told = str(Mask(secret_values(config))(known.render()))
    return VerifyResult(view, 0, 0, False, (), (), told, sink)


def _followers_of(config: Config, manifest: Manifest, view: str) -> list[VerifyResult]:
    """The sinks that follow a view against what the view was at their epoch."""
    store = Store(config.store)
    definition = load_definition(store, manifest, view)
    results = []
    for sink in definition.sinks:
        try:
            results.append(_follower(config, store, manifest, definition, sink))
        except Exception as error:
            failed = _not_read(config, view, sink, error)
            results.append(replace(failed, epoch=manifest.epoch))
    return results


def _follower(
    config: Config, store: Store, manifest: Manifest, definition: ViewDefinition, sink: str
) -> VerifyResult:
    """A sink against its view; a run may write there meanwhile."""
    view, state = definition.name, manifest.views[definition.name]
    follower, target = open_follower(config, store, definition, sink, state.schema)
    most = Memory(config.engine.memory).whole

    def position() -> int | None:
        # First: what is noted was committed before.
        noted = CursorLog(store.follower(view, sink)).latest().epoch
        mark = follower.position() if follower.capabilities.marks else None
        check_not_back(view, sink, mark, noted)
        return mark.epoch if mark else noted

    try:
        if target.settings.mode != "upsert" or not follower.capabilities.reads:
            why = _INCOMPARABLE.get(target.settings.mode, "what it holds cannot be read back")
            known = position() or 0
            return VerifyResult(view, known, 0, False, (), (), sink=sink, incomparable=why)
        epoch = position()
        for _ in range(_TRIES):
            if epoch is None:
                raise UserError(f"sink {sink} of view {view} is not filled yet")
            # The run has gone on since the views were read, and the sink with it.
            now = manifest if epoch <= manifest.epoch else published(config)
            is_now = view in now.views and epoch >= int(now.views[view].facts.get("epoch", 0))
            stored = StoredView(config, view, now if is_now else epoch)
            there = (pa.Table.from_batches([batch]) for batch in follower.read())
            held = replace(_held_against(stored, stored.parts(), most, there), sink=sink)
            before, epoch = epoch, position()
            if held.equal or epoch == before:
                return replace(held, epoch=before)
    finally:
        follower.close()
    raise RetryableError(
        f"sink {sink} of view {view} was written each time it was read",
        got=f"{_TRIES} times",
        safe="nothing is changed; nothing is known to differ",
        hint="run the same command again when fewer changes come, or while no run goes on",
    )


def _halted(manifest: Manifest, view: str) -> str:
    return manifest.views[view].halted if view in manifest.views else ""


def _not_compared(manifest: Manifest, view: str, error: MviewError | None = None) -> VerifyResult:
    told = error or has_halted(view, manifest.epoch, _halted(manifest, view))
    return VerifyResult(view, manifest.epoch, 0, False, (), (), str(told.render()))


def _verified(
    config: Config, spark: SparkSession, manifest: Manifest, stored: StoredView
) -> VerifyResult:
    try:
        with of_kept_epochs(config, manifest.epoch):
            return _compared(config, spark, manifest, stored)
    except Exception as error:
        halting(error, stored.name, Store(config.store), Spark.of(spark))  # or it is of all views
        told = told_of(
            error,
            f"view {stored.name}",
            safe="nothing is changed; its sink has the rows of the published epoch",
            hint="correct the row or the query: a batch query fails on it, too",
            then=AGAIN,
        )
        return _not_compared(manifest, stored.name, told)


def _compared(
    config: Config, spark: SparkSession, manifest: Manifest, stored: StoredView
) -> VerifyResult:
    store = Store(config.store)
    # The published definition: a file that was edited since is not what is in the sink.
    definition = load_definition(store, manifest, stored.name)
    frames, read = {}, []
    for name in definition.table_names:
        state = manifest.tables[name]
        mirror = Mirror(store.mirror(name), state.schema)
        read.append((mirror, state))
        frames[name] = mirror_dataframe(spark, mirror, state)
    if not is_declared(config, definition):
        raise UserError(
            f"view {stored.name} was built with functions"
            " that the configuration does not declare so",
            where=str(config.path),
            got=", ".join(f"{function.name}: {function.python}" for function in definition.called),
            hint="declare them as they were, or run the view again: it is built anew",
        )
    register_functions(spark, [definition], folder_of(config))
    # Here: `mview status` needs no engine.
    from mview.execute.queries import limit_memory

    memory = Memory(config.engine.memory)
    limit_memory(memory.queries)
    most = memory.whole
    small = is_small(read, most)
    with (
        concerning(f"view {stored.name}"),
        in_a_batch(stored.name),
        function_errors(),
        temporary_views(spark, frames) as names,
    ):
        total = in_total_order(definition, _schemas(manifest))
        frame = query(spark, bind_tables(total, names, manifest.pinned_ms))
        batch = result_parts(frame, stored.schema, store.comparison(stored.name), small)
        return _held_against(stored, batch, most)


def _schemas(manifest: Manifest) -> dict[RelationId, TableSchema]:
    """The tables and views of a manifest as queries see them."""
    return schemas_of(manifest.tables) | {
        RelationId("view", name): view.schema for name, view in manifest.views.items()
    }


def _held_against(
    stored: StoredView,
    batch: Iterator[pa.Table],
    most: int,
    there: Iterator[pa.Table] | None = None,
) -> VerifyResult:
    """A view, or what follows it, against its batch; about `most` bytes are held at the most."""
    held = stored.parts() if there is None else there
    return _held(stored.name, stored.epoch, stored.schema, batch, held, most)


def _held(
    view: str,
    epoch: int,
    schema: pa.Schema,
    batch: Iterator[pa.Table],
    held: Iterator[pa.Table],
    most: int,
) -> VerifyResult:
    rows = 0

    def counted() -> Iterator[pa.Table]:
        nonlocal rows
        for part in batch:
            rows += part.num_rows
            yield part

    missing: list[Mapping[str, object]] = []
    extra: list[Mapping[str, object]] = []
    # Which of equal values min, say, shows is chance: 0.0 or -0.0.
    for piece in differences(counted(), held, schema, most, signs=False):
        weights, content = piece[WEIGHT], piece.drop_columns([WEIGHT])
        for sample, is_one in ((missing, pc.greater(weights, 0)), (extra, pc.less(weights, 0))):
            sample += content.filter(is_one).slice(0, _SAMPLE - len(sample)).to_pylist()
    equal = not missing and not extra
    return VerifyResult(view, epoch, rows, equal, tuple(missing), tuple(extra))
