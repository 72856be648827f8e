"""A broker that is killed while tables are loaded, and while changes are followed."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml
from mview_connectors.changelogs.sqlite.server import SqliteServer
from pyspark.sql import SparkSession

from mview.admin.content import StoredView
from mview.admin.status import status
from mview.admin.verify import verify
from mview.config.file import load_config
from mview.errors import ConfigError
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.e2e.running import Live, run_once, views_of
from tests.relations import rel
from tests.services.kafka import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(900)]


class Writer:
    """An application: a table of numbers, and its log in Kafka."""

    def __init__(self, folder: Path, broker: KafkaServer) -> None:
        self.broker = broker
        self.topic = broker.create_topic(f"broker{time.time_ns()}.t")
        self.database = sqlite3.connect(folder / "shop.db", isolation_level=None)
        self.database.execute("create table t(id integer primary key, x integer)")
        self.database.executemany("insert into t values (?, 1)", [(n,) for n in range(400)])

    def insert(self, number: int) -> None:
        self.database.execute("insert into t values (?, 2)", (number,))
        self.send(table="t", op="insert", after={"id": number, "x": 2}, position=number)

    def send(self, **change: object) -> None:
        body = json.dumps({**change, "ts": time.time_ns() // 1_000_000})
        self.broker.produce(self.topic, [body])

    def beat(self) -> None:
        self.send(op="heartbeat")

    def changes(self) -> dict[str, object]:
        """How mview reads the log."""
        return {
            "source": "kafka",
            "format": "unified",
            "topic": f"{self.topic.removesuffix('t')}{{table}}",
            **self.broker.of_a_reader(),
            "T": "200ms",
        }


def test_others_go_on_while_it_is_away_or_refuses(
    tmp_path: Path, kafka: KafkaServer, spark: SparkSession
) -> None:
    """The log of a SQLite database beside Kafka."""
    writer = Writer(tmp_path, kafka)
    near = sqlite3.connect(tmp_path / "near.db", isolation_level=None)
    near.execute("create table t(id integer primary key, x integer)")
    near.execute("insert into t values (0, 0)")
    settings = {
        "store": "store",
        "connections": {
            "shop": {"drivername": "sqlite", "database": "shop.db"},
            "near": {"drivername": "sqlite", "database": "near.db"},
        },
        "changes": {
            "shop": writer.changes(),
            "near": {"source": "sqlite", "T": "100ms"},
        },
        "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "1"}},
    }
    (tmp_path / "mview.yml").write_text(yaml.safe_dump(settings))
    config = load_config(tmp_path / "mview.yml")
    with closing(SqliteServer(config.connections["near"])) as server:
        server.install(["t"])
    views = views_of(
        sums="select x, count(*) as n from shop.t group by x",
        of_near="select count(*) as n from near.t",
        both="select n.id, s.x + n.x as x from near.t n join shop.t s on s.id = n.id",
    )
    log = ManifestLog(Store(config.store).manifests)
    running = Live(config, *views)

    def rows(view: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in StoredView(config, view).arrow().to_pylist()]

    def said(text: str) -> int:
        return sum(text in message for message in running.notes.messages)

    def away() -> str:
        (told,) = (source for source in status(config).sources if source.name == "shop")
        return told.away

    def others_go_on() -> None:
        for _ in range(2):
            near.execute("insert into t (x) values (7)")
            ((count,),) = near.execute("select count(*) from t").fetchall()
            running.until(lambda count=count: rows("of_near") == [(count,)])

    sent = 0
    try:
        running.until(lambda: writer.beat() or ((m := log.latest()) and len(m.views) == len(views)))
        for number, what in enumerate(("away", "refused"), start=1):
            with ExitStack() as trouble:
                if what == "away":
                    kafka.kill()
                    trouble.callback(kafka.restart)
                else:
                    trouble.enter_context(kafka.denied(writer.topic))
                    # So that there is something to be read; who had asked before it was denied may
                    # still get it.
                    writer.insert(1_002)
                    sent += 1
                running.until(away)
                others_go_on()
                before = rows("sums")
                if what == "refused":
                    writer.insert(1_003)
                    sent += 1
                others_go_on()
                assert rows("sums") == before
            writer.insert(1_000 * number + 1)
            sent += 1
            running.until(lambda sent=sent: dict(rows("sums")).get(2) == sent)
            assert (said("shop is away"), said("shop is back")) == (number, number)
        assert said("authorization failed") == 1
        assert said("waiting for it") == 0
        running.until(lambda: len(rows("both")) == 9)
    finally:
        running.stop()
        writer.database.close()
        near.close()
    assert all(result.equal for result in verify(config, views))


@pytest.mark.long
def test_it_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, kafka: KafkaServer, spark: SparkSession
) -> None:
    writer = Writer(tmp_path, kafka)
    settings = {
        "store": "store",
        "connections": {"shop": {"drivername": "sqlite", "database": "shop.db"}},
        "changes": {"shop": writer.changes()},
        "engine": {"chunk_rows": 10, "chunks_per_epoch": 1},
        "spark": {"master": "local[2]", "conf": {"spark.sql.shuffle.partitions": "1"}},
    }
    (tmp_path / "mview.yml").write_text(yaml.safe_dump(settings))
    config = load_config(tmp_path / "mview.yml")
    views = views_of(sums="select x, count(*) as n from shop.t group by x")
    log = ManifestLog(Store(config.store).manifests)
    running = Live(config, *views)

    def waits() -> int:
        return sum("waiting for it, attempt" in text for text in running.notes.messages)

    def counts() -> dict[int, int]:
        rows = StoredView(config, "sums").arrow().to_pylist()
        return {row["x"]: row["n"] for row in rows}

    try:
        running.until(lambda: (latest := log.latest()) and latest.batch >= 2)
        assert log.latest().tables[rel("shop.t")].phase == "loading"
        kafka.kill()
        running.until(lambda: waits() >= 1)
        kafka.restart()
        writer.insert(1_000)
        running.until(lambda: writer.beat() or log.latest().views)
        writer.insert(1_001)
        running.until(lambda: counts() == {1: 400, 2: 2})

        before = waits()
        kafka.kill()
        running.until(lambda: waits() > before)
        kafka.restart()
        writer.insert(1_002)
        running.until(lambda: counts() == {1: 400, 2: 3})

        # Who may not read any more is told so: to wait for that would help nobody.
        before = waits()
        with kafka.denied(writer.topic):
            writer.insert(1_003)
            refused = running.failure()
        assert isinstance(refused, ConfigError)
        assert "authorization failed" in str(refused.got)
        assert waits() == before
    finally:
        running.stop()
        writer.database.close()
    run_once(config, *views)
    assert counts() == {1: 400, 2: 4}
    assert [result.equal for result in verify(config, views)] == [True]
