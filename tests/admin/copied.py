"""A table in SQLite, our copy of it, and a runner that follows its changes: all in one process."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from mview.changelog import KIND
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.ingest.spec import open_database
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Cut, Manifest
from mview.store.mirror import Mirror
from tests.patience import wait_for
from tests.relations import rel

_CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: unified, path: changes, T: 20ms}}
engine: {chunk_rows: 10}
"""

TABLE = rel("shop.items")

#: A row: its name and price; None: there is none.
Item = tuple[str | None, str | None] | None


class Copied:
    """The table and its copy; a change reaches the copy with the runner's next epoch.

    Args:
        folder: for the configuration, the database and the store.
        key: the column of the key, with its type.
    """

    def __init__(self, folder: Path, key: str = "id integer") -> None:
        (folder / "changes").mkdir()
        (folder / "mview.yml").write_text(_CONFIG)
        self.config = load_config(folder / "mview.yml")
        self._db = sqlite3.connect(
            folder / "shop.db", check_same_thread=False, isolation_level=None
        )
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=off")
        self._db.execute(f"create table items({key} primary key, name text, price decimal(8,2))")
        self._key = key.split()[0]
        self._lock = threading.Lock()
        self._copied: dict[object, Item] = {}
        self._waiting: list[tuple[object, Item]] = []
        store = Store(self.config.store)
        claim_store(store.root)
        database = open_database(self.config, "shop")
        self.schema = database.describe("items")
        database.close()
        self._mirror = Mirror(store.mirror(TABLE), self.schema)
        self._log = ManifestLog(store.manifests)
        state = replace(self._mirror.create(), phase="loaded")
        self._log.publish(Manifest(1, 1, 0, 1, 0, {}, {}, 0, {TABLE: state}))
        self._manifest = self._log.latest()

    def rows(self) -> dict[object, Item]:
        """What the database has, by key."""
        with self._lock:
            return {k: (n, p) for k, n, p in self._db.execute("select * from items")}

    def copied(self) -> dict[object, Item]:
        """What our copy has, by key."""
        with self._lock:
            return dict(self._copied)

    def change(self, key: object, item: Item, *, hidden: bool = False) -> None:
        """Change a row of the database; a hidden change is in no log."""
        with self._lock:
            self._db.execute(f"delete from items where {self._key} = ?", (key,))
            if item is not None:
                self._db.execute("insert into items values (?, ?, ?)", (key, *item))
            if not hidden:
                self._waiting.append((key, item))

    def damage(self, key: object, item: Item) -> None:
        """Change a row of our copy."""
        with self._lock:
            self._waiting.append((key, item))

    def epoch(self) -> None:
        """Publish what has changed."""
        with self._lock:
            now, waiting, self._waiting = SystemClock().now(), self._waiting, []
            before = dict(self._copied)
            for key, item in waiting:
                self._copied[key] = item
            old = {k: before.get(k) for k, _ in waiting}
            rows = [
                (kind, key, *item)
                for key in old
                for kind, item in self._kinds(old[key], self._copied[key])
            ]
            self._copied = {k: v for k, v in self._copied.items() if v is not None}
        names = [KIND, *self.schema.names]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        types = [pa.string(), *self.schema.arrow.types]
        texts = [pa.array(column, pa.string() if pa.types.is_decimal(t) else t)
                 for column, t in zip(columns, types, strict=True)]  # fmt: skip
        delta = pa.table([c.cast(t) for c, t in zip(texts, types, strict=True)], names=names)
        epoch, state = self._manifest.epoch + 1, self._manifest.tables[TABLE]
        version = self._mirror.append(epoch, delta)
        state = replace(state, changelog_version=version, rows=len(self._copied))
        self._manifest = replace(
            self._manifest,
            epoch=epoch,
            watermark=now,
            cuts={TABLE.connection: Cut(now, None)},
            tables={TABLE: state},
            batch=epoch,
        )
        self._log.publish(self._manifest)

    @staticmethod
    def _kinds(old: Item, new: Item) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
        if old == new:
            return
        if old is not None:
            yield ("-U" if new else "-D"), old
        if new is not None:
            yield ("+U" if old else "+I"), new

    @contextmanager
    def run(self, pause: float = 0.01) -> Iterator[None]:
        """A runner that publishes epoch after epoch."""
        stop = threading.Event()
        failures: list[BaseException] = []

        def follow() -> None:
            try:
                while not stop.wait(pause):
                    self.epoch()
            except BaseException as error:
                failures.append(error)

        with Lease(Store(self.config.store).lease, SystemClock()):
            thread = threading.Thread(target=follow)
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()
        assert not failures, failures[0]

    @contextmanager
    def busy(self, keys: list[object], pause: float = 0.001) -> Iterator[None]:
        """An application that changes these rows all the time."""
        stop = threading.Event()

        def work() -> None:
            number = 0
            while not stop.wait(pause):
                number += 1
                key = keys[number % len(keys)]
                self.change(key, None if number % 7 == 0 else (f"n{number}", "1.00"))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def settle(self) -> None:
        """Wait until the runner has published all changes that there are."""
        epoch = self._manifest.epoch + 1  # the one that runs may have begun before them
        assert wait_for(lambda: self._manifest.epoch > epoch, 60), "the runner does not get on"

    def end(self) -> None:
        self._db.close()
