"""The truth: initial rows and the change lines up to a manifest's offsets, then the batch query."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

from mview.admin.content import StoredView
from mview.catalog.definitions import digest_of
from mview.config import Config
from mview.plan.definition import ViewDefinition, order_views
from mview.schema import TableSchema
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror
from tests.e2e.shop import TABLES, Row, Shop
from tests.ivm.world import to_rows

#: Tables by name, rows by key.
Content = dict[str, dict[tuple[Any, ...], Row]]


#: After every epoch.
_GONE = 1 << 62


class Replay:
    """The tables of a shop at growing places of its log."""

    def __init__(self, shop: Shop) -> None:
        self.content: Content = {
            name: {_key(name, row): row for row in rows} for name, rows in shop.first.items()
        }
        self._lines = _lines(shop)
        self._next = next(self._lines, None)
        self._taken: dict[str, int] = {}

    def upto(self, file: str, byte: int) -> Content:
        """The tables after every line before a byte of a file."""
        while self._next is not None and self._next[:2] < (file, byte):
            self._apply(self._next[2])
            self._next = next(self._lines, None)
        return self.content

    def _apply(self, change: dict[str, Any]) -> None:
        op, name = change["op"], change.get("table")
        if op == "heartbeat":
            return
        if change["position"] <= self._taken.get(name, 0):
            return  # sent again
        self._taken[name] = change["position"]
        rows = self.content[name]
        if op == "truncate":
            rows.clear()
        if "key" in change:
            rows.pop(_key(name, change["key"]), None)
        if change.get("before"):
            rows.pop(_key(name, change["before"]), None)
        if "after" in change:
            rows[_key(name, change["after"])] = change["after"]


def _key(table: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in TABLES[table][1])


def _lines(shop: Shop) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for file in sorted(shop.folder.glob("*.jsonl")):
        byte = 0
        for line in file.read_bytes().splitlines(keepends=True):
            if line.strip():
                yield file.name, byte, json.loads(line)
            byte += len(line)


def table_of(rows: Sequence[Row], schema: TableSchema) -> pa.Table:
    """Rows of a shop as Arrow, exact."""

    def value(cell: Any, kind: pa.DataType) -> Any:
        if cell is not None and pa.types.is_decimal(kind):
            return Decimal(str(cell)).quantize(Decimal(1).scaleb(-kind.scale))
        if cell is not None and pa.types.is_date(kind):
            return dt.date.fromisoformat(cell)
        return cell

    return pa.table(
        {
            column.name: pa.array(
                [value(row[column.name], column.type) for row in rows], column.type
            )
            for column in schema.columns
        }
    )


class Truth:
    """Compares every published epoch of a store with what the log says.

    Args:
        config: the configuration of the store.
        shop: the database and its log.
        views: every definition that was ever run.
    """

    def __init__(self, config: Config, shop: Shop, views: Sequence[ViewDefinition]) -> None:
        self.config, self.shop = config, shop
        self.views = {(view.name, digest_of(view)): view for view in views}
        self.log = ManifestLog(Store(config.store).manifests)
        #: How many epochs were compared.
        self.compared = 0

    def check(self, since: int = 0) -> Manifest:
        """Check all epochs after `since`; returns the newest manifest."""
        replay = Replay(self.shop)
        manifests = [self.log.read(epoch) for epoch in self.log.epochs()]
        self._begun = _begun(manifests)
        manifests = [manifest for manifest in manifests if manifest.epoch > since]
        assert manifests, "nothing was published"
        for manifest in manifests:
            if not manifest.offsets:
                # A runner took over before anything was loaded, or all that was loaded is dropped.
                assert not manifest.source_tables
                assert all(view.stale for view in manifest.views.values())
                continue
            file, byte, _ = manifest.offsets["shop"]["log"]
            self._check_epoch(manifest, replay.upto(file, byte))
            self.compared += 1
        return manifests[-1]

    def check_published(self) -> None:
        """Check what there is, if anything was published."""
        if self.log.epochs():
            self.check()

    def check_end(self, since: int = 0) -> Manifest:
        """The same; and that the newest epoch has all of the log."""
        manifest = self.check(since)
        last = sorted(self.shop.folder.glob("*.jsonl"))[-1]
        file, byte, _ = manifest.offsets["shop"]["log"]
        assert (file, byte) == (last.name, last.stat().st_size), "the log was not read to its end"
        return manifest

    def _check_epoch(self, manifest: Manifest, content: Content) -> None:
        tables: dict[str, pa.Table] = {}
        for table, kept in manifest.source_tables.items():
            name = str(table)
            rows = tables[name] = table_of(list(content[table.name].values()), kept.schema)
            if kept.phase == "loaded" and manifest.epoch >= self._begun.get(name, _GONE):
                mirror = Mirror(Store(self.config.store).mirror(table), kept.schema)
                _same(rows, mirror.scan(kept), f"{name} at epoch {manifest.epoch}")
                assert kept.rows == rows.num_rows, (name, manifest.epoch)
        published = {n: s for n, s in manifest.views.items() if not s.stale}
        views = [self.views[name, state.definition] for name, state in published.items()]
        expected = self.expected(views, tables)
        for name, state in published.items():
            if manifest.epoch < self._begun.get(name, _GONE):
                continue
            stored = StoredView(self.config, name, manifest.epoch).arrow()
            place = f"view {name} at epoch {manifest.epoch}"
            assert stored.column_names == expected[name].column_names, place
            _same(expected[name], stored, place)
            assert state.rows == stored.num_rows, place

    def expected(
        self, views: Sequence[ViewDefinition], tables: dict[str, pa.Table]
    ) -> dict[str, pa.Table]:
        """Views by the batch query over tables."""
        found: dict[str, pa.Table] = {}
        with duckdb.connect(config={"threads": "1"}) as connection:
            connection.execute("create schema shop")
            for name, rows in tables.items():
                connection.register("source_rows", rows)
                connection.execute(f"create table {name} as select * from source_rows")
            for view in order_views(views):
                sql = sqlglot.transpile(view.sql, read="spark", write="duckdb")[0]
                rows = found[view.name] = connection.sql(sql).to_arrow_table()
                connection.register(view.name, rows)
        return found


def _begun(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Since which epoch views and tables are there: what was dropped has no past."""
    begun: dict[str, int] = {}
    for manifest in manifests:
        there = {*map(str, manifest.tables), *manifest.views}
        begun = {name: begun.get(name, manifest.epoch) for name in there}
    return begun


def _same(expected: pa.Table, got: pa.Table, place: str) -> None:
    want, have = Counter(to_rows(expected)), Counter(to_rows(got.select(expected.column_names)))
    if want != have:
        missing, extra = list((want - have).items())[:5], list((have - want).items())[:5]
        raise AssertionError(f"{place}: missing {missing}, too many {extra}")
