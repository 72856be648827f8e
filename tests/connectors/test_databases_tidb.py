"""TiDB over MySQL's protocol, on a real server where there is one, with what TiCDC would send."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from mview_connectors.formats.ticdc import TicdcFormat

from mview.connector import Message
from tests.connectors.databases_contract import Source, read_chunks, server_source

pytestmark = [pytest.mark.service]


@pytest.fixture
def source(tidb: Any) -> Iterator[Source]:
    with server_source("mysql", tidb) as made:
        yield made


def test_tables_are_described_planned_and_read(source: Source) -> None:
    source.execute(
        "CREATE TABLE t (a BIGINT UNSIGNED, b VARCHAR(20) COLLATE utf8mb4_bin, d DECIMAL(30,10), "
        "f FLOAT, g DOUBLE, at DATETIME(6), ts TIMESTAMP(3) NULL, e ENUM('x','y'), raw BLOB, "
        "flag BIT(1), PRIMARY KEY (a, b) CLUSTERED)"
    )
    for number in range(25):
        source.execute(
            f"INSERT INTO t VALUES ({2**63 + number // 5}, 'é{number:02d}', {number}.0000000001, "
            f"0.1, 1e-300, '2024-02-29 23:59:59.123456', '2024-02-29 23:59:59.5', 'y', "
            f"X'00FF', b'1'), ({number}, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
        )
    database = source.database
    schema = database.describe("t")
    assert schema.key == ("a", "b")
    plan = database.plan("t", schema, 7, 1 << 30)
    assert plan.columns == ("a",)  # texts pad with spaces to compare
    chunks = read_chunks(database, "t", schema, plan)
    assert len(chunks) > 3
    rows = [row for chunk in chunks for row in chunk]
    assert len({(row["a"], row["b"]) for row in rows}) == len(rows) == 50
    row = next(row for row in rows if row["b"] == "é07")
    assert row == {
        "a": Decimal(2**63 + 1), "b": "é07", "d": Decimal("7.0000000001"),
        "f": pytest.approx(0.1, abs=1e-8), "g": 1e-300,
        "at": dt.datetime(2024, 2, 29, 23, 59, 59, 123_456),
        "ts": dt.datetime(2024, 2, 29, 23, 59, 59, 500_000, dt.timezone.utc),
        "e": "y", "raw": b"\0\xff", "flag": True,
    }  # fmt: skip


def commit_ms(connection: Any) -> tuple[int, int]:
    """The TSO at which the last transaction of a connection was committed, and its milliseconds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT JSON_EXTRACT(@@tidb_last_txn_info, '$.commit_ts')")
        tso = int(cursor.fetchone()[0])
    return tso, tso >> 18


def test_the_clock_is_that_of_the_commits(source: Source, tidb: Any) -> None:
    """What a read saw was committed before the clock after it: a load is merged by that."""
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    database = source.database
    schema = database.describe("t")
    connection = tidb.connect(source.settings.database)
    for number in range(20):
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO t VALUES ({number}, 0)")
        connection.commit()
        _, committed = commit_ms(connection)
        plan = database.plan("t", schema, 100, 1 << 30)
        before = database.clock()
        (rows,) = read_chunks(database, "t", schema, plan)
        assert len(rows) == number + 1
        assert committed <= before <= database.clock()
    connection.close()


def test_a_read_is_of_one_moment(source: Source, tidb: Any) -> None:
    """While sums are moved between rows, every read of all of them has the same sum."""
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO t VALUES " + ", ".join(f"({n}, 100)" for n in range(300)))
    stop, moved = threading.Event(), []

    def move() -> None:
        with tidb.connect(source.settings.database) as connection:
            while not stop.is_set():
                number = len(moved)
                with connection.cursor() as cursor:
                    cursor.execute(f"UPDATE t SET v = v - 1 WHERE id = {number % 300}")
                    cursor.execute(f"UPDATE t SET v = v + 1 WHERE id = {(number * 7 + 150) % 300}")
                connection.commit()
                moved.append(number)

    thread = threading.Thread(target=move)
    thread.start()
    try:
        while len(moved) < 20:
            rows = source.read("t")
            assert sum(row["v"] for row in rows) == 30_000
    finally:
        stop.set()
        thread.join(30)


def test_changes_as_ticdc_writes_them_have_the_times_of_the_clock(
    source: Source, tidb: Any
) -> None:
    """No TiCDC could be had: messages are written as its page on canal-json says."""
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10))")
    connection = tidb.connect(source.settings.database)
    positions, times = [], []
    for number in range(3):
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO t VALUES ({number}, 'é')")
        connection.commit()
        tso, committed = commit_ms(connection)
        body = {
            "id": 0, "database": source.settings.database, "table": "t", "pkNames": ["id"],
            "isDdl": False, "type": "INSERT", "es": committed, "ts": committed + 5, "sql": "",
            "sqlType": {"id": 4, "v": 12}, "mysqlType": {"id": "int", "v": "varchar"},
            "data": [{"id": str(number), "v": "é"}], "old": None, "_tidb": {"commitTs": tso},
        }  # fmt: skip
        message = Message("t/0", number, None, json.dumps(body).encode())
        (event,) = TicdcFormat({"format.time.zone": "UTC"}).decode(message)
        positions.append(event.position)
        times.append(event.source_ms)
        assert event.namespace == source.settings.database
    connection.close()
    assert positions == sorted(set(positions))
    assert times == sorted(times)
    assert times[-1] <= source.database.clock()
