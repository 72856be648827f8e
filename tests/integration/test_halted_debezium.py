"""A table that is altered halts with the views that need it, through real Debezium connectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mview_connectors.formats.debezium.encoding import after_envelope

from tests.integration.test_halted_tables import VIEWS, Source, ends_by
from tests.seeds import of_today

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
]

#: Of a connector that sends the schema with each message, as it does by default.
_ENVELOPES = {
    f"{what}.converter{more}": value
    for what in ("key", "value")
    for more, value in (
        ("", "org.apache.kafka.connect.json.JsonConverter"),
        (".schemas.enable", "true"),
    )
}


@pytest.mark.parametrize("kind", of_today(("mariadb", "postgresql"), 2))
def test_through_debezium(
    request: Any, spark: Any, kafka: Any, debezium: Any, tmp_path: Path, kind: str
) -> None:
    """A table that is altered is noticed by its next message."""
    server, everything = request.getfixturevalue(kind), tuple(VIEWS)
    reads_t = ("notes", "counted", "numbers", "both")
    with server.new_database() as database:
        schema = "public" if kind == "postgresql" else database
        changes = {
            "source": "kafka",
            "format": "debezium",
            "T": "1500ms",
            "bootstrap_servers": kafka.bootstrap,
            "topic": f"{database}.{schema}.{{table}}",
            "heartbeat_topic": f"__debezium-heartbeat.{database}",
            "options": {"format.skipped.operations": "none"},
        }
        source = Source(kind, server, database, tmp_path, changes)
        settings = server.connector(database, "t", "u") | _ENVELOPES
        with debezium.connector(settings | {"heartbeat.interval.ms": "200"}):
            source.run("UPDATE t SET spare = 2 WHERE id = 0; UPDATE u SET y = 9 WHERE id = 0")
            for table in "tu":
                debezium.wait_for(f"{database}.{schema}.{table}", 1)
            with ends_by(run := source.running(), "needs column 'note' of table shop.t"):
                source.until(run, *everything)
                source.run("ALTER TABLE t DROP COLUMN note")
                source.run("INSERT INTO t VALUES (51, 2, 1); INSERT INTO u VALUES (51, 2)")
                source.until_halted(run, "notes", "counted")
                source.until(run, "numbers", "others", "both")
                source.run("UPDATE t SET x = 7 WHERE id = 51; DELETE FROM u WHERE id = 3")
                source.until(run, "numbers", "others", "both")
                source.run("ALTER TABLE t RENAME COLUMN x TO z")
                source.run("INSERT INTO t VALUES (52, 3, 1); INSERT INTO u VALUES (52, 1)")
                source.until_halted(run, *reads_t)
                source.until(run, "others")
                assert (source.kept("notes"), source.kept("counted")) == (20, 3)
                assert source.kept("numbers") == 21
                source.run("INSERT INTO u VALUES (53, 1); DELETE FROM u WHERE id = 4")
                source.until(run, "others")
            # Not while it runs: who has halted is looked at once more, and may find it mended.
            source.run("ALTER TABLE t RENAME COLUMN z TO x")
            source.run("ALTER TABLE t ADD COLUMN note varchar(20)")
            with source.running() as run:
                source.until(run, *everything)
                # No message tells of it: the views stay as they are, and are never emptied.
                source.run("DROP TABLE t; INSERT INTO u VALUES (60, 1)")
                source.until(run, "others")
            with source.running() as run:
                source.run("INSERT INTO u VALUES (61, 1)")
                source.until(run, "others")
            assert source.halted() == set()
            assert source.kept("numbers") == 22
            # As the converter writes them, the schema of all of them was read once.
            for table in "tu":
                sent = kafka.messages(f"{database}.{schema}.{table}")
                assert all(after_envelope(value) for _, value in sent if value is not None)
