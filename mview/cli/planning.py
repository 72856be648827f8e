"""What a run of view files would do, before it does it: `mview plan`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Literal

from mview.catalog.definitions import (
    is_another,
    kept_otherwise,
    load_definition,
    load_definitions,
    load_former,
    taken_up,
)
from mview.catalog.functions import declared_functions, with_functions
from mview.catalog.tables import lacking, of_now, source_tables
from mview.cli.checking import Checked
from mview.cli.costs import plan_cost
from mview.config import Config
from mview.epoch.views.fate import Becomes, Fate, fates
from mview.epoch.without import without
from mview.errors import CorruptionError, UserError
from mview.ivm.plan import ViewPlan
from mview.plan.definition import order_views
from mview.relation import RelationId
from mview.run.tables import halted_tables
from mview.schema import TableSchema
from mview.store.layout import Store
from mview.store.manifest import NEVER, Manifest, ViewState, schemas_of

#: What becomes of it; or a run would refuse it.
ViewFate = Becomes | Literal["refused"]


@dataclass(frozen=True)
class PlannedView:
    """What becomes of a view.

    Attributes:
        view: its name.
        fate: what happens.
        why: the reason; empty for those that go on.
        diff: lines of the query that go (`-`) and come (`+`), where it changed.
        takes: what else of it has changed, and counts without a build: `freshness`, `policy`,
            `comment`, `sinks`.
        breaking: what its readers lose: columns that go, another key.
        strategy: how it will be kept; empty: only Spark can tell.
        strategy_before: how it is kept now; empty: it is not.
        rows: rows of the tables that are read to build it; None: some are not loaded yet.
        seconds: what that takes, as measured when it was last done; None: not measured.
        rollback: the query that `mview rollback` goes back to, once this is done; empty: none.
    """

    view: str
    fate: ViewFate
    why: str = ""
    diff: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    breaking: tuple[str, ...] = ()
    strategy: str = ""
    strategy_before: str = ""
    rows: int | None = None
    seconds: float | None = None
    rollback: str = ""


@dataclass(frozen=True)
class Planned:
    """What a run would do.

    Attributes:
        views: the given views, and those of the store that are built anew with them, in the order
            in which they are built.
        load: tables that are to be loaded.
        anew: those of them that are loaded already, and why they are loaded once more.
        not_given: views of the store that the files do not have; they go on until they are dropped.
        environment: whose views these are; empty: production's.
        shared: tables of production that an environment takes as they are.
    """

    views: tuple[PlannedView, ...]
    load: tuple[str, ...]
    anew: dict[str, str]
    not_given: tuple[str, ...]
    environment: str = ""
    shared: tuple[str, ...] = ()

    def without(self, gone: Collection[str]) -> Planned:
        """The same, where these views go: they are not built, and do not go on."""
        return replace(
            self,
            views=tuple(view for view in self.views if view.view not in gone),
            not_given=tuple(name for name in self.not_given if name not in gone),
        )

    @property
    def rebuilds(self) -> bool:
        """Whether a view that is there is built anew."""
        return any(view.fate in ("changed", "rebuilt") for view in self.views)

    @property
    def refuses(self) -> bool:
        """Whether a run would refuse a view."""
        return any(view.fate == "refused" for view in self.views)


def plan_run(
    config: Config,
    checked: Sequence[Checked],
    manifest: Manifest | None,
    now: Mapping[RelationId, TableSchema],
) -> Planned:
    """What a run of views that were checked would do.

    Args:
        checked: the given views, in DAG order.
        manifest: the newest one; None: the store is empty.
        now: of tables that the views read, the columns that they have by now.
    """
    store = Store(config.store)
    others = kept_otherwise(store, [view.definition for view in checked], manifest)
    checked = [replace(v, error=others.get(v.definition.name, v.error)) for v in checked]
    full = {
        view.definition.name: view
        for view in checked
        if view.definition.mode == "full" or view.definition.name in others
    }
    kept = {} if manifest is None else load_definitions(store, manifest, full).views
    sound = [view.definition for view in full.values() if view.error is None]
    unchanged = with_functions([*kept.values()], declared_functions(config))
    views = order_views([*unchanged, *sound])
    published, anew = manifest, dict[RelationId, str]()
    if manifest is not None and not config.environment:
        schemas = schemas_of(manifest.source_tables)
        new = [view for view in views if is_another(view, manifest)]
        by_now = {
            n: of_now(schemas[n], now[n]) for n in source_tables(new) if n in now and n in schemas
        }
        lacks = lacking(config, new, by_now) | lacking(config, views, schemas)
        if anew := lacks | halted_tables(views, manifest):
            names = [*map(str, anew)]
            manifest = without(load_definitions(store, manifest), manifest, names)
    read = {name for view in views for name in view.read_views}
    # Parts and states apart: only Spark can tell which a view has that is not given.
    beside = {v.name: [v.relation] if v.name in read or v.sinks else [] for v in views}
    told = fates(views, beside, store, manifest, _keys(full, manifest))
    planned = [_refused(view, manifest) for view in full.values() if view.error is not None]
    planned += [
        replace(
            _edited(
                _planned(full.get(name), name, fate, manifest), store, published, full.get(name)
            ),
            rollback="" if config.environment else _former(store, published, name, fate),
        )
        for name, fate in told.items()
        if name in full or fate.why
    ]
    tables = {} if manifest is None else manifest.source_tables
    loaded = {name for name, state in tables.items() if state.phase == "loaded"}
    missing = tuple(str(name) for name in source_tables(views) if name not in loaded)
    return Planned(
        tuple(planned),
        () if config.environment else missing,
        {str(name): why for name, why in anew.items()},
        tuple(sorted(kept)),
        config.environment,
        missing if config.environment else (),
    )


def _keys(
    given: Mapping[str, Checked], manifest: Manifest | None
) -> dict[RelationId, Sequence[str]]:
    """What tells the rows of given views apart, as far as a run would find it now.

    Not where only Spark knows the columns, and not of a view over a table that has another key by
    now: a run goes by the one that the table was loaded with.
    """
    keys: dict[RelationId, Sequence[str]] = {}
    if manifest is None:
        return keys
    for name, view in given.items():
        state, plan = manifest.views.get(name), view.plan if view.error is None else None
        if state is None or plan is None or plan.columns != state.schema.names:
            continue
        tables = manifest.source_tables.keys() & plan.schemas.keys()
        if all(manifest.tables[t].schema.key == plan.schemas[t].key for t in tables):
            keys |= plan.keys
    return keys


def _refused(view: Checked, manifest: Manifest | None) -> PlannedView:
    assert view.error is not None
    name = view.definition.name
    before = _strategy(name, manifest)
    return PlannedView(name, "refused", view.error.what, strategy_before=before)


def _planned(view: Checked | None, name: str, fate: Fate, manifest: Manifest | None) -> PlannedView:
    """A view that the run keeps.

    Args:
        view: None: it is in the store and not given.
    """
    plan, before = None if view is None else view.plan, _strategy(name, manifest)
    strategy = before if view is None else "" if plan is None else plan.strategy
    breaking: tuple[str, ...] = ()
    if fate.becomes == "changed" and plan is not None and manifest is not None:
        breaking = _breaking(plan, manifest.views[name])
    cost = None if plan is None or not fate.why else plan_cost(plan, manifest)
    return PlannedView(
        name,
        *fate,
        breaking=breaking,
        strategy=strategy,
        strategy_before=before,
        rows=None if cost is None else cost.full_rows,
        seconds=None if cost is None else cost.full_seconds,
    )


def _edited(
    planned: PlannedView, store: Store, published: Manifest | None, view: Checked | None
) -> PlannedView:
    """A view that is published and given, with what of its text is another one."""
    if published is None or view is None or planned.view not in published.views:
        return planned
    with suppress(CorruptionError):  # damaged: the reason says so, or the run writes it again
        before, now = load_definition(store, published, planned.view), view.definition
        lines = unified_diff(before.sql.splitlines(), now.sql.splitlines(), n=0, lineterm="")
        diff = tuple(line for line in [*lines][2:] if not line.startswith("@@"))
        return replace(planned, diff=diff, takes=tuple(taken_up(before, now)))
    return planned


def _former(store: Store, published: Manifest | None, name: str, fate: Fate) -> str:
    """The query that `mview rollback` goes back to, once the plan is done; empty: none."""
    state = None if published is None else published.views.get(name)
    if published is None or state is None:
        return ""
    with suppress(CorruptionError, UserError):  # damaged; never changed
        if fate.becomes == "changed" and state.built_epoch != NEVER:
            return load_definition(store, published, name).sql
        return load_former(store, published, name, once_built=True).sql
    return ""


def _strategy(name: str, manifest: Manifest | None) -> str:
    state = None if manifest is None else manifest.views.get(name)
    return "" if state is None else state.strategy


def _breaking(plan: ViewPlan, state: ViewState) -> tuple[str, ...]:
    """What those lose who read the view's table; types are told by Spark only."""
    breaks = []
    if plan.columns and (gone := [n for n in state.schema.names if n not in plan.columns]):
        breaks.append(f"columns that go: {', '.join(gone)}")
    if plan.columns and tuple(plan.key) != tuple(state.key):
        key = ", ".join(state.key) or "none"
        breaks.append(f"key: {key} before, {', '.join(plan.key) or 'none'} then")
    return tuple(breaks)
