"""Values of a test file as those of a column: exactly, or refused."""

from __future__ import annotations

import datetime as dt
import math
import re
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from mview.errors import UserError, shown
from mview.schema import type_name

#: Digits that a number without quotes keeps on its way through YAML.
_SURE = 15
_HEX = re.compile(r"([0-9a-fA-F]{2})*")
_UTC = dt.timezone.utc
#: Numbers that YAML and Spark write in ways of their own.
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _Unfit(Exception):  # noqa: N818
    """A value is not one of the type; says what is allowed."""


def value_of(given: Any, kind: pa.DataType) -> Any:
    """A value for a column.

    Args:
        given: as YAML has it: text, number, true, false, None or a list.
        kind: the column's type.

    Returns:
        What Arrow takes for the type.

    Raises:
        UserError: it is not a value of the type, or not exactly; with what is allowed.
    """
    if given is None:
        return None
    try:
        value = _converted(given, kind)
        return pa.scalar(value, kind).as_py()
    except _Unfit as error:
        allowed = str(error)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        allowed = f"a value of {type_name(kind)}"
    raise UserError(
        f"not a value of type {type_name(kind)}", got=shown(str(given)), allowed=allowed
    )


def _converted(given: Any, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        if not isinstance(given, list):
            raise _Unfit("a list")
        return [None if part is None else _converted(part, kind.value_type) for part in given]
    if pa.types.is_boolean(kind):
        return _of(given, bool, "true or false")
    if isinstance(given, bool):
        raise _Unfit(f"a value of {type_name(kind)}; text in quotes")
    if pa.types.is_integer(kind):
        return _of(given, int, "a whole number")
    if pa.types.is_decimal(kind):
        return _decimal(given, kind)
    if pa.types.is_floating(kind):
        return _float(given)
    text = _of(given, str, f"a {type_name(kind)} as text, in quotes")
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        if not _HEX.fullmatch(text):
            raise _Unfit("bytes as hexadecimal digits")
        return bytes.fromhex(text)
    return _time(text, kind)


def _of(given: Any, kind: type, allowed: str) -> Any:
    if type(given) is not kind:
        raise _Unfit(allowed)
    return given


def _decimal(given: Any, kind: pa.DataType) -> Decimal:
    allowed = f"a number of at most {kind.scale} digits after the point"
    if isinstance(given, float) and len(Decimal(repr(given)).as_tuple().digits) > _SURE:
        raise _Unfit("a number of so many digits in quotes: YAML would round it")
    try:
        number = Decimal(repr(given) if isinstance(given, float) else str(given))
    except InvalidOperation:
        raise _Unfit(allowed) from None
    if not number.is_finite() or -int(number.normalize().as_tuple().exponent) > kind.scale:
        raise _Unfit(allowed)
    return number


def _float(given: Any) -> float:
    if isinstance(given, str):
        if given not in _NAMED:
            raise _Unfit("a number, NaN, Infinity or -Infinity")
        return _NAMED[given]
    if not isinstance(given, int | float):
        raise _Unfit("a number")
    return float(given)


def _time(text: str, kind: pa.DataType) -> dt.date | dt.datetime:
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(text)
    # Python 3.10 reads no Z.
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if kind.tz is None:
        if moment.tzinfo is not None:
            raise _Unfit("a date and time without a zone")
        return moment
    return moment.replace(tzinfo=_UTC) if moment.tzinfo is None else moment.astimezone(_UTC)


def given_of(value: Any, kind: pa.DataType) -> Any:
    """A value of a column as a test file has it: `value_of` gives exactly this value again.

    Args:
        value: as Arrow gives it to Python.
        kind: the column's type.

    Raises:
        UserError: no test file can have it.
    """
    given = _given(value, kind)
    with suppress(UserError):
        if repr(value_of(given, kind)) == repr(value):
            return given
    raise UserError(
        "a test file cannot have this value",
        got=shown(value),
        allowed="values of the types that columns of tables may have",
    )


def _given(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, list):
        return [_given(part, kind.value_type) for part in value]
    if isinstance(value, Decimal):
        digits = len(value.normalize().as_tuple().digits)
        if value == value.to_integral_value():
            return int(value)
        return float(value) if digits <= _SURE else str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return next(name for name, number in _NAMED.items() if repr(number) == repr(value))
        return float(str(np.float32(value))) if pa.types.is_float32(kind) else value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):
        moment = value if value.tzinfo is None else value.astimezone(_UTC).replace(tzinfo=None)
        return moment.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, dt.date) else value


def milliseconds(text: Any) -> int:
    """A time in UTC as milliseconds since 1970.

    Raises:
        UserError: it is no time.
    """
    moment = value_of(text, pa.timestamp("us", tz="UTC"))
    if moment is None:
        raise UserError("a time is missing", allowed="a date and time, such as 2026-01-31 12:00")
    return int(moment.timestamp() * 1000)
