"""The newest epochs as points of charts, and what has been counted since the page began."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from mview.admin.explore.epochs import EpochPoint, point
from mview.errors import MviewError
from mview.store.history import ManifestLog
from mview.store.manifest import Manifest

#: Epochs that charts show.
SHOWN = 300

#: Epochs that are read at once; the run keeps every one for ten minutes.
_MOST = 3_000


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
        self._points: deque[EpochPoint] = deque(maxlen=SHOWN)
        self._read = -1
        self._lock = threading.Lock()
        self._counts: dict[str, ViewCount] = {}
        self._epochs = 0

    def follow(self) -> None:
        """Read what was published since the last time."""
        epochs = [epoch for epoch in self._manifests.epochs() if epoch > self._read]
        first = self._read < 0
        for epoch in epochs[-SHOWN:] if first else epochs[-_MOST:]:
            # One that is damaged is told by what needs it, one that goes while we look is old.
            with suppress(MviewError):
                self._take(self._manifests.read(epoch), counted=not first)
        if epochs:
            self._read = epochs[-1]
        elif first:
            self._read = 0

    def _take(self, manifest: Manifest, *, counted: bool) -> None:
        told = point(manifest)
        with self._lock:
            self._points.append(told)
            for view in manifest.views:
                self._counts.setdefault(view, ViewCount())
            if not counted:
                return
            self._epochs += 1
            for view, change in told.views.items():
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
