"""How fast changes are decoded: per format, into typed columns, on one core.

    python -m tests.bench.decode --changes 20000

Measured is what a run does with messages that it has read: decode, type by the table, route. The
same changes of a table of six columns in every format: a half updates, the others inserts and
deletes. A database's own log comes from a real server; the others are written as their writers do.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

from mview.clock import SourceMs
from mview.config import ConnectionSettings
from mview.connector import Format, Message, load
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec
from mview.schema import TableSchema
from mview.testing import RowChange
from mview.testing.formats import MessageLog, schema_of
from tests.bench.results import Result
from tests.connectors.format_writers import (
    AvroHarness,
    CanalHarness,
    DebeziumHarness,
    EnvelopedHarness,
    MaxwellHarness,
    MysqlHarness,
    NotedHarness,
    TicdcHarness,
    UnifiedHarness,
)
from tests.connectors.test_changelogs_mysql import Log as MysqlLog
from tests.connectors.test_changelogs_postgresql import Log as PostgresqlLog
from tests.relations import rel
from tests.services.fixtures import servers

_ROUNDS = 5
#: Changes of one transaction of a real server.
_TRANSACTION = 100

_COLUMNS = (
    ("id", "bigint", "bigint(20)"),
    ("customer", "bigint", "bigint(20)"),
    ("amount", "decimal(12,2)", "decimal(12,2)"),
    ("day", "date", "date"),
    ("at", "timestamp_ntz", "datetime(3)"),
    ("note", "string", "varchar(100)"),
)
_WRITERS: dict[str, type[MysqlHarness]] = {
    "debezium, JSON": DebeziumHarness,
    "debezium, JSON with the schema envelope": EnvelopedHarness,
    "debezium, Avro": AvroHarness,
    "ticdc": TicdcHarness,
    "canal": CanalHarness,
    "maxwell": MaxwellHarness,
    "unified": UnifiedHarness,
    "noted (SQLite's triggers)": NotedHarness,
}


def make_changes(count: int) -> list[RowChange]:
    """A quarter inserts, a half updates, a quarter deletes, in an order that is possible."""
    chance, rows, changes = random.Random(7), {}, []
    for number in range(1, count + 1):
        at = SourceMs(1_700_000_000_000 + number)
        kind = chance.choice("cuud") if len(rows) > 100 else "c"
        before = rows[chance.choice(list(rows)[:100])] if kind != "c" else None
        key = before["id"] if before else number
        after = {
            "id": key,
            "customer": chance.randrange(10**6),
            "amount": Decimal(chance.randrange(10**8)).scaleb(-2),
            "day": dt.date(2024, 1, 1) + dt.timedelta(days=chance.randrange(500)),
            "at": dt.datetime(2024, 1, 1, 12, 34, 56, 789000),
            "note": f"note {chance.randrange(5000)} of the bench",
        }
        rows.pop(key, None)
        if kind != "d":
            rows[key] = after
        changes.append(RowChange(kind, "t", before, None if kind == "d" else after, number, at))
    return changes


def of_writer(kind: type[MysqlHarness], changes: Sequence[RowChange]) -> Any:
    """The messages of a format, its decoder and the table."""
    harness = kind()
    harness.columns = _COLUMNS
    log = MessageLog(harness)
    for change in changes:
        log.add(change)
    return log.next(), harness.open(), schema_of(harness)


def of_server(kind: Any, server: Any, database: str, changes: Sequence[RowChange]) -> Any:
    """The same of a database's own log."""
    with tempfile.TemporaryDirectory() as folder:
        log = kind(server, database, Path(folder))
        at = "timestamp(3)" if kind is PostgresqlLog else "datetime(3)"
        log.run(
            "DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, customer bigint, "
            f"amount decimal(12,2), day date, at {at}, note varchar(100))"
        )
        if kind is PostgresqlLog:
            log.run("ALTER TABLE t REPLICA IDENTITY FULL")
        settings = ConnectionSettings(name="c", **server.settings(database))
        with closing(load("databases", settings.drivername.partition("+")[0])(settings)) as reader:
            schema = reader.describe("t")
        changelog = log.open()
        start = changelog.begin()
        _write(server, database, changes)
        messages: list[Message] = []
        while (end := changelog.advance(start, 10_000, 500).offsets) != start:
            messages += changelog.read(changelog.splits(start, end))
            start = end
        log.close()
    return messages, log.format({}), schema


def _write(server: Any, database: str, changes: Sequence[RowChange]) -> None:
    with closing(server.connect(database)) as connection:
        cursor = connection.cursor()
        for number, change in enumerate(changes, 1):
            row = change.after or change.before or {}
            if change.kind == "c":
                sql = "INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s)"
                cursor.execute(sql, list(row.values()))
            elif change.kind == "d":
                cursor.execute("DELETE FROM t WHERE id = %s", [row["id"]])
            else:
                told = ", ".join(f"{name} = %s" for name in row if name != "id")
                values = [value for name, value in row.items() if name != "id"]
                cursor.execute(f"UPDATE t SET {told} WHERE id = %s", [*values, row["id"]])
            if number % _TRANSACTION == 0:
                connection.commit()
        connection.commit()


def measure(messages: Sequence[Message], decoder: Format, schema: TableSchema, count: int) -> float:
    """CPU seconds of decoding all of them: the median of some rounds."""
    spec = TableSpec(rel("c.t"), schema, Path(), "", None)
    seconds = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        decoded = decode_split(messages, decoder, {"t": spec})
        seconds.append(time.process_time() - begun)
        assert sum(part.changes.num_rows for part in decoded) == count
    return median(seconds)


def main() -> None:
    """Measure all formats."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decode", description=__doc__)
    parser.add_argument("--changes", type=int, default=20_000)
    count = parser.parse_args().changes
    changes = make_changes(count)
    result = Result(
        "decode",
        "Decoding of changes, per format",
        ["format", "bytes per change", "changes/s per core"],
        notes=[
            f"{count:,} changes of a table of six columns: a quarter inserts, a half updates, a "
            "quarter deletes",
            "CPU time of decoding, typing and routing, without reading from Kafka or the server; "
            f"the median of {_ROUNDS} rounds",
        ],
    )
    with servers() as server:
        logs = {"pgoutput (PostgreSQL's own log)": ("postgresql", PostgresqlLog)}
        logs["binlog (MariaDB's own log)"] = ("mariadb", MysqlLog)
        for name, (service, kind) in logs.items():
            with server(service).new_database() as database:
                made = of_server(kind, server(service), database, changes)
            _add(result, name, *made, count)
    for name, writer in _WRITERS.items():
        _add(result, name, *of_writer(writer, changes), count)
    result.save()


def _add(
    result: Result,
    name: str,
    messages: Sequence[Message],
    decoder: Format,
    schema: TableSchema,
    count: int,
) -> None:
    size = sum(len(m.value or b"") + len(m.key or b"") for m in messages)
    seconds = measure(messages, decoder, schema, count)
    result.add(name, f"{size / count:,.0f}", f"{count / seconds:,.0f}")


if __name__ == "__main__":
    main()
