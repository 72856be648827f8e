"""Epochs in the test's own process: an engine over small tables, from messages to manifests.

Views are built once, on Spark; a store is copied in milliseconds, so each case has its own.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import sqlglot
from pyspark.sql import SparkSession

from mview.catalog.definitions import digest_of
from mview.catalog.sinks import open_sink
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.connector import Message
from mview.epoch.engine import Engine, LiveView
from mview.epoch.report import EpochReport
from mview.epoch.steps import run_epoch
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.build import build_views, unbuilt
from mview.epoch.views.opening import open_views
from mview.ingest.batches import Batch, BatchOffsets
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec, open_format
from mview.plan.definition import ViewDefinition, order_views, parse_view
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.session.lazy import Spark
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import FIRST_EPOCH, Manifest
from mview.store.mirror import Mirror
from tests.ivm.world import to_rows
from tests.relations import keyed

Row = dict[str, Any]

_CONFIG = """
store: store
connections: {shop: {drivername: sqlite, database: none.db}}
changes: {shop: {source: files, format: unified, path: changes, T: 1s}}
"""


class Epochs:
    """An open engine over empty tables.

    Args:
        folder: for the configuration and the store.
        spark: analyzes and builds.
        schemas: of the tables, by `shop.<name>`.
        views: queries by view name.
        settings: more sections of the configuration.
    """

    def __init__(
        self,
        folder: Path,
        spark: SparkSession,
        schemas: Mapping[str, TableSchema] | Mapping[RelationId, TableSchema],
        views: Mapping[str, str],
        settings: str = "",
    ) -> None:
        self.folder, self.spark, self.schemas = folder, spark, keyed(schemas)
        self.definitions = order_views([parse_view(sql, name) for name, sql in views.items()])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mview.yml").write_text(_CONFIG + settings)
        self.config = load_config(folder / "mview.yml")
        self._views: dict[str, LiveView] = {}
        self._sent, self._settings = 0, settings

    def seed(self) -> None:
        """Publish the tables, without rows."""
        store = Store(self.config.store)
        tables = {}
        for name, schema in self.schemas.items():
            mirror = Mirror(store.mirror(name), schema)
            tables[name] = replace(mirror.create(), phase="loaded")
        manifest = Manifest(
            FIRST_EPOCH, 0, SystemClock().now(), 1, -1, offsets={"shop": {}}, tables=tables
        )
        ManifestLog(store.manifests).publish(manifest)

    def copy(self, folder: Path) -> Epochs:
        """The same in a store of its own."""
        other = Epochs(folder, self.spark, self.schemas, {}, self._settings)
        shutil.copytree(self.config.store, other.config.store)
        other.definitions, other._sent = self.definitions, self._sent
        other._views = self._views
        return other

    @contextmanager
    def opened(self) -> Iterator[Epochs]:
        """Hold the lease; views that are known are not analyzed again."""
        with Lease(Store(self.config.store).lease, SystemClock()) as lease:
            self.engine = Engine(self.config, Spark.of(self.spark), lease)
            if not self._views:
                opened = open_views(
                    self.config, Spark.of(self.spark), self.definitions, self.schemas, lease
                )
                assert not opened.refused
                self._views = opened.views
            self.engine.views = {n: self._with_sink(view) for n, view in self._views.items()}
            self.engine.open_relations()
            self.upkeep = Upkeep(self.engine)
            self.engine.executors.warm(self.engine.look_up_keys())
            try:
                yield self
            finally:
                self.upkeep.close()
                self.engine.executors.close()

    def _with_sink(self, view: LiveView) -> LiveView:
        one, digest = view.definition, digest_of(view.definition)
        store, fence = Store(self.config.store), self.engine.lease
        sink = open_sink(self.config, store, one, view.schema, digest, fence)
        return replace(view, sink=sink)

    def build(self) -> dict[str, Any]:
        """Build what is not built; returns what failed."""
        failed = build_views(self.engine, unbuilt(self.engine))
        self.engine.executors.warm(self.engine.look_up_keys())
        return dict(failed)

    def epoch(self, *changes: tuple[str, str, Row | None, Row | None]) -> EpochReport:
        """One epoch of changes: table, op, before, after."""
        messages = []
        for table, op, before, after in changes:
            self._sent += 1
            body = {"table": table, "op": op, "ts": 1_700_000_000_000 + self._sent}
            body |= {"position": self._sent, "before": before, "after": after}
            sent = orjson.dumps({k: v for k, v in body.items() if v is not None})
            messages.append(Message("all/0", self._sent, None, sent))
        specs = {
            name.name: TableSpec(name, schema, Path(), "", None)
            for name, schema in self.schemas.items()
        }
        batches: dict[RelationId, list[pa.Table]] = {}
        for row in decode_split(messages, open_format(self.config, "shop"), specs):
            batches.setdefault(row.table, []).append(row.changes)
        manifest = self.engine.manifest
        offsets = BatchOffsets({"shop": {"all/0": self._sent + 1}}, -1, {})
        batch = Batch(batches, {}, offsets, manifest.generation, manifest.batch + 1)
        return run_epoch(self.engine, self.upkeep, batch, {})

    # --- what there is ---------------------------------------------------------------------------

    def rows(self, view: str) -> Counter[Any]:
        """The rows of a view's sink, as the newest manifest names them."""
        state = self.engine.manifest.views[view]
        return Counter(to_rows(self.engine.views[view].sink.rows(state.sink)))

    def expected(self, views: Sequence[ViewDefinition] | None = None) -> dict[str, Counter[Any]]:
        """All views by the batch query over the mirrors, in DuckDB."""
        found: dict[str, Counter[Any]] = {}
        store = Store(self.config.store)
        with duckdb.connect(config={"threads": "1"}) as connection:
            connection.execute("create schema shop")
            for name, schema in self.schemas.items():
                state = self.engine.manifest.tables[name]
                source_rows = Mirror(store.mirror(name), schema).scan(state)
                connection.register("source_rows", source_rows)
                connection.execute(f"create table {name} as select * from source_rows")
            for view in views or self.definitions:
                sql = sqlglot.transpile(view.sql, read="spark", write="duckdb")[0]
                rows = connection.sql(sql).to_arrow_table()
                connection.register(view.name, rows)
                found[view.name] = Counter(to_rows(rows))
        return found

    def check(self, *halted: str) -> None:
        """Every view but the halted ones equals the batch query; these say that they halted."""
        states = self.engine.manifest.views
        assert {name for name, state in states.items() if state.stale} == set(halted)
        assert all(states[name].halted for name in halted)
        for name, rows in self.expected().items():
            if name not in halted:
                assert self.rows(name) == rows, name
                assert states[name].rows == sum(rows.values()), name
