"""Tables and topics: many tables in one topic, many topics of a table, topics that come later."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.changelogs.kafka import changelog as kafka_module
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.changelogs.kafka.client import Span, Topic
from mview_connectors.changelogs.kafka.errors import gone
from mview_connectors.changelogs.kafka.topics import TableTopics
from pydantic import ValidationError

from mview.config import ChangesSettings, Config, ConnectionSettings
from mview.connector import Message, Offsets, load
from mview.errors import ConfigError, DataLostError
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec, open_changelog, open_format
from mview.schema import Column, TableSchema, parse_type
from tests.connectors.kafka_doubles import KeepsNothing
from tests.patience import wait_for
from tests.relations import rel

_numbers = itertools.count()

SCHEMA = TableSchema(
    (Column("id", parse_type("bigint"), False, "bigint"), Column("v", parse_type("string"))),
    ("id",),
)


def settings(**more: Any) -> ChangesSettings:
    common = {"connection": "shop", "source": "kafka", "format": "unified"}
    return ChangesSettings(**{**common, "bootstrap_servers": "k:1", **more})


# --- which topics --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"topic": "pg.{table}"}, {"orders": ["pg.orders"], "Käse": ["pg.K_se"]}),
        ({"topic": "all"}, {"orders": ["all"], "Käse": ["all"]}),
        (
            {"topic": "pg.{table}", "topics": {"orders": "old"}},
            {"orders": ["old"], "Käse": ["pg.K_se"]},
        ),
        (
            {"topics": {"o*": ["{table}.1", "{table}.2"], "*": "rest"}},
            {"orders": ["orders.1", "orders.2"], "Käse": ["rest"]},
        ),
        ({"topics": {"*": "x.*"}}, {"orders": ["x.", "x.y"], "Käse": ["x.", "x.y"]}),
    ],
)
def test_topics_of_tables(more: dict[str, Any], expected: dict[str, list[str]]) -> None:
    known = ["pg.orders", "pg.K_se", "all", "old", "orders.1", "orders.2", "rest", "x.", "x.y", "y"]
    topics = TableTopics(settings(**more), list(expected))
    for table, names in expected.items():
        assert [topic for topic in known if topics.is_of(topic, table)] == names
    assert sorted(topics.among(known)) == sorted({t for names in expected.values() for t in names})
    assert not topics.has("y")
    assert topics.absent(known) == []
    assert topics.absent([]) == topics.names


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"topic": "pg.{schema}.{table}"},
            {
                "orders": "pg.public.orders",
                "sales.orders": "pg.sales.orders",
                "`a.b`": "pg.public.a.b",
            },
        ),
        ({"topic": "all"}, {"orders": "all", "sales.orders": "all"}),
        (
            {"topic": "pg.public.{table}", "topics": {"sales.*": "pg.sales.{table}"}},
            {"orders": "pg.public.orders", "sales.orders": "pg.sales.orders"},
        ),
        (
            {"topics": {"*": "own.{table}", "s*.*": "{schema}", "`a.b`.t": "dots"}},
            {"orders": "own.orders", "sales.orders": "sales", "`a.b`.t": "dots"},
        ),
    ],
)
def test_topics_of_several_schemas(more: dict[str, Any], expected: dict[str, str]) -> None:
    topics = TableTopics(settings(**more).of_schema("public"), list(expected))
    for table, name in expected.items():
        assert [t for t in set(expected.values()) if topics.is_of(t, table)] == [name]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"topic": "pg.public.{table}"}, r"no \{schema\} in it"),
        ({"topics": {"*.*": "pg.{table}"}}, r"no \{schema\} in it"),
        ({"topics": {"*": "pg.{table}"}}, "no topic is configured for table 'sales.t'"),
        ({"topics": {"t": "t", "tales.t": "t"}}, "no topic is configured"),
    ],
)
def test_a_topic_that_tables_of_several_schemas_would_share_is_refused(
    more: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        TableTopics(settings(**more).of_schema("public"), ["sales.t"])


def test_a_topic_of_a_schema_where_there_are_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="this database has no schemas"):
        TableTopics(settings(topic="{schema}.{table}"), ["t"])


def test_a_table_without_a_topic_is_told() -> None:
    with pytest.raises(ConfigError, match="no topic is configured for table 'lines'"):
        TableTopics(settings(topics={"orders": "o"}), ["orders", "lines"])


@pytest.mark.parametrize(
    "more", [{}, {"topics": {}}, {"topics": {"a": []}}, {"topic": ""}, {"missing_topics": "yes"}]
)
def test_settings_that_name_no_topic_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**more)


# --- many tables and databases in one log --------------------------------------------------------


def flat(database: str, table: str, kind: str, *rows: dict[str, Any]) -> str:
    body = {"database": database, "table": table, "type": kind, "data": rows, "es": 5}
    return json.dumps({**body, "isDdl": False, "old": None})


def changed(config: Config, tables: list[str], start: Offsets) -> dict[str, list[Any]]:
    log = open_changelog(config, "shop", tables)
    try:
        log.finish()
        end = log.advance(start, 1000, 0).offsets
        specs = {name: TableSpec(rel(f"shop.{name}"), SCHEMA, Path(), "", None) for name in tables}
        messages = list(log.read(log.splits(start, end)))
    finally:
        log.close()
    batches = decode_split(messages, open_format(config, "shop"), specs)
    return {str(one.table): one.changes.select(["__op", "id", "v"]).to_pylist() for one in batches}


def config_of(folder: Path, **changes: Any) -> Config:
    connection = ConnectionSettings(name="shop", drivername="mysql", database="shop")
    return Config(
        path=folder,
        store=folder,
        connections={"shop": connection},
        changes={"shop": ChangesSettings(connection="shop", **changes)},
    )


LINES = [
    flat("shop", "orders", "INSERT", {"id": "1", "v": "a"}, {"id": "2", "v": "b"}),
    flat("other", "orders", "DELETE", {"id": "1", "v": "a"}),
    flat("shop", "lines", "INSERT", {"id": "1", "v": "x"}),
    flat("shop", "carts", "INSERT", {"no": "1"}),
    flat("shop", "orders", "UPDATE", {"id": "1", "v": None}),
]
EXPECTED = {
    "shop.orders": [
        {"__op": "c", "id": 1, "v": "a"},
        {"__op": "c", "id": 2, "v": "b"},
        {"__op": "u", "id": 1, "v": None},
    ],
    "shop.lines": [{"__op": "c", "id": 1, "v": "x"}],
}


def test_a_folder_has_tables_of_several_databases(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("")
    config = config_of(tmp_path, source="files", format="canal", path=tmp_path)
    start = open_changelog(config, "shop", ["orders"]).begin()
    (tmp_path / "1.jsonl").write_text("".join(f"{line}\n" for line in LINES))
    assert changed(config, ["orders", "lines"], start) == EXPECTED


def test_a_folder_has_tables_of_one_name_in_several_databases(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("")
    config = config_of(tmp_path, source="files", format="canal", path=tmp_path)
    start = open_changelog(config, "shop", ["orders"]).begin()
    (tmp_path / "1.jsonl").write_text("".join(f"{line}\n" for line in LINES))
    theirs = {"shop.other.orders": [{"__op": "d", "id": 1, "v": None}]}
    assert changed(config, ["other.orders"], start) == theirs
    both = changed(config, ["orders", "other.orders"], start)
    assert both == theirs | {"shop.orders": EXPECTED["shop.orders"]}
    assert changed(config, ["`other.orders`"], start) == {}


# --- with a broker -------------------------------------------------------------------------------


class MemoryKafka(KeepsNothing):
    """Topics in memory, with the calls that the changelog makes of its client."""

    bootstrap = "memory:1"

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}

    def create_topic(self, name: str, partitions: int = 1) -> str:
        self.logs |= {f"{name}/{number}": [] for number in range(partitions)}
        return name

    def delete_topic(self, name: str) -> None:
        self.logs = {p: log for p, log in self.logs.items() if p.rpartition("/")[0] != name}

    def produce(self, topic: str, messages: Iterable[str], partition: int = 0) -> None:
        self.logs[f"{topic}/{partition}"] += [message.encode() for message in messages]

    # What KafkaClient does.

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        named = {topic: [p for p in self.logs if p.rpartition("/")[0] == topic] for topic in topics}
        return {topic: Topic(f"id of {topic}", parts) for topic, parts in named.items() if parts}

    def topics(self) -> list[str]:
        return sorted({partition.rpartition("/")[0] for partition in self.logs})

    def ends(self, partitions: Iterable[str]) -> dict[str, int]:
        listed = list(partitions)
        for partition in listed:
            if partition not in self.logs:
                gone({partition: "the partition does not exist any more"}, ("orders",))
        return {partition: len(self.logs[partition]) for partition in listed}

    def beginnings(self, partitions: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(partitions, 0)

    def read(self, spans: Sequence[Span], *, last: bool = False) -> Iterator[Message]:
        for partition, start, end in spans:
            for offset in range(start, end):
                yield Message(partition, offset, None, self.logs[partition][offset])

    def stop_waiting(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is open."""


class Topics:
    """Topics of one test, and what is opened on them."""

    def __init__(self, broker: Any) -> None:
        self.broker, self.prefix = broker, f"topics{next(_numbers)}"
        self.beats = broker.create_topic(f"{self.prefix}-beats")
        self.opened: list[KafkaChangelog] = []
        self.beat(1)

    def open(self, *tables: str, beats: bool = True, **more: Any) -> KafkaChangelog:
        more.setdefault("heartbeat_topic", self.beats if beats else None)
        chosen = settings(bootstrap_servers=self.broker.bootstrap, **more)
        log = KafkaChangelog(chosen, load("formats", "unified")({}), tables)
        self.opened.append(log)
        return log

    def send(self, topic: str, table: str, *numbers: int, partition: int = 0) -> None:
        rows = [
            json.dumps({"table": table, "op": "c", "after": {"id": n}, "ts": n}) for n in numbers
        ]
        self.broker.produce(topic, rows, partition=partition)

    def delete(self, topic: str) -> None:
        self.broker.delete_topic(topic)

    def beat(self, ts: int) -> None:
        self.broker.produce(self.beats, [json.dumps({"op": "heartbeat", "ts": ts})])


@pytest.fixture(
    params=["memory", pytest.param("kafka", marks=[pytest.mark.service, pytest.mark.long])]
)
def topics(request: Any, monkeypatch: Any) -> Iterator[Topics]:
    if request.param == "memory":
        broker = MemoryKafka()
        monkeypatch.setattr(kafka_module, "KafkaClient", lambda *_: broker)
        made = Topics(broker)
    else:
        made = Topics(request.getfixturevalue("kafka"))
    yield made
    for log in made.opened:
        log.close()


def read(log: KafkaChangelog, start: Offsets, end: Offsets) -> list[tuple[str, int]]:
    bodies = [json.loads(m.value or b"") for m in log.read(log.splits(start, end))]
    return sorted((body["table"], body["after"]["id"]) for body in bodies)


class TestWithBroker:
    def test_one_topic_of_all_tables(self, topics: Topics, tmp_path: Path) -> None:
        topic = topics.broker.create_topic(f"{topics.prefix}.all")
        place = {"bootstrap_servers": topics.broker.bootstrap, "topic": topic}
        config = config_of(tmp_path, source="kafka", format="canal", **place)
        log = open_changelog(config, "shop", ["orders", "lines"])
        start = log.begin()
        log.close()
        topics.broker.produce(topic, LINES)
        assert changed(config, ["orders", "lines"], start) == EXPECTED

    def test_a_table_in_several_topics_and_partitions(self, topics: Topics) -> None:
        names = [topics.broker.create_topic(f"{topics.prefix}.o{n}", n) for n in (1, 2)]
        log = topics.open("orders", topics={"orders": names})
        log.check()
        start = log.begin()
        assert len([name for name in start if "/" in name]) == 3
        topics.send(names[0], "orders", 1)
        topics.send(names[1], "orders", 2)
        topics.send(names[1], "orders", 3, partition=1)
        topics.beat(50)
        progress = log.advance(start, 100, 0)
        assert read(log, start, progress.offsets) == [("orders", 1), ("orders", 2), ("orders", 3)]
        assert progress.watermark == 50

    def test_topics_that_fit_a_pattern_are_read_from_their_first_message(
        self, topics: Topics
    ) -> None:
        log = topics.open("orders", topic=f"{topics.prefix}.*", missing_topics="wait")
        log.check()
        start = log.begin()
        topics.beat(10)
        assert log.advance(start, 100, 0).watermark == 10
        for shard in ("a", "b"):
            topic = topics.broker.create_topic(f"{topics.prefix}.{shard}")
            topics.send(topic, "orders", ord(shard))
        topics.beat(200)
        progress = log.advance(start, 100, 0)
        assert read(log, start, progress.offsets) == [("orders", 97), ("orders", 98)]
        assert progress.watermark == 200

    def test_a_topic_that_comes_after_the_start_holds_the_watermark(
        self, topics: Topics, monkeypatch: Any
    ) -> None:
        orders = topics.broker.create_topic(f"{topics.prefix}.orders")
        shared = {"topic": f"{topics.prefix}.{{table}}"}
        with pytest.raises(ConfigError, match="does not exist") as caught:
            topics.open("orders", "lines", **shared).check()
        assert "missing_topics: wait" in str(caught.value.hint)
        assert "did you mean" not in str(caught.value.hint), "lines are no orders"
        log = topics.open("orders", "lines", missing_topics="wait", **shared)
        log.check()
        start = log.begin()
        topics.send(orders, "orders", 1)
        topics.beat(5)
        at = log.advance(start, 100, 0)
        assert at.watermark == 5
        lines = topics.broker.create_topic(f"{topics.prefix}.lines")
        topics.send(lines, "lines", 6, 7)
        topics.beat(9)
        monkeypatch.setattr(kafka_module, "_BELIEVE_S", 0.5)
        later = log.advance(at.offsets, 1, 0)
        assert read(log, at.offsets, later.offsets) == [("lines", 6)]
        assert later.watermark == 5, "of the new topic a message is left"
        last = log.advance(later.offsets, 100, 0)
        assert read(log, later.offsets, last.offsets) == [("lines", 7)]
        assert last.watermark == 9
        topics.delete(lines)
        with pytest.raises(DataLostError, match=r"deleted|does not exist"):
            wait_for(lambda: log.advance(last.offsets, 100, 0) is None, 60)

    def test_a_heartbeat_topic_that_is_like_no_other(self, topics: Topics) -> None:
        orders = topics.broker.create_topic(f"{topics.prefix}.orders")
        log = topics.open("orders", topic=orders, heartbeat_topic="QQQ")
        with pytest.raises(ConfigError, match="heartbeat topic 'QQQ' does not exist") as caught:
            log.check()
        assert "heartbeat.interval.ms" in str(caught.value.hint)
        assert "missing_topics" not in str(caught.value.hint), "it does not come with a change"

    def test_changes_and_heartbeats_do_not_share_a_topic(self, topics: Topics) -> None:
        log = topics.open("orders", topic=topics.beats)
        with pytest.raises(ConfigError, match="is a topic of changes, too"):
            log.check()
