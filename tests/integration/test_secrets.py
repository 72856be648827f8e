"""No secret in any file, log, plan or error: everything a run leaves behind is searched."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from click.testing import CliRunner

from mview.cli import main
from mview.secrets import reveal
from tests.conftest import small_config
from tests.services.process import free_port

# Every day `tests/session` looks at the JVM's secrets, and `test_refusals.py` at what errors say.
pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

#: One for every place that may hold one; plain where a user may write it so (Spark's settings).
KAFKA, QUERY, SPARK, WRONG = "kafka+S3cret", "query/S3cret", "spark=S3cret", "wrong S3cret"


class Project:
    """A database with a table, its topic with a heartbeat, and a view."""

    def __init__(self, server, database, kafka, folder):
        server.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)", database)
        topic, beats = (kafka.create_topic(f"{database}.{name}") for name in ("t", "beats"))
        self._kafka, self._beats, self._ended = kafka, beats, threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self.folder, self.topic, self.said = folder, topic, ""
        self.connection = server.settings(database)
        self.password = reveal(self.connection["password"], "")
        self.changes = {
            "source": "kafka",
            "format": "debezium",
            "bootstrap_servers": kafka.bootstrap,
            "topic": f"{database}.{{table}}",
            "heartbeat_topic": beats,
            "T": "100ms",
            "options": {"sasl.username": "reader", "sasl.password": "${env:SECRET_KAFKA}"},
        }
        spark = small_config(folder).spark
        conf = spark.conf | {"spark.hadoop.fs.s3a.secret.key": SPARK}
        self.spark = {"master": spark.master, "conf": conf}
        (folder / "v.sql").write_text("SELECT id FROM shop.t")

    def _beat(self):
        while not self._ended.wait(0.2):
            self._kafka.produce(self._beats, [f'{{"ts_ms": {int(time.time() * 1000)}}}'])

    @contextmanager
    def beating(self):
        """Heartbeats, as a connector that goes on sends them."""
        self._beating.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._beating.join()

    def mview(self, command, *options, connection=(), changes=(), alone=False):
        """Run a command, in a process of its own or in this one; returns exit code and output."""
        body = {
            "connections": {"shop": self.connection | dict(connection)},
            "changes": {"shop": self.changes | dict(changes)},
            "store": "store",
            "spark": self.spark,
        }
        config = self.folder.parent / f"{self.folder.name}.yml"
        config.write_text(yaml.safe_dump(body | {"store": str(self.folder / "store")}))
        files = ["v.sql"] if command != "status" else []
        arguments = [command, *files, "-c", str(config), *options]
        code, said = (_process if alone else _call)(arguments)
        self.said += said
        return code, said

    def check(self):
        """Search all that was said, and every file below the project's folder."""
        places = {"output": self.said.encode()}
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        places |= {str(file): file.read_bytes() for file in files}
        for secret in (self.password, KAFKA, QUERY, SPARK, WRONG):
            for spelled in {secret, quote(secret, safe="")}:
                found = [name for name, content in places.items() if spelled.encode() in content]
                assert not found, f"{spelled} is in {found}"


def _process(arguments):
    script = "from mview.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def _call(arguments):
    done = CliRunner().invoke(main, arguments)
    assert not done.exception or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.output


@pytest.fixture(params=["mariadb", "postgresql"])
def project(request, kafka, tmp_path, monkeypatch):
    server = request.getfixturevalue(request.param)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, secret in {"QUERY": QUERY, "KAFKA": KAFKA, "WRONG": WRONG}.items():
        monkeypatch.setenv(f"SECRET_{name}", secret)
    monkeypatch.setattr("mview_connectors.changelogs.kafka.client._PATIENCE", 1.0)
    with (
        server.new_database() as database,
        Project(server, database, kafka, folder).beating() as made,
    ):
        yield made


def test_secrets_are_nowhere(project):
    # A URL option that both drivers accept, with a value that no message needs.
    postgresql = project.connection["drivername"].startswith("postgresql")
    key = "sslpassword" if postgresql else "read_default_group"
    secret_query = {"query": {key: "${env:SECRET_QUERY}"}}
    code, said = project.mview("run", "--once", "--debug", connection=secret_query, alone=True)
    assert code == 0, said
    project.check()

    wrong_password = secret_query | {"password": "${env:SECRET_WRONG}"}
    no_broker = {"bootstrap_servers": f"127.0.0.1:{free_port()}"}
    refusals = [
        # The table is known to the store: only `check` asks the database again.
        (2, "check", {"connection": wrong_password}),
        (2, "check", {"connection": {"query": {"no_such": "${env:SECRET_QUERY}"}}}),
        (0, "check", {"connection": {"port": free_port()}}),
        (1, "run", {"changes": no_broker}),
        (2, "run", {"changes": {"topic": "nowhere.{table}"}}),
        (
            2,
            "run",
            {"changes": {"options": {"sasl.password": "${env:SECRET_KAFKA}", "no.such": QUERY}}},
        ),
    ]
    for code, command, settings in refusals:
        got, said = project.mview(command, "--debug", **settings)
        assert got == code, said
        project.check()
    assert "no.such" in project.mview("status", "--json")[1]
    assert list(Path(project.folder / "store").glob("failure/*.json"))
    project.check()
