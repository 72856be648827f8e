"""`mview doctor` with real servers: grants, logs, topics, heartbeats, slots; each has a remedy."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from itertools import count

import pytest

from mview.admin.doctor import Doctor, Finding
from mview.config import ChangesSettings, Config, ConnectionSettings
from mview.plan.definition import parse_view
from tests.connectors.databases_contract import server_source
from tests.services.mariadb import MariadbServer

pytestmark = pytest.mark.service
_numbers = count(1)
_PASSWORD = "Read-0nly"


@pytest.fixture(params=["postgresql", "mariadb"])
def source(request):
    with server_source(request.param, request.getfixturevalue(request.param)) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
        yield source


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """The findings by what is asked about, for a view of some tables of `src`."""
    monkeypatch.setenv("READER_PASSWORD", _PASSWORD)

    def asked(settings, changes, *tables):
        config = Config(
            path=tmp_path / "mview.yml",
            store=tmp_path / "store",
            connections={"src": settings},
            changes={"src": ChangesSettings(connection="src", T="5 seconds", **changes)},
        )
        views = [parse_view(f"SELECT * FROM src.{t}", f"v{n}") for n, t in enumerate(tables)]
        told: dict[str, Finding] = {}
        for finding in Doctor(config, views).examine():
            if (before := told.get(finding.about)) is not None:  # all that is wrong with it
                assert before.state == finding.state == "wrong"
                finding = replace(finding, next=f"{before.next}\n{finding.next}")
            told[finding.about] = finding
        return told

    return asked


@pytest.fixture
def topics(kafka):
    """`topics(table…)`: their settings under `changes`; heartbeats come by `beat`."""

    class Topics:
        def __init__(self):
            self.prefix = f"doc{next(_numbers)}"
            self.beats = kafka.create_topic(f"{self.prefix}.beats")

        def make(self, table, **settings):
            return kafka.create_topic(f"{self.prefix}.{table}", **settings)

        def beat(self, ago_s=0.0):
            kafka.produce(self.beats, [json.dumps({"ts_ms": int((time.time() - ago_s) * 1000)})])

        @property
        def changes(self):
            return {
                "source": "kafka",
                "format": "debezium",
                "bootstrap_servers": kafka.bootstrap,
                "topic": f"{self.prefix}.{{table}}",
                "heartbeat_topic": self.beats,
            }

    return Topics()


def reader_of(source):
    """The same connection for a user without rights."""
    name = f"reader{next(_numbers)}_{os.getpid()}"
    if source.kind == "mariadb":
        source.execute(f"CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY '{_PASSWORD}'")
        source.execute(f"GRANT CREATE TEMPORARY TABLES ON *.* TO '{name}'@'127.0.0.1'")
    else:
        source.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{_PASSWORD}'")
    parts = {"username": name, "password": "${env:READER_PASSWORD}"}
    return source.settings.model_copy(update=parts)


def wrong(findings):
    return [name for name, finding in findings.items() if finding.state == "wrong"]


def test_all_is_well(source, topics, ask):
    topics.make("t")
    topics.beat()
    findings = ask(source.settings, topics.changes, "t")
    assert wrong(findings) == []
    assert "keeps changes for 168 hours" in findings["src.t: topics"].text
    log = {"postgresql": "log", "mariadb": "binary log"}[source.kind]
    assert f"connections.src: {log}" in findings
    assert float(findings["changes.src: heartbeat"].text.split()[4]) < 60


def test_a_missing_grant_is_told_and_mends(source, topics, ask):
    topics.make("t")
    topics.beat()
    settings = reader_of(source)
    refused = ask(settings, topics.changes, "t")
    assert wrong(refused) == ["src.t"]
    assert "may not read src.t" in refused["src.t"].text
    source.execute(refused["src.t"].next.removeprefix("as its owner: "))
    assert wrong(ask(settings, topics.changes, "t")) == []


def test_a_schema_and_columns_that_may_not_be_read(postgresql, topics, ask):
    with server_source("postgresql", postgresql) as source:
        source.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, x int, y int)")
        topics.make("t")
        topics.beat()
        settings = reader_of(source).model_copy(update={"namespace": "s"})
        source.execute(f"GRANT SELECT (id, x) ON s.t TO {settings.username}")
        for statement in ('GRANT USAGE ON SCHEMA "s"', 'GRANT SELECT ("y") ON "s"."t"'):
            hint = ask(settings, topics.changes, "t")["src.t"].next
            assert hint == f'as its owner: {statement} TO "{settings.username}"'
            source.execute(hint.removeprefix("as its owner: "))
        assert wrong(ask(settings, topics.changes, "t")) == []


def test_what_the_log_of_postgresql_lacks(postgresql, topics, ask):
    with server_source("postgresql", postgresql) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
        source.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
        topics.make("t")
        topics.make("u")
        topics.beat()
        findings = ask(source.settings, topics.changes, "t", "u")
        assert wrong(findings) == ["src.t"]
        source.execute(findings["src.t"].next)
        assert wrong(ask(source.settings, topics.changes, "t", "u")) == []


def test_what_the_binary_log_lacks(mariadb: MariadbServer, topics, ask):
    with server_source("mariadb", mariadb) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        topics.make("t")
        topics.beat()
        source.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
        try:
            findings = ask(source.settings, topics.changes, "t")
        finally:
            source.execute("SET GLOBAL binlog_row_image = 'FULL'")
        assert wrong(findings) == ["src.t", "connections.src: binary log"]
        assert "binlog_row_image = 'FULL'" in findings["src.t"].next


def test_topics_and_heartbeats(postgresql, topics, ask):
    with server_source("postgresql", postgresql) as source:
        names = ("absent", "squeezed", "short", "good")
        for name in names:
            source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        source.execute("INSERT INTO short SELECT generate_series(1, 40000); ANALYZE short")
        topics.make("squeezed", **{"cleanup.policy": "compact"})
        topics.make("short", **{"retention.ms": "1000"})
        topics.make("good")
        topics.beat(ago_s=3600)
        findings = ask(source.settings, topics.changes, *names)
        assert wrong(findings) == [
            "src.absent: topics",
            "src.short: topics",
            "src.squeezed: topics",
            "changes.src: heartbeat",
        ]
        assert "retention.ms=1000" in findings["src.short: topics"].text
        assert "3,6" in findings["changes.src: heartbeat"].text
        waits = {**topics.changes, "missing_topics": "wait"}
        assert "comes with the first change" in (
            ask(source.settings, waits, *names)["src.absent: topics"].text
        )


def test_a_log_that_postgresql_sends_itself(postgresql, ask):
    with server_source("postgresql", postgresql) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        own = {"source": "postgresql"}
        findings = ask(source.settings, own, "t")
        assert wrong(findings) == []
        assert "all its changes" in findings["src.t: log"].text
        assert "will have all tables" in findings["changes.src: publication"].text
        before = ask(source.settings, own)
        assert "has no table to have" in before["changes.src: publication"].text
        (slot,) = (one for name, one in findings.items() if name.startswith("changes.src: slot "))
        assert "made by the first run" in slot.text
        assert "1 slot, 1 of them made by the first run" in findings["changes.src: readers"].text
        settings = reader_of(source)
        source.execute(f"GRANT SELECT ON t TO {settings.username}")
        refused = ask(settings, own, "t")
        assert wrong(refused) == ["changes.src: server", "changes.src: publication"]
        assert (
            f'ALTER ROLE "{settings.username}" REPLICATION' in refused["changes.src: server"].next
        )


def test_a_log_that_mariadb_sends_itself(mariadb: MariadbServer, ask):
    with server_source("mariadb", mariadb) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source.execute(
            "CREATE TABLE c (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES t (id)"
            " ON DELETE CASCADE)"
        )
        own = {"source": "mysql"}
        findings = ask(source.settings, own, "t")
        assert wrong(findings) == []
        assert "all its changes" in findings["src.t: log"].text
        assert findings["changes.src: binary log"].text.startswith("kept ")
        refused = ask(source.settings, own, "c", "t")
        assert wrong(refused) == ["src.c: log"]
        assert "DROP FOREIGN KEY" in refused["src.c: log"].next
        settings = reader_of(source)
        source.execute(
            f"GRANT SELECT ON {source.settings.database}.t TO {settings.username}@'127.0.0.1'"
        )
        refused = ask(settings, own, "t")
        assert "changes.src: server" in wrong(refused)
        grants = refused["changes.src: server"].next.splitlines()
        assert [grant.split(" ON ")[0] for grant in grants] == [
            "GRANT BINLOG MONITOR",
            "GRANT REPLICA MONITOR",
            "GRANT PROCESS",
            "GRANT REPLICATION SLAVE",
        ]


def test_servers_that_are_away(ask, kafka):
    down = ConnectionSettings(
        name="src", drivername="mysql", host="127.0.0.1", port=1, database="d", username="u"
    )
    changes = {
        "source": "kafka",
        "format": "debezium",
        "bootstrap_servers": kafka.bootstrap,
        "topic": "nothing.{table}",
        "heartbeat_topic": "none",
        "connect": "http://127.0.0.1:1",
    }
    assert wrong(ask(down, changes, "t")) == [
        "connections.src",
        "src.t: topics",
        "changes.src: heartbeat",
        "changes.src: connector",
    ]
