"""`mview run` on a standalone Spark cluster of two workers: right at every epoch."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter

import duckdb
import pyarrow as pa
import pytest
import yaml

from mview.admin.content import StoredView, published
from mview.config.file import load_config
from mview.plan.definition import load_views
from mview.plan.render import bind_tables
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.patience import end_of
from tests.services.process import ServiceError, wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    # A minute or so on a quiet machine, many times that on a busy one.
    pytest.mark.timeout(900),
]

ORDERS = 2_000
VIEW = """
CREATE MATERIALIZED VIEW revenue WITH (key='id') AS
SELECT o.id, c.name, count(*) AS lines, sum(l.amount) AS total
FROM shop.orders o
JOIN shop.customers c ON o.customer_id = c.id
JOIN shop.order_lines l ON l.order_id = o.id
GROUP BY o.id, c.name
"""
SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL);
CREATE TABLE order_lines (
    order_id INTEGER, line INTEGER, amount DECIMAL(10,2), PRIMARY KEY (order_id, line)
);
"""


class Shop:
    """A SQLite shop whose every change is also a line of a change file."""

    def __init__(self, folder):
        (folder / "changes").mkdir()
        self._log = (folder / "changes" / "000.jsonl").open("a")
        self._db = sqlite3.connect(folder / "shop.db", check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = wal")
        self._db.executescript(SCHEMA)
        customers = ORDERS // 10
        names = [(i, f"c{i}") for i in range(customers)]
        self._db.executemany("INSERT INTO customers VALUES (?, ?)", names)
        orders = [(i, i % customers) for i in range(ORDERS)]
        self._db.executemany("INSERT INTO orders VALUES (?, ?)", orders)
        self.lines = {(i, n): "1.50" for i in range(ORDERS) for n in range(3)}
        rows = [(*key, amount) for key, amount in self.lines.items()]
        self._db.executemany("INSERT INTO order_lines VALUES (?, ?, ?)", rows)
        self._db.commit()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.written = 0

    def _write(self):
        while not self._stop.wait(0.01):
            self.written += 1
            order, amount = self.written * 7 % ORDERS, f"{self.written % 1000}.25"
            key = {"order_id": order, "line": self.written % 3}
            if self.written % 5:
                sql = "INSERT OR REPLACE INTO order_lines VALUES (:order_id, :line, :amount)"
                change = {"op": "update", "after": {**key, "amount": amount}}
            else:
                sql = "DELETE FROM order_lines WHERE order_id = :order_id AND line = :line"
                change = {"op": "delete", "key": key}
            self._db.execute(sql, {**key, "amount": amount})
            self._db.commit()
            now = int(time.time() * 1000)
            line = {"table": "order_lines", **change, "ts": now, "position": self.written}
            beat = {"op": "heartbeat", "ts": now}
            self._log.write(f"{json.dumps(line)}\n{json.dumps(beat)}\n")
            self._log.flush()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._log.close()
        self._db.close()


def expected(folder, lines, view, byte):
    """The batch result over the first rows and the changes before a byte of the log."""
    rows = dict(lines)
    for text in (folder / "changes" / "000.jsonl").read_bytes()[:byte].splitlines():
        change = json.loads(text)
        if change["op"] == "update":
            after = change["after"]
            rows[after["order_id"], after["line"]] = after["amount"]
        elif change["op"] == "delete":
            rows.pop((change["key"]["order_id"], change["key"]["line"]), None)
    db = duckdb.connect()
    db.execute("ATTACH ':memory:' AS shop")
    db.execute(
        "CREATE TABLE shop.customers AS SELECT i AS id, 'c' || i AS name FROM range(200) t(i)"
    )
    db.execute(
        "CREATE TABLE shop.orders AS"
        f" SELECT i AS id, i % 200 AS customer_id FROM range({ORDERS}) t(i)"
    )
    db.execute("CREATE TABLE shop.order_lines (order_id INT, line INT, amount DECIMAL(10,2))")
    columns = {"order_id": [], "line": [], "amount": []}
    for (order, line), amount in rows.items():
        columns["order_id"].append(order)
        columns["line"].append(line)
        columns["amount"].append(amount)
    db.register("fresh", pa.table(columns))
    db.execute("INSERT INTO shop.order_lines SELECT * FROM fresh")
    return Counter(db.execute(bind_tables(view, {n: str(n) for n in view.table_names})).fetchall())


@pytest.mark.long
def test_every_epoch_is_right_on_a_cluster(spark_cluster, tmp_path):
    body = {
        "store": "store",
        "connections": {"shop": {"drivername": "sqlite", "database": "shop.db"}},
        "changes": {"shop": {"source": "files", "format": "unified", "path": "changes", "T": "1s"}},
        "engine": {"chunk_rows": 1_000},
        "spark": spark_cluster.settings(),
    }
    (tmp_path / "mview.yml").write_text(yaml.safe_dump(body))
    (tmp_path / "revenue.sql").write_text(VIEW)
    shop = Shop(tmp_path)
    start = dict(shop.lines)
    config, (view,) = load_config(tmp_path / "mview.yml"), load_views([tmp_path / "revenue.sql"])
    program = "from mview.cli import main; main()"
    arguments = ["run", str(tmp_path / "revenue.sql"), "-c", str(tmp_path / "mview.yml"), "--debug"]
    log = tmp_path / "run.log"
    with shop, log.open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=output, stderr=subprocess.STDOUT
        )

        def is_alive():
            if run.poll() is not None:
                raise ServiceError(f"mview ended with {run.returncode}: {log.read_text()[-3000:]}")

        def live_epochs():
            manifest = published(config)
            built = manifest.views["revenue"].built_epoch
            return manifest.epoch - built >= 5

        try:
            wait_until(live_epochs, "epochs of the live query", 400, is_alive)
            run.send_signal(signal.SIGINT)
            assert end_of(run, 60) == 130, log.read_text()[-3000:]
        finally:
            run.kill()
            run.wait()
    log = ManifestLog(Store(config.store).manifests)
    checked = 0
    for epoch in range(1, published(config).epoch + 1):
        manifest = log.read(epoch)
        if "revenue" in manifest.views:
            checked += 1
            _, byte, _ = manifest.offsets["shop"]["log"]
            rows = StoredView(config, "revenue", epoch).arrow().to_pylist()
            found = Counter(tuple(row.values()) for row in rows)
            assert found == expected(tmp_path, start, view, byte), f"epoch {epoch}"
    assert checked > 5
