"""Databases that are read through an ODBC driver: connecting, errors by SQLSTATE, rows in batches.

Values come as pyodbc makes Python objects of them; what a driver would round or cut is selected as
text (`ReadType.select`).
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mview.schema import TableSchema
from mview_connectors.databases.sql import TLS_WORDS, SqlDatabase
from mview_connectors.databases.values import Convert, ReadType, build_batch, decimals, from_text

#: Rows that are asked for at once.
_BATCH = 5_000

#: Seconds for which a connection may take to be made.
_GREETING_S = 60

#: Classes of SQLSTATE after which the same command may succeed: connection, rollback, resources,
#: locks, operator; and time-outs.
_PASSING = ("08", "40", "53", "55", "57", "HYT")

#: Integers that drivers take as such; larger ones are decimals to them.
_LARGEST = 1 << 63


class OdbcDatabase(SqlDatabase):
    """What all databases behind ODBC share; a dialect adds its catalog and its types."""

    mark = "?"

    @abstractmethod
    def _read_types(self, table: str, schema: TableSchema) -> Sequence[ReadType]:
        """How each column is selected and converted, in the order of the schema."""

    def _options(self) -> dict[str, Any]:
        return {"autocommit": True, "timeout": _GREETING_S}

    def _is_passing(self, error: Exception) -> bool:
        state = str(error.args[0]) if error.args else ""
        if any(word in str(error) for word in TLS_WORDS):
            return False
        return isinstance(error, OSError) or state.startswith(_PASSING)

    def _parameter(self, value: Any) -> Any:
        if type(value) is int and not -_LARGEST <= value < _LARGEST:
            return Decimal(value)
        # As text: drivers cut fractions of a second off where a type of theirs has fewer.
        return value.isoformat() if isinstance(value, dt.datetime) else value

    def _fetch(
        self,
        connection: Any,
        table: str,
        schema: TableSchema,
        where: str,
        parameters: Sequence[Any],
    ) -> Iterator[pa.RecordBatch]:
        types = self._read_types(table, schema)
        names = [self.quote(column.name) for column in schema.columns]
        selected = ", ".join(type_.select(name) for type_, name in zip(types, names, strict=True))
        converts = [type_.convert for type_ in types]
        cursor = connection.cursor()
        try:
            cursor.execute(f"SELECT {selected} FROM {self.relation(table)}{where}", *parameters)
            while rows := cursor.fetchmany(_BATCH):
                yield build_batch(
                    self.place(table), schema, list(zip(*rows, strict=True)), converts
                )
        finally:
            cursor.close()


# --- what pyodbc returns -------------------------------------------------------------------------


def of_kinds(arrow: pa.DataType, *kinds: type) -> Convert:
    """The conversion of values of these Python types and no others."""
    return lambda values: pa.array(_only(values, *kinds), arrow)


def decimal_values(arrow: pa.DataType) -> Convert:
    """The conversion of `Decimal` and `int`."""
    convert = decimals(arrow)

    def converted(values: Sequence[Any]) -> pa.Array:
        # Never with an exponent, as `str` has it for small and large ones.
        texts = [None if v is None else f"{v:f}" for v in _only(values, Decimal, int)]
        return convert(pa.array(texts, pa.string()))

    return converted


def single_floats(values: Sequence[Any]) -> pa.Array:
    """Doubles that are floats of 32 bits; pyodbc knows no others."""
    doubles = pa.array(_only(values, float), pa.float64())
    singles = doubles.cast(pa.float32())
    if not pc.all(pc.equal(singles.cast(pa.float64()), doubles)).as_py():
        raise ValueError("not a number of 32 bits")
    return singles


def dates(values: Sequence[Any]) -> pa.Array:
    """Dates."""
    return pa.array(_only(values, dt.date), pa.date32())


def text_values(arrow: pa.DataType) -> Convert:
    """The conversion of texts, as `from_text` reads them."""
    convert = from_text(arrow)
    return lambda values: convert(pa.array(_only(values, str), pa.string()))


def _only(values: Sequence[Any], *kinds: type) -> Sequence[Any]:
    for kind in set(map(type, values)) - {*kinds, type(None)}:
        raise TypeError(f"the driver returns {kind.__name__}")
    return values
