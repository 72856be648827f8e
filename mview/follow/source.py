"""What a store has published of a view, for the sinks that follow it: changes, and all rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from mview.changelog import KIND
from mview.errors import CorruptionError, RetryableError
from mview.follow.following import Content, ViewChanges
from mview.follow.net import netted
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from mview.store.mirror import EPOCH, Mirror


class ViewSource:
    """A view's mirror, read as it was published. Moved by one thread, read by another."""

    def __init__(self, store: Store, view: str) -> None:
        self._store, self._view = store, view
        self._relation = RelationId("view", view)
        self._published: tuple[int, ViewState, TableState] | None = None
        self._mirror: Mirror | None = None
        self._columns: TableSchema | None = None

    def move(self, manifest: Manifest) -> bool:
        """Follow a published epoch; a view that has halted stays as it was.

        Returns:
            Whether the view has changed, or was built anew.
        """
        view, table = manifest.views.get(self._view), manifest.tables.get(self._relation)
        if view is None or view.stale or table is None:
            return False
        before, self._published = self._published, (manifest.epoch, view, table)
        return before is None or _life(before[1]) != _life(view)

    @property
    def schema(self) -> TableSchema | None:
        """The view's columns; None: it was never built."""
        return None if self._published is None else self._published[1].schema

    #: It reads files of the store.
    is_reading = False

    def give(self, columns: TableSchema) -> None:
        """Give rows of these columns to who follows; once the view has others, none."""
        self._columns = columns

    # --- Source ----------------------------------------------------------------------------------

    def newest(self) -> int:
        """The last epoch that has changed the view."""
        return int(self._state[1].facts.get("epoch", 0))

    def begins(self) -> int:
        """Changes of all epochs after this one are there."""
        _, view, table = self._state
        return self._begins(view, table)

    def changes(self, after: int, most_bytes: int, most_rows: int | None) -> ViewChanges:
        """The changes after an epoch, as one, of as many epochs as fit."""
        _, view, table = self._given()
        newest = int(view.facts.get("epoch", 0))
        if after < (begins := self._begins(view, table)):
            # An epoch was published since the step was planned: the view built anew, or trimmed.
            raise RetryableError(
                f"changes of view {self._view} are not kept any more that a sink was to be given",
                got=f"those after epoch {begins}",
                allowed=f"those after epoch {after}",
                safe="nothing of the step was brought; the sink is compared with its view",
                hint="it is tried again",
            )
        mirror = self._opened(table)
        rows = mirror.changes(table, after, most_bytes)
        upto = newest
        if rows.num_rows:
            rows, upto = _within(rows, most_bytes, most_rows)
        changed = netted(rows, mirror.schema.key)
        return ViewChanges(upto, changed.select([KIND, *view.schema.names]))

    def rows(self) -> Content:
        """All rows at the newest epoch."""
        epoch, view, table = self._given()
        return Content(epoch, self._parts(view, table))

    def waiting_bytes(self, after: int) -> int:
        """Bytes that wait for who stands at an epoch."""
        table = self._state[2]
        return self._opened(table).waiting_bytes(table, after)

    def waiting_epochs(self, after: int) -> int:
        """Epochs with changes after one."""
        table = self._state[2]
        return len(self._opened(table).waiting_epochs(table, after))

    def look(self, after: int) -> bool:
        """Nothing is to be looked for: `move` says what is published."""
        return False

    def close(self) -> None:
        """Nothing is open."""

    def _begins(self, view: ViewState, table: TableState) -> int:
        return max(view.built_epoch, self._opened(table).trimmed(table))

    def _parts(self, view: ViewState, table: TableState) -> Iterator[pa.Table]:
        try:
            for part in self._opened(table).parts(table):
                yield part.select(view.schema.names)
        except CorruptionError as error:
            if self._state[2] == table:
                raise
            # Of what is not the newest any more files go by and by.
            raise RetryableError(
                f"rows of view {self._view} went before a sink had read them all",
                where=error.where,
                got=f"{error.what}, and the view has changed since",
                safe="nothing of the step was brought; it is begun again, with the newest rows",
                hint="if that is so again and again, a fill takes longer than files are kept: "
                "set engine.keep_files higher",
            ) from error

    def _given(self) -> tuple[int, ViewState, TableState]:
        """What is published. Rows of other columns may fit by chance, and would be cast."""
        state = self._state
        if self._columns is not None and state[1].schema != self._columns:
            raise RetryableError(
                f"view {self._view} has other columns since a sink has begun to follow it",
                safe="nothing of the step was brought; the table there is made anew",
                hint="it is tried again",
            )
        return state

    @property
    def _state(self) -> tuple[int, ViewState, TableState]:
        assert self._published is not None, "asked before it is published"
        return self._published

    def _opened(self, table: TableState) -> Mirror:
        mirror = self._mirror
        if mirror is None or mirror.schema != table.schema:
            # Its own: the engine's is for the thread that writes.
            mirror = Mirror(self._store.mirror(self._relation), table.schema)
            self._mirror = mirror
        mirror.changelog.refresh()
        return mirror


def _life(view: ViewState) -> tuple[Any, ...]:
    """What is another one when sinks have something to do."""
    return view.facts.get("epoch", 0), view.built_epoch, view.schema


def _within(rows: pa.Table, most_bytes: int, most_rows: int | None) -> tuple[pa.Table, int]:
    """The rows of as many whole epochs as fit, of one at least, and the last of these."""
    most = rows.num_rows
    if rows.nbytes > most_bytes:
        most = max(1, most * most_bytes // rows.nbytes)
    most = most if most_rows is None else min(most, most_rows)
    epochs = rows[EPOCH].to_numpy()
    numbers, counts = np.unique(epochs, return_counts=True)
    fit = max(1, int(np.searchsorted(np.cumsum(counts), most, side="right")))
    upto = int(numbers[fit - 1])
    return rows if fit == len(numbers) else rows.filter(pa.array(epochs <= upto)), upto
