"""A mirror's rows out of its base and its tail of changes: the rule, and the rule on files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.changelog import KIND
from mview.delta.parquet import DataFile, Range, comparable
from mview.delta.tiers import TARGET_BYTES, TARGET_ROWS, is_small, pieces
from mview.errors import CorruptionError
from mview.rows.match import first_rows, match, row_codes

#: Columns of the changelog, before the table's own.
EPOCH = "__epoch"
#: Key of a mirror whose rows have none: a number per row, which readers do not see.
ROW = "__row"


def fold(base_rows: pa.Table, tail_rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows that are there after the tail.

    Per key, base rows weigh +1 and tail rows +1 or -1 by their kind; the sum is 0 or 1, and where
    it is 1 the row is the positive one of the highest epoch. As every change of a row carries the
    row before, the last epoch of a key decides alone: it ends in a row or in none. So this holds
    for the whole table and for every subset that is chosen by column values on both inputs.

    Args:
        base_rows: any columns, the key among them.
        tail_rows: the same columns, EPOCH and KIND; of the epochs after the base's fold.
        key: the table's primary key.

    Returns:
        Rows with the columns of `base_rows`, in no order.
    """
    if not tail_rows.num_rows:
        return base_rows
    last = settle(tail_rows, key)
    kept = without(base_rows, last.keys, key)
    rows = last.rows.select(base_rows.column_names)
    # Promotion, because the two sides may differ in what they call nullable.
    return pa.concat_tables([kept, rows], promote_options="default")


@dataclass(frozen=True)
class Settled:
    """What a tail comes to: the keys it touches, and the rows it ends with."""

    keys: pa.Table
    rows: pa.Table


def settle(tail_rows: pa.Table, key: Sequence[str]) -> Settled:
    """The last state of every key of the tail.

    Raises:
        CorruptionError: an epoch gave two rows to one key.
    """
    keys = tail_rows.select(list(key))
    first, group = first_rows(row_codes([keys])[0])
    epochs = tail_rows[EPOCH].to_numpy()
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(last, group, epochs)
    positive = pc.starts_with(tail_rows[KIND], "+").to_numpy()
    winners = np.flatnonzero(positive & (epochs == last[group]))
    if len(winners) and np.bincount(group[winners]).max() > 1:
        double = winners[np.argmax(np.bincount(group[winners])[group[winners]] > 1)]
        raise CorruptionError(
            f"epoch {epochs[double]} of a changelog gave two rows to one key",
            got=keys.slice(int(double), 1).to_pylist()[0],
            hint="`mview drop` the table and run again: it is loaded anew",
        )
    rows = tail_rows.drop_columns([EPOCH, KIND]).take(winners)
    return Settled(keys.take(first), rows)


def without(rows: pa.Table, keys: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows whose key is not among `keys` (which are distinct)."""
    hit, _ = match(rows.select(list(key)), keys)
    return _drop(rows, hit) if len(hit) else rows


def _drop(rows: pa.Table, positions: Any) -> pa.Table:
    keep = np.ones(rows.num_rows, dtype=bool)
    keep[positions] = False
    return rows.filter(pa.array(keep))


@dataclass(frozen=True)
class BaseFile:
    """A base file and the bounds of its first key column; None when they are not known."""

    file: DataFile
    range: Range | None


def refold(
    base: Sequence[BaseFile],
    read: Callable[[DataFile], pa.Table],
    tail_rows: pa.Table,
    key: Sequence[str],
) -> Iterator[tuple[list[DataFile], list[pa.Table]]]:
    """Fold a tail into base files, a few files at a time, in key order.

    What is held: the tail, its keys, and rows of about a file.

    Files that no key touches and that are not too small stay as they are.

    Yields:
        Files to remove, and the rows to write in their place: sorted by key, one table per file.
    """
    last = settle(tail_rows, key)
    order = [(name, "ascending") for name in key]
    rows = last.rows.sort_by(order)
    # NULL and NaN are sorted last, so what is left of the values still fits the rows by position.
    values = _ordered(rows[key[0]])
    touched = sorted(_ordered(last.keys[key[0]]))
    unordered = len(touched) < last.keys.num_rows
    ordered = sorted((f for f in base if f.range), key=lambda f: f.range.low if f.range else 0)
    done, removes, buffer = 0, [], [rows.slice(0, 0)]
    for item in [*(f for f in base if not f.range), *ordered]:
        upto = max(done, bisect_right(values, item.range.high)) if item.range else done
        mine = rows.slice(done, upto - done)
        small = is_small(item.file)
        touches = _may_touch(item.range, touched, unordered)
        if not (mine.num_rows or small or touches):
            continue
        done = upto
        content = read(item.file)
        kept = without(content, last.keys, key)
        if not small and not mine.num_rows and kept.num_rows == content.num_rows:
            continue
        removes.append(item.file)
        buffer += [kept, mine]
        rows_held, bytes_held = (sum(map(of, buffer)) for of in (_count, _size))
        if rows_held >= TARGET_ROWS or bytes_held >= TARGET_BYTES:
            yield removes, pieces(pa.concat_tables(buffer).sort_by(order))
            removes, buffer = [], [rows.slice(0, 0)]
    buffer.append(rows.slice(done))
    merged = pa.concat_tables(buffer).sort_by(order)
    if removes or merged.num_rows:
        yield removes, pieces(merged)


def _count(rows: pa.Table) -> int:
    return int(rows.num_rows)


def _size(rows: pa.Table) -> int:
    return int(rows.nbytes)


def _ordered(column: pa.ChunkedArray) -> list[Any]:
    """The values that have a place in an order: no NULL, no NaN."""
    return [value for value in comparable(column) if value is not None and value == value]


def _may_touch(bounds: Range | None, values: Sequence[Any], unordered: bool) -> bool:
    if bounds is None or (unordered and bounds.nulls):
        return True
    place = bisect_right(values, bounds.high)
    return place > 0 and bool(values[place - 1] >= bounds.low)
