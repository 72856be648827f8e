"""The changes that triggers note in SQLite: all that is done to a table, exactly, and in order."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import sqlite3
import time
from contextlib import closing

import pyarrow as pa
import pytest
from mview_connectors.changelogs.sqlite.changelog import SqliteChangelog
from mview_connectors.databases.sqlite import SqliteDatabase
from mview_connectors.formats.ownlog.noted import NotedFormat

from mview.clock import SystemClock
from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import NO_LIMIT, Align, LogReader, events_of
from mview.errors import ConfigError, DataLostError, UserError
from tests.connectors.ownlog_contract import tell
from tests.seeds import seeds

FORMAT = NotedFormat({})


class Shop:
    """A database, and changelogs of it."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "shop.db"
        self.opened = []
        self.run("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")

    def run(self, *statements):
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    @property
    def settings(self):
        return ConnectionSettings(name="c", drivername="sqlite", database=str(self.file))

    def open(self, *tables, store="store", light="", **options):
        settings = ChangesSettings(connection="c", source="sqlite", options=options)
        reader = LogReader(self.folder / store, light)
        log = SqliteChangelog(settings, self.settings, list(tables or ("t",)), reader)
        self.opened.append(log)
        return log

    def installed(self, *tables):
        log = self.open(*tables)
        log.install()
        return log

    def table(self, name):
        """The rows by key, as the loader reads them."""
        with closing(SqliteDatabase(self.settings)) as database:
            schema = database.describe(name)
            plan = database.plan(name, schema, 1 << 40, 1 << 40)
            rows = []
            for chunk in plan.chunks:
                for batch in database.read(name, schema, plan, chunk):
                    rows += batch.to_pylist()
        return schema, keyed(schema, rows)


def keyed(schema, rows):
    return {repr([row[name] for name in schema.key]): repr(row) for row in rows}


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    yield shop
    for log in shop.opened:
        log.close()
        log.close()


def events(log, start, end):
    splits = pickle.loads(pickle.dumps(log.splits(start, end)))
    return [event for message in log.read(splits) for event in events_of(FORMAT, message)]


def step(log, start, **limits):
    align = Align(1 << 40, None, *limits.get("room", (NO_LIMIT, NO_LIMIT)))
    rows, size = limits.get("rows", 10_000), limits.get("size", 1 << 40)
    progress = log.advance(start, rows, 0, size, align)
    return events(log, start, progress.offsets), progress


def noted(log, start):
    return [(e.kind, *(e.after or e.before).values()) for e in step(log, start)[0]]


def mirrored(schema, name, log, start, rows):
    """What the changes make of the rows that there were."""
    rows = dict(rows)
    for event in step(log, start)[0]:
        assert event.table == name
        values = event.after or event.before
        columns = [c for c in schema.columns if c.name in values]
        arrays = [FORMAT.convert([values[c.name]], c) for c in columns]
        (row,) = pa.table(arrays, names=[c.name for c in columns]).to_pylist()
        key = repr([row[part] for part in schema.key])
        rows.pop(key, None)
        if event.kind != "d":
            rows[key] = repr(row)
    return rows


EVERY = """CREATE TABLE every (i BIGINT, s VARCHAR(10), f DOUBLE, b BLOB, d DECIMAL(38, 4),
n NUMERIC, o BOOLEAN, day DATE, at DATETIME, z TIMESTAMPTZ,
half BIGINT AS (i / 2), PRIMARY KEY (i, s)) {}"""

ROWS = [
    "9223372036854775807, 'a'||char(0)||'b', 0.1, x'00ff', '1234567890123456789.1234', 1.5, 1, "
    "'2024-02-29', '2024-02-29 01:02:03.123456', '2024-02-29T01:02:03+02:00'",
    "-9223372036854775807, '', -0.0, x'', -1, -0.0, 0, '0001-01-01', '9999-12-31T23:59:59', NULL",
    "0, 'é😀', 1e308, NULL, 0.5, 12, NULL, NULL, NULL, NULL",
    "1, 'q''\"', 9007199254740993, x'27', 1, 1, 1, NULL, NULL, NULL",
    "2, '1', 5e-324, 'x', 1, 1, 1, NULL, NULL, NULL",
    "3, 'inf', 9e999, x'00', 1, 1, 1, NULL, NULL, NULL",
]


@pytest.mark.parametrize("kind", ["", "WITHOUT ROWID"])
def test_values_are_those_that_the_loader_reads(shop, kind):
    columns = "(i, s, f, b, d, n, o, day, at, z)"
    shop.run(EVERY.format(kind))
    log = shop.installed("every")
    start = log.begin()
    rows = [row.replace("'x'", "x'01'") for row in ROWS]
    shop.run(*(f"INSERT INTO every {columns} VALUES ({row})" for row in rows))
    schema, expected = shop.table("every")
    assert mirrored(schema, "every", log, start, {}) == expected
    assert len(expected) == len(ROWS)
    _, middle = step(log, start)
    shop.run(
        "UPDATE every SET f = f / 3, s = s || 'y' WHERE i < 2", "DELETE FROM every WHERE i = 3"
    )
    assert mirrored(schema, "every", log, middle.offsets, expected) == shop.table("every")[1]


HISTORY = [
    "INSERT INTO u VALUES (1, 'a', 'x'), (2, 'b', 'y'), (3, 'c', 'z')",
    "UPDATE u SET id = id + 10",
    "INSERT OR REPLACE INTO u VALUES (11, 'b', 'takes the place of two rows')",
    "INSERT OR IGNORE INTO u VALUES (20, 'c', 'ignored')",
    "REPLACE INTO u VALUES (21, 'C', 'by the collation')",
    "INSERT INTO u VALUES (22, 'd', 'x') ON CONFLICT (id) DO UPDATE SET note = 'y'",
    "INSERT INTO u VALUES (22, 'e', 'x') ON CONFLICT (id) DO UPDATE SET note = 'z'",
    "UPDATE OR REPLACE u SET code = 'B' WHERE id = 22",
    "UPDATE OR REPLACE u SET id = 21 WHERE id = 22",
    "BEGIN; DELETE FROM u; ROLLBACK",
    "DELETE FROM u WHERE id = 21",
    "INSERT INTO u VALUES (NULL, NULL, 'a'), (NULL, NULL, 'b')",
]


@pytest.mark.parametrize("recursive", [0, 1])
@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE u (id INTEGER PRIMARY KEY, code TEXT COLLATE NOCASE UNIQUE, note TEXT)",
        "CREATE TABLE u (id INTEGER PRIMARY KEY, code TEXT, note TEXT); "
        "CREATE UNIQUE INDEX c ON u (code COLLATE NOCASE)",
    ],
)
def test_rows_that_replace_others(shop, made, recursive):
    shop.run(*made.split("; "))
    log = shop.installed("u")
    at, rows = log.begin(), {}
    for statement in HISTORY:
        shop.run(f"PRAGMA recursive_triggers = {recursive}", *statement.split("; "))
        schema, expected = shop.table("u")
        rows = mirrored(schema, "u", log, at, rows)
        assert rows == expected, statement
        at = step(log, at)[1].offsets
    assert shop.run("SELECT count(*) FROM _mview_replaced") in ([(0,)], [(1,)])


def test_a_key_without_case_is_two_keys_for_us(shop):
    shop.run("CREATE TABLE k (id TEXT COLLATE NOCASE PRIMARY KEY, n INTEGER)")
    log = shop.installed("k")
    start = log.begin()
    shop.run(
        "INSERT INTO k VALUES ('a', 1), ('b', 1)",
        "UPDATE k SET id = 'A' WHERE id = 'a'",
        "REPLACE INTO k VALUES ('B', 2)",
    )
    with closing(SqliteDatabase(shop.settings)) as database:
        schema = database.describe("k")
    assert set(mirrored(schema, "k", log, start, {})) == {"['A']", "['B']"}


def test_triggers_of_others_and_cascades(shop):
    shop.run(
        "CREATE TABLE child (id INTEGER PRIMARY KEY, t INTEGER REFERENCES t ON DELETE CASCADE)",
        "CREATE TRIGGER early AFTER INSERT ON t BEGIN UPDATE t SET x = x || '!' WHERE id = NEW.id; "
        "DELETE FROM t WHERE x = 'gone!'; END",
    )
    log = shop.installed("t", "child")
    shop.run(
        "CREATE TRIGGER late AFTER INSERT ON t BEGIN UPDATE t SET x = x || '?' WHERE id = NEW.id; "
        "END"
    )
    start = log.begin()
    shop.run(
        "INSERT INTO t VALUES (1, 'a'), (2, 'gone'), (3, 'c')", "INSERT INTO child VALUES (7, 3)"
    )
    shop.run("PRAGMA foreign_keys = ON", "DELETE FROM t WHERE id = 3")
    rows = {}
    for event in step(log, start)[0]:
        row = event.after or event.before
        rows[event.table, row["id"]] = None if event.kind == "d" else row
    left = {key: row for key, row in rows.items() if row is not None}
    expected = {("t", n): {"id": n, "x": x} for n, x in shop.run("SELECT * FROM t")}
    assert left == expected
    assert rows["child", 7] is None


def test_limits_backlog_and_a_restart(shop):
    log = shop.installed()
    at = log.begin()
    assert log.advance(at, 100, 0).offsets == at
    shop.run(*(f"INSERT INTO t VALUES ({n}, '{'x' * size}')" for n, size in enumerate([1, 9, 999])))
    seen, progress = step(log, at, rows=2, room=(0, 0))
    assert (len(seen), progress.backlog) == (2, 1)
    assert progress.watermark == min(seen[1].source_ms, step(log, at)[0][2].source_ms) - 1
    again = shop.open()
    rest, end = step(again, json.loads(json.dumps(progress.offsets)))
    assert [e.after["id"] for e in rest] == [2]
    assert end.watermark > progress.watermark
    assert len(step(shop.open(), at, size=140, room=(0, 0))[0]) == 2
    assert len(step(shop.open(), progress.offsets, size=1, room=(0, 0))[0]) == 1
    assert log.splits(at, at) == []
    assert [log.has(n) for n in ("changes", "table/t", "table/u")] == [True, True, False]
    first = seen[0].source_ms
    assert log.advance(at, 9, 0, align=Align(0, first - 1)).offsets == at


@pytest.mark.parametrize("seed", seeds(6))
def test_no_batch_ends_inside_of_a_transaction(shop, seed):
    """Whatever the limits are, and who was away meanwhile; but for what has no room."""
    chance = random.Random(seed)
    shop.run("CREATE TABLE u (id INTEGER PRIMARY KEY, x TEXT)")
    log = shop.installed("t", "u")
    at, ends, seen, number = log.begin(), {0}, [], 0
    room = chance.choice([(NO_LIMIT, NO_LIMIT), (60, NO_LIMIT), (NO_LIMIT, 2000)])
    for _ in range(60):
        for _ in range(chance.choice([0, 1, 1, 3])):
            rows = range(number, number + chance.choice([1, 2, 7, 20]))
            inserts = [f"INSERT INTO {chance.choice('tu')} VALUES ({n}, 'x')" for n in rows]
            shop.run("BEGIN", *inserts, "COMMIT")
            number = rows.stop
            ends.add(number)
        if chance.random() < 0.3:
            continue
        before = len(seen)
        taken, progress = step(
            log,
            at,
            rows=chance.choice([1, 5, 30]),
            size=chance.choice([1, 500, 1 << 40]),
            room=room,
        )
        at = json.loads(json.dumps(progress.offsets))
        seen += [event.after["id"] for event in taken]
        assert progress.whole or len(seen) > before or at.get("in_part")
        if progress.whole:
            assert len(seen) in ends
        if room[0] == room[1] == NO_LIMIT:
            assert progress.whole
        if chance.random() < 0.2:
            log = shop.open("t", "u")
    while len(seen) < number:
        taken, progress = step(log, at, room=room)
        seen += [event.after["id"] for event in taken]
        at = progress.offsets
    assert seen == list(range(number))
    assert step(log, at)[1].whole


def test_one_that_is_too_new_waits_as_a_whole(shop):
    log = shop.installed()
    at = log.begin()
    with closing(sqlite3.connect(shop.file, isolation_level=None)) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        time.sleep(0.05)
        writer.execute("INSERT INTO t VALUES (2, 'a')")
        writer.execute("COMMIT")
    first, second = step(shop.open(), at)[0]
    assert first.source_ms < second.source_ms
    held = log.advance(at, 9, 0, align=Align(0, first.source_ms))
    assert (held.offsets, held.backlog, held.whole) == (at, 2, True)
    until = Align(0, second.source_ms)
    assert log.advance(at, 9, 0, align=until).offsets == step(log, at)[1].offsets


def test_bounded(shop):
    log = shop.installed()
    at = log.begin()
    shop.run("INSERT INTO t VALUES (1, 'a')")
    clock = SystemClock()
    time.sleep(0.01)
    begun = clock.now()
    log.finish()
    ended = clock.now()
    time.sleep(0.01)
    shop.run("INSERT INTO t VALUES (2, 'b')")
    seen, progress = step(log, at)
    assert [e.after["id"] for e in seen] == [1]
    assert progress.backlog == 0
    # All up to then was read, also where nothing had changed for long.
    # One millisecond less than the clock: more may be committed in the one that goes on.
    assert begun - 1 <= progress.watermark < ended
    again = log.advance(progress.offsets, 9, 0)
    assert (again.offsets, again.watermark) == (progress.offsets, progress.watermark)


def test_an_open_transaction_comes_later_whole(shop):
    log = shop.installed()
    at = log.begin()
    shop.run("PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(shop.file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        before = log.advance(at, 9, 0)
        assert before.offsets == at
        assert before.watermark is not None
        writer.execute("INSERT INTO t VALUES (2, 'b')")
        writer.execute("COMMIT")
    assert [e.after["id"] for e in step(log, at)[0]] == [1, 2]


def test_what_all_have_published_is_pruned(shop, monkeypatch):
    monkeypatch.setattr("mview_connectors.changelogs.sqlite.changelog._PRUNE_S", 0)
    log, other = shop.installed(), shop.open(store="other")
    at, held = log.begin(), other.begin()
    kept = []
    for n in range(4):
        shop.run(f"INSERT INTO t VALUES ({n}, 'a')")
        at = step(log, at)[1].offsets
    kept.append(shop.run("SELECT count(*) FROM _mview_changes")[0][0])
    for _ in range(2):
        held = step(other, held)[1].offsets
        shop.run("UPDATE t SET x = 'b' WHERE id = 1")
        at = step(log, at)[1].offsets
    step(other, held)
    kept.append(shop.run("SELECT min(id) FROM _mview_changes")[0][0])
    assert kept == [4, 4]
    with closing(sqlite3.connect(shop.file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # who writes now goes first
        step(log, at)


def test_with_the_last_reader_all_changes_go(shop):
    """Nobody is left who would prune them; the triggers write on, for who comes."""
    log, other = shop.installed(), shop.open(store="other")
    log.begin()
    held = other.begin()
    shop.run("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET x = 'b'")
    log.leave(None)
    changes, batch = step(other, held)
    assert len(changes) == 2, "another one reads on"
    other.leave(batch.offsets)
    assert shop.run("SELECT count(*) FROM _mview_changes") == [(0,)]
    shop.run("INSERT INTO t VALUES (2, 'a')")
    at = log.begin()
    shop.run("INSERT INTO t VALUES (3, 'a')")
    assert [event.after["id"] for event in step(log, at)[0]] == [3]


def test_a_file_that_takes_the_place_is_read_on(shop):
    """Of the same database: a copy that somebody has put there while the log was followed."""
    log = shop.installed()
    at = log.begin()
    shop.run("INSERT INTO t VALUES (1, 'a')")
    changes, batch = step(log, at)
    shutil.copy(shop.file, shop.folder / "copy.db")
    (shop.folder / "copy.db").replace(shop.file)
    shop.run("INSERT INTO t VALUES (2, 'b')")
    changes, _ = step(log, batch.offsets)
    assert len(changes) == 1, "the file that was replaced is not read on"


def test_a_file_that_is_gone_is_told_though_it_was_open(shop):
    log = shop.installed()
    at = log.begin()
    shop.file.rename(shop.folder / "elsewhere.db")
    with pytest.raises(ConfigError, match="failed while connecting"):
        log.advance(at, 9, 0)
    (shop.folder / "elsewhere.db").rename(shop.file)
    shop.run("INSERT INTO t VALUES (1, 'a')")
    assert len(step(log, at)[0]) == 1


class TestLost:
    def test_an_older_copy_while_it_is_followed(self, shop):
        log = shop.installed()
        shutil.copy(shop.file, shop.folder / "copy.db")
        start = log.begin()
        shop.run("INSERT INTO t VALUES (1, 'a')")
        at = step(log, start)[1].offsets
        (shop.folder / "copy.db").replace(shop.file)
        with pytest.raises(DataLostError):
            log.advance(at, 9, 0)

    def test_an_older_copy(self, shop):
        log = shop.installed()
        start = log.begin()
        shop.run("INSERT INTO t VALUES (1, 'a')")
        shutil.copy(shop.file, shop.folder / "copy.db")
        time.sleep(0.01)
        shop.run("INSERT INTO t VALUES (2, 'b')")
        at = step(log, start)[1].offsets
        log.close()
        shutil.copy(shop.folder / "copy.db", shop.file)
        with pytest.raises(DataLostError, match="gone before they were read"):
            shop.open().advance(at, 9, 0)
        shop.run("INSERT INTO t VALUES (3, 'c')", "INSERT INTO t VALUES (4, 'c')")
        with pytest.raises(DataLostError, match="gone before they were read"):
            shop.open().advance(at, 9, 0)

    def test_another_database(self, shop):
        start = shop.installed().begin()
        shop.run("UPDATE _mview_database SET id = 'other'")
        with pytest.raises(DataLostError):
            shop.open().advance(start, 9, 0)

    def test_changes_that_somebody_deleted(self, shop):
        log = shop.installed()
        start = log.begin()
        shop.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        splits = log.splits(start, log.advance(start, 9, 0).offsets)
        shop.run("DELETE FROM _mview_changes WHERE id = 1")
        with pytest.raises(DataLostError):
            list(log.read(splits))

    @pytest.mark.parametrize(
        ("done", "told"),
        [
            ("DROP TRIGGER _mview_update_t", "its triggers were dropped"),
            ("DROP TABLE t", "its triggers were dropped"),
            ("CREATE UNIQUE INDEX later ON t (x)", "its triggers were dropped or altered"),
            ("ALTER TABLE t RENAME COLUMN x TO y", "its triggers were dropped or altered"),
        ],
    )
    def test_a_table_that_was_altered(self, shop, done, told):
        log = shop.installed()
        start = log.begin()
        shop.run(done)
        with pytest.raises(UserError, match=told) as caught:
            tell(log.advance(start, 9, 0))
        assert f"`mview init 'sqlite:///{shop.file}' --triggers`" in caught.value.hint
        if "DROP TABLE" not in done:
            assert shop.open().install() == ["t"]
            with pytest.raises(UserError, match="made anew"):
                tell(shop.open().advance(start, 9, 0))

    def test_a_new_column_goes_on_and_is_noted_when_asked_for(self, shop):
        log = shop.installed()
        start = log.begin()
        shop.run("ALTER TABLE t ADD COLUMN more BLOB", "INSERT INTO t VALUES (1, 'a', 2.5)")
        assert noted(log, start) == [("u", 1, "a")]
        with pytest.raises(ConfigError, match="do not note more"):
            log.check()
        log.only({"t": ["id", "x"]})
        log.check()
        assert log.begin()["table/t"]["columns"] == {"id": "INTEGER", "x": "TEXT"}
        log.only({"t": ["id", "more"]})
        with pytest.raises(ConfigError, match="do not note more"):
            log.begin()
        assert log.install() == ["t"]
        assert log.install() == []
        shop.run("UPDATE t SET x = 'b'")
        assert noted(log, start) == [("u", 1, "a"), ("u", 1, "b", 2.5)]


def test_a_table_that_is_followed_holds_up_no_new_one(shop):
    log = shop.installed()
    start = log.begin()
    shop.run("DROP TRIGGER _mview_update_t", "CREATE TABLE s (id INTEGER PRIMARY KEY)")
    both = shop.open("t", "s")
    with pytest.raises(ConfigError, match=r"triggers of c.s are not installed"):
        both.begin(start)
    shop.installed("s")
    offsets = {**both.begin(start), **start}
    progress = both.advance(offsets, 9, 0)
    assert list(progress.halts) == ["t"]


def test_what_is_refused(shop):
    with pytest.raises(ConfigError, match="are not installed") as caught:
        shop.open().check()
    assert "--triggers" in caught.value.hint
    assert shop.run("SELECT count(*) FROM sqlite_master") == [(1,)]
    with pytest.raises(ConfigError, match="no options"):
        shop.open(a="b")
    shop.run("CREATE UNIQUE INDEX some ON t (x) WHERE id > 5")
    shop.run("CREATE TABLE bare (a INTEGER NOT NULL UNIQUE)")
    assert shop.open("t", "bare").install() == []
    with pytest.raises(UserError, match="condition or an expression"):
        shop.open().check()
    with pytest.raises(UserError, match="no primary key"):
        shop.open("bare").check()
    settings = ChangesSettings(connection="c", source="sqlite")
    other = ConnectionSettings(name="c", drivername="postgresql", database="x")
    with pytest.raises(ConfigError, match="SQLite databases only"):
        SqliteChangelog(settings, other, ["t"], LogReader(shop.folder))


def test_names_that_need_quotes_and_looks(shop):
    shop.run("""CREATE TABLE "my ""t" ("a b" INTEGER PRIMARY KEY, "select" TEXT UNIQUE)""")
    log = shop.installed('my "t')
    start = log.begin()
    shop.run("""REPLACE INTO "my ""t" VALUES (1, 'x'), (2, 'x')""")
    assert noted(log, start) == [("u", 1, "x"), ("d", 1), ("u", 2, "x")]
    installed, kept = (look.ask() for look in log.looks(['my "t'], None))
    assert installed == "its triggers are in place"
    assert kept.startswith("3 changes kept for 1 reader, ")
    with closing(SqliteDatabase(shop.settings)) as database:
        assert list(database.tables()) == ['my "t', "t"]
