"""What is open while a store runs: manifest, mirrors in memory, views with their sinks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from mview.clock import DAY_MS, Clock, SystemClock, WallMs
from mview.config import Config
from mview.connector import Sink
from mview.execute.executors import Executors
from mview.execute.relations import Relation
from mview.execute.spark import SparkExecutor
from mview.ivm.plan import ViewPlan
from mview.ivm.steps import Band, Whole
from mview.plan.clocks import INSTANT
from mview.plan.definition import ViewDefinition
from mview.runtime.failpoints import failpoint
from mview.runtime.names import VIEW, reads_of, state_of
from mview.schema import TableSchema
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import FIRST_EPOCH, Manifest, ViewState
from mview.store.mirror import Mirror


@dataclass(frozen=True)
class LiveView:
    """A view that is kept: how it was declared, how it is maintained, where it goes."""

    definition: ViewDefinition
    plan: ViewPlan
    schema: TableSchema
    sink: Sink
    #: Another view reads it: its rows are kept as a mirror, too.
    is_read: bool

    @property
    def name(self) -> str:
        """The view's name."""
        return self.definition.name

    @property
    def reads(self) -> dict[str, str]:
        """The relation of each table, view or part that it reads."""
        return reads_of(self.plan.tables)

    @property
    def state(self) -> str | None:
        """The relation of its state table, if it has one."""
        return state_of(self.plan)

    @property
    def relations(self) -> tuple[str, ...]:
        """All that is kept beside its sink."""
        own = [VIEW + self.name] if self.is_read else []
        own += [VIEW + part.name for part in self.plan.parts]
        states = [state_of(plan) for plan in (*self.plan.parts, self.plan)]
        return (*own, *(state for state in states if state is not None))


def tick_of(views: Iterable[LiveView], tick_ms: int) -> int:
    """How often the pinned time must move for some views, in milliseconds; 0: never.

    Args:
        views: the views.
        tick_ms: what a view of `now()` needs.
    """
    asked = {clock for view in views for clock in view.plan.clocks}
    if INSTANT in asked:
        return tick_ms
    return DAY_MS if asked else 0


class Engine:
    """The open store of one runner.

    Args:
        config: the configuration.
        spark: the session.
        lease: held by this runner; looked at before every publish.
        clock: wall time.
    """

    def __init__(
        self, config: Config, spark: SparkSession, lease: Lease, clock: Clock | None = None
    ) -> None:
        self.config, self.spark, self.lease = config, spark, lease
        self.clock: Clock = clock or SystemClock()
        self.store = Store(config.store)
        self.manifests = ManifestLog(self.store.manifests)
        self.intent = IntentLog(self.store.intent)
        self.manifest = self.manifests.latest() or empty_manifest()
        #: What `now()` is in the epoch that is being made.
        self.pinned_ms = self.manifest.pinned_ms
        self.relations: dict[str, Relation] = {}
        self.views: dict[str, LiveView] = {}
        self.executors = Executors(
            SparkExecutor(spark, self.relations),
            self.relations,
            config.engine.executor,
            config.engine.memory,
            lambda: self.manifest.pinned_ms,
        )

    def look_up_keys(self) -> dict[str, set[tuple[str, ...]]]:
        """The columns by which views look rows up, by keys or in bands, per relation."""
        found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for view in self.views.values():
            for plan in (*view.plan.parts, view.plan):
                reads = reads_of(plan.tables)
                for step in (step for trace in plan.traces for step in trace.steps):
                    if not isinstance(step, Whole) and step.table in reads:
                        columns = (step.column,) if isinstance(step, Band) else step.columns
                        found[reads[step.table]].add(columns)
        return found

    def open_relations(self) -> None:
        """Open every mirror the manifest names."""
        for name in [*self.relations]:
            if name not in self.manifest.tables:
                del self.relations[name]
        for name, state in self.manifest.tables.items():
            self.relations[name] = Relation(self.mirror(name, state.schema), state)

    @property
    def tick_ms(self) -> int:
        """How often the pinned time moves, as the most exact clock of a view needs; 0: never."""
        return tick_of(self.views.values(), self.config.engine.tick)

    def pin(self, now_ms: int) -> None:
        """Set what `now()` is in the next epoch; it never goes back."""
        self.pinned_ms = max(self.manifest.pinned_ms, now_ms)

    def mirror(self, relation: str, schema: TableSchema) -> Mirror:
        """The mirror of a relation: the open one, as a process may have one only."""
        known = self.relations.get(relation)
        return known.mirror if known else Mirror(self.store.mirror(relation), schema)

    def next_manifest(self, **changes: Any) -> Manifest:
        """The manifest after the current one, with what changed."""
        return replace(
            self.manifest,
            epoch=self.manifest.epoch + 1,
            token=self.lease.token,
            created_ms=self.clock.now(),
            pinned_ms=self.pinned_ms,
            **changes,
        )

    def commit(self, manifest: Manifest, tokens: Mapping[str, dict[str, Any]]) -> Manifest:
        """Steps 5 to 7 of an epoch: intent, sinks, manifest. Returns what was published.

        Raises:
            FencedError: another runner took over.
        """
        self.lease.check()
        if tokens:
            self.intent.write(manifest, tokens)
            failpoint("after-intent")
            manifest = commit_sinks(
                manifest, tokens, {name: view.sink for name, view in self.views.items()}
            )
            self.lease.check()
        failpoint("after-commit")
        self.manifests.publish(manifest)
        failpoint("after-publish")
        if tokens:
            self.intent.clear()
        self.manifest = manifest
        return manifest

    def move(self, deltas: Mapping[str, pa.Table]) -> None:
        """Step 8: memory follows the published manifest.

        Args:
            deltas: changelog rows of this epoch per relation.
        """
        for name, state in self.manifest.tables.items():
            relation = self.relations.get(name)
            if relation is None:
                self.relations[name] = Relation(self.mirror(name, state.schema), state)
            else:
                relation.move(state, deltas.get(name), self.manifest.epoch)
        self.executors.move(deltas)


def empty_manifest() -> Manifest:
    """What stands before the first epoch."""
    return Manifest(FIRST_EPOCH - 1, 0, WallMs(0), 0, -1)


def commit_sinks(
    manifest: Manifest, tokens: Mapping[str, dict[str, Any]], sinks: Mapping[str, Sink]
) -> Manifest:
    """Commit staged epochs and put the sinks' facts into the manifest; idempotent."""
    views: dict[str, ViewState] = dict(manifest.views)
    for name, token in tokens.items():
        views[name] = replace(views[name], sink=sinks[name].commit(token))
        failpoint("after-sink")
    return replace(manifest, views=views)
