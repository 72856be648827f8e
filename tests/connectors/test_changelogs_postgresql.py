"""PostgreSQL's own log, on a real server: what every own log does, and what only this one can."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from decimal import Decimal

import pytest
from mview_connectors.changelogs.postgresql.changelog import PostgresqlChangelog
from mview_connectors.databases.postgresql import PostgresqlDatabase
from mview_connectors.formats.ownlog.pgoutput import PgoutputFormat
from psycopg.errors import UniqueViolation

from mview.changelog import UNCHANGED
from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import LogReader
from mview.errors import ConfigError, DataLostError, ExitCode, MistakesError, UserError
from tests.connectors.databases_contract import Source
from tests.connectors.ownlog_contract import (
    EveryOwnLog,
    EveryOwnTransaction,
    OwnLogHarness,
    fill,
    flat,
    tell,
)
from tests.connectors.test_formats_paths import AS_SAID, ONLY_PRINTED, as_said
from tests.services.process import wait_until

pytestmark = [pytest.mark.service, pytest.mark.days(2)]


class Log(OwnLogHarness):
    source, name = "postgresql", "wal"
    changelog, format = PostgresqlChangelog, PgoutputFormat
    clock = "SELECT extract(epoch FROM clock_timestamp()) * 1000"
    numbers = "generate_series(1, {}) n"
    reader, taken = PostgresqlDatabase, UniqueViolation
    keys = ('text COLLATE "C"', "text COLLATE no_case", "text COLLATE no_marks")
    insert_or = (
        "INSERT INTO u VALUES ('{0}', {1}) ON CONFLICT DO NOTHING",
        "INSERT INTO u VALUES ('{0}', {1}) ON CONFLICT (id) DO UPDATE SET id = '{0}', x = {1}",
    )

    @property
    def slots(self):
        return self.run(
            "SELECT slot_name, (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots "
            f"WHERE database = '{self.database}'"
        )


@pytest.fixture
def log(postgresql, tmp_path):
    with postgresql.new_database() as database:
        log = Log(postgresql, database, tmp_path)
        yield log
        log.close()


class TestAsEveryLog(EveryOwnLog):
    @pytest.mark.long
    def test_keys_that_the_database_compares_otherwise_than_by_bytes(self, log):
        """Also by collations that take other bytes for equal."""
        for name, level in (("no_case", "level2"), ("no_marks", "level1")):
            log.run(
                f"CREATE COLLATION {name} "
                f"(provider = icu, locale = 'und-u-ks-{level}', deterministic = false)"
            )
        super().test_keys_that_the_database_compares_otherwise_than_by_bytes(log)


class TestTransactions(EveryOwnTransaction):
    def test_changes_of_others_do_not_stand_in_the_way(self, log):
        """Tables of a publication of the user's that no view reads; and a rollback."""
        log.run("CREATE TABLE u (id int PRIMARY KEY, x text); CREATE PUBLICATION p FOR ALL TABLES")
        changelog = log.open(publication="p")
        start = changelog.begin()
        with log.server.connect(log.database) as connection:
            for n in range(3):
                connection.execute(
                    "INSERT INTO u SELECT g, 'x' FROM generate_series(%s::int, %s::int) g",
                    (n * 600, n * 600 + 599),
                )
                connection.execute("INSERT INTO t VALUES (%s, 'x')", (n,))
        with log.server.connect(log.database) as connection:
            connection.execute("INSERT INTO t VALUES (9, 'x')")
            connection.rollback()
        fill(log, [4])
        batches, _ = log.read_all(changelog, start, 4)
        assert [n for b in batches for n in b] == [0, 1, 2, 4]


def test_columns_that_are_read_as_a_setting_says(log):
    """What the log has is what a load reads, whatever the user's or the server's settings are."""
    plain = Source("postgresql", log.server.settings(log.database), log.run)
    log.run("DROP TABLE t")
    log.run(
        f"ALTER DATABASE {log.database} SET IntervalStyle TO 'sql_standard';"
        f"ALTER DATABASE {log.database} SET TimeZone TO 'Asia/Kolkata';"
        f"ALTER DATABASE {log.database} SET DateStyle TO 'German';"
        f"ALTER DATABASE {log.database} SET bytea_output TO 'escape';"
    )
    source, rows = as_said(plain, AS_SAID + ONLY_PRINTED)
    changelog = log.open()
    start = changelog.begin()
    log.run(f"SET DateStyle TO 'ISO, DMY'; INSERT INTO t VALUES {', '.join(rows)}")
    changelog.finish()
    events, at = [], start
    while (end := changelog.advance(at, 1000, 0).offsets) != at:
        events += log.events(changelog, at, end)
        at = end
    schema, decoder = source.database.describe("t"), PgoutputFormat({})
    got = [
        {c.name: decoder.convert([e.after[c.name]], c)[0].as_py() for c in schema.columns}
        for e in events
    ]
    loaded = source.read("t")
    assert got == loaded
    assert loaded[0]["c2"] == "P10M3DT-4H-5M-6.7S"
    assert loaded[0]["c3"] == "22:30:00.12Z"
    assert (loaded[0]["c0"], loaded[3]["c0"]) == (Decimal("-1234567.89"), Decimal("-0.50"))
    plain.database.close()
    source.database.close()


class TestTheSlot:
    def test_it_is_moved_to_what_is_published_only(self, log):
        changelog = log.open()
        start = changelog.begin()
        ((name, _),) = log.slots
        assert name.startswith("mview_c_")
        places = [start]
        for n in range(3):
            fill(log, [n])
            _, at = log.read_all(changelog, places[-1], 1)
            places.append(at)
        # Who asks for what comes after the third batch has published the second.
        changelog.advance(places[3], 100, 0)
        wait_until(
            lambda: changelog.advance(places[3], 1, 100) and log.slots[0][1] == places[2]["wal"][0],
            "the slot to move",
            30,
        )
        assert log.ids(log.reopen(), places[2], places[3]) == [2]

    def test_connections_that_others_use_hold_up_no_slot_that_is_there(self, log):
        """They may be of a base backup, and end; whoever is yet to begin is refused."""
        changelog = log.open()
        at, reader = changelog.begin(), LogReader(log.folder / "another")
        count = "SELECT current_setting('max_wal_senders')::int, count(*)::int"
        ((most, used),) = log.run(f"{count} FROM pg_stat_replication")
        with ExitStack() as others:
            for _ in range(most - used):
                others.enter_context(closing(changelog._server.replication()))
            assert changelog.room({reader: at}).startswith(
                f"WARNING: {most} of {most} connections for replication are in use, and 1 more "
            )
            with pytest.raises(ConfigError, match=f"max_wal_senders to {most + 1} or more"):
                changelog.room({reader: None})
        wait_until(
            lambda: changelog.room({reader: at}).startswith("1 slot; "), "them to be free", 30
        )

    def test_it_is_moved_by_a_run_that_ends_at_once(self, log):
        """As one that comes every minute: else the server would keep its log for ever."""
        at = [log.open().begin()]
        for n in range(3):
            changelog = log.reopen()
            fill(log, [n])
            at.append(log.read_all(changelog, at[-1], 1)[1])
            changelog.advance(at[-1], 100, 0)
            log.close()
            assert log.slots[0][1] >= at[-2]["wal"][0]

    def test_it_goes_on_when_others_write(self, log):
        """The server need not keep what other tables write while ours are idle."""
        log.run("CREATE TABLE other (x text)")
        changelog = log.open()
        at = start = changelog.begin()
        log.run(
            "INSERT INTO other SELECT repeat(md5(g::text), 40) FROM generate_series(1, 20000) g"
        )

        def moved():
            nonlocal at
            progress = changelog.advance(at, 100, 200)
            assert log.ids(changelog, at, progress.offsets) == []
            at = progress.offsets
            return at != start

        wait_until(moved, "the place to move", 60)
        fill(log, [1])
        assert log.read_all(log.reopen(), at, 1)[0] == [[1]]

    @pytest.mark.parametrize("made_anew", [False, True])
    def test_one_that_is_dropped_is_told(self, log, made_anew):
        start = log.open().begin()
        log.close()
        ((name, _),) = log.slots
        fill(log, [1])
        log.run(f"SELECT pg_drop_replication_slot('{name}')")
        if made_anew:
            log.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        with pytest.raises(DataLostError, match=r"(?s)gone before.*made anew|was dropped") as error:
            log.open().advance(start, 100, 0)
        assert "mview drop" in str(error.value)
        assert "published stays" in str(error.value)

    def test_a_load_makes_a_new_one(self, log):
        start = log.open().begin()
        log.close()
        ((name, _),) = log.slots
        log.run(f"SELECT pg_drop_replication_slot('{name}')")
        again = log.open().begin()
        fill(log, [1])
        assert again["wal"] > start["wal"]
        assert log.read_all(log.open(), again, 1)[0] == [[1]]

    def test_another_server_is_told(self, log):
        start = log.open().begin()
        with pytest.raises(DataLostError, match="another server"):
            log.reopen().advance({**start, "server": "1"}, 100, 0)

    def test_a_standby_that_was_promoted_is_told(self, log):
        """It has the identifier of the one before, and its log may have other changes there."""
        start = log.open().begin()
        of_before = {name: entry for name, entry in start.items() if name != "timeline"}
        fill(log, [1])
        _, end = log.read_all(log.reopen(), of_before, 1)
        assert end["timeline"] == start["timeline"]
        with pytest.raises(DataLostError, match=r"promoted: its log is of timeline 1, not 2"):
            log.reopen().advance({**end, "timeline": 2}, 100, 0)

    def test_an_older_copy_of_the_server_is_told(self, log):
        """Restored with its slot: it would send nothing up to the place that was read."""
        changelog = log.open()
        start = changelog.begin()
        log.server.kill()
        with log.server.put_back():
            log.server.restart()
            fill(log, range(50), "x" * 20_000)
            _, at = log.read_all(log.reopen(), start, 50)
            log.close()
            log.server.kill()
        log.server.restart()
        fill(log, [77])
        with pytest.raises(DataLostError, match="older copy of the server"):
            log.reopen().advance(at, 100, 0)

    @pytest.mark.parametrize(
        "there_and_back",
        [
            (
                "ALTER TABLE t RENAME TO other",
                "UPDATE other SET x = 'b'",
                "ALTER TABLE other RENAME TO t",
            ),
            (
                "ALTER TABLE t SET SCHEMA s",
                "UPDATE s.t SET x = 'b'",
                "ALTER TABLE s.t SET SCHEMA public",
            ),
        ],
    )
    def test_a_table_is_followed_under_whatever_name(self, log, there_and_back):
        """What was changed while it had another one is of it, and of no other table."""
        log.run("CREATE SCHEMA s")
        fill(log, [1])
        changelog = log.open()
        start = changelog.begin()
        for sql in there_and_back:
            log.run(sql)
        batches, end = log.read_all(changelog, start, 1)
        assert batches == [[1]]
        (event,) = log.events(changelog, start, end)
        assert (event.kind, event.table, event.after["x"]) == ("u", "t", "b")

    def test_a_publication_that_was_altered_and_put_back_is_told(self, log):
        """What was not sent meanwhile is missing."""
        changelog = log.open()
        start = changelog.begin()
        log.close()
        ((name,),) = log.run("SELECT pubname FROM pg_publication")
        log.run(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
        log.run(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")
        with pytest.raises(UserError, match=r"or that was altered"):
            tell(log.open().advance(start, 100, 0))

    def test_one_that_is_named_later_is_left_alone(self, log):
        """It may be somebody else's: the one that was read by is noted."""
        noted = log.open().begin()
        log.run("SELECT pg_create_logical_replication_slot('others', 'pgoutput')")
        log.reopen(slot="others").leave(noted)
        assert [name for name, _ in log.slots] == ["others"]
        log.reopen(slot="others").leave(None)
        assert [name for name, _ in log.slots] == ["others"]
        own = log.open(slot="others").begin()
        log.reopen(slot="others").leave(own)
        assert log.slots == []

    def test_the_limit_drops_it(self, log):
        log.run("CREATE TABLE other (x text)")
        changelog = log.open(max_slot_wal="1 MB")
        start = changelog.begin()
        changelog.advance(start, 100, 0)
        log.run("INSERT INTO other SELECT repeat(md5(g::text), 40) FROM generate_series(1, 9000) g")
        with pytest.raises(DataLostError, match="more than max_slot_wal"):
            log.read_all(changelog, start, 1)
        assert log.slots == []

    def test_the_server_is_restarted(self, log):
        changelog = log.open()
        start = changelog.begin()
        changelog.advance(start, 100, 300)
        fill(log, [1])
        log.server.kill()
        log.server.restart()
        fill(log, [2])
        batches, _ = log.read_all(log.reopen(), start, 2)
        assert [n for b in batches for n in b] == [1, 2]


class TestLoads:
    def test_open_transactions_are_waited_for(self, log):
        """What one has written before its table was published would be missing in the log."""
        log.run("CREATE TABLE u (id int PRIMARY KEY, x text)")
        first = log.open("t")
        known = first.begin()
        writer = log.server.connect(log.database)
        writer.execute("INSERT INTO u VALUES (1, 'early')")
        found = []
        thread = threading.Thread(target=lambda: found.append(log.open("t", "u").begin(known)))
        thread.start()
        listed = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'u'"
        wait_until(lambda: log.run(listed) == [(1,)], "the publication")
        thread.join(0.5)
        assert thread.is_alive()
        writer.execute("INSERT INTO u VALUES (2, 'late')")
        writer.commit()
        writer.close()
        thread.join(30)
        assert log.run("SELECT id FROM u ORDER BY id") == [(1,), (2,)]
        (begun,) = found
        fill(log, [7])
        log.run("INSERT INTO u VALUES (3, 'after')")
        start = {**begun, **known}
        both = log.reopen("t", "u")
        _, end = log.read_all(both, start, 2)
        since = begun["wal"][0]
        changes = log.events(both, start, end)
        # What was committed after the load's begin is there; what before, is passed over by it.
        assert {e.after["id"] for e in changes if e.table == "u" and e.offset >= since} >= {"3"}


class TestTables:
    @pytest.mark.parametrize(
        ("sql", "said"),
        [
            ("ALTER TABLE t ALTER COLUMN x TYPE varchar(9)", "another type"),
            ("ALTER TABLE t RENAME COLUMN x TO y", "no more"),
            ("ALTER TABLE t DROP COLUMN x, ADD COLUMN x text", "another type"),
            ("ALTER TABLE t RENAME TO gone", "dropped or renamed"),
            ("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, x text)", "made anew"),
            ("ALTER PUBLICATION p DROP TABLE t", "taken out"),
            ("ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t", "taken out"),
            ("ALTER PUBLICATION p SET (publish = 'insert')", "taken out"),
            ("ALTER TABLE t REPLICA IDENTITY NOTHING", "its key"),
            ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, x)", "no longer the key"),
            (  # rows may have had one key in between
                "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id)",
                "no longer the key",
            ),
            # Rows have other values, and no event tells it.
            (
                "ALTER TABLE t ALTER x TYPE varchar(1) USING left(x, 1); "
                "ALTER TABLE t ALTER x TYPE text",
                "'x' altered, and its rows written anew",
            ),
            ("ALTER TABLE t ALTER x TYPE text USING 'y'", "'x' altered, and its rows written anew"),
        ],
    )
    def test_one_that_is_altered_is_told(self, log, sql, said):
        changelog = log.open(publication="p")
        start = changelog.begin()
        log.run(sql)
        with pytest.raises(UserError, match=said):
            tell(changelog.advance(start, 100, 0))

    @pytest.mark.parametrize(
        "sql",
        [
            "ALTER TABLE t ALTER x SET DEFAULT 'z'; ALTER TABLE t ALTER x SET STATISTICS 9",
            "ALTER TABLE t RENAME x TO y; ALTER TABLE t RENAME y TO x",
            "CLUSTER t USING t_pkey",
            "REINDEX INDEX CONCURRENTLY t_pkey",
            "ALTER TABLE t ADD COLUMN y float DEFAULT random()",
        ],
    )
    def test_what_leaves_the_values_alone_is_no_harm(self, log, sql):
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1])
        log.run(sql)
        log.run("INSERT INTO t (id, x) VALUES (2, 'x')")
        assert flat(log.read_all(changelog, start, 2)[0]) == [1, 2]
        assert changelog.advance(start, 100, 0).halts == {}

    @pytest.mark.parametrize("again", ["the run", "a restart"])
    def test_rows_written_anew_and_a_column_altered_apart_are_no_harm(self, log, again):
        """Each is noted when it is seen; what does both at once is told still."""
        changelog, number = log.open(), 1
        at = changelog.begin()
        for sql in (
            "TRUNCATE t",
            "ALTER TABLE t ALTER x SET DEFAULT 'z'",
            "VACUUM FULL t",
            "ALTER TABLE t ALTER x SET STATISTICS 9",
        ):
            log.run(sql)
            fill(log, [number])
            if again == "a restart":
                changelog = log.reopen("t")
            seen = set()
            while number not in seen:
                progress = changelog.advance(at, 100, 200)
                assert progress.halts == {}, sql
                events = log.events(changelog, at, progress.offsets)
                seen, at = {int(e.after["id"]) for e in events if e.after}, progress.offsets
            number += 1
        log.run("ALTER TABLE t ALTER x TYPE text USING 'y'")
        with pytest.raises(UserError, match="'x' altered, and its rows written anew"):
            tell(log.reopen("t").advance(at, 100, 0))

    def test_a_label_of_an_enum_that_is_renamed_is_told(self, log):
        """Rows have the number of a label: all of them show another one, and no event tells it."""
        log.run("CREATE TYPE e AS ENUM ('a', 'b'); CREATE DOMAIN d AS e; CREATE DOMAIN dd AS d")
        log.run("CREATE TYPE c AS (k int, e dd)")
        log.run("CREATE TABLE u (id int PRIMARY KEY, n int, e e, es e[], d dd, c c, cs c[])")
        changelog = log.open("u")
        start = changelog.begin()
        log.run("ALTER TYPE e ADD VALUE 'c'; INSERT INTO u VALUES (1, 1, 'a', '{b}')")
        assert log.read_all(changelog, start, 1)[0] == [[1]]
        log.run("ALTER TYPE e RENAME VALUE 'a' TO 'z'")
        for used in ({"id", name} for name in ("n", "e", "es", "d", "c", "cs")):
            changelog = log.reopen("u")
            changelog.only({"u": used})
            told = [halt.error() for halt in changelog.advance(start, 100, 0).halts.values()]
            assert ["label 'a' renamed" in str(error) for error in told] == [True] * (
                "n" not in used
            )

    def test_a_composite_type_that_is_altered_is_told(self, log):
        """All rows are printed with the parts of now."""
        log.run("CREATE TYPE c AS (k int, x text); CREATE DOMAIN d AS c[]")
        log.run("CREATE TABLE u (id int PRIMARY KEY, c c, d d)")
        start = log.open("u").begin()
        log.run("ALTER TYPE c DROP ATTRIBUTE x")
        for name in ("c", "d"):
            changelog = log.reopen("u")
            changelog.only({"u": {"id", name}})
            with pytest.raises(UserError, match=f"'{name}' with other parts"):
                tell(changelog.advance(start, 100, 0))

    @pytest.mark.parametrize(
        "sql",
        [
            "ALTER TABLE u DROP COLUMN a",
            "ALTER TABLE u RENAME COLUMN a TO b",
            "ALTER TABLE u ALTER COLUMN a TYPE int USING 7",
            "ALTER TABLE u DROP COLUMN a, ADD COLUMN a int",
        ],
    )
    def test_columns_that_are_not_read_may_be_altered(self, log, sql):
        log.run("CREATE TABLE u (id int PRIMARY KEY, a text, n int)")
        changelog = log.open("u")
        start = changelog.begin()
        changelog.only({"u": {"id", "n"}})
        log.run("INSERT INTO u VALUES (1, 'x', 10)")
        log.run(sql)
        log.run("INSERT INTO u (id, n) VALUES (2, 20)")
        changelog.finish()
        found, at = [], start
        while (end := changelog.advance(at, 1000, 0).offsets) != at:
            found += log.events(changelog, at, end)
            at = end
        assert [(e.after["id"], e.after["n"]) for e in found] == [("1", "10"), ("2", "20")]
        changelog.only({"u": {"id", "n", "a"}})
        with pytest.raises(UserError, match=r"no more|another type"):
            tell(changelog.advance(start, 100, 0))

    def test_rows_that_are_told_by_another_index_in_a_run_are_told(self, log):
        """An UPDATE of the key then says nothing of the row before: that would stay for ever."""
        log.run("CREATE TABLE u (id int PRIMARY KEY, k int NOT NULL UNIQUE)")
        changelog = log.open("u")
        at = changelog.begin()
        log.run("INSERT INTO u VALUES (1, 1)")
        assert log.read_all(changelog, at, 1)[0] == [[1]]
        log.run("ALTER TABLE u REPLICA IDENTITY USING INDEX u_k_key")
        log.run("UPDATE u SET id = id + 1000")

        def until_told():
            nonlocal at
            for _ in range(50):
                progress = changelog.advance(at, 100, 200)
                tell(progress)
                at = progress.offsets

        with pytest.raises(UserError, match=r"had the key \(k\) when rows of it were changed"):
            until_told()

    def test_a_new_column_is_no_harm(self, log):
        changelog = log.open()
        start = changelog.begin()
        log.run("ALTER TABLE t ADD COLUMN y int DEFAULT 5; INSERT INTO t VALUES (1, 'x', 2)")
        assert log.read_all(changelog, start, 1)[0] == [[1]]

    @pytest.mark.parametrize(
        ("sql", "said"),
        [
            ("CREATE UNLOGGED TABLE u (id int PRIMARY KEY)", "SET LOGGED"),
            ("CREATE TABLE u (id int PRIMARY KEY DEFERRABLE)", "DEFERRABLE"),
            (  # the key is another one, which is not sent
                "CREATE TABLE u (id int PRIMARY KEY DEFERRABLE, k int NOT NULL UNIQUE)",
                "REPLICA IDENTITY FULL",
            ),
            ("CREATE TABLE u (id int PRIMARY KEY) PARTITION BY RANGE (id)", "partitioned"),
            ("CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE w () INHERITS (u)", "inherit"),
            (
                "CREATE TABLE u (id int PRIMARY KEY); ALTER TABLE u REPLICA IDENTITY NOTHING",
                "REPLICA IDENTITY DEFAULT",
            ),
            (
                "CREATE TABLE u (id int PRIMARY KEY, k int NOT NULL UNIQUE);"
                "ALTER TABLE u REPLICA IDENTITY USING INDEX u_k_key",
                "REPLICA IDENTITY DEFAULT",
            ),
        ],
    )
    def test_those_whose_changes_are_not_all_in_the_log_are_refused(self, log, sql, said):
        log.run(sql)
        with pytest.raises(UserError, match=said):
            log.open("u").check()
        with pytest.raises(UserError, match=said):
            log.open("u").begin()
        assert log.slots == []

    def test_all_that_are_refused_are_told_at_once(self, log):
        log.run("CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
        log.run("CREATE TABLE w (id int PRIMARY KEY); ALTER TABLE w REPLICA IDENTITY NOTHING")
        changelog = log.open("u", "t", "w")
        for ask in (changelog.check, changelog.begin):
            with pytest.raises(UserError) as caught:
                ask()
            assert [error.hint for error in caught.value.errors] == [
                'ALTER TABLE "public"."u" SET LOGGED',
                'ALTER TABLE "public"."w" REPLICA IDENTITY DEFAULT',
            ]

    def test_a_user_without_rights_is_told_what_to_grant(self, log):
        log.run("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD 'r'")
        log.run("GRANT SELECT ON t TO reader")
        secret = log.folder / "secret"
        secret.write_text("r")
        parts = {
            **log.server.settings(log.database),
            "username": "reader",
            "password": f"${{file:{secret}}}",
        }
        settings = ChangesSettings(connection="c", source="postgresql")

        def check():
            database = ConnectionSettings(name="c", **parts)
            log.opened.append(PostgresqlChangelog(settings, database, ["t"], LogReader(log.folder)))
            log.opened[-1].check()

        with pytest.raises(MistakesError) as both:
            check()
        assert 'ALTER ROLE "reader" REPLICATION' in both.value.render()
        assert "CREATE PUBLICATION mview_c_" in both.value.render()
        assert both.value.exit_code == ExitCode.USAGE
        log.run("ALTER ROLE reader REPLICATION")
        with pytest.raises(ConfigError, match=r"CREATE PUBLICATION mview_c_\w+ FOR TABLE") as error:
            check()
        command = str(error.value.hint).partition("as the owner of the tables: ")[2]
        log.run(" ".join(command.split()))
        check()
        log.opened[-1].begin()
        log.close()
        log.run("DROP OWNED BY reader")

    def test_one_that_cannot_be_followed_any_more_halts_alone(self, log):
        log.run("CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE w (id int PRIMARY KEY)")
        start = log.open("t", "u", "w").begin()
        log.run("CREATE TABLE below () INHERITS (u); ALTER TABLE w REPLICA IDENTITY NOTHING")
        fill(log, [1])
        changelog = log.reopen("t", "u", "w")
        with pytest.raises(UserError, match=r"inherit|REPLICA"):
            changelog.check()
        halts = changelog.advance(start, 100, 10_000).halts
        assert halts.keys() == {"u", "w"}
        assert all(halt.altered for halt in halts.values())
        log.close()
        log.run("CREATE TABLE v (id int PRIMARY KEY)")
        assert "table/v" in log.open("t", "u", "w", "v").begin(start)

    def test_rows_that_a_policy_hides_are_told(self, log):
        """The log has them: a load that does not see them would be another table."""
        fill(log, [1, 2])
        log.run("DROP ROLE IF EXISTS seer; CREATE ROLE seer LOGIN PASSWORD 'r'")
        log.run("GRANT SELECT ON t TO seer; CREATE POLICY p ON t USING (id = 1)")
        secret = log.folder / "secret"
        secret.write_text("r")
        parts = {
            **log.server.settings(log.database),
            "username": "seer",
            "password": f"${{file:{secret}}}",
        }
        database = PostgresqlDatabase(ConnectionSettings(name="c", **parts))
        try:
            schema = database.describe("t")
            plan = database.plan("t", schema, 100, 1 << 20)
            log.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
            with pytest.raises(UserError, match='ALTER ROLE "seer" BYPASSRLS'):
                database.describe("t")
            with pytest.raises(UserError, match="row-level security"):
                list(database.read("t", schema, plan, plan.chunks[0]))
            log.run("ALTER ROLE seer BYPASSRLS")
            assert database.describe("t") == schema
            assert sum(b.num_rows for b in database.read("t", schema, plan, plan.chunks[0])) == 2
        finally:
            database.close()
            log.run("DROP OWNED BY seer; DROP ROLE seer")

    def test_options_are_checked(self, log):
        for options in ({"slot": "No-Name"}, {"max_slot_wal": "much"}, {"snapshot": "x"}):
            with pytest.raises(ConfigError, match=r"changes\.c\.options"):
                log.open(**options)


class TestValues:
    def test_every_kind_of_change(self, log):
        log.run("CREATE TABLE w (id int, k text, big text, n int, PRIMARY KEY (id, k))")
        big = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)"
        log.run(f"INSERT INTO w VALUES (1, 'a', {big}, 1)")
        changelog = log.open("w")
        start = changelog.begin()
        log.run("UPDATE w SET n = 2; UPDATE w SET id = 5; DELETE FROM w; TRUNCATE w")
        log.run("ALTER TABLE w REPLICA IDENTITY FULL")
        log.run(f"INSERT INTO w VALUES (2, 'b', {big}, NULL); UPDATE w SET n = 3; DELETE FROM w")
        until = time.monotonic() + 30
        found = []
        while len(found) < 7:
            assert time.monotonic() < until
            progress = changelog.advance(start, 100, 200)
            found = log.events(changelog, start, progress.offsets)
        update, moved, delete, truncate, insert, whole, last = found
        assert [e.kind for e in found] == ["u", "u", "d", "truncate", "c", "u", "d"]
        assert update.after["big"] is UNCHANGED
        assert (update.before, update.after["n"]) == (None, "2")
        assert moved.before == {"id": "1", "k": "a"}
        assert delete.before == {"id": "5", "k": "a"}
        assert (truncate.table, truncate.after) == ("w", None)
        assert insert.after["n"] is None
        assert whole.after["big"] == insert.after["big"]
        assert last.before["n"] == "3"
        assert all(e.transaction and e.source_ms for e in found)
