"""The functions of this folder as functions of DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.func import PythonUDFType

from mview.execute.strict_math.logarithms import exp, ln, log10
from mview.execute.strict_math.powers import power
from mview.execute.strict_math.words import Doubles
from mview.rows.equality import flat, nulls

#: What they are called in DuckDB, and how many arguments they have.
_FUNCTIONS: dict[str, tuple[Callable[..., Doubles], int]] = {
    "strict_exp": (exp, 1),
    "strict_ln": (ln, 1),
    "strict_log10": (log10, 1),
    "strict_power": (power, 2),
}


def add_to(database: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known to a database: of DOUBLEs, which give a DOUBLE; NULL of NULL."""
    for name, (function, arity) in _FUNCTIONS.items():
        database.create_function(
            name,
            _OVER_ARROW[arity](function),
            ["DOUBLE"] * arity,
            "DOUBLE",
            type=PythonUDFType.ARROW,
        )


def _over_one(function: Callable[[Doubles], Doubles]) -> Callable[[pa.ChunkedArray], pa.Array]:
    def over(column: pa.ChunkedArray) -> pa.Array:
        return _over([column], function)

    return over


def _over_two(
    function: Callable[[Doubles, Doubles], Doubles],
) -> Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.Array]:
    def over(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.Array:
        return _over([left, right], function)

    return over


# DuckDB counts the parameters of what it calls.
_OVER_ARROW: dict[int, Callable[..., Callable[..., pa.Array]]] = {1: _over_one, 2: _over_two}


def _over(columns: Sequence[pa.ChunkedArray], function: Callable[..., Doubles]) -> pa.Array:
    missing, plain = np.zeros(len(columns[0]), np.bool_), []
    for column in columns:
        values = flat(column)
        missing |= nulls(values)
        plain.append(values.fill_null(1.0).to_numpy(zero_copy_only=False).astype(np.float64))
    with np.errstate(all="ignore"):
        answer = function(*plain)
    return pa.array(answer, pa.float64(), mask=missing)
