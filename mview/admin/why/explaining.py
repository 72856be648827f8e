"""`mview why`: the rows behind a row of a view, and what last touched it. From the store alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from mview.admin.content import StoredView, check_views, published
from mview.admin.why.moved import MovedRows
from mview.admin.why.narrowing import Rows, narrowed
from mview.admin.why.rows import KeptRow, RowHistory, as_dicts, once, typed_key
from mview.admin.why.sources import SECONDS, Sources, UntellableError, told_rows
from mview.config import Config
from mview.errors import UserError
from mview.memory import Memory
from mview.store.layout import Store
from mview.store.manifest import Manifest

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RowsBehind:
    """Rows of a table, or of a view that is read, from which a row is made.

    Attributes:
        table: its name.
        rows: some of them.
        count: how many they are.
        looked: rows that were looked at.
    """

    table: str
    rows: tuple[Row, ...]
    count: int
    looked: int


@dataclass(frozen=True)
class SourceChange:
    """A change of a row of a table, or of a view that is read.

    Attributes:
        table: its name.
        before: the row before; None: it came.
        after: the row after; None: it went.
    """

    table: str
    before: Row | None
    after: Row | None


@dataclass(frozen=True)
class Touched:
    """The last change of a row.

    Attributes:
        after: it came after this epoch, which is kept.
        epoch: it was there with this epoch, the next one that is kept.
        published_ms: when that was published, wall milliseconds.
        before: the row before; None: there was none.
        row: the row after; None: it went.
        changes: a few changes of what the view reads, which alone make the query give `row`;
            none: the time alone, or it is not known.
        unknown: why the changes are not known; empty: they are.
    """

    after: int
    epoch: int
    published_ms: int
    before: Row | None
    row: Row | None
    changes: tuple[SourceChange, ...] = ()
    unknown: str = ""


@dataclass(frozen=True)
class Why:
    """Why a row of a view is as it is.

    Attributes:
        view: its name.
        epoch: the newest epoch, of which this is told.
        strategy: how the view is kept up.
        row: the row; None: there is none with these values.
        times: how often the view has it.
        behind: from which rows it is made, per table; none where there is no row, or `unknown`.
        complete: whether each of these rows was tried: without it the row was another.
        unknown: why they are not known; empty: they are.
        touched: its last change; None: nothing of it is kept, see `since`.
        since: the row is as it is since this epoch, or for longer where it was not `touched`.
        since_ms: when that was published, wall milliseconds.
        older: why nothing is told of what was before `since`; empty: it was `touched`.
    """

    view: str
    epoch: int
    strategy: str
    row: Row | None
    times: int
    behind: tuple[RowsBehind, ...]
    complete: bool
    unknown: str
    touched: Touched | None
    since: int
    since_ms: int
    older: str


def why(config: Config, view: str, key: Mapping[str, str | None], most: int) -> Why:
    """Why a row of a view is as it is.

    Args:
        view: its name.
        key: texts of values by column that tell the row; None is NULL. A text under the empty
            name is of the view's only key column.
        most: so many rows of each table are told.

    Raises:
        UserError: there is no such view, it has halted, or several rows have these values.
    """
    # Here: `mview status` needs no engine.
    from mview.execute.queries import limit_memory

    limit_memory(Memory(config.engine.memory).queries)
    manifest = published(config)
    check_views(config, manifest, [view])
    StoredView(config, view, manifest)  # says why nothing of it can be read
    state = manifest.views[view]
    try:
        history = RowHistory(config, manifest, view)
    except UntellableError as error:
        raise UserError(f"why a row of view {view} is as it is cannot be told: {error}") from None
    wanted = typed_key(state.schema, _named(key, view, state.key))
    last = history.last_change(wanted)
    with closing(Sources(Store(config.store), history.definition, state.key)) as sources:
        behind, complete, unknown = _behind(sources, manifest, last.row, most)
        touched = None if last.before is None else _touched(sources, last)
    since = last.manifest
    return Why(
        view,
        manifest.epoch,
        state.strategy,
        _row(last.row),
        last.row.num_rows,
        behind,
        complete,
        unknown,
        touched,
        since.epoch,
        since.created_ms,
        last.why_not,
    )


def _named(
    key: Mapping[str, str | None], view: str, columns: Sequence[str]
) -> Mapping[str, str | None]:
    if "" not in key:
        return key
    if len(columns) != 1 or len(key) != 1:
        names = f"its key is {', '.join(columns)}" if columns else "it has no key"
        raise UserError(
            f"a value without a column does not tell a row of view {view}: {names}",
            got=key[""],
            hint="name the columns: --key COLUMN=VALUE, again for each",
        )
    return {columns[0]: key[""]}


def _row(rows: pa.Table) -> Row | None:
    return rows.slice(0, 1).to_pylist()[0] if rows.num_rows else None


def _behind(
    sources: Sources, manifest: Manifest, row: pa.Table, most: int
) -> tuple[tuple[RowsBehind, ...], bool, str]:
    if not row.num_rows:
        return (), True, ""
    try:
        behind = sources.behind(manifest, once(row))
    except UntellableError as error:
        return (), False, str(error)
    told = [
        RowsBehind(
            str(name), as_dicts(rows.slice(0, most)), rows.num_rows, behind.looked[name].num_rows
        )
        for name, rows in behind.rows.items()
    ]
    return tuple(told), behind.complete, ""


def _touched(sources: Sources, last: KeptRow) -> Touched:
    """The last change of a row, and of what came by it."""
    assert last.before is not None, "asked only where it is kept"
    touched = Touched(
        last.before.epoch,
        last.manifest.epoch,
        last.manifest.created_ms,
        _row(last.older),
        _row(last.row),
    )
    try:
        changes = _changes(sources, last.before, last)
    except UntellableError as error:
        return replace(touched, unknown=str(error))
    return replace(touched, changes=changes)


def _changes(sources: Sources, before: Manifest, last: KeptRow) -> tuple[SourceChange, ...]:
    """Few changes between two epochs that make of the row what it became.

    Of every table the rows are taken that belong to the row at one of the epochs, as they were at
    both. With those of the second epoch the query gives the new row; what else is there is of other
    rows. Then changes are left out, as rows are.
    """
    after = last.manifest
    row = once(last.row if last.row.num_rows else last.older)
    shapes = [once(rows) for rows in (last.older, last.row) if rows.num_rows]
    looked = [sources.looked_at(at, shape) for at in (before, after) for shape in shapes]
    moved = {}
    for name in sources.names:
        key = list(sources.key_of(after, name))
        keys = once(pa.concat_tables([rows[name].select(key) for rows in looked]))
        then, now = (sources.with_keys(at, name, keys) for at in (before, after))
        moved[name] = MovedRows(then, now, key)

    def given(units: Rows) -> Counter[tuple[Hashable, ...]]:
        rows = {name: moved[name].after(table["unit"]) for name, table in units.items()}
        return sources.rows_like(after, rows, row)

    every = {name: table.units() for name, table in moved.items()}
    wanted = given(every)
    if wanted != told_rows(last.row):
        raise UntellableError("the query over the rows that were looked at gives another row")
    ends = time.monotonic() + SECONDS
    few = narrowed(every, lambda units: given(units) == wanted, lambda: time.monotonic() < ends)
    return tuple(
        SourceChange(str(name), then, now)
        for name, units in few.items()
        for then, now in moved[name].told(units["unit"])
    )
