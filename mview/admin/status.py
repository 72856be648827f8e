"""What a store says of itself, without writing to it: status, content, verification; and drop."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from mview.admin.content import sink_path
from mview.admin.lights import LightStatus, light_statuses
from mview.catalog.definitions import load_definitions
from mview.catalog.followers import table_in_sink
from mview.clock import SystemClock
from mview.config import Config
from mview.epoch.views.cost import Ran, runs_of
from mview.errors import (
    UserError,
)
from mview.follow.cursor import CursorLog
from mview.follow.followers import read_problem
from mview.follow.source import ViewSource
from mview.plan.definition import ViewDefinition
from mview.store.failure import Failure, last_failure
from mview.store.history import ManifestLog
from mview.store.identity import refusal
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest


@dataclass(frozen=True)
class TableStatus:
    """A table: how far it is loaded."""

    name: str
    phase: str
    rows: int
    chunks_released: int


@dataclass(frozen=True)
class SinkStatus:
    """A sink that follows a view.

    Attributes:
        name: the sink's name in the configuration.
        table: the table that it writes.
        epoch: the view's epoch that is there; None: it was not filled yet.
        waiting: epochs with changes that are not there yet: 0: none; -1: some, not counted.
        waiting_bytes: what waits for it in the store.
        lag_ms: now minus its last commit, where something waits; 0: nothing does.
        committed_ms: wall time of its last commit; 0: none.
        error: why it does not get on; empty: it does.
        error_since_ms: since when.
        anew: what brings it right, where changes are not enough: `difference`, it is compared with
            the view; `fill`, it gets all rows; empty: nothing of that kind was begun.
        anew_since_ms: since when.
    """

    name: str
    table: str
    epoch: int | None
    waiting: int
    waiting_bytes: int
    lag_ms: int
    committed_ms: int
    error: str = ""
    error_since_ms: int = 0
    anew: str = ""
    anew_since_ms: int = 0


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
        sink: what its sink said of the newest epoch, e.g. the Delta version that holds it.
        sinks: those that follow it.
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
    sink: Mapping[str, object] = field(default_factory=dict)
    sinks: tuple[SinkStatus, ...] = ()


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
    lights: tuple[LightStatus, ...] = ()


def status(config: Config, *, epochs: int = 0) -> StoreStatus:
    """What the store has.

    Args:
        epochs: the newest epochs of each view that are told; the last one always is.
    """
    store, clock = Store(config.store), SystemClock()
    log = ManifestLog(store.manifests)
    manifest = log.latest()
    owner = Lease(store.lease, clock).holder()
    running = None if owner is None else f"process {owner.pid} on {owner.host}"
    if manifest is None:
        if error := refusal(config.store):
            raise error
        failure = last_failure(store, 0)
        lights = light_statuses(config, store, clock.now())
        return StoreStatus(str(config.store), running, 0, None, None, (), (), failure, lights)
    now = clock.now()
    lag = None if manifest.watermark is None else max(0, now - manifest.watermark)
    tables = tuple(
        TableStatus(name, state.phase, state.rows, len(state.released))
        for name, state in manifest.source_tables.items()
    )
    views = []
    kept = load_definitions(store, manifest)
    for name, state in manifest.views.items():
        definition = kept.views.get(name)
        promised = definition.freshness_ms if definition else None
        missed = promised is not None and (lag is None or lag > promised or state.halted != "")
        path = sink_path(config, store, definition) if definition else ""
        halted = str(kept.damaged[name].render()) if name in kept.damaged else state.halted
        runs = tuple(islice(_runs(log, manifest, name), max(1, epochs)))
        views.append(
            ViewStatus(
                name,
                state.strategy,
                state.rows,
                path,
                promised,
                lag,
                missed,
                runs,
                halted,
                state.sink,
                () if definition is None else _sinks(config, store, manifest, definition, now),
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
        light_statuses(config, store, now),
    )


def _sinks(
    config: Config, store: Store, manifest: Manifest, definition: ViewDefinition, now: int
) -> tuple[SinkStatus, ...]:
    """How far the sinks of a view have followed it."""
    sinks = []
    source = ViewSource(store, definition.name)
    source.move(manifest)
    for sink in definition.sinks:
        folder = store.follower(definition.name, sink)
        cursor, problem = CursorLog(folder).latest(), read_problem(folder)
        anew = cursor.intent
        if anew is not None and anew.way == "changes":
            anew = None
        waiting = size = 0
        if source.schema is not None:
            if cursor.epoch is None or cursor.epoch < source.begins():
                waiting = -1
            elif cursor.epoch < source.newest():
                waiting = source.waiting_epochs(cursor.epoch)
                size = source.waiting_bytes(cursor.epoch)
        sinks.append(
            SinkStatus(
                name=sink,
                table=table_in_sink(config, definition, sink),
                epoch=cursor.epoch,
                waiting=waiting,
                waiting_bytes=size,
                lag_ms=max(0, now - cursor.committed_ms) if waiting and cursor.committed_ms else 0,
                committed_ms=cursor.committed_ms,
                error=problem.text if problem else "",
                error_since_ms=problem.since_ms if problem else 0,
                anew=anew.way if anew else "",
                anew_since_ms=anew.began_ms if anew else 0,
            )
        )
    return tuple(sinks)


def _runs(log: ManifestLog, newest: Manifest, view: str) -> Iterator[Ran]:
    """How a view was brought up to the epochs that changed it, as far as these are kept."""
    manifest: Manifest | None = newest
    kept = log.epochs()
    while manifest is not None and view in manifest.views:
        ran = runs_of(manifest.views[view]).get(view)
        if ran is None:
            return
        yield ran
        older = bisect_left(kept, ran.epoch)
        try:
            manifest = log.read(kept[older - 1]) if older else None
        except UserError:
            return  # a runner prunes beside us
