"""Exact conversion of what a driver returns into Arrow, and the place of a value that does not fit.

Arrow's own casts do the work on whole columns and halt on loss. Only when one halts is the
offending row looked for.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.errors import UserError, literal
from mview.schema import Column, TableSchema, type_name
from mview_connectors.formats import values as exact

#: A column as the driver returned it: a list of Python values, or an Arrow array of texts or bytes.
Raw = Any

#: Turns a raw column into an Arrow array; raises one of MISFITS when a value does not fit.
Convert = Callable[[Raw], pa.Array]


class UnsupportedTypeError(Exception):
    """A type that cannot be read exactly; the text is the reason."""


@dataclass(frozen=True)
class ReadType:
    """How a column of one database type is read.

    Attributes:
        arrow: the column's type.
        select: the SQL expression for a quoted column name.
        convert: from the texts of that expression to `arrow`.
    """

    arrow: pa.DataType
    convert: Convert
    select: Callable[[str], str] = str


MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)


def from_text(target: pa.DataType) -> Convert:
    """The conversion of texts, as databases print values, to an Arrow type."""
    if pa.types.is_decimal(target):
        return decimals(target)
    if pa.types.is_temporal(target):
        return lambda texts: exact.in_years(texts.cast(target))
    return lambda texts: texts.cast(target)


def decimals(target: pa.DataType) -> Convert:
    """The conversion of texts of numbers to a decimal type, exactly."""

    def convert(texts: pa.Array) -> pa.Array:
        if _casts_exactly(texts, target):
            return texts.cast(target)
        return exact.decimals(texts.to_pylist(), target)

    return convert


def _casts_exactly(texts: pa.Array, target: pa.DataType) -> bool:
    """Whether Arrow's own cast of the texts is right.

    It shifts 128-bit integers unchecked: 1e-77 becomes 0, 1e14 any number at scale 38, and
    1e-999999999 ends the process.
    """
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    data = bytes(texts.buffers()[2] or b"")
    return longest + target.scale <= _DIGITS and b"e" not in data and b"E" not in data


#: Decimal digits that 128 bits always hold.
_DIGITS = 38


def naive_instants(texts: pa.Array) -> pa.Array:
    """Texts without an offset, read in a session whose zone is UTC, as instants."""
    return exact.in_years(texts.cast(pa.timestamp("us"))).cast(pa.timestamp("us", tz="UTC"))


def booleans(texts: pa.Array) -> pa.Array:
    """`t`/`true`/`1` and `f`/`false`/`0` as booleans."""
    true, false = pa.array(["t", "true", "1"]), pa.array(["f", "false", "0"])
    result = pc.is_in(texts, true)
    if not pc.all(pc.or_(result, pc.is_in(texts, false)).filter(texts.is_valid())).as_py():
        raise ValueError("not a boolean")
    return pc.if_else(texts.is_valid(), result, None)


def from_hex(texts: pa.Array) -> pa.Array:
    """Hexadecimal texts as bytes; all values are decoded in one call."""
    if texts.offset:
        texts = texts.take(pa.array(np.arange(len(texts))))
    validity, offsets_buffer, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return pa.array(
            [b"" if value is not None else None for value in texts.to_pylist()], "binary"
        )
    offsets = np.frombuffer(offsets_buffer, np.int32, len(texts) + 1)
    if (offsets & 1).any():
        raise ValueError("odd number of hexadecimal digits")
    decoded = binascii.unhexlify(memoryview(data)[offsets[0] : offsets[-1]])
    halves = ((offsets - offsets[0]) // 2).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(texts), [validity, pa.py_buffer(halves), pa.py_buffer(decoded)]
    )


def bits_from_text(texts: pa.Array) -> pa.Array:
    """Texts of zeros and ones as bytes, the most significant byte first."""
    return pa.array(
        [
            None if text is None else int(text, 2).to_bytes((len(text) + 7) // 8, "big")
            for text in texts.to_pylist()
        ],
        pa.binary(),
    )


def lists(element: Convert) -> Convert:
    """JSON arrays of texts as lists; the elements are converted all at once."""

    def convert(texts: pa.Array) -> pa.Array:
        rows = [None if text is None else json.loads(text) for text in texts.to_pylist()]
        return list_of(rows, element)

    return convert


def list_of(rows: Sequence[list[str | None] | None], element: Convert) -> pa.Array:
    """Lists of texts as an array of lists; the elements are converted all at once."""
    nested = pa.array(rows, pa.list_(pa.string()))
    # `values` ignores null rows' slots, as a null row has no elements here.
    return pa.ListArray.from_arrays(nested.offsets, element(nested.values), mask=nested.is_null())


def build_batch(
    table: str, schema: TableSchema, raw: Sequence[Raw], converts: Sequence[Convert]
) -> pa.RecordBatch:
    """One batch of rows, or a UserError with the table, column, key and value that does not fit.

    Args:
        table: `<connection>.<table>`, for messages.
        schema: the table.
        raw: raw columns in the order of the schema.
        converts: one conversion per column.
    """
    arrays = []
    for column, values, convert in zip(schema.columns, raw, converts, strict=True):
        try:
            array = convert(values)
        except MISFITS as error:
            row, reason = _first_misfit(values, convert, error)
            raise _misfit(table, schema, column, raw, row, reason) from None
        if array.null_count and not column.nullable:
            row = array.is_null().index(True).as_py()
            raise _misfit(table, schema, column, raw, row, "the column is NOT NULL")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def _first_misfit(values: Raw, convert: Convert, error: Exception) -> tuple[int, str]:
    """The first value that does not fit, and why: what all of them raised may be of a later one."""
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            convert(values[start:middle])
        except MISFITS:
            end = middle
        else:
            start = middle
    try:
        convert(values[start : start + 1])
    except MISFITS as its_own:
        error = its_own
    return start, _words(error)


def _words(error: Exception) -> str:
    """Why a value does not fit, without what only programs can do about it."""
    text = str(error)
    if "expected a zone offset" in text:
        return "it has no offset of a time zone, such as +00:00"
    if "expected no zone offset" in text:
        return "it has an offset of a time zone"
    return "it is no such value" if text.startswith("Failed to parse string") else text


def _misfit(
    table: str, schema: TableSchema, column: Column, raw: Sequence[Raw], row: int, reason: str
) -> UserError:
    def value(of: Column) -> Any:
        cell = raw[schema.names.index(of.name)][row]
        if not isinstance(cell, pa.Scalar):
            return cell  # as the driver has understood it
        cell = cell.as_py()
        if isinstance(cell, bytes) and not pa.types.is_binary(of.type):
            return cell.decode(errors="backslashreplace")  # a text that is not decoded yet
        return cell

    def key_text(of: Column) -> str:
        cell = value(of)
        # Of another type a text is what the driver has: 7, and not '7'.
        return cell if isinstance(cell, str) and not pa.types.is_string(of.type) else literal(cell)

    key = ", ".join(f"{name}={key_text(schema.column(name))}" for name in schema.key)
    got = value(column)
    return UserError(
        f"a value does not fit its column: {reason}",
        where=f"{table}.{column.name}, row with {key}",
        got=literal(got)[:200],
        allowed=f"{type_name(column.type)} ({column.source_type})",
        safe="nothing of this chunk was taken",
        hint="correct the row in the source database, or have no view use the column; then run "
        "again",
    )
