"""The sketches of this folder as functions of DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import PythonUDFType

from mview.execute.sketches.cardinality import SEED, estimates, register_codes
from mview.execute.sketches.xxhash import Words, of_integers, of_texts


def add_to(database: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known to a database.

    `register_of_int`, `register_of_long` and `register_of_text` give what a value shows to which
    register, NULL of NULL; `registers_estimate` counts by a list of these.
    """
    codes = "INTEGER"
    for name, kind, function in (
        ("register_of_int", "INTEGER", _of_integers),
        ("register_of_long", "BIGINT", _of_integers),
        ("register_of_text", "VARCHAR", _of_texts),
    ):
        database.create_function(name, function, [kind], codes, type=PythonUDFType.ARROW)
    database.create_function(
        "registers_estimate", _estimated, [f"{codes}[]"], "BIGINT", type=PythonUDFType.ARROW
    )


def _of_integers(column: pa.ChunkedArray) -> pa.Array:
    values = _joined(column)
    plain = values.fill_null(0).to_numpy(zero_copy_only=False)
    return _codes(of_integers(plain, SEED), values)


def _of_texts(column: pa.ChunkedArray) -> pa.Array:
    values = _joined(column).cast(pa.string())
    return _codes(of_texts(values, SEED), values)


def _codes(hashes: Words, values: pa.Array) -> pa.Array:
    missing = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(register_codes(hashes), pa.int32(), mask=missing)


def _estimated(column: pa.ChunkedArray) -> pa.Array:
    lists = _joined(column)
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    codes, sets = lists.flatten(), np.repeat(np.arange(len(lists)), lengths)
    there = codes.is_valid().to_numpy(zero_copy_only=False)
    plain = codes.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(estimates(plain[there], sets[there], len(lists)), pa.int64())


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
