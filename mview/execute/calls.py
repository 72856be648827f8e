"""Calling declared functions over Arrow columns, in whatever process a query runs.

A function is found by import, never pickled: its module is installed there, or lies beside the
configuration file, whose folder every executor sees. What it gives must be of the declared type
exactly: Spark's own Python UDFs turn a wrong type into NULL.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from mview.errors import ConfigError, UserError, literal, one_line
from mview.plan.functions.declared import Function
from mview.schema import parse_type, type_name

#: Characters of arguments in a message.
_SHOWN = 200
#: What Arrow raises where values do not fit a type.
_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "string": lambda arrow: pa.types.is_string(arrow) or pa.types.is_large_string(arrow),
}
#: pandas makes floats of whole numbers; the cast refuses what would change.
_BETWEEN_NUMBERS = (("integer", "float"), ("float", "integer"), ("integer", "decimal"))
_SAFE = "published epochs are untouched; nothing of this one was published"


@dataclass(frozen=True)
class Callee:
    """A declared function as `pa.Array, … -> pa.Array`.

    Args:
        function: its declaration.
        folder: of the configuration file.
    """

    function: Function
    folder: str

    def __call__(self, *columns: pa.Array) -> pa.Array:
        """The results for the rows of some columns.

        Raises:
            UserError: the function raised, or gave what is not of its type; with the arguments.
            ConfigError: it cannot be imported here.
        """
        if not columns:
            raise self._error("is called without an argument")
        call = find(self.function, self.folder)
        if self.function.kind == "pandas":
            return self._typed(self._series(call, columns), None)
        rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
        return self._typed([self._value(call, row) for row in rows], rows)

    def _value(self, call: Callable[..., Any], row: Sequence[Any]) -> Any:
        try:
            return call(*row)
        except Exception as error:
            raise self._raised(error, call, row) from None

    def _series(self, call: Callable[..., Any], columns: Sequence[pa.Array]) -> Any:
        import pandas as pd

        arguments = [column.to_pandas(types_mapper=_nullable().get) for column in columns]
        try:
            returned = call(*arguments)
        except Exception as error:
            raise self._raised(error, call, None) from None
        if not isinstance(returned, pd.Series) or len(returned) != len(columns[0]):
            size = f" of {len(returned)} rows" if isinstance(returned, pd.Series) else ""
            raise self._error(
                f"gave a {type(returned).__name__}{size}",
                allowed=f"a pandas Series of {len(columns[0])} rows, as the arguments have",
            )
        return returned

    def _typed(self, values: Any, rows: Sequence[Sequence[Any]] | None) -> pa.Array:
        arrow = parse_type(self.function.returns)
        try:
            # pandas has one missing value: NaN is NULL there, and a number for Python.
            return _exactly(values, arrow, from_pandas=rows is None)
        except _MISFITS as error:
            row = None if rows is None else _first_bad(values, rows, arrow)
            raise self._error(
                f"gave what is no {type_name(arrow)}: {error}", got=_shown(row)
            ) from None

    def _raised(
        self, error: Exception, call: Callable[..., Any], row: Sequence[Any] | None
    ) -> UserError:
        file = getattr(sys.modules.get(getattr(call, "__module__", "")), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        said = " ".join(str(error).split())
        return self._error(
            f"raised {type(error).__name__}: {said}",
            where=f"{file}:{lines[-1]}" if lines else self.function.python,
            got=_shown(row),
        )

    def _error(self, what: str, **more: Any) -> UserError:
        where = more.pop("where", self.function.python)
        return UserError(
            f"function {self.function.name}() {what}",
            where=where,
            safe=_SAFE,
            hint="correct the function or the data it gets, and run the same command again",
            **more,
        )


def find(function: Function, folder: str) -> Callable[..., Any]:
    """The Python behind a function.

    Args:
        function: its declaration.
        folder: of the configuration file; modules in it are found after installed ones.

    Raises:
        ConfigError: the module cannot be imported, or has no such function.
    """
    return _imported(function.name, function.python, folder)


@cache
def _imported(name: str, path: str, folder: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"functions.{name}: module {module_name!r} cannot be imported: "
            f"{type(error).__name__}: {error}",
            hint=f"install it where Spark's executors run, too, or put it into {folder}",
        ) from None
    target = getattr(module, attribute, None)
    if not callable(target):
        kind = "no function" if hasattr(module, attribute) else "nothing"
        raise ConfigError(
            f"functions.{name}: {kind} is called {attribute!r} in {module_name}",
            where=str(getattr(module, "__file__", module_name)),
            hint="correct 'python' in the configuration: my_package.my_module:my_function",
        )
    return target  # type: ignore[no-any-return]


@cache
def _nullable() -> dict[pa.DataType, Any]:
    """pandas types with a NULL of their own: without, a NULL in one row changes all the others."""
    import pandas as pd

    return {
        pa.bool_(): pd.BooleanDtype(),
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.float32(): pd.Float32Dtype(),
        pa.float64(): pd.Float64Dtype(),
    }


def _exactly(values: Any, arrow: pa.DataType, *, from_pandas: bool) -> pa.Array:
    """Values as an array of a type, without loss: `pa.array(…, type)` cuts 1.5 to 1."""
    array = pa.array(values, from_pandas=from_pandas)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    for kind in _types_in(values, array.type, from_pandas):
        if not _may_become(kind, arrow):
            raise TypeError(f"it is a {kind}")
    if pa.types.is_integer(array.type) and pa.types.is_decimal(arrow):
        # Arrow wants room for all numbers of the integer's type.
        array = array.cast(pa.decimal128(38, arrow.scale))
    return array.cast(arrow)


def _types_in(values: Any, common: pa.DataType, from_pandas: bool) -> list[pa.DataType]:
    """The types of values; of objects each by itself: what one row gives must not hang on others.

    Beside a date, a time is taken for one, too; and beside an instant a time without a zone.
    """
    if not isinstance(values, list) and values.dtype != object:
        return [common]
    samples = {(type(value), getattr(value, "tzinfo", None) is None): value for value in values}
    return [pa.array([value], from_pandas=from_pandas).type for value in samples.values()]


def _may_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type are values of another, or may be; the cast looks at each."""
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return _may_become(given.value_type, wanted.value_type)
    kinds = _kind(given), _kind(wanted)
    return kinds[0] == kinds[1] or pa.types.is_null(given) or kinds in _BETWEEN_NUMBERS


def _kind(arrow: pa.DataType) -> str:
    if pa.types.is_timestamp(arrow):
        return "instant" if arrow.tz else "reading"
    return next((name for name, holds in _KINDS.items() if holds(arrow)), str(arrow))


def _first_bad(values: Sequence[Any], rows: Sequence[Any], arrow: pa.DataType) -> Any:
    for value, row in zip(values, rows, strict=True):
        try:
            _exactly([value], arrow, from_pandas=False)
        except _MISFITS:
            return row
    return None


def _shown(row: Sequence[Any] | None) -> str | None:
    if row is None:
        return None
    text = one_line(", ".join(map(literal, row)))
    return f"({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"
