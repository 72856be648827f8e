"""Column types of every database, with the values at their ends, and values that do not fit."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.formats.debezium import DebeziumFormat

from mview.errors import UserError
from mview.schema import parse_type
from tests.connectors.databases_contract import Source, server_source, sqlite_source

UTC = dt.timezone.utc
SMALL, LARGE = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
TEXT = "línea\n\"two\", 'three' \\ \t😀 %s NULL"
LONG = "0123456789abcé" * 6000
BYTES = bytes(range(256))
UUID = "123e4567-e89b-12d3-a456-426614174000"

#: Of the many that are alike each has its day.
pytestmark = pytest.mark.days(4)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Source]:
    with sqlite_source(tmp_path) as source:
        yield source


@pytest.fixture
def maria(request: pytest.FixtureRequest) -> Iterator[Source]:
    with server_source("mariadb", request.getfixturevalue("mariadb")) as source:
        yield source


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> Iterator[Source]:
    with server_source("postgresql", request.getfixturevalue("postgresql")) as source:
        yield source


def _literal(value: Any, kind: str) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'" if kind == "postgresql" else f"x'{value.hex()}'"
    if isinstance(value, bool | int | float | Decimal) and math.isfinite(value):
        return str(value).upper()
    text = str(value).replace("'", "''")
    return f"'{text.replace(chr(92), chr(92) * 2) if kind == 'mariadb' else text}'"


def _round_trip(source: Source, column: str, expected: str, pairs: list[tuple[Any, Any]]) -> None:
    """Each pair is what is inserted and what must be read; NULL is always among them."""
    source.execute(f"CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x {column})")
    pairs = [*pairs, (None, None)]
    mode = "SET sql_mode = 'ALLOW_INVALID_DATES'; " if source.kind == "mariadb" else ""
    zone = "SET time_zone = '+00:00'; " if source.kind == "mariadb" else ""
    for number, (given, _) in enumerate(pairs):
        source.execute(
            f"{mode}{zone}INSERT INTO t VALUES ({number}, {_literal(given, source.kind)})"
        )
    assert source.database.describe("t").column("x").type == parse_type(expected)
    read = {row["id"]: row["x"] for row in source.read("t")}
    for number, (given, wanted) in enumerate(pairs):
        got = read[number]
        assert _same(got, wanted), f"{column}: inserted {given!r}, got {got!r}, not {wanted!r}"


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(got, float):
        same_sign = math.copysign(1, got) == math.copysign(1, wanted)
        return (math.isnan(got) and math.isnan(wanted)) or (got == wanted and same_sign)
    return type(got) is type(wanted) and bool(got == wanted)


def _alike(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


def _halts(source: Source, column: str, literal: str, shown: str) -> None:
    """A value that does not fit halts the read: place, key and value are in the message."""
    mode = "SET sql_mode = ''; " if source.kind == "mariadb" else ""
    source.execute(f"CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x {column})")
    for number in (1, 2, 3, 4, 5):
        value = literal if number == 4 else "NULL"
        source.execute(f"{mode}INSERT INTO t VALUES ({number}, {value})")
    with pytest.raises(UserError, match="does not fit") as caught:
        source.read("t")
    message = str(caught.value)
    assert "src.t.x, row with id=" in message
    assert "4" in message.splitlines()[1]
    assert shown in message


# --- SQLite --------------------------------------------------------------------------------------

SQLITE: list[tuple[str, str, list[tuple[Any, Any]]]] = [
    ("INTEGER", "bigint", _alike(0, -(2**63), 2**63 - 1)),
    ("SMALLINT UNSIGNED", "bigint", _alike(-1, 65535)),
    ("BOOLEAN", "boolean", [(1, True), (0, False)]),
    ("REAL", "double", [*_alike(1e308, -5e-324, 0.1), (3, 3.0)]),
    (
        "DECIMAL(12, 2)",
        "decimal(12,2)",
        [
            ("-1234567890.12", Decimal("-1234567890.12")),
            (5, Decimal("5.00")),
            ("0.1", Decimal("0.10")),
            (1e9, Decimal("1000000000.00")),
        ],
    ),
    ("NUMERIC", "decimal(38,18)", [(1.5, Decimal("1.500000000000000000"))]),
    ("TEXT", "string", _alike("", TEXT, LONG)),
    ("VARCHAR(20)", "string", _alike("12", " x ")),
    ("BLOB", "binary", _alike(b"", BYTES)),
    ("DATE", "date", [("0001-01-01", SMALL.date()), ("9999-12-31", LARGE.date())]),
    (
        "TIMESTAMP",
        "timestamp_ntz",
        [
            ("0001-01-01 00:00:00", SMALL),
            ("9999-12-31T23:59:59.999999", LARGE),
            ("2024-02-29", dt.datetime(2024, 2, 29)),
        ],
    ),
    (
        "TIMESTAMP WITH TIME ZONE",
        "timestamp",
        [("2024-02-29 12:00:00+02:00", dt.datetime(2024, 2, 29, 10, tzinfo=UTC))],
    ),
]


@pytest.mark.parametrize(("column", "expected", "pairs"), SQLITE)
def test_sqlite_types(
    sqlite: Source, column: str, expected: str, pairs: list[tuple[Any, Any]]
) -> None:
    _round_trip(sqlite, column, expected, pairs)


@pytest.mark.parametrize(
    ("column", "literal", "shown"),
    [
        ("INTEGER", "'abc'", "'abc'"),
        ("INTEGER", "1.5", "1.5"),
        ("BOOLEAN", "2", "2"),
        ("REAL", "'much'", "'much'"),
        ("DECIMAL(5,2)", "1.005", "1.005"),
        ("DECIMAL(5,2)", "12345", "12345"),
        ("DECIMAL(5,2)", "'NaN'", "'NaN'"),
        ("DATE", "'2024-02-30'", "'2024-02-30'"),
        ("DATE", "20240229", "20240229"),
        ("TIMESTAMP", "'2024-02-29 25:00:00'", "25:00"),
        ("TIMESTAMP", "'2024-02-29 12:00:00Z'", "12:00:00Z"),
        ("TIMESTAMP WITH TIME ZONE", "'2024-02-29 12:00:00'", "12:00:00"),
        ("TEXT", "x'61'", "X'61'"),
        ("BLOB", "'text'", "'text'"),
    ],
)
def test_a_sqlite_value_that_does_not_fit_its_declared_type_halts(
    sqlite: Source, column: str, literal: str, shown: str
) -> None:
    _halts(sqlite, column, literal, shown)


def test_a_sqlite_column_without_a_type_is_refused(sqlite: Source) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    with pytest.raises(UserError, match="cannot be read exactly"):
        sqlite.database.describe("t")


def test_a_sqlite_text_that_is_not_utf8_halts(sqlite: Source) -> None:
    sqlite.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")
    sqlite.execute("INSERT INTO t VALUES (1, CAST(x'ff' AS TEXT))")
    with pytest.raises(UserError, match=r"while reading src\.t") as caught:
        sqlite.read("t")
    assert "Could not decode to UTF-8 column 'x'" in str(caught.value)


@pytest.mark.parametrize("missing", ["(NULL, 1)", "('b', NULL)", "('z', NULL)"])
def test_a_null_in_a_sqlite_key_halts(sqlite: Source, missing: str) -> None:
    # SQLite allows it in keys that are not INTEGER PRIMARY KEY.
    sqlite.execute("CREATE TABLE t (k TEXT, n INTEGER, PRIMARY KEY (k, n))")
    sqlite.execute(f"INSERT INTO t VALUES ('a', 1), ('b', 2), {missing}, ('c', 3)")
    with pytest.raises(UserError, match=r"a primary key of src\.t is NULL"):
        sqlite.read("t", rows=1)


# --- MariaDB -------------------------------------------------------------------------------------

MARIADB: list[tuple[str, str, list[tuple[Any, Any]]]] = [
    ("TINYINT(1)", "tinyint", _alike(-128, 127)),
    ("TINYINT UNSIGNED", "smallint", _alike(0, 255)),
    ("SMALLINT", "smallint", _alike(-32768, 32767)),
    ("SMALLINT UNSIGNED", "int", _alike(65535)),
    ("MEDIUMINT UNSIGNED ZEROFILL", "int", _alike(42, 16777215)),
    ("INT", "int", _alike(-(2**31), 2**31 - 1)),
    ("INT(10) UNSIGNED", "bigint", _alike(2**32 - 1)),
    ("BIGINT", "bigint", _alike(-(2**63), 2**63 - 1)),
    ("BIGINT UNSIGNED", "decimal(20,0)", [(2**64 - 1, Decimal(2**64 - 1))]),
    ("YEAR", "int", _alike(1901, 2155, 0)),
    (
        "FLOAT",
        "float",
        [
            (16777217, 16777216.0),
            ("0.1", 0.10000000149011612),
            (3.4e38, 3.3999999521443642e38),
        ],
    ),
    ("DOUBLE", "double", _alike(0.1, -1.7976931348623157e308, 2.2250738585072014e-308, 1 / 3)),
    (
        "DECIMAL(38,10)",
        "decimal(38,10)",
        _alike(Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("0.0000000001")),
    ),
    ("DECIMAL", "decimal(10,0)", _alike(Decimal("-1"))),
    ("BIT(1)", "boolean", [(1, True), (0, False)]),
    ("BIT(12)", "binary", [(0b101, b"\0\x05"), (0xABC, b"\x0a\xbc")]),
    ("VARCHAR(100) CHARACTER SET utf8mb4", "string", _alike("", TEXT, "x" * 12, "x" * 13)),
    ("VARCHAR(100) CHARACTER SET latin1", "string", _alike("é")),
    ("CHAR(5)", "string", [("a  ", "a")]),
    ("LONGTEXT", "string", _alike("", LONG, "y" * 250, "y" * 251, "y" * 65_536)),
    ("ENUM('a', 'b,c')", "string", _alike("b,c")),
    ("SET('a', 'b')", "string", [("b,a", "a,b"), ("", "")]),
    ("JSON", "string", _alike('{"x": [1,2]}')),
    (
        "UUID",
        "string",
        [
            (UUID.upper(), UUID),
            *_alike(
                "00000000-0000-0000-0000-000000000000",
                "6ccd780c-baba-1026-9564-5b8c65602400",
                "12345678-1234-7abc-8def-000000000000",
                "ffffffff-ffff-ffff-ffff-ffffffffffff",
            ),
        ],
    ),
    (
        "INET6",
        "string",
        [
            ("2001:DB8:0:0:0:FF00:42:8329", "2001:db8::ff00:42:8329"),
            ("1:0:2:0:3:0:4:0", "1::2:0:3:0:4:0"),
            ("1:0:0:2:0:0:0:3", "1:0:0:2::3"),
            ("1:0:0:2:0:0:3:4", "1::2:0:0:3:4"),
            *_alike("::", "::1", "1::", "::1.2.3.4", "::ffff:192.0.2.128", "1:2:3:4:5:6:7:8"),
            *_alike("::fffe:c000:280", "::1:0:0", "2001:db8:1::", "fe80::100"),
        ],
    ),
    ("INET4", "string", _alike("0.0.0.0", "192.0.2.1", "10.0.0.0", "255.255.255.255")),
    ("BINARY(4)", "binary", [(b"\x01", b"\x01\0\0\0")]),
    ("VARBINARY(300)", "binary", _alike(b"", BYTES, b"\xfe\xff")),
    ("LONGBLOB", "binary", _alike(b"", BYTES * 300)),
    ("DATE", "date", [("1000-01-01", dt.date(1000, 1, 1)), ("9999-12-31", LARGE.date())]),
    (
        "DATETIME(6)",
        "timestamp_ntz",
        [("1000-01-01 00:00:00.000001", dt.datetime(1000, 1, 1, 0, 0, 0, 1)), (LARGE, LARGE)],
    ),
    ("DATETIME", "timestamp_ntz", _alike(dt.datetime(2024, 3, 31, 2, 30))),
    (
        "TIMESTAMP(3) NULL",
        "timestamp",
        [
            ("1970-01-01 00:00:01", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
            ("2038-01-19 03:14:07.123", dt.datetime(2038, 1, 19, 3, 14, 7, 123000, tzinfo=UTC)),
        ],
    ),
    (
        "TIME(3)",
        "string",
        [
            ("12:34:56.78", "12:34:56.78"),
            ("-838:59:59", "-838:59:59"),
            ("12:00:10", "12:00:10"),
            ("-00:00:00.5", "-00:00:00.5"),
        ],
    ),
]


@pytest.mark.service
@pytest.mark.parametrize(("column", "expected", "pairs"), MARIADB)
def test_mariadb_types(
    maria: Source, column: str, expected: str, pairs: list[tuple[Any, Any]]
) -> None:
    _round_trip(maria, column, expected, pairs)


@pytest.mark.service
@pytest.mark.parametrize(
    ("column", "literal", "shown"),
    [
        ("DATE", "'0000-00-00'", "0000-00-00"),
        ("DATETIME(3)", "'2024-00-10 00:00:00'", "2024-00-10"),
        ("TIMESTAMP NULL", "'0000-00-00 00:00:00'", "0000-00-00"),
    ],
)
def test_a_mariadb_date_that_is_none_halts(
    maria: Source, column: str, literal: str, shown: str
) -> None:
    _halts(maria, column, literal, shown)


@pytest.mark.service
def test_a_row_of_several_packets_is_read_whole(
    maria: Source, request: pytest.FixtureRequest
) -> None:
    maria.execute("SET GLOBAL max_allowed_packet = 67108864")
    # The server is shared: others ask what it takes.
    request.addfinalizer(lambda: maria.execute("SET GLOBAL max_allowed_packet = DEFAULT"))
    maria.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x LONGTEXT, y INT)")
    # Beside x, a row has two digits with their lengths, and the length of x: 4 bytes, or 9.
    whole = 2**24 - 1
    sizes = {1: 5, 2: whole - 8, 3: whole - 7, 4: 5, 5: 2 * whole - 13, 6: 5}
    for number, size in sizes.items():
        text = f"concat(repeat('x', {size % 2}), repeat('é', {size // 2}))"
        maria.execute(f"INSERT INTO t VALUES ({number}, {text}, {number})")
    rows = {row["id"]: row for row in maria.read("t")}
    assert rows.keys() == sizes.keys()
    for number, size in sizes.items():
        assert rows[number]["x"] == "x" * (size % 2) + "é" * (size // 2), number
        assert rows[number]["y"] == number


@pytest.mark.service
def test_a_padded_key_with_control_characters_halts(maria: Source) -> None:
    maria.execute(
        "CREATE TABLE t (k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY)"
    )
    # Padded with spaces 'b<tab>' comes before 'b', by its bytes after it.
    maria.insert("t", [("a",), ("b",), ("b\t",), ("c",)])
    with pytest.raises(UserError, match="orders a text key otherwise") as caught:
        maria.read("t", rows=2)
    assert "nopad" in str(caught.value)


# --- PostgreSQL ----------------------------------------------------------------------------------

POSTGRESQL: list[tuple[str, str, list[tuple[Any, Any]]]] = [
    ("boolean", "boolean", _alike(True, False)),
    ("smallint", "smallint", _alike(-32768, 32767)),
    ("integer", "int", _alike(-(2**31), 2**31 - 1)),
    ("bigint", "bigint", _alike(-(2**63), 2**63 - 1)),
    ("real", "float", [("NaN", math.nan), ("0.1", 0.10000000149011612)]),
    (
        "double precision",
        "double",
        [
            ("NaN", math.nan),
            ("-Infinity", -math.inf),
            ("-0", -0.0),
            *_alike(1.7976931348623157e308, 5e-324, 0.1),
        ],
    ),
    ("numeric(12,2)", "decimal(12,2)", _alike(Decimal("-9999999999.99"), Decimal("0.00"))),
    ("numeric(38,0)", "decimal(38,0)", _alike(Decimal("9" * 38))),
    ("numeric(2,5)", "decimal(5,5)", _alike(Decimal("-0.00012"))),
    ("numeric", "decimal(38,18)", [("1.5", Decimal("1.500000000000000000"))]),
    ("text", "string", _alike("", TEXT, LONG, "\\N", "\\.", "\r\n", " ")),
    ("varchar(40)", "string", _alike("NULL", '""')),
    ("char(3)", "string", [("a", "a  ")]),
    ("bytea", "binary", _alike(b"", BYTES)),
    ("bit(1)", "boolean", [("1", True), ("0", False)]),
    ("bit(12)", "binary", [("000000000101", b"\0\x05"), ("101010111100", b"\x0a\xbc")]),
    ("date", "date", [("0001-01-01", SMALL.date()), ("9999-12-31", LARGE.date())]),
    ("timestamp", "timestamp_ntz", _alike(SMALL, LARGE, dt.datetime(2024, 3, 31, 2, 30))),
    (
        "timestamptz",
        "timestamp",
        [
            ("2024-02-29 12:00:00.000001+05:30", dt.datetime(2024, 2, 29, 6, 30, 0, 1, UTC)),
            ("0001-01-01 00:00:00+00", SMALL.replace(tzinfo=UTC)),
        ],
    ),
    ("time", "string", [("12:34:56.78", "12:34:56.78"), ("24:00", "24:00:00")]),
    (
        "uuid",
        "string",
        [(UUID.replace("-", "").upper(), UUID)],
    ),
    ("json", "string", _alike('{"b":1,  "a":"\\n"}')),
    ("jsonb", "string", [('{"b":1,  "a":[1]}', '{"a": [1], "b": 1}')]),
    ("inet", "string", _alike("10.0.0.1/8")),
    ("integer[]", "array<int>", [("{1,NULL,-3}", [1, None, -3]), ("{}", [])]),
    ("text[]", "array<string>", [('{"",NULL,"NULL","a\\"b,"}', ["", None, "NULL", 'a"b,'])]),
    ("numeric(5,2)[]", "array<decimal(5,2)>", [("{1.5}", [Decimal("1.50")])]),
    ("boolean[]", "array<boolean>", [("{t,f,NULL}", [True, False, None])]),
    ("date[]", "array<date>", [("{2024-02-29}", [dt.date(2024, 2, 29)])]),
    (
        "timestamptz[]",
        "array<timestamp>",
        [('{"2024-02-29 12:00:00+02"}', [dt.datetime(2024, 2, 29, 10, tzinfo=UTC)])],
    ),
    ("double precision[]", "array<double>", [("{0.1,-Infinity}", [0.1, -math.inf])]),
]


@pytest.mark.service
@pytest.mark.parametrize(("column", "expected", "pairs"), POSTGRESQL)
def test_postgresql_types(
    postgres: Source, column: str, expected: str, pairs: list[tuple[Any, Any]]
) -> None:
    _round_trip(postgres, column, expected, pairs)


@pytest.mark.service
def test_postgresql_enums_and_domains(postgres: Source) -> None:
    postgres.execute("CREATE TYPE \"Mood (x)\" AS ENUM ('so, so', 'Gut')")
    postgres.execute("CREATE DOMAIN price AS numeric(7,3) NOT NULL")
    postgres.execute("CREATE DOMAIN net AS price")
    postgres.execute('CREATE TABLE t (id int PRIMARY KEY, m "Mood (x)", p net)')
    postgres.execute("INSERT INTO t VALUES (1, 'so, so', 1.5), (2, NULL, 2)")
    schema = postgres.database.describe("t")
    assert schema.column("p").type == parse_type("decimal(7,3)")
    assert schema.column("p").source_type == "numeric(7,3)"
    assert not schema.column("p").nullable
    assert postgres.read("t") == [
        {"id": 1, "m": "so, so", "p": Decimal("1.500")},
        {"id": 2, "m": None, "p": Decimal("2.000")},
    ]


@pytest.mark.service
@pytest.mark.parametrize(
    ("column", "literal", "shown"),
    [
        ("numeric(5,2)", "'NaN'", "NaN"),
        ("numeric", "'0.1234567890123456789'", "0.1234567890123456789"),
        ("numeric", "'123456789012345678901.5'", "123456789012345678901.5"),
        ("date", "'infinity'", "infinity"),
        ("date", "'0044-03-15 BC'", "BC"),
        ("timestamp", "'-infinity'", "-infinity"),
        ("timestamptz", "'10000-01-01'", "10000"),
        ("integer[]", "'{{1,2},{3,4}}'", "3"),
    ],
)
def test_a_postgresql_value_that_has_no_equal_halts(
    postgres: Source, column: str, literal: str, shown: str
) -> None:
    _halts(postgres, column, literal, shown)


@pytest.mark.service
@pytest.mark.parametrize(
    "column",
    [
        "money",
        "interval",
        "bit varying(9)",
        "timetz",
        "numeric(39,2)",
        "numeric(5,-2)",
        "point",
        "bytea[]",
    ],
)
def test_postgresql_types_without_an_equal_are_refused(postgres: Source, column: str) -> None:
    postgres.execute(f"CREATE TABLE t (id int PRIMARY KEY, x {column})")
    with pytest.raises(UserError, match="cannot be read exactly") as caught:
        postgres.database.describe("t")
    assert "src.t.x" in str(caught.value)


@pytest.mark.service
def test_postgresql_generated_columns_are_left_out(postgres: Source) -> None:
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, z int)"
    )
    assert postgres.database.describe("t").names == ("id", "z")


@pytest.mark.service
def test_postgresql_tables_of_another_schema(postgres: Source) -> None:
    postgres.execute('CREATE SCHEMA "My Shop"; CREATE TABLE "My Shop"."T" (id int PRIMARY KEY)')
    settings = postgres.settings.model_copy(update={"namespace": "My Shop"})
    other = type(postgres.database)(settings)  # type: ignore[call-arg]
    assert other.tables() == ["T"]
    assert other.describe("T").key == ("id",)
    other.close()


# --- equal from both paths -----------------------------------------------------------------------

#: Database, column type, literal, and what a real Debezium 3.5 connector sent for it.
BOTH_PATHS = [
    ("mariadb", "DECIMAL(12,2)", "10.25", "BAE="),
    ("mariadb", "TINYINT(1)", "1", 1),
    ("mariadb", "BIT(3)", "b'101'", "BQ=="),
    ("mariadb", "ENUM('a','b')", "'b'", "b"),
    ("mariadb", "JSON", """'{"x": [1,2]}'""", '{"x": [1,2]}'),
    ("mariadb", "TEXT", "'émoji 😀'", "émoji 😀"),
    ("mariadb", "VARBINARY(16)", "x'00ff10'", "AP8Q"),
    ("mariadb", "DATE", "'2024-02-29'", 19782),
    ("mariadb", "TIME(3)", "'12:34:56.789'", 45296789000),
    ("mariadb", "DATETIME(6)", "'2024-02-29 23:59:59.123456'", 1709251199123456),
    ("mariadb", "TIMESTAMP(6) NULL", "'2024-03-01 00:00:00.654321'", "2024-03-01T00:00:00.654321Z"),
    ("mariadb", "DOUBLE", "0.1", 0.1),
    ("mariadb", "FLOAT", "0.1", 0.1),
    ("mariadb", "YEAR", "2024", 2024),
    ("mariadb", "BIGINT UNSIGNED", "7", 7),
    ("postgresql", "numeric(12,2)", "10.25", "BAE="),
    ("postgresql", "numeric", "10.25", {"scale": 2, "value": "BAE="}),
    ("postgresql", "text[]", "'{a,b}'", ["a", "b"]),
    ("postgresql", "jsonb", """'{"x":[1,2]}'""", '{"x": [1, 2]}'),
    ("postgresql", "uuid", f"'{UUID}'", UUID),
    ("postgresql", "time(3)", "'12:34:56.78'", 45296780),
    ("postgresql", "date", "'2024-02-29'", 19782),
    ("postgresql", "time", "'12:34:56.789012'", 45296789012),
    ("postgresql", "timestamp", "'2024-02-29 23:59:59.123456'", 1709251199123456),
    (
        "postgresql",
        "timestamptz",
        "'2024-02-29 21:59:59.123456Z'",
        "2024-02-29T21:59:59.123456Z",
    ),
    ("postgresql", "bytea", "'\\x00ff'", "AP8="),
    ("postgresql", "boolean", "true", True),
]


#: Of the connector that sent them.
_MODES = {"format.time.precision.mode": "adaptive", "format.binary.handling.mode": "bytes"}


@pytest.mark.service
@pytest.mark.parametrize(("kind", "column", "literal", "message"), BOTH_PATHS)
def test_a_value_is_the_same_by_sql_and_by_debezium(
    kind: str, column: str, literal: str, message: Any, request: pytest.FixtureRequest
) -> None:
    with server_source(kind, request.getfixturevalue(kind)) as source:
        source.execute(f"CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x {column})")
        zone = "SET time_zone = '+00:00'; " if kind == "mariadb" else ""
        source.execute(f"{zone}INSERT INTO t VALUES (1, {literal})")
        schema = source.database.describe("t")
        (row,) = source.read("t")
    decoded = DebeziumFormat(_MODES).convert([message], schema.column("x"))
    assert decoded.to_pylist() == [row["x"]]
    assert decoded.type == schema.column("x").type


@pytest.mark.service
@pytest.mark.parametrize("column", ["uuid", "inet6", "inet4"])
def test_mariadb_types_that_programs_garble_are_refused_of_them(maria: Source, column: str) -> None:
    """mview's own reader of the log has them right: `test_changelogs_mysql.py`."""
    maria.execute(f"CREATE TABLE t (id int PRIMARY KEY, x {column})")
    read = maria.database.describe("t").columns
    maria.database.check_log("t", read[:1])
    with pytest.raises(UserError, match=r"t.x cannot(?s:.*)exclude: \[x\]"):
        maria.database.check_log("t", read)
