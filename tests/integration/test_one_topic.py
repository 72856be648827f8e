"""Canal, Maxwell, TiCDC: several tables in one topic -> mview run, with a real database and broker.

None of these programs runs here. A relay stands for them: it changes rows of a real MariaDB, and
writes what the program would into a real topic, with what else stands in such a topic: a table that
nobody reads, one of the same name in another database, heartbeats, changes that are sent again.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mview.admin.content import published
from mview.clock import SourceMs
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.testing import RowChange
from mview.testing.formats import Row, history
from tests.connectors.format_writers import (
    CanalHarness,
    MaxwellHarness,
    MysqlHarness,
    TicdcHarness,
)
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.truth import plain, view_rows
from tests.seeds import daily, of_today
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

_TABLES = ("items", "parts")
_BEAT = "mview_heartbeat"
#: The database that writers of formats name.
_ELSEWHERE = b'"database": "shop"'
#: Rows that are there when the load begins, above those that change.
_LOADED = 300
#: Of MariaDB, otherwise than information_schema says it.
_DECLARED = {"id": "bigint primary key", "at": "timestamp(6) null default null"}

_VIEWS = {
    "items": "CREATE MATERIALIZED VIEW items WITH (key='id') AS SELECT * FROM shop.items",
    "parts": "CREATE MATERIALIZED VIEW parts WITH (key='id') AS SELECT * FROM shop.parts",
    "priced": "CREATE MATERIALIZED VIEW priced WITH (key='id') AS "
    "SELECT i.id, i.name, p.price FROM shop.items i JOIN shop.parts p ON i.id = p.id",
}


@dataclass
class Relay:
    """A database, and its changes in one topic.

    Attributes:
        harness: writes the format.
        server: MariaDB.
        database: its name there.
        kafka: the broker.
        rows: by table, its rows now.
        sent: each change with the offset after its messages, and whether it was sent again.
    """

    harness: MysqlHarness
    server: Any
    database: str
    kafka: Any
    chance: random.Random
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: {t: {} for t in _TABLES})
    sent: list[tuple[int, RowChange, bool]] = field(default_factory=list)
    _number: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    @property
    def topic(self) -> str:
        return f"{self.database}_all"

    def changes(self) -> dict[str, Any]:
        """The section `changes.<connection>`."""
        more = {} if type(self.harness) is TicdcHarness else {"format.heartbeat.table": _BEAT}
        return {
            "source": "kafka",
            "format": self.harness.format,
            "T": "2s",
            "bootstrap_servers": self.kafka.bootstrap,
            "topic": self.topic,
            "options": {**self.harness.options, **more},
        }

    def create(self) -> None:
        """The tables with their first rows, and the topic, where nothing stands yet."""
        self.kafka.create_topic(self.topic)
        columns = [f"`{n}` {_DECLARED.get(n, kind)}" for n, _, kind in self.harness.columns]
        self._cursor = self._connect()
        for table in _TABLES:
            self._execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            for number in range(1000, 1000 + _LOADED):
                self._apply(replace(self._change(table, "c", self._row(number)), at=SourceMs(0)))
        self._cursor.connection.commit()

    def run(self) -> None:
        """Change rows, one transaction after the other, until told to stop."""
        try:
            waiting = {table: self._history(table) for table in _TABLES}
            while not self._stop.is_set():
                table = self.chance.choice(_TABLES)
                self._commit(next(waiting[table]))
                if self.chance.random() < 0.1:
                    self._say_more(table)
                time.sleep(0.01)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Relay:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def until(self, changes: int) -> None:
        """Wait until so many more changes are sent."""
        goal = len(self.sent) + changes

        def check() -> None:
            if self._error is not None:
                raise self._error

        wait_until(lambda: len(self.sent) >= goal, f"{changes} changes", PATIENCE, check)

    def finish(self) -> int:
        """End the changes; the end of the topic, with a heartbeat after all of them."""
        self._stop.set()
        self._thread.join(60)
        self._beat()
        return self._end()

    # --- the database ----------------------------------------------------------------------------

    def _connect(self) -> Any:
        cursor = self.server.connect(self.database).cursor()
        cursor.execute("SET time_zone = '+00:00'")
        return cursor

    def _execute(self, sql: str, values: Any = ()) -> None:
        self._cursor.execute(sql, values)

    def _apply(self, change: RowChange) -> None:
        """A change in the database, in its open transaction, and in the copy of its rows."""
        rows, table = self.rows[change.table], change.table
        names = [name for name, _, _ in self.harness.columns]
        marks = ", ".join(["%s"] * len(names))
        if change.kind == "truncate":
            rows.clear()
            self._execute(f"TRUNCATE TABLE {table}")
        elif change.after is None:
            assert change.before is not None
            self._execute(f"DELETE FROM {table} WHERE id = %s", (change.before["id"],))
        elif change.before is None:
            self._execute(f"INSERT INTO {table} VALUES ({marks})", _stored(change.after))
        else:
            told = ", ".join(f"`{name}` = %s" for name in names)
            values = (*_stored(change.after), change.before["id"])
            self._execute(f"UPDATE {table} SET {told} WHERE id = %s", values)
        _replay(rows, change)

    def _row(self, number: int) -> Row:
        return {
            name: number if name == "id" else self.chance.choice((None, *self.harness.values[name]))
            for name, _, _ in self.harness.columns
        }

    def _change(self, table: str, kind: Any, after: Row) -> RowChange:
        self._number += 1
        return RowChange(kind, table, None, after, self._number, SourceMs(0))

    def _history(self, table: str) -> Iterator[RowChange]:
        """Random changes for ever; each history begins with no row of the first numbers."""
        while True:
            changes = history(self.harness, self.chance, 200)
            for change in changes:
                yield replace(change, table=table)
            for row in [row for key, row in self.rows[table].items() if key < 1000]:
                yield replace(changes[0], kind="d", table=table, before=row, after=None)

    # --- the log ---------------------------------------------------------------------------------

    def _commit(self, change: RowChange) -> None:
        self._apply(change)
        self._cursor.connection.commit()
        self._number += 1
        change = replace(change, number=self._number, at=self._clock())
        self._send(change, again=False)
        self._beat()

    def _clock(self) -> SourceMs:
        self._execute("SELECT floor(unix_timestamp(sysdate(3)) * 1000)")
        (at,) = self._cursor.fetchone()
        self._cursor.connection.commit()
        return SourceMs(int(at))

    def _send(self, change: RowChange, *, again: bool) -> None:
        own = f'"database": "{self.database}"'.encode()
        bodies = [
            (key, value.replace(_ELSEWHERE, own))
            for key, value in self.harness.write(change)
            if value is not None
        ]
        self.kafka.produce(self.topic, bodies)
        self.sent.append((self._end(), change, again))

    def _beat(self) -> None:
        at = self._clock()
        if (written := self.harness.heartbeat(at)) is not None:
            self.kafka.produce(self.topic, [written])
            return
        words = {"database": self.database, "table": _BEAT, "data": {"id": 1}, "ts": at // 1000}
        body: dict[str, Any] = {**words, "type": "update", "old": {}}
        if type(self.harness) is CanalHarness:
            row = {"type": "UPDATE", "data": [{"id": "1"}], "old": [{}], "isDdl": False}
            body = {**words, **row, "es": at, "ts": at}
        else:
            self._number += 1
            body |= {"xid": self._number, "position": f"bin.000007:{self._number * 100}"}
        self.kafka.produce(self.topic, [json.dumps(body)])

    def _say_more(self, table: str) -> None:
        """What else stands in such a topic."""
        self._number += 1
        row = self._row(1)
        other = RowChange("c", "stray", None, row, self._number, self._clock())
        values = [value for _, value in self.harness.write(other) if value is not None]
        # The table of the same name in another database, and one that nobody reads.
        same = [value.replace(b'"stray"', f'"{table}"'.encode()) for value in values]
        assert _ELSEWHERE in same[0]
        self.kafka.produce(self.topic, [*values, *same])
        for _, change, _ in self.sent[-self.chance.randrange(1, 4) :]:
            self._send(change, again=True)

    def _end(self) -> int:
        return int(self.kafka.end_offsets(self.topic)[0])


def _replay(rows: dict[int, Row], change: RowChange) -> None:
    if change.kind == "truncate":
        rows.clear()
    if change.before is not None:
        rows.pop(change.before["id"], None)
    if change.after is not None:
        rows[change.after["id"]] = change.after


def _stored(row: Row) -> list[Any]:
    """A row as the driver takes it."""
    values = []
    for name, value in row.items():
        if name == "bits" and value is not None:
            value = int.from_bytes(value, "big")
        if isinstance(value, dt.datetime):
            value = str(plain(value))
        values.append(value)
    return values


def _content(rows: dict[int, Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(plain, row.values())) for row in rows.values())


@pytest.mark.long
@pytest.mark.parametrize("harness", of_today([CanalHarness, MaxwellHarness, TicdcHarness], 3))
def test_every_epoch_is_right_with_several_tables_in_one_topic(
    spark, mariadb, kafka, tmp_path, harness
):
    chance = random.Random(daily(1))
    with mariadb.new_database() as database:
        relay = Relay(harness(), mariadb, database, kafka, chance)
        relay.create()
        loaded = {table: dict(rows) for table, rows in relay.rows.items()}
        config, views = make_project(
            *(tmp_path, {"shop": relay}, _VIEWS), engine={"chunk_rows": 50, "max_changes": 40}
        )
        with relay:
            relay.until(20)
            with Running(config, views) as run:
                run.until_reading()
                relay.until(50)
                run.until_live()
                relay.until(100)
                run.until_epochs(3)
            relay.until(100)  # while nobody reads
            with Running(config, views) as run:
                run.until_epochs(3)
                relay.until(100)
                end = relay.finish()

                def is_read() -> bool:
                    return published(config).offsets["shop"][f"{relay.topic}/0"] >= end

                wait_until(is_read, "all changes to be published", PATIENCE, run.check)
        _check(config, relay, loaded)


def _check(config: Any, relay: Relay, rows: dict[str, dict[int, Row]]) -> None:
    """Every epoch is what the log has up to it; and the last what the database has."""
    log, checked, at = ManifestLog(Store(config.store).manifests), 0, 0
    for epoch in range(1, published(config).epoch + 1):
        manifest = log.read(epoch)
        if not manifest.views:
            continue
        end = manifest.offsets["shop"][f"{relay.topic}/0"]
        while at < len(relay.sent) and relay.sent[at][0] <= end:
            _, change, again = relay.sent[at]
            if not (again and relay.harness.positions):
                _replay(rows[change.table], change)
            at += 1
        priced = Counter(
            (key, row["name"], rows["parts"][key]["price"])
            for key, row in rows["items"].items()
            if key in rows["parts"]
        )
        wanted = {table: _content(rows[table]) for table in _TABLES} | {"priced": priced}
        for view, content in wanted.items():
            if view not in manifest.views:
                continue  # its tables are not loaded yet
            found = view_rows(config, view, epoch)
            assert found == content, (
                f"epoch {epoch} of {view}: lacks {list((content - found).items())[:3]}, "
                f"has in excess {list((found - content).items())[:3]}"
            )
        checked += 1
    assert checked > 6
    assert at == len(relay.sent)
    assert rows == relay.rows
