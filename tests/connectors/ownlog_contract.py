"""What every own log of a database does, on a real server; each has a test module of its own."""

from __future__ import annotations

import json
import pickle
import random
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import NO_LIMIT, Align, LogReader, events_of
from mview.errors import UserError
from mview.relation import TableName
from mview.testing.formats import TableInMemory
from tests.seeds import daily
from tests.services.process import wait_until


class OwnLogHarness:
    """A database with one table, and changelogs of it.

    Attributes:
        source: the name of the changelog.
        changelog: its class.
        format: what its messages are written in.
        name: of its entry in offsets.
        reader: what a load reads it with.
        clock: SQL, the server's clock in milliseconds.
        numbers: SQL of a table of the numbers `n` from 1 to so many.
    """

    source = name = clock = numbers = ""
    changelog = format = reader = None
    #: Types of keys that are texts; statements that write a row for one with a number.
    keys = insert_or = ()
    #: A type of long texts; seconds after which a transaction is of another time.
    text, tick = "text", 0.05
    #: Whose place in the log it is; see `LogReader`.
    light = ""

    def __init__(self, server, database, folder):
        self.server, self.database, self.folder = server, database, folder
        self.run(f"CREATE TABLE t (id int PRIMARY KEY, x {self.text})")
        self.opened = []

    def run(self, sql):
        return self.server.execute(sql, self.database)

    def insert(self, most):
        """One statement with so many rows."""
        self.run(f"INSERT INTO t SELECT n, 'x' FROM {self.numbers.format(most)}")

    def loaded(self, table, rows=1 << 30):
        """The rows as a load reads them, in chunks of so many."""
        database = self.reader(ConnectionSettings(name="c", **self.server.settings(self.database)))
        schema = database.describe(table)
        plan = database.plan(table, schema, rows, 1 << 40)
        batches = [b for chunk in plan.chunks for b in database.read(table, schema, plan, chunk)]
        database.close()
        return schema, pa.Table.from_batches(batches, schema.arrow).to_pylist()

    def open(self, *tables, **options):
        settings = ChangesSettings(connection="c", source=self.source, options=options)
        database = ConnectionSettings(name="c", **self.server.settings(self.database))
        reader = LogReader(self.folder / "store", self.light)
        log = self.changelog(settings, database, list(tables or ("t",)), reader)
        self.opened.append(log)
        return log

    def reopen(self, *tables, **options):
        self.close()
        return self.open(*tables, **options)

    def close(self):
        for log in self.opened:
            log.close()
            log.close()

    def events(self, changelog, start, end):
        splits = pickle.loads(pickle.dumps(changelog.splits(start, end)))
        messages = changelog.read(splits)
        return [event for message in messages for event in events_of(self.format({}), message)]

    def ids(self, changelog, start, end):
        return [int((e.after or e.before)["id"]) for e in self.events(changelog, start, end)]

    def read_all(self, changelog, start, count, **limits):
        """Batches until so many changes came: their ids, and where they end."""
        batches, at, until = [], start, time.monotonic() + 60
        while sum(map(len, batches)) < count:
            assert time.monotonic() < until, batches
            size = limits.get("size", 1 << 30)
            align = Align(NO_LIMIT, None, *limits.get("room", (NO_LIMIT, NO_LIMIT)))
            progress = changelog.advance(at, limits.get("rows", 1000), 200, size, align)
            if found := self.ids(changelog, at, progress.offsets):
                batches.append(found)
            at = progress.offsets
        return batches, at


#: A transaction has no more room than a batch: it may come in parts.
IN_PARTS = {"room": (0, 0)}


def flat(batches):
    return [number for batch in batches for number in batch]


def tell(progress):
    """Raises why a table has halted."""
    for halt in progress.halts.values():
        raise halt.error()


def fill(log, numbers, text="x"):
    """A transaction of each."""
    for number in numbers:
        log.run(f"INSERT INTO t VALUES ({number}, '{text}')")


class EveryOwnLog:
    def test_begin_is_the_end_of_the_log(self, log):
        fill(log, [1, 2])
        changelog = log.open()
        changelog.check()
        start = changelog.begin()
        assert changelog.advance(start, 100, 0).offsets == start
        fill(log, [3])
        batches, end = log.read_all(changelog, start, 1)
        assert batches == [[3]]
        assert changelog.advance(end, 100, 0).offsets == end

    def test_offsets_are_json_and_survive_a_restart(self, log):
        start = log.open().begin()
        fill(log, range(5))
        taken, at = log.read_all(log.open(), start, 2, rows=2)
        again = json.loads(json.dumps(at))
        rest, _ = log.read_all(log.reopen(), again, 5 - len(flat(taken)))
        assert flat(taken + rest) == [0, 1, 2, 3, 4]

    @pytest.mark.long
    def test_keys_that_the_database_compares_otherwise_than_by_bytes(self, log):
        """What is one key to the database may be several texts, one after the other: of letters,
        marks, spaces at the end. Changes and chunks still make the table, byte by byte."""
        chance = random.Random(daily(5))
        texts = ["a", "A", "á", "Á", "a ", "A  ", "ss", "ß", "SS", "æ", "ae", "", " ", "b", "B"]
        for kind in log.keys:
            log.run(f"CREATE TABLE u (id {kind} PRIMARY KEY, x int)")
            log.run(f"INSERT INTO u VALUES ('{chance.choice(texts)}', 0)")
            changelog = log.open("u")
            at = changelog.begin()
            schema, first = log.loaded("u")
            table = TableInMemory(log.format({}), schema, {row["id"]: row for row in first})
            done = 0
            for number in range(1, 80):
                old, new = chance.choice(texts), chance.choice(texts)
                ways = [way.format(new, number) for way in log.insert_or]
                ways.append(f"UPDATE u SET id = '{new}', x = {number} WHERE id = '{old}'")
                ways.append(f"UPDATE u SET x = {number} WHERE id = '{old}'")
                ways.append(f"DELETE FROM u WHERE id = '{old}'")
                with suppress(log.taken):
                    log.run(chance.choice(ways))
                    done += 1
            changelog.finish()
            while (end := changelog.advance(at, 7, 0).offsets) != at:
                messages = list(changelog.read(changelog.splits(at, end)))
                table.take(messages, "u")
                at = end
            assert done > 20, kind
            for rows in (1 << 30, 2):
                _, loaded = log.loaded("u", rows)
                assert table.content == sorted(map(repr, loaded)), kind
            log.close()
            log.run("DROP TABLE u")

    def test_tables_of_one_name_in_several_schemas(self, log):
        """One that is read, one that is not, and one whose name looks like the first."""
        other, third = f"b_{log.database}", f"c_{log.database}"
        log.run(f"CREATE SCHEMA {other}; CREATE SCHEMA {third}")
        mark = "`" if log.source == "mysql" else '"'
        odd = f"{mark}{other}.t{mark}"
        try:
            for table in (f"{other}.t", f"{third}.t", odd):
                log.run(f"CREATE TABLE {table} (x {log.text}, id int PRIMARY KEY)")
            names = ["t", f"{other}.t", f"`{other}.t`"]
            changelog = log.open(*names)
            changelog.check()
            start = changelog.begin()
            fill(log, [1])
            for number, table in enumerate((f"{other}.t", f"{third}.t", odd), 2):
                log.run(f"INSERT INTO {table} VALUES ('{table[:2]}', {number})")
            log.run(f"TRUNCATE {other}.t; INSERT INTO {other}.t VALUES ('y', 5)")
            fill(log, [6])
            at, found = start, []

            def come():
                nonlocal at
                end = changelog.advance(at, 100, 200).offsets
                found.extend(self._named(log, log.events(changelog, at, end)))
                at = end
                return len(found) == 6

            wait_until(come, "the changes")
            assert found == [
                ("t", 1),
                (f"{other}.t", 2),
                (f"`{other}.t`", 4),
                (f"{other}.t", "truncate"),
                (f"{other}.t", 5),
                ("t", 6),
            ]
            assert {name for name in start if name.startswith("table/")} == {
                f"table/{name}" for name in names
            }
            log.run(f"ALTER TABLE {third}.t DROP COLUMN x; ALTER TABLE {other}.t DROP COLUMN x")
            altered = rf"c\.{other}\.t has column 'x' no more"
            with pytest.raises(UserError, match=altered):
                tell(log.reopen(*names).advance(at, 100, 0))
        finally:
            log.close()
            end = "" if log.source == "mysql" else " CASCADE"
            log.run(f"DROP SCHEMA {other}{end}; DROP SCHEMA {third}{end}")

    def _named(self, log, events):
        own = log.database if log.source == "mysql" else "public"
        for event in events:
            schema = "" if event.namespace == own else event.namespace
            number = event.kind if event.kind == "truncate" else int(event.after["id"])
            yield str(TableName(schema, event.table)), number

    def test_a_limit_of_rows_and_the_backlog(self, log):
        changelog = log.open()
        start = changelog.begin()
        fill(log, range(7))

        def come():
            return len(log.ids(changelog, start, changelog.advance(start, 100, 0).offsets)) == 7

        wait_until(come, "the changes")
        at, seen, backlogs = start, [], []
        for _ in range(3):
            progress = changelog.advance(at, 3, 0)
            seen.append(log.ids(changelog, at, progress.offsets))
            backlogs.append(progress.backlog)
            at = progress.offsets
        assert seen == [[0, 1, 2], [3, 4, 5], [6]]
        assert backlogs == [4, 1, 0]

    def test_a_batch_is_bounded_in_bytes_and_one_that_is_larger_comes_alone(self, log):
        changelog = log.open()
        at = changelog.begin()
        for n, size in enumerate([10, 200_000, 200_000, 900_000, 10]):
            fill(log, [n], "x" * size)
        batches, _ = log.read_all(changelog, at, 5, size=300_000)
        assert [one for batch in batches for one in batch] == [0, 1, 2, 3, 4]
        assert [3] in batches
        assert [1, 2] not in batches

    def test_the_watermark_moves_without_any_change(self, log):
        """By the server's clock; never back."""
        changelog = log.open()
        at = changelog.begin()
        before = int(log.run(log.clock)[0][0])
        marks = []
        until = time.monotonic() + 60
        while len(set(marks)) < 3 and time.monotonic() < until:
            progress = changelog.advance(at, 100, 200)
            assert progress.offsets == at
            marks += [] if progress.watermark is None else [progress.watermark]
        assert marks == sorted(marks)
        assert before - 1000 < marks[0] < marks[-1]

    def test_what_was_known_before_the_time_is_over_counts(self, log):
        """A second's patience ends between two questions for the clock: the last answer counts."""
        changelog = log.open()
        at = changelog.begin()
        changelog.advance(at, 100, 1000)
        marks = [changelog.advance(at, 100, 1000).watermark for _ in range(4)]
        assert None not in marks
        assert marks == sorted(set(marks))

    def test_no_watermark_passes_what_is_left(self, log):
        changelog = log.open()
        at = changelog.begin()
        fill(log, [1])
        time.sleep(log.tick)
        fill(log, [2])
        wait_until(lambda: changelog.advance(at, 100, 0).offsets != at, "the changes")
        second = log.reopen()
        wait_until(lambda: second.advance(at, 1, 100).backlog, "a backlog")
        progress = second.advance(at, 1, 0)
        (event,) = log.events(second, at, progress.offsets)
        assert progress.watermark == event.source_ms - 1

    def test_nothing_is_newer_than_asked_for(self, log):
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1])
        time.sleep(log.tick)
        fill(log, [2])
        _, end = log.read_all(changelog, start, 2)
        first, second = log.events(log.reopen(), start, end)
        held = log.reopen()
        held.advance(start, 100, 2000)
        wait_until(
            lambda: len(log.ids(held, start, held.advance(start, 9, 0).offsets)) == 2, "both"
        )
        until = Align(0, first.source_ms)
        progress = held.advance(start, 100, 0, align=until)
        assert log.ids(held, start, progress.offsets) == [1]
        assert progress.backlog == 1
        assert progress.watermark < second.source_ms
        assert held.advance(progress.offsets, 100, 0, align=until).offsets == progress.offsets

    def test_bounded(self, log):
        changelog = log.open()
        start = changelog.begin()
        fill(log, [1, 2, 3])
        changelog.finish()
        fill(log, [4])
        at, seen = start, []
        while (end := changelog.advance(at, 2, 0).offsets) != at:
            seen += log.ids(changelog, at, end)
            at = end
        assert seen == [1, 2, 3]
        assert changelog.advance(at, 100, 200).offsets == at

    def test_a_copy_knows_nothing_and_a_split_carries_its_messages(self, log):
        changelog = log.open()
        copy = pickle.loads(pickle.dumps(changelog))
        start = changelog.begin()
        fill(log, [1])
        _, end = log.read_all(changelog, start, 1)
        splits = changelog.splits(start, end)
        log.close()
        assert list(copy.read(splits)) == list(copy.read(splits)) != []

    def test_has_and_first(self, log):
        log.run("CREATE TABLE u (id int PRIMARY KEY)")
        changelog = log.open("t", "u")
        start = changelog.begin()
        alone = log.open("t")
        assert [alone.has(n) for n in (log.name, "server", "table/t", "table/u")] == [True] * 3 + [
            False
        ]
        assert alone.first(start) == {log.name: start[log.name][0]}
        assert changelog.sent("t", start) == {}


class EveryOwnTransaction:
    def test_no_batch_has_a_part_of_one(self, log):
        """Over two tables, and larger than a batch; the next batch begins after it."""
        log.run("CREATE TABLE u (id int PRIMARY KEY, x int)")
        changelog = log.open("t", "u")
        at = changelog.begin()
        with log.server.connect(log.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO t SELECT n, 'x' FROM {log.numbers.format(1500)}")
            cursor.execute(f"INSERT INTO u SELECT n, 1 FROM {log.numbers.format(1500)}")
            cursor.execute("DELETE FROM t WHERE id < 3")
            connection.commit()
        fill(log, [2000, 2001])
        sizes = []
        while sum(sizes) < 3004:
            progress = changelog.advance(at, 40, 200, 1000)
            assert progress.whole
            if found := log.ids(changelog, at, progress.offsets):
                sizes.append(len(found))
            at = progress.offsets
        assert sizes in ([3002, 2], [3002, 1, 1])

    def test_a_batch_ends_inside_of_one_and_another_process_goes_on(self, log):
        start = log.open().begin()
        log.insert(2500)
        fill(log, [3000])
        taken, at = log.read_all(log.open(), start, 700, rows=700, **IN_PARTS)
        assert at[log.name][1:] != [0, 0]
        rest, _ = log.read_all(log.reopen(), at, 2501 - len(flat(taken)), rows=701, **IN_PARTS)
        assert flat(taken + rest) == [*range(1, 2501), 3000]

    def test_positions_grow_and_are_the_same_when_cut_elsewhere(self, log):
        start = log.open().begin()
        log.insert(1200)
        log.run("UPDATE t SET x = 'y' WHERE id < 5")
        whole = log.reopen()
        _, end = log.read_all(whole, start, 1204, rows=5000)
        positions = [e.position for e in log.events(whole, start, end)]
        assert positions == sorted(set(positions))
        parts, at = log.reopen(), start
        again = []
        while len(again) < 1204:
            progress = parts.advance(at, 17, 200, align=Align(NO_LIMIT, None, 0, 0))
            again += [e.position for e in log.events(parts, at, progress.offsets)]
            at = progress.offsets
        assert again == positions

    def test_a_batch_is_planned_again_by_another_process(self, log):
        start = log.open().begin()
        log.insert(900)
        first = log.open()
        _, middle = log.read_all(first, start, 250, rows=250, **IN_PARTS)
        taken, end = log.read_all(first, middle, 100, rows=100, **IN_PARTS)
        assert log.ids(log.reopen(), middle, end) == flat(taken)
