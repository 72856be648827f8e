"""What a store says of itself, without writing to it: status, content, verification; and drop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from mview.clock import SystemClock
from mview.config import Config
from mview.connector import WEIGHT, Sink
from mview.errors import UserError, concerning
from mview.ivm.slices import difference
from mview.plan.definition import ViewDefinition
from mview.plan.place import did_you_mean
from mview.plan.render import bind_tables
from mview.runtime.analyze import relation_name
from mview.runtime.cost import Ran, runs_of
from mview.runtime.definitions import digest_of, load_definition
from mview.runtime.functions import folder_of
from mview.runtime.halts import has_halted
from mview.runtime.names import STATE, VIEW, is_source, reads_of, view_of
from mview.runtime.session import spark_session
from mview.runtime.sinks import open_sink, sink_options
from mview.runtime.spark_functions import function_errors, register_functions
from mview.store.failure import Failure, last_failure
from mview.store.frames import mirror_dataframe
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror

#: Differing rows that `verify` shows of each kind.
_SAMPLE = 5


@dataclass(frozen=True)
class TableStatus:
    """A table: how far it is loaded."""

    name: str
    phase: str
    rows: int
    chunks_released: int


@dataclass(frozen=True)
class ViewStatus:
    """A view: what it holds and how old that is.

    Attributes:
        name: its name.
        strategy: how it is kept.
        rows: its rows.
        path: where its sink is.
        freshness_ms: what was promised; None: nothing.
        lag_ms: now minus the watermark of the newest epoch; None: unknown.
        missed: it is older than promised.
        runs: how it was brought up to its newest epochs, the last one first.
        halted: why it has halted; empty: it goes on.
    """

    name: str
    strategy: str
    rows: int
    path: str
    freshness_ms: int | None
    lag_ms: int | None
    missed: bool
    runs: tuple[Ran, ...] = ()
    halted: str = ""


@dataclass(frozen=True)
class StoreStatus:
    """A store at its newest epoch, and the error that ended the last run, if one did."""

    store: str
    running: str | None
    epoch: int
    published_ms: int | None
    watermark: int | None
    tables: tuple[TableStatus, ...]
    views: tuple[ViewStatus, ...]
    failure: Failure | None = None


@dataclass(frozen=True)
class VerifyResult:
    """A view against its batch query over the same epoch.

    Attributes:
        view: its name.
        epoch: the epoch that was compared.
        rows: rows of the batch result.
        equal: whether the sink holds exactly these.
        missing: rows the sink lacks (a sample).
        extra: rows only the sink has (a sample).
    """

    view: str
    epoch: int
    rows: int
    equal: bool
    missing: tuple[Mapping[str, object], ...]
    extra: tuple[Mapping[str, object], ...]


def published(config: Config) -> Manifest:
    """The newest manifest.

    Raises:
        UserError: nothing was published yet.
    """
    manifest = ManifestLog(Store(config.store).manifests).latest()
    if manifest is None:
        raise UserError(
            "nothing was published yet",
            where=str(config.store),
            hint="run a view first: mview run VIEW.sql",
        )
    return manifest


def status(config: Config, *, epochs: int = 0) -> StoreStatus:
    """What the store has.

    Args:
        config: the configuration.
        epochs: the newest epochs of each view that are told; the last one always is.
    """
    store, clock = Store(config.store), SystemClock()
    log = ManifestLog(store.manifests)
    manifest = log.latest()
    owner = Lease(store.lease, clock).holder()
    running = None if owner is None else f"process {owner.pid} on {owner.host}"
    if manifest is None:
        failure = last_failure(store, 0)
        return StoreStatus(str(config.store), running, 0, None, None, (), (), failure)
    now = clock.now()
    lag = None if manifest.watermark is None else max(0, now - manifest.watermark)
    tables = tuple(
        TableStatus(name, state.phase, state.rows, len(state.released))
        for name, state in manifest.tables.items()
        if is_source(name)
    )
    views = []
    for name, state in manifest.views.items():
        definition = load_definition(store, manifest, name)
        promised = definition.freshness_ms
        missed = promised is not None and (lag is None or lag > promised or state.halted != "")
        path = sink_path(config, store, definition)
        runs = tuple(islice(_runs(log, manifest, name), max(1, epochs)))
        views.append(
            ViewStatus(
                name, state.strategy, state.rows, path, promised, lag, missed, runs, state.halted
            )
        )
    return StoreStatus(
        str(config.store),
        running,
        manifest.epoch,
        manifest.created_ms,
        manifest.watermark,
        tables,
        tuple(views),
        last_failure(store, manifest.epoch),
    )


def _runs(log: ManifestLog, newest: Manifest, view: str) -> Iterator[Ran]:
    """How a view was brought up to the epochs that changed it, back to the oldest that is kept."""
    manifest: Manifest | None = newest
    kept = set(log.epochs())
    while manifest is not None and view in manifest.views:
        ran = runs_of(manifest.views[view]).get(view)
        if ran is None:
            return
        yield ran
        manifest = log.read(ran.epoch - 1) if ran.epoch - 1 in kept else None


def sink_path(config: Config, store: Store, definition: ViewDefinition) -> str:
    """Where a view's sink writes."""
    return str(sink_options(config, store, definition)["path"])


class StoredView:
    """A published view, for reading: the newest epoch, or an older one that is kept."""

    def __init__(self, config: Config, name: str, epoch: int | None = None) -> None:
        self._config, self.name = config, name
        log = ManifestLog(Store(config.store).manifests)
        self._manifest = published(config) if epoch is None else log.read(epoch)
        if name in self._manifest.views and (why := self._manifest.views[name].halted):
            raise has_halted(name, self.epoch, why)
        if name not in self._manifest.views or self._manifest.views[name].stale:
            raise UserError(
                f"there is no view {name!r} at epoch {self._manifest.epoch}",
                where=str(config.store),
                hint=did_you_mean(name, self._manifest.views),
            )

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._manifest.epoch

    def arrow(self) -> pa.Table:
        """The rows."""
        state = self._manifest.views[self.name]
        store = Store(self._config.store)
        definition = load_definition(store, self._manifest, self.name)
        sink = open_sink(self._config, store, definition, state.schema, digest_of(definition))
        return sink.rows(state.sink)

    def as_of(self, epoch: int) -> StoredView:
        """The view at an older epoch."""
        return StoredView(self._config, self.name, epoch)

    def changes(self, since: int) -> pa.Table:
        """What was added (+1) and removed (-1) since an epoch: the columns and WEIGHT."""
        return difference(self.arrow(), self.as_of(since).arrow())


def verify(config: Config, views: Sequence[ViewDefinition]) -> list[VerifyResult]:
    """Recompute views as batch queries over the published epoch and compare with their sinks.

    Raises:
        UserError: a view is not published.
    """
    manifest = published(config)
    spark = spark_session(config)
    return [_verify(config, spark, manifest, view.name) for view in views]


def _verify(config: Config, spark: SparkSession, manifest: Manifest, view: str) -> VerifyResult:
    stored, store = StoredView(config, view, manifest.epoch), Store(config.store)
    # The published definition: a file that was edited since is not what is in the sink.
    definition = load_definition(store, manifest, view)
    names = {name: relation_name(name) for name in definition.table_names}
    for name, relation in reads_of(definition.table_names).items():
        state = manifest.tables[relation]
        mirror = Mirror(store.mirror(relation), state.schema)
        mirror_dataframe(spark, mirror, state).createOrReplaceTempView(names[name])
    have = stored.arrow()
    register_functions(spark, [definition], folder_of(config))
    with concerning(f"view {view}"), function_errors():
        sql = bind_tables(definition, names, manifest.pinned_ms)
    batch = spark.sql(sql).toArrow().cast(have.schema)
    differing = difference(batch, have)
    weights = differing[WEIGHT]
    rows = differing.drop_columns([WEIGHT])
    missing, extra = (rows.filter(mask) for mask in (pc.greater(weights, 0), pc.less(weights, 0)))
    return VerifyResult(
        view,
        manifest.epoch,
        batch.num_rows,
        differing.num_rows == 0,
        tuple(missing.slice(0, _SAMPLE).to_pylist()),
        tuple(extra.slice(0, _SAMPLE).to_pylist()),
    )


def drop(config: Config, names: Sequence[str]) -> None:
    """Remove views with their data, and tables that no view reads any more.

    A table may be named, too: it is loaded again by the next run, and the views that read it are
    built again.

    Raises:
        UserError: no such view or table, or another view reads it.
        AlreadyRunningError: a runner holds the store.
    """
    store, clock = Store(config.store), SystemClock()
    with Lease(store.lease, clock) as lease:
        manifest = published(config)
        for name in names:
            _check_droppable(store, manifest, name, names)
        after = _without(store, manifest, names)
        ManifestLog(store.manifests).publish(
            replace(after, token=lease.token, created_ms=clock.now())
        )
        # Only now: what a manifest names must be there, whatever happens in between.
        for name in set(manifest.views) & set(names):
            _sink_of(config, store, manifest, name).drop()
        for name in set(manifest.tables) - set(after.tables):
            Mirror(store.mirror(name), manifest.tables[name].schema).drop()


def _without(store: Store, manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The next manifest without these views and tables, and what only they need."""
    views = {n: s for n, s in manifest.views.items() if n not in names}
    reads = {name: load_definition(store, manifest, name).table_names for name in views}
    # No delta leads to what reads a table that starts over, only a new build.
    stale = set(names)
    while found := [n for n in views if n not in stale and stale & set(reads[n])]:
        stale.update(found)
    read = {table for tables in reads.values() for table in tables}
    # What was half loaded starts over, too: its merge goes by the old query's checkpoint.
    kept = {
        name: state
        for name, state in manifest.tables.items()
        if (name not in names and (name in read or name.removeprefix(VIEW) in read))
        or (_is_inner(name) and view_of(name) in views)
        if state.phase == "loaded"
    }
    connections = {name.partition(".")[0] for name in kept if is_source(name)}
    return replace(
        manifest,
        epoch=manifest.epoch + 1,
        generation=manifest.generation + 1,
        batch=-1,
        offsets={k: v for k, v in manifest.offsets.items() if k in connections},
        tables=kept,
        views={n: replace(s, stale=s.stale or n in stale) for n, s in views.items()},
        positions={k: v for k, v in manifest.positions.items() if k.rpartition("@")[0] in kept},
        newest={k: v for k, v in manifest.newest.items() if k.rpartition("@")[0] in kept},
    )


def _is_inner(relation: str) -> bool:
    """Whether a relation is a state table, or of a part: nobody but its view reads it."""
    return relation.startswith(STATE) or relation.count(":") > 1


def _check_droppable(store: Store, manifest: Manifest, name: str, names: Sequence[str]) -> None:
    known = [*manifest.views, *(t for t in manifest.tables if is_source(t))]
    if name not in known:
        raise UserError(f"there is no view or table {name!r}", hint=did_you_mean(name, known))
    for view in manifest.views:
        reads = load_definition(store, manifest, view).table_names
        if name in manifest.views and view not in names and name in reads:
            raise UserError(f"view {view} reads {name}", hint=f"mview drop {view} {name}")


def _sink_of(config: Config, store: Store, manifest: Manifest, name: str) -> Sink:
    definition = load_definition(store, manifest, name)
    schema = manifest.views[name].schema
    return open_sink(config, store, definition, schema, digest_of(definition))
