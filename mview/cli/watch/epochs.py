"""The newest epochs as points of charts, and what has been counted since the page began."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from mview.epoch.views.cost import runs_of
from mview.errors import MviewError
from mview.store.history import ManifestLog
from mview.store.manifest import Manifest

#: Epochs that charts show.
_SHOWN = 300

#: Epochs that are read at once; the run keeps every one for ten minutes.
_MOST = 3_000


@dataclass(frozen=True)
class ViewPoint:
    """A view in an epoch that changed it.

    Attributes:
        rows: its rows afterwards.
        inserted, updated, deleted: what the epoch did.
        executor: `local` or `spark`.
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


@dataclass
class ViewCount:
    """What epochs did to a view since the page began."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0


class EpochHistory:
    """The newest epochs of a store.

    Each manifest is read once, in the thread that calls `follow`; others see what it has put there.
    """

    def __init__(self, manifests: ManifestLog) -> None:
        self._manifests = manifests
        self._points: deque[EpochPoint] = deque(maxlen=_SHOWN)
        self._read = -1
        self._lock = threading.Lock()
        self._counts: dict[str, ViewCount] = {}
        self._epochs = 0

    def follow(self) -> None:
        """Read what was published since the last time."""
        epochs = [epoch for epoch in self._manifests.epochs() if epoch > self._read]
        first = self._read < 0
        for epoch in epochs[-_SHOWN:] if first else epochs[-_MOST:]:
            # One that is damaged is told by what needs it, one that goes while we look is old.
            with suppress(MviewError):
                self._take(self._manifests.read(epoch), counted=not first)
        if epochs:
            self._read = epochs[-1]
        elif first:
            self._read = 0

    def _take(self, manifest: Manifest, *, counted: bool) -> None:
        point = _point(manifest)
        with self._lock:
            self._points.append(point)
            for view in manifest.views:
                self._counts.setdefault(view, ViewCount())
            if not counted:
                return
            self._epochs += 1
            for view, change in point.views.items():
                count = self._counts[view]
                count.inserted += change.inserted
                count.updated += change.updated
                count.deleted += change.deleted
                count.seconds += change.seconds or 0.0

    @property
    def points(self) -> list[EpochPoint]:
        """The newest epochs, the oldest first."""
        with self._lock:
            return list(self._points)

    def counted(self) -> tuple[int, dict[str, ViewCount]]:
        """Epochs, and what they did to each view, since the page began."""
        with self._lock:
            return self._epochs, {name: ViewCount(**vars(c)) for name, c in self._counts.items()}


def _point(manifest: Manifest) -> EpochPoint:
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
