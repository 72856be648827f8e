"""SQL Server: what is sent, as text, and what is made of what would come. No server was asked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.databases.mssql.database import MssqlDatabase
from mview_connectors.databases.mssql.types import read_type, written
from mview_connectors.databases.values import UnsupportedTypeError
from mview_connectors.formats.debezium import DebeziumFormat

from mview.config import ConnectionSettings
from mview.connector import load
from mview.errors import ConfigError, UserError
from mview.schema import Column
from mview.snapshot import ChunkPlan

#: Name, type, precision, scale, bytes, whether it may be NULL.
COLUMNS = [
    ("id", "bigint", 19, 0, 8, False),
    ("at", "datetime2", 27, 7, 8, False),
    ("name", "nvarchar", 0, 0, 80, True),
    ("price", "money", 19, 4, 8, True),
]
INDEXES = [(1, True, "id"), (1, True, "at"), (2, False, "name")]
ROWS = [
    (7, "2024-02-29 12:34:56.1234560", "naïve 🚲", Decimal("-0.0001")),
    (8, "2024-02-29 00:00:00.0000000", None, None),
]


class Server(MssqlDatabase):
    """Notes what is sent, and answers by the first words that fit."""

    def __init__(self, answers: dict[str, list[Any]], **settings: Any) -> None:
        connection = {"drivername": "mssql+pyodbc", "host": "127.0.0.1", "database": "shop"}
        super().__init__(ConnectionSettings(name="crm", **{**connection, **settings}))
        self.answers, self.sent = answers, list[tuple[str, tuple[Any, ...]]]()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self.sent.append((" ".join(sql.split()), tuple(parameters)))
        return next((rows for words, rows in self.answers.items() if words in sql), [])

    @contextmanager
    def _connection(self, task: str) -> Iterator[Any]:
        yield type("Pooled", (), {"driver_connection": Driver(self)})

    def statements(self, words: str) -> list[str]:
        return [sql for sql, _ in self.sent if words in sql]


class Driver:
    def __init__(self, server: Server) -> None:
        self.server, self.left = server, [ROWS, []]

    def execute(self, sql: str, *parameters: Any) -> None:
        self.server.sent.append((sql, parameters))

    def cursor(self) -> Driver:
        return self

    def fetchmany(self, size: int) -> list[Any]:
        return self.left.pop(0)

    def close(self) -> None:
        pass


def answers(**more: list[Any]) -> dict[str, list[Any]]:
    return {
        "FROM sys.databases": [(1, False, "shop")],
        "FROM sys.objects": [("orders", "U ", "sales"), ("Orders", "U ", "Sales")],
        "HAS_PERMS_BY_NAME": [(1, "reader")],
        "FROM sys.columns": COLUMNS,
        "FROM sys.indexes": INDEXES,
        "FROM sys.partitions": [(1000, 100_000)],
        "ORDER BY [id], [at] OFFSET 0": [(1, dt.datetime(2024, 1, 1))],
        "DESC, [at] DESC": [(9, dt.datetime(2024, 1, 2))],
        "FROM sys.tables": [(True,)],
        "FROM cdc.change_tables": [("all", name) for name, *_ in COLUMNS],
        **more,
    }


def test_a_table_is_described() -> None:
    server = Server(answers())
    schema = server.describe("sales.orders")
    assert schema.key == ("id", "at")
    assert [(c.name, str(c.type), c.nullable, c.source_type) for c in schema.columns] == [
        ("id", "int64", False, "bigint"),
        ("at", "timestamp[us]", False, "datetime2(7)"),
        ("name", "string", True, "nvarchar(40)"),
        ("price", "decimal128(19, 4)", True, "money"),
    ]
    assert ("sales",) in [parameters for sql, parameters in server.sent if "sys.objects" in sql]
    assert {p for sql, p in server.sent if "OBJECT_ID" in sql} == {("[sales].[orders]",)}
    with pytest.raises(UserError, match="one table would have two names"):
        server.describe("dbo.orders")
    with pytest.raises(UserError, match="unknown table"):
        server.describe("SALES.orders")


def test_a_chunk_is_planned_and_read_as_a_snapshot() -> None:
    server = Server(answers())
    schema = server.describe("sales.orders")
    plan = server.plan("sales.orders", schema, 100, 1 << 30)
    assert plan.columns == ("id", "at")
    ordered = server.statements("OFFSET")
    assert ordered == [
        "SELECT [id], [at] FROM [sales].[orders] ORDER BY [id] DESC, [at] DESC"
        " OFFSET 0 ROWS FETCH NEXT 1 ROWS ONLY",
        "SELECT [id], [at] FROM [sales].[orders] ORDER BY [id], [at]"
        " OFFSET 0 ROWS FETCH NEXT 1 ROWS ONLY",
        "SELECT [id], [at] FROM [sales].[orders] WHERE (([id] > ? OR ([id] = ? AND [at] >= ?)))"
        " AND (([id] < ? OR ([id] = ? AND [at] <= ?))) ORDER BY [id], [at]"
        " OFFSET 100 ROWS FETCH NEXT 1 ROWS ONLY",
    ]
    server.sent.clear()
    bound = (8, dt.datetime(2024, 1, 2))
    plan = ChunkPlan("crm.sales.orders", ("id", "at"), (bound,), (1 << 70, bound[1]), 2)
    (batch,) = server.read("sales.orders", schema, plan, plan.chunks[1])
    assert [(sql, p) for sql, p in server.sent if "sys." not in sql] == [
        ("SET TRANSACTION ISOLATION LEVEL SNAPSHOT", ()),
        (
            "SELECT [id], CONVERT(varchar(27), [at], 121), CAST([name] AS nvarchar(max)), [price]"
            " FROM [sales].[orders] WHERE (([id] > ? OR ([id] = ? AND [at] >= ?)))"
            " AND (([id] < ? OR ([id] = ? AND [at] <= ?)))",
            (
                8,
                8,
                "2024-01-02T00:00:00",
                Decimal(1 << 70),
                Decimal(1 << 70),
                "2024-01-02T00:00:00",
            ),
        ),
        ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", ()),
    ]
    assert batch.to_pylist() == [
        {"id": 7, "at": dt.datetime(2024, 2, 29, 12, 34, 56, 123456), "name": "naïve 🚲",
         "price": Decimal("-0.0001")},
        {"id": 8, "at": dt.datetime(2024, 2, 29), "name": None, "price": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("versions", "expected"),
    [((1, False), "SNAPSHOT"), ((1, True), "SNAPSHOT"), ((0, True), "READ COMMITTED")],
)
def test_a_read_is_of_one_moment(versions: tuple[int, bool], expected: str) -> None:
    server = Server({"FROM sys.databases": [(*versions, "shop")]})
    assert server._isolation() == expected


@pytest.mark.parametrize("state", [0, 2, 3])  # 2 and 3: it is being switched
def test_a_database_without_versions_is_refused(state: int) -> None:
    server = Server(answers() | {"FROM sys.databases": [(state, False, "my]shop")]})
    with pytest.raises(ConfigError, match="keeps no versions") as caught:
        server.describe("orders")
    assert caught.value.hint == "ALTER DATABASE [my]]shop] SET ALLOW_SNAPSHOT_ISOLATION ON"


def test_what_is_not_captured_is_told() -> None:
    server = Server(answers())
    server.check_log("sales.orders")
    server.answers["FROM cdc.change_tables"] = [("some", "id"), ("some", "at"), ("some", "name")]
    with pytest.raises(UserError, match="captured without price") as caught:
        server.check_log("sales.orders")
    assert "connections.crm.tables.sales.orders.exclude" in str(caught.value.hint)
    server.answers["FROM sys.tables"] = [(False,)]
    with pytest.raises(UserError, match="not captured") as caught:
        server.check_log("o'brien.orders")
    assert "@source_schema = N'o''brien', @source_name = N'orders'" in str(caught.value.hint)


def test_a_missing_right_is_told() -> None:
    server = Server(answers() | {"HAS_PERMS_BY_NAME": [(0, "DOM\\re]ader")]})
    with pytest.raises(UserError, match="may not read") as caught:
        server.describe("sales.orders")
    assert "GRANT SELECT ON [sales].[orders] TO [DOM\\re]]ader]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "numbers", "raw", "expected"),
    [
        ("tinyint", (3, 0, 1), 255, 255),
        ("bit", (1, 0, 1), True, True),
        ("decimal", (38, 10, 17), Decimal("1E-10"), Decimal("0.0000000001")),
        ("smallmoney", (10, 4, 4), Decimal("214748.3647"), Decimal("214748.3647")),
        ("real", (24, 0, 4), 1.100000023841858, 1.100000023841858),
        ("float", (53, 0, 8), 5e-324, 5e-324),
        ("varbinary", (0, 0, -1), b"\0\xff", b"\0\xff"),
        ("date", (10, 0, 3), dt.date(1, 1, 1), dt.date(1, 1, 1)),
        ("datetime", (23, 3, 8), "2024-02-29 23:59:59.997", dt.datetime(2024, 2, 29, 23, 59, 59, 997_000)),  # noqa: E501
        ("smalldatetime", (16, 0, 4), "2024-02-29 23:59:00", dt.datetime(2024, 2, 29, 23, 59)),
        ("datetimeoffset", (34, 7, 10), "2024-02-29 22:59:59.1000000Z", dt.datetime(2024, 2, 29, 22, 59, 59, 100_000, dt.timezone.utc)),  # noqa: E501
        ("time", (16, 7, 5), "12:34:56.7800000", "12:34:56.78"),
        ("time", (8, 0, 3), "12:34:50", "12:34:50"),
        ("uniqueidentifier", (0, 0, 16), "6ccd780c-baba-1026-9564-5b8c656024db", "6ccd780c-baba-1026-9564-5b8c656024db"),  # noqa: E501
        ("ntext", (0, 0, 16), None, UnsupportedTypeError),
        ("hierarchyid", (0, 0, 892), None, UnsupportedTypeError),
        ("timestamp", (0, 0, 8), None, UnsupportedTypeError),
    ],
)  # fmt: skip
def test_types(name: str, numbers: tuple[int, int, int], raw: Any, expected: Any) -> None:
    if expected is UnsupportedTypeError:
        with pytest.raises(UnsupportedTypeError, match=r"."):
            read_type(name, *numbers[:2])
        return
    type_ = read_type(name, *numbers[:2])
    array = type_.convert([raw, None])
    assert array.type == type_.arrow
    assert array.to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("datetime2", "2024-02-29 12:34:56.1234567"),
        ("datetimeoffset", "2024-02-29 12:34:56.1234567Z"),
        ("time", "12:34:56.0000001"),
        ("bigint", Decimal(1)),
        ("real", 1e300),
        ("decimal", Decimal("1.001")),
        ("nvarchar", b"x"),
    ],
)
def test_a_value_that_does_not_fit_halts(name: str, raw: Any) -> None:
    with pytest.raises((ValueError, TypeError, pa.ArrowException)):
        read_type(name, 10, 2).convert([raw])


def test_debezium_sends_the_same_values() -> None:
    """Its page of SQL Server says how each type is written; by the modes and by the envelope."""
    decoder = DebeziumFormat({"format.time.precision.mode": "adaptive"})

    def value(name: str, raw: Any, precision: int = 0, scale: int = 0, length: int = 8) -> Any:
        arrow = read_type(name, precision, scale).arrow
        column = Column("x", arrow, True, written(name, precision, scale, length))
        return decoder.convert([raw], column)[0].as_py()

    assert value("datetime", 1_709_251_199_997) == dt.datetime(2024, 2, 29, 23, 59, 59, 997_000)
    assert value("smalldatetime", 0) == dt.datetime(1970, 1, 1)
    assert value("datetime2", 1, scale=3) == dt.datetime(1970, 1, 1, 0, 0, 0, 1000)
    assert value("datetime2", 1, scale=6) == dt.datetime(1970, 1, 1, 0, 0, 0, 1)
    assert value("datetime2", 1000, scale=7) == dt.datetime(1970, 1, 1, 0, 0, 0, 1)
    with pytest.raises(ValueError, match="nanoseconds"):
        value("datetime2", 100, scale=7)
    assert value("time", 45_296_780, scale=3) == "12:34:56.78"
    assert value("time", 45_296_780_000, scale=6) == "12:34:56.78"
    assert value("time", 45_296_780_000_000, scale=7) == "12:34:56.78"
    assert value("datetimeoffset", "2024-02-29T22:59:59.1Z", scale=7) == dt.datetime(
        2024, 2, 29, 22, 59, 59, 100_000, dt.timezone.utc
    )
    assert value("money", "AeJA", 19, 4) == Decimal("12.3456")
    upper = "6CCD780C-BABA-1026-9564-5B8C656024DB"
    assert value("uniqueidentifier", upper) == upper.lower()


def test_the_connection_asks_for_a_verified_server() -> None:
    remote = Server({}, host="db.example.org", port=1433, username="u")
    assert load("databases", "mssql") is MssqlDatabase
    assert remote._url().query == {"driver": "ODBC Driver 18 for SQL Server", "Encrypt": "yes"}
    assert remote.caution() is None
    for query in ({"TrustServerCertificate": "yes"}, {"encrypt": "optional"}):
        told = Server({}, host="db.example.org", query=query).caution()
        assert told is not None
        assert "WARNING: connections.crm.query" in told
    own = Server({}, query={"Driver": "FreeTDS"})
    assert own._url().query == {"driver": "FreeTDS"}
    assert own.caution() is None


@pytest.mark.parametrize(
    ("state", "text", "passes"),
    [
        ("08S01", "Communication link failure", True),
        ("08001", "Login timeout expired", True),
        ("HYT00", "Query timeout expired", True),
        ("40001", "was deadlocked on lock resources", True),
        ("28000", "Login failed for user 'u'. (18456)", False),
        ("42S02", "Invalid object name 'nowhere'. (208)", False),
        ("08001", "SSL Provider: certificate verify failed: self-signed certificate", False),
        ("IM002", "Data source name not found and no default driver specified", False),
    ],
)
def test_what_may_pass(state: str, text: str, passes: bool) -> None:
    assert Server({})._is_passing(Exception(state, f"[{state}] {text}")) is passes
