"""Published epochs: when, how late, and what each did to the views."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mview.admin.content import check_views, published
from mview.admin.explore.took import KeptTook
from mview.clock import MOMENT_EXAMPLES, SystemClock, moment_of
from mview.config import Config
from mview.epoch.views.cost import runs_of
from mview.errors import UserError
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest


@dataclass(frozen=True)
class ViewPoint:
    """A view in an epoch that changed it.

    Attributes:
        rows: its rows afterwards.
        inserted, updated, deleted: what the epoch did.
        executor: where it was worked out: `local`, in process, or `spark`.
        seconds: that it took to work the change out; None: it was built.
    """

    rows: int
    inserted: int
    updated: int
    deleted: int
    executor: str
    seconds: float | None


@dataclass(frozen=True)
class EpochPoint:
    """A published epoch.

    Attributes:
        epoch: its number.
        published_ms: wall time.
        lag_ms: that minus its watermark; None: unknown.
        views: those that it changed.
    """

    epoch: int
    published_ms: int
    lag_ms: int | None
    views: Mapping[str, ViewPoint] = field(default_factory=dict)


@dataclass(frozen=True)
class PastEpoch(EpochPoint):
    """A published epoch, and what it took.

    Attributes:
        epoch: its number.
        published_ms: wall time.
        lag_ms: that minus its watermark; None: unknown.
        views: those that it changed.
        took_ms: from the batch's arrival to the manifest; None: it is not known, or no batch has
            brought the epoch.
        stages: milliseconds of each stage; none: the same.
        changes: rows changed per table; none: the same.
    """

    took_ms: int | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)


def point(manifest: Manifest) -> EpochPoint:
    """What a manifest tells of its epoch."""
    views = {}
    for name, state in manifest.views.items():
        # A state stays as it was until an epoch changes the view.
        if state.facts.get("epoch") != manifest.epoch:
            continue
        ran = runs_of(state).get(name)
        followed = ran is not None and ran.epoch == manifest.epoch
        views[name] = ViewPoint(
            state.rows,
            state.inserted,
            state.updated,
            state.deleted,
            str(state.facts.get("executor", "")),
            ran.seconds if ran is not None and followed else None,
        )
    lag = None
    if manifest.watermark is not None:
        lag = max(0, manifest.created_ms - manifest.watermark)
    return EpochPoint(manifest.epoch, manifest.created_ms, lag, views)


def newest_first(config: Config) -> Iterator[Manifest]:
    """The epochs that are kept."""
    log = ManifestLog(Store(config.store).manifests)
    for epoch in reversed(log.epochs()):
        try:
            yield log.read(epoch)
        except UserError:
            return  # a runner prunes beside us


def history(
    config: Config,
    views: Collection[str],
    since: str | None,
    until: str | None,
    most: int,
    *,
    quiet_too: bool,
) -> list[PastEpoch]:
    """Epochs that were published in a time, the oldest first.

    Args:
        views: whose changes are told; none: of all.
        since, until: times, as `moment_of` reads them; both belong to it. None: no bound.
        most: the newest so many of them.
        quiet_too: also epochs that changed none of the views.

    Raises:
        UserError: nothing was published yet, there is no such view, or a time is none.
    """
    check_views(config, published(config), views)
    begin, end = (_milliseconds(text) for text in (since, until))
    points: list[EpochPoint] = []
    for each in map(point, newest_first(config)):
        if begin is not None and each.published_ms < begin:
            break
        if end is not None and each.published_ms > end:
            continue
        if views:
            told = {name: change for name, change in each.views.items() if name in views}
            each = replace(each, views=told)
        if each.views or quiet_too:
            points.append(each)
        if len(points) == most:
            break
    kept = KeptTook(Store(config.store))
    return [with_took(each, kept) for each in points[::-1]]


def with_took(epoch: EpochPoint, kept: KeptTook) -> PastEpoch:
    """An epoch and what it took, where that is kept."""
    known = (epoch.epoch, epoch.published_ms, epoch.lag_ms, epoch.views)
    took = kept.of(epoch.epoch, epoch.published_ms)
    if took is None:
        return PastEpoch(*known)
    return PastEpoch(*known, took.took_ms, took.stages, took.changes)


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    if (ms := moment_of(text, SystemClock().now())) is None:
        raise UserError(f"{text!r} is no time", allowed=f"e.g. {MOMENT_EXAMPLES}")
    return ms
