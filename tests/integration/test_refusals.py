"""What `mview run` says to wrong set-ups, with real servers: exit code, place and hint."""

from __future__ import annotations

import re
import threading
import time

import pytest
import yaml
from click.testing import CliRunner

from mview.cli import main
from mview.secrets import reveal
from tests.services.process import free_port

pytestmark = [pytest.mark.service]


class Project:
    """A database with a table, topics that a connector would have made, and a view."""

    def __init__(self, server, database, kafka, folder):
        self.folder, self.kafka = folder, kafka
        server.execute("CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE bare (id INT)", database)
        self.topic = kafka.create_topic(f"{database}.t")
        self.beats = kafka.create_topic(f"{database}.beats")
        kafka.produce(self.beats, ['{"ts_ms": 1700000000000}'])
        settings = server.settings(database)
        # Workers have the environment from when their JVM was started: a file is always there.
        secret = folder / "shop.secret"
        secret.write_text(reveal(settings["password"], "tests"))
        self.connection = settings | {"password": f"${{file:{secret}}}"}
        self.changes = {
            "source": "kafka",
            "format": "debezium",
            "bootstrap_servers": kafka.bootstrap,
            "topic": f"{database}.{{table}}",
            "heartbeat_topic": self.beats,
        }

    def run(self, sql="SELECT id FROM shop.t"):
        body = {
            "store": "store",
            "connections": {"shop": self.connection},
            "changes": {"shop": {k: v for k, v in self.changes.items() if v is not None}},
        }
        (self.folder / "mview.yml").write_text(yaml.safe_dump(body))
        (self.folder / "v.sql").write_text(sql)
        command = ["run", str(self.folder / "v.sql"), "-c", str(self.folder / "mview.yml")]
        result = CliRunner().invoke(main, command)
        assert "of-the-tests" not in result.output
        return result.exit_code, " ".join(result.output.split())


@pytest.fixture(params=["mariadb", "postgresql"])
def project(request, kafka, tmp_path):
    server = request.getfixturevalue(request.param)
    with server.new_database() as database:
        yield Project(server, database, kafka, tmp_path)


#: Of a broker the same is said, whatever the database is.
of_a_broker = pytest.mark.parametrize("project", ["postgresql"], indirect=True)


def test_a_table_without_a_primary_key(project):
    code, said = project.run("SELECT id FROM shop.bare")
    assert code == 1
    assert "shop.bare has no primary key" in said
    assert "v.sql:1:" in said
    assert "ALTER TABLE" in said


def test_an_unknown_table(project):
    code, said = project.run("SELECT id FROM shop.tt")
    assert code == 1
    assert "unknown table shop.tt" in said
    assert "did you mean 'shop.t'" in said


@of_a_broker
@pytest.mark.long
def test_heartbeats_by_a_clock_that_is_ahead(spark, project):
    ended = threading.Event()

    def beat():
        while not ended.wait(0.2):
            ahead = int(time.time() * 1000) + 60_000
            project.kafka.produce(project.beats, [f'{{"ts_ms": {ahead}}}'])

    project.changes["T"] = "5 s"
    beats = threading.Thread(target=beat)
    beats.start()
    try:
        code, said = project.run()
    finally:
        ended.set()
        beats.join()
    assert code == 2
    assert "has a clock that is ahead of the database's by more than T" in said
    assert re.search(r"got: (5[5-9]|60)\d{3} ms ahead, or more; T is 5000 ms", said)


@of_a_broker
def test_a_missing_topic(project):
    project.changes["topic"] = "no.{table}"
    code, said = project.run()
    assert code == 2
    assert "topic 'no.t' does not exist" in said
    assert "changes.shop" in said


@of_a_broker
def test_no_heartbeat_topic(project):
    project.changes["heartbeat_topic"] = None
    code, said = project.run()
    assert code == 2
    assert "no heartbeat topic is configured" in said
    assert "T covers clock skew and the way to Kafka" in said
    assert "heartbeat.interval.ms" in said


@of_a_broker
def test_a_heartbeat_topic_without_heartbeats(project):
    project.changes["heartbeat_topic"] = project.topic
    code, said = project.run()
    assert code == 2
    assert "never had a message" in said


def test_the_database_is_down(project):
    project.connection |= {"port": free_port()}
    code, said = project.run()
    assert code == 1
    assert "failed while" in said
    assert "check that the server runs" in said


def test_a_wrong_password(project, monkeypatch):
    monkeypatch.setenv("WRONG_PASSWORD", "sesame-1234")
    project.connection |= {"password": "${env:WRONG_PASSWORD}"}
    code, said = project.run()
    assert code == 2
    assert "where: connections.shop got: " in said
    assert "check the address, the user, the password and" in said
    assert "sesame" not in said


@of_a_broker
def test_the_broker_is_down(project, monkeypatch):
    monkeypatch.setattr("mview_connectors.changelogs.kafka.client._PATIENCE", 1.0)
    project.changes["bootstrap_servers"] = f"127.0.0.1:{free_port()}"
    code, said = project.run()
    assert code == 1
    assert "does not answer" in said
