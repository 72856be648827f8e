"""What a run tells its listener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mview.connector import TableHalt
from mview.errors import MviewError
from mview.relation import RelationId


@dataclass(frozen=True)
class ViewChange:
    """What one epoch did to one view.

    Attributes:
        inserted: keys that appeared.
        updated: keys whose row changed.
        deleted: keys that went away.
        rows: rows of the view after the epoch.
        strategy: the strategy of the view's top node.
        executor: where it was worked out: `local`, in process, or `spark`.
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
class LoadReport:
    """How far the load of a table is.

    Attributes:
        table: its name.
        rows: rows that count: they are merged with the changes that came meanwhile.
        read: rows that were read; they count once the changelog has passed their read time plus T.
        total: about how many there are.
        done: the table is loaded.
        held: why no more of it is read now; empty: it is read.
    """

    table: str
    rows: int
    read: int
    total: int
    done: bool
    held: str = ""


@dataclass(frozen=True)
class BuildReport:
    """A view whose first rows are made now, or were.

    Attributes:
        view: its name.
        number: which of the views it is that are built now, from 1.
        views: how many are.
        rows: rows of the tables that it is made from.
        expected: seconds that it takes, as far as it was measured before; None: it was not.
        done: it is built.
    """

    view: str
    number: int
    views: int
    rows: int
    expected: float | None
    done: bool = False


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
        tables: source tables that have halted, and why.
        stages: milliseconds of each stage; none where no batch has brought the epoch.
        quarantine: what was put into quarantine, or taken out of it, for people.
    """

    epoch: int
    duration_ms: int
    lag_ms: int | None
    changes: Mapping[str, int] = field(default_factory=dict)
    views: Mapping[str, ViewChange] = field(default_factory=dict)
    watermark: int | None = None
    dropped: int = 0
    halted: Mapping[str, MviewError] = field(default_factory=dict)
    tables: Mapping[RelationId, TableHalt] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    quarantine: tuple[str, ...] = ()


class Listener(Protocol):
    """Who is told of progress; called from the pipeline's threads, must return quickly."""

    def on_load(self, load: LoadReport) -> None:
        """A table's load moved."""
        ...

    def on_build(self, build: BuildReport) -> None:
        """The build of a view begins, or has ended."""
        ...

    def on_epoch(self, epoch: EpochReport) -> None:
        """An epoch was published."""
        ...

    def on_halt(self, view: str, error: MviewError) -> None:
        """A view halts, alone: in an epoch, when it is built, or because it was refused."""
        ...

    def on_message(self, text: str) -> None:
        """Something worth a line happened."""
        ...


class Silence:
    """A listener that says nothing."""

    def on_load(self, load: LoadReport) -> None:
        """Say nothing."""

    def on_build(self, build: BuildReport) -> None:
        """Say nothing."""

    def on_epoch(self, epoch: EpochReport) -> None:
        """Say nothing."""

    def on_halt(self, view: str, error: MviewError) -> None:
        """Say nothing."""

    def on_message(self, text: str) -> None:
        """Say nothing."""
