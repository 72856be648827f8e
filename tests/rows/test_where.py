"""Conditions on rows: one text, one meaning, and the same as SQL's by another engine."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random

import duckdb
import pyarrow as pa
import pytest

from mview.rows.where import check, columns_of, holds, leaves, parse_where, weakened
from mview.schema import Column, TableSchema
from tests.seeds import daily

KINDS = {
    "b": pa.bool_(),
    "n": pa.int32(),
    "big": pa.int64(),
    "m": pa.decimal128(12, 2),
    "s": pa.string(),
    "odd name": pa.string(),
    "d": pa.date32(),
    "moment": pa.timestamp("us"),
    "utc": pa.timestamp("us", tz="UTC"),
}
SCHEMA = TableSchema(tuple(Column(name, kind) for name, kind in KINDS.items()), ())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("town = 'x'", "town = 'x'"),
        ("TOWN != 'it''s'", "TOWN <> 'it''s'"),
        ("`a b` IN (1, -2.50)", "`a b` IN (1, -2.50)"),
        ("not a in ('x') and b is not null", "(a NOT IN ('x') AND b IS NOT NULL)"),
        ("not (a < 1 or b is null)", "(a >= 1 AND b IS NOT NULL)"),
        ("NOT NOT a = TRUE", "a = TRUE"),
        ("a = 1 or b = 2 and c = 3", "(a = 1 OR (b = 2 AND c = 3))"),
        ("not (a = 1 and b not in (2))", "(a <> 1 OR b IN (2))"),
        ("`and` > .5", "`and` > 0.5"),
    ],
)
def test_what_is_meant(text: str, written: str) -> None:
    assert str(parse_where(text)) == written
    assert str(parse_where(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a = b",
        "1 = a",
        "a = ",
        "a = 'x",
        'a = "x"',
        '"a" = 1',
        "a = 1 b = 2",
        "(a = 1",
        "a = 1)",
        "a in ()",
        "a in (1,)",
        "a in (select 1)",
        "a is 1",
        "a = null",
        "a = 1 -- x",
        "lower(a) = 'x'",
        "a like 'x%'",
        "a between 1 and 2",
        "a = 1; drop table t",
        "a + 1 = 2",
        "a = 1e5",
        "a = 0x10",
        "t.a = 1",
        "(" * 80 + "a = 1" + ")" * 80,
        "not " * 80 + "a = 1",
        " or ".join(["a = 1"] * 300),
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|conditions|inside"):
        parse_where(text)


@pytest.mark.parametrize(
    "text",
    [
        "n = 'x'",
        "n = 1.5",
        "n = 3000000000",
        "m = 0.001",
        "s = 1",
        "b = 1",
        "b < TRUE",
        "d = '2024-02-30'",
        "d = '2024-2-3'",
        "d = '2024-02-29 00:00:00'",
        "moment = '2024-02-29T00:00:00'",
        "utc = '2024-02-29 00:00:00+01:00'",
    ],
)
def test_literals_that_are_no_value_of_their_column(text: str) -> None:
    with pytest.raises(ValueError, match=r"no value of column|only equal"):
        check(parse_where(text), SCHEMA)


VALUES = {
    "b": [True, False],
    "n": [-1, 0, 1, 7],
    "big": [-(2**62), 0, 2**53 + 1],
    "m": [Decimal("-0.01"), Decimal("0.00"), Decimal("9999999999.99")],
    "s": ["", "x", "X", "x ", "é", "e\u0301", "it's", "\U0001f600", "\uffff"],
    "odd name": ["a", "b"],
    "d": [dt.date(1, 1, 1), dt.date(2024, 2, 29)],
    "moment": [dt.datetime(2024, 2, 29), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)],
    "utc": [dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)],
}


def literal(column: str, random: Random) -> str:
    value = random.choice(VALUES[column])
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | Decimal):
        return str(value)
    text = str(value)[:26].removesuffix("+00:00") if not isinstance(value, str) else value
    return "'" + text.replace("'", "''") + "'"


def condition(random: Random, depth: int = 0) -> str:
    if depth < 4 and random.random() < 0.6:
        word = random.choice([" AND ", " OR "])
        text = word.join(condition(random, depth + 1) for _ in range(2))
        return random.choice(["({})", "NOT ({})", "(({}))"]).format(text)
    column = random.choice(list(KINDS))
    name = f"`{column}`" if random.random() < 0.5 or " " in column else column
    form = random.random()
    if form < 0.2:
        return f"{name} IS {random.choice(['', 'NOT '])}NULL"
    if form < 0.4:
        values = ", ".join(literal(column, random) for _ in range(random.randint(1, 3)))
        return f"{name} {random.choice(['', 'NOT '])}IN ({values})"
    operators = ["=", "<>"] if column == "b" else ["=", "<>", "!=", "<", "<=", ">", ">="]
    return f"{name} {random.choice(operators)} {literal(column, random)}"


def rows_of(random: Random, count: int) -> pa.Table:
    cells = {name: [random.choice([None, *VALUES[name]]) for _ in range(count)] for name in KINDS}
    return pa.table({name: pa.array(cells[name], kind) for name, kind in KINDS.items()})


def test_rows_are_those_that_sql_takes() -> None:
    random = Random(daily())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for _ in range(150):
            rows = rows_of(random, 40)
            text = condition(random)
            parsed = parse_where(text)
            check(parsed, SCHEMA)
            assert {leaf.column for leaf in leaves(parsed)} == columns_of(parsed)
            columns = {name: rows[name].combine_chunks() for name in columns_of(parsed)}
            mine = holds(parsed, columns, SCHEMA).to_pylist()
            sql = text.replace("`", '"')
            theirs = connection.sql(f"SELECT coalesce({sql}, false) FROM rows").fetchall()
            assert mine == [value for (value,) in theirs], text
            # A database that is asked for less gives no row too few.
            asked = weakened(parsed, lambda leaf: leaf.column not in ("s", "n"))
            for any_of in asked:
                kept = [holds(leaf, columns, SCHEMA).to_pylist() for leaf in any_of]
                assert all(
                    any(each)
                    for each, is_in in zip(zip(*kept, strict=True), mine, strict=True)
                    if is_in
                ), text
