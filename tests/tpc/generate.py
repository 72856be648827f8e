"""Tables and their changes from a seed, column by column: the base of both benchmarks' data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.execute.slices import consolidate
from mview.schema import TableSchema

Numbers = npt.NDArray[np.int64]
#: Columns by name, not yet of the table's types.
Columns = dict[str, Any]


class Draw:
    """Random columns of n values."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def integers(self, low: int, high: int, n: int) -> Numbers:
        """From low to high, both included."""
        return self.random.integers(low, high + 1, n)

    def one_of(self, values: Sequence[Any], n: int) -> pa.Array:
        """Any of the values, each as often."""
        return pa.array(values).take(pa.array(self.integers(0, len(values) - 1, n)))

    def money(self, low: int, high: int, n: int) -> pa.Array:
        """Amounts with cents."""
        return cents(self.integers(low * 100, high * 100, n))

    def chance(self, share: float, n: int) -> npt.NDArray[np.bool_]:
        """True for a share of the rows."""
        return self.random.random(n) < share

    def positions(self, size: int, count: int) -> Numbers:
        """`count` different positions below `size`; all of them if there are not as many."""
        return self.random.permutation(size)[:count]


def cents(amounts: Numbers) -> pa.Array:
    """Hundredths as decimals, exact."""
    words = np.stack([amounts, amounts >> 63], axis=1).astype(np.int64)
    kind = pa.decimal128(18, 2)
    return pa.Decimal128Array.from_buffers(kind, len(amounts), [None, pa.py_buffer(words)])


def numbered(prefix: str, numbers: Numbers, width: int = 9) -> pa.Array:
    """Names such as `Supplier#000000007`."""
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")
    return pc.binary_join_element_wise(prefix, digits, "")


class Generator(ABC):
    """All tables of a benchmark as they are now, and epochs that change every one of them.

    Foreign keys are not enforced: rows go away that others name, as in a database without them.
    """

    #: Every table, those first that others are made from.
    schemas: Mapping[str, TableSchema]
    #: Rows that are never deleted, by their first key column.
    kept: Mapping[str, Sequence[int]]

    def __init__(self, seed: int) -> None:
        self.draw = Draw(seed)
        self.tables: dict[str, pa.Table] = {}

    @abstractmethod
    def columns(self, table: str, keys: Mapping[str, Numbers]) -> Columns:
        """Random values of all columns but the key's, for rows with these keys."""

    @abstractmethod
    def new_keys(self, table: str, count: int) -> Columns:
        """Keys of rows to insert; those that the table has are left out."""

    @abstractmethod
    def changed(self, table: str, changes: int) -> int:
        """How many rows of a table an epoch updates."""

    def free(self, table: str, numbers: Numbers, count: int) -> Columns:
        """Some of the numbers that are no keys of a table."""
        (key,) = self.schemas[table].key
        left = np.setdiff1d(numbers, self.tables[table][key].to_numpy())
        return {key: left[self.draw.positions(len(left), count)]}

    def make(self, table: str, keys: Columns) -> pa.Table:
        """Rows with these keys."""
        schema = loose(self.schemas[table])
        plain = {name: np.asarray(values, dtype=np.int64) for name, values in keys.items()}
        columns = plain | self.columns(table, plain)
        arrays = [_typed(columns[field.name], field.type) for field in schema]
        return pa.table(arrays, schema=schema)

    def refresh(self, changes: int) -> dict[str, pa.Table]:
        """One epoch: updates, deletes and inserts in every table.

        Args:
            changes: its size: rows that are updated in the largest table.

        Returns:
            Weighted rows per table.
        """
        return {table: self._refresh(table, self.changed(table, changes)) for table in self.schemas}

    def _refresh(self, table: str, count: int) -> pa.Table:
        old = self.tables[table]
        key = list(self.schemas[table].key)
        order = self.draw.positions(old.num_rows, old.num_rows)
        first = old[key[0]].to_numpy()[order]
        free = ~np.isin(first, self.kept.get(table, ()))
        deleted = order[count:][free[count:]][: max(1, count // 3)]
        rows = old.take(order[:count]).select(key)
        updated = self.make(table, {name: rows[name].to_numpy() for name in key})
        fresh = pa.table(self.new_keys(table, max(1, count // 3))).cast(rows.schema)
        fresh = fresh.group_by(key, use_threads=False).aggregate([])
        fresh = fresh.join(old.select(key), key, join_type="left anti", use_threads=False)
        inserted = self.make(table, {name: fresh[name].to_numpy() for name in key})
        gone = np.concatenate([order[:count], deleted])
        stay = np.setdiff1d(np.arange(old.num_rows), gone)
        self.tables[table] = pa.concat_tables([old.take(stay), updated, inserted]).combine_chunks()
        parts = [(old.take(gone), -1), (updated, 1), (inserted, 1)]
        return consolidate(pa.concat_tables([weighted(rows, weight) for rows, weight in parts]))


def loose(schema: TableSchema) -> pa.Schema:
    """The columns without NOT NULL."""
    return pa.schema([pa.field(f.name, f.type) for f in schema.arrow])


def weighted(rows: pa.Table, weight: int) -> pa.Table:
    """Rows with one weight."""
    return rows.append_column(WEIGHT, pa.array(np.full(rows.num_rows, weight), pa.int32()))


def _typed(values: Any, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    if pa.types.is_date(kind) and not pa.types.is_date(array.type):
        return array.cast(pa.int32()).cast(kind)  # days since 1970
    return array.cast(kind)
