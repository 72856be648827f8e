"""Views in light mode: how far they are, whether their tables are right, and their end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mview.catalog.definitions import KeptLight, load_lights
from mview.catalog.followers import open_follower, table_in_sink
from mview.clock import SystemClock
from mview.config import Config
from mview.errors import UserError
from mview.follow.cursor import CursorLog, check_not_back
from mview.follow.followers import read_problem
from mview.follow.light.progress import ProgressLog
from mview.follow.light.readers import end_left_readers, left_by_view
from mview.follow.waiting import read_wait
from mview.ingest.chunks import rows_within
from mview.ingest.log_readers import note_left
from mview.ingest.spec import chunk_bytes, open_database
from mview.session.disks import disks_told
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, fenced

if TYPE_CHECKING:
    from mview.follow.light.view import LightView


@dataclass(frozen=True)
class LightStatus:
    """A sink of a view in light mode.

    Attributes:
        view: the view's name.
        sink: the sink's name in the configuration.
        table: the table that it writes.
        phase: `new`; `loading`: the table is filled in part; `live`: it is the view at a cut of its
            table.
        chunks: chunks of the table that are there.
        chunks_in_all: of so many.
        rows: rows and keys that were brought since the load began.
        lag_ms: now minus the watermark of what is there; None: unknown.
        committed_ms: wall time of the last commit; 0: none.
        error: why it does not get on; empty: it does.
        error_since_ms: since when.
        waits_for: who has not answered for ten seconds: `target`, or `source`: the table's database
            or its log; empty: nobody.
        waits_since_ms: since when.
    """

    view: str
    sink: str
    table: str
    phase: str
    chunks: int = 0
    chunks_in_all: int = 0
    rows: int = 0
    lag_ms: int | None = None
    committed_ms: int = 0
    error: str = ""
    error_since_ms: int = 0
    waits_for: str = ""
    waits_since_ms: int = 0


def light_statuses(
    config: Config, store: Store, now: int, token: int | None
) -> tuple[LightStatus, ...]:
    """All sinks of views in light mode.

    Args:
        token: of the run that goes on; None: none does.
    """
    return tuple(
        replace(_status(config, store, kept, sink, now), **_waits(store, kept, sink, token))
        for kept in load_lights(store).values()
        for sink in kept.definition.sinks
    )


def _waits(store: Store, kept: KeptLight, sink: str, token: int | None) -> dict[str, Any]:
    wait = read_wait(store.follower(kept.definition.name, sink, light=True), token)
    return {} if wait is None else {"waits_for": wait.whom, "waits_since_ms": wait.since_ms}


def _status(config: Config, store: Store, kept: KeptLight, sink: str, now: int) -> LightStatus:
    view = kept.definition.name
    folder = store.follower(view, sink, light=True)
    problem, cursor, log = read_problem(folder), CursorLog(folder).latest(), ProgressLog(folder)
    error = (problem.text, problem.since_ms) if problem else ("", 0)
    table = table_in_sink(config, kept.definition, sink)
    at = None if cursor.epoch is None else log.steps().get(cursor.epoch)
    if at is None:
        return LightStatus(view, sink, table, "new", error=error[0], error_since_ms=error[1])
    return LightStatus(
        view=view,
        sink=sink,
        table=table,
        phase="live" if at.loaded else "loading",
        chunks=at.chunks,
        chunks_in_all=len(log.load(at).plan.chunks.chunks),
        rows=at.rows,
        lag_ms=None if at.watermark < 0 else max(0, now - at.watermark),
        committed_ms=cursor.committed_ms,
        error=error[0],
        error_since_ms=error[1],
    )


@dataclass(frozen=True)
class LightSides:
    """What is compared: the query over the table as it is now, and the table in the sink.

    Attributes:
        epoch: the step at which the sink's table stands.
        schema: the columns of both.
        query: the one.
        sink: the other.
    """

    epoch: int
    schema: pa.Schema
    query: Iterator[pa.Table]
    sink: Iterator[pa.Table]


@contextmanager
def sides(config: Config, kept: KeptLight, sink: str) -> Iterator[LightSides]:
    """Both sides of a sink, open in the block.

    Raises:
        UserError: it is not loaded.
    """
    store, view = Store(config.store), opened(kept)
    follower, target = open_follower(config, store, view.definition, sink, view.schema)
    try:
        status = _status(config, store, kept, sink, 0)
        # First: what is noted was committed before.
        noted = CursorLog(store.follower(view.name, sink, light=True)).latest().epoch
        mark = follower.position()
        check_not_back(view.name, sink, mark, noted)
        if status.phase != "live" or mark is None:
            raise UserError(
                f"sink {sink} of view {view.name} is not loaded yet",
                hint="`mview status` shows how far it is",
            )
        schema = pa.schema([column.with_nullable(True) for column in target.schema.arrow])
        there = (pa.Table.from_batches([batch]) for batch in follower.read())
        yield LightSides(mark.epoch, schema, _query(config, view), there)
    finally:
        follower.close()


def opened(kept: KeptLight) -> LightView:
    """A view as the store has it."""
    # Here: `mview status` needs no engine.
    from mview.follow.light.view import open_light

    return open_light(kept.definition, dict.fromkeys(kept.definition.table_names, kept.source))


def _query(config: Config, view: LightView) -> Iterator[pa.Table]:
    table = view.table
    database = open_database(config, table.connection)
    try:
        engine = config.engine
        size = chunk_bytes(engine)
        plan = database.plan(table.name, view.source, engine.chunk_rows, size)
        for chunk in plan.chunks:
            read = database.read(table.name, view.source, plan, chunk)
            for batch in rows_within(read, view.source):
                yield view.shown(pa.Table.from_batches([batch]))
    finally:
        database.close()


def drop_lights(config: Config, names: Sequence[str]) -> list[str]:
    """Forget views in light mode; their tables in sinks stay.

    Returns:
        What is left at servers.

    Raises:
        AlreadyRunningError: a runner holds the store.
    """
    store = Store(config.store)
    manifest = ManifestLog(store.manifests).latest()
    above = 0 if manifest is None else manifest.token
    kept = {} if manifest is None else manifest.offsets
    with (
        disks_told(lambda: [store.root]),
        Lease(store.lease, SystemClock(), above=above) as lease,
        fenced(lease),
    ):
        lights, unknown = load_lights(store), []
        for name in names:
            left, told = left_by_view(config, lights[name].definition, kept)
            unknown += told
            note_left(store, left, lease)
            shutil.rmtree(store.light(name))
        return [*unknown, *end_left_readers(config, store, kept)]
