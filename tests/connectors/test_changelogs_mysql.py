"""MariaDB's own log, on a real server: what every own log does, and what only this one can."""

from __future__ import annotations

import copy
import random
import re
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pyarrow as pa
import pytest
from mview_connectors.changelogs.mysql.changelog import MysqlChangelog
from mview_connectors.changelogs.mysql.events import INCIDENT, BinlogEvents, names_of
from mview_connectors.databases.mysql import MysqlDatabase
from mview_connectors.formats.ownlog.binlog import CHARSETS, BinlogFormat
from pymysql.err import IntegrityError, OperationalError

from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import LogReader, events_of
from mview.errors import (
    AwayError,
    ConfigError,
    DataLostError,
    DecodeError,
    MistakesError,
    UserError,
)
from mview.testing.formats import TableInMemory, normal
from tests.connectors.ownlog_contract import (
    EveryOwnLog,
    EveryOwnTransaction,
    OwnLogHarness,
    fill,
    flat,
    tell,
)
from tests.connectors.test_databases_types import MARIADB
from tests.seeds import daily
from tests.services.gate import Gate
from tests.services.mariadb import MariadbServer
from tests.services.process import wait_until

pytestmark = [pytest.mark.service, pytest.mark.days(2)]


class Log(OwnLogHarness):
    source, name = "mysql", "binlog"
    changelog, format = MysqlChangelog, BinlogFormat
    clock = "SELECT unix_timestamp(sysdate(6)) * 1000"
    numbers = "(SELECT seq n FROM seq_1_to_{}) s"
    text, tick = "longtext", 1.05  # the log has seconds
    reader, taken = MysqlDatabase, IntegrityError
    # Those that see no difference of letters, of marks, of spaces at the end, or none of these.
    keys = tuple(
        f"varchar(20) CHARACTER SET {collation.partition('_')[0]} COLLATE {collation}"
        for collation in (
            "utf8mb4_general_ci",
            "utf8mb4_unicode_nopad_ci",
            "utf8mb4_bin",
            "utf8mb4_nopad_bin",
            "latin1_swedish_ci",
        )
    )
    insert_or = (
        "INSERT IGNORE INTO u VALUES ('{0}', {1})",
        "REPLACE INTO u VALUES ('{0}', {1})",
        "INSERT INTO u VALUES ('{0}', {1}) ON DUPLICATE KEY UPDATE id = '{0}', x = {1}",
    )

    def followed(self, changelog, start, until=None):
        """All changes up to now, and where they end."""
        changelog.finish()
        found, at = [], start
        while (end := changelog.advance(at, 1000, 0).offsets) != at:
            found += self.events(changelog, at, end)
            at = end
        return found


@pytest.fixture
def log(mariadb, tmp_path):
    with mariadb.new_database() as database:
        log = Log(mariadb, database, tmp_path)
        yield log
        log.close()


class TestAsEveryLog(EveryOwnLog):
    pass


class TestTransactions(EveryOwnTransaction):
    def test_changes_of_others_and_what_is_rolled_back_do_not_stand_in_the_way(self, log):
        log.run("CREATE TABLE u (id int PRIMARY KEY, x text, g geometry)")
        changelog = log.open()
        start = changelog.begin()
        with log.server.connect(log.database) as connection, connection.cursor() as cursor:
            for n in range(3):
                cursor.execute(
                    f"INSERT INTO u SELECT seq + {n * 600}, 'x', POINT(1, 2) FROM seq_1_to_600"
                )
                cursor.execute("SAVEPOINT a")
                cursor.execute(f"INSERT INTO t VALUES ({n + 50}, 'x')")
                cursor.execute("ROLLBACK TO a")
                cursor.execute(f"INSERT INTO t VALUES ({n}, 'x')")
            connection.commit()
            cursor.execute("INSERT INTO t VALUES (9, 'x')")
            connection.rollback()
        log.run("CREATE DATABASE IF NOT EXISTS other; CREATE TABLE IF NOT EXISTS other.t (id int)")
        log.run("INSERT INTO other.t VALUES (70); TRUNCATE other.t; DROP DATABASE other")
        fill(log, [4])
        assert flat(log.read_all(changelog, start, 4)[0]) == [0, 1, 2, 4]

    def test_one_that_is_prepared_halts(self, log):
        changelog = log.open()
        start = changelog.begin()
        with log.server.connect(log.database) as connection, connection.cursor() as cursor:
            cursor.execute("XA START 'a'")
            cursor.execute("INSERT INTO t VALUES (1, 'x')")
            cursor.execute("XA END 'a'")
            cursor.execute("XA PREPARE 'a'")
            with pytest.raises(UserError, match="prepared"):
                log.followed(changelog, start)
            cursor.execute("XA ROLLBACK 'a'")

    def test_a_statement_in_place_of_rows_halts(self, log):
        changelog = log.open()
        start = changelog.begin()
        log.run("SET binlog_format = STATEMENT; INSERT INTO t VALUES (1, 'x')")
        with pytest.raises(UserError, match=r"(?s)statement, not rows.*INSERT INTO t"):
            log.followed(changelog, start)

    def test_a_part_of_a_row_halts(self, log):
        changelog = log.open()
        fill(log, [1])
        start = changelog.begin()
        log.run("SET binlog_row_image = MINIMAL; UPDATE t SET x = 'y'")
        with pytest.raises(UserError, match=r"(?s)not all columns.*binlog_row_image"):
            log.followed(changelog, start)

    def test_what_is_written_but_not_seen_is_waited_for(self, log):
        changelog = log.open()
        with log.server.connect(log.database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1, 'x')")
            server = changelog._server
            wait_until(lambda: len(server._writers()) > 0, "the writer")
            ours = {row[0] for row in server._writers()}
            connection.commit()
        wait_until(lambda: not ours & {row[0] for row in server._writers()}, "the end")
        changelog.begin()


class TestTheServer:
    def test_files_go_by(self, log):
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1])
        log.run("FLUSH BINARY LOGS")
        fill(log, [2])
        log.run("SET GLOBAL binlog_checksum = NONE")
        fill(log, [3])
        log.run("SET GLOBAL binlog_checksum = CRC32")
        taken, at = log.read_all(changelog, start, 3)
        assert flat(taken) == [1, 2, 3]
        assert at["binlog"][0] >> 32 == (start["binlog"][0] >> 32) + 3
        assert at["born"] != 0
        fill(log, [4])
        assert log.read_all(log.reopen(), at, 1)[0] == [[4]]
        assert flat(log.read_all(log.reopen(), start, 4)[0]) == [1, 2, 3, 4]

    def test_one_that_is_restarted(self, log):
        changelog = log.open()
        start = changelog.begin()
        changelog.advance(start, 100, 300)
        fill(log, [1])
        log.server.kill()
        log.server.restart()
        fill(log, [2])
        assert flat(log.read_all(log.reopen(), start, 2)[0]) == [1, 2]

    def test_a_log_that_is_purged_is_told(self, log):
        start = log.open().begin()
        log.close()
        fill(log, [1])
        log.run("FLUSH BINARY LOGS")
        ((file, *_),) = log.run("SHOW MASTER STATUS")

        def is_purged():  # not while the server still sends a file to somebody
            log.run(f"PURGE BINARY LOGS TO '{file}'")
            return log.run("SHOW BINARY LOGS")[0][0] == file

        wait_until(is_purged, "the log to be purged", 30)
        changelog = log.open()
        with pytest.raises(DataLostError, match="gone before") as error:
            log.read_all(changelog, start, 1)
        assert "mview drop" in str(error.value)

    def test_a_log_that_was_begun_anew_is_told(self, log):
        log.run("FLUSH BINARY LOGS")
        start = log.open().begin()
        log.close()
        log.run("RESET MASTER")
        with pytest.raises(DataLostError, match="begun anew"):
            log.open().advance(start, 100, 0)
        log.run("FLUSH BINARY LOGS; FLUSH BINARY LOGS; FLUSH BINARY LOGS")
        while log.run("SHOW MASTER STATUS")[0][0] < f"x.{start['binlog'][0] >> 32:06d}"[1:]:
            log.run("FLUSH BINARY LOGS")
        again = log.open().begin()
        with pytest.raises(DataLostError, match="another one"):
            log.read_all(log.reopen(), {**again, "born": again["born"] - 1}, 1)

    def test_another_server_is_told(self, log):
        start = log.open().begin()
        with pytest.raises(DataLostError, match="another server"):
            log.reopen().advance({**start, "server": "77", "gtids": ""}, 100, 0)

    @pytest.mark.parametrize(
        ("name", "value", "usual"),
        [
            ("binlog_format", "MIXED", "ROW"),
            ("binlog_row_image", "MINIMAL", "FULL"),
            ("log_bin_compress", "1", "0"),
        ],
    )
    def test_settings_that_leave_out_changes_are_refused(self, log, name, value, usual):
        log.run(f"SET GLOBAL {name} = {value}")
        try:
            with pytest.raises(ConfigError, match=rf"(?s){name} = .*SET GLOBAL {name}"):
                log.open().check()
        finally:
            log.run(f"SET GLOBAL {name} = {usual}")
        log.reopen().check()

    def test_a_user_without_rights_is_told_what_to_grant(self, log):
        log.run("CREATE OR REPLACE USER reader@'%' IDENTIFIED BY 'r'")
        log.run(f"GRANT SELECT ON {log.database}.* TO reader@'%'")
        secret = log.folder / "secret"
        secret.write_text("r")
        parts = {
            **log.server.settings(log.database),
            "username": "reader",
            "password": f"${{file:{secret}}}",
        }
        settings = ChangesSettings(connection="c", source="mysql")
        database = ConnectionSettings(name="c", **parts)
        log.opened.append(MysqlChangelog(settings, database, ["t"], LogReader(log.folder)))
        with pytest.raises(MistakesError) as told:
            log.opened[-1].check()
        said = [error.hint for error in told.value.errors]
        assert [text.split(" ON ")[0] for text in said] == [
            "GRANT BINLOG MONITOR",
            "GRANT REPLICA MONITOR",
            "GRANT PROCESS",
            "GRANT REPLICATION SLAVE",
        ]
        for grant in said:
            log.run(grant)
        log.opened.append(MysqlChangelog(settings, database, ["t"], LogReader(log.folder)))
        start = log.opened[-1].begin()
        fill(log, [1])
        assert log.read_all(log.opened[-1], start, 1)[0] == [[1]]
        log.close()
        log.run("DROP USER reader@'%'")

    def test_a_server_without_a_log_is_told_with_the_rights(self, tmp_path):
        """A restart and the rights are one trip to its administrator."""
        server = MariadbServer(tmp_path / "server")
        server.kill()
        server.restart("--skip-log-bin", "--binlog-format=MIXED", "--log-bin-compress=1")
        try:
            server.execute("CREATE DATABASE shop; CREATE USER reader@'%' IDENTIFIED BY 'r'")
            server.execute("GRANT SELECT ON shop.* TO reader@'%'")
            (tmp_path / "secret").write_text("r")
            password = f"${{file:{tmp_path / 'secret'}}}"
            parts = server.settings("shop") | {"username": "reader", "password": password}
            database = ConnectionSettings(name="c", **parts)
            settings = ChangesSettings(connection="c", source="mysql")
            with closing(MysqlChangelog(settings, database, [], LogReader(tmp_path))) as changelog:
                with pytest.raises(MistakesError) as told:
                    changelog.check()
                first, *grants = told.value.errors
                assert first.got == "it writes no binary log"
                assert "GRANT BINLOG MONITOR" in str(grants[0].hint)
            for grant in grants:
                server.execute(str(grant.hint))
            with closing(MysqlChangelog(settings, database, [], LogReader(tmp_path))) as changelog:
                for ask in (changelog.check, changelog.begin):  # once, and nothing beside it
                    with pytest.raises(ConfigError) as alone:
                        ask()
                    assert alone.value.got == "it writes no binary log"
                    assert alone.value.hint == (
                        "start it with log_bin and server_id, and with binlog_format = ROW and "
                        "binlog_row_image = FULL and log_bin_compress = OFF, in its configuration"
                    )
        finally:
            server.kill()

    def test_options_are_checked(self, log):
        for options in ({"server_id": "x"}, {"server_id": "0"}, {"snapshot": "x"}):
            with pytest.raises(ConfigError, match=r"changes\.c\.options"):
                log.open(**options)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two servers."""
    with ExitStack() as started:
        servers = []
        for number in (1, 2):
            folder = tmp_path_factory.mktemp(f"server{number}")
            servers.append(MariadbServer(folder, number))
            started.callback(servers[-1].kill)
        yield servers


@pytest.fixture
def pair(two, tmp_path):
    """A primary with a table, and a replica that has all of it."""
    primary, replica = two
    for server in two:
        server.promote()
        server.execute(
            "SET GLOBAL gtid_strict_mode = 1; SET GLOBAL replicate_ignore_table = ''; "
            "DROP DATABASE IF EXISTS shop; RESET MASTER; SET GLOBAL gtid_slave_pos = ''"
        )
    primary.execute("CREATE DATABASE shop")
    log = Log(primary, "shop", tmp_path)
    replica.follow(primary)
    replica.until_at(primary)
    yield log, primary, replica
    log.close()


def failed_over(log, server):
    """Read at another server from now on, as at the same address."""
    log.close()
    log.server = server
    return log.open()


def where_it_stays(changelog, at):
    """The offsets of a changelog that is given time, and nothing to read."""
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        progress = changelog.advance(at, 100, 200)
        assert changelog.splits(at, progress.offsets) == []
        at = progress.offsets
    assert progress.watermark is not None
    return at


@pytest.mark.long
class TestAFailover:
    """MariaDB's GTIDs, with two real servers."""

    def test_goes_on_at_a_replica_that_has_what_was_read(self, pair):
        log, primary, replica = pair
        log.run("FLUSH BINARY LOGS; FLUSH BINARY LOGS")  # its files have other numbers
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1, 2])
        taken, at = log.read_all(changelog, start, 2)
        before = max(e.position for e in log.events(changelog, start, at))
        fill(log, [3])
        log.run("BEGIN; INSERT INTO t VALUES (4, 'x'); INSERT INTO t VALUES (5, 'x'); COMMIT")
        replica.until_at(primary)
        replica.promote()
        changelog = failed_over(log, replica)
        fill(log, [6])
        taken, end = log.read_all(changelog, at, 4)
        assert flat(taken) == [3, 4, 5, 6]
        assert min(e.position for e in log.events(changelog, at, end)) > before
        assert (end["server"], end["gtids"].split(",")[-1].split("-")[1]) == ("2", "2")
        assert end["binlog"] > at["binlog"]
        # It is that server's log from now on, by files and bytes, over a restart and a new file;
        # its setting is asked for when another one comes.
        log.run("FLUSH BINARY LOGS; SET GLOBAL gtid_strict_mode = 0")
        fill(log, [7])
        changelog = log.reopen()
        taken, later = log.read_all(changelog, end, 1)
        assert (flat(taken), later["shift"]) == ([7], end["shift"])
        log.run("CREATE TABLE u (id int PRIMARY KEY)")
        begun = log.reopen("t", "u").begin(later)
        assert begun["table/u"]["since"] >= later["binlog"][0]
        with pytest.raises(UserError, match="no table can be added"):
            log.reopen("t", "u").begin(at)

    def test_nothing_is_read_twice_where_nothing_comes(self, pair):
        """Up to the first transaction only the GTIDs say where the new log is read from."""
        log, primary, replica = pair
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1, 2])
        _, at = log.read_all(changelog, start, 2)
        replica.until_at(primary)
        replica.promote()
        changelog = failed_over(log, replica)
        changelog._moved = float("-inf")  # it would move its place at once
        assert where_it_stays(changelog, at) == at
        assert where_it_stays(log.reopen(), at) == at
        fill(log, [3])
        taken, end = log.read_all(log.reopen(), at, 1)
        assert flat(taken) == [3]
        assert where_it_stays(log.reopen(), end)["binlog"] >= end["binlog"]

    def test_domains_whose_transactions_stand_in_another_order(self, pair):
        log, primary, replica = pair
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1])
        replica.until_at(primary)
        replica.execute("STOP SLAVE")
        for text in ("old", "new"):
            log.run(f"SET SESSION gtid_domain_id = 7; UPDATE t SET x = '{text}'")
        _, at = log.read_all(changelog, start, 3)
        # The other one has what was read of the other domain behind a transaction of its own.
        replica.execute("INSERT INTO t VALUES (2, 'x')", "shop")
        replica.execute("START SLAVE")
        wait_until(lambda: "7-1-2" in replica.execute("SELECT @@gtid_binlog_pos")[0][0], "it", 30)
        replica.promote()
        changelog = failed_over(log, replica)
        taken, end = log.read_all(changelog, at, 1)
        assert flat(taken) == [2]
        fill(log, [3])
        for opened in (changelog, log.reopen()):
            assert flat(log.read_all(opened, end, 1)[0]) == [3]

    def test_a_changelog_reads_one_server_up_to_its_end(self, pair):
        log, primary, replica = pair
        changelog, ports = log.open(), (primary.port, replica.port)
        at = changelog.begin()
        changelog.advance(at, 100, 0)
        replica.until_at(primary)
        replica.promote()
        primary.kill()
        replica.restart_at(primary.port)
        try:
            with pytest.raises(AwayError):
                where_it_stays(changelog, at)
            changelog._end_stream()
            with pytest.raises(AwayError, match="another server than before"):
                changelog.advance(at, 100, 0)
            log.server = replica
            fill(log, [1])
            for _ in range(2):
                assert [e.after["id"] for e in log.followed(log.reopen(), at)] == [1]
        finally:
            log.close()
            replica.restart_at(ports[1])
            primary.restart()

    def test_a_proxy_keeps_old_connections_at_the_server_before(self, pair, monkeypatch):
        """Nothing happens there any more, and all would be told to be fresh."""
        monkeypatch.setattr("mview_connectors.changelogs.mysql.changelog._RENEWED_S", 0.3)
        log, primary, replica = pair
        gate = Gate(primary.port)
        try:
            log.server = copy.copy(primary)
            log.server.port = gate.port
            changelog = log.open()
            start = changelog.begin()
            primary.execute("INSERT INTO t VALUES (1, 'x')", "shop")
            _, at = log.read_all(changelog, start, 1)
            replica.until_at(primary)
            replica.promote()
            gate.lead_to(replica.port)
            replica.execute("INSERT INTO t VALUES (2, 'x')", "shop")
            with pytest.raises(AwayError, match="another server than before"):
                where_it_stays(changelog, at)
            assert flat(log.read_all(log.reopen(), at, 1)[0]) == [2]
        finally:
            log.close()
            gate.stop()

    def test_numbers_that_went_back_name_no_place(self, pair):
        """A replica may have another transaction of that number, or not this one."""
        log, primary, replica = pair
        primary.execute("SET GLOBAL gtid_strict_mode = 0")
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1, 2])
        replica.until_at(primary)
        replica.promote()
        log.run("SET SESSION gtid_seq_no = 2; INSERT INTO t VALUES (3, 'only here')")
        taken, at = log.read_all(changelog, start, 3)
        assert flat(taken) == [1, 2, 3]
        at = where_it_stays(log.reopen(), at)
        changelog = failed_over(log, replica)
        with pytest.raises(DataLostError, match=r"0-1-2 stood behind newer ones"):
            changelog.advance(at, 100, 0)

    def test_what_nobody_can_tell_is_told(self, pair):
        log, _, replica = pair
        changelog = log.open()
        start = changelog.begin()
        old = {name: value for name, value in start.items() if name != "gtids"}
        replica.promote()
        fill(log, [1])  # in nobody's log but the old server's
        _, at = log.read_all(changelog, start, 1)
        _, noted = log.read_all(log.reopen(), old, 1)
        assert noted["gtids"] == at["gtids"]
        failed_over(log, replica)

        def is_told(offsets, why, loading=()):
            changelog = log.reopen()
            changelog.only({"t": {"id", "x"}}, loading)
            with pytest.raises(DataLostError, match=why) as told:
                changelog.advance(offsets, 100, 0)
            assert "mview drop" in str(told.value)
            assert not changelog._halts

        is_told(start, "rows of t were read from the one before", ["t"])
        is_told(old, "no GTID of MariaDB says")
        is_told({**start, "binlog": [start["binlog"][0], 1, 2]}, "a transaction was read in part")
        replica.execute("SET GLOBAL replicate_ignore_table = 'shop.u'")
        is_told(start, r"replicate_ignore_table = shop\.u")
        replica.execute("SET GLOBAL replicate_ignore_table = ''; SET GLOBAL gtid_strict_mode = 0")
        is_told(start, "gtid_strict_mode is OFF")
        replica.execute("SET GLOBAL gtid_strict_mode = 1")
        log.run("ALTER TABLE t DROP COLUMN x")  # no table halts by what another server has
        lacks = f"{at['gtids'].split(',')[-1]}, which was read, is not in its log"
        is_told(at, lacks)
        log.run("ALTER TABLE t ADD COLUMN x longtext")
        fill(log, [2, 3, 4])
        is_told(at, lacks)
        replica.execute("FLUSH BINARY LOGS")
        ((file, *_),) = replica.execute("SHOW MASTER STATUS")

        def is_purged():  # not before the server has noted that the file is complete
            replica.execute(f"PURGE BINARY LOGS TO '{file}'")
            return replica.execute("SHOW BINARY LOGS")[0][0] == file

        wait_until(is_purged, "the log to be purged", 30)
        is_told(start, "gone before")

    def test_a_replica_with_a_transaction_of_its_own_is_told(self, pair):
        log, _, replica = pair
        changelog = log.open()
        start = changelog.begin()
        replica.execute("STOP SLAVE; SET GLOBAL gtid_strict_mode = 0")
        replica.execute("INSERT INTO t VALUES (100, 'x')", "shop")
        replica.execute("START SLAVE")
        fill(log, [1, 2])
        _, at = log.read_all(changelog, start, 2)
        wait_until(
            lambda: replica.execute("SELECT count(*) FROM shop.t") == [(3,)], "the replica", 30
        )
        replica.promote()
        replica.execute("SET GLOBAL gtid_strict_mode = 1")
        with pytest.raises(DataLostError, match=r"0-2-\d+, which the server before did not have"):
            failed_over(log, replica).advance(at, 100, 0)


class TestTables:
    @pytest.mark.parametrize(
        ("sql", "said"),
        [
            ("ALTER TABLE t MODIFY x varchar(9)", "another type"),
            ("ALTER TABLE t CHANGE x y longtext", "no more"),
            ("ALTER TABLE t DROP COLUMN x, ADD COLUMN x int", "another type"),
            ("ALTER TABLE t CONVERT TO CHARACTER SET latin1", "another type"),
            ("ALTER TABLE t RENAME TO gone", "dropped or renamed"),
        ],
    )
    def test_one_that_is_altered_is_told(self, log, sql, said):
        changelog = log.open()
        start = changelog.begin()
        log.run(sql)
        with pytest.raises(UserError, match=said):
            tell(changelog.advance(start, 100, 0))

    def test_statements_that_change_rows_are_told(self, log):
        """In the log there is no row of what each does, as is asked of the server first."""
        statements = {
            "n": "SET sql_mode = ''; ALTER TABLE n MODIFY x int NOT NULL",
            "g": "ALTER TABLE g MODIFY x int AS (id * 3) STORED",
            "i": "ALTER IGNORE TABLE i ADD UNIQUE (x)",
            "r": "ALTER TABLE r CONVERT PARTITION p TO TABLE apart",
            "c": "ALTER TABLE c ADD FOREIGN KEY (x) REFERENCES n (id) ON DELETE CASCADE; "
            "DELETE FROM n",
        }
        for table in statements:
            computed = "AS (id * 2) STORED" if table == "g" else ""
            parts = "PARTITION BY LIST (id) (PARTITION p VALUES IN (1), PARTITION q VALUES IN (2))"
            log.run(f"CREATE TABLE {table} (id int PRIMARY KEY, x int {computed}) "
                    + (parts if table == "r" else ""))  # fmt: skip
            log.run(f"INSERT INTO {table} (id) VALUES (1), (2)")
        log.run("UPDATE c SET x = id; UPDATE i SET x = 7")
        changelog = log.open(*statements)
        start = changelog.begin()
        before = {table: log.run(f"SELECT * FROM {table} ORDER BY id") for table in statements}
        for table, sql in statements.items():
            log.run(sql)
            assert log.run(f"SELECT * FROM {table} ORDER BY id") != before[table], table
        events = log.followed(changelog, start)
        told = {event.table for event in events if event.kind == "altered"}
        assert told == set(statements)
        assert {event.table for event in events if event.kind in "cud"} <= {"n"}

    def test_a_value_that_cannot_be_read_is_of_its_table_alone(self, log):
        log.run("CREATE TABLE u (id int PRIMARY KEY, x varchar(9) CHARACTER SET utf16)")
        changelog = log.open("t", "u")
        start = changelog.begin()
        with log.server.connect(log.database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1, 'x')")
            cursor.execute("INSERT INTO u VALUES (1, 'a'), (2, NULL)")
            cursor.execute("INSERT INTO t VALUES (2, 'x')")
            connection.commit()
        (split,) = changelog.splits(start, changelog.advance(start, 100, 10_000).offsets)
        (place, key, block) = split.end[0]
        # As a server has it whose texts are not checked: the half of a pair.
        assert block.count(b"\x02\0a") == 1
        damaged = replace(split, end=[(place, key, block.replace(b"\x02\0a", b"\x02\xd8\0"))])
        messages = changelog.read([damaged])
        events = [event for m in messages for event in events_of(BinlogFormat({}), m)]
        assert [(event.table, event.kind) for event in events] == [
            ("t", "c"), ("u", "unreadable"), ("u", "c"), ("t", "c"),
        ]  # fmt: skip
        assert "surrogate" in events[1].detail or "utf-16" in events[1].detail

    def test_one_that_cannot_be_followed_any_more_halts_alone(self, log):
        log.run(
            "CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE w (id int, n int, PRIMARY KEY (id))"
        )
        start = log.open("t", "u", "w").begin()
        log.run("SET sql_log_bin = 0; ALTER TABLE u ADD n int REFERENCES t (id) ON DELETE SET NULL")
        log.run("SET sql_log_bin = 0; ALTER TABLE w MODIFY n text CHARACTER SET sjis")
        fill(log, [1])
        changelog = log.reopen("t", "u", "w")
        with pytest.raises(UserError, match="CASCADE or SET NULL"):
            changelog.check()
        changelog.only({"t": {"id", "x"}, "u": {"id"}, "w": {"id"}})
        halts = changelog.advance(start, 100, 10_000).halts
        assert halts.keys() == {"u"}  # of w a column that nobody reads
        assert halts["u"].altered
        assert "CASCADE or SET NULL" in halts["u"].what
        log.run("CREATE TABLE v (id int PRIMARY KEY)")
        assert "table/v" in log.open("t", "u", "v").begin(start)

    def test_another_key_is_told(self, log):
        for table in "klm":
            log.run(
                f"CREATE TABLE {table} (id int NOT NULL, r int NOT NULL, PRIMARY KEY (id, r), "
                "UNIQUE u (id), KEY (r))"
            )
        log.run("ALTER TABLE l DROP PRIMARY KEY")
        changelog = log.open("k", "l", "m")
        start = changelog.begin()
        keys = {table: start[f"table/{table}"]["key"] for table in "klm"}
        assert keys["k"] == ["PRIMARY", ["id", "r"]]
        assert keys["l"] == ["u", ["id"]]
        # Of one the log tells; the other is another one when somebody looks.
        log.run("ALTER TABLE k DROP PRIMARY KEY, ADD PRIMARY KEY (id); DROP INDEX u ON m")
        log.run("SET sql_log_bin = 0; ALTER TABLE l DROP KEY u, ADD UNIQUE u (id, r)")
        halts = changelog.advance(start, 100, 0).halts
        assert halts.keys() == {"k", "l"}
        assert all("no longer the key" in halt.what for halt in halts.values())
        told = [event.table for event in log.followed(changelog, start) if event.kind == "altered"]
        assert told == ["k"]

    def test_a_new_column_at_the_end_is_no_harm(self, log):
        changelog = log.open()
        start = changelog.begin()
        log.run("ALTER TABLE t ADD COLUMN y int DEFAULT 5; INSERT INTO t VALUES (1, 'x', 2)")
        *_, event = log.followed(changelog, start)
        assert event.after == {"id": 1, "x": "x"}

    @pytest.mark.parametrize(
        "sql",
        [
            "ALTER TABLE u MODIFY a varchar(9)",
            "ALTER TABLE u CHANGE a b varchar(30)",
            "ALTER TABLE u CONVERT TO CHARACTER SET sjis",
            "ALTER TABLE u DROP COLUMN a, ADD COLUMN b json AFTER id",
        ],
    )
    def test_columns_that_are_not_read_may_be_altered(self, log, sql):
        log.run("CREATE TABLE u (id int PRIMARY KEY, a longtext, n int, z text)")
        changelog = log.open("u")
        start = changelog.begin()
        changelog.only({"u": {"id", "n"}})
        log.run("INSERT INTO u VALUES (1, 'x', 10, NULL), (2, NULL, 20, 'z')")
        log.run(sql)
        log.run("INSERT INTO u VALUES (3, 7, 30, 'z'), (4, NULL, NULL, 'z')")
        events = [event for event in log.followed(changelog, start) if event.after]
        assert [event.after for event in events] == [
            {"id": 1, "n": 10},
            {"id": 2, "n": 20},
            {"id": 3, "n": 30},
            {"id": 4, "n": None},
        ]

    @pytest.mark.parametrize(
        "sql",
        [
            "ALTER TABLE u DROP COLUMN a",
            "ALTER TABLE u DROP COLUMN z, ADD b int FIRST",
            "ALTER TABLE u MODIFY n int FIRST",
            "ALTER TABLE u MODIFY z text COMMENT 'a -- b, DROP n' FIRST, DROP a",
            "ALTER TABLE u DROP a; ALTER TABLE u ADD (a int, b int); ALTER TABLE u DROP z",
        ],
    )
    @pytest.mark.parametrize("metadata", ["NO_LOG", "FULL"])
    def test_columns_that_are_read_may_move(self, log, sql, metadata):
        log.run("CREATE TABLE u (id int PRIMARY KEY, a longtext, n int, z text)")
        changelog = log.open("u")
        start = changelog.begin()
        changelog.only({"u": {"id", "n"}})
        log.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
        try:
            log.run("INSERT INTO u (id, n) VALUES (1, 10)")
            log.run(sql)
            log.run("INSERT INTO u (id, n) VALUES (2, 20)")
            at = changelog.advance(start, 2, 10_000).offsets
            log.run("INSERT INTO u (id, n) VALUES (3, 30)")
        finally:
            log.run("SET GLOBAL binlog_row_metadata = DEFAULT")
        taken = [event.after for event in log.followed(changelog, start) if event.after]
        assert taken == [{"id": 1, "n": 10}, {"id": 2, "n": 20}, {"id": 3, "n": 30}]
        log.close()
        changelog = log.open("u")  # which goes on by the columns as they are at a place
        changelog.only({"u": {"id", "n"}})
        changelog.finish()
        while (end := changelog.advance(at, 100, 10_000).offsets) != at:
            taken += [event.after for event in log.events(changelog, at, end) if event.after]
            at = end
        assert taken[-1] == {"id": 3, "n": 30}
        assert [facts[0] for facts in at["table/u"]["columns"]] == [
            row[0] for row in log.run("SHOW COLUMNS FROM u")
        ]

    @pytest.mark.parametrize(
        ("sql", "said"),
        [
            ("ALTER TABLE u DROP n; ALTER TABLE u ADD n int AFTER a", "'n' no more"),
            ("ALTER TABLE u RENAME COLUMN n TO m; ALTER TABLE u RENAME COLUMN m TO n", "to 'm'"),
            ("ALTER TABLE u CHANGE n m int; ALTER TABLE u CHANGE m n int", "renamed to 'm'"),
            (
                "ALTER TABLE u RENAME COLUMN n TO x, RENAME COLUMN k TO n; "
                "ALTER TABLE u RENAME COLUMN n TO k, RENAME COLUMN x TO n",
                "renamed to 'x'",
            ),
            ("ALTER TABLE u MODIFY n bigint; ALTER TABLE u MODIFY n int", "another type"),
            (
                "ALTER TABLE u MODIFY n int unsigned; INSERT INTO u (id, n) VALUES "
                "(1, 4294967295); DELETE FROM u; ALTER TABLE u MODIFY n int",
                "another type",
            ),
            (
                "ALTER TABLE u MODIFY e enum('c'); ALTER TABLE u MODIFY e enum('a','b')",
                "another type",
            ),
            (
                "ALTER TABLE u ADD SYSTEM VERSIONING; ALTER TABLE u DROP SYSTEM VERSIONING",
                "not unde",
            ),
        ],
    )
    def test_one_that_is_as_it_was_again_is_told(self, log, sql, said):
        log.run(
            "CREATE TABLE u (id int PRIMARY KEY, a text, n int, k int, e enum('a','b')) "
            "DEFAULT CHARSET utf8mb4"
        )
        log.run("SET GLOBAL system_versioning_alter_history = KEEP")
        changelog = log.open("u")
        start = changelog.begin()
        changelog.only({"u": {"id", "n", "e"}})
        log.run(sql)
        log.run("INSERT INTO u (id, n, k, e) VALUES (7, 1, 2, 'a')")
        events = log.followed(changelog, start)
        (altered,) = (event for event in events if event.kind == "altered")
        assert said in altered.detail
        assert "of the binary log" in altered.detail
        assert 7 not in [event.after["id"] for event in events if event.after]

    @pytest.mark.parametrize("metadata", ["NO_LOG", "FULL"])
    def test_labels_in_another_order_for_a_while(self, log, metadata):
        """Each row is read by the labels that there were when it was written."""
        log.run("CREATE TABLE u (id int PRIMARY KEY, e enum('a','b'), s set('x','y'))")
        changelog = log.open("u")
        start = changelog.begin()
        log.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
        try:
            log.run("INSERT INTO u VALUES (1, 'a', 'x')")
            log.run("ALTER TABLE u MODIFY e enum('b','a','c''d'), MODIFY s set('y','z','x')")
            log.run("INSERT INTO u VALUES (2, 'a', 'x,y'), (3, 'b', 'y'), (4, 'c''d', 'z')")
            log.run("DELETE FROM u WHERE id = 4")
            log.run("ALTER TABLE u MODIFY e enum('a','b','c''d'), MODIFY s set('x','y','z')")
            log.run("INSERT INTO u VALUES (5, 'a', 'x')")
        finally:
            log.run("SET GLOBAL binlog_row_metadata = DEFAULT")
        events = [event for event in log.followed(changelog, start) if event.after]
        assert [tuple(event.after.values()) for event in events] == [
            (1, "a", "x"),
            (2, "a", "y,x"),
            (3, "b", "y"),
            (4, "c'd", "z"),
            (5, "a", "x"),
        ]

    def test_what_a_session_does_beside_the_log_is_told(self, log):
        log.run("CREATE TABLE u (id int PRIMARY KEY, a int, n int)")
        changelog = log.open("u")
        at = changelog.begin()
        changelog.only({"u": {"id", "n"}})
        log.run("SET sql_log_bin = 0; ALTER TABLE u MODIFY a int AFTER n")

        def until_told():
            nonlocal at
            for _ in range(50):
                progress = changelog.advance(at, 100, 200)
                tell(progress)
                at = progress.offsets

        with pytest.raises(UserError, match="not in the log"):
            until_told()

    @pytest.mark.parametrize(
        "sql",
        [
            "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, x longtext)",
            "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, x longtext)",
            "RENAME TABLE t TO u; RENAME TABLE u TO `t`",
            "/* a */ DROP TABLE IF EXISTS `u`, `t`; CREATE TABLE t (id int KEY, x longtext)",
        ],
    )
    def test_statements_that_move_rows_are_sent_as_such(self, log, sql):
        changelog = log.open()
        start = changelog.begin()
        log.run(sql)
        events = log.followed(changelog, start)
        assert {event.kind for event in events} == {"ddl"}
        assert all(event.table == "t" and event.detail for event in events)

    @pytest.mark.parametrize(
        "sql", ["DROP DATABASE {0}; CREATE DATABASE {0}", "CREATE OR REPLACE DATABASE {0}"]
    )
    def test_a_database_that_goes_takes_its_tables(self, log, sql):
        changelog = log.open()
        fill(log, [1])
        start = changelog.begin()
        again = "USE {0}; CREATE TABLE t (id int PRIMARY KEY, x longtext)"
        log.run(f"{sql}; {again}".format(log.database))
        events = log.followed(changelog, start)
        assert {(event.table, event.kind) for event in events} == {("t", "ddl")}
        assert "DATABASE" in events[0].detail.upper()

    def test_what_came_before_a_table_was_loaded_is_not_its_own(self, log):
        """After a halt the other tables go on from before the statement that halted."""
        log.run("CREATE TABLE u (id int PRIMARY KEY, x longtext)")
        known = log.open("t", "u").begin()
        fill(log, [1])
        log.run("DROP TABLE u; CREATE TABLE u (id int PRIMARY KEY, y int, z int)")
        log.run("INSERT INTO u VALUES (1, 2, 3)")
        kept = {name: value for name, value in known.items() if name != "table/u"}
        begun = log.reopen("t", "u").begin(kept)
        log.run("INSERT INTO u VALUES (2, 2, 3)")
        events = log.followed(log.reopen("t", "u"), {**begun, **kept})
        assert [(e.table, e.kind, e.after["id"]) for e in events] == [("t", "c", 1), ("u", "c", 2)]

    @pytest.mark.parametrize(
        ("sql", "said"),
        [
            (
                "CREATE TABLE u (id int PRIMARY KEY, k int, CONSTRAINT up FOREIGN KEY (k) "
                "REFERENCES t (id) ON DELETE CASCADE)",
                "DROP FOREIGN KEY `up`",
            ),
            (
                "CREATE TABLE u (id int PRIMARY KEY) WITH SYSTEM VERSIONING",
                "DROP SYSTEM VERSIONING",
            ),
            (
                "CREATE TABLE u (id int PRIMARY KEY, x text CHARACTER SET sjis)",
                "CONVERT TO CHARACTER SET utf8mb4",
            ),
            ("CREATE TABLE u (id int PRIMARY KEY, x text COMPRESSED)", "without COMPRESSED"),
        ],
    )
    def test_those_whose_changes_are_not_all_in_the_log_are_refused(self, log, sql, said):
        log.run(sql)
        with pytest.raises(UserError, match=said):
            log.open("u").check()
        log.run("DROP TABLE u")

    def test_all_that_are_refused_are_told_at_once(self, log):
        log.run("CREATE TABLE v (id int PRIMARY KEY) WITH SYSTEM VERSIONING")
        log.run("CREATE TABLE w (id int PRIMARY KEY, x text COMPRESSED)")
        changelog = log.open("v", "t", "w")
        for ask in (changelog.check, changelog.begin):
            with pytest.raises(UserError) as caught:
                ask()
            versioned, compressed = caught.value.errors
            assert versioned.hint.endswith("`v` DROP SYSTEM VERSIONING")
            assert compressed.hint.endswith("`w` MODIFY the column without COMPRESSED")
        log.run("DROP TABLE v; DROP TABLE w")


class TestValues:
    def test_every_kind_of_change(self, log):
        log.run("CREATE TABLE w (id int, k varchar(9), n int, PRIMARY KEY (id, k))")
        log.run("INSERT INTO w VALUES (1, 'a', 1)")
        changelog = log.open("w")
        start = changelog.begin()
        log.run("UPDATE w SET n = NULL; UPDATE w SET id = 5; DELETE FROM w; TRUNCATE TABLE `w`")
        update, moved, delete, truncate = found = log.followed(changelog, start)
        assert [e.kind for e in found] == ["u", "u", "d", "truncate"]
        assert update.before == {"id": 1, "k": "a", "n": 1}
        assert update.after == {"id": 1, "k": "a", "n": None}
        assert (moved.before["id"], moved.after["id"]) == (1, 5)
        assert delete.before == {"id": 5, "k": "a", "n": None}
        assert (truncate.table, truncate.after) == ("w", None)
        assert all(e.transaction and e.source_ms and e.namespace == log.database for e in found)
        assert sorted(e.position for e in found) == [e.position for e in found]

    def test_a_history_through_the_log_is_what_a_load_reads(self, log):
        """All types, all their values; inserts, updates of everything, deletes."""
        cases = [
            *MARIADB,
            ("YEAR", "int", [("0000", 0), ("1901", 1901), ("2155", 2155)]),
            ("DECIMAL(38,0)", "", [("-" + "9" * 38, None), ("1000000000", None)]),
            ("DECIMAL(9,9)", "", [("-0.000000001", None), ("0.1", None)]),
            ("TIME(6)", "", [("-00:00:00.000001", None), ("838:59:58.999999", None)]),
            ("DATETIME(1)", "", [("2024-02-29 23:59:59.9", None)]),
            ("BIT(64)", "", [(2**64 - 1, None), (0, None)]),
            ("SET('a','b','c','d','e','f','g','h','i')", "", [("a,i", None), ("", None)]),
            ("CHAR(9) CHARACTER SET utf16", "", [("é😀 a ", None)]),
            ("CHAR(200)", "", [("é" * 200, None)]),
            ("TINYBLOB", "", [(b"\0\xff", None)]),
            ("MEDIUMTEXT", "", [("x" * 70_000, None)]),
            ("VARBINARY(4)", "", [(b"a\0\0", None)]),
            ("INT UNSIGNED AS (7) VIRTUAL", "", []),
            ("INT UNSIGNED AS (4000000000) PERSISTENT", "", []),
        ]
        chance = random.Random(daily(16))
        columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(cases))
        log.run(f"CREATE TABLE w (id bigint PRIMARY KEY, {columns}) ROW_FORMAT = DYNAMIC")
        given = [n for n, (kind, *_) in enumerate(cases) if " AS (" not in kind]
        changelog = log.open("w")
        start = changelog.begin()
        with log.server.connect(log.database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
            names = ", ".join(f"c{n}" for n in given)
            marks = ", ".join(["%s"] * len(given))
            for number in range(25):
                row = [chance.choice([*[g for g, _ in cases[n][2]], None]) for n in given]
                if number < 9:  # each value comes in any case
                    row = [cases[n][2][number % len(cases[n][2])][0] for n in given]
                cursor.execute(
                    f"INSERT INTO w (id, {names}) VALUES ({number}, {marks})", tuple(row)
                )
                if number % 3 == 0:
                    connection.commit()
                n = chance.choice(given)
                value = chance.choice(cases[n][2])[0]
                cursor.execute(f"UPDATE w SET c{n} = %s WHERE id <= %s", (value, number // 2))
                if number % 7 == 6:
                    cursor.execute("DELETE FROM w WHERE id = %s", (number - 3,))
            connection.commit()
        changelog.finish()
        schema, loaded = log.loaded("w")
        table, at = TableInMemory(BinlogFormat({}), schema), start
        # A table of tests has the name t.
        while (end := changelog.advance(at, 50, 0).offsets) != at:
            messages = list(changelog.read(changelog.splits(at, end)))
            table.take(messages, "w")
            at = end
        assert len(loaded) > 20
        for row in loaded:
            for name, value in row.items():
                assert table.rows[row["id"]][name] == value, (name, row["id"])
        assert table.content == normal({row["id"]: row for row in loaded}, schema)

    @pytest.mark.parametrize("charset", sorted(CHARSETS.keys() - {"binary", "utf8"}))
    def test_texts_of_every_character_set(self, log, charset):
        log.run(f"CREATE TABLE w (id int PRIMARY KEY, x varchar(99) CHARACTER SET {charset})")
        changelog = log.open("w")
        start = changelog.begin()
        if charset == "latin1":
            values = [f"CHAR({n} USING latin1)" for n in range(1, 256)]
        else:
            values = ["'ascii'", "CONVERT('é😀 ' USING utf8mb4)", "''"]
        rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values))
        log.run(f"SET sql_mode = ''; INSERT INTO w VALUES {rows}")
        _, loaded = log.loaded("w")
        assert [e.after for e in log.followed(changelog, start)] == loaded

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("date", "0000-00-00"),
            ("datetime(3)", "2024-00-10"),
            ("timestamp null", "0000-00-00"),
        ],
    )
    def test_a_zero_date_is_never_null(self, log, kind, value):
        log.run(f"CREATE TABLE w (id bigint PRIMARY KEY, x {kind})")
        changelog = log.open("w")
        start = changelog.begin()
        log.run(f"SET sql_mode = ''; INSERT INTO w VALUES (1, '{value}')")
        (event,) = log.followed(changelog, start)
        schema = MysqlDatabase(
            ConnectionSettings(name="c", **log.server.settings(log.database))
        ).describe("w")
        with pytest.raises((ValueError, pa.ArrowException)):
            BinlogFormat({}).convert([event.after["x"]], schema.column("x"))


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("DROP TABLE IF EXISTS `a b`, c.`d``e` /* f */", [(None, "a b"), ("c", "d`e")]),
        ("ALTER TABLE t COMMENT 'u it''s' -- v\n, ADD w int", [(None, "t"), (None, "w")]),
        ('DROP /*!40005 TEMPORARY */ TABLE "x"', [(None, "TEMPORARY"), (None, "x")]),
    ],
)
def test_names_of_a_statement(sql, names):
    assert [name for name in names_of(sql) if name in names] == names
    assert not {"f", "u", "v"} & {name for _, name in names_of(sql)}


def test_what_breaks_the_log_is_told():
    from mview.connector import Message, events_of

    for key, value in [(b"\0" * 8, b"?"), (b"\0" * 8, b"i" + b"\0" * 16), (None, b"")]:
        with pytest.raises(DecodeError):
            events_of(BinlogFormat({}), Message("binlog", 1, key, value))


def test_the_clock_of_the_log_is_that_of_the_server(log):
    changelog = log.open()
    start = changelog.begin()
    before = int(time.time() * 1000)
    fill(log, [1])
    (event,) = log.followed(changelog, start)
    assert before - 2000 < event.source_ms < before + 60_000


def test_a_time_that_a_session_has_set_proves_nothing(log):
    """What is left, or comes later, was not committed before it."""
    changelog = log.open()
    at = changelog.begin()
    log.run("SET timestamp = UNIX_TIMESTAMP() + 86400; INSERT INTO t VALUES (1, 'x'), (2, 'x')")
    fill(log, range(3, 9))
    taken = []
    while len(taken) < 8:
        progress = changelog.advance(at, 1, 10_000)
        taken += log.ids(changelog, at, progress.offsets)
        if progress.watermark is not None:
            assert progress.watermark <= int(log.run(log.clock)[0][0])
        at = progress.offsets


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError("gone"), AwayError),
        (OperationalError(2013, "Lost connection"), AwayError),
        (ValueError(INCIDENT), DataLostError),
        (IndexError("of a bug"), DecodeError),
    ],
)
def test_only_a_server_that_is_gone_is_waited_for(log, monkeypatch, error, kind):
    """What would be the same in the next attempt ends the run."""
    changelog = log.open()
    start = changelog.begin()

    def take(*_):
        raise error

    monkeypatch.setattr(BinlogEvents, "take", take)
    with pytest.raises(kind, match=re.escape(str(error.args[-1]))):
        changelog.advance(start, 10, 60_000)
