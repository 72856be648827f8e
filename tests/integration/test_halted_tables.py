"""A table that is altered halts with the views that need it: real servers and their own logs.

All others go on in the same run. What can be loaded anew is, by itself; the rest waits, and keeps
the rows of its last good epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

import mview
from mview.admin.status import status
from mview.config import Config
from mview.config.file import load_config
from mview.errors import MviewError
from mview.plan.definition import parse_view
from mview.secrets import reveal
from tests.integration.running import PATIENCE, Running
from tests.seeds import of_today
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

VIEWS = {
    "notes": "SELECT id, note FROM shop.t",
    "counted": "SELECT note, count(*) AS n FROM notes GROUP BY note",
    "numbers": "SELECT id, x FROM shop.t",
    "others": "SELECT id, y FROM shop.u",
    "both": "SELECT u.id, t.x FROM shop.u JOIN shop.t ON t.id = u.id",
}
#: What each view has, as a query of the server.
BATCHES = {
    "numbers": "SELECT id, x FROM t",
    "others": "SELECT id, y FROM u",
    "both": "SELECT u.id, t.x FROM u JOIN t ON t.id = u.id",
    "late": "SELECT id, y FROM w",
    "notes": "SELECT id, note FROM t",
    "counted": "SELECT note, count(*) FROM t GROUP BY note",
}


class Source:
    """A database with two tables, and a store that follows them.

    Args:
        kind: of the server.
        server: the server.
        database: its name there.
        folder: for the configuration and the store.
        changes: the changelog's settings; None: the server's own log.
    """

    def __init__(
        self,
        kind: str,
        server: Any,
        database: str,
        folder: Path,
        changes: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self._server, self.database, self._folder = kind, server, database, folder
        text = "varchar(20)"
        self.run(f"CREATE TABLE t (id int PRIMARY KEY, note {text}, x int, spare int)")
        self.run("CREATE TABLE u (id int PRIMARY KEY, y int)")
        for number in range(20):
            self.run(f"INSERT INTO t VALUES ({number}, 'n{number % 3}', {number * 10}, 1)")
            self.run(f"INSERT INTO u VALUES ({number}, {number})")
        settings = server.settings(database)
        secret = folder / "secret"
        secret.write_text(reveal(settings["password"], "tests"))
        settings["password"] = f"${{file:{secret}}}"
        source = "mysql" if kind == "mariadb" else kind
        body = {
            "store": "store",
            "connections": {"shop": settings},
            "changes": {"shop": changes or {"source": source, "T": "1500ms"}},
            "engine": {"chunk_rows": 7},
        }
        (folder / "mview.yml").write_text(yaml.safe_dump(body))
        self.config: Config = load_config(folder / "mview.yml")
        self.views = [parse_view(sql, name) for name, sql in VIEWS.items()]

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self._server.execute(sql, self.database)

    def running(self, **given: Any) -> Running:
        return Running(self.config, self.views, **given)

    def halted(self) -> set[str]:
        """The views that have halted."""
        return {view.name for view in status(self.config).views if view.halted}

    def kept(self, view: str) -> int:
        """The rows of a view's own table, whatever has become of the view."""
        path = next(v.path for v in status(self.config).views if v.name == view)
        return int(DeltaTable(path).to_pyarrow_table().num_rows)

    def is_equal(self, *views: str) -> bool:
        try:
            store = mview.connect(self.config.path)
            for view in views:
                rows = [tuple(row.values()) for row in store[view].arrow().to_pylist()]
                if sorted(rows, key=str) != sorted(map(tuple, self.run(BATCHES[view])), key=str):
                    return False
        except MviewError:
            return False
        return True

    def until(self, run: Running, *views: str) -> None:
        what = f"{', '.join(views)} to be as the batch"
        wait_until(lambda: self.is_equal(*views), what, PATIENCE, run.check)

    def until_halted(self, run: Running, *views: str) -> None:
        what = f"{', '.join(views)} to halt"
        wait_until(lambda: self.halted() == set(views), what, PATIENCE, run.check)


@contextmanager
def ends_by(run: Running, said: str) -> Iterator[None]:
    """A run that goes on within the block, and says at its end why views have halted."""
    with run:
        yield
        run._pipeline.stop()
        error = run.failure()
        assert isinstance(error, MviewError)
        assert said in str(error), error


@pytest.fixture
def source(request: Any, spark: Any, tmp_path: Path) -> Iterator[Source]:
    server = request.getfixturevalue(request.param)
    with server.new_database() as database:
        yield Source(request.param, server, database, tmp_path)


@pytest.mark.parametrize("source", of_today(["postgresql", "mariadb"], 2), indirect=True)
def test_columns_and_tables_come_and_go(source: Source) -> None:
    everything = tuple(VIEWS)
    with ends_by(run := source.running(), "needs column 'note' of table shop.t"):
        source.until(run, *everything)
        # In a burst, between changes of both tables.
        source.run("INSERT INTO t VALUES (50, 'n', 1, 1); INSERT INTO u VALUES (50, 1)")
        source.run("ALTER TABLE t DROP COLUMN note")
        source.run("INSERT INTO t VALUES (51, 2, 1); INSERT INTO u VALUES (51, 2)")
        source.until_halted(run, "notes", "counted")
        source.until(run, "numbers", "others", "both")
        assert (source.kept("notes"), source.kept("counted")) in ((20, 3), (21, 4))
        source.run("UPDATE t SET x = 7 WHERE id = 51; DELETE FROM u WHERE id = 3")
        source.until(run, "numbers", "others", "both")
        source.run("ALTER TABLE t ADD COLUMN note varchar(20)")
    with source.running() as run:
        source.until(run, *everything)
        assert source.halted() == set()
        # Widened: nobody stops, and what did not fit before comes.
        alter = "ALTER COLUMN x TYPE bigint" if source.kind == "postgresql" else "MODIFY x bigint"
        source.run(f"ALTER TABLE t {alter}; UPDATE t SET x = 5000000000 WHERE id = 1")
        source.run("INSERT INTO u VALUES (52, 6000)")
        source.until(run, *everything)
        assert source.halted() == set()
    reads_t = ("notes", "counted", "numbers", "both")
    with ends_by(run := source.running(), "shop.t"):
        source.until(run, *everything)
        source.run("DROP TABLE t; INSERT INTO u VALUES (60, 1)")
        source.until_halted(run, *reads_t)
        source.until(run, "others")
        source.run("INSERT INTO u VALUES (61, 1)")
        source.until(run, "others")
        assert source.kept("numbers") == 22
    with ends_by(run := source.running(), "needs table shop.t"):
        source.run("INSERT INTO u VALUES (62, 1)")
        source.until(run, "others")
        assert source.halted() == set(reads_t)
        assert source.kept("numbers") == 22
    source.run("CREATE TABLE t (id int PRIMARY KEY, x int, note varchar(20))")
    source.run("INSERT INTO t VALUES (1, 2, 'a'), (60, 3, 'b')")
    with source.running() as run:
        source.until(run, *everything)
        assert source.halted() == set()


@pytest.mark.long
@pytest.mark.parametrize("source", of_today(["postgresql", "mariadb"], 2), indirect=True)
def test_one_that_is_altered_while_it_is_loaded_for_a_view_that_was_never_built(
    source: Source,
) -> None:
    source.run("CREATE TABLE w (id int PRIMARY KEY, y int)")
    rows = ", ".join(f"({n}, {n})" for n in range(250))
    source.run(f"INSERT INTO w VALUES {rows}")
    source.views.append(parse_view("SELECT id, y FROM shop.w", "late"))
    with ends_by(run := source.running(), "'y'"):
        wait_until(lambda: run.seen.get("shop.w"), "a chunk of it", PATIENCE, run.check)
        assert "shop.w" not in run.loaded
        source.run("ALTER TABLE w DROP COLUMN y")
        source.until(run, *VIEWS)
        source.run("INSERT INTO u VALUES (90, 1)")
        source.until(run, *VIEWS)
    source.run("ALTER TABLE w ADD COLUMN y int; UPDATE w SET y = id")
    with source.running() as run:
        source.until(run, *VIEWS, "late")
        source.run("INSERT INTO w VALUES (900, 1)")
        source.until(run, *VIEWS, "late")


@pytest.mark.long
@pytest.mark.parametrize("source", of_today(["mariadb", "postgresql"], 2), indirect=True)
def test_what_happens_while_nobody_looks(source: Source) -> None:
    everything = tuple(VIEWS)
    with source.running() as run:
        source.until(run, *everything)
    # Away and back, while no run is there: no row is read by another layout.
    source.run("INSERT INTO t VALUES (70, 'n', 1, 1); INSERT INTO u VALUES (70, 1)")
    if source.kind == "postgresql":
        source.run("ALTER TABLE t RENAME COLUMN x TO z; ALTER TABLE t RENAME COLUMN spare TO x")
    else:
        source.run("ALTER TABLE t CHANGE x z int; ALTER TABLE t CHANGE spare x int")
    source.run("INSERT INTO t VALUES (71, 'n', 5, 6)")
    source.run("ALTER TABLE t RENAME COLUMN x TO spare")
    source.run("ALTER TABLE t RENAME COLUMN z TO x")
    with source.running() as run:
        wait_until(
            lambda: source.is_equal("others") and (source.halted() or source.is_equal(*everything)),
            "the changes",
            PATIENCE,
            run.check,
        )
        source.until(run, *everything)
    # Made anew under its name, twice, and another table loses a column.
    source.run("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, note varchar(20), x int)")
    source.run("INSERT INTO t VALUES (1, 'a', 1); DROP TABLE t")
    source.run("CREATE TABLE t (id int PRIMARY KEY, x int, note varchar(20))")
    source.run("INSERT INTO t VALUES (1, 9, 'b'); ALTER TABLE u DROP COLUMN y")
    with ends_by(run := source.running(), "needs column 'y' of table shop.u"):
        source.until_halted(run, "others")
        source.until(run, "notes", "counted", "numbers", "both")
