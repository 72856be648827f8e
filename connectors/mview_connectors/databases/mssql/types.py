"""SQL Server types: what each becomes, what is selected for it, and how it is converted.

Times are selected as text: a driver's have microseconds, some types 100 nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from mview.schema import parse_type
from mview_connectors.databases.mssql.odbc import (
    dates,
    decimal_values,
    of_kinds,
    single_floats,
    text_values,
)
from mview_connectors.databases.values import Convert, ReadType, UnsupportedTypeError, from_text

_INTEGERS = {"tinyint": "smallint", "smallint": "smallint", "int": "int", "bigint": "bigint"}
_TEXTS = {"char", "varchar", "nchar", "nvarchar"}
_BYTES = {"binary", "varbinary"}
_MONEY = {"money": 19, "smallmoney": 10}

_NO_AFTER = "the log has NULL where a change leaves it alone; use varchar(max), nvarchar(max), "
_NO_AFTER += "varbinary(max)"
_REFUSED = {
    **dict.fromkeys(("text", "ntext", "image"), _NO_AFTER),
    "timestamp": "a rowversion is of the database's counter, and no value of the row",
    "xml": "the changelog may write a document in another form than SELECT does",
    "sql_variant": "each value has a type of its own",
}


def read_type(name: str, precision: int, scale: int) -> ReadType:
    """How to read a column of a type.

    Args:
        name: of the type, e.g. `decimal`.
        precision: its decimal digits.
        scale: those behind the point; of a time, of its seconds.

    Raises:
        UnsupportedTypeError: the type has no exact equal.
    """
    if name in _INTEGERS:
        arrow = parse_type(_INTEGERS[name])
        return ReadType(arrow, of_kinds(arrow, int))
    if name == "bit":
        return ReadType(pa.bool_(), of_kinds(pa.bool_(), bool))
    if name in ("decimal", "numeric", *_MONEY):
        arrow = pa.decimal128(_MONEY.get(name, precision), 4 if name in _MONEY else scale)
        return ReadType(arrow, decimal_values(arrow))
    if name == "float":
        return ReadType(pa.float64(), of_kinds(pa.float64(), float))
    if name == "real":
        return ReadType(pa.float32(), single_floats)
    if name in _TEXTS:
        # As Unicode, whatever the collation's code page is.
        return ReadType(pa.string(), text_values(pa.string()), _as("CAST({} AS nvarchar(max))"))
    if name in _BYTES:
        return ReadType(pa.binary(), of_kinds(pa.binary(), bytes))
    if name == "uniqueidentifier":
        select = _as("LOWER(CONVERT(varchar(36), {}))")
        return ReadType(pa.string(), text_values(pa.string()), select)
    if name == "date":
        return ReadType(pa.date32(), dates)
    if name in ("datetime", "smalldatetime", "datetime2"):
        arrow = pa.timestamp("us")
        return ReadType(arrow, _times(from_text(arrow)), _as("CONVERT(varchar(27), {}, 121)"))
    if name == "datetimeoffset":
        arrow = pa.timestamp("us", tz="UTC")
        # The moment: the same in each zone. Style 127 of what is in UTC ends with a Z.
        select = _as("CONVERT(varchar(33), CAST(SWITCHOFFSET({}, 0) AS datetime2), 121) + 'Z'")
        return ReadType(arrow, _times(from_text(arrow)), select)
    if name == "time":
        return ReadType(pa.string(), _times(_clocks), _as("CONVERT(varchar(16), {}, 121)"))
    raise UnsupportedTypeError(_REFUSED.get(name, "no rule for this type"))


def written(name: str, precision: int, scale: int, length: int) -> str:
    """A type as people write it; those of times as `DebeziumValues` knows them.

    >>> written("nvarchar", 0, 0, 80), written("varchar", 0, 0, -1), written("decimal", 10, 2, 9)
    ('nvarchar(40)', 'varchar(max)', 'decimal(10,2)')
    """
    if name in _TEXTS | _BYTES:
        size = length // 2 if name.startswith("n") else length
        return f"{name}({'max' if length < 0 else size})"
    if name in ("decimal", "numeric"):
        return f"{name}({precision},{scale})"
    if name == "time":
        # Debezium's unit goes by its digits, as PostgreSQL's does.
        return f"time({scale}) without time zone"
    return f"{name}({scale})" if name in ("datetime2", "datetimeoffset") else name


def _as(pattern: str) -> Callable[[str], str]:
    return lambda name: pattern.format(name)


def _times(convert: Convert) -> Convert:
    """Of texts of times, without zeros at the end; more than microseconds halts."""

    def converted(values: list[str | None]) -> pa.Array:
        texts = text_values(pa.string())(values)
        texts = pc.replace_substring_regex(texts, r"(\.\d*?)0+(Z?)$", r"\1\2")
        texts = pc.replace_substring_regex(texts, r"\.(Z?)$", r"\1")
        if pc.any(pc.match_substring_regex(texts, r"\.\d{7}")).as_py():
            raise ValueError("a seventh digit of the second, which microseconds cannot hold")
        return convert(texts)

    return converted


def _clocks(texts: pa.Array) -> pa.Array:
    return texts
