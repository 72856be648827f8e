"""What is open while a store runs: manifest, mirrors in memory, views with their sinks."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from mview.clock import DAY_MS, Clock, WallMs, steady_clock
from mview.config import Config, secret_values
from mview.connector import Sink
from mview.delta import recent, tiers
from mview.epoch.halts import at_its_sink, halted, halting
from mview.epoch.stages import Stage, run_stages
from mview.errors import FencedError, MviewError
from mview.execute.delta import Delta
from mview.execute.executors import Executors
from mview.execute.numbered import looked_up
from mview.execute.queries import limit_memory
from mview.execute.relations import Relation
from mview.execute.spark.executor import SparkExecutor
from mview.failpoints import failpoint
from mview.ivm.plan import ViewPlan
from mview.memory import Memory
from mview.plan.clocks import INSTANT, is_clock
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.session.lazy import Spark
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, insist
from mview.store.manifest import FIRST_EPOCH, Manifest, TableState, ViewState
from mview.store.mirror import Mirror
from mview.store.quarantine import Quarantine


@dataclass(frozen=True)
class LiveView:
    """A view that is kept: how it was declared, how it is maintained, where it goes."""

    definition: ViewDefinition
    plan: ViewPlan
    schema: TableSchema
    sink: Sink
    #: Another view reads it, or a sink follows it: its rows are kept as a mirror, too.
    is_read: bool

    @property
    def name(self) -> str:
        """The view's name."""
        return self.definition.name

    @property
    def relations(self) -> tuple[RelationId, ...]:
        """All that is kept beside its sink."""
        own = [self.definition.relation] if self.is_read else []
        own += [part.relation for part in self.plan.parts]
        states = [plan.state for plan in (*self.plan.parts, self.plan)]
        return (*own, *(state for state in states if state is not None))


@dataclass(frozen=True)
class Staged:
    """An epoch on its way to be published: all of it is durable.

    Attributes:
        manifest: the manifest-to-be.
        tokens: what sinks have staged, by view.
        halted: views that have halted in it, and why.
    """

    manifest: Manifest
    tokens: Mapping[str, dict[str, Any]]
    halted: Mapping[str, MviewError] = field(default_factory=dict)


S = TypeVar("S", bound=Staged)


def _has_tokens(staged: Staged) -> bool:
    return bool(staged.tokens)


class Listeners(Protocol):
    """Those that follow what is published, beside the epochs."""

    def published(self, manifest: Manifest) -> None:
        """An epoch is published; may not take time."""
        ...

    def floor(self, view: str) -> int:
        """The epoch after which changes of a view are still needed."""
        ...


class Nobody:
    """Nothing follows."""

    def published(self, manifest: Manifest) -> None:
        """Nobody is told."""

    def floor(self, view: str) -> int:
        """No changes are needed."""
        return sys.maxsize


def tick_of(views: Iterable[LiveView], tick_ms: int) -> int:
    """How often the pinned time must move for some views, in milliseconds; 0: never.

    Args:
        tick_ms: what a view of `now()` needs.
    """
    asked = {clock for view in views for clock in view.plan.clocks}
    if INSTANT in asked:
        return tick_ms
    return DAY_MS if asked else 0


class Engine:
    """The open store of one runner.

    Args:
        lease: held by this runner; looked at before every publish.
        mask: hides secrets; None: those of the configuration.
        memory: what it may hold beside another engine of this process; None: it is the only one.
    """

    def __init__(
        self,
        config: Config,
        spark: Spark,
        lease: Lease,
        clock: Clock | None = None,
        mask: Mask | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.config, self.spark, self.lease = config, spark, lease
        self.clock: Clock = clock or steady_clock()
        self.mask = mask or Mask(secret_values(config))
        self.store = Store(config.store)
        self.manifests = ManifestLog(self.store.manifests, lease)
        self.intents = IntentLog(self.store.intents, lease)
        self.manifest = self.manifests.latest() or empty_manifest()
        #: What `now()` is in the epoch that is being made.
        self.pinned_ms = self.manifest.pinned_ms
        self.memory = memory or Memory(config.engine.memory)
        if memory is None:
            recent.POOL.limit, tiers.LARGE.nbytes = self.memory.files, self.memory.file
            limit_memory(self.memory.queries)
        #: What is read beside the epochs: of all that it names nothing is deleted.
        self.reads_beside: Manifest | None = None
        self.relations: dict[RelationId, Relation] = {}
        self.views: dict[str, LiveView] = {}
        #: By table; see `quarantine`.
        self._quarantines: dict[RelationId, Quarantine] = {}
        #: Tables with files of quarantines that are not theirs any more; None: not known yet.
        self.unswept: set[RelationId] | None = None
        #: Views that are not worked on in this run, and why.
        self.refused: dict[str, MviewError] = {}
        self.followers: Listeners = Nobody()
        self.executors = Executors(
            SparkExecutor(spark, self.relations),
            self.relations,
            config.engine.executor,
            self.memory,
            lambda: self.manifest.pinned_ms,
        )

    def quarantine(self, name: RelationId) -> Quarantine:
        """What of a table is in quarantine; it keeps what it has read for the next epoch."""
        if name not in self._quarantines:
            self._quarantines[name] = Quarantine(self.store.quarantined(name))
        return self._quarantines[name]

    def look_up_keys(self) -> dict[RelationId, set[tuple[str, ...]]]:
        """The columns by which views look rows up, by keys or in bands, per relation."""
        keys: dict[RelationId, set[tuple[str, ...]]] = defaultdict(set)
        for view in self.views.values():
            if view.is_read and not view.schema.key and (columns := looked_up(view.schema)):
                keys[view.definition.relation].add(columns)
            for plan in (*view.plan.parts, view.plan):
                for step in (step for trace in plan.traces for step in trace.steps):
                    if step.columns and not is_clock(step.table):
                        keys[step.table].add(step.columns)
        return keys

    def open_relations(self) -> None:
        """Open every mirror the manifest names."""
        for name, relation in [*self.relations.items()]:
            relation.close()
            if name not in self.manifest.tables:
                del self.relations[name]
                self.executors.forget(name)
        for name, state in self.manifest.tables.items():
            self.relations[name] = self._relation(name, state)

    def reopen(self, names: Collection[RelationId]) -> None:
        """Open mirrors that begin anew with the manifest, and close what is gone."""
        for name in {*names, *(self.relations.keys() - self.manifest.tables.keys())}:
            if (kept := self.relations.pop(name, None)) is not None:
                kept.close()
            self.executors.forget(name)
        for name in self.manifest.tables.keys() - self.relations.keys():
            self.relations[name] = self._relation(name, self.manifest.tables[name])

    @property
    def tick_ms(self) -> int:
        """How often the pinned time moves, as the most exact clock of a view needs; 0: never."""
        return tick_of(self.views.values(), self.config.engine.tick)

    def pin(self, now_ms: int) -> None:
        """Set what `now()` is in the next epoch; it never goes back."""
        self.pinned_ms = max(self.manifest.pinned_ms, now_ms)

    def mirror(self, relation: RelationId, schema: TableSchema) -> Mirror:
        """The mirror of a relation: the open one, as a process may have one only."""
        known = self.relations.get(relation)
        if known is not None:
            return known.mirror
        return Mirror(self.store.mirror(relation), schema, fence=self.lease)

    def _relation(self, name: RelationId, state: TableState) -> Relation:
        return Relation(self.mirror(name, state.schema), state, self.memory.tails)

    def most_changes(self) -> int:
        """Changes that an epoch may take: the rows they replace must fit into memory, too.

        A delete of a few bytes may be one of a row of a megabyte. Any thread may ask.
        """
        relations = [*self.relations.items()]
        sources = [relation for name, relation in relations if name.is_table]
        widest = max((relation.row_bytes for relation in sources), default=0)
        return max(1, self.memory.found // max(1, widest))

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

    def commit(self, manifest: Manifest, tokens: Mapping[str, dict[str, Any]]) -> Staged:
        """Publish what is durable; returns it as it was published.

        Raises:
            FencedError: another runner took over.
        """
        staged: Staged = run_stages(self.commit_stages(), Staged(manifest, tokens))
        return staged

    def commit_stages(self) -> tuple[Stage, ...]:
        """Steps 5 to 7 of an epoch: each makes a `Staged` of one."""
        return (
            Stage(self._checked, "intent", behind="after-lease"),
            Stage(self._decided, "intent", behind="after-intent", only=_has_tokens),
            Stage(self._shown, "commit", behind="after-commit"),
            Stage(self._published, "publish", behind="after-publish"),
            Stage(self._cleared, "publish", behind="after-clear"),
            Stage(self._known, "publish"),
        )

    def _checked(self, staged: S) -> S:
        self.lease.check()
        return staged

    def _decided(self, staged: S) -> S:
        self.intents.write(staged.manifest, staged.tokens)
        return staged

    def _shown(self, staged: S) -> S:
        sinks = {name: view.sink for name, view in self.views.items()}
        before, lease = self.manifest.views, self.lease
        shown = commit_sinks(staged, sinks, before, self.store, lease, self.mask)
        if staged.tokens:
            lease.check()
        return shown

    def _published(self, staged: S) -> S:
        self.manifests.publish(staged.manifest)
        return staged

    def _cleared(self, staged: S) -> S:
        if staged.tokens:
            self.intents.clear(staged.manifest.epoch)
        return staged

    def _known(self, staged: S) -> S:
        self.manifest = staged.manifest
        self.followers.published(staged.manifest)
        return staged

    def move(self, deltas: Mapping[RelationId, Delta]) -> None:
        """Step 8: memory follows the published manifest.

        Args:
            deltas: what the epoch has changed, per relation.
        """
        for name, state in self.manifest.tables.items():
            relation = self.relations.get(name)
            if relation is None:
                self.relations[name] = self._relation(name, state)
            else:
                changelog = deltas[name].changelog if name in deltas else None
                relation.move(state, changelog, self.manifest.epoch)
        self.executors.move({name: delta.rows for name, delta in deltas.items()})


def empty_manifest() -> Manifest:
    """What stands before the first epoch."""
    return Manifest(FIRST_EPOCH - 1, 0, WallMs(0), 0, -1)


def _committed(sink: Sink, token: dict[str, Any]) -> dict[str, Any]:
    """What a commit comes to: it may have come through, and be reported as failed."""
    try:
        return sink.commit(token)
    except FencedError:
        raise
    except Exception:
        return sink.commit(token)


def commit_sinks(
    staged: S,
    sinks: Mapping[str, Sink],
    before: Mapping[str, ViewState],
    store: Store,
    lease: Lease,
    mask: Mask,
) -> S:
    """Commit staged epochs and put the sinks' facts into the manifest; idempotent.

    A view whose target refuses halts: the manifest keeps what was said of it at its last good
    epoch, to which the target goes back at the next start, should the commit have come through.

    Args:
        staged: what is decided.
        sinks: of these views.
        before: the views as they are published.
        lease: held by this runner.

    Raises:
        FencedError: another runner took over.
    """
    views = dict(staged.manifest.views)
    halts = dict(staged.halted)
    for name, token in staged.tokens.items():
        failpoint("before-sink")
        try:
            with at_its_sink():
                facts = insist(lease, partial(_committed, sinks[name], token))
        except Exception as error:
            lease.check()
            halts[name] = halting(error, name, store)
            views[name] = halted(before.get(name, views[name]), halts[name], mask)
        else:
            views[name] = replace(views[name], sink=facts)
        failpoint("after-sink")
    return replace(staged, manifest=replace(staged.manifest, views=views), halted=halts)
