"""Kafka partitions that move to another broker: a moment's wait, not the end of the run."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from mview_connectors.changelogs import kafka_client
from mview_connectors.changelogs.kafka_client import KafkaClient

from mview.config import ChangesSettings
from mview.errors import DataLostError, RetryableError

MOVING = KafkaError.NOT_LEADER_FOR_PARTITION


class Admin:
    """Answers with the given codes, one per question and partition; then with offset 7."""

    def __init__(self, **codes):
        self.codes, self.asked = codes, []

    def list_offsets(self, places, **_):
        self.asked.append([place.topic for place in places])
        return {place: self._answer(place.topic) for place in places}

    def _answer(self, topic):
        future = Future()
        if self.codes.get(topic):
            future.set_exception(KafkaException(KafkaError(self.codes[topic].pop(0))))
        else:
            future.set_result(SimpleNamespace(offset=7))
        return future


@pytest.fixture
def ask(monkeypatch):
    monkeypatch.setattr(kafka_client, "_PAUSE", 0.001)
    settings = ChangesSettings(
        connection="c", source="kafka", format="unified", bootstrap_servers="b", topic="{table}"
    )

    def ask(admin):
        client = KafkaClient(settings)
        client._admin = admin
        return client.ends(["a/0", "b/0"])

    return ask


@pytest.mark.parametrize("code", [MOVING, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_only_a_partition_that_moves_is_asked_again(ask, code):
    admin = Admin(b=[code, code])
    assert ask(admin) == {"a/0": 7, "b/0": 7}
    assert admin.asked == [["a", "b"], ["b"], ["b"]]


@pytest.mark.parametrize(
    ("code", "error"),
    [(MOVING, RetryableError), (KafkaError.UNKNOWN_TOPIC_OR_PART, DataLostError)],
)
def test_patience_ends(ask, monkeypatch, code, error):
    monkeypatch.setattr(kafka_client, "_PATIENCE", 0.05)
    with pytest.raises(error) as caught:
        ask(Admin(b=[code] * 10_000))
    assert caught.value.where == "b/0"


def test_other_errors_are_not_waited_for(ask):
    admin = Admin(b=[KafkaError.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(RetryableError, match="authorization"):
        ask(admin)
    assert len(admin.asked) == 1
