"""PostgreSQL types: what each becomes, what is selected for it, and how its text is converted."""

from __future__ import annotations

import re

import pyarrow as pa

from mview.schema import parse_type
from mview_connectors.databases.values import (
    Convert,
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

#: Types of which a row has a number and a text has what is called so now.
_NAMES = {
    f"reg{what}"
    for what in (
        *("class", "collation", "config", "dictionary", "namespace", "oper", "operator", "proc"),
        *("procedure", "role", "type"),
    )
}

_MODIFIER = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)")

#: numeric without precision: the widest decimal, with room on both sides of the point.
_UNCONSTRAINED = pa.decimal128(38, 18)


def read_as(text: str, wanted: pa.DataType) -> Convert:
    """The conversion of what a type's output function prints to a type that a setting says.

    Text is what the server prints, for a load and in its log alike; with these exceptions: a time
    with a zone is turned to UTC, as Debezium's is.

    Args:
        text: of the type, as `format_type` prints it.
        wanted: string or a decimal.

    Raises:
        UnsupportedTypeError: it cannot be read so.
    """
    base = _MODIFIER.sub("", text)
    if base.removesuffix("[]") in _NAMES:
        raise UnsupportedTypeError(
            "it prints the name that something has now: that changes without a change of the row"
        )
    if pa.types.is_string(wanted):
        return _utc_clocks if base == "time with time zone" else from_text(wanted)
    if base == "money":
        return lambda texts: from_text(wanted)(pa.array(_amounts(texts, wanted.scale), pa.string()))
    if text != "numeric":  # a scale that is declared is the one that Debezium sends numbers by
        raise UnsupportedTypeError(
            "only numeric without a scale, and money, can be read as a decimal that is said"
        )
    return from_text(wanted)


_CLOCK = re.compile(
    r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|([+-])(\d\d)(?::?(\d\d))?(?::(\d\d))?)"
)


def _utc_clocks(texts: pa.Array) -> pa.Array:
    """`12:34:56.70+05:30` as `07:04:56.7Z`: the same moment of a day."""
    return pa.array([None if text is None else utc_clock(text) for text in texts.to_pylist()])


def utc_clock(text: str) -> str:
    """A time of a day with a zone, turned to UTC.

    >>> utc_clock("00:30:00.120000+02"), utc_clock("23:59:59-00:00:01")
    ('22:30:00.12Z', '00:00:00Z')
    """
    match = _CLOCK.fullmatch(text)
    if match is None or match[1] == "24":
        raise ValueError(f"{text} is no time of a day in UTC")
    hour, minute, second = (int(part) for part in match.groups()[:3])
    shift = [int(part or 0) for part in match.groups()[5:]]
    offset = (shift[0] * 60 + shift[1]) * 60 + shift[2]
    at = (hour * 60 + minute) * 60 + second + (offset if match[5] == "-" else -offset)
    hour, rest = divmod(at % 86_400, 3600)
    tail = (match[4] or "").rstrip("0")
    return f"{hour:02d}:{rest // 60:02d}:{rest % 60:02d}{'.' if tail else ''}{tail}Z"


def _amounts(texts: pa.Array, scale: int) -> list[str | None]:
    """Amounts of money as numbers: in each locale the last digits are those of the parts."""
    amounts: list[str | None] = []
    for text in texts.to_pylist():
        digits = "".join(filter(str.isdecimal, text or ""))
        if text is not None and not digits:
            raise ValueError(f"{text} is no amount")
        sign = "-" if text is not None and ("-" in text or "(" in text) else ""
        whole, parts = digits[: len(digits) - scale], digits[len(digits) - scale :]
        amounts.append(None if text is None else f"{sign}{whole or 0}.{parts}".rstrip("."))
    return amounts


def read_type(text: str, category: str = "", wanted: pa.DataType | None = None) -> ReadType:
    """How to read a type, given as `format_type` prints it.

    Args:
        text: e.g. `numeric(12,2)`, `timestamp(3) without time zone`, `integer[]`.
        category: `e` for an enum type.
        wanted: what a setting says that it is read as.

    Raises:
        UnsupportedTypeError: the type has no exact equal.
    """
    if wanted is not None:
        return ReadType(wanted, read_as(text, wanted))
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
