"""One epoch: from a micro-batch to a published manifest, as a list of stages in commit order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from mview.clock import END_OF_TIME, SourceMs
from mview.connector import Offsets
from mview.epoch.engine import Engine, Staged
from mview.epoch.quarantine import sweep
from mview.epoch.report import EpochReport, ViewChange
from mview.epoch.stages import WRITERS, Begun, Stage, run_stages
from mview.epoch.tables import Changed, net, write_mirrors
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.maintain import MaintainedViews, maintain, settle
from mview.execute.delta import Delta
from mview.ingest.batches import Batch
from mview.relation import RelationId
from mview.store.manifest import Cut

#: Bytes of a batch after which memory is given back: a millisecond, for very many rows 0.1 s.
_LARGE_BATCH = 8 << 20


@dataclass(frozen=True, kw_only=True)
class StagedEpoch(Staged):
    """A `Staged` that a batch has brought.

    Attributes:
        changed: what the batch changes.
        deltas: what has changed in the relations of views.
        changes: for the report, by view.
    """

    changed: Changed
    deltas: Mapping[RelationId, Delta]
    changes: Mapping[str, ViewChange]


def stages_of(
    engine: Engine, upkeep: Upkeep, chunks: Mapping[RelationId, int], begun: Begun
) -> tuple[Stage, ...]:
    """The stages of an epoch. A crash up to `stage` rolls back, after the intent rolls forward.

    1. changes per key by position, and the rows that they replace
    2. mirrors get them, and released chunks: invisible until the manifest names the versions. Many
       changes are still being written while
    3. each view's change, in DAG order; that of a view that others read is one of a table for them
    4. every sink, and every state table, has made its change durable; nothing is shown
    5. the manifest-to-be and the sinks' tokens: from here on the epoch will be published
    6. sinks show their changes
    7. the manifest, put-if-absent: only now the epoch exists
    8. memory follows what is published
    """
    return (
        Stage(partial(net, engine, upkeep), "net", behind="after-net"),
        Stage(partial(write_mirrors, engine, chunks, begun), "mirrors", behind="after-mirrors"),
        Stage(partial(maintain, engine, upkeep.damaged, begun), "views", behind="after-views"),
        Stage(
            lambda value: stage(engine, settle(engine, begun, value)), "stage", behind="after-stage"
        ),
        *engine.commit_stages(),
        Stage(partial(move, engine, upkeep), "memory"),
    )


def run_epoch(
    engine: Engine, upkeep: Upkeep, batch: Batch, chunks: Mapping[RelationId, int]
) -> EpochReport:
    """Run and publish one epoch.

    Args:
        upkeep: its finished compactions are published along.
        batch: what came.
        chunks: number of chunks of each table that is being loaded.

    Raises:
        MviewError: the epoch failed and is not visible; the next start rolls it back or forward.
    """
    began = time.monotonic()
    took: Counter[str] = Counter()

    def note(stage: str, seconds: float) -> None:
        took[stage] += round(seconds * 1_000_000)

    with Begun() as begun:
        stages = stages_of(engine, upkeep, chunks, begun)
        staged: StagedEpoch = run_stages(stages, batch, note)
    netted = staged.changed.netted.values()
    # Of what was taken only: changes that are sent again are old, and no lag.
    newest = max((ms for table in netted for ms in table.newest.values()), default=None)
    return EpochReport(
        epoch=staged.manifest.epoch,
        duration_ms=int((time.monotonic() - began) * 1000),
        lag_ms=None if newest is None else max(0, engine.clock.now() - newest),
        changes={str(name): delta.changed for name, delta in staged.changed.deltas.items()},
        views={
            name: change for name, change in staged.changes.items() if name not in staged.halted
        },
        watermark=staged.manifest.watermark,
        dropped=sum(table.duplicates for table in netted),
        halted=staged.halted,
        tables=staged.changed.halts,
        stages={name: micros / 1000 for name, micros in took.items()},
        quarantine=tuple(text for said in staged.changed.quarantine.values() for text in said),
    )


def stage(engine: Engine, settled: MaintainedViews) -> StagedEpoch:
    """Put together what is to be published, views that have halted left out.

    Raises:
        MviewError: all views have halted: the epoch fails.
    """
    changed, outcomes = settled.changed, settled.outcomes
    states = engine.manifest.views | {name: view.state for name, view in outcomes.items()}
    halted = {name: view.error for name, view in outcomes.items() if view.error is not None}
    # That a table has halted is published in any case: it can be loaded anew then.
    if halted and not changed.halts and all(state.stale for state in states.values()):
        raise next(iter(halted.values()))
    kept = {name: view for name, view in outcomes.items() if view.error is None}
    tables = {name: state for view in kept.values() for name, state in view.moved.tables.items()}
    watermark = engine.manifest.watermark
    # The end of a bounded log is not a time: the next run must not believe that all is read.
    if 0 <= changed.batch.offsets.watermark < END_OF_TIME:
        watermark = SourceMs(max(changed.batch.offsets.watermark, watermark or 0))
    offsets = engine.manifest.offsets | changed.batch.offsets.connections
    manifest = engine.next_manifest(
        generation=changed.batch.generation,
        batch=changed.batch.number,
        offsets=offsets,
        cuts=_cuts(engine.manifest.cuts, changed.batch.offsets.cuts, offsets),
        positions=changed.positions,
        newest=changed.newest,
        watermark=watermark,
        tables={**changed.tables, **tables},
        views=states,
    )
    return StagedEpoch(
        manifest=manifest,
        tokens={name: view.token for name, view in kept.items() if view.token is not None},
        halted=halted,
        changed=changed,
        deltas={name: d for view in kept.values() for name, d in view.moved.deltas.items()},
        changes={name: view.change for name, view in kept.items() if view.change is not None},
    )


def _cuts(
    before: Mapping[str, Cut], reached: Mapping[str, Cut], offsets: Mapping[str, Offsets]
) -> dict[str, Cut]:
    """The cuts of all connections; where a log tells no time, that of the epoch before holds."""
    cuts = {name: before[name] for name in offsets if name in before}
    for name, cut in reached.items():
        # The end of a bounded log is not a time.
        told = replace(cut, until=None) if cut.until == END_OF_TIME else cut
        cuts[name] = told.after(cuts.get(name))
    return cuts


def move(engine: Engine, upkeep: Upkeep, staged: StagedEpoch) -> StagedEpoch:
    """Have memory follow what is published, and begin what keeps the store small."""
    engine.move({**staged.changed.deltas, **staged.deltas})
    sweep(engine, staged.changed.quarantine)
    upkeep.after_epoch()
    batches = staged.changed.batch.changes.values()
    if sum(part.get_total_buffer_size() for parts in batches for part in parts) >= _LARGE_BATCH:
        # The allocator keeps what it had for the largest epoch; small ones would never need it.
        # Nobody waits: it goes through all that is free.
        WRITERS.submit(pa.default_memory_pool().release_unused)
    return staged
