"""Reading through ODBC, with the drivers of MariaDB and PostgreSQL: SQL Server's has no server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import sqlalchemy as sa
from mview_connectors.databases.chunking import Size
from mview_connectors.databases.mssql.odbc import (
    OdbcDatabase,
    dates,
    decimal_values,
    of_kinds,
    text_values,
)
from mview_connectors.databases.sql import UniqueIndex
from mview_connectors.databases.values import ReadType

from mview.errors import AwayError, ConfigError, MviewError, UserError
from mview.schema import Column, TableSchema
from tests.connectors.databases_contract import Source, read_chunks, server_source
from tests.services.process import free_port

pytestmark = [pytest.mark.service, pytest.mark.days(2)]

_DECIMAL, _MOMENT = pa.decimal128(38, 4), pa.timestamp("us")
#: Name, type in MariaDB and in PostgreSQL, and how it is read.
COLUMNS: list[tuple[str, str, str, ReadType]] = [
    ("big", "DECIMAL(30,0)", "numeric(30,0)", ReadType(pa.decimal128(30, 0), decimal_values(pa.decimal128(30, 0)))),  # noqa: E501
    ("at", "DATETIME(6)", "timestamp(6)", ReadType(_MOMENT, text_values(_MOMENT), "CONCAT({}, '')".format)),  # noqa: E501
    ("day", "DATE", "date", ReadType(pa.date32(), dates)),
    ("n", "BIGINT", "bigint", ReadType(pa.int64(), of_kinds(pa.int64(), int))),
    ("x", "DOUBLE", "double precision", ReadType(pa.float64(), of_kinds(pa.float64(), float))),
    ("amount", "DECIMAL(38,4)", "numeric(38,4)", ReadType(_DECIMAL, decimal_values(_DECIMAL))),
    ("text", "LONGTEXT", "text", ReadType(pa.string(), text_values(pa.string()))),
    ("raw", "LONGBLOB", "bytea", ReadType(pa.binary(), of_kinds(pa.binary(), bytes))),
]  # fmt: skip
KEY = ("big", "at")
ROWS = 12_000


class ByOdbc(OdbcDatabase):
    """One table `t` of a server whose dialect is not SQL Server's."""

    driver: ClassVar[str] = "mssql+pyodbc"
    row_values: ClassVar[bool] = False
    session: ClassVar[str]
    mark_of_names: ClassVar[str]

    def quote(self, name: str) -> str:
        return f"{self.mark_of_names}{name}{self.mark_of_names}"

    def _connected(self) -> sa.Engine:
        if self._engine is None:  # the dialect would ask for SQL Server's version
            url = f"{self.driver}://"
            self._engine = sa.create_engine(url, creator=self._open, _initialize=False)
        return self._engine

    def _prepare(self, connection: Any) -> None:
        connection.execute(self.session)

    def _kinds(self, schema: str) -> dict[str, str]:
        return {"t": "table"}

    def _columns(self, table: str) -> dict[str, Callable[[], Column]]:
        return {
            name: lambda name=name, type_=type_: Column(name, type_.arrow, name not in KEY)
            for name, *_, type_ in COLUMNS
        }

    def _read_types(self, table: str, schema: TableSchema) -> Sequence[ReadType]:
        return [type_ for *_, type_ in COLUMNS]

    def _indexes(self, table: str) -> Sequence[UniqueIndex]:
        return [UniqueIndex(KEY, True)]

    def _chunk_columns(self, table: str, schema: TableSchema) -> tuple[str, ...]:
        return KEY

    def _size(self, table: str, schema: TableSchema) -> Size:
        return Size(ROWS, 100)


class Mariadb(ByOdbc):
    clock_sql = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)"
    session = "SET time_zone = '+00:00'"
    mark_of_names = "`"


class Postgresql(ByOdbc):
    clock_sql = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    session = "SET TIME ZONE 'UTC'"
    mark_of_names = '"'


KINDS = {"mariadb": (Mariadb, "MariaDB Unicode"), "postgresql": (Postgresql, "PostgreSQL Unicode")}


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, odbc: None) -> Iterator[Source]:
    with server_source(request.param, request.getfixturevalue(request.param)) as made:
        yield made


def opened(source: Source, **changed: Any) -> ByOdbc:
    kind, driver = KINDS[source.kind]
    query = {"driver": driver, "port": str(changed.pop("port", source.settings.port))}
    settings = {"drivername": "mssql+pyodbc", "port": None, "query": query, **changed}
    return kind(source.settings.model_copy(update=settings))


def fill(source: Source) -> list[dict[str, Any]]:
    """Rows in the order of their keys: large and negative numbers, NULLs, all letters, bytes."""
    number = 1 if source.kind == "mariadb" else 2
    listed = ", ".join(f"{source.quote(column[0])} {column[number]}" for column in COLUMNS)
    key = ", ".join(map(source.quote, KEY))
    source.execute(f"CREATE TABLE t ({listed}, PRIMARY KEY ({key}))")
    rows = []
    for i in range(ROWS):
        at = dt.datetime(2024, 2, 29, 23, 59, 59, 999_000) + dt.timedelta(microseconds=i % 7)
        rows.append(
            {
                "big": Decimal(10**25 * (i // 7 - 500)),
                "at": at,
                "day": dt.date(1000, 1, 1) + dt.timedelta(days=i) if i % 3 else None,
                "n": (-1) ** i * (2**63 - 1 - i),
                "x": (0.1 * i, -5e-324, 1.7976931348623157e308, None)[i % 4],
                "amount": Decimal(i - 6000).scaleb(-4) if i % 5 else None,
                "text": ("", "naïve 🚲 東京", "a'\\\n\"", None, "x" * 9_000)[i % 5],
                "raw": (b"", b"\0\xff'", None)[i % 3] if i % 100 else bytes(range(256)) * 40,
            }
        )
    binary = "X'{}'" if source.kind == "mariadb" else "'\\x{}'"

    def literal(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bytes):
            return binary.format(value.hex())
        if isinstance(value, float):
            return repr(value)
        return source._literal(value) if isinstance(value, str) else f"'{value}'"

    for at in range(0, ROWS, 500):
        values = (f"({', '.join(map(literal, row.values()))})" for row in rows[at : at + 500])
        source.execute(f"INSERT INTO t VALUES {', '.join(values)}")
    return rows


def test_all_rows_come_as_they_are(source: Source) -> None:
    rows = fill(source)
    with closing(opened(source)) as database:
        schema = database.describe("t")
        assert schema.key == KEY
        plan = database.plan("t", schema, 5_500, 1 << 40)
        assert len(plan.bounds) == 2
        assert plan.maximum == (int(rows[-1]["big"]), rows[-1]["at"])
        chunks = read_chunks(database, "t", schema, plan)
        # Unordered in a chunk; none in two.
        got = [row for chunk in chunks for row in sorted(chunk, key=lambda r: (r["big"], r["at"]))]
        assert got == rows
        for number, chunk in enumerate(chunks):
            keys = pa.Table.from_pylist(chunk, schema.arrow)
            assert set(plan.route(keys)) == {number}
        ((now,),) = source.execute("SELECT now()")
        assert abs(database.clock() / 1000 - dt.datetime.now(dt.timezone.utc).timestamp()) < 60, now


def test_a_value_that_does_not_fit_is_told_with_its_row(source: Source) -> None:
    fill(source)
    with closing(opened(source)) as database:
        schema = database.describe("t")
        narrow = [ReadType(pa.int32(), of_kinds(pa.int32(), int)) if name == "n" else type_
                  for name, *_, type_ in COLUMNS]  # fmt: skip
        database._read_types = lambda table, schema: narrow  # type: ignore[method-assign]
        plan = database.plan("t", schema, ROWS, 1 << 40)
        with pytest.raises(UserError, match="does not fit") as caught:
            list(database.read("t", schema, plan, plan.chunks[0]))
        assert "src.t.n, row with big=" in str(caught.value.where)


def test_whose_error_it_is(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG", "a-wrong-password")
    # SQL Server's states are others than these drivers': see `test_databases_mssql.py`.
    with closing(opened(source, password="${env:WRONG}")) as database:
        with pytest.raises(MviewError, match="failed while connecting") as caught:
            database.clock()
        assert "a-wrong-password" not in str(caught.value)
    with closing(opened(source, port=free_port())) as database:
        with pytest.raises(MviewError, match="failed while connecting") as caught:
            database.clock()
        assert isinstance(caught.value, AwayError) == (source.kind == "postgresql")
    with closing(opened(source)) as database, pytest.raises(UserError, match="failed while"):
        database.query("SELECT nothing FROM nowhere")


def test_a_driver_that_is_not_there(source: Source) -> None:
    changed = source.settings.model_copy(update={"query": {"driver": "None of these"}})
    with closing(Mariadb(changed)) as database:
        with pytest.raises(ConfigError, match="failed while connecting") as caught:
            database.clock()
        assert "None of these" in str(caught.value)
