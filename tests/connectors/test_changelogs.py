"""What every changelog must do; the files changelog always, Kafka with a broker."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from mview_connectors.formats.unified import UnifiedFormat

from mview.clock import END_OF_TIME
from mview.config import ChangesSettings
from mview.connector import load


def line(n, ts, **more):
    body = {"table": "t", "op": "insert", "after": {"id": n}, "ts": ts, "position": n, **more}
    return json.dumps(body).encode()


def beat(ts):
    return json.dumps({"op": "heartbeat", "ts": ts}).encode()


class FilesLog:
    """A log in files: what the shared tests need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = ChangesSettings(
            connection="c", source="files", format="unified", path=folder
        )

    def write(self, *values, file="0001.jsonl"):
        with (self.folder / file).open("ab") as out:
            out.writelines(value + b"\n" for value in values)


class KafkaLog:
    """A log in Kafka with one partition."""

    def __init__(self, broker, topic):
        self.broker = broker
        self.name = broker.create_topic(topic)
        self.settings = ChangesSettings(
            connection="c",
            source="kafka",
            format="unified",
            bootstrap_servers=broker.bootstrap,
            topic=topic.replace("t_", "{table}_"),
        )

    def write(self, *values):
        self.broker.produce(self.name, values)


@pytest.fixture(params=["files", pytest.param("kafka", marks=pytest.mark.service)])
def log(request, tmp_path):
    if request.param == "files":
        return FilesLog(tmp_path)
    broker = request.getfixturevalue("kafka")
    return KafkaLog(broker, "t_" + str(abs(hash(request.node.name))))


@pytest.fixture
def open_log(log):
    opened = []

    def make():
        factory = load("changelogs", log.settings.source)
        opened.append(factory(log.settings, UnifiedFormat({}), ["t"]))
        return opened[-1]

    yield make
    for changelog in opened:
        changelog.close()
        changelog.close()


def values(changelog, start, end):
    return [m.value for m in changelog.read(changelog.splits(start, end))]


class TestEveryChangelog:
    def test_begin_is_the_end_of_the_log(self, log, open_log):
        log.write(line(1, 10), line(2, 20))
        changelog = open_log()
        changelog.check()
        start = changelog.begin()
        assert changelog.advance(start, 100, 0).offsets == start
        log.write(line(3, 30))
        progress = changelog.advance(start, 100, 0)
        assert values(changelog, start, progress.offsets) == [line(3, 30)]
        assert changelog.advance(progress.offsets, 100, 0).offsets == progress.offsets

    def test_what_was_sent_before_is_known_by_position(self, log, open_log):
        changelog = open_log()
        assert changelog.sent("t", changelog.begin()) == {}
        positions = [
            {"table": "t", "op": "delete", "key": {"id": 1}, "position": n} for n in (7, 9)
        ]
        other = {"table": "u", "op": "delete", "key": {"id": 1}, "position": 99}
        first, second, third = (json.dumps(one).encode() for one in (*positions, other))
        log.write(first)
        before = changelog.begin()
        log.write(second, third, b"not json", beat(5))
        (found,) = changelog.sent("t", before).values()
        assert found == (7,)
        (found,) = changelog.sent("t", changelog.begin()).values()
        assert found == (9,)
        assert changelog.sent("v", changelog.begin()) == {}

    def test_offsets_are_json_and_survive_a_restart(self, log, open_log):
        start = open_log().begin()
        log.write(*(line(n, n) for n in range(5)))
        progress = open_log().advance(start, 2, 0)
        again = json.loads(json.dumps(progress.offsets))
        rest = open_log().advance(again, 100, 0)
        assert values(open_log(), again, rest.offsets) == [line(n, n) for n in range(2, 5)]

    def test_a_limit_of_rows_and_the_backlog(self, log, open_log):
        changelog = open_log()
        at = changelog.begin()
        log.write(*(line(n, 10 * n) for n in range(1, 8)))
        seen, backlogs, marks = [], [], []
        for _ in range(4):
            progress = changelog.advance(at, 3, 0)
            seen += values(changelog, at, progress.offsets)
            backlogs.append(progress.backlog)
            marks.append(progress.watermark)
            at = progress.offsets
        assert seen == [line(n, 10 * n) for n in range(1, 8)]
        assert backlogs == [4, 1, 0, 0]
        # A change vouches for the millisecond before it: more may follow with the same time.
        assert marks == [29, 59, 69, 69]

    def test_a_heartbeat_vouches_for_its_own_time(self, log, open_log):
        changelog = open_log()
        start = changelog.begin()
        log.write(line(1, 10), beat(50))
        assert changelog.advance(start, 100, 0).watermark == 50

    def test_the_watermark_never_goes_back(self, log, open_log):
        changelog = open_log()
        at = changelog.begin()
        marks = []
        for value in (beat(50), line(1, 20), line(2, 60)):
            log.write(value)
            progress = changelog.advance(at, 100, 0)
            at = progress.offsets
            marks.append(progress.watermark)
        assert marks == [50, 50, 59]

    def test_messages_have_one_partition_and_growing_offsets(self, log, open_log):
        changelog = open_log()
        start = changelog.begin()
        log.write(*(line(n, n) for n in range(20)))
        end = changelog.advance(start, 100, 0).offsets
        messages = [m for s in changelog.splits(start, end) for m in changelog.read([s])]
        assert len({m.partition for m in messages}) == 1
        offsets = [m.offset for m in messages]
        assert offsets == sorted(set(offsets))

    def test_bounded(self, log, open_log):
        changelog = open_log()
        start = changelog.begin()
        log.write(line(1, 10), line(2, 20), line(3, 30))
        changelog.finish()
        log.write(line(4, 40))
        first = changelog.advance(start, 2, 0)
        last = changelog.advance(first.offsets, 100, 0)
        assert values(changelog, start, first.offsets) == [line(1, 10), line(2, 20)]
        assert values(changelog, first.offsets, last.offsets) == [line(3, 30)]
        assert changelog.advance(last.offsets, 100, 200).offsets == last.offsets
        assert first.watermark == 19
        assert last.watermark == (END_OF_TIME if isinstance(log, FilesLog) else 29)

    def test_pickled_before_use_and_split_read_elsewhere(self, log, open_log):
        changelog = open_log()
        copy = pickle.loads(pickle.dumps(changelog))
        start = changelog.begin()
        log.write(line(1, 10))
        splits = changelog.splits(start, changelog.advance(start, 100, 0).offsets)
        (split,) = pickle.loads(pickle.dumps(splits))
        assert [m.value for m in copy.read([split])] == [line(1, 10)]
        copy.close()

    def test_reading_a_split_twice_gives_the_same(self, log, open_log):
        changelog = open_log()
        start = changelog.begin()
        log.write(*(line(n, n) for n in range(4)))
        (split,) = changelog.splits(start, changelog.advance(start, 3, 0).offsets)
        log.write(line(9, 9))
        assert list(changelog.read([split])) == list(changelog.read([split]))
        assert len(list(changelog.read([split]))) == 3

    def test_the_last_position_that_was_sent_of_a_table(self, log, open_log):
        changelog = open_log()
        empty = changelog.begin()
        log.write(line(3, 10), line(4, 20), line(9, 30, table="other"), beat(40))
        middle = changelog.begin()
        log.write(line(5, 50))
        assert list(changelog.sent("t", middle).values()) == [(4,)]
        assert list(changelog.sent("t", changelog.begin()).values()) == [(5,)]
        assert changelog.sent("t", empty) == {}
        assert changelog.sent("nothing", middle) == {}

    def test_a_change_without_position_is_passed_over(self, log, open_log):
        log.write(line(3, 10), line(4, 20, position=None))
        changelog = open_log()
        assert list(changelog.sent("t", changelog.begin()).values()) == [(3,)]

    def test_a_batch_is_bounded_in_bytes(self, log, open_log):
        """By what messages really have, after small ones too; one that is larger comes alone."""
        sizes = [10] * 5 + [200_000] * 4 + [900_000] + [10] * 3
        sent = [line(n, n, text="x" * size) for n, size in enumerate(sizes)]
        changelog = open_log()
        at = changelog.begin()
        log.write(*sent)
        batches = []
        while (end := changelog.advance(at, 100, 0, 500_000).offsets) != at:
            batches.append(values(changelog, at, end))
            at = end
        assert [one for batch in batches for one in batch] == sent
        assert [len(batch) for batch in batches] == [7, 2, 1, 3]
