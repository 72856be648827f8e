"""The servers of the tests do what other tests build on."""

from __future__ import annotations

import json

import pytest

from mview.config import ConnectionSettings
from mview.secrets import reveal
from tests.services import fixtures
from tests.services.process import ServerProcess, ServiceError

pytestmark = pytest.mark.service


def test_kafka_keeps_keys_partitions_and_tombstones(kafka):
    topic = kafka.create_topic("kept", partitions=2)
    kafka.produce(topic, [("k", "v"), ("k", None)], partition=1)
    kafka.produce(topic, ["alone"], partition=0)
    assert kafka.end_offsets(topic) == {0: 1, 1: 2}
    assert kafka.messages(topic) == [(None, b"alone"), (b"k", b"v"), (b"k", None)]
    assert kafka.end_offsets("no-such-topic") == {}


@pytest.mark.parametrize("name", ["mariadb", "postgresql"])
def test_database_is_made_used_and_dropped(name, request):
    server = request.getfixturevalue(name)
    with server.new_database() as database:
        server.execute("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1)", database)
        server.execute("INSERT INTO t VALUES (2)", database)
        assert server.execute("SELECT a FROM t ORDER BY a", database) == [(1,), (2,)]
        settings = ConnectionSettings(**server.settings(database))
        assert "of-the-tests" in reveal(settings.password, "test")
        assert "of-the-tests" not in repr(settings)
    with pytest.raises(Exception, match=database):
        server.execute("SELECT 1", database)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "schema"),
    [("mariadb", None), ("postgresql", "public")],
)
def test_debezium_sends_changes_made_after_its_start(name, schema, request, kafka, debezium):
    server = request.getfixturevalue(name)
    with server.new_database() as database:
        server.execute("CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1)", database)
        with debezium.connector(server.connector(database, "t")) as prefix:
            server.execute("INSERT INTO t VALUES (2); DELETE FROM t WHERE a = 1", database)
            topic = f"{prefix}.{schema or database}.t"
            debezium.wait_for(topic, 3)
            values = [json.loads(v) if v else None for _, v in kafka.messages(topic)]
    assert [v and v["op"] for v in values] == ["c", "d", None]
    assert values[0]["after"] == {"a": 2}


def test_a_failed_connector_is_reported_at_once(debezium, postgresql):
    settings = postgresql.connector("no_such_database", "t")
    with pytest.raises(ServiceError, match="no_such_database"), debezium.connector(settings):
        pass


def test_a_server_that_ends_is_reported_with_its_log(tmp_path):
    server = ServerProcess("x", ["sh", "-c", "echo broken pipe organ; exit 3"], tmp_path / "log")
    with pytest.raises(ServiceError, match="broken pipe organ"):
        server.wait_until_ready(lambda: False)


@pytest.mark.parametrize(
    ("required", "outcome"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)]
)
def test_a_missing_service_is_a_loud_skip_or_a_failure(required, outcome, monkeypatch):
    monkeypatch.setattr(fixtures, "REQUIRED", required)
    with pytest.raises(outcome, match="SERVICE MISSING: X: not here"), fixtures._or_skip("X"):
        raise ServiceError("not here")
