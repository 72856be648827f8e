"""Transactions over several topics stay whole, by Debezium's transaction topic; without a broker.

The model: a connector sends each transaction's changes in order, then its END; what it has sent to
a topic is seen there some time later, in each topic by itself.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import pytest
from mview_connectors.changelogs.kafka import changelog, transactions
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.changelogs.kafka.client import Topic
from mview_connectors.changelogs.kafka.transactions import Part, whole_cut
from mview_connectors.formats.debezium import DebeziumFormat
from mview_connectors.formats.debezium.transactions import transaction_end

from mview.config import ChangesSettings
from mview.connector import NO_LIMIT, Align, Message
from mview.errors import ConfigError, DecodeError
from tests.connectors.kafka_doubles import KeepsNothing
from tests.seeds import seeds

TABLES = ("a", "b", "c")
ENDS = "x.transaction"


class Clock:
    """Seconds of the machine."""

    now = 0.0

    @classmethod
    def monotonic(cls):
        return cls.now

    @classmethod
    def sleep(cls, seconds):
        cls.now += seconds


class Broker(KeepsNothing):
    """Topics of one partition; of each, how much is seen."""

    def __init__(self, seed=0):
        self.random, self.transactions = random.Random(seed), []
        topics = [f"x.public.{table}" for table in TABLES]
        self.log = {name: [] for name in (*topics, "x.public.other", ENDS, "x.beat")}
        self.seen = dict.fromkeys(self.log, 0)
        self.beat()

    # --- what the connector sends -------------------------------------------------------------

    def send(self, topic, body, key=b"{}"):
        value = None if body is None else json.dumps(body).encode()
        self.log[topic].append(Message(f"{topic}/0", len(self.log[topic]), key, value))

    def beat(self):
        key = b'{"serverName": "x"}'
        self.send("x.beat", {"ts_ms": 1_000 + 10 * len(self.transactions)}, key)
        self.show("x.beat")

    def transact(self, *tables, tombstones=False):
        number = len(self.transactions)
        self.transactions.append([table for table in tables if table in TABLES])
        self.mark("BEGIN", f"{number}:1")
        for order, table in enumerate(tables):
            source = {
                "connector": "postgresql", "schema": "public", "table": table, "name": "x",
                "ts_ms": 1_000 + 10 * number, "sequence": f'["{number}","{order}"]',
            }  # fmt: skip
            self.send(
                f"x.public.{table}",
                {
                    "op": "c",
                    "before": None,
                    "after": {"id": number},
                    "source": source,
                    "transaction": {"id": f"{number}:{100 + order}", "total_order": order + 1},
                },
            )
            if tombstones:
                self.send(f"x.public.{table}", None)
        self.mark("END", f"{number}:999", Counter(tables))

    def mark(self, status, name, counts=None):
        parts = [
            {"data_collection": f"public.{table}", "event_count": n}
            for table, n in (counts or {}).items()
        ]
        body = {"status": status, "id": name, "event_count": sum((counts or {}).values())}
        self.send(ENDS, {**body, "data_collections": parts or None, "ts_ms": 5})

    def show(self, *topics):
        for topic in topics or self.log:
            self.seen[topic] = len(self.log[topic])

    # --- what a client asks -------------------------------------------------------------------

    def describe(self, topics):
        return {topic: Topic(topic, [f"{topic}/0"]) for topic in topics if topic in self.log}

    def topics(self):
        return list(self.log)

    def ends(self, partitions, committed=True):
        return {partition: self.seen[partition[:-2]] for partition in partitions}

    def beginnings(self, partitions):
        return dict.fromkeys(partitions, 0)

    def read(self, spans, *, last=False):
        for span in spans:
            yield from self.log[span.partition[:-2]][span.start : span.end]

    def wait(self, places, seconds):
        pass

    def stop_waiting(self):
        pass

    def close(self):
        pass

    def open(self):
        settings = ChangesSettings(
            connection="shop", source="kafka", format="debezium", bootstrap_servers="x:1",
            topic="x.public.{table}", heartbeat_topic="x.beat", transaction_topic=ENDS, T="10 s",
        )  # fmt: skip
        log = KafkaChangelog(settings, DebeziumFormat({}), TABLES)
        log._client = log._times._client = log._transactions._client = self
        return log


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch):
    Clock.now = 0.0
    # Only these modules: threads that other tests have left would let time pass here.
    for module in (changelog, transactions):
        monkeypatch.setattr(module, "time", Clock)


def read(log, start, end):
    """The transactions of what lies between two offsets, each as often as it has changes there."""
    messages = [message for split in log.splits(start, end) for message in log.read([split])]
    assert not any(message.partition.startswith(ENDS) for message in messages)
    return [json.loads(m.value)["after"]["id"] for m in messages if m.value is not None]


@pytest.mark.parametrize("seed", seeds(8))
def test_no_batch_has_a_part_of_one(seed):
    broker, chance = Broker(seed), random.Random(seed)
    log = broker.open()
    at, seen = log.begin(), Counter()
    for step in range(120):
        Clock.now += 0.01
        if step < 90:
            for _ in range(chance.choice([0, 1, 3])):
                tables = chance.choices([*TABLES, "other"], k=chance.choice([1, 2, 2, 5, 30]))
                broker.transact(*tables, tombstones=chance.random() < 0.3)
            broker.beat()
        for topic in broker.log:
            behind = len(broker.log[topic]) - broker.seen[topic]
            broker.seen[topic] += min(behind, chance.choice([0, 0, 1, behind // 2, behind]))
        align = Align(NO_LIMIT, None, chance.choice([200, NO_LIMIT]), NO_LIMIT)
        size = chance.choice([500, NO_LIMIT])
        progress = log.advance(at, chance.choice([1, 4, 50]), 0, size, align)
        seen.update(read(log, at, progress.offsets))
        at = json.loads(json.dumps(progress.offsets))
        assert progress.whole
        for number, count in seen.items():
            assert count == len(broker.transactions[number]), (number, seen)
        if chance.random() < 0.15:
            log = broker.open()
    broker.show()
    log.finish()
    while (end := log.advance(at, 1000, 0).offsets) != at:
        seen.update(read(log, at, end))
        at = end
    wanted = {n: len(tables) for n, tables in enumerate(broker.transactions) if tables}
    assert seen == wanted


def test_one_topic_lags_and_all_wait_for_it():
    broker = Broker()
    log = broker.open()
    start = log.begin()
    broker.transact("a", "b")
    broker.transact("c")
    broker.transact("b", "c")
    broker.show("x.public.a", "x.public.c", ENDS)
    progress = log.advance(start, 100, 0)
    assert read(log, start, progress.offsets) == [1]
    assert progress.backlog == 2
    broker.show()
    end = log.advance(progress.offsets, 100, 0).offsets
    assert sorted(read(log, progress.offsets, end)) == [0, 0, 2, 2]


def test_after_an_outage_nothing_is_cut_however_long_it_takes():
    """All ends are read at once, and T passes before their changes are taken."""
    broker = Broker()
    log = broker.open()
    at = log.begin()
    for _ in range(12):
        broker.transact("a", "b", "b", "c")
    broker.transact("a")
    broker.show()
    seen = Counter()
    while (progress := log.advance(at, 3, 0)).offsets != at:
        seen.update(read(log, at, progress.offsets))
        assert set(seen.values()) <= {4, 1}, seen
        assert progress.whole
        at = progress.offsets
        Clock.now += 7
    assert sum(seen.values()) == 49


def test_one_that_has_not_ended_waits():
    broker = Broker()
    log = broker.open()
    start = log.begin()
    broker.transact("a", "b")
    broker.show("x.public.a", "x.public.b")
    broker.seen[ENDS] = 1  # its BEGIN
    assert read(log, start, log.advance(start, 100, 0).offsets) == []
    Clock.now += 3_600
    assert read(log, start, log.advance(start, 100, 0).offsets) == []
    broker.show()
    assert read(log, start, log.advance(start, 100, 0).offsets) == [0, 0]


def test_what_stands_before_the_begin_is_waited_for_no_longer_than_T():
    """The load begins inside of a transaction: some of its changes are in the chunks."""
    broker = Broker()
    broker.transact("a", "b")
    broker.show("x.public.a")
    log = broker.open()
    start = log.begin()
    broker.show()
    broker.transact("c")
    broker.show()
    progress = log.advance(start, 100, 0)
    assert read(log, start, progress.offsets) == [1]
    Clock.now += 9
    assert log.advance(progress.offsets, 100, 0).offsets == progress.offsets
    Clock.now += 2
    end = log.advance(progress.offsets, 100, 0).offsets
    assert read(log, progress.offsets, end) == [0]


def test_one_whose_end_stands_before_the_begin_waits_for_a_later_one():
    broker = Broker()
    broker.transact("a", "b")
    broker.show(ENDS)
    log = broker.open()
    start = log.begin()
    broker.show()
    assert log.advance(start, 100, 0).offsets == start
    broker.transact("a", "b")
    broker.show()
    assert sorted(read(log, start, log.advance(start, 100, 0).offsets)) == [0, 0, 1, 1]


def test_a_bounded_run_waits_for_what_may_still_come():
    broker = Broker()
    broker.transact("a", "b")
    broker.show("x.public.a")
    log = broker.open()
    start = log.begin()
    broker.show()
    log.finish()
    assert read(log, start, log.advance(start, 100, 0).offsets) == [0]


def test_what_has_no_room_comes_in_parts_and_says_so():
    broker = Broker()
    log = broker.open()
    at = log.begin()
    broker.transact(*["a", "b"] * 20)
    broker.transact("c")
    broker.show()
    broker.transact("a")
    broker.show()
    sizes, whole = [], []
    for _ in range(8):
        progress = log.advance(at, 8, 0, align=Align(NO_LIMIT, None, 16, NO_LIMIT))
        sizes.append(len(read(log, at, progress.offsets)))
        whole.append(progress.whole)
        at = json.loads(json.dumps(progress.offsets))
        log = broker.open()
    assert sum(sizes) == 42
    assert max(sizes) <= 16
    assert whole.count(False) >= 2
    assert whole[-1]
    assert not any("part" in name for name in at)


def test_one_that_is_held_back_by_time_stays_whole():
    broker = Broker()
    log = broker.open()
    start = log.begin()
    broker.transact("a")
    broker.transact("a", "b")
    broker.show()
    held = log.advance(start, 100, 0, align=Align(0, 1_005))
    assert read(log, start, held.offsets) == [0]
    assert held.whole
    assert log.advance(held.offsets, 1, 0, align=Align(0, 1_005)).offsets == held.offsets


def test_a_truncate_of_mariadb_waits_for_no_end():
    """It has a BEGIN, and its END comes with the next transaction: perhaps never."""
    broker = Broker()
    log = broker.open()
    start = log.begin()
    source = {"connector": "mariadb", "db": "shop", "table": "a", "name": "x", "ts_ms": 2_000}
    source |= {"file": "mariadb-bin.000001", "pos": 7, "row": 0, "snapshot": "false"}
    gtid = {"id": "0-1-210", "total_order": 1, "data_collection_order": 1}
    broker.mark("BEGIN", "0-1-210")
    broker.send("x.public.a", {"op": "t", "source": source, "transaction": gtid}, None)
    broker.show()
    progress = log.advance(start, 100, 0)
    assert progress.backlog == 0
    assert progress.whole


def test_what_is_no_topic_of_ends_is_refused():
    broker = Broker()
    log = broker.open()
    log.check()
    del broker.log[ENDS]
    with pytest.raises(ConfigError, match="does not exist"):
        log.check()
    with pytest.raises(DecodeError, match="no marker of a transaction"):
        transaction_end(Message("p/0", 1, None, b'{"op": "c"}'))
    assert transaction_end(Message("p/0", 1, None, None)) is None


@pytest.mark.parametrize("seed", seeds(60))
def test_the_cut_is_the_latest_whole_one(seed):
    """Held against all cuts that there are."""
    chance = random.Random(seed)
    sizes = {name: chance.randrange(5) for name in "pqr"}
    names = [chance.choice("12345") for _ in range(sum(sizes.values()))]
    parts, left = {}, sorted(names)
    for partition, size in sizes.items():
        mine = sorted(chance.sample(range(len(left)), size))
        parts[partition] = [Part(n, left[at]) for n, at in enumerate(mine)]
        left = [name for at, name in enumerate(left) if at not in mine]
    counts = {name: n + chance.choice([0, 0, 0, 1]) for name, n in Counter(names).items()}
    changes = {name: n for name, n in counts.items() if chance.random() < 0.8}
    before = {name: 1 for name in counts if chance.random() < 0.2}
    ends = {name: chance.randrange(size + 1) for name, size in sizes.items()}

    def is_whole(cut):
        taken = Counter(p.transaction for name in cut for p in parts[name][: cut[name]])
        taken.update({name: before.get(name, 0) for name in taken})
        return all(0 <= changes.get(n, -1) <= count for n, count in taken.items())

    cuts = [
        dict(zip("pqr", cut, strict=True))
        for cut in itertools.product(*(range(ends[name] + 1) for name in "pqr"))
    ]
    latest = {name: max(cut[name] for cut in cuts if is_whole(cut)) for name in "pqr"}
    assert whole_cut(parts, ends, changes, before) == latest
