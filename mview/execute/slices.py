"""Rows with weights as Arrow tables: consolidation, and slices before and after an epoch.

What changes is what is shown: also 0.0 to -0.0, see mview/rows/equality.py. Keys are told apart as
in SQL, where the two are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.rows.equality import as_shown, has_floats, identical_rows, same_rows
from mview.rows.match import Positions, match, row_codes, rows_at, some_pairs
from mview.rows.match import first_rows as code_groups
from mview.rows.sorted_index import in_order
from mview.rows.values import Row, are_few, first_places, row_values
from mview.schema import TableSchema, as_schema

Flags = npt.NDArray[np.bool_]

#: So many rows Arrow groups faster than they are numbered; a hundred times as many take it twice as
#: long, or four times.
_FEW = 1 << 10


#: Of many columns that are put to rows, the name alone would be a field made anew each time.
_WEIGHT = pa.field(WEIGHT, pa.int32())


def consolidate(rows: pa.Table, *, signs: bool = True) -> pa.Table:
    """The same rows added up by weight; those of weight zero are gone.

    Args:
        rows: columns and WEIGHT, in any order.
        signs: rows are the same that are identical; else those that are equal.
    """
    if rows.num_rows == 0:
        return rows
    columns = rows.drop_columns([WEIGHT])
    if are_few(rows.num_rows, columns.schema.types):
        return _few_consolidated(rows, columns, signs)
    if columns.num_columns and rows.num_rows <= _FEW and is_plain(columns.schema):
        summed = rows.group_by(columns.column_names, use_threads=False).aggregate([(WEIGHT, "sum")])
        summed = summed.rename_columns([*columns.column_names, WEIGHT])
        kept = np.flatnonzero(summed[WEIGHT].to_numpy())
        if len(kept) < summed.num_rows:
            summed = summed.take(pa.array(kept))
        return as_schema(summed, rows.schema)
    first, group = code_groups(row_codes([as_shown(columns) if signs else columns])[0])
    sums = np.bincount(group, rows[WEIGHT].to_numpy()).astype(np.int64)
    stays = np.zeros(rows.num_rows, np.bool_)
    stays[first[sums != 0]] = True
    left = np.flatnonzero(stays)  # in their order
    place = rows.schema.get_field_index(WEIGHT)
    weights = pa.array(sums[group[left]]).cast(rows.schema.field(place).type)
    summed = rows.take(pa.array(left))
    return summed.set_column(place, rows.schema.field(place), weights)


def _few_consolidated(rows: pa.Table, columns: pa.Table, signs: bool) -> pa.Table:
    weights = rows[WEIGHT].to_pylist()
    first: dict[Row, int] = {}
    for number, row in enumerate(row_values(columns, signs=signs)):
        if (other := first.setdefault(row, number)) != number:
            weights[other] += weights[number]
            weights[number] = 0
    if all(weights):
        return rows
    left = [number for number, weight in enumerate(weights) if weight]
    place = rows.schema.get_field_index(WEIGHT)
    field = rows.schema.field(place)
    summed = pa.array([weights[number] for number in left], field.type)
    return rows.take(pa.array(left, pa.int64())).set_column(place, field, summed)


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """The rows with a WEIGHT, the same for all."""
    weights = pa.repeat(pa.scalar(weight, pa.int32()), rows.num_rows)
    return rows.append_column(_WEIGHT, weights)


def difference(new: pa.Table, old: pa.Table, *, signs: bool = True) -> pa.Table:
    """The rows of `new` minus those of `old`: the columns of `new` and WEIGHT, consolidated."""
    old = old.select(new.column_names).cast(new.schema)
    if min(new.num_rows, old.num_rows) > _FEW and new.num_columns:
        # Nearly all rows of a large view stay: what has no partner is left to be added up.
        ours, theirs = some_pairs(new, old, identical_rows if signs else same_rows)
        new, old = _without(new, ours), _without(old, theirs)
    return consolidate(pa.concat_tables([weighted(new, 1), weighted(old, -1)]), signs=signs)


def is_plain(schema: pa.Schema) -> bool:
    """Whether Arrow groups values of these types as we do: not floats, and no lists at all."""
    return not any(has_floats(kind) or pa.types.is_nested(kind) for kind in schema.types)


@dataclass(frozen=True)
class Change:
    """What a view sees of an epoch's changes of a table: rows that go, rows that come."""

    gone: pa.Table
    come: pa.Table

    @property
    def num_rows(self) -> int:
        """Rows on both sides."""
        return int(self.gone.num_rows + self.come.num_rows)

    @property
    def weighted(self) -> pa.Table:
        """All of them, with WEIGHT."""
        return pa.concat_tables([weighted(self.gone, -1), weighted(self.come, 1)])

    def select(self, names: Sequence[str]) -> Change:
        """The same with some of the columns."""
        return Change(self.gone.select(names), self.come.select(names))


class _Updates(NamedTuple):
    """The rows that go and come with one key: where each stands on its side, and its columns."""

    olds: Positions
    news: Positions
    rows: Change


class Changes:
    """An epoch's changes of a table, looked at by several views, each through its columns.

    An update that leaves these as they are is no change for the view. Which columns an update
    changes is found once for all views, and views that see the same updates share the rows.

    Args:
        rows: the table's columns and WEIGHT, consolidated.
        codes: of each row, the same for the same key; None: they are worked out where needed.
    """

    def __init__(self, rows: pa.Table, codes: Positions | None = None) -> None:
        self.rows = rows
        self._codes = codes
        self._updated: _Updates | None = None
        self._differ: dict[str, Flags] = {}
        #: All columns of the rows that are seen by who sees these updates.
        self._seen: dict[bytes, Change] = {}

    @cached_property
    def _sides(self) -> Change:
        return Change(_side(self.rows, -1), _side(self.rows, 1))

    def through(self, schema: TableSchema) -> Change:
        """The changes in the columns of a slice, netted."""
        names = schema.names
        if not schema.key:
            netted = consolidate(self.rows.select([*names, WEIGHT]))
            return Change(*(_side(netted, sign).drop_columns([WEIGHT]) for sign in (-1, 1)))
        updates = self._updates(schema.key)
        same = np.ones(len(updates.olds), np.bool_)
        for name in names:
            if name not in schema.key:
                same &= ~self._differs(name, updates)
        seen = self._seen.get(same.tobytes())
        if seen is None:
            gone = _without(self._sides.gone, updates.olds[same])
            come = _without(self._sides.come, updates.news[same])
            seen = self._seen[same.tobytes()] = Change(gone, come)
        return seen.select(names)

    def _updates(self, key: Sequence[str]) -> _Updates:
        if self._updated is None:
            codes, weights = self._codes, self.rows[WEIGHT].to_numpy()
            if codes is None:
                (codes,) = row_codes([self.rows.select(key)])
            goes, comes = codes[weights < 0], codes[weights > 0]
            at = np.full(codes.max(initial=-1) + 1, -1)
            at[comes] = np.arange(len(comes))
            olds = np.flatnonzero(at[goes] >= 0)
            news = at[goes[olds]]
            gone, come = self._sides.gone, self._sides.come
            self._updated = _Updates(olds, news, Change(rows_at(gone, olds), rows_at(come, news)))
        return self._updated

    def _differs(self, name: str, updates: _Updates) -> Flags:
        """Which updates change a column."""
        if name not in self._differ:
            rows = updates.rows
            self._differ[name] = ~identical_rows([rows.gone[name]], [rows.come[name]])
        return self._differ[name]


def _without(rows: pa.Table, places: Positions) -> pa.Table:
    return rows.take(pa.array(np.delete(np.arange(rows.num_rows), places))) if len(places) else rows


def distinct(rows: pa.Table) -> pa.Table:
    """Each row once."""
    if rows.num_rows < 2:
        return rows
    plain = is_plain(rows.schema)
    if plain and rows.num_columns == 1:
        return pa.table([_distinct_values(rows[0])], rows.schema)
    if are_few(rows.num_rows, rows.schema.types):
        first = first_places(row_values(rows))
        alone = len(first) == rows.num_rows
        return rows if alone else rows.take(pa.array([*first.values()], pa.int64()))
    if plain and rows.num_rows <= _FEW:
        return rows.group_by(rows.column_names, use_threads=False).aggregate([])
    return rows.take(pa.array(np.sort(code_groups(row_codes([rows])[0])[0])))


def _distinct_values(column: pa.ChunkedArray) -> pa.Array:
    if not pa.types.is_integer(column.type) or column.null_count:
        return column.unique()
    values = in_order(column.to_numpy())
    return pa.array(values[np.append(True, values[1:] != values[:-1])])


def key_values(
    parts: Sequence[pa.Table], schema: pa.Schema, *, null_safe: bool, or_null: bool
) -> pa.Table:
    """The distinct keys of a look-up.

    Args:
        parts: values, by position the columns of `schema`.
        schema: key columns as the table has them.
        null_safe: keep keys with NULL; otherwise they match nothing and are left out.
        or_null: add the key that is all NULL.
    """
    wanted = nullable(schema)
    fitted = [_fit(part, wanted) for part in parts if part.num_rows]
    if or_null:
        fitted.append(pa.table({f.name: pa.nulls(1, f.type) for f in schema}))
    if not fitted:
        return wanted.empty_table()
    keys = pa.concat_tables(fitted)
    if not null_safe and any(column.null_count for column in keys.columns):
        keys = keys.drop_null()
    return distinct(keys)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Its columns, all nullable: whether Spark guesses that one has no NULLs does not matter."""
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _fit(part: pa.Table, schema: pa.Schema) -> pa.Table:
    """Values in the key's types; numbers that a narrower one cannot hold match nothing."""
    if part.schema.types == schema.types:
        return pa.Table.from_arrays(part.columns, schema=schema)
    part = part.rename_columns(schema.names)
    for name in schema.names:
        ends = _ends(part.schema.field(name).type, schema.field(name).type)
        if ends is not None:
            values, (low, high) = part[name], ends
            inside = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
            part = part.filter(pc.or_kleene(inside, pc.is_null(values)))
    return as_schema(part, schema)


def _ends(have: pa.DataType, want: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """The least and the greatest of a narrower type of numbers; None where it holds them all."""
    if pa.types.is_integer(have) and want.bit_width < have.bit_width:
        least, most = -(2 ** (want.bit_width - 1)), 2 ** (want.bit_width - 1) - 1
        return pa.scalar(least, have), pa.scalar(most, have)
    # Keys are compared where their scales are equal.
    if pa.types.is_decimal(have) and want.precision < have.precision:
        most = Decimal("9" * want.precision).scaleb(-want.scale)
        return pa.scalar(-most, have), pa.scalar(most, have)
    return None


def before_and_after(
    schema: TableSchema, fetched: Sequence[pa.Table], change: Change | None
) -> tuple[pa.Table, pa.Table]:
    """The slices of a table: the rows at hand before the epoch, and the same after it.

    Args:
        schema: columns of the slices.
        fetched: old rows, by look-up; one may be in several.
        change: the table's change; None for none.

    Returns:
        Fetched rows and the old versions of changed ones, each once; and these without the old
        versions, with the new ones.
    """
    arrow = schema.loose
    parts = [as_schema(table, arrow) for table in fetched if table.num_rows]
    if change is not None:
        gone, come = as_schema(change.gone, arrow), as_schema(change.come, arrow)
    else:
        gone = come = parts[0].slice(0, 0) if parts else arrow.empty_table()
    if not parts:
        return gone, come
    if len(parts) == 1 and not gone.num_rows:
        old = kept = parts[0]
    elif schema.key:
        old, kept = _with_key(schema, parts, gone)
    else:
        old, kept = _without_key(schema, parts, gone)
    return old, pa.concat_tables([kept, come]) if come.num_rows else kept


def _with_key(
    schema: TableSchema, parts: Sequence[pa.Table], gone: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """Each row once, and those of them whose key is not in `gone`."""
    if len(parts) == 1:
        here, there = match(parts[0].select(schema.key), gone.select(schema.key))
        return pa.concat_tables([parts[0], _without(gone, there)]), _without(parts[0], here)
    rows = pa.concat_tables([*parts, gone])
    (codes,) = row_codes([rows.select(schema.key)])
    first = np.sort(code_groups(codes)[0])
    lost = np.zeros(codes.max() + 1, np.bool_)
    lost[codes[len(codes) - gone.num_rows :]] = True
    kept = first[~lost[codes[first]]]
    return rows.take(pa.array(first)), rows.take(pa.array(kept))


def _without_key(
    schema: TableSchema, parts: Sequence[pa.Table], gone: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """The same where equal rows are copies: a part with a row has all copies, or those that go."""
    rows = pa.concat_tables([*parts, gone])
    (codes,) = row_codes([as_shown(rows)])
    part = np.repeat(np.arange(len(parts) + 1), [*(p.num_rows for p in parts), gone.num_rows])
    order = np.lexsort((codes, part))
    ranked = (part * len(rows) + codes)[order]
    # A row is told by its code and its number among the copies in its part.
    copies = np.empty(len(rows), np.int64)
    copies[order] = np.arange(len(rows)) - np.searchsorted(ranked, ranked)
    told = codes * len(rows) + copies
    first = np.sort(np.unique(told, return_index=True)[1])
    kept = first[~np.isin(told[first], told[part == len(parts)])]
    return rows.take(pa.array(first)), rows.take(pa.array(kept))


def _side(delta: pa.Table, sign: int) -> pa.Table:
    """The rows of positive or negative weight, as often as the weight says."""
    weights = delta[WEIGHT].to_numpy()
    places = np.flatnonzero(weights > 0 if sign > 0 else weights < 0)
    times = np.abs(weights[places])
    if (times != 1).any():
        places = np.repeat(places, times)
    return rows_at(delta, places)
