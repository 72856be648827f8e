"""From one epoch's changes to a table's changelog rows: drop duplicates, net by key, add -U/-D.

Rows of a micro-batch have no order: only positions (or partition and offset) order the changes of a
key. -U and -D rows come from the mirror, never from the event, so they always match what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import OP, batch_schema
from mview.clock import utc_text
from mview.connector import WEIGHT
from mview.errors import CorruptionError, OtherLogError, UserError, row_text
from mview.rows.equality import identical_rows
from mview.rows.match import all_differ, row_codes
from mview.schema import TableSchema, as_schema

#: The entry of `high_water` that holds for every partition: the position of the last truncate.
EVERY_PARTITION = ""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Netted:
    """The net changes of one table in one epoch.

    Attributes:
        upserts: the last row of each key that is inserted or updated: the table's columns, and
            `__unchanged`: cells to take from the row in the mirror.
        deleted: keys whose last change is a delete: the key columns.
        truncated: the table was emptied before these changes.
        high_water: highest position taken, by partition (and EVERY_PARTITION); before the first is
            taken, the position at which the load began (LoadingTable.begin).
        newest: the newest source time of the changes that count, by partition, in milliseconds.
        taken: changes that count.
        duplicates: changes dropped because they had been taken before.
    """

    upserts: pa.Table
    deleted: pa.Table
    truncated: bool
    high_water: dict[str, str]
    newest: dict[str, int]
    taken: int
    duplicates: int


def net_changes(
    batches: Sequence[pa.Table],
    schema: TableSchema,
    high_water: Mapping[str, str],
    newest: Mapping[str, int],
) -> Netted:
    """Net the change batches of one table by key.

    Args:
        batches: tables of `changelog.batch_schema`, in any order. Positions have one shape per
            table; several keys may share one.
        schema: the table's columns and primary key.
        high_water: of this table, after the epoch before. Never share it between tables: a
            partition may hold several, and each one's order is its own.
        newest: of this table, by partition, the newest source time up to `high_water`.

    Raises:
        UserError: a NULL key, positions of another shape or of another log, a truncate or a change
            of a key that cannot be ordered, or an update of a row that was deleted before.
    """
    whole = _whole(batches, schema)
    fresh = is_fresh(whole, high_water)
    _check_one_log(whole, high_water, newest)
    rows = whole if fresh.all() else whole.filter(pa.array(fresh))
    tops = _tops(rows)
    taken, marks = rows.num_rows, _raised(rows, tops, high_water)
    times = {partition: ms for partition, (_, ms) in tops.items() if ms is not None}
    _check_moves(rows, newest)
    rows, truncated = _after_truncate(rows, high_water)
    _check_keys(rows, schema)
    order, last = _order(rows, schema)
    netted = _fill_within(rows.select([OP, "__unchanged", *schema.names]), order, last, schema)
    gone = pc.equal(netted[OP], "d")
    upserts = netted.select([*schema.names, "__unchanged"])
    return Netted(
        # Large values are not copied where nothing goes.
        upserts.filter(pc.invert(gone)) if pc.any(gone).as_py() else upserts,
        netted.select(list(schema.key)).filter(gone),
        truncated,
        marks,
        times,
        taken,
        whole.num_rows - taken,
    )


def old_and_new(
    netted: Netted, old_rows: pa.Table, schema: TableSchema, numbers: Ints | None = None
) -> tuple[pa.Table, Ints]:
    """What the epoch changes in the table: its columns and WEIGHT, -1 for old rows, 1 for new ones.

    Args:
        netted: the net changes.
        old_rows: the mirror's rows of the changed keys; the whole mirror when `truncated`.
        schema: the table's columns and primary key.
        numbers: of each old row the number of its key, of the upserts' and then the deleted ones;
            None: they are worked out.

    Returns:
        The rows, those that go first; and of each a number, the same for the same key and below
        the number of keys: the given ones.

    Raises:
        UserError: a cell to be taken from a row that the mirror does not have, or NULL in a column
            that is NOT NULL.
        CorruptionError: the mirror has two rows of one key.
    """
    names, upserts = list(schema.names), netted.upserts
    old_rows = as_schema(old_rows.select(names), schema.loose)
    if numbers is None:
        old_key, new_key, gone_key = row_codes(
            [table.select(schema.key) for table in (old_rows, upserts, netted.deleted)]
        )
    else:
        ends = upserts.num_rows, upserts.num_rows + netted.deleted.num_rows
        old_key, new_key, gone_key = numbers, np.arange(ends[0]), np.arange(*ends)
    ids = np.concatenate([old_key, new_key, gone_key])
    at = np.full(ids.max(initial=-1) + 1, -1)
    at[old_key] = np.arange(len(old_key))
    if len(old_key) != np.count_nonzero(at >= 0):
        raise CorruptionError(
            "a mirror has two rows of one key",
            hint="`mview drop` the table and run again: it is loaded anew",
        )
    places = at[new_key]
    new_rows = _fill_from_mirror(netted, old_rows, places, schema)
    _check_not_null(new_rows, schema)
    has_old = places >= 0
    before, after = old_rows.take(pa.array(places[has_old])), _where(new_rows, has_old)
    changed = ~identical_rows(before.columns, after.columns)
    if netted.truncated:
        removed = np.setdiff1d(np.arange(len(old_key)), places)
    else:
        removed = at[gone_key][at[gone_key] >= 0]
    updated = new_key[has_old][changed]
    parts = [
        (old_rows.take(pa.array(removed)), old_key[removed], -1),
        (_where(before, changed), updated, -1),
        (_where(after, changed), updated, 1),
        (_where(new_rows, ~has_old), new_key[~has_old], 1),
    ]
    sides = [
        part.append_column(WEIGHT, pa.repeat(pa.scalar(weight, pa.int32()), part.num_rows))
        for part, _, weight in parts
    ]
    # What is one part alone is not copied for the sake of empty ones.
    rows = pa.concat_tables([side for side in sides if side.num_rows] or sides).combine_chunks()
    return rows, np.concatenate([keys for _, keys, _ in parts])


def _where(rows: pa.Table, wanted: Bools) -> pa.Table:
    """Some of the rows; they are not copied where they are all."""
    return rows if wanted.all() else rows.filter(pa.array(wanted))


def _whole(batches: Sequence[pa.Table], schema: TableSchema) -> pa.Table:
    """All changes, each column in one piece."""
    if len(batches) == 1:  # the rule: to put one together with none takes as long as to net it
        return batches[0].combine_chunks()
    return pa.concat_tables([batch_schema(schema).empty_table(), *batches]).combine_chunks()


# --- duplicates ----------------------------------------------------------------------------------


def is_fresh(rows: pa.Table, high_water: Mapping[str, str]) -> Bools:
    """Which rows may not have been taken before; a row without a position always counts.

    A row *at* the highest position counts again: one position may hold several keys (PostgreSQL's
    COPY), and a batch may end between them. What was taken changes nothing the second time.
    """
    position = rows["__position"]
    _check_shape(rows, [mark for mark in high_water.values() if mark])
    floor, partitions = high_water.get(EVERY_PARTITION, ""), _partitions(rows)
    marks = [high_water.get(partition, "") for partition in partitions]
    lowest, _ = _ends(position)
    if lowest and lowest > floor and lowest >= max(marks):  # the rule: nothing was sent again
        return np.ones(rows.num_rows, np.bool_)
    old = _bools(pc.less_equal(position, floor))
    for partition in partitions:
        before = pc.less(position, high_water.get(partition, ""))
        old |= _bools(pc.and_(before, pc.equal(rows["__partition"], partition)))
    return ~(old & _bools(pc.not_equal(position, "")))


def _partitions(rows: pa.Table) -> list[str]:
    """The partitions of changes."""
    column = rows["__partition"]
    if len(column) and pc.all(pc.equal(column, column[0])).as_py():  # the rule
        return [column[0].as_py()]
    partitions: list[str] = pc.unique(column).to_pylist()
    return partitions


def _ends(positions: pa.ChunkedArray) -> tuple[str, str]:
    """The lowest position and the highest; "" of none."""
    if not len(positions):
        return "", ""
    # In order, as one log has them: this is seen in a tenth of the time that the lowest of texts
    # takes to be found.
    if not pc.any(pc.less(positions[1:], positions[:-1])).as_py():
        return positions[0].as_py(), positions[-1].as_py()
    ends = pc.min_max(positions)
    return ends["min"].as_py(), ends["max"].as_py()


def _check_shape(rows: pa.Table, marks: Sequence[str]) -> None:
    """Positions compare as text, which is right only while they have the same number of parts."""
    sizes = set(pc.unique(pc.binary_length(rows["__position"])).to_pylist()) - {0}
    if len(sizes | {len(mark) for mark in marks}) > 1:
        raise OtherLogError(
            "the source's positions changed their shape: they cannot be ordered",
            where=str(rows["__partition"][0]),
            got=", ".join(sorted({str(p) for p in rows["__position"].to_pylist() if p})[:2]),
            allowed=f"the shape of {marks[0]}" if marks else "one shape per table",
            safe="nothing of this epoch was published",
            hint="`mview drop` the table and run again: it is loaded anew",
        )


def _check_one_log(
    rows: pa.Table, high_water: Mapping[str, str], newest: Mapping[str, int]
) -> None:
    """Halt where a change stands behind what was taken, and yet is newer than all of that.

    A change that is sent again has the position and the time it had. Positions that go back while
    the time goes on come from another log: the database failed over to a server that numbers its
    own, and its changes would be dropped as sent again.
    """
    known = rows.select(["__partition", "__offset", "__position", "__source_ms"])
    if rows["__source_ms"].null_count or not _has_positions(rows):
        timed = pc.is_valid(rows["__source_ms"])
        known = known.filter(pc.and_(pc.not_equal(rows["__position"], ""), timed))
    partitions = _partitions(known)
    for partition in partitions:
        several = len(partitions) > 1
        mine = known.filter(pc.equal(known["__partition"], partition)) if several else known
        if (np.diff(mine["__offset"].to_numpy()) < 0).any():
            mine = mine.sort_by("__offset")
        at, ms = high_water.get(partition, ""), newest.get(partition)
        positions = pa.chunked_array([pa.array([at]), *mine["__position"].chunks])
        if not pc.any(pc.less(positions[1:], positions[:-1])).as_py():
            continue  # the rule: nothing was sent again
        for row in mine.to_pylist():
            if row["__position"] < at and ms is not None and row["__source_ms"] > ms:
                raise _other_log(row, at, ms)
            at = max(at, row["__position"])
            ms = row["__source_ms"] if ms is None else max(ms, row["__source_ms"])


def _other_log(row: Mapping[str, Any], at: str, ms: int) -> OtherLogError:
    return OtherLogError(
        "the changelog goes on with the log of another server: its positions cannot be ordered "
        "after those that were taken",
        where=f"{row['__partition']}, offset {row['__offset']}",
        got=f"position {_for_people(row['__position'])} of {utc_text(row['__source_ms'])} UTC, "
        f"after position {_for_people(at)} of {utc_text(ms)} UTC",
        allowed="positions that grow with the time; a change that is sent again keeps both",
        safe="nothing of this epoch was published",
        hint="after a failover of the database every table of the connection must be loaded anew: "
        "`mview drop TABLE…`, then run again",
    )


def _for_people(position: str) -> str:
    return ".".join(str(int(part)) for part in position.split("."))


def _tops(rows: pa.Table) -> dict[str, tuple[str, int | None]]:
    """By partition, the highest position and the newest source time."""
    if len(partitions := _partitions(rows)) == 1:  # the rule
        newest = pc.max(rows["__source_ms"]).as_py()
        return {partitions[0]: (_ends(rows["__position"])[1], newest)}
    by_partition = rows.group_by("__partition", use_threads=False)
    tops = by_partition.aggregate([("__position", "max"), ("__source_ms", "max")])
    return {
        top["__partition"]: (top["__position_max"], top["__source_ms_max"])
        for top in tops.to_pylist()
    }


def _raised(
    rows: pa.Table, tops: Mapping[str, tuple[str, int | None]], high_water: Mapping[str, str]
) -> dict[str, str]:
    marks = dict(high_water)
    for partition, (top, _) in tops.items():
        marks[partition] = max(marks.get(partition, ""), top)
    truncates = rows.filter(pc.equal(rows[OP], "truncate"))
    # What a lagging partition still brings from before a truncate is gone with it.
    floor = [marks.get(EVERY_PARTITION, ""), *truncates["__position"].to_pylist()]
    return {name: mark for name, mark in {**marks, EVERY_PARTITION: max(floor)}.items() if mark}


# --- order and netting ---------------------------------------------------------------------------


def _after_truncate(rows: pa.Table, high_water: Mapping[str, str]) -> tuple[pa.Table, bool]:
    is_truncate = pc.equal(rows[OP], "truncate")
    truncates = rows.filter(is_truncate)
    if not truncates.num_rows:
        return rows, False
    by = "__position" if _has_positions(rows) else "__offset"
    partition, at = _last_by(truncates, by)
    others = {p for p in pc.unique(rows["__partition"]).to_pylist() if p != partition}
    ahead = [p for p, mark in high_water.items() if p not in ("", partition) and mark > at]
    # The mirror does not know which of its rows came after the truncate.
    if ahead if by == "__position" else others:
        raise UserError(
            "a truncate cannot be ordered against changes of other partitions",
            where=f"{partition}, truncate at {by.strip('_')} {at}",
            got=f"other partitions: {', '.join(sorted(ahead or others)[:3])}",
            allowed="a topic of one partition for a table that is truncated",
            safe="nothing of this epoch was published",
        )
    return rows.filter(pc.greater(rows[by], at)), True


def _check_moves(rows: pa.Table, newest: Mapping[str, int]) -> None:
    """Raise where a key changes by one message, and others have come in other partitions.

    The message is in the partition of one of its two keys: of the other's changes, which are in
    another, nobody knows whether they came before it.
    """
    partitions = {*_partitions(rows), *newest}
    if len(partitions) < 2 or (row := moved_key(rows)) is None:
        return
    raise UserError(
        "a change of a key cannot be ordered against changes of other partitions",
        where=f"{row['__partition']}, offset {row['__offset']}",
        got=f"other partitions: {', '.join(sorted(partitions - {row['__partition']})[:3])}",
        allowed="a topic of one partition for a table whose keys change",
        safe="nothing of this epoch was published",
    )


def moved_key(rows: pa.Table) -> dict[str, Any] | None:
    """Of changes (`changelog.batch_schema`) the first that has another key by one message."""
    gone, come = (rows.filter(pc.equal(rows[OP], kind)) for kind in ("d", "c"))
    if not gone.num_rows or not come.num_rows:
        return None
    place = ["__partition", "__offset"]
    before, after = row_codes([gone.select(place), come.select(place)])
    both = np.isin(before, after)
    return gone.slice(int(np.flatnonzero(both)[0]), 1).to_pylist()[0] if both.any() else None


def _last_by(rows: pa.Table, by: str) -> tuple[str, Any]:
    last = rows.take(pc.sort_indices(rows, sort_keys=[(by, "descending")])[:1])
    return last["__partition"][0].as_py(), last[by][0].as_py()


def _has_positions(rows: pa.Table) -> bool:
    return not pc.any(pc.equal(rows["__position"], "")).as_py()


def _check_keys(rows: pa.Table, schema: TableSchema) -> None:
    for name in schema.key:
        if rows[name].null_count:
            bad = rows.filter(pc.is_null(rows[name])).slice(0, 1).to_pylist()[0]
            raise UserError(
                f"primary key column {name!r} of a change is NULL",
                where=f"{bad['__partition']} offset {bad['__offset']}",
                safe="nothing of this epoch was published",
            )


def _order(rows: pa.Table, schema: TableSchema) -> tuple[Ints, Ints]:
    """Row numbers: those of a key side by side, and as the source ordered the changes.

    Returns:
        They, and the places in them of the last change of each key.
    """
    keys = rows.select(schema.key)
    if all_differ(keys):  # the rule of a large epoch, told by less than what numbers them
        return np.arange(len(keys)), np.arange(len(keys))
    (key,) = row_codes([keys])
    by = ["__position", "__offset"] if _has_positions(rows) else ["__partition", "__offset"]
    table = rows.select(by).add_column(0, "key", pa.array(key))
    order: Ints = (
        pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
        .to_numpy()
        .astype(np.int64)
    )
    return order, np.flatnonzero(np.append(np.diff(key[order]), 1))


# --- cells the source did not send ---------------------------------------------------------------


def _fill_within(rows: pa.Table, order: Ints, last: Ints, schema: TableSchema) -> pa.Table:
    """The last change of each key; unchanged cells come from earlier changes of the epoch."""
    masks = _unchanged(rows)
    # Every key once, the rule of a large epoch: the rows stay where they are.
    netted = rows if len(last) == rows.num_rows else rows.take(pa.array(order[last]))
    if not masks:
        return netted
    starts = np.append(0, last[:-1] + 1)
    deletes = _bools(pc.equal(rows[OP], "d"))[order]
    still: dict[str, Bools] = {}
    for name, mask in masks.items():
        # The nearest change at or before each one that says something about the cell.
        given = np.where(mask[order], -1, np.arange(len(order)))
        source = np.maximum.accumulate(given)[last]
        known = source >= starts
        source = np.where(known, source, last)
        if (deletes[source] & (source != last)).any():
            bad = int(order[last[deletes[source] & (source != last)][0]])
            raise _never_read(rows.slice(bad, 1), name, schema)
        column = schema.names.index(name) + len(rows.column_names) - len(schema.names)
        netted = netted.set_column(column, rows.field(name), rows[name].take(order[source]))
        still[name] = ~known
    return netted.set_column(
        netted.column_names.index("__unchanged"), "__unchanged", _as_lists(still, len(last))
    )


def _fill_from_mirror(
    netted: Netted, old_rows: pa.Table, places: Ints, schema: TableSchema
) -> pa.Table:
    upserts = netted.upserts
    rows = as_schema(upserts.select(list(schema.names)), old_rows.schema)
    for name, mask in _unchanged(upserts).items():
        missing = mask & (netted.truncated | (places < 0))
        if missing.any():
            raise _never_read(rows.slice(int(np.flatnonzero(missing)[0]), 1), name, schema)
        both = pa.chunked_array([*rows[name].chunks, *old_rows[name].chunks], rows[name].type)
        source = np.where(mask, places + rows.num_rows, np.arange(rows.num_rows))
        rows = rows.set_column(schema.names.index(name), rows.field(name), both.take(source))
    return rows


def _unchanged(rows: pa.Table) -> dict[str, Bools]:
    """By column, which rows leave it unchanged; only columns that occur."""
    lists = rows["__unchanged"].combine_chunks()
    if lists.null_count == len(lists):
        return {}
    lists = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    owners = pc.list_parent_indices(lists).to_numpy()
    names = pc.list_flatten(lists)
    masks: dict[str, Bools] = {}
    for name in pc.unique(names).to_pylist():
        masks[name] = np.zeros(rows.num_rows, np.bool_)
        masks[name][owners[_bools(pc.equal(names, name))]] = True
    return masks


def _as_lists(masks: Mapping[str, Bools], rows: int) -> pa.Array:
    lists: list[list[str] | None] = [None] * rows
    for name, mask in masks.items():
        for row in np.flatnonzero(mask):
            lists[row] = [*(lists[row] or []), name]
    return pa.array(lists, pa.list_(pa.string()))


def _never_read(row: pa.Table, name: str, schema: TableSchema) -> UserError:
    key = row.select(list(schema.key)).to_pylist()[0]
    return UserError(
        f"column {name!r} was not sent and the row was never read: its value is unknown",
        where=row_text(key),
        got="an update that leaves the column unchanged",
        allowed="whole rows in every message",
        safe="nothing of this epoch was published",
        hint="in PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL (MySQL, MariaDB: "
        "binlog_row_image=FULL)",
    )


# --- comparing -----------------------------------------------------------------------------------


def _check_not_null(rows: pa.Table, schema: TableSchema) -> None:
    for column in schema.columns:
        if not column.nullable and rows[column.name].null_count:
            bad = rows.filter(pc.is_null(rows[column.name])).select(list(schema.key))
            key = bad.slice(0, 1).to_pylist()[0]
            raise UserError(
                f"column {column.name!r} is NOT NULL and a change brings NULL",
                where=row_text(key),
                safe="nothing of this epoch was published",
                hint="correct what writes it, unless the column is nullable now",
            )


def _bools(values: Any) -> Bools:
    array = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    result: Bools = array.to_numpy().astype(np.bool_, copy=False)
    return result
