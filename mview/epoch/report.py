"""What a run tells its listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mview.errors import MviewError


@dataclass(frozen=True)
class ViewChange:
    """What one epoch did to one view.

    Attributes:
        inserted: keys that appeared.
        updated: keys whose row changed.
        deleted: keys that went away.
        rows: rows of the view after the epoch.
        strategy: the strategy of the view's top node.
        executor: `spark` or `local`.
        chosen: why the view was computed as a whole though it is incremental; empty: it was not.
    """

    inserted: int
    updated: int
    deleted: int
    rows: int
    strategy: str
    executor: str
    chosen: str = ""


@dataclass(frozen=True)
class EpochReport:
    """One published epoch.

    Attributes:
        epoch: its number.
        duration_ms: from the batch's arrival to the manifest.
        lag_ms: now minus the source time of the newest change taken; None without one.
        changes: rows changed per table.
        views: what happened to each view that changed.
        watermark: source milliseconds; None unknown.
        dropped: changes that were sent again and dropped: they had been taken before.
        halted: views whose query failed on the data; they keep the rows of the epoch before.
    """

    epoch: int
    duration_ms: int
    lag_ms: int | None
    changes: Mapping[str, int] = field(default_factory=dict)
    views: Mapping[str, ViewChange] = field(default_factory=dict)
    watermark: int | None = None
    dropped: int = 0
    halted: Mapping[str, MviewError] = field(default_factory=dict)


class Listener(Protocol):
    """Who is told of progress; called from the pipeline's threads, must return quickly."""

    def on_load(self, table: str, rows: int, total: int, done: bool) -> None:
        """A table's load moved: `rows` of about `total` are in the mirror or staged."""
        ...

    def on_epoch(self, epoch: EpochReport) -> None:
        """An epoch was published."""
        ...

    def on_message(self, text: str) -> None:
        """Something worth a line happened."""
        ...


class Silence:
    """A listener that says nothing."""

    def on_load(self, table: str, rows: int, total: int, done: bool) -> None:
        """Say nothing."""

    def on_epoch(self, epoch: EpochReport) -> None:
        """Say nothing."""

    def on_message(self, text: str) -> None:
        """Say nothing."""
