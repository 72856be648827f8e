"""MySQL and MariaDB types: what each becomes, what is selected for it, how it is converted."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from mview.schema import parse_type
from mview_connectors.databases.values import (
    Convert,
    ReadType,
    UnsupportedTypeError,
    from_text,
    naive_instants,
)

#: Base type -> name in mview's vocabulary, signed and unsigned: unsigned needs the next wider one.
_INTEGERS = {
    "tinyint": ("tinyint", "smallint"),
    "smallint": ("smallint", "int"),
    "mediumint": ("int", "int"),
    "int": ("int", "bigint"),
    "bigint": ("bigint", "decimal(20,0)"),
    "year": ("int", "int"),
}
_PLAIN = {"double": "double", "date": "date", "datetime": "timestamp_ntz"}
#: MariaDB's own, read as it prints them, and why not through Debezium (3.5).
NOT_BY_DEBEZIUM = {
    "uuid": "it shifts values that end in a zero byte, so two rows may send the same text",
    "inet6": "it ends at a table that has such a column",
    "inet4": "it ends at a table that has such a column",
}
_TEXTS = {
    "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set",
    *NOT_BY_DEBEZIUM,
}  # fmt: skip
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_REFUSED = {
    "json": "MySQL's changelog prints JSON documents in another form than SELECT does",
}

_PARTS = re.compile(r"([a-z0-9]+)(?:\((.*)\))?(.*)", re.DOTALL)


def read_type(text: str) -> ReadType:
    """How to read a type, given as information_schema's COLUMN_TYPE, e.g. `int(11) unsigned`.

    Raises:
        UnsupportedTypeError: the type has no exact equal.
    """
    match = _PARTS.fullmatch(text.lower())
    base, modifier, rest = match.groups() if match else (text, None, "")
    if base in _INTEGERS:
        return _text(parse_type(_INTEGERS[base]["unsigned" in rest]))
    if base == "decimal":
        precision, scale = (int(part) for part in (modifier or "10,0").split(","))
        if precision > 38:
            raise UnsupportedTypeError("a decimal has at most 38 digits")
        return _text(pa.decimal128(precision, scale))
    if base in _PLAIN:
        return _text(parse_type(_PLAIN[base]))
    if base == "float":
        # A float prints six digits only; as a double it prints the value itself.
        convert = _of_text(lambda texts: texts.cast(pa.float64()).cast(pa.float32()))
        return ReadType(pa.float32(), convert, lambda name: f"{name} * 1e0")
    if base == "timestamp":
        return ReadType(pa.timestamp("us", tz="UTC"), _of_text(naive_instants))
    if base == "time":
        return ReadType(pa.string(), _of_text(_without_zeros))
    if base == "bit":
        is_single = modifier in (None, "1")
        return ReadType(pa.bool_(), _bit) if is_single else ReadType(pa.binary(), _bytes)
    if base in _TEXTS:
        return _text(pa.string())
    if base in _BYTES:
        return ReadType(pa.binary(), _bytes)
    raise UnsupportedTypeError(_REFUSED.get(base, "no rule for this type"))


def _of_text(convert: Convert) -> Convert:
    # The cast to string checks that the bytes are UTF-8, the character set of the connection.
    return lambda values: convert(values.cast(pa.string()))


def _text(arrow: pa.DataType) -> ReadType:
    return ReadType(arrow, _of_text(from_text(arrow)))


def _bytes(values: pa.Array) -> pa.Array:
    return values


def _bit(values: pa.Array) -> pa.Array:
    return pc.not_equal(values, b"\0")


def _without_zeros(texts: pa.Array) -> pa.Array:
    """`12:34:56.780` as `12:34:56.78`, `12:34:56.000` as `12:34:56`."""
    trimmed = pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1")
    return pc.replace_substring_regex(trimmed, r"\.$", "")
