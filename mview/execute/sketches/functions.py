"""The sketches of this folder as functions of DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import PythonUDFType

from mview.execute.sketches.cardinality import SEED, estimates, register_codes
from mview.execute.sketches.xxhash import Words, of_integers, of_texts
from mview.rows.equality import flat, nulls


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
    values = flat(column)
    plain = values.fill_null(0).to_numpy(zero_copy_only=False)
    return _codes(of_integers(plain, SEED), values)


def _of_texts(column: pa.ChunkedArray) -> pa.Array:
    values = flat(column).cast(pa.string())
    return _codes(of_texts(values, SEED), values)


def _codes(hashes: Words, values: pa.Array) -> pa.Array:
    return pa.array(register_codes(hashes), pa.int32(), mask=nulls(values))


def _estimated(column: pa.ChunkedArray) -> pa.Array:
    lists = flat(column)
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    codes, sets = lists.flatten(), np.repeat(np.arange(len(lists)), lengths)
    there, shown = ~nulls(codes), codes.drop_null().to_numpy()
    return pa.array(estimates(shown, sets[there], len(lists)), pa.int64())
