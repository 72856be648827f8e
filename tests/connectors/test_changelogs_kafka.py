"""The changelog in Kafka, with a real broker: watermark, retention, transactions, partitions."""

from __future__ import annotations

import itertools
import json
import random
import socket
import time
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, OffsetSpec
from mview_connectors.changelogs.kafka import changelog as kafka_module
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.changelogs.kafka.client import KafkaClient, Span
from mview_connectors.formats.debezium import DebeziumFormat
from mview_connectors.formats.unified import UnifiedFormat

from mview.clock import SourceMs
from mview.config import ChangesSettings
from mview.connector import Align, Message, Split
from mview.errors import AwayError, ConfigError, DataLostError, DecodeError, RetryableError
from mview.ingest.changelogs import WAIT_MS
from tests.patience import Patience, wait_for
from tests.seeds import daily

pytestmark = [pytest.mark.service, pytest.mark.days(2)]
_numbers = itertools.count()


def change(n, ts, **source):
    place = {"connector": "postgresql", "table": "t", "ts_ms": ts, "sequence": f'["{n}","{n}"]'}
    source = {**place, **source}
    return json.dumps({"op": "c", "before": None, "after": {"id": n}, "source": source})


def beat(ts):
    return json.dumps({"ts_ms": ts})


class Log:
    """Topics of one connector: data partitions and heartbeats."""

    def __init__(self, broker, partitions=1, **settings):
        self.broker, self.prefix = broker, f"log{next(_numbers)}"
        self.topic = broker.create_topic(f"{self.prefix}.shop.orders", partitions)
        self.beats = broker.create_topic(f"{self.prefix}.heartbeat")
        defaults = {
            "format": "debezium",
            "heartbeat_topic": self.beats,
            "bootstrap_servers": broker.bootstrap,
        }
        self.settings = ChangesSettings(
            connection="shop",
            source="kafka",
            topic=f"{self.prefix}.shop.{{table}}",
            **{**defaults, **settings},
        )
        self.opened = []

    def open(self, decoder=None, tables=("orders",)):
        changelog = KafkaChangelog(self.settings, decoder or DebeziumFormat({}), tables)
        self.opened.append(changelog)
        return changelog

    def send(self, *values, partition=0):
        """Changes beyond the first partition with keys, without which they are not taken."""
        if partition:
            rows = [json.loads(value).get("after") for value in values]
            values = [
                (json.dumps(row), v) if row else v for row, v in zip(rows, values, strict=True)
            ]
        self.broker.produce(self.topic, values, partition=partition)

    def beat(self, ts):
        self.broker.produce(self.beats, [beat(ts)])


@pytest.fixture
def make_log(kafka):
    logs = []

    def make(*args, **settings):
        logs.append(Log(kafka, *args, **settings))
        return logs[-1]

    yield make
    for log in logs:
        for changelog in log.opened:
            changelog.close()


def places(offsets):
    """The offsets without the ids of their topics."""
    return {name: offset for name, offset in offsets.items() if "/" in name}


def ids(changelog, start, end):
    return [
        json.loads(message.value)["after"]["id"]
        for split in changelog.splits(start, end)
        for message in changelog.read([split])
    ]


# --- splits --------------------------------------------------------------------------------------


def test_a_backlog_of_several_splits_is_read_whole_and_in_order(make_log):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    log.send(*(change(n, n) for n in range(23_000)))
    progress = changelog.advance(start, 100_000, 0)
    splits = changelog.splits(start, progress.offsets)
    assert [(split.start, split.end) for split in splits] == [
        (0, 10_000),
        (10_000, 20_000),
        (20_000, 23_000),
    ]
    assert ids(changelog, start, progress.offsets) == list(range(23_000))
    # From where an earlier batch ended, not from a multiple of the size of a split.
    middle = {f"{log.topic}/0": 9_999}
    assert ids(changelog, middle, progress.offsets) == list(range(9_999, 23_000))


# --- watermark -----------------------------------------------------------------------------------


def test_an_idle_partition_follows_the_heartbeat_only(make_log):
    log = make_log(2)
    changelog = log.open()
    start = changelog.begin()
    log.send(change(1, 500), partition=0)
    # Partition 1 never had anything, and no heartbeat came: nothing is known.
    progress = changelog.advance(start, 100, 0)
    assert places(progress.offsets) == {f"{log.topic}/0": 1, f"{log.topic}/1": 0}
    assert progress.watermark is None
    log.beat(700)
    assert changelog.advance(progress.offsets, 100, 0).watermark == 700
    time.sleep(0.3)
    assert changelog.advance(progress.offsets, 100, 0).watermark == 700


def test_a_lagging_partition_holds_the_watermark_back(make_log):
    log = make_log(2)
    changelog = log.open()
    start = changelog.begin()
    log.send(*(change(n, 100 + n) for n in range(1, 41)), partition=0)
    log.send(change(99, 900), partition=1)
    log.beat(1000)
    first = changelog.advance(start, 11, 0)
    assert places(first.offsets) == {f"{log.topic}/0": 10, f"{log.topic}/1": 1}
    assert (first.watermark, first.backlog) == (109, 30)
    second = changelog.advance(first.offsets, 29, 0)
    assert (second.watermark, second.backlog) == (138, 1)
    last = changelog.advance(second.offsets, 100, 0)
    assert (last.watermark, last.backlog) == (1000, 0)
    assert ids(changelog, start, last.offsets) == [*range(1, 41), 99]


def test_ends_are_asked_for_after_the_heartbeat(make_log, monkeypatch):
    """A heartbeat may be used only for ends that were observed after it was fetched."""
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    fetch = changelog._times.beats

    def fetch_then_a_change_comes(ends):
        found = fetch(ends)
        # The connector sent this one before the heartbeat; it is visible only now.
        log.send(change(1, 650))
        return found

    log.beat(700)
    monkeypatch.setattr(changelog._times, "beats", fetch_then_a_change_comes)
    progress = changelog.advance(start, 100, 0)
    assert progress.watermark == 700
    assert ids(changelog, start, progress.offsets) == [1]


def test_tombstones_before_the_end_do_not_hide_the_time(make_log):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    log.beat(5000)
    log.send(change(1, 200), *[(b'{"id":1}', None)] * 20, change(2, 4000))
    assert changelog.advance(start, 21, 0).watermark == 199


def test_the_heartbeat_that_was_there_before_the_start_counts(make_log):
    log = make_log()
    log.beat(700)
    changelog = log.open()
    assert changelog.advance(changelog.begin(), 100, 0).watermark == 700


def test_heartbeats_in_the_partitions_themselves(make_log):
    log = make_log(2, heartbeat_topic=None, format="unified")
    changelog = log.open(UnifiedFormat({}))
    changelog.check()
    start = changelog.begin()
    log.send('{"op":"heartbeat","ts":50}', partition=0)
    first = changelog.advance(start, 100, 0)
    assert first.watermark is None
    log.send('{"op":"heartbeat","ts":40}', partition=1)
    assert changelog.advance(first.offsets, 100, 0).watermark == 40


# --- offsets -------------------------------------------------------------------------------------


def test_what_was_read_for_its_size_is_not_read_again(make_log, kafka):
    """Seen where the messages are gone by then; another object has to read them, and cannot."""
    log = make_log()
    changelog, other = log.open(), log.open()
    start = changelog.begin()
    log.send(*(change(n, n) for n in range(300)))
    size = len(change(100, 100))
    end = changelog.advance(start, 250, 0, max_bytes=200 * size).offsets
    reached = places(end)[f"{log.topic}/0"]
    assert 150 < reached < 250
    assert ids(other, start, end) == list(range(reached))
    kafka.admin().delete_records([TopicPartition(log.topic, 0, 300)])[
        TopicPartition(log.topic, 0)
    ].result(30)
    parts = [Split(f"{log.topic}/0", low, low + 50, 50) for low in (0, 50, 100)]
    read = [json.loads(message.value)["after"]["id"] for message in changelog.read(parts)]
    assert read == list(range(150))
    assert ids(changelog, start, end) == list(range(reached))
    with pytest.raises(DataLostError):
        ids(other, start, end)
    with pytest.raises(DataLostError):  # it is kept until it is read
        ids(changelog, start, end)


def test_what_is_kept_answers_other_bounds_until_it_is_read_for_the_last_time(make_log, kafka):
    """Whole transactions are looked for in parts of one backlog: it is read once for that."""
    log = make_log()
    client = log.open()._client
    log.send(*(change(n, n) for n in range(30)))
    whole, size = Span(f"{log.topic}/0", 0, 30), len(change(10, 10))
    first = client.reach([whole], 10**6)[whole.partition]
    kafka.admin().delete_records([TopicPartition(log.topic, 0, 30)])[
        TopicPartition(log.topic, 0)
    ].result(30)
    assert client.reach([whole], 10**6)[whole.partition] == first
    assert 3 < client.reach([whole._replace(end=20)], 6 * size)[whole.partition].end < 8
    for _ in range(2):
        assert [message.offset for message in client.read([whole])] == [*range(30)]
    assert [message.offset for message in client.read([whole], last=True)] == [*range(30)]
    with pytest.raises(DataLostError):
        client.reach([whole], 10**6)


def test_what_was_read_is_forgotten_when_it_is_planned_anew(make_log, kafka):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    log.send(*(change(n, n) for n in range(20)))
    end = changelog.advance(start, 20, 0, max_bytes=100).offsets
    assert places(end)[f"{log.topic}/0"] < 20
    assert changelog.advance(end, 0, 0).offsets != end
    kafka.admin().delete_records([TopicPartition(log.topic, 0, 20)])[
        TopicPartition(log.topic, 0)
    ].result(30)
    with pytest.raises(DataLostError):
        ids(changelog, start, end)


def test_retention_loss_is_an_error_at_planning_and_at_reading(make_log, kafka):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    log.send(*(change(n, n) for n in range(10)))
    (split,) = changelog.splits(start, changelog.advance(start, 100, 0).offsets)
    kafka.admin().delete_records([TopicPartition(log.topic, 0, 5)])[
        TopicPartition(log.topic, 0)
    ].result(30)
    with pytest.raises(DataLostError, match="oldest that is left is 5") as caught:
        changelog.advance(start, 100, 0)
    assert caught.value.where == f"{log.topic}/0"
    assert "retention" in str(caught.value.hint)
    with pytest.raises(DataLostError, match="offset 0"):
        list(changelog.read([split]))


@pytest.mark.parametrize("left", [0, 3])
def test_retention_that_takes_what_was_read_while_its_time_is_asked_for(
    make_log, kafka, monkeypatch, left
):
    """Nothing is lost by it, so no run may end by it."""
    log = make_log(heartbeat_topic=None)
    changelog = log.open()
    log.send(*(change(n, n) for n in range(10)))
    start = changelog.begin()
    client = changelog._client
    beginnings = client.beginnings

    def then_taken(partitions):
        if told := beginnings(partitions):
            place = TopicPartition(log.topic, 0)
            up_to = TopicPartition(log.topic, 0, 10 - left)
            kafka.admin().delete_records([up_to])[place].result(30)
        return told

    monkeypatch.setattr(client, "beginnings", then_taken)
    progress = changelog.advance(start, 100, 0)
    assert progress.offsets == start
    assert progress.watermark == (8 if left else None)


@pytest.fixture
def soon_believed(monkeypatch):
    """What a broker says that has forgotten a topic is believed sooner."""
    monkeypatch.setattr(kafka_module, "_BELIEVE_S", 0.5)


def test_a_partition_that_is_gone(make_log, soon_believed):
    log = make_log()
    with pytest.raises(DataLostError, match="was deleted"):
        log.open().advance({f"{log.topic}/0": 0, f"{log.topic}/7": 0}, 100, 0)


def test_a_new_partition_is_read_from_its_beginning(make_log, kafka, monkeypatch):
    monkeypatch.setattr(kafka_module, "_LOOK_FOR_PARTITIONS_S", 0.0)
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    kafka.admin().create_partitions([NewPartitions(log.topic, 2)])[log.topic].result(30)
    assert wait_for(lambda: len(kafka.end_offsets(log.topic)) == 2, 30)
    log.send(change(7, 7), partition=1)
    progress = changelog.advance(start, 100, 0)
    assert places(progress.offsets) == {f"{log.topic}/0": 0, f"{log.topic}/1": 1}
    assert ids(changelog, start, progress.offsets) == [7]


def test_rolled_back_and_open_transactions(make_log, kafka):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": log.prefix, "log_level": 0}
    )
    producer.init_transactions(30)
    for number, commit in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin_transaction()
        producer.produce(log.topic, change(number, number))
        producer.flush(30)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    end = _settled(changelog, start, 8)
    patience = Patience(5)
    assert ids(changelog, start, end) == [1, 3]
    # The last offsets are control records, which never come: the reader must not wait for them.
    assert not patience.is_over()
    producer.begin_transaction()
    producer.produce(log.topic, change(5, 5))
    producer.flush(30)
    log.send(change(6, 6))
    assert changelog.advance(end, 100, 0).offsets == end
    producer.commit_transaction(30)
    assert ids(changelog, end, _settled(changelog, end, 11)) == [5, 6]


def _settled(changelog, start, offset):
    """The markers of a transaction are written a moment after the commit."""

    def end():
        return changelog.advance(start, 100, 0).offsets

    assert wait_for(lambda: list(places(end()).values()) == [offset], 30)
    return end()


def test_a_bounded_run_reads_up_to_where_it_began(make_log):
    log = make_log(2)
    changelog = log.open()
    start = changelog.begin()
    log.send(change(1, 10), change(2, 20))
    log.beat(100)
    changelog.finish()
    log.send(change(3, 30))
    log.beat(200)
    progress = changelog.advance(start, 100, 0)
    assert ids(changelog, start, progress.offsets) == [1, 2]
    assert (progress.watermark, progress.backlog) == (19, 0)


def test_one_reader_is_kept_and_reads_any_place(make_log, kafka, monkeypatch):
    """Forwards and back, some partitions or all, over reads that were given up half way."""
    made = []

    def noted(*args):
        made.append(KafkaClient._consumer(*args))
        return made[-1]

    log, chance = make_log(3), random.Random(daily())
    for partition in range(3):
        log.send(*(change(n, 1) for n in range(120)), partition=partition)
    reader = log.open()
    monkeypatch.setattr(reader._client, "_consumer", partial(noted, reader._client))

    def draw():
        splits = []
        for partition in chance.sample(range(3), chance.randrange(1, 4)):
            low = chance.randrange(119)
            high = chance.randrange(low + 1, 121)
            splits.append(Split(f"{log.topic}/{partition}", low, high, high - low))
        return splits

    def check(splits):
        taken = list(reader.read(splits))
        for split in splits:
            offsets = [m.offset for m in taken if m.partition == split.partition]
            assert offsets == list(range(split.start, split.end))

    for _ in range(40):
        check(draw())
    assert len(made) == 1
    given_up = reader.read(draw())
    next(given_up)
    check(draw())  # beside the other, so by another one
    given_up.close()
    assert len(made) == 2
    kafka.admin().create_partitions([NewPartitions(log.topic, 4)])[log.topic].result(30)
    new = f"{log.topic}/3"
    assert wait_for(lambda: len(kafka.end_offsets(log.topic)) == 4, 30)
    sender = Producer({"bootstrap.servers": kafka.bootstrap})
    sender.produce(log.topic, "x", partition=3)
    assert sender.flush(30) == 0
    assert [m.value for m in reader.read([Split(new, 0, 1, 1)])] == [b"x"]
    reader.close()
    assert reader._client._reader is None
    check(draw())  # it opens anew
    assert len(made) == 3


def test_messages_have_key_headers_and_place(make_log, kafka):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    producer.produce(log.topic, b"v", b"k", headers=[("__debezium.newkey", b"x")])
    producer.flush(30)
    (split,) = changelog.splits(start, changelog.advance(start, 10, 0).offsets)
    expected = Message(f"{log.topic}/0", 0, b"k", b"v", (("__debezium.newkey", b"x"),))
    assert list(changelog.read([split])) == [expected]


# --- waiting -------------------------------------------------------------------------------------


def test_few_changes_are_taken_as_they_come(make_log, monkeypatch):
    """Each once and in order, with rolled back ones left out, while nobody asks for ends."""
    log, chance = make_log(3), random.Random(daily())
    log.beat(1)
    changelog = log.open()
    start = changelog.begin()
    for partition in range(3):  # who sends each is known from then on
        log.send(change(partition, 1), partition=partition)
    at = changelog.advance(start, 100, 0).offsets
    asked = []
    offsets = KafkaClient._offsets

    def noted(client, partitions, *args):
        asked.extend(partitions)
        return offsets(client, partitions, *args)

    monkeypatch.setattr(KafkaClient, "_offsets", noted)
    monkeypatch.setattr("mview_connectors.changelogs.kafka.changelog._WATERMARK_S", 3600.0)
    producer = Producer(
        {
            "bootstrap.servers": log.broker.bootstrap,
            "transactional.id": log.prefix,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    number, expected, taken = 3, {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}
    for _ in range(25):
        producer.begin_transaction()
        keep = chance.random() < 0.7
        for _ in range(chance.randrange(1, 6)):
            partition = chance.randrange(3)
            value = change(number, number)
            producer.produce(log.topic, value, value, partition=partition)
            if keep:
                expected[partition].append(number)
            number += 1
        producer.flush(30)
        producer.commit_transaction(30) if keep else producer.abort_transaction(30)
        if chance.random() < 0.2:
            log.beat(number + 1)
        for _ in range(chance.randrange(4)):
            at = _take(changelog, at, taken, chance.choice([1, 20, 100]))
    patience = Patience(30)
    while taken != expected and not patience.is_over():
        at = _take(changelog, at, taken, 50)
    assert taken == expected
    assert not asked
    # Much is read from its place, and a heartbeat that is there already counts.
    monkeypatch.undo()
    log.beat(10_000)
    log.send(*(change(n, 20_000) for n in range(number, number + 6_000)))
    expected[0] += range(number, number + 6_000)
    while taken != expected and not patience.is_over():
        at = _take(changelog, at, taken, 50)
    assert taken == expected
    assert wait_for(lambda: changelog.advance(at, 100, 50).watermark == 10_000, 10)


def _take(changelog, at, taken, wait_ms):
    """The end of what comes within some time, which is added by partition."""
    end = changelog.advance(at, 10_000, wait_ms).offsets
    for message in changelog.read(changelog.splits(at, end)):
        number = int(message.partition.rpartition("/")[2])
        taken[number].append(json.loads(message.value)["after"]["id"])
    return end


@pytest.mark.parametrize("streamed", [0, 1])
def test_a_watermark_is_not_told_with_less_than_it_was_worked_out_for(
    make_log, monkeypatch, streamed
):
    """Who plans, does not take it, and plans again may find that the stream has not got so far."""
    log = make_log()
    log.beat(1)
    changelog = log.open()
    log.send(change(0, 1))
    at = changelog.advance(changelog.begin(), 100, 0).offsets
    log.send(change(1, 50), change(2, 60))
    log.beat(100)
    planned = changelog.advance(at, 100, 0)
    assert (planned.watermark, ids(changelog, at, planned.offsets)) == (100, [1, 2])
    monkeypatch.setattr(kafka_module, "_WATERMARK_S", 3600.0)
    wait, place = changelog._client.wait, f"{log.topic}/0"
    few = [m for s in changelog.splits(at, planned.offsets) for m in changelog.read([s])][:streamed]

    def behind(*args):
        wait(*args)
        return {place: few}

    monkeypatch.setattr(changelog._client, "wait", behind)
    again = changelog.advance(at, 100, 50)
    assert (again.watermark, ids(changelog, at, again.offsets)) == (100, [1, 2])


@pytest.mark.parametrize("what", ["bytes", "an error"])
def test_what_a_stream_is_not_good_for_is_read_from_its_place(make_log, monkeypatch, what):
    log = make_log()
    log.beat(1)
    changelog = log.open()
    start = changelog.begin()
    log.send(change(0, 1))
    at = changelog.advance(start, 100, 0).offsets
    monkeypatch.setattr("mview_connectors.changelogs.kafka.changelog._WATERMARK_S", 3600.0)
    changelog.advance(at, 100, 50)
    log.send(change(1, 2), change(2, 3))
    patience = Patience(20)
    if what == "bytes":  # a batch of less than a message has one all the same
        end = at
        while end == at and not patience.is_over():
            end = changelog.advance(at, 100, 200, 10).offsets
        assert ids(changelog, at, end) == [1]
    else:
        # As if the place had gone.
        stream = changelog._client._stream
        stream._consumer.assign([TopicPartition(log.topic, 0, 1_000)])
        end = at
        while end == at and not patience.is_over():
            end = changelog.advance(at, 100, 200).offsets
        assert ids(changelog, at, end) == [1, 2]


def test_waiting_costs_next_to_nothing_and_wakes(make_log):
    cpu = time.process_time()
    time.sleep(1)
    others = time.process_time() - cpu  # clients that tests before this one have left
    log = make_log(4)
    log.beat(1)
    changelog = log.open()
    at = changelog.advance(changelog.begin(), 100, 0).offsets
    changelog.advance(at, 100, 200)
    cpu, began = time.process_time(), time.monotonic()
    for _ in range(3):
        assert changelog.advance(at, 100, WAIT_MS).offsets == at  # as a run waits
    spent, waited = time.process_time() - cpu, time.monotonic() - began
    assert waited > 2.5
    assert spent / waited - others < 0.03
    log.send(change(1, 1), partition=3)
    patience = Patience(5)
    assert changelog.advance(at, 100, 20_000).offsets != at
    assert not patience.is_over()
    log.beat(2)
    at = changelog.advance(at, 100, 0).offsets
    assert changelog.advance(at, 100, 200).watermark == 2


# --- check and errors ----------------------------------------------------------------------------


def test_check_names_what_is_missing(make_log):
    log = make_log()
    with pytest.raises(ConfigError, match="never had a message") as caught:
        log.open().check()
    assert "heartbeat.interval.ms" in str(caught.value.hint)
    log.beat(1)
    log.open().check()
    with pytest.raises(ConfigError) as caught:
        log.open(tables=("orders", "ordrs")).check()
    assert f"did you mean '{log.topic}'" in str(caught.value)
    no_topic = make_log(heartbeat_topic="nothing-like-it")
    with pytest.raises(ConfigError, match="heartbeat topic 'nothing-like-it' does not exist"):
        no_topic.open().check()
    none = make_log(heartbeat_topic=None)
    with pytest.raises(ConfigError, match="no heartbeat topic is configured") as caught:
        none.open().check()
    assert "T covers" in str(caught.value)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_refused(make_log, kafka, policy):
    """A delete that is compacted away leaves a gap, as the end of a transaction does."""
    log = make_log()
    log.beat(1)
    log.open(tables=("orders",)).check()
    topic = kafka.create_topic(f"{log.prefix}.shop.squeezed", **{"cleanup.policy": policy})
    with pytest.raises(ConfigError, match="the topic is compacted") as caught:
        log.open(tables=("orders", "squeezed")).check()
    text = str(caught.value.render())
    assert f"cleanup.policy={policy}" in text
    assert f"kafka-configs --alter --topic {topic} --add-config cleanup.policy=delete" in text


def test_a_broker_that_is_away(make_log, monkeypatch):
    monkeypatch.setattr("mview_connectors.changelogs.kafka.client._PATIENCE", 0.5)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    settings = ChangesSettings(
        connection="c", source="kafka", format="unified", bootstrap_servers=address, topic="{table}"
    )
    changelog = KafkaChangelog(settings, UnifiedFormat({}), ["t"])
    with pytest.raises(RetryableError) as caught:
        changelog.check()
    assert address in str(caught.value)
    changelog.close()


def test_who_may_not_read_is_told_so_at_once(make_log, kafka, monkeypatch):
    monkeypatch.setattr("mview_connectors.changelogs.kafka.client._PATIENCE", 4)
    log = make_log(**kafka.of_a_reader())
    log.beat(1)
    changelog = log.open()
    changelog.check()
    start = changelog.begin()
    log.send(change(1, 1))
    with kafka.denied(log.topic):
        with pytest.raises(ConfigError, match="does not let us in") as caught:
            ids(changelog, start, changelog.advance(start, 10, 0).offsets)
        assert "authorization failed" in str(caught.value.got)
        assert "READ" in str(caught.value.hint)
    assert ids(changelog, start, changelog.advance(start, 10, 0).offsets) == [1]
    monkeypatch.setenv("WRONG_PASSWORD", "not-this-one")
    options = log.settings.options | {"sasl.password": "${env:WRONG_PASSWORD}"}
    log.settings = log.settings.model_copy(update={"options": options})
    with pytest.raises(ConfigError, match="does not let us in") as caught:
        log.open().check()
    assert "uthentication" in str(caught.value.got)
    assert "not-this-one" not in str(caught.value)


def test_secrets_are_not_in_errors(make_log, monkeypatch):
    monkeypatch.setenv("KAFKA_SECRET", "hunter2")
    for options in (
        {"security.protocol": "${env:KAFKA_SECRET}"},
        {"no.such": "${env:KAFKA_SECRET}"},
    ):
        log = make_log(options=options)
        changelog = log.open()
        assert "hunter2" not in repr(changelog.__dict__) + repr(log.settings)
        with pytest.raises(ConfigError) as caught:
            changelog.check()
        assert "hunter2" not in str(caught.value)
        assert next(iter(options)) in str(caught.value)


def test_format_options_stay_out_of_the_client(make_log):
    log = make_log(options={"format.decimal.handling.mode": "string", "client.id": "me"})
    assert places(log.open().begin()) == {f"{log.topic}/0": 0}


def test_the_oldest_offset_is_known_to_the_broker(kafka, make_log):
    # Guards the assumption that an emptied partition keeps its end.
    log = make_log()
    log.send(change(1, 1))
    place = TopicPartition(log.topic, 0)
    kafka.admin().delete_records([TopicPartition(log.topic, 0, 1)])[place].result(30)
    changelog = log.open()
    start = changelog.begin()
    assert places(start) == {f"{log.topic}/0": 1}
    assert changelog.advance(start, 10, 0).offsets == start
    found = kafka.admin().list_offsets({place: OffsetSpec.earliest()})[place].result(30)
    assert found.offset == 1


# --- alignment -----------------------------------------------------------------------------------


def test_partitions_are_read_side_by_side(make_log):
    """After an outage: 100 changes an hour in one, 10 in the other; half an hour may differ."""
    log = make_log(2)
    changelog = log.open()
    at = changelog.begin()
    hour = 3_600_000
    times = [[n * hour // 100 for n in range(400)], [n * hour // 10 for n in range(40)]]
    for partition, stamps in enumerate(times):
        log.send(*(change(n, ts) for n, ts in enumerate(stamps)), partition=partition)
    log.beat(5 * hour)
    read, epochs = [0, 0], 0
    while read != [400, 40]:
        progress = changelog.advance(at, 60, 0, align=Align(hour // 2))
        assert places(progress.offsets) != places(at)
        at, epochs = progress.offsets, epochs + 1
        read = [at[f"{log.topic}/{partition}"] for partition in (0, 1)]
        left = [times[p][n] for p, n in enumerate(read) if n < len(times[p])]
        newest = max(times[p][n - 1] for p, n in enumerate(read) if n)
        assert newest - min(left, default=newest) <= hour / 2 + 1
        assert progress.watermark is None or progress.watermark <= min(left, default=5 * hour)
    assert epochs < 30
    # As another connection may ask, which is slow.
    start = log.open().begin()
    assert start == at
    log.send(*(change(n, 10 * hour + n) for n in range(9)), partition=1)
    until = Align(hour, SourceMs(10 * hour + 3))
    for one in (changelog, log.open()):
        held = one.advance(start, 60, 0, align=until).offsets
        assert held[f"{log.topic}/1"] == 45  # a change vouches for the millisecond before it
    assert changelog.advance(start, 60, 0).offsets[f"{log.topic}/1"] == 49


# --- faults --------------------------------------------------------------------------------------


def test_a_topic_that_was_made_anew_is_noticed_past_the_old_offset(make_log, kafka, soon_believed):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    log.send(*(change(n, 100) for n in range(3)))
    at = changelog.advance(start, 100, 0).offsets
    assert at[f"{log.topic}/0"] == 3
    kafka.delete_topic(log.topic)
    for one in (changelog, log.open()):
        with pytest.raises(DataLostError, match=r"was deleted|not exist"):
            assert wait_for(lambda one=one: one.advance(at, 100, 0).offsets != at, 60)
    kafka.create_topic(log.topic)
    log.send(*(change(n, 100) for n in range(9)))
    for one in (changelog, log.open()):
        with pytest.raises(DataLostError, match="deleted and made anew") as caught:
            one.advance(at, 100, 0)
        assert "mview drop" in caught.value.hint


def test_a_topic_that_is_made_anew_under_a_stream_is_noticed(make_log, kafka, monkeypatch):
    """The consumer that waits may be sent what the new one has at the old offsets."""
    log = make_log()
    log.beat(1)
    changelog = log.open()
    start = changelog.begin()
    log.send(*(change(n, 1) for n in range(3)))
    at = changelog.advance(start, 100, 0).offsets
    monkeypatch.setattr(kafka_module, "_WATERMARK_S", 3600.0)
    assert changelog.advance(at, 100, 100).offsets == at
    kafka.delete_topic(log.topic)
    kafka.create_topic(log.topic)
    log.send(*(change(n, 1) for n in range(9)))
    with pytest.raises(DataLostError, match="deleted and made anew"):
        wait_for(lambda: changelog.advance(at, 100, 100).offsets != at, 60)


def test_fewer_messages_than_were_read_are_waited_for(make_log):
    """A broker that was killed may tell of less than it has, until it has found all again."""
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    with pytest.raises(AwayError, match="not found it again yet"):
        changelog.advance({**start, f"{log.topic}/0": 7}, 100, 0)


def test_an_offset_that_a_broker_does_not_know_yet_is_asked_for_again(make_log, monkeypatch):
    log = make_log()
    log.send(change(1, 100))
    changelog = log.open()
    changelog.begin()
    admin = changelog._client._connected()
    answers = [-1001, -1001]
    real = admin.list_offsets

    def list_offsets(*args, **kwargs):
        futures = real(*args, **kwargs)
        if answers:
            unknown = SimpleNamespace(offset=answers.pop())
            return {p: SimpleNamespace(result=lambda patience: unknown) for p in futures}
        return futures

    monkeypatch.setattr(
        changelog._client, "_connected", lambda: SimpleNamespace(list_offsets=list_offsets)
    )
    assert changelog._client.ends([f"{log.topic}/0"]) == {f"{log.topic}/0": 1}
    assert answers == []


def without_leaders(client, monkeypatch, times):
    """The next so many questions for offsets find no leader of any partition."""
    admin, left = client._connected(), [None] * times

    class Leaderless(SimpleNamespace):
        describe_topics = admin.describe_topics

        def list_offsets(self, asked, **kwargs):
            if not left:
                return admin.list_offsets(asked, **kwargs)
            left.pop()
            missing = KafkaException(KafkaError(KafkaError._NOENT, "No leaders found"))
            failed = Future()
            failed.set_exception(missing)
            return dict.fromkeys(asked, failed)

    monkeypatch.setattr(client, "_connected", Leaderless)
    return left


def test_partitions_without_a_leader_are_asked_about_again(make_log, monkeypatch):
    """The client tells the whole call so, where it tells it of single ones by other words."""
    log = make_log()
    log.send(change(1, 100))
    client = log.open()._client
    left = without_leaders(client, monkeypatch, 2)
    assert client.ends([f"{log.topic}/0"]) == {f"{log.topic}/0": 1}
    assert left == []


def test_partitions_that_get_no_leader_are_away_and_those_of_no_topic_gone(make_log, monkeypatch):
    monkeypatch.setattr("mview_connectors.changelogs.kafka.client._PATIENCE", 0.5)
    log = make_log()
    client = log.open()._client
    without_leaders(client, monkeypatch, 1000)
    with pytest.raises(AwayError, match="no broker that leads") as caught:
        client.ends([f"{log.topic}/0"])
    assert caught.value.got == "No leaders found"
    with pytest.raises(DataLostError, match="does not exist any more"):
        client.ends(["no-such-topic/0"])


def beat_of(name, ts):
    return json.dumps({"serverName": name}), beat(ts)


@pytest.mark.parametrize("key", [beat_of("warehouse", 5), beat(5)])
def test_heartbeats_of_another_connector_are_refused_before_a_run_begins(make_log, key):
    log = make_log()
    log.send(change(1, 3, name="shop"), None)
    log.broker.produce(log.beats, [key])
    with pytest.raises(ConfigError, match="not of the connector that sends the changes") as caught:
        log.open().check()
    assert caught.value.where == "changes.shop.heartbeat_topic"
    assert "changes of shop" in str(caught.value)
    assert "__debezium-heartbeat.shop" in str(caught.value.hint)


def test_heartbeats_of_another_connector_are_refused_when_the_first_change_comes(make_log):
    log = make_log()
    log.broker.produce(log.beats, [beat_of("warehouse", 5)])
    changelog = log.open()
    changelog.check()
    start = changelog.advance(changelog.begin(), 10, 0).offsets
    log.send(None, change(1, 7, name="shop"))
    with pytest.raises(ConfigError, match="not of the connector that sends the changes"):
        changelog.advance(start, 10, 0)


def test_heartbeats_of_the_same_connector_are_taken_and_who_sends_is_asked_once(make_log):
    log = make_log()
    log.send(change(1, 3, name="shop"))
    log.broker.produce(log.beats, [beat_of("shop", 5)])
    changelog = log.open()
    changelog.check()
    start = changelog.begin()
    assert changelog.advance(start, 10, 0).watermark == 5
    asked = []
    changelog._times.senders = lambda ends: asked.append(ends) or {}
    log.send(change(2, 7, name="shop"))
    changelog.advance(start, 10, 0)
    assert not asked
    # Another connector takes the topic over.
    log.broker.produce(log.beats, [beat_of("warehouse", 8)])
    with pytest.raises(ConfigError, match="heartbeats of warehouse"):
        changelog.advance(start, 10, 0)


@pytest.mark.parametrize("value", [beat(1_700_000_000_000_000), beat(2**64 - 1), "{}", beat("x")])
def test_a_heartbeat_that_is_none_halts_with_its_place(make_log, value):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    log.beat(5)
    log.broker.produce(log.beats, [value])
    with pytest.raises(DecodeError) as caught:
        changelog.advance(start, 100, 0)
    assert caught.value.where == f"{log.beats}/0, offset 1"
    # It brings no table.
    assert "drop" not in str(caught.value.hint)
    assert "once the next heartbeat has come" in str(caught.value.hint)
    # A right one after it is as good as ever.
    log.beat(7)
    assert changelog.advance(start, 100, 0).watermark == 7


def test_a_heartbeat_topic_that_is_deleted_loses_nothing(make_log, kafka, monkeypatch):
    monkeypatch.setattr("mview_connectors.changelogs.kafka.client._PATIENCE", 1)
    log = make_log()
    log.beat(1)
    log.beat(2)
    changelog = log.open()
    start = changelog.begin()
    assert changelog.advance(start, 10, 0).watermark == 2
    kafka.delete_topic(log.beats)
    # Who starts again after it asks for the first time.
    for one in (changelog, log.open()):
        with pytest.raises(AwayError, match="does not exist any more") as caught:
            one.advance(start, 10, 0)
        assert caught.value.where == "changes.shop.heartbeat_topic"
        assert "nothing is lost" in str(caught.value.safe)
        assert "drop" not in str(caught.value)
    kafka.create_topic(log.beats)
    log.beat(3)
    log.send(change(1, 1))
    for one in (changelog, log.open()):
        ahead = one.advance(start, 10, 0)
        assert ahead.watermark == 3
        assert ids(one, start, ahead.offsets) == [1]


def test_a_heartbeat_of_a_time_to_come_is_no_watermark(make_log):
    log = make_log()
    changelog = log.open()
    start = changelog.begin()
    now = time.time_ns() // 1_000_000
    log.beat(now + 60_000)
    assert changelog.advance(start, 100, 0).watermark == now + 60_000
    log.beat(now + 3_600_000)
    with pytest.raises(DecodeError, match="a time to come") as caught:
        changelog.advance(start, 100, 0)
    assert "drop" not in str(caught.value.hint)
