"""Kafka partitions that are added, and topics that are made anew, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from mview_connectors.changelogs.kafka import changelog as kafka
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.changelogs.kafka.client import Topic, topic_of
from mview_connectors.formats.unified import UnifiedFormat

from mview.config import ChangesSettings
from mview.errors import AwayError, DataLostError, UserError
from tests.connectors.kafka_doubles import KeepsNothing

SETTINGS = ChangesSettings(
    connection="shop", source="kafka", format="unified", bootstrap_servers="b", topic="{table}"
)


class Client(KeepsNothing):
    """A cluster: the id of its topics, and the first and last offset of every partition."""

    def __init__(self, made: str, topic: str = "t", **partitions: tuple[int, int]) -> None:
        self.made = {topic: made}
        self.there = {f"{topic}/{name[1:]}": span for name, span in partitions.items()}
        self.policies: dict[str, str] = {}

    def and_(self, other: Client) -> Client:
        """This cluster with the topics of another one, too."""
        self.made |= other.made
        self.there |= other.there
        return self

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        return {
            topic: Topic(self.made[topic], [p for p in self.there if topic_of(p) == topic])
            for topic in topics
            if topic in self.made
        }

    def beginnings(self, partitions: Iterable[str]) -> dict[str, int]:
        return {name: self.there[name][0] for name in partitions}

    def ends(self, partitions: Iterable[str]) -> dict[str, int]:
        return {name: self.there[name][1] for name in partitions}

    def read(self, spans: Any, *, last: bool = False) -> list[Any]:
        return []

    def stop_waiting(self) -> None: ...

    def topics(self) -> list[str]:
        return sorted(self.made)

    def settings_of(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        return {topic: {"cleanup.policy": self.policies.get(topic, "delete")} for topic in topics}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client], KafkaChangelog]:
    def open_log(client: Client, *tables: str) -> KafkaChangelog:
        monkeypatch.setattr(kafka, "KafkaClient", lambda *_: client)
        return KafkaChangelog(SETTINGS, UnifiedFormat({}), tables or ["t"])

    return open_log


def test_a_new_partition_is_read_from_its_first_message(log: Any) -> None:
    changelog = log(Client("id", p0=(5, 9), p1=(0, 4)))
    end = changelog.advance({"t/0": 9, "t": "id"}, 100, 0).offsets
    assert end == {"t/0": 9, "t/1": 4, "t": "id"}
    (split,) = changelog.splits({"t/0": 9, "t": "id"}, end)
    assert (split.partition, split.start, split.end) == ("t/1", 0, 4)


def test_a_new_partition_that_has_lost_its_first_messages_halts(log: Any) -> None:
    """In planning, and where a plan is carried out later."""
    client = Client("id", p0=(5, 9), p1=(2, 4))
    with pytest.raises(DataLostError, match="oldest that is left is offset 2") as caught:
        log(client).advance({"t/0": 9, "t": "id"}, 100, 0)
    assert caught.value.where == "t/1"
    with pytest.raises(DataLostError, match="oldest that is left is offset 2"):
        log(client).splits({"t/0": 9, "t": "id"}, {"t/0": 9, "t/1": 4, "t": "id"})


def test_a_plan_of_another_process_is_not_carried_out_on_a_topic_made_anew(log: Any) -> None:
    end = {"t/0": 9, "t": "old"}
    with pytest.raises(DataLostError, match="made anew"):
        log(Client("new", p0=(0, 20))).splits({"t/0": 5, "t": "old"}, end)
    assert log(Client("old", p0=(0, 20))).splits({"t/0": 5, "t": "old"}, end)


def test_brokers_that_give_no_ids_yet_are_no_other_topics(log: Any) -> None:
    older = log(Client("", p0=(0, 9)))
    at = older.advance({"t/0": 5}, 100, 0).offsets
    assert at == {"t/0": 9}
    newer = log(Client("id", p0=(0, 12)))
    assert newer.advance(at, 100, 0).offsets == {"t/0": 12, "t": "id"}


def test_all_that_is_gone_is_told_at_once(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long pause loses changes of many tables: who was told of one came back for each."""
    monkeypatch.setattr(kafka, "_BELIEVE_S", 0.0)
    client = Client("id", p0=(0, 9), p1=(7, 9), p2=(9, 9)).and_(Client("new", "anew", p0=(0, 99)))
    client.and_(Client("id", "whole", p0=(3, 9))).and_(Client("id", "shrunk", p0=(0, 9)))
    before = {"t/0": 5, "t/1": 6, "t/2": 9, "t": "id", "anew/0": 5, "anew/1": 5, "anew": "old"}
    before |= {"whole/0": 3, "whole": "id", "shrunk/0": 9, "shrunk/1": 4, "shrunk": "id"}
    changelog = log(client, "t", "anew", "whole", "shrunk")
    with pytest.raises(DataLostError) as caught:
        changelog.advance(before, 100, 0)
    assert caught.value.what == (
        "changes of shrunk/1 are gone before they were read: the topic or partition was deleted"
    )
    assert caught.value.where == "shrunk/1; also anew, t/1"
    assert "mview drop shop.shrunk shop.anew shop.t;" in str(caught.value.hint)


def test_of_many_places_some_are_named_and_all_tables(log: Any) -> None:
    names = [f"t{number}" for number in range(9)]
    client = Client("new", names[0], p0=(0, 9))
    for name in names[1:]:
        client.and_(Client("new", name, p0=(0, 9)))
    before = {f"{name}/0": 5 for name in names} | dict.fromkeys(names, "old")
    with pytest.raises(
        DataLostError, match=r"where: *t0; also t1, t2, t3, t4, t5, 3 more"
    ) as caught:
        log(client, *names).advance(before, 100, 0)
    assert " ".join(f"shop.{name}" for name in names) in str(caught.value.hint)


def test_all_that_brokers_have_lost_is_told_at_once(log: Any) -> None:
    client = Client("id", p0=(0, 9), p1=(0, 5)).and_(Client("id", "u", p0=(0, 3)))
    before = {"t/0": 9, "t/1": 6, "t": "id", "u/0": 4, "u": "id"}
    with pytest.raises(AwayError, match="not found it again yet") as caught:
        log(client, "t", "u").advance(before, 100, 0)
    assert caught.value.where == "t/1; also u/0"
    assert "mview drop shop.t shop.u;" in str(caught.value.hint)


def test_all_topics_that_cannot_be_read_are_told_at_once(log: Any) -> None:
    client = Client("id", p0=(0, 9)).and_(Client("id", "u", p0=(0, 3)))
    log(client, "t", "u").check()
    client.policies = {"t": "compact", "u": "compact,delete"}
    with pytest.raises(UserError) as caught:
        log(client, "t", "u", "missing", "lost").check()
    said = str(caught.value.render())
    for topic in ("t", "u"):
        assert f"kafka-configs --alter --topic {topic} --add-config" in said
    for topic in ("missing", "lost"):
        assert f"topic '{topic}' does not exist" in said


@pytest.mark.parametrize(
    ("tables", "topics"),
    [
        (["order_lines", "`a.b-c`"], ["s.order_lines", "s.a.b-c"]),
        (["größe", "order lines", "$x"], ["s.gr__e", "s.order_lines", "s._x"]),
        (["表😀"], ["s.___"]),
        (["größe", "grüße"], ["s.gr__e"]),
    ],
)
def test_a_topic_is_named_by_the_letters_that_kafka_has(tables: Any, topics: Any) -> None:
    settings = ChangesSettings(
        connection="s", source="kafka", format="debezium", bootstrap_servers="b", topic="s.{table}"
    )
    assert KafkaChangelog(settings, UnifiedFormat({}), tables)._topics.names == topics
