"""Keep a store of the code as it is, for the upgrade test: `python -m tests.store.kept`.

It writes `stores/format-N.zip`, a small shop with its store; the next format finds it there. A
format that is there is not written again: it is what people have.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path

import orjson

KEPT = Path(__file__).parent / "stores"

TABLES = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, total DECIMAL(12, 2) NOT NULL, at DATETIME
);
INSERT INTO customers VALUES (1, 'Ada'), (2, 'Grace');
INSERT INTO orders VALUES (1, 1, 10.5, NULL), (2, 1, 4, '2026-11-20 10:00:00'), (3, 2, 7.25, NULL);
"""
#: Made after the load: the mirrors have changelogs.
CHANGES = """
UPDATE orders SET total = 5 WHERE id = 2;
DELETE FROM orders WHERE id = 3;
INSERT INTO orders VALUES (4, 2, 100, '2026-11-20 11:00:00');
"""
#: A view with a state, one with a part and its own sink, and one that reads the first.
VIEWS = {
    "spent": """CREATE MATERIALIZED VIEW spent WITH (sinks = 'other', key = 'id') AS
SELECT c.id, c.name, count(*) AS orders, sum(o.total) AS total
FROM shop.customers c JOIN shop.orders o ON o.customer_id = c.id
GROUP BY c.id, c.name
""",
    "latest": """SELECT o.customer_id, o.id, o.at, (SELECT max(total) FROM shop.orders) AS most
FROM shop.orders o
QUALIFY row_number() OVER (PARTITION BY o.customer_id ORDER BY o.id DESC) = 1
""",
    "rich": "SELECT s.name FROM spent s WHERE s.total > 50\n",
}
SINKS = "sinks:\n  other: {type: sqlite, url: 'sqlite:///other.db'}\n"
ROWS = {
    "spent": [(1, "Ada", 2, "15.50"), (2, "Grace", 1, "100.00")],
    "rich": [("Grace",)],
}


def change(database: Path, statements: str) -> None:
    """Run statements on a database."""
    with closing(sqlite3.connect(database)) as shop:
        shop.executescript(statements)


def mview(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of mview in a folder."""
    command = [sys.executable, "-m", "mview", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _done(answer: subprocess.CompletedProcess[str]) -> None:
    if answer.returncode:
        raise SystemExit(f"{answer.args}: {answer.stdout}{answer.stderr}")


def make(folder: Path) -> None:
    """Make the shop and its store in an empty folder."""
    change(folder / "shop.db", TABLES)
    _done(mview(folder, "init", "sqlite:///shop.db", "--triggers"))
    (folder / "sql" / "orders.sql").unlink()
    for name, text in VIEWS.items():
        (folder / "sql" / f"{name}.sql").write_text(text)
    config = folder / "mview.yml"
    config.write_text(config.read_text() + SINKS)
    _done(mview(folder, "run", "sql", "--once", "--config", "mview.yml"))
    change(folder / "shop.db", CHANGES)
    _done(mview(folder, "run", "sql", "--once", "--config", "mview.yml"))
    # A run that fails: what ended it is in the store, too.
    (folder / "shop.db").rename(folder / "away.db")
    assert mview(folder, "run", "sql", "--once", "--config", "mview.yml").returncode
    (folder / "away.db").rename(folder / "shop.db")


def main() -> None:
    """Write the file of this format."""
    with tempfile.TemporaryDirectory() as temp:
        make(Path(temp))
        mark = orjson.loads((Path(temp) / "store" / "mview-store.json").read_bytes())
        file = KEPT / f"format-{mark.get('format', 1)}.zip"
        if file.exists():
            raise SystemExit(f"{file} is kept: another format needs another number")
        KEPT.mkdir(exist_ok=True)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
            for path in sorted(Path(temp).rglob("*")):
                out.write(path, path.relative_to(temp))
    print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
