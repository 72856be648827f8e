"""Kafka partitions that move to another broker: a moment's wait, not the end of the run."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from mview_connectors.changelogs.kafka import client as kafka_client
from mview_connectors.changelogs.kafka.client import KafkaClient

from mview.config import ChangesSettings
from mview.errors import AwayError, ConfigError, DataLostError, RetryableError

SETTINGS = ChangesSettings(
    connection="c", source="kafka", format="unified", bootstrap_servers="b", topic="{table}"
)
MOVING = KafkaError.NOT_LEADER_FOR_PARTITION


class Admin:
    """Answers with the given codes, one per question and partition; then with offset 7."""

    def __init__(self, **codes):
        self.codes, self.asked = codes, []

    def list_offsets(self, places, **_):
        self.asked.append([place.topic for place in places])
        return {place: self._answer(place.topic) for place in places}

    def describe_configs(self, resources, **_):
        futures = {resource: Future() for resource in resources}
        for resource, future in futures.items():
            if codes := self.codes.get(resource.name):
                future.set_exception(KafkaException(KafkaError(codes.pop(0))))
            else:
                future.set_result({"cleanup.policy": SimpleNamespace(value="delete")})
        return futures

    def poll(self, timeout):
        """There is nothing to say beside the answers."""

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

    def ask(admin):
        client = KafkaClient(SETTINGS)
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
    with pytest.raises(ConfigError, match="does not let us in") as caught:
        ask(admin)
    assert "authorization" in str(caught.value.got)
    assert len(admin.asked) == 1


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.INVALID_REQUEST,
        KafkaError._UNSUPPORTED_FEATURE,
    ],
)
def test_settings_of_topics_that_are_not_told_stop_nobody(code):
    client = KafkaClient(SETTINGS)
    client._admin = Admin(b=[code])
    assert client.settings_of(["a", "b"]) == {"a": {"cleanup.policy": "delete"}}


def test_settings_of_topics_that_nobody_answers_for_are_waited_for():
    client = KafkaClient(SETTINGS)
    client._admin = Admin(b=[KafkaError._TRANSPORT])
    with pytest.raises(AwayError) as caught:
        client.settings_of(["a", "b"])
    assert caught.value.where == "topic b"


def test_why_there_is_no_answer_is_said_beside_it():
    client = KafkaClient(SETTINGS)
    client._note(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    with pytest.raises(ConfigError, match="does not let us in") as caught:
        client._away(None, "a/0")
    assert caught.value.got == "wrong password"
    client._note(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    with pytest.raises(AwayError) as away:
        pickle.loads(pickle.dumps(client))._away(None, "a/0")
    assert away.value.got == "no answer in time"
    with pytest.raises(AwayError) as away:
        client._away(None, "a/0")
    assert away.value.got == "connection refused"


def test_servers_of_the_environment_have_no_protocol_either(monkeypatch):
    monkeypatch.setenv("SERVERS", "SASL_SSL://k:9092")
    client = KafkaClient(SETTINGS.model_copy(update={"bootstrap_servers": "${env:SERVERS}"}))
    with pytest.raises(ConfigError, match="with a protocol") as caught:
        client.describe(["a"])
    assert "security.protocol" in str(caught.value.hint)


def test_a_broker_that_is_back_is_noticed_soon_unless_the_user_wants_it_later():
    made = []

    def make(settings):
        made.append(settings)
        return AdminClient(settings)

    for options in ({}, {"reconnect.backoff.max.ms": "5000"}, {"reconnect.backoff.ms": "5000"}):
        client = KafkaClient(SETTINGS.model_copy(update={"options": options}))
        client._made(make, {}, {"log_level": 0})
    assert [one.get("reconnect.backoff.max.ms") for one in made] == [1000, "5000", None]
