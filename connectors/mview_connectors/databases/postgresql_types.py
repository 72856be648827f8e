"""PostgreSQL types: what each becomes, what is selected for it, and how its text is converted."""

from __future__ import annotations

import re

import pyarrow as pa

from mview.schema import parse_type
from mview_connectors.databases.values import (
    ReadType,
    UnsupportedTypeError,
    bits_from_text,
    booleans,
    from_hex,
    from_text,
    lists,
)

#: Type text without modifiers -> name in mview's vocabulary; arrays and modifiers are below.
_PLAIN = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
    "bytea": "binary",
    **dict.fromkeys(
        (
            "text",
            "character varying",
            "character",
            "citext",
            "uuid",
            "json",
            "jsonb",
            "xml",
            "inet",
            "cidr",
            "macaddr",
            "macaddr8",
            "time without time zone",
        ),
        "string",
    ),
}

#: Element types of arrays that print one way only.
_ELEMENTS = {
    "boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric", "date",
    "timestamp without time zone", "timestamp with time zone", "text", "character varying", "uuid",
}  # fmt: skip

#: Types that are well known but have no exact equal, and why.
_REFUSED = {
    "bit varying": "the changelog does not say how many bits a value has",
    "money": "its text follows the server's locale and the changelog has another form",
    "interval": "its months and days have no fixed length, the changelog sends microseconds",
    "time with time zone": "the changelog turns it to UTC, SQL keeps the zone",
}

_MODIFIER = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")

#: numeric without precision: the widest decimal, with room on both sides of the point.
_UNCONSTRAINED = pa.decimal128(38, 18)


def read_type(text: str, category: str = "") -> ReadType:
    """How to read a type, given as `format_type` prints it.

    Args:
        text: e.g. `numeric(12,2)`, `timestamp(3) without time zone`, `integer[]`.
        category: `e` for an enum type.

    Raises:
        UnsupportedTypeError: the type has no exact equal.
    """
    if text.endswith("[]"):
        return _array(text[:-2])
    if category == "e":
        return ReadType(pa.string(), from_text(pa.string()))
    modifier = _MODIFIER.search(text)
    base = _MODIFIER.sub("", text)
    if base == "numeric":
        arrow = _decimal(modifier)
        return ReadType(arrow, from_text(arrow))
    if base == "bit":
        if modifier and modifier[1] == "1":
            return ReadType(pa.bool_(), booleans)
        return ReadType(pa.binary(), bits_from_text)
    if base not in _PLAIN:
        raise UnsupportedTypeError(_REFUSED.get(base, "no rule for this type"))
    arrow = parse_type(_PLAIN[base])
    if base == "boolean":
        return ReadType(arrow, booleans)
    if base == "bytea":
        return ReadType(arrow, from_hex, lambda name: f"encode({name}, 'hex')")
    return ReadType(arrow, from_text(arrow))


def _decimal(modifier: re.Match[str] | None) -> pa.DataType:
    if modifier is None:
        return _UNCONSTRAINED
    precision, scale = int(modifier[1]), int(modifier[2] or 0)
    # numeric(2,5) holds 0.00012: as a decimal it needs as many digits as its scale.
    precision = max(precision, scale)
    if precision > 38:
        raise UnsupportedTypeError("a decimal has at most 38 digits")
    if scale < 0:
        raise UnsupportedTypeError("a decimal's scale cannot be negative")
    return pa.decimal128(precision, scale)


def _array(element: str) -> ReadType:
    base = _MODIFIER.sub("", element)
    if base not in _ELEMENTS:
        raise UnsupportedTypeError("arrays are read of numbers, booleans, texts, dates, uuids only")
    inner = read_type(element)
    # JSON of texts: an exact form with NULLs and nesting told apart, whatever the element.
    return ReadType(
        pa.list_(inner.arrow),
        lists(inner.convert),
        lambda name: f"array_to_json({name}::text[])::text",
    )
