"""Declared functions over Arrow columns: exact types in and out; errors with line and arguments."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.errors import ConfigError, UserError
from mview.execute.calls import Callee
from mview.plan.functions.declared import Function
from mview.schema import parse_type

MODULE = """
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pandas as pd


def same(value):
    return value


def constant(value):
    return {constant}


def later(at):
    return at + timedelta(hours=1)


def ratio(a, b):
    return a / b


def shorter(values):
    return values.iloc[1:]


def as_list(values):
    return list(values)


def text(values):
    return values.astype("string")


def root(values):
    return values.astype("float64") ** 0.5
"""

Call = Callable[..., list[Any]]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """`call(name, returns, *columns, kind=…, constant=…)`: the results."""
    # A name of its own: Python keeps the modules that it has imported.
    name = tmp_path.parent.name + tmp_path.name
    module = "calls_" + "".join(c if c.isalnum() else "_" for c in name)

    def call(
        name: str, returns: str, *columns: pa.Array, kind: Any = "python", constant: str = "None"
    ) -> list[Any]:
        (tmp_path / f"{module}.py").write_text(MODULE.replace("{constant}", constant))
        function = Function(name, f"{module}:{name}", returns, kind)
        found = Callee(function, str(tmp_path))(*columns)
        assert found.type == parse_type(returns)
        values: list[Any] = found.to_pylist()
        return values

    return call


@pytest.mark.parametrize(
    ("returns", "values"),
    [
        ("bigint", [1, None, -(2**63)]),
        ("string", ["ä", "", None]),
        ("double", [0.1, None]),
        ("boolean", [True, False, None]),
        ("decimal(10,2)", [Decimal("1.50"), None]),
        ("date", [dt.date(1582, 10, 14), None]),
        ("timestamp", [dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc), None]),
        ("timestamp_ntz", [dt.datetime(2024, 2, 29, 12, 0, 0, 1), None]),
        ("binary", [b"\x00", None]),
        ("array<int>", [[1, None], [], None]),
    ],
)
def test_values_come_and_go_as_they_are(call: Call, returns: str, values: list[Any]) -> None:
    assert call("same", returns, pa.array(values, parse_type(returns))) == values


def test_nan_is_a_number_for_python_and_no_value_for_pandas(call: Call) -> None:
    assert math.isnan(call("same", "double", pa.array([math.nan]))[0])
    assert call("root", "double", pa.array([4.0, -1.0]), kind="pandas") == [2.0, None]


def test_whole_numbers_fit_where_they_are_exact(call: Call) -> None:
    assert call("same", "double", pa.array([3, 4])) == [3.0, 4.0]
    assert call("same", "decimal(10,2)", pa.array([3])) == [Decimal("3.00")]


@pytest.mark.parametrize(
    ("returns", "constant"),
    [
        ("string", "3"),
        ("bigint", "1.5"),
        ("bigint", "'1'"),
        ("int", "2**31"),
        ("decimal(10,2)", "Decimal('1.234')"),
        ("decimal(4,2)", "Decimal('100')"),
        ("decimal(10,2)", "0.1"),
        ("boolean", "'true'"),
        ("bigint", "True"),
        ("bigint", "Decimal('1.5')"),
        ("double", "True"),
        ("double", "Decimal('0.1')"),
        ("double", "2**60 + 1"),
        ("string", "b'a'"),
        ("binary", "'a'"),
        ("date", "'2024-02-29'"),
        ("date", "datetime(2024, 2, 29, 12)"),
        ("timestamp", "1"),
        ("timestamp", "datetime(2024, 2, 29)"),
        ("timestamp_ntz", "datetime(2024, 2, 29, tzinfo=timezone.utc)"),
        ("timestamp", "date(2024, 2, 29)"),
        ("array<int>", "[1, 1.5]"),
        ("array<int>", "1"),
    ],
)
def test_a_result_of_another_type_is_an_error_and_not_null(
    call: Call, returns: str, constant: str
) -> None:
    with pytest.raises(UserError) as found:
        call("constant", returns, pa.array([7]), constant=constant)
    assert f"function constant() gave what is no {returns}: " in found.value.what
    assert found.value.got == "(7)"
    assert "nothing of this one was published" in str(found.value.safe)


@pytest.mark.parametrize(
    ("returns", "constant"),
    [
        ("date", "datetime(2024, 2, 29, 12) if value else date(2024, 2, 29)"),
        ("timestamp", "datetime(2024, 2, 29, tzinfo=None if value else timezone.utc)"),
    ],
)
@pytest.mark.parametrize("kind", ["python", "pandas"])
def test_a_wrong_result_is_not_hidden_by_right_ones(
    call: Call, returns: str, constant: str, kind: str
) -> None:
    if kind == "pandas":
        constant = f"value.map(lambda value: {constant}).astype(object)"
    assert len(call("constant", returns, pa.array([0, 0]), kind=kind, constant=constant)) == 2
    with pytest.raises(UserError, match="gave what is no"):
        call("constant", returns, pa.array([0, 1]), kind=kind, constant=constant)


def test_whole_numbers_and_others_may_be_mixed(call: Call) -> None:
    mixed = "Decimal('1.5') if value else 0"
    found = call("constant", "decimal(10,2)", pa.array([0, 1]), constant=mixed)
    assert found == [Decimal("0.00"), Decimal("1.50")]


def test_an_error_names_the_line_and_the_arguments(call: Call, tmp_path: Path) -> None:
    with pytest.raises(UserError) as found:
        call("ratio", "double", pa.array([1, 1]), pa.array([1, 0]))
    line = MODULE.split("\n").index("    return a / b") + 1
    assert found.value.what == "function ratio() raised ZeroDivisionError: division by zero"
    assert str(found.value.where).startswith(str(tmp_path))
    assert str(found.value.where).endswith(f".py:{line}")
    assert found.value.got == "(1, 0)"


def test_too_few_arguments_are_an_error_of_the_call(call: Call) -> None:
    with pytest.raises(UserError, match=r"ratio\(\) raised TypeError: .* missing 1 required"):
        call("ratio", "double", pa.array([1]))
    with pytest.raises(UserError, match=r"same\(\) is called without an argument"):
        call("same", "double")


def test_in_pandas_a_null_does_not_change_the_other_rows(call: Call) -> None:
    numbers = pa.array([2**53 + 1, None])
    assert call("text", "string", numbers, kind="pandas") == ["9007199254740993", None]
    assert call("same", "bigint", numbers, kind="pandas") == [2**53 + 1, None]
    assert call("same", "boolean", pa.array([True, None]), kind="pandas") == [True, None]
    amounts = pa.array([Decimal("1.50"), None])
    assert call("same", "decimal(10,2)", amounts, kind="pandas") == [Decimal("1.50"), None]
    times = [dt.datetime(2024, 2, 29, hour, tzinfo=dt.timezone.utc) for hour in (0, 1)]
    column = pa.array([times[0], None], parse_type("timestamp"))
    assert call("later", "timestamp", column, kind="pandas") == [times[1], None]


@pytest.mark.parametrize(
    ("name", "what"), [("shorter", "gave a Series of 1 rows"), ("as_list", "gave a list")]
)
def test_a_pandas_function_gives_as_many_rows(call: Call, name: str, what: str) -> None:
    with pytest.raises(UserError) as found:
        call(name, "bigint", pa.array([1, 2]), kind="pandas")
    assert f"function {name}() {what}" in found.value.what
    assert found.value.allowed == "a pandas Series of 2 rows, as the arguments have"


@pytest.mark.parametrize(
    ("returns", "series"),
    [
        ("bigint", "pd.Series([1.5])"),
        ("bigint", "pd.Series([1.5], dtype=object)"),
        ("bigint", "pd.Series([True])"),
        ("tinyint", "pd.Series([300])"),
        ("boolean", "pd.Series([1])"),
        ("date", "pd.Series(pd.to_datetime(['2024-02-29 12:00']))"),
        ("timestamp", "pd.Series(pd.to_datetime(['2024-02-29 12:00']))"),
        ("decimal(10,2)", "pd.Series([1.5])"),
        ("string", "pd.Series([1])"),
    ],
)
def test_a_series_of_another_type_is_an_error(call: Call, returns: str, series: str) -> None:
    with pytest.raises(UserError, match=f"gave what is no {re.escape(returns)}: "):
        call("constant", returns, pa.array([7]), kind="pandas", constant=series)


def test_whole_floats_of_pandas_are_whole_numbers(call: Call) -> None:
    given = "pd.Series([1.0, float('nan')])"
    assert call("constant", "int", pa.array([7, 7]), kind="pandas", constant=given) == [1, None]


def test_a_function_that_is_not_there(call: Call) -> None:
    with pytest.raises(ConfigError, match="nothing is called 'missing' in calls_"):
        call("missing", "bigint", pa.array([1]))
