"""What a view must hold at an epoch, without mview: a copy of the tables, then the raw messages.

The replayer is a second, tiny reading of Debezium's messages: one row at a time into DuckDB, which
then runs the view's text as a batch query.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from mview.admin.content import StoredView, published
from mview.config import Config
from mview.plan.definition import ViewDefinition
from mview.plan.render import bind_tables
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.integration.shop import COLUMNS, KEYS, Shop

_EPOCH = dt.datetime(1970, 1, 1)
_TYPES = {"moment": "TIMESTAMP"}


class Copy:
    """The tables of a shop, taken while nobody writes; then moved along the topics.

    Args:
        shop: the shop.
        connection: its name in the configuration.
    """

    def __init__(self, shop: Shop, connection: str = "shop") -> None:
        self.shop, self.connection = shop, connection
        self._at = {table: shop.kafka.end_offsets(shop.topic(table))[0] for table in COLUMNS}
        self._seen: set[str] = set()
        self.rows = {
            table: {
                tuple(row[: len(KEYS[table])]): tuple(map(plain, row))
                for row in shop.execute(f"SELECT {', '.join(columns)} FROM {table}")
            }
            for table, columns in COLUMNS.items()
        }
        self._messages: dict[str, list[tuple[bytes | None, bytes | None]]] = {}

    def fetch(self) -> None:
        """Take the messages there are now."""
        for table, start in self._at.items():
            self._messages[table] = self.shop.kafka.messages(self.shop.topic(table))
            # What is in the copy may be sent again, too.
            before = [value for _, value in self._messages[table][:start] if value is not None]
            self._seen |= {identity(table, self._payload(value)) for value in before}

    def move(self, offsets: dict[str, int]) -> dict[str, set[tuple[Any, ...]]]:
        """Replay up to offsets of a manifest; returns the touched keys of each table."""
        touched: dict[str, set[tuple[Any, ...]]] = {}
        for table in COLUMNS:
            if f"{self.shop.topic(table)}/0" not in offsets:
                continue  # no view reads it
            end = offsets[f"{self.shop.topic(table)}/0"]
            assert end >= self._at[table], f"the offsets of {table} went back"
            for _, value in self._messages[table][self._at[table] : end]:
                if value is not None:
                    keys = self._apply(table, self._payload(value))
                    if keys:
                        touched.setdefault(table, set()).update(keys)
            self._at[table] = end
        return touched

    def _payload(self, value: bytes) -> dict[str, Any]:
        registry = self.shop.registry
        return payload(value if registry is None else registry.as_json(value))

    def _apply(self, table: str, message: dict[str, Any]) -> set[tuple[Any, ...]]:
        if identity(table, message) in self._seen:
            return set()  # sent again
        self._seen.add(identity(table, message))
        before, after = message["before"], message["after"]
        rows = self.rows[table]
        if message["op"] == "t":
            keys = set(rows)
            rows.clear()
            return keys
        if after is None:
            key = tuple(before[name] for name in KEYS[table])
            rows.pop(key, None)
            return {key}
        key = tuple(after[name] for name in KEYS[table])
        old = rows.get(key)
        rows[key] = tuple(
            old[n]
            if after[name] == "__debezium_unavailable_value" and old
            else decode(after[name], kind)
            for n, (name, kind) in enumerate(COLUMNS[table].items())
        )
        return {key}


def payload(value: bytes) -> dict[str, Any]:
    """A message without its schema."""
    message: dict[str, Any] = json.loads(value)
    return message.get("payload", message)


def identity(table: str, message: dict[str, Any]) -> str:
    """What is equal when a message is sent again, and only then."""
    place = [message["source"].get(name) for name in ("file", "pos", "row", "lsn")]
    return json.dumps([table, place, message["op"], message["after"] or message["before"]])


def decode(value: Any, kind: str) -> Any:
    """A value as Debezium sends it by default."""
    if value is None:
        return None
    if kind.startswith("DECIMAL"):
        return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-2)
    if kind == "DATE":
        return (_EPOCH + dt.timedelta(days=value)).date()
    if kind == "moment":
        if isinstance(value, str):
            return plain(dt.datetime.fromisoformat(value.replace("Z", "+00:00")))
        return _EPOCH + dt.timedelta(milliseconds=value)
    return value


def plain(value: Any) -> Any:
    """One form for equal values: moments without zone, in UTC."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return value


class Truth:
    """The batch results of views at epochs.

    Args:
        copies: one per connection.
        views: the views.
    """

    def __init__(self, copies: list[Copy], views: list[ViewDefinition]) -> None:
        self._copies, self._views = copies, views
        self._db = duckdb.connect()
        for copy in copies:
            for table, columns in COLUMNS.items():
                parts = ", ".join(f"{n} {_TYPES.get(t, t)}" for n, t in columns.items())
                self._db.execute(f"CREATE TABLE {copy.connection}_{table} ({parts})")
                self._insert(copy, table, set(copy.rows[table]))

    def move(self, offsets: dict[str, dict[str, int]]) -> None:
        """Go on to the offsets of a later manifest."""
        for copy in self._copies:
            for table, keys in copy.move(offsets[copy.connection]).items():
                listed = pa.Table.from_pylist(
                    [dict(zip(KEYS[table], k, strict=True)) for k in keys]
                )
                self._db.register("gone", listed)
                names = ", ".join(KEYS[table])
                gone = f"({names}) IN (SELECT {names} FROM gone)"
                self._db.execute(f"DELETE FROM {copy.connection}_{table} WHERE {gone}")
                self._insert(copy, table, keys)

    def _insert(self, copy: Copy, table: str, keys: set[tuple[Any, ...]]) -> None:
        rows = [copy.rows[table][key] for key in keys if key in copy.rows[table]]
        if rows:
            columns = dict(zip(COLUMNS[table], map(list, zip(*rows, strict=True)), strict=True))
            self._db.register("fresh", pa.table(columns))
            self._db.execute(f"INSERT INTO {copy.connection}_{table} SELECT * FROM fresh")

    def rows(self, view: ViewDefinition) -> Counter[tuple[Any, ...]]:
        """The batch query over the tables as they are now."""
        names = {name: str(name).replace(".", "_") for name in view.table_names}
        return Counter(self._db.execute(bind_tables(view, names)).fetchall())


def check_all_epochs(config: Config, copies: list[Copy], views: list[ViewDefinition]) -> int:
    """Hold every published epoch of every view against the truth; returns how many there were.

    A view is there from the epoch on in which it is built: as soon as its own tables are loaded.

    Raises:
        AssertionError: an epoch differs, with the epoch, the view, and some rows.
    """
    for copy in copies:
        copy.fetch()
    truth = Truth(copies, views)
    log, last = ManifestLog(Store(config.store).manifests), published(config).epoch
    checked, there = 0, set[str]()
    for epoch in range(1, last + 1):
        manifest = log.read(epoch)
        if not manifest.views:
            continue
        assert there <= set(manifest.views), f"a view is gone at epoch {epoch}"
        there = set(manifest.views)
        truth.move(manifest.offsets)
        for view in views:
            if view.name not in there:
                continue
            expected = truth.rows(view)
            found = view_rows(config, view.name, epoch)
            if found != expected:
                raise AssertionError(
                    f"epoch {epoch} (first {checked == 0}, of {last}) of {view.name}: "
                    f"lacks {list((expected - found).items())[:3]}, "
                    f"has in excess {list((found - expected).items())[:3]}"
                )
        checked += 1
    assert {view.name for view in views} <= there
    return checked


def view_rows(config: Config, name: str, epoch: int | None = None) -> Counter[tuple[Any, ...]]:
    """The rows of a view at an epoch."""
    rows = StoredView(config, name, epoch).arrow().to_pylist()
    return Counter(tuple(map(plain, row.values())) for row in rows)
