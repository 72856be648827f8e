"""Kafka partitions that are added, and topics that are made anew, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from mview_connectors.changelogs.kafka import changelog as kafka
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.changelogs.kafka.client import Topic
from mview_connectors.formats.unified import UnifiedFormat

from mview.config import ChangesSettings
from mview.errors import DataLostError
from tests.connectors.kafka_doubles import KeepsNothing

SETTINGS = ChangesSettings(
    connection="shop", source="kafka", format="unified", bootstrap_servers="b", topic="{table}"
)


class Client(KeepsNothing):
    """A cluster with one topic: an id, and the first and last offset of every partition."""

    def __init__(self, made: str, **partitions: tuple[int, int]) -> None:
        self.made = made
        self.there = {f"t/{name[1:]}": span for name, span in partitions.items()}

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        return {"t": Topic(self.made, list(self.there))}

    def beginnings(self, partitions: Iterable[str]) -> dict[str, int]:
        return {name: self.there[name][0] for name in partitions}

    def ends(self, partitions: Iterable[str]) -> dict[str, int]:
        return {name: self.there[name][1] for name in partitions}

    def read(self, spans: Any, *, last: bool = False) -> list[Any]:
        return []

    def stop_waiting(self) -> None: ...


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client], KafkaChangelog]:
    def open_log(client: Client) -> KafkaChangelog:
        monkeypatch.setattr(kafka, "KafkaClient", lambda *_: client)
        return KafkaChangelog(SETTINGS, UnifiedFormat({}), ["t"])

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
