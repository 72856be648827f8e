"""What a store says of itself, without writing to it: status, content, verification; and drop."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from mview.admin.content import sink_path
from mview.admin.explore.freshness import cause_of_age
from mview.admin.lights import LightStatus, light_statuses
from mview.admin.mending.environments import EnvironmentStatus, environment_statuses
from mview.admin.mending.quarantine import aside_below, degraded_text
from mview.catalog.definitions import load_definitions
from mview.catalog.environments import as_quarantined
from mview.catalog.followers import table_in_sink
from mview.catalog.tables import connections_of
from mview.clock import SystemClock
from mview.config import Config
from mview.epoch.views.cost import Ran, runs_of
from mview.errors import CorruptionError, UserError
from mview.follow.cursor import CursorLog
from mview.follow.followers import read_problem
from mview.follow.source import ViewSource
from mview.follow.waiting import read_wait
from mview.ingest.load_plan import read_plan
from mview.ingest.mending.rereads import RereadLog
from mview.ingest.pace import held
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.store.away import Away, read_away
from mview.store.failure import Failure, last_failure
from mview.store.history import ManifestLog
from mview.store.identity import refusal
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Cut, Manifest, read_until
from mview.store.requests.asked import asked_views
from mview.store.requests.paused import paused_tables

#: Milliseconds after which a log that always tells the time is silent: a long epoch is not.
_SILENT_MS = 60_000


@dataclass(frozen=True)
class SourceStatus:
    """A connection: where the newest epoch ends in its changelog.

    Attributes:
        name: its name.
        lag_ms: now minus the source time up to which every change was taken; None: unknown.
        whole: whether views show whole transactions; False: they show a part of one; None: the log
            does not tell of transactions.
        silent: whether nothing of it was read for a minute, though it is a database's own log,
            which tells the time when nothing changes, too: the database is away, or the run stands
            still. Others may be silent, and are only called so when they are away.
        away: why a run cannot read it right now; empty: it can, or there is no run.
        away_since_ms: since when.
    """

    name: str
    lag_ms: int | None
    whole: bool | None
    silent: bool = False
    away: str = ""
    away_since_ms: int = 0


@dataclass(frozen=True)
class TableStatus:
    """A table: how far it is loaded.

    Attributes:
        name: its name.
        phase: `loading` or `loaded`; `halted`: no change of it is taken until it is loaded anew;
            `absent`: it is paused, and its load has not begun.
        rows: rows that count: of chunks that are merged with the changes, and of changes.
        chunks_released: chunks that count.
        chunks: all chunks of its load; None: it is loaded, or its plan cannot be read.
        rows_expected: about how many rows its database had when its load began; None: the same.
        held: why no more of it is read now, or why it has halted; empty: nothing holds it.
        load: how its chunks are read, where the configuration says so: `rows_per_second`, `window`,
            `priority`; of its connection `connection_rows_per_second`, `connection_window`,
            `tables_at_once`.
        quarantined: changes of it that are in quarantine.
        refused: why it could not be read anew when that was last asked for, within a day or until
            it is; empty: it was, or nobody has asked.
        next: what to do then.
    """

    name: str
    phase: str
    rows: int
    chunks_released: int
    chunks: int | None = None
    rows_expected: int | None = None
    held: str = ""
    load: Mapping[str, object] = field(default_factory=dict)
    quarantined: int = 0
    refused: str = ""
    next: str = ""


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
        waits_for: who has not answered for ten seconds: `target`; empty: nobody.
        waits_since_ms: since when.
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
    waits_for: str = ""
    waits_since_ms: int = 0


@dataclass(frozen=True)
class ViewStatus:
    """A view: what it holds and how old that is.

    Attributes:
        name: its name.
        strategy: how it is kept.
        rows: its rows.
        path: the folder of its table.
        freshness_ms: what was promised; None: nothing.
        lag_ms: now minus the time up to which the connections that it reads were read; None:
            unknown.
        missed: it is older than promised.
        cause: which stage makes it older than promised; empty: it is not, or it has halted.
        runs: how it was brought up to its newest epochs, the last one first.
        halted: why it has halted; empty: it goes on.
        sink: what its sink said of the newest epoch, e.g. the Delta version that holds it.
        sinks: those that follow it.
        degraded: changes of which tables that it shows are in quarantine; empty: none are.
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
    cause: str = ""
    degraded: str = ""


@dataclass(frozen=True)
class StoreStatus:
    """A store at its newest epoch, and the error that ended the last run, if one did.

    Attributes:
        store: its folder.
        running: who runs it; None: nobody.
        epoch: the newest epoch; 0: nothing was published yet.
        published_ms: when that was published, wall milliseconds; None: nothing was.
        watermark: every change up to this time of the sources is in it; None: unknown.
        tables: the tables.
        views: the views, but those in light mode.
        failure: the error that ended the last run; None: none did, or an epoch came after it.
        lights: the sinks of the views in light mode.
        unbuilt: views that the newest run was asked for, and that are not there yet.
        sources: how far each connection was read.
        environments: the environments beside it.
    """

    store: str
    running: str | None
    epoch: int
    published_ms: int | None
    watermark: int | None
    tables: tuple[TableStatus, ...]
    views: tuple[ViewStatus, ...]
    failure: Failure | None = None
    lights: tuple[LightStatus, ...] = ()
    unbuilt: tuple[str, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    environments: tuple[EnvironmentStatus, ...] = ()


def not_fresh(store: StoreStatus) -> list[str]:
    """Why views or their sinks are not as fresh as they should be, a line each; empty: all are."""
    reasons = []
    if store.failure is not None:
        reasons.append(f"the last run ended by an error: {store.failure.what}")
    by = [view.name for view in store.views if view.freshness_ms is None]
    by += dict.fromkeys(light.view for light in store.lights)  # one for each of its sinks
    if store.running is None and by:
        views = f"{', '.join(by)} promise{'s' if len(by) == 1 else ''}"
        reasons.append(f"nobody runs the store, and {views} no freshness to go by")
    elif by:
        reasons += [
            f"{source.name}: nothing of its log was read for {source.lag_ms // 1000:,} s, and "
            f"{', '.join(by)} promise{'s' if len(by) == 1 else ''} no freshness to go by"
            for source in store.sources
            if source.silent and source.lag_ms is not None
        ]
    reasons += [f"{name}: not built yet" for name in store.unbuilt]
    if not store.views and not store.lights and not store.unbuilt:
        reasons.append("no view was published yet")
    for view in store.views:
        if view.halted:
            reasons.append(f"{view.name}: halted")
        elif view.missed:
            cause = f": {view.cause}" if view.cause else ""
            reasons.append(f"{view.name}: older than promised{cause}")
        if view.degraded:
            reasons.append(f"{view.name}: degraded: {view.degraded}")
        reasons += [f"{view.name}: sink {s.name} does not get on" for s in view.sinks if s.error]
    reasons += [
        f"{light.view}: sink {light.sink} does not get on" for light in store.lights if light.error
    ]
    return reasons


def status(config: Config, *, epochs: int = 0) -> StoreStatus:
    """What the store has.

    Args:
        epochs: the newest epochs of each view that are told; the last one always is.
    """
    store, clock = Store(config.store), SystemClock()
    log = ManifestLog(store.manifests)
    manifest = log.latest()
    lease = Lease(store.lease, clock)
    owner = lease.holder()
    token = None if owner is None else lease.newest()
    running = None if owner is None else f"process {owner.pid} on {owner.host}"
    if manifest is None:
        if error := refusal(config.store):
            raise error
        failure = last_failure(store, 0)
        lights = light_statuses(config, store, clock.now(), token)
        unbuilt = asked_views(store)
        return StoreStatus(
            str(config.store), running, 0, None, None, (), (), failure, lights, unbuilt
        )
    manifest = as_quarantined(config, manifest)
    now = clock.now()
    tables = _tables(config, store, manifest, now)
    views = []
    kept = load_definitions(store, manifest)
    aside = aside_below(kept.views, manifest)
    away = {} if token is None else read_away(store, token)
    for name, state in manifest.views.items():
        definition = kept.views.get(name)
        promised = definition.freshness_ms if definition else None
        cuts = cuts_of(manifest, name, kept.views)
        lag = lag_of(cuts, now)
        missed = promised is not None and (lag is None or lag > promised or state.halted != "")
        path = sink_path(config, store, definition) if definition else ""
        cause = ""
        if missed and promised is not None and not state.halted:
            cause = cause_of_age(manifest, cuts, promised, now, is_running=running is not None)
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
                ()
                if definition is None
                else _sinks(config, store, manifest, definition, now, token),
                cause,
                degraded_text(aside[name]) if name in aside else "",
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
        light_statuses(config, store, now, token),
        tuple(name for name in asked_views(store) if name not in manifest.views),
        _sources(config, manifest.cuts, away, now),
        environment_statuses(store),
    )


def cuts_of(manifest: Manifest, view: str, views: Mapping[str, ViewDefinition]) -> dict[str, Cut]:
    """Where an epoch cuts the logs that a view reads; those of all where that is not known.

    Args:
        manifest: of the epoch.
        view: the view's name.
        views: the definitions that are known, by name.
    """
    return manifest.cuts_of(connections_of(view, views) or manifest.cuts)


def lag_of(cuts: Mapping[str, Cut], now: int) -> int | None:
    """Milliseconds from the time up to which some logs were read to another; None: unknown."""
    until = read_until(cuts.values())
    return None if until is None else max(0, now - until)


def _sources(
    config: Config, cuts: Mapping[str, Cut], away: Mapping[str, Away], now: int
) -> tuple[SourceStatus, ...]:
    """How far each connection was read, and which cannot be read now."""
    told = []
    for name in sorted(cuts.keys() | away.keys()):
        cut, why = cuts.get(name, Cut(None, None)), away.get(name)
        lag = lag_of({name: cut}, now)
        changes = config.changes.get(name)
        own = changes is not None and changes.is_own_log
        silent = own and lag is not None and lag > _SILENT_MS
        silent = silent or (why is not None and now - why.since_ms > _SILENT_MS)
        since = () if why is None else (why.error, why.since_ms)
        told.append(SourceStatus(name, lag, cut.whole, silent, *since))
    return tuple(told)


def _tables(config: Config, store: Store, manifest: Manifest, now: int) -> tuple[TableStatus, ...]:
    paused, known = paused_tables(store), manifest.source_tables
    # A load goes on where its connection is in the configuration still.
    open_ = [n for n, state in known.items() if state.phase == "loading" and not state.halted]
    open_ += sorted(paused - known.keys())
    open_ = [name for name in open_ if name.connection in config.connections]
    why = held(config, open_, paused, now)
    refused = {request.table: halt for request, halt in RereadLog(store.rereads).refused()}
    told = []
    for name in [*known, *(name for name in open_ if name not in known)]:
        state, plan = known.get(name), None
        if state is not None and name in open_ and state.phase == "loading":
            # Its run may begin anew at this moment: then it is not told this time.
            with suppress(CorruptionError):
                plan = read_plan(store.plan(manifest.generation, manifest.token, name)).chunks
        # One that is loaded anew has all rows.
        is_there = state is not None and state.phase == "loaded" and not state.halted
        why_not = refused.get(name) if is_there else None
        told.append(
            TableStatus(
                str(name),
                "absent" if state is None else "halted" if state.halted else state.phase,
                0 if state is None else state.rows,
                0 if state is None else len(state.released),
                None if plan is None else len(plan.chunks),
                None if plan is None else plan.rows,
                why.get(name, "") if state is None or not state.halted else state.halted,
                _load_settings(config, name) if name in open_ else {},
                0 if state is None or state.quarantine is None else state.quarantine.changes,
                *(() if why_not is None else (why_not.text, why_not.hint)),
            )
        )
    return tuple(told)


def _load_settings(config: Config, table: RelationId) -> dict[str, object]:
    """What the configuration says of a load, without what it leaves open."""
    connection = config.connections[table.connection]
    own, shared = connection.table(table.name).load, connection.load
    said = {
        "rows_per_second": own.rows_per_second,
        "window": own.window and str(own.window),
        "priority": own.priority or None,
        "connection_rows_per_second": shared.rows_per_second,
        "connection_window": shared.window and str(shared.window),
        "tables_at_once": shared.tables_at_once,
    }
    return {name: value for name, value in said.items() if value is not None}


def _sinks(
    config: Config,
    store: Store,
    manifest: Manifest,
    definition: ViewDefinition,
    now: int,
    token: int | None,
) -> tuple[SinkStatus, ...]:
    """How far the sinks of a view have followed it."""
    sinks = []
    source = ViewSource(store, definition.name)
    source.move(manifest)
    for sink in definition.sinks:
        folder = store.follower(definition.name, sink)
        cursor, problem = CursorLog(folder).latest(), read_problem(folder)
        wait = read_wait(folder, token)
        anew = cursor.intent
        if anew is not None and anew.way not in ("difference", "fill"):
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
                waits_for=wait.whom if wait else "",
                waits_since_ms=wait.since_ms if wait else 0,
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
