"""How late views are now, and were when their changes were published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mview.admin.explore.epochs import newest_first, point
from mview.admin.status import SinkStatus, SourceStatus, cuts_of, lag_of, status
from mview.catalog.definitions import load_definitions
from mview.clock import SystemClock
from mview.config import Config
from mview.plan.definition import ViewDefinition
from mview.store.layout import Store


@dataclass(frozen=True)
class ViewLag:
    """How late a view is.

    Attributes:
        view: its name.
        lag_ms: now minus the time up to which every change is in it; None: unknown.
        freshness_ms: what it promised; None: nothing.
        cause: why it is older than promised; empty: it is not.
        epochs: epochs of the time that is asked for that changed it and whose lag is known.
        median_ms: half of these had no larger lag when they were published; None: there were none.
        most_ms: 95 % of these had no larger one; None: there were none.
        worst_ms: none of these had a larger one; None: there were none.
        changed: rows that epochs of that time inserted, updated and deleted, builds among them.
        sinks: those that follow it.
    """

    view: str
    lag_ms: int | None
    freshness_ms: int | None
    cause: str
    epochs: int
    median_ms: int | None
    most_ms: int | None
    worst_ms: int | None
    changed: int
    sinks: tuple[SinkStatus, ...]


@dataclass(frozen=True)
class Lag:
    """How late a store is.

    Attributes:
        running: who runs it; None: nobody.
        over_ms: for how long back epochs are counted.
        sources: how far each connection is read.
        views: the views.
    """

    running: str | None
    over_ms: int
    sources: tuple[SourceStatus, ...]
    views: tuple[ViewLag, ...]


def lag(config: Config, over_ms: int) -> Lag:
    """How late the views of a store are.

    Args:
        over_ms: so far back epochs are counted, as far as they are kept.
    """
    store = status(config)
    lags: dict[str, list[int]] = {}
    changed: Counter[str] = Counter()
    begin = SystemClock().now() - over_ms
    known: Mapping[str, ViewDefinition] | None = None
    for manifest in newest_first(config):
        if manifest.created_ms < begin:
            break
        if known is None:
            known = load_definitions(Store(config.store), manifest).views
        for name, change in point(manifest).views.items():
            changed[name] += change.inserted + change.updated + change.deleted
            late = lag_of(cuts_of(manifest, name, known), manifest.created_ms)
            # A build takes rows of all ages.
            if late is not None and change.seconds is not None:
                lags.setdefault(name, []).append(late)
    views = []
    for view in store.views:
        seen = sorted(lags.get(view.name, ()))
        views.append(
            ViewLag(
                view.name,
                view.lag_ms,
                view.freshness_ms,
                view.cause,
                len(seen),
                _share(seen, 50),
                _share(seen, 95),
                seen[-1] if seen else None,
                changed[view.name],
                view.sinks,
            )
        )
    return Lag(store.running, over_ms, store.sources, tuple(views))


def _share(ascending: Sequence[int], percent: int) -> int | None:
    """The value that so many percent do not exceed."""
    if not ascending:
        return None
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]
