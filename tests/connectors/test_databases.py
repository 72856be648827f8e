"""The contract of every source database: describe, plan, read, fail."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import random
import sqlite3
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.databases.sqlite import SqliteDatabase

from mview.config import ConnectionSettings
from mview.connector import load
from mview.errors import MviewError, RetryableError, UserError
from mview.snapshot import ChunkPlan
from tests.connectors.databases_contract import Source, read_chunks, server_source, sqlite_source
from tests.seeds import daily

KINDS = [
    "sqlite",
    pytest.param("mariadb", marks=pytest.mark.service),
    pytest.param("postgresql", marks=pytest.mark.service),
]

#: Of the many that are alike each has its day.
pytestmark = pytest.mark.days(3)


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    if request.param == "sqlite":
        with sqlite_source(tmp_path) as made:
            yield made
    else:
        with server_source(request.param, request.getfixturevalue(request.param)) as made:
            yield made


# --- describe ------------------------------------------------------------------------------------


def test_describe_gives_columns_in_order_and_the_key_in_key_order(source: Source) -> None:
    source.execute(
        "CREATE TABLE t (v DECIMAL(12,2), b INTEGER NOT NULL, a BIGINT NOT NULL, "
        "PRIMARY KEY (a, b))"
    )
    schema = source.database.describe("t")
    assert schema.names == ("v", "b", "a")
    assert schema.key == ("a", "b")
    assert schema.column("v").type == pa.decimal128(12, 2)
    assert schema.column("a").type == pa.int64()
    assert [column.nullable for column in schema.columns] == [True, False, False]
    assert "12,2" in schema.column("v").source_type
    assert source.database.tables() == ["t"]


def test_an_unknown_table_is_named_with_a_guess(source: Source) -> None:
    source.execute("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY)")
    with pytest.raises(UserError, match=r"unknown table src\.order\b") as caught:
        source.database.describe("order")
    assert "did you mean 'src.orders'?" in str(caught.value)


def test_a_table_without_a_key_says_what_to_do(source: Source) -> None:
    source.execute("CREATE TABLE t (id BIGINT)")
    with pytest.raises(UserError, match="no primary key") as caught:
        source.database.describe("t")
    assert "ADD PRIMARY KEY" in str(caught.value)


def test_a_view_is_refused(source: Source) -> None:
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY)")
    source.execute("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(UserError, match=r"src\.v is a view, not a table"):
        source.database.describe("v")
    assert source.database.tables() == ["t"]


ODD_NAMES = ["Select", "a b", "semi;colon", "per%cent %s", 'dou"ble', "tick`", "quo'te", "ünï", "?"]


def test_identifiers_are_safe_whatever_they_hold(source: Source) -> None:
    table = "Order %s`\"'; --"
    columns = ", ".join(f"{source.quote(name)} BIGINT NOT NULL" for name in ODD_NAMES)
    key = ", ".join(map(source.quote, ODD_NAMES))
    source.execute(f"CREATE TABLE {source.quote(table)} ({columns}, PRIMARY KEY ({key}))")
    source.insert(table, [tuple(range(n, n + len(ODD_NAMES))) for n in range(10)])
    rows = source.read(table, rows=3)
    assert sorted(row["Select"] for row in rows) == list(range(10))
    assert list(rows[0]) == ODD_NAMES


def test_a_column_that_went_is_an_error_and_no_text(source: Source) -> None:
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(9))")
    source.insert("t", [(1, "Ada")])
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 10, 1 << 30)
    source.execute("ALTER TABLE t RENAME COLUMN name TO called")
    with pytest.raises(MviewError):
        read_chunks(source.database, "t", schema, plan)


def test_a_column_type_without_an_equal_is_refused_with_its_place(source: Source) -> None:
    wrong = {"sqlite": "GEOMETRY", "mariadb": "DECIMAL(65,2)", "postgresql": "interval"}
    source.execute(f"CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x {wrong[source.kind]})")
    with pytest.raises(UserError, match="cannot be read exactly") as caught:
        source.database.describe("t")
    assert "src.t.x" in str(caught.value)
    assert wrong[source.kind].lower() in str(caught.value).lower()


# --- plan and read -------------------------------------------------------------------------------

Key = tuple[Any, ...]

TEXTS = ["", "a", "A", "b", "ä", "Z", "z", "zz", "😀", "￿", "it's", "a b", "%s", "back\\slash", "_"]


def _texts(random_: random.Random, count: int) -> list[Key]:
    return [("".join(random_.choices(TEXTS, k=3)) + str(n),) for n in range(count)]


def _distinct(random_: random.Random, count: int, bits: int) -> set[int]:
    # So few of so many never meet; if they did, the seed would show it every time.
    return {random_.getrandbits(bits) for _ in range(count)}


def _moments(random_: random.Random, count: int) -> list[Key]:
    start = dt.datetime(1971, 1, 1)
    return [
        (start + dt.timedelta(microseconds=micros),) for micros in _distinct(random_, count, 50)
    ]


def _shapes(source: Source) -> dict[str, tuple[str, Any]]:
    """Key shapes: the columns of the key, and a function that makes that many distinct keys."""
    day = dt.date(1969, 12, 1)
    shapes: dict[str, tuple[str, Any]] = {
        "dense": ("k0 BIGINT NOT NULL", lambda r, n: [(i - 20,) for i in range(n)]),
        "gaps": (
            "k0 BIGINT NOT NULL",
            lambda r, n: [(x - 2**62,) for x in _distinct(r, n, 63)],
        ),
        "clusters": (
            "k0 BIGINT NOT NULL",
            lambda r, n: [(i + (10**12 if i % 2 else 0),) for i in range(n)],
        ),
        "skewed pair": (
            "k0 BIGINT NOT NULL, k1 INTEGER NOT NULL",
            lambda r, n: [(0 if i % 10 else i, i) for i in range(n)],
        ),
        "triple": (
            f"k0 INTEGER NOT NULL, k1 DATE NOT NULL, k2 VARCHAR(60) {source.byte_order} NOT NULL",
            lambda r, n: [
                (r.randrange(3), day + dt.timedelta(r.randrange(5)), *text) for text in _texts(r, n)
            ],
        ),
        "date": (
            "k0 DATE NOT NULL",
            lambda r, n: [(day + dt.timedelta(i),) for i in r.sample(range(5000), n)],
        ),
        "text by bytes": (f"k0 VARCHAR(60) {source.byte_order} NOT NULL", _texts),
        "text otherwise": (f"k0 VARCHAR(60) {source.other_order} NOT NULL", _texts),
        "number, text otherwise": (
            f"k0 INTEGER NOT NULL, k1 VARCHAR(60) {source.other_order} NOT NULL",
            lambda r, n: [(r.randrange(9), *text) for text in _texts(r, n)],
        ),
    }
    if source.kind != "sqlite":
        shapes["timestamp"] = (
            f"k0 {'DATETIME(6)' if source.kind == 'mariadb' else 'TIMESTAMP'} NOT NULL",
            _moments,
        )
        shapes["instant"] = (
            f"k0 {'TIMESTAMP(6)' if source.kind == 'mariadb' else 'TIMESTAMPTZ'} NOT NULL",
            _moments,
        )
    if source.kind == "mariadb":
        shapes["unsigned"] = (
            "k0 BIGINT UNSIGNED NOT NULL",
            lambda r, n: [(x,) for x in _distinct(r, n, 64)],
        )
        shapes["padded text"] = (
            "k0 VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
            _texts,
        )
    if source.kind == "postgresql":
        shapes["uuid"] = (
            "k0 UUID NOT NULL",
            lambda r, n: [(f"{r.getrandbits(128):032x}",) for _ in range(n)],
        )
        shapes["default collation"] = ("k0 TEXT NOT NULL", _texts)
    return shapes


#: Shapes whose order the databases and Python do not share, and what is left of the key.
UNORDERED = {"text otherwise": 0, "number, text otherwise": 1}


def _make_table(source: Source, shape: str, seed: int, count: int) -> None:
    columns, make = _shapes(source)[shape]
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    source.execute(f"CREATE TABLE t ({columns}, v INTEGER, PRIMARY KEY ({names}))")
    keys = make(random.Random(seed), count)
    source.insert("t", [(*key, n) for n, key in enumerate(keys)])


def _cases() -> Iterator[Any]:
    for kind in ("sqlite", "mariadb", "postgresql"):
        stand_in = Source.__new__(Source)
        stand_in.kind = kind
        for shape in _shapes(stand_in):
            marks = [] if kind == "sqlite" else [pytest.mark.service]
            yield pytest.param(kind, shape, marks=marks)


@pytest.mark.parametrize(("source", "shape"), list(_cases()), indirect=["source"])
def test_chunks_partition_the_table_and_keys_route_to_the_chunk_that_reads_them(
    source: Source, shape: str
) -> None:
    seed, count = daily(sum(map(ord, shape))), 300
    _make_table(source, shape, seed, count)
    limit = random.Random(seed).choice([1, 7, 50, 299, 300])
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, limit, 1 << 30)
    plan = ChunkPlan.from_json(plan.to_json())
    chunks = read_chunks(source.database, "t", schema, plan)

    values = [row["v"] for rows in chunks for row in rows]
    assert sorted(values) == list(range(count)), (seed, limit)
    for number, rows in enumerate(chunks):
        routed = plan.route(pa.Table.from_pylist(rows, schema.arrow)) if rows else []
        assert set(routed) <= {number}, (seed, limit)
    assert len(plan.columns) == UNORDERED.get(shape, len(schema.key))
    if plan.columns == schema.key:
        assert max(map(len, chunks)) <= limit
        # Half-full chunks at the least: no long runs of empty ones.
        assert len(chunks) <= 2 * (count / limit) + 1


def test_rows_above_the_maximum_at_planning_are_not_read(source: Source) -> None:
    _make_table(source, "skewed pair", 1, 100)
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 30, 1 << 30)
    source.insert("t", [(*plan.maximum[:-1], plan.maximum[-1] + 1, -1), (2**40, 0, -2)])
    source.insert("t", [(-5, 0, -3)])
    chunks = read_chunks(source.database, "t", schema, plan)
    assert sorted(row["v"] for rows in chunks for row in rows) == [-3, *range(100)]


def test_rows_deleted_between_planning_and_reading_are_gone(source: Source) -> None:
    _make_table(source, "gaps", 2, 100)
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 10, 1 << 30)
    source.execute("DELETE FROM t WHERE v % 2 = 1")
    source.execute(f"DELETE FROM t WHERE k0 = {plan.maximum[0]}")
    values = [row["v"] for row in chain(*read_chunks(source.database, "t", schema, plan))]
    assert set(values) <= set(range(0, 100, 2))
    assert len(values) >= 49


def test_an_empty_table_has_one_chunk_without_rows(source: Source) -> None:
    _make_table(source, "skewed pair", 3, 0)
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 10, 1 << 30)
    source.insert("t", [(1, 1, 1)])
    assert (plan.maximum, plan.bounds) == (None, ())
    assert read_chunks(source.database, "t", schema, plan) == [[]]


@pytest.mark.parametrize("shape", ["dense", "skewed pair", "text by bytes", "text otherwise"])
def test_a_table_of_one_row(source: Source, shape: str) -> None:
    _make_table(source, shape, 4, 1)
    assert [row["v"] for row in source.read("t", rows=1)] == [0]


@pytest.mark.parametrize("source", ["postgresql"], indirect=True)
def test_few_rows_are_counted_where_statistics_were_never_made(source: Source) -> None:
    """PostgreSQL takes such a table for one of ten pages: of 1,200 rows, if they are small."""
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, v INTEGER)")
    source.insert("t", [(n, n) for n in range(3)])
    schema = source.database.describe("t")
    assert source.database.plan("t", schema, 1000, 1 << 30).rows == 3
    source.insert("t", [(n, n) for n in range(3, 15_000)])
    rows = source.database.plan("t", schema, 1000, 1 << 30).rows
    assert rows is not None
    assert 5_000 < rows < 45_000  # by the size of its file


def test_chunks_are_bounded_in_bytes(source: Source) -> None:
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x VARCHAR(2000))")
    # Not compressible by repetition of rows alone; PostgreSQL estimates need statistics.
    source.insert("t", [(n, str(n) * 200) for n in range(1000, 2000)])
    if source.kind != "sqlite":
        source.execute("ANALYZE" + (" TABLE t" if source.kind == "mariadb" else " t"))
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 1000, 80_000)
    assert 6 <= len(plan.chunks) <= 25


@pytest.mark.parametrize("source", KINDS[1:], indirect=True)
def test_a_chunk_is_read_from_one_state_of_the_table(source: Source) -> None:
    """Rows that change while their chunk streams are read as they were when it began.

    SQLite is left out: there a reader and a writer exclude each other.
    """
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, v INTEGER, x VARCHAR(3000))")
    source.insert("t", [(n, 0, "x" * 3000) for n in range(4000)])
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 10_000, 1 << 30)
    stream = source.database.read("t", schema, plan, plan.chunks[0])
    first = next(stream)
    assert 0 < first.num_rows < 4000
    source.execute("UPDATE t SET v = 1")
    source.execute("DELETE FROM t WHERE id % 2 = 0")
    rest = list(stream)
    table = pa.Table.from_batches([first, *rest])
    assert table.num_rows == 4000
    assert set(table.column("v").to_pylist()) == {0}


def test_a_reader_that_stops_early_leaves_a_usable_connection(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x VARCHAR(3000))")
    source.insert("t", [(n, "x" * 3000) for n in range(4000)])
    schema = source.database.describe("t")
    plan = source.database.plan("t", schema, 10_000, 1 << 30)
    stream = source.database.read("t", schema, plan, plan.chunks[0])
    next(stream)
    stream.close()
    # The pool would complain about a connection that comes back with rows unread.
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert source.database.clock() > 0
    assert len(source.read("t")) == 4000


# --- clock ---------------------------------------------------------------------------------------


def test_the_clock_of_sqlite_is_never_behind(tmp_path: Path) -> None:
    """What is committed before a chunk is read must not look as if it were committed after."""
    sqlite3.connect(tmp_path / "x.db").close()
    settings = ConnectionSettings(name="x", drivername="sqlite", database=str(tmp_path / "x.db"))
    with closing(SqliteDatabase(settings)) as database:
        for _ in range(300):
            before = time.time_ns() // 1_000_000
            assert before <= database.clock() <= time.time_ns() // 1_000_000


def test_the_clock_is_in_milliseconds_and_goes_on(source: Source) -> None:
    now = dt.datetime.now().timestamp() * 1000
    first, second = source.database.clock(), source.database.clock()
    assert abs(first - now) < 60_000
    assert first <= second


# --- failures ------------------------------------------------------------------------------------


def test_it_pickles_before_and_after_use(source: Source) -> None:
    source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY)")
    source.database.clock()
    copy = pickle.loads(pickle.dumps(source.database))
    try:
        assert copy.describe("t") == source.database.describe("t")
    finally:
        copy.close()
        copy.close()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_server_that_is_down_is_retryable_and_named(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2-of-the-test")
    settings = ConnectionSettings(
        name="src",
        drivername=kind,
        host="127.0.0.1",
        port=1,
        username="u",
        password="${env:SECRET}",
        database="shop",
    )
    database = load("databases", kind)(settings)
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1/shop") as caught:
        database.clock()
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    assert "hunter2" not in text
    assert "run the same command again" in text
    database.close()


@pytest.mark.service
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_wrong_password_is_a_user_error_without_secrets(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = request.getfixturevalue(kind)
    monkeypatch.setenv("SECRET", "hunter2-of-the-test")
    monkeypatch.setenv("ACCOUNT", "secret-account")
    parts = server.settings("postgres" if kind == "postgresql" else "mysql")
    secrets = {"username": "${env:ACCOUNT}", "password": "${env:SECRET}"}
    settings = ConnectionSettings(name="src", **{**parts, **secrets})
    database = load("databases", kind)(settings)
    with pytest.raises(UserError) as caught:
        database.tables()
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    assert "hunter2" not in text
    # Both servers name the account in their answer.
    assert "secret-account" not in text
    assert "***" in text
    assert "connections.src" in text
    database.close()


@pytest.mark.service
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_secrets_stay_out_of_the_object_after_use(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with server_source(kind, request.getfixturevalue(kind)) as source:
        source.database.clock()
        secret = os.environ[str(source.settings.password)[6:-1]]
        engine = source.database._connected()  # type: ignore[attr-defined]
        assert secret not in repr(vars(source.database)) + engine.url.render_as_string(False)
        assert secret not in str(pickle.dumps(source.database))


@pytest.mark.service
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_connection_killed_while_reading_is_retryable(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with server_source(kind, request.getfixturevalue(kind)) as source:
        source.execute("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, x VARCHAR(3000))")
        source.insert("t", [(n, "x" * 3000) for n in range(8000)])
        schema = source.database.describe("t")
        plan = source.database.plan("t", schema, 10_000, 1 << 30)
        stream = source.database.read("t", schema, plan, plan.chunks[0])
        next(stream)
        if kind == "postgresql":
            source.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'COPY %' AND pid <> pg_backend_pid()"
            )
        else:
            ids = source.execute(
                "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT `id`%'"
            )
            source.execute(f"KILL {ids[0][0]}")
        with pytest.raises(RetryableError, match=r"while reading src\.t"):
            list(stream)
        assert len(source.read("t")) == 8000


def test_a_missing_sqlite_file_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    settings = ConnectionSettings(name="src", drivername="sqlite", database=str(path))
    with pytest.raises(UserError, match=r"no\.db"):
        load("databases", "sqlite")(settings).tables()
    assert not path.exists()
