"""A store that a run could have left, made without Spark; names and values are hostile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from mview.admin.explore.took import TookLog
from mview.catalog.definitions import digest_of, save_definition
from mview.catalog.sinks import open_sink
from mview.cli.options import App
from mview.clock import SystemClock
from mview.connector import WEIGHT
from mview.epoch.report import EpochReport
from mview.epoch.views.cost import Costs, Ran, with_run
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Cut, Manifest, TableState, ViewState
from tests.relations import rel

SECRET = "s3cret-word"
EVIL = '<img src=x onerror="hacked=1">'

CONFIG = """
store: data
connections:
  shop: {drivername: sqlite, database: shop.db}
  crm: {drivername: postgresql, password: "${env:CRM_PW}"}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
  crm: {source: files, format: unified, path: changes, T: 1 second}
sinks:
  cache: {type: sqlite, url: 'sqlite:///cache.db'}
"""

TEXT, LONG = pa.string(), pa.int64()
ORDERS = TableSchema((Column("order_id", LONG, False), Column("status", TEXT)), ("order_id",))
ODD = TableSchema((Column("id", LONG, False), Column("name", TEXT)), ("id",))
TOTALS = TableSchema((Column("status", TEXT), Column("n", LONG)), ("status",))
OPEN = TableSchema(
    (Column("status", TEXT), Column("n", LONG), Column(EVIL, TEXT)),
    ("status",),
)

VIEWS = {
    "totals": (
        "CREATE MATERIALIZED VIEW totals COMMENT 'Orders by <b>status</b>' "
        "WITH (freshness = '900000 h') AS SELECT status, count(*) AS n FROM shop.orders "
        "GROUP BY status",
        TOTALS,
        "SELF_MAINTAINED",
    ),
    "open_orders": (
        "CREATE MATERIALIZED VIEW open_orders WITH (sinks = 'cache') AS "
        f"SELECT t.status, n, o.name AS `{EVIL}` FROM totals t "
        f"JOIN crm.`{EVIL}` o ON o.name = t.status AND o.name <> '{EVIL}{SECRET}'",
        OPEN,
        "DELTA_JOIN",
    ),
}


class MadeStore:
    """The store; `epoch` publishes one."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "mview.yml"
        self.file.write_text(CONFIG)
        app = App()
        self.config, self.mask = app.config(str(self.file)), app.output.mask
        self.store, self.clock = Store(self.config.store), SystemClock()
        claim_store(self.store.root)
        self.log = ManifestLog(self.store.manifests)
        self.views = {}
        (folder / "sql").mkdir()
        for name, (text, schema, _) in VIEWS.items():
            (folder / f"sql/{name}.sql").write_text(text)
            view = parse_view(text, name, f"sql/{name}.sql")
            save_definition(self.store, view)
            sink = open_sink(self.config, self.store, view, schema, digest_of(view))
            self.views[name] = (view, sink)

    def epoch(self, **changes) -> Manifest:
        """Publish an epoch that changes every view."""
        before, now = self.log.latest(), self.clock.now()
        number = 1 if before is None else before.epoch + 1
        rows = {
            "totals": {"status": [f"state {number}"], "n": [number]},
            "open_orders": {"status": [f"{EVIL} {number}"], "n": [None], EVIL: [SECRET]},
        }
        states = {}
        for name, (_, schema, strategy) in VIEWS.items():
            view, sink = self.views[name]
            row = {c.name: pa.array(rows[name][c.name], c.type) for c in schema.columns}
            token = sink.stage(number, pa.table(row | {WEIGHT: pa.array([1], LONG)}))
            built = ViewState(digest_of(view), strategy, schema, {}, 1)
            state = built if before is None else before.views[name]
            facts = {"epoch": number, "executor": "local"}
            ran = Ran(
                number, "incremental", "0.3 % of shop.orders changed", "local", 4, 12, 1, 0.25
            )
            states[name] = replace(
                state,
                sink=sink.commit(token),
                rows=number,
                inserted=1,
                updated=2,
                deleted=0,
                facts=with_run(facts, rel(name), ran, Costs()),
            )
        tables = {
            rel("shop.orders"): TableState(ORDERS, 0, 0, phase="loaded", rows=1234),
            rel(f"crm.{EVIL}"): TableState(ODD, 0, 0, rows=50, released=(0, 1)),
        }
        until = now - 800
        cuts = {table.connection: Cut(until, None) for table in tables}
        manifest = Manifest(number, 1, now, 1, number, {}, {}, until, tables, states, cuts=cuts)
        self.log.publish(replace(manifest, **changes))
        took = EpochReport(number, 9, None, {"shop.orders": 1}, stages={"net": 1.5, "views": 7})
        TookLog(self.store, self.clock).on_epoch(took)
        return manifest
