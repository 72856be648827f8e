"""What the schema envelope of a Debezium message says of its values.

JsonConverter writes it with `schemas.enable=true`, which is its default; a schema of Avro says the
same. A number is then known to
be of milliseconds or microseconds, and a text to be bytes or digits, whatever the connector's
settings are: such a value becomes a `Told`, and no setting is asked about it.

Names of types: https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

#: How a value is written: a number of a unit, `cut` milliseconds of what may have had more, bytes
#: as base64, text, or NULL that may have been a time which the form cannot hold.
Form = Literal["ms", "us", "ns", "cut", "bytes", "text", "lost"]


class Told(NamedTuple):
    """A value whose form the envelope tells."""

    form: Form
    value: Any


_FORMS: dict[str, Form] = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "org.apache.kafka.connect.data.Timestamp": "cut",
    "org.apache.kafka.connect.data.Time": "cut",
}

#: Times that may be of more than a day, and below zero: NULL is NULL.
_CLOCKS = tuple(f"io.debezium.time.{name}" for name in ("Time", "MicroTime", "NanoTime"))

#: Times of a day: of more than that, and below zero, NULL is sent.
_WITHIN_A_DAY = ("io.debezium.time.IsoTime", "org.apache.kafka.connect.data.Time")

_DECIMAL = "org.apache.kafka.connect.data.Decimal"

Reader = Callable[[Any], Any]


def readers(schema: Any, image: str) -> dict[str, Reader]:
    """By column, what turns a value of the message into one that says what it is.

    Args:
        schema: of the envelope's value, or of a key.
        image: `before` or `after`; empty: the schema's own fields.
    """
    fields = _fields(schema)
    if image:
        fields = _fields(next((field for field in fields if field.get("field") == image), None))
    by_name = {str(field.get("field")): _reader(field) for field in fields}
    return {name: reader for name, reader in by_name.items() if reader is not None}


def read(row: Mapping[str, Any], columns: Mapping[str, Reader], but: object) -> dict[str, Any]:
    """A row with what its envelope says.

    Args:
        row: values as they were sent; `but` stays as it is.
        columns: of `readers`.
        but: stands for a value that was not sent.
    """
    return {
        name: columns[name](value) if value is not but and name in columns else value
        for name, value in row.items()
    }


def by_form(
    values: Sequence[Any], convert: Callable[[Form | None, Sequence[Any]], pa.Array]
) -> pa.Array:
    """`convert` over values of one form: None where no envelope tells one."""
    forms = {value.form if type(value) is Told else None for value in values if value is not None}
    if len(forms) > 1:  # the converter was set otherwise in between
        return pa.concat_arrays([by_form([value], convert) for value in values])
    form = next(iter(forms), None)
    if form is None:
        return convert(None, values)
    return convert(form, [None if value is None else value.value for value in values])


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    fields = schema.get("fields") if type(schema) is dict else None
    return [field for field in fields if type(field) is dict] if type(fields) is list else []


def _reader(field: Mapping[str, Any]) -> Reader | None:
    name, kind = field.get("name"), field.get("type")
    if kind == "array" and type(items := field.get("items")) is dict:
        element = _reader(items)
        return None if element is None else lambda values: _each(values, element)
    form = _FORMS.get(str(name))
    if name in _WITHIN_A_DAY:
        return lambda value: (
            Told("lost", None) if value is None else Told(form, value) if form else value
        )
    if form is not None:
        clock = name in _CLOCKS
        return lambda value: None if value is None and not clock else Told(form, value)
    if name == _DECIMAL and type(parameters := field.get("parameters")) is dict:
        scale = _number(parameters.get("scale"))
        return lambda value: (
            {"scale": scale, "value": value} if type(value) in (str, bytes) else value
        )
    if name is None and kind == "bytes":
        return lambda value: None if value is None else Told("bytes", value)
    if name is None and kind == "string":
        # Of these only could be thought that they are bytes.
        return lambda value: (
            Told("text", value) if type(value) is str and value.isdigit() else value
        )
    return None


def _each(values: Any, element: Reader) -> Any:
    if type(values) is not list:
        return values
    return [element(value) for value in values]


def _number(text: Any) -> int | None:
    return int(text) if type(text) is str and text.lstrip("-").isdecimal() else None
