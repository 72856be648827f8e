"""Metrics in the text format of Prometheus; names and units by its conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from mview.admin.status import StoreStatus
from mview.cli.watch.epochs import EpochHistory
from mview.cli.watch.told import RunHeard

#: What the answer is sent as.
KIND = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """What one name stands for."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str


#: A value with its labels.
Measured = tuple[Mapping[str, str], float]

INFO = Metric("mview_info", "gauge", "1; the version is a label.")
READABLE = Metric("mview_store_readable", "gauge", "Whether the store can be read.")
RUNNING = Metric("mview_running", "gauge", "Whether a runner holds the store.")
FAILED = Metric("mview_failed", "gauge", "Whether the last run ended by an error.")
READY = Metric("mview_ready", "gauge", "Whether all views are live and fresh, as /readyz says.")
EPOCH = Metric("mview_epoch", "gauge", "Number of the newest epoch.")
PUBLISHED = Metric(
    "mview_published_timestamp_seconds", "gauge", "When the newest epoch was published."
)
WATERMARK = Metric(
    "mview_watermark_timestamp_seconds", "gauge", "Up to when the sources are read, by their clock."
)
TABLE_ROWS = Metric("mview_table_rows", "gauge", "Rows of a table.")
TABLE_LOADED = Metric("mview_table_loaded", "gauge", "Whether a table is loaded.")
TABLE_CHUNKS = Metric("mview_table_released_chunks", "gauge", "Chunks of a table that count.")
TABLE_ALL_CHUNKS = Metric(
    "mview_table_chunks", "gauge", "All chunks of a table that is being loaded."
)
TABLE_EXPECTED = Metric(
    "mview_table_expected_rows", "gauge", "About how many rows a table has that is being loaded."
)
TABLE_HELD = Metric("mview_table_held", "gauge", "Whether the load of a table is held up.")
TABLE_QUARANTINED = Metric(
    "mview_table_quarantined_changes", "gauge", "Changes of a table that are in quarantine."
)
SOURCE_LAG = Metric(
    "mview_source_lag_seconds", "gauge", "Now minus the time up to which a connection is read."
)
SOURCE_AWAY = Metric(
    "mview_source_away", "gauge", "Whether the run cannot read a connection right now."
)
VIEW_INFO = Metric("mview_view_info", "gauge", "1; how a view is kept is a label.")
VIEW_ROWS = Metric("mview_view_rows", "gauge", "Rows of a view.")
VIEW_BUILT = Metric("mview_view_built", "gauge", "Whether a view that was asked for is there.")
VIEW_LAG = Metric(
    "mview_view_lag_seconds", "gauge", "Now minus the time up to which what a view reads is read."
)
VIEW_PROMISE = Metric(
    "mview_view_freshness_seconds", "gauge", "How old a view may be, by its freshness."
)
VIEW_MISSED = Metric("mview_view_missed", "gauge", "Whether a view is older than it promised.")
VIEW_HALTED = Metric("mview_view_halted", "gauge", "Whether a view has halted.")
VIEW_DEGRADED = Metric(
    "mview_view_degraded", "gauge", "Whether changes of tables of a view are in quarantine."
)
SINK_WAITING = Metric(
    "mview_sink_waiting_epochs", "gauge", "Epochs that a sink has not got; -1: not counted."
)
SINK_BYTES = Metric("mview_sink_waiting_bytes", "gauge", "What waits in the store for a sink.")
SINK_LAG = Metric(
    "mview_sink_lag_seconds", "gauge", "Since when a sink for which something waits got nothing."
)
SINK_FAILING = Metric("mview_sink_failing", "gauge", "Whether a sink does not get on.")
LIGHT_LIVE = Metric("mview_light_live", "gauge", "Whether a sink of a light view is loaded.")
LIGHT_ROWS = Metric("mview_light_rows_total", "counter", "Rows and keys brought to its sink.")
LIGHT_LAG = Metric("mview_light_lag_seconds", "gauge", "How old a light view is in its sink.")
EPOCHS = Metric("mview_epochs_total", "counter", "Epochs that this page has seen published.")
VIEW_CHANGES = Metric(
    "mview_view_changed_rows_total", "counter", "Rows that epochs changed in a view, by kind."
)
VIEW_SECONDS = Metric(
    "mview_view_maintain_seconds_total", "counter", "Time that working out its changes took."
)
RUN_EPOCHS = Metric("mview_run_epochs_total", "counter", "Epochs of the run beside this page.")
RUN_SECONDS = Metric("mview_run_epoch_seconds_total", "counter", "Time that they took.")
RUN_STAGES = Metric("mview_run_stage_seconds_total", "counter", "Time that they took, by stage.")
RUN_CHANGES = Metric("mview_run_changed_rows_total", "counter", "Changed rows taken, by table.")
RUN_DROPPED = Metric(
    "mview_run_dropped_changes_total", "counter", "Changes that were sent again, and dropped."
)

#: All there are.
METRICS = tuple(value for value in globals().values() if isinstance(value, Metric))


def metrics_text(
    store: StoreStatus | None,
    ready: bool,
    epochs: EpochHistory,
    told: RunHeard | None,
    mask: Callable[[str], str],
) -> str:
    """All metrics.

    Args:
        store: None: it cannot be read.
        ready: see `READY`.
        epochs: what was published.
        told: what the run beside the page says; None: there is none.
        mask: hides secrets in labels.
    """
    samples: list[tuple[Metric, Iterable[Measured]]] = [
        (INFO, [({"version": version("mview-engine")}, 1)]),
        (READABLE, [({}, store is not None)]),
        (READY, [({}, ready)]),
    ]
    if store is not None:
        samples += _of_store(store)
    count, views = epochs.counted()
    kinds = ("inserted", "updated", "deleted")
    samples += [
        (EPOCHS, [({}, count)]),
        (
            VIEW_CHANGES,
            [
                ({"view": name, "kind": kind}, getattr(changes, kind))
                for name, changes in views.items()
                for kind in kinds
            ],
        ),
        (VIEW_SECONDS, [({"view": name}, changes.seconds) for name, changes in views.items()]),
    ]
    if told is not None:
        samples += _of_run(told)
    return "".join(line for metric, values in samples for line in _lines(metric, values, mask))


def _of_store(store: StoreStatus) -> list[tuple[Metric, Iterable[Measured]]]:
    tables = [({"table": table.name}, table) for table in store.tables]
    views = [({"view": view.name}, view) for view in store.views]
    sinks = [
        ({"view": view.name, "sink": sink.name}, sink)
        for view in store.views
        for sink in view.sinks
    ]
    lights = [({"view": light.view, "sink": light.sink}, light) for light in store.lights]
    return [
        (RUNNING, [({}, store.running is not None)]),
        (FAILED, [({}, store.failure is not None)]),
        (EPOCH, [({}, store.epoch)]),
        (PUBLISHED, [] if store.published_ms is None else [({}, store.published_ms / 1000)]),
        (WATERMARK, [] if store.watermark is None else [({}, store.watermark / 1000)]),
        (TABLE_ROWS, [(labels, table.rows) for labels, table in tables]),
        (TABLE_LOADED, [(labels, table.phase == "loaded") for labels, table in tables]),
        (TABLE_CHUNKS, [(labels, table.chunks_released) for labels, table in tables]),
        (TABLE_ALL_CHUNKS, [(labels, t.chunks) for labels, t in tables if t.chunks is not None]),
        (
            TABLE_EXPECTED,
            [(labels, t.rows_expected) for labels, t in tables if t.rows_expected is not None],
        ),
        (TABLE_HELD, [(labels, table.held != "") for labels, table in tables]),
        (TABLE_QUARANTINED, [(labels, table.quarantined) for labels, table in tables]),
        (
            SOURCE_LAG,
            [
                ({"connection": source.name}, source.lag_ms / 1000)
                for source in store.sources
                if source.lag_ms is not None
            ],
        ),
        (
            SOURCE_AWAY,
            [({"connection": source.name}, source.away != "") for source in store.sources],
        ),
        (VIEW_INFO, [({**labels, "strategy": view.strategy}, 1) for labels, view in views]),
        (VIEW_ROWS, [(labels, view.rows) for labels, view in views]),
        (
            VIEW_BUILT,
            [
                *((labels, 1) for labels, _ in views),
                *(({"view": name}, 0) for name in store.unbuilt),
            ],
        ),
        (VIEW_LAG, [(labels, v.lag_ms / 1000) for labels, v in views if v.lag_ms is not None]),
        (
            VIEW_PROMISE,
            [(labels, v.freshness_ms / 1000) for labels, v in views if v.freshness_ms is not None],
        ),
        (VIEW_MISSED, [(labels, view.missed) for labels, view in views]),
        (VIEW_HALTED, [(labels, view.halted != "") for labels, view in views]),
        (VIEW_DEGRADED, [(labels, view.degraded != "") for labels, view in views]),
        (SINK_WAITING, [(labels, sink.waiting) for labels, sink in sinks]),
        (SINK_BYTES, [(labels, sink.waiting_bytes) for labels, sink in sinks]),
        (SINK_LAG, [(labels, sink.lag_ms / 1000) for labels, sink in sinks]),
        (
            SINK_FAILING,
            [
                *((labels, sink.error != "") for labels, sink in sinks),
                *((labels, light.error != "") for labels, light in lights),
            ],
        ),
        (LIGHT_LIVE, [(labels, light.phase == "live") for labels, light in lights]),
        (LIGHT_ROWS, [(labels, light.rows) for labels, light in lights]),
        (LIGHT_LAG, [(labels, v.lag_ms / 1000) for labels, v in lights if v.lag_ms is not None]),
    ]


def _of_run(told: RunHeard) -> list[tuple[Metric, Iterable[Measured]]]:
    return [
        (RUN_EPOCHS, [({}, told.count)]),
        (RUN_SECONDS, [({}, told.took_ms / 1000)]),
        (RUN_STAGES, [({"stage": name}, ms / 1000) for name, ms in told.stages.items()]),
        (RUN_CHANGES, [({"table": name}, rows) for name, rows in told.changes.items()]),
        (RUN_DROPPED, [({}, told.dropped)]),
    ]


def _lines(
    metric: Metric, samples: Iterable[Measured], mask: Callable[[str], str]
) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
    for labels, value in samples:
        told = ",".join(f'{name}="{_escaped(mask(text))}"' for name, text in labels.items())
        yield (
            f"{metric.name}{{{told}}} {float(value)!r}\n"
            if told
            else (f"{metric.name} {float(value)!r}\n")
        )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
