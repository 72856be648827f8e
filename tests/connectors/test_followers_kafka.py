"""Kafka as a sink: the contract, with a real broker and a plain consumer that reads it back."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, NewPartitions, ResourceType
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.changelogs.kafka.client import KafkaClient
from mview_connectors.followers.kafka.follower import KafkaFollower, KafkaSettings, _Section
from mview_connectors.formats.debezium import DebeziumFormat
from mview_connectors.formats.unified import UnifiedFormat

from mview.changelog import ChangeEvent
from mview.config import ChangesSettings
from mview.connector import Format
from mview.errors import ConfigError, RetryableError, TargetError, UserError
from mview.failpoints import FaultError
from mview.follower import Follower, FollowerSettings, FollowerTarget, Step
from mview.schema import Column
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import VALUES, World, delta_of, normal, raised, schema_of
from mview.testing.view import Row, rows_of
from tests.patience import Patience, wait_for
from tests.seeds import is_of_today
from tests.services.kafka import KafkaServer

pytestmark = [pytest.mark.service, pytest.mark.days(3)]
_numbers = itertools.count()


class KafkaHarness(FollowerHarness):
    megabytes = False  # of brokers as they come

    def __init__(self, broker: KafkaServer, **settings: Any) -> None:
        self.broker, self.more = broker, settings
        self.prefix = f"sink{next(_numbers)}."

    def settings(self, **options: Any) -> FollowerSettings:
        options = {**self.more, **options}
        if "table" in options:  # what a topic cannot be called is not what the contract is about
            options["table"] = self.prefix + re.sub(
                r"[^A-Za-z0-9._-]", lambda found: f"_{ord(found[0]):x}", options["table"]
            )
        return KafkaSettings(
            **{"type": "kafka", "bootstrap_servers": self.broker.bootstrap, **options}
        )

    def open(self, target: FollowerTarget) -> Follower:
        return KafkaFollower(target)

    def read(self, target: FollowerTarget) -> list[Row] | None:
        found = committed(self.broker, target.table)
        if found is None:
            return None
        schema = target.schema
        kinds = [str(column.type) for column in schema.columns]
        if target.settings.mode == "changelog":
            content = changed(found, schema.key)
        else:
            content = {}
            for key, value in found:
                content.pop(key, None)
                if value is not None:
                    content[key] = json.loads(value, parse_float=Decimal)
            for key, row in content.items():
                assert json.loads(key) == json.loads(
                    json.dumps(key_of(row, schema.key), default=float)
                )
        return [
            tuple(value_of(row[name], kind) for name, kind in zip(schema.names, kinds, strict=True))
            for row in content.values()
        ]

    def foreign(self, target: FollowerTarget) -> bool:
        self.broker.create_topic(target.table)
        row = {"k": 1, "g": "", "amount": "1", "at": None}
        if target.settings.mode == "changelog":
            row = {"table": "v", "op": "insert", "after": row, "position": [1, 1]}
        self.broker.produce(target.table, [(b'{"k":1}', json.dumps(row))])
        return True

    def drop(self, target: FollowerTarget) -> bool:
        self.broker.delete_topic(target.table)
        return True


def committed(broker: KafkaServer, topic: str) -> list[tuple[bytes, bytes | None]] | None:
    """What a plain consumer has that reads what is committed; None: there is no topic.

    A commit is answered before readers see it: up to the last offset of all, what is open included.
    """
    ends = broker.end_offsets(topic)
    if not ends:
        return None
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "reader",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(config)
    found: list[tuple[bytes, bytes | None]] = []
    try:
        for partition, end in ends.items():
            consumer.assign([TopicPartition(topic, partition, 0)])
            patience = Patience(20)
            while not patience.is_over():
                message = consumer.poll(20)
                assert message is not None, f"{topic}/{partition} does not answer"
                error = message.error()
                if error is None:
                    found.append((message.key(), message.value()))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    if message.offset() >= end:
                        break
            else:
                raise AssertionError(f"a transaction on {topic}/{partition} stays open")
    finally:
        consumer.close()
    return found


def key_of(row: dict[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in key}


def changed(found: list[tuple[bytes, bytes | None]], key: tuple[str, ...]) -> dict[str, Any]:
    """What changes come to: those of a key are in order, over keys there is no order."""
    by_key: dict[bytes, list[tuple[bytes, bytes | None]]] = {}
    for message in found:
        by_key.setdefault(message[0], []).append(message)
    content: dict[str, Any] = {}
    for messages in by_key.values():
        content |= changed_in_order(messages, key)
    return content


def changed_in_order(
    found: list[tuple[bytes, bytes | None]], key: tuple[str, ...]
) -> dict[str, Any]:
    """The same of one key; each old row must be what was there."""
    content: dict[str, Any] = {}
    last: tuple[int, ...] = (0, 0)
    for _, value in found:
        assert value is not None
        body = json.loads(value, parse_float=Decimal)
        if body["op"] == "heartbeat":
            continue
        op, before, after = body["op"][0], body.get("before"), body.get("after")
        source = body.get("source")
        position = (source["epoch"], source["number"]) if source else tuple(body["position"])
        assert position > last
        last = position
        place = repr(list(key_of(before or after, key).values()))
        assert content.pop(place, None) == before, body
        assert (op in "icr", op == "u", op == "d") == (
            before is None,
            None not in (before, after),
            after is None,
        )
        if after is not None:
            content[place] = after
    return content


def value_of(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind.startswith("list"):
        return [value_of(item, kind[len("list<item: ") : -1]) for item in value]
    if kind.startswith("decimal"):
        assert type(value) is str
        return Decimal(value)
    if kind == "date32[day]":
        return dt.date.fromisoformat(value)
    if kind.startswith("timestamp"):
        assert value.endswith("Z") == ("tz=" in kind)
        return dt.datetime.fromisoformat(value.removesuffix("Z"))
    if kind == "binary":
        return base64.b64decode(value)
    if kind in ("float", "double"):
        return float(value)
    assert type(value) is {"string": str, "bool": bool}.get(kind, int)
    return value


#: One of both has several partitions, the other one tomorrow.
ONE_AND_MORE = (1, 3) if is_of_today(0, 2) else (3, 1)


class TestKafka(FollowerContract):
    steps, share = 20, 4

    @pytest.fixture
    def harness(self, kafka: KafkaServer) -> FollowerHarness:
        return KafkaHarness(kafka, partitions=ONE_AND_MORE[0])


@pytest.mark.long
class TestKafkaChangelog(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, kafka: KafkaServer) -> FollowerHarness:
        return KafkaHarness(kafka, mode="changelog", partitions=ONE_AND_MORE[1])


class TestKafkaDebezium:
    """The other shape, for what the shape changes; all else is the same code."""

    def test_changes_come_to_the_content(self, kafka: KafkaServer) -> None:
        with FollowerContract().filled(
            KafkaHarness(kafka, mode="changelog", shape="debezium", partitions=2)
        ) as world:
            world.view.publish([world.row(1, "b"), world.row(9)], [(2,)])
            world.sync()
            key, value = (committed(kafka, world.target().table) or [])[-1]
            body = json.loads(value or b"")
            assert set(body) == {"before", "after", "source", "op", "ts_ms"}
            assert json.loads(key) == {"k": (body["after"] or body["before"])["k"]}
            rows = world.harness.read(world.target())
            assert {row[1] for row in rows or []} == {"x", "b"}
            assert len(rows or []) == 5


# --- a topic as a source -------------------------------------------------------------------------

#: All types in one row; the longest list of values gives the number of rows.
EVERY = [("k", "bigint"), *((f"c{n}", kind) for n, kind in enumerate(VALUES))]
SOURCES = {"timestamp": "timestamp with time zone", "timestamp_ntz": "timestamp(6)"}


def every_row(number: int) -> Row:
    return (number, *(values[number % len(values)] for values in VALUES.values()))


@pytest.mark.parametrize(
    ("shape", "partitions"),
    [
        ("unified", 3),
        ("debezium", 1),
        pytest.param("unified", 1, marks=pytest.mark.long),
        pytest.param("debezium", 3, marks=pytest.mark.long),
    ],
)
def test_a_topic_of_one_mview_is_a_source_of_another(
    kafka: KafkaServer, shape: str, partitions: int
) -> None:
    """Read as a source reads it, typed as the view's columns: each value of each type is exact."""
    harness = KafkaHarness(kafka, mode="changelog", shape=shape, partitions=partitions)
    schema = schema_of(EVERY)
    with FollowerContract().world(harness, schema) as world:
        world.view.publish([every_row(n) for n in range(20)])
        world.sync()
        topic = world.target().table
        modes = {
            "format.decimal.handling.mode": "string",
            "format.binary.handling.mode": "base64",
            "format.time.precision.mode": "adaptive",
        }
        options = modes if shape == "debezium" else {}
        decoder: Format = UnifiedFormat({}) if shape == "unified" else DebeziumFormat(options)
        heartbeats = {"heartbeat_topic": kafka.create_topic(f"{topic}.beats")}
        section = ChangesSettings(
            connection="upstream",
            source="kafka",
            format=shape,
            bootstrap_servers=kafka.bootstrap,
            topic=topic.replace(".t", ".{table}"),
            options=options,
            **({} if shape == "unified" else heartbeats),
        )
        changelog = KafkaChangelog(section, decoder, ["t"])
        try:
            start = dict.fromkeys((f"{topic}/{n}" for n in range(partitions)), 0)
            events = events_after(changelog, decoder, start)
            assert applied(events, decoder, world) == normal(world.view.content.values())
            for number in range(3):
                put = [every_row(n)[:1] + every_row(n + number)[1:] for n in range(2, 9, 2)]
                world.view.publish([*put, every_row(30 + number)], [(number,)])
                world.sync()
            wait_for_commit(changelog, start)
            events = events_after(changelog, decoder, start)
            assert applied(events, decoder, world) == normal(world.view.content.values())
            assert {event.table for event in events if event.kind != "heartbeat"} == {"v"}
            if shape == "unified":
                now = changelog.advance(start, 100_000, 0)
                newest = max(event.source_ms or 0 for event in events)
                assert now.watermark == newest
                assert abs(newest - time.time() * 1000) < 60_000
        finally:
            changelog.close()


def wait_for_commit(changelog: KafkaChangelog, start: dict[str, int]) -> None:
    """A commit is answered before readers see it: wait until they see all that is there."""
    client = changelog._client
    assert wait_for(lambda: client.ends(start) == client.ends(start, committed=False), 20)


def events_after(
    changelog: KafkaChangelog, decoder: Format, start: dict[str, int]
) -> list[ChangeEvent]:
    wait_for_commit(changelog, start)
    end = changelog.advance(start, 100_000, 0).offsets
    messages = changelog.read(changelog.splits(start, end))
    return [event for message in messages for event in decoder.decode(message)]


def applied(events: list[ChangeEvent], decoder: Format, world: World) -> list[Row]:
    """The rows that events come to, by the format's own conversion."""
    content: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.kind == "heartbeat":
            continue
        assert (event.before is None) == ((event.before or event.after or {})["k"] not in content)
        if event.before is not None:
            assert content.pop(event.before["k"]) == event.before
        if event.after is not None:
            content[event.after["k"]] = event.after
    columns = [
        Column(c.name, c.type, True, SOURCES.get(kind, kind))
        for c, (_, kind) in zip(world.schema.columns, EVERY, strict=True)
    ]
    arrays = [decoder.convert([row[c.name] for row in content.values()], c) for c in columns]
    return normal(rows_of(pa.table(arrays, [c.name for c in columns])))


# --- fences, brokers, rights ---------------------------------------------------------------------


def test_a_paused_commit_fails_when_somebody_else_has_begun(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        older, target = world.faulty.inner, world.target()
        epoch = world.following.cursor.epoch
        step = Step("step-p", world.view.publish([world.row(9)]), epoch, 1)
        token = older.stage(step, delta_of(target, [(None, world.row(9))]))
        newer = world.harness.open(world.target(world.fence + 1))
        newer.create()
        with pytest.raises(RetryableError):
            older.commit(token)
        mark = newer.position()
        assert mark is not None
        assert (mark.epoch, mark.fence) == (epoch, world.fence + 1)
        assert len(world.harness.read(target) or []) == 5
        newer.close()
        world.fence += 1
        world.start()
        world.sync()
        world.check()


@pytest.mark.parametrize("call", [pytest.param("stage", marks=pytest.mark.long), "commit"])
def test_a_broker_that_is_away(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        world.view.publish([world.row(1, f"away in {call}")])
        world.faulty.at(call, "before", kafka.kill)
        try:
            with soon_given_up(monkeypatch), pytest.raises(RetryableError) as raised:
                world.sync()
            assert "asked before the next try" in str(raised.value)
            assert "run the same command" not in str(raised.value)
        finally:
            kafka.restart()
        world.sync()
        world.check()


def test_nothing_is_decided_while_the_partitions_do_not_have_the_end_of_a_commit(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has answered and readers do not see it yet, also when it has started anew."""
    with FollowerContract().filled(KafkaHarness(kafka, mode="changelog")) as world:
        topic, stood = world.target().table, world.following.cursor.epoch
        world.view.publish([world.row(1, "decided")], [(2,)])
        ends = kafka.among_brokers
        world.faulty.at("commit", "before", ends.hold)
        world.faulty.fail("commit", "after")
        try:
            with pytest.raises(FaultError):
                world.sync()
            for is_another in (False, True):
                if is_another:
                    kafka.kill()
                    kafka.restart()
                assert seen(kafka, topic) == seen(kafka, f"{topic}.mview-epochs") == "not all"
                with soon_given_up(monkeypatch, 1.0):
                    undecided(world)
                assert world.following.cursor.epoch == stood
        finally:
            ends.let_go()
        assert world.sync() == 0  # it was found committed, not brought again
        assert world.following.cursor.epoch == world.view.epoch
        world.check()


def seen(broker: KafkaServer, topic: str) -> str:
    """Whether who reads what is committed sees all of a topic with one partition."""
    client = KafkaClient(_Section("changes", broker.bootstrap, {}))
    place = f"{topic}/0"
    try:
        ends = [client.ends([place], committed=level)[place] for level in (True, False)]
    finally:
        client.close()
    return "all" if ends[0] == ends[1] else "not all"


def undecided(world: World) -> None:
    """Neither a new runner nor who only reads says what became of the commit."""
    world.start()
    with pytest.raises(RetryableError):
        world.sync()
    reader = world.harness.open(world.target())
    try:
        is_undecided(reader.position)
    finally:
        reader.close()


def is_undecided(ask: Callable[[], object]) -> None:
    """Whoever asks is told so; a broker that is busy may not answer at all at first."""
    said = []
    while "not decided" not in "".join(said[-1:]):
        assert len(said) < 20, said
        with pytest.raises(RetryableError) as raised:
            ask()
        said.append(str(raised.value))


def test_a_topic_with_an_undecided_message_is_not_taken_for_all_there_is(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys after it would get no tombstone when all rows are replaced."""
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        topic = world.target().table
        other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"o-{topic}"})
        other.init_transactions(30)
        other.begin_transaction()
        other.produce(topic, key=b'{"k":77}', value=None)
        assert other.flush(30) == 0
        world.view.publish([world.row(9)])
        world.sync()
        world.view.publish([], [(9,)])
        world.forget()
        with soon_given_up(monkeypatch, 0.5):
            is_undecided(world.sync)
        other.abort_transaction(30)
        world.sync()
        world.check()


@contextmanager
def soon_given_up(monkeypatch: pytest.MonkeyPatch, seconds: float = 2.0) -> Iterator[None]:
    """Brokers that do not answer are waited for a moment only."""
    with monkeypatch.context() as patch:
        for module in ("followers.kafka.follower", "changelogs.kafka.client"):
            patch.setattr(f"mview_connectors.{module}._PATIENCE", seconds)
        yield


def test_a_user_who_logs_in_and_what_it_may_not(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka, **kafka.of_a_reader())) as world:
        world.view.publish([world.row(9)])
        with kafka.denied(world.target().table + ".mview-epochs"):
            world.start()
            with pytest.raises(ConfigError) as raised:
                world.sync()
        assert "options" in str(raised.value)
        assert "kafka-of-the-tests" not in str(raised.value)
        world.sync()
        world.check()


def test_a_wrong_password_is_told_without_it(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "a-wrong-password")
    login = kafka.of_a_reader()
    login["options"]["sasl.password"] = "${env:WRONG}"
    with FollowerContract().world(KafkaHarness(kafka, **login)) as world:
        world.view.publish([world.row(1)])
        with soon_given_up(monkeypatch), pytest.raises(ConfigError) as raised:
            world.sync()
        assert "a-wrong-password" not in str(raised.value)


def test_a_password_in_plain_text_is_refused() -> None:
    with pytest.raises(ValueError, match="env:NAME"):
        KafkaSettings(type="kafka", bootstrap_servers="b:1", options={"sasl.password": "x"})


# --- topics --------------------------------------------------------------------------------------


def test_the_topics_that_are_made(kafka: KafkaServer) -> None:
    harness = KafkaHarness(kafka, partitions=2, topic_options={"segment.ms": "70000"})
    with FollowerContract().filled(harness) as world:
        topic = world.target().table
        assert len(kafka.end_offsets(topic)) == 2
        assert settings_of(kafka, topic, "cleanup.policy", "segment.ms") == ("compact", "70000")
        marks = topic + ".mview-epochs"
        assert settings_of(kafka, marks, "cleanup.policy") == ("compact",)
        (key, value), *_ = reversed(committed(kafka, marks) or [])
        assert key == b"mark"
        assert json.loads(value or b"")["epoch"] == world.view.epoch


def settings_of(broker: KafkaServer, topic: str, *names: str) -> tuple[str, ...]:
    asked = ConfigResource(ResourceType.TOPIC, topic)
    found = broker.admin().describe_configs([asked])[asked].result(30)
    return tuple(found[name].value for name in names)


def test_an_empty_topic_that_others_have_made_is_taken(kafka: KafkaServer) -> None:
    harness = KafkaHarness(kafka)
    with FollowerContract().world(harness) as world:
        kafka.create_topic(world.target().table, 4)
        world.view.publish([world.row(n) for n in range(20)])
        world.sync()
        world.check()
        assert len(kafka.end_offsets(world.target().table)) == 4


def test_partitions_that_were_added_are_refused(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        topic = world.target().table
        kafka.admin().create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        world.view.publish([world.row(9)])
        world.start()
        with pytest.raises(TargetError, match="number of partitions"):
            world.sync()
        kafka.delete_topic(topic)
        world.sync()
        world.check()


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_a_topic_that_was_made_anew_beside_a_runner_is_filled(
    kafka: KafkaServer, mode: str
) -> None:
    """Its producer would write on, into a topic that lacks all before."""
    with FollowerContract().filled(KafkaHarness(kafka, mode=mode)) as world:
        topic = world.target().table
        for epoch, is_made in enumerate((True, False)):
            kafka.delete_topic(topic)
            if is_made:
                kafka.create_topic(topic)
            world.view.publish([world.row(9, f"{epoch}")])
            assert "not the one that it was" in str(raised(world.sync, RetryableError))
            world.sync()
            world.check()


def test_partitions_that_were_added_beside_a_runner_are_refused(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        topic = world.target().table
        kafka.admin().create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        world.view.publish([world.row(9)])
        raised(world.sync, RetryableError)
        assert "number of partitions" in str(raised(world.sync, TargetError))


def test_a_topic_whose_marks_somebody_has_deleted_is_told_with_what_mends_it(
    kafka: KafkaServer,
) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        topic = world.target().table
        kafka.delete_topic(f"{topic}.mview-epochs")
        world.start()
        told = raised(world.sync, TargetError)
        assert f"somebody has deleted {topic}.mview-epochs, delete it" in str(told)
        kafka.delete_topic(topic)
        world.sync()
        world.check()


def test_another_mode_makes_the_topic_anew(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        for mode in ("changelog", "upsert"):
            world.options["mode"] = mode
            world.start()
            world.sync()
            world.check()


def test_changes_are_not_filled_twice_into_one_topic(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka, mode="changelog")) as world:
        follower, target = world.faulty.inner, world.target()
        step = Step("again", world.view.epoch + 1, None)
        rows = delta_of(target, [(None, world.row(1))])
        with pytest.raises(TargetError, match="anew"):
            follower.fill(step, rows)


def test_a_view_without_a_key_as_changes(kafka: KafkaServer) -> None:
    harness = KafkaHarness(kafka, mode="changelog", partitions=3)
    target = World(harness, Path("/nonexistent"), schema_of([("a", "int")], ())).target()
    follower = harness.open(target)
    try:
        follower.create()
        row = delta_of(target, [(None, (1,)), (None, (1,))])
        follower.commit(follower.fill(Step("f", 1, None), without_kind(row)))
        follower.commit(follower.stage(Step("s", 2, 1), delta_of(target, [((1,), None)])))
        found = committed(kafka, target.table) or []
        changes = [json.loads(value or b"") for key, value in found if key is None]
        assert [c["op"] for c in changes if c["op"] != "heartbeat"] == [*["insert"] * 2, "delete"]
        assert sum(c["op"] == "heartbeat" for c in changes) == 6
    finally:
        follower.close()


def without_kind(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    whole = rows.read_all().drop_columns(["__kind"])
    return whole.to_reader()


def test_more_rows_than_the_client_holds(kafka: KafkaServer) -> None:
    """All but the mark fit: it waits for its place, too."""
    options = {"queue.buffering.max.messages": "100"}
    with FollowerContract().world(KafkaHarness(kafka, options=options)) as world:
        world.view.publish([world.row(n) for n in range(100)])
        world.sync()
        world.check()
        world.view.publish([world.row(n, "b") for n in range(1000)])
        world.sync()
        world.check()


def test_a_row_that_is_too_large_stands_until_it_is_changed(kafka: KafkaServer) -> None:
    with FollowerContract().filled(KafkaHarness(kafka)) as world:
        world.view.publish([world.row(9, "x" * 2_000_000), world.row(1, "b")])
        with pytest.raises(UserError, match=r"MSG_SIZE|large"):
            world.sync()
        world.view.publish([world.row(9, "short")])
        world.sync()
        world.check()


@pytest.mark.parametrize("name", ["ä", "a b", "a/b", "x" * 240, ".."])
def test_names_that_kafka_does_not_take(name: str) -> None:
    settings = KafkaSettings(type="kafka", bootstrap_servers="b:1", table=name)
    follower = KafkaFollower(FollowerTarget("v", "s", schema_of([("k", "int")]), settings, "o"))
    with pytest.raises(UserError, match="name"):
        follower.check()
