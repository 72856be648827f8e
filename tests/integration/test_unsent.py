"""What a real connector does not send is found before it is missed."""

from __future__ import annotations

import pytest
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.formats.debezium import DebeziumFormat

from mview.config import ChangesSettings
from mview.connector import Message
from mview.errors import ConfigError, UserError
from tests.connectors.databases_contract import server_source

pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def source(postgresql):
    with server_source("postgresql", postgresql) as source:
        yield source


def changelog(kafka, debezium, prefix, table):
    settings = ChangesSettings(
        connection="shop",
        source="kafka",
        format="debezium",
        bootstrap_servers=kafka.bootstrap,
        topic=f"{prefix}.public.{{table}}",
        heartbeat_topic=f"__debezium-heartbeat.{prefix}",
        connect=debezium.url,
    )
    return KafkaChangelog(settings, DebeziumFormat({}), [table])


def test_truncate_is_left_out_by_default_and_kafka_connect_tells_it(
    source, postgresql, kafka, debezium
):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database = source.settings.database
    settings = postgresql.connector(database, "t")
    with debezium.connector(settings | {"skipped.operations": "t"}) as prefix:
        source.execute("INSERT INTO t VALUES (1)")
        debezium.wait_for(f"{prefix}.public.t", 1)
        log = changelog(kafka, debezium, prefix, "t")
        with pytest.raises(ConfigError, match="leaves out changes"):
            log.check()
        log.close()
    with debezium.connector(settings) as prefix:
        log = changelog(kafka, debezium, prefix, "t")
        log.check()
        log.close()


def test_partitions_come_in_one_topic_once_the_publication_is_as_told(
    source, postgresql, kafka, debezium
):
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);"
        "CREATE PUBLICATION parts FOR TABLE p"
    )
    with pytest.raises(UserError, match="under the names of its partitions") as caught:
        source.database.check_log("p")
    command, _, _ = str(caught.value.hint).partition(";")
    own = {"publication.name": "parts", "publication.autocreate.mode": "disabled"}
    settings = postgresql.connector(source.settings.database, "p", "p1") | own
    with debezium.connector(settings) as prefix:
        source.execute("INSERT INTO p VALUES (1)")
        debezium.wait_for(f"{prefix}.public.p1", 1)
        assert not kafka.end_offsets(f"{prefix}.public.p")
    source.execute(command)
    source.database.check_log("p")
    with debezium.connector(settings) as prefix:
        source.execute("INSERT INTO p VALUES (2)")
        debezium.wait_for(f"{prefix}.public.p", 1)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_null_comes_as_the_default_of_its_column_until_the_converter_is_told(
    kind, request, kafka, debezium
):
    """What the refusal of such a table says, by a real connector."""
    server = request.getfixturevalue(kind)
    json = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
    json["value.converter.schemas.enable"] = "false"
    told = json | {"value.converter.replace.null.with.default": "false"}
    sent = []
    for converter in (json, told):
        with server_source(kind, server) as source:
            source.execute("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 5)")
            assert source.database.defaults("t") == ["n"]
            database = source.settings.database
            topic = f"{database}.{database if kind == 'mariadb' else 'public'}.t"
            with debezium.connector(server.connector(database, "t") | converter):
                source.execute("INSERT INTO t VALUES (1, NULL)")
                debezium.wait_for(topic, 1)
                ((key, value),) = kafka.messages(topic)
                (event,) = DebeziumFormat({}).decode(Message("t/0", 0, key, value))
                sent.append(event.after["n"])
    assert sent == [5, None]
