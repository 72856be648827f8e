"""The manifest: the one record that publishes an epoch.

What no manifest names does not exist: mirrors, sinks and offsets are written first, the manifest
last. A reader takes the newest manifest and reads every table and view at the versions it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mview.clock import SourceMs
from mview.connector import Offsets
from mview.files.records import plain, record
from mview.relation import RelationId, by_text
from mview.schema import TableSchema

#: The first epoch of a store.
FIRST_EPOCH = 1

#: `ViewState.built_epoch` of a view whose first build has failed: it has no content.
NEVER = 0


@dataclass(frozen=True)
class Cut:
    """Where the changes of a connection end in an epoch.

    Attributes:
        until: every change up to this source time was taken; None: unknown.
        whole: whether it is between two transactions of the source; None: the log does not tell.
    """

    until: SourceMs | None
    whole: bool | None

    def after(self, before: Cut | None) -> Cut:
        """This one; where it tells no time, or an older one, that of the one before holds."""
        both = (self,) if before is None else (self, before)
        known = [cut.until for cut in both if cut.until is not None]
        return replace(self, until=max(known, default=None))


def read_until(cuts: Collection[Cut]) -> SourceMs | None:
    """Up to which source time every change of some logs was read; None: of one it is not known."""
    known = [cut.until for cut in cuts if cut.until is not None]
    return min(known) if known and len(known) == len(cuts) else None


@dataclass(frozen=True)
class QuarantineState:
    """What of a table is in quarantine at an epoch; see `mview.store.quarantine`.

    Attributes:
        list: the file that has it, below the table's folder of the quarantine.
        changes: how many changes.
        bytes: of their messages.
    """

    list: str
    changes: int
    bytes: int


@dataclass(frozen=True)
class TableState:
    """A table's mirror at an epoch.

    Attributes:
        schema: columns and primary key.
        base_version: Delta version of the base.
        changelog_version: Delta version of the changelog.
        folded: the base holds the changelog up to this epoch; the tail begins after it.
        phase: `loading` until every chunk is released.
        rows: rows of the table at the epoch.
        released: numbers of the chunks whose rows are in the base.
        halted: why no later change of it is taken, as text: it stays as it is until it is loaded
            anew. Empty: it goes on.
        quarantine: changes of it that were put aside; None: none are.
    """

    schema: TableSchema
    base_version: int
    changelog_version: int
    folded: int = 0
    phase: Literal["loading", "loaded"] = "loading"
    rows: int = 0
    released: tuple[int, ...] = ()
    halted: str = ""
    quarantine: QuarantineState | None = None

    def to_json(self) -> dict[str, Any]:
        """A form for orjson; see `from_json`. What few tables have is left out of the others'."""
        form = {**_shallow(self), "schema": self.schema.json, "released": list(self.released)}
        if not self.halted:
            del form["halted"]
        if self.quarantine is None:
            del form["quarantine"]
        else:
            form["quarantine"] = plain(self.quarantine)
        return form

    @classmethod
    def from_json(cls, data: object) -> TableState:
        """The state of a JSON form written by `to_json`.

        Raises:
            ValueError: it is another one.
        """
        left_out = {"halted": "", "quarantine": None}
        return record(cls, {**left_out, **data} if isinstance(data, dict) else data)


@dataclass(frozen=True)
class ViewState:
    """A view at an epoch.

    Attributes:
        definition: hash of the SQL text and of what it reads.
        strategy: how the view is kept.
        schema: columns; its key is empty for a view with multiset semantics.
        sink: what the sink's commit returned, e.g. {"version": 7}.
        rows: rows of the view at the epoch.
        built_epoch: epoch of the first build, or NEVER.
        inserted: rows this epoch inserted.
        updated: rows this epoch changed.
        deleted: rows this epoch deleted.
        facts: anything else that is worth a place in the history.
        stale: the content is not of this epoch: a table it reads was dropped, or its query fails;
            it is to be built again.
        halted: the error of a query that fails, as text; empty for none.
    """

    definition: str
    strategy: str
    schema: TableSchema
    sink: dict[str, Any]
    built_epoch: int
    rows: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    stale: bool = False
    halted: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The view's key columns; empty for multiset semantics."""
        return self.schema.key

    def to_json(self) -> dict[str, Any]:
        """A form for orjson; see `Manifest.from_json`."""
        return {**_shallow(self), "schema": self.schema.json}


@dataclass(frozen=True)
class Manifest:
    """Everything that is true at an epoch.

    Attributes:
        epoch: number of the epoch, from FIRST_EPOCH without gaps.
        token: fencing token of the lease under which it was written.
        created_ms: wall time of publishing.
        generation: number of the streaming query; a hand-over or a new table begins a new one.
        batch: micro-batch of that query; -1 before its first.
        offsets: per connection, what was read of its changelog.
        positions: by table and source partition, the highest position that was taken (encoded).
        watermark: every change with source time <= watermark was read; None: unknown.
        tables: mirrors by relation: of source tables, and of what views keep.
        views: views by name.
        newest: beside each position, the newest source time that was taken up to it.
        pinned_ms: what `now()` is in this epoch, wall milliseconds; 0: no view has asked yet.
        cuts: per connection, where this epoch ends in its changelog.
    """

    epoch: int
    token: int
    created_ms: int
    generation: int
    batch: int
    offsets: dict[str, Offsets] = field(default_factory=dict)
    positions: dict[RelationId, dict[str, str]] = field(default_factory=dict)
    watermark: SourceMs | None = None
    tables: dict[RelationId, TableState] = field(default_factory=dict)
    views: dict[str, ViewState] = field(default_factory=dict)
    newest: dict[RelationId, dict[str, int]] = field(default_factory=dict)
    pinned_ms: int = 0
    cuts: dict[str, Cut] = field(default_factory=dict)

    @property
    def source_tables(self) -> dict[RelationId, TableState]:
        """The mirrors of source tables, without what views keep."""
        return {n: state for n, state in self.tables.items() if n.is_table}

    def cuts_of(self, connections: Iterable[str]) -> dict[str, Cut]:
        """Where this epoch ends in some changelogs; of one that it does not name it is unknown."""
        return {name: self.cuts.get(name, Cut(None, None)) for name in connections}

    def to_json(self) -> dict[str, Any]:
        """A form for orjson; see `from_json`."""
        return {
            **_shallow(self),
            "positions": by_text(self.positions),
            "newest": by_text(self.newest),
            "tables": by_text({name: state.to_json() for name, state in self.tables.items()}),
            "views": {name: state.to_json() for name, state in self.views.items()},
            "cuts": plain(self.cuts),
        }

    @classmethod
    def from_json(cls, data: object) -> Manifest:
        """The manifest of a JSON form written by `to_json`.

        Raises:
            ValueError: it is another one.
            UserError: a table of it can be none.
        """
        return record(cls, data)


def schemas_of(tables: Mapping[RelationId, TableState]) -> dict[RelationId, TableSchema]:
    """What is kept of tables and other relations: their columns, by name."""
    return {name: state.schema for name, state in tables.items()}


def _shallow(record: Manifest | TableState | ViewState) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
