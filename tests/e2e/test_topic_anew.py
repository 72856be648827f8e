"""A topic that was deleted and made anew, while changes of its table are in quarantine."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from mview.admin.content import StoredView
from mview.cli import main
from mview.config.file import load_config
from tests.patience import wait_for
from tests.services.kafka import KafkaServer

pytestmark = [pytest.mark.service, pytest.mark.spark, pytest.mark.days(5)]

_numbers = itertools.count()


class Project:
    """Two tables in SQLite, with a topic each, and a view of each."""

    def __init__(self, folder: Path, kafka: KafkaServer, topic: str) -> None:
        self.folder, self.kafka = folder, kafka
        self.topics = {name: topic.replace("{table}", name) for name in ("notes", "codes")}
        for name in dict.fromkeys(self.topics.values()):
            kafka.create_topic(name)
        self._position = 0
        self._db = sqlite3.connect(folder / "shop.db", isolation_level=None)
        changes = {
            "source": "kafka",
            "format": "unified",
            "bootstrap_servers": kafka.bootstrap,
            "topic": topic,
            "T": "200 ms",
            "on_error": "quarantine",
        }
        body = {
            "store": "store",
            "connections": {"shop": {"drivername": "sqlite", "database": "shop.db"}},
            "changes": {"shop": changes},
        }
        (folder / "mview.yml").write_text(yaml.safe_dump(body))
        (folder / "sql").mkdir()
        for name in self.topics:
            self._db.execute(f"create table {name} (id integer primary key, body text)")
            self._db.execute(f"insert into {name} values (1, 'one')")
            (folder / "sql" / f"v_{name}.sql").write_text(f"select id, body from shop.{name}")

    def send(self, table: str, key: int, body: object) -> None:
        """A change; the row in the database has its body as text."""
        self._db.execute(f"insert or replace into {table} values (?, ?)", (key, str(body)))
        self._position += 1
        after = {"id": key, "body": body}
        change = {"table": table, "op": "insert", "after": after, "position": self._position}
        self._produce(table, change)

    def beat(self) -> None:
        for table in self.topics:
            self._produce(table, {"op": "heartbeat"})

    def _produce(self, table: str, change: dict[str, Any]) -> None:
        text = json.dumps({**change, "ts": time.time_ns() // 1_000_000})
        self.kafka.produce(self.topics[table], [text])

    def anew(self, table: str) -> None:
        """Delete a topic and make it again."""
        admin, topic = self.kafka.admin(), self.topics[table]
        admin.delete_topics([topic])[topic].result(30)
        assert wait_for(lambda: topic not in admin.list_topics(timeout=10).topics, 60)
        self.kafka.create_topic(topic)

    def __call__(self, *words: str) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            result = CliRunner().invoke(main, [*words])
        print("$ mview", *words, "->", result.exit_code, result.output, sep="\n")
        return result

    def run(self) -> Result:
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(0.2):
                self.beat()

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            return self("run", "sql", "--once")
        finally:
            ended.set()
            thread.join()


def aside(project: Project) -> dict[str, str]:
    """What is in quarantine, and the values that were wrong, by id."""
    told = json.loads(project("quarantine", "list", "--json").stdout)
    return {change["id"]: change["got"] for change in told}


def test_quarantine_is_emptied_though_the_log_goes_no_further(
    tmp_path: Path, kafka: KafkaServer
) -> None:
    project = Project(tmp_path, kafka, f"anew{next(_numbers)}.{{table}}")
    assert project.run().exit_code == 0
    project.send("notes", 2, 5)
    project.send("notes", 3, 6)
    assert project.run().exit_code == 0
    first, second = aside(project)
    project.anew("notes")
    project.send("codes", 2, "two")

    project("quarantine", "discard", "shop.notes", first)
    project("quarantine", "retry", "shop.notes", second)
    lost = project.run()
    assert lost.exit_code == 3
    assert "was deleted and made anew" in lost.stderr
    assert "mview drop shop.notes; then run again" in lost.stderr
    assert "shop.notes: 1 change in quarantine discarded" in lost.output
    assert aside(project) == {second: "6"}, "that is no text, now as then"

    dropped = project("drop", "shop.notes", "--yes")
    assert "goes:  1 change of shop.notes in quarantine; what is loaded has all" in dropped.stdout
    assert aside(project) == {}
    assert project.run().exit_code == 0
    project.send("notes", 4, "four")
    assert project.run().exit_code == 0
    config = load_config(tmp_path / "mview.yml")
    notes, codes = (StoredView(config, name).arrow().to_pylist() for name in ("v_notes", "v_codes"))
    assert sorted((row["id"], row["body"]) for row in notes) == [
        (1, "one"), (2, "5"), (3, "6"), (4, "four"),
    ]  # fmt: skip
    assert sorted((row["id"], row["body"]) for row in codes) == [(1, "one"), (2, "two")]


def test_all_tables_of_a_topic_are_named(tmp_path: Path, kafka: KafkaServer) -> None:
    project = Project(tmp_path, kafka, f"anew{next(_numbers)}")
    assert project.run().exit_code == 0
    project.anew("notes")
    project.send("codes", 2, "two")
    lost = project.run()
    assert lost.exit_code == 3
    (command,) = re.findall(r"mview (drop .*); then run again", lost.stderr)
    assert project(*command.split(), "--yes").exit_code == 0
    assert project.run().exit_code == 0
    config = load_config(tmp_path / "mview.yml")
    assert StoredView(config, "v_codes").num_rows == 2
