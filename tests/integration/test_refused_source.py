"""A source that refuses to be read from keeps its own tables waiting, and no other's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from mview_connectors.changelogs.sqlite.server import SqliteServer

import mview
from mview.admin.apply import apply_views
from mview.admin.drop import drop
from mview.admin.status import status
from mview.config.file import load_config
from mview.errors import MviewError, UserError
from mview.plan.definition import parse_view
from mview.secrets import reveal
from tests.integration.running import PATIENCE, Running
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

VIEWS = [
    parse_view("SELECT id, x FROM far.t", "of_far"),
    parse_view("SELECT id, x FROM near.t", "of_near"),
]


class Sources:
    """PostgreSQL (`far`) and SQLite (`near`), a table each, and a store of views of both."""

    def __init__(self, server: Any, database: str, folder: Path) -> None:
        self.server, self.database, self.file = server, database, folder / "near.db"
        self.far("CREATE TABLE t (id int PRIMARY KEY, x int); INSERT INTO t VALUES (0, 0)")
        self.near("PRAGMA journal_mode = WAL")
        self.near("CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)")
        settings = server.settings(database)
        #: The file of PostgreSQL's password.
        self.secret = folder / "secret"
        self.secret.write_text(reveal(settings["password"], "tests"))
        settings["password"] = f"${{file:{self.secret}}}"
        body = {
            "store": str(folder / "store"),
            "connections": {
                "far": settings,
                "near": {"drivername": "sqlite", "database": str(self.file)},
            },
            "changes": {
                "far": {"source": "postgresql", "T": "1s"},
                "near": {"source": "sqlite", "T": "100ms"},
            },
        }
        (folder / "mview.yml").write_text(yaml.safe_dump(body))
        self.config = load_config(folder / "mview.yml")
        with closing(SqliteServer(self.config.connections["near"])) as near:
            near.install(["t"])

    def as_user(self, name: str, password: str) -> None:
        """Read PostgreSQL as another user, who is made anew and may do what a run needs."""
        self.far(f"DROP ROLE IF EXISTS {name}; CREATE ROLE {name} SUPERUSER LOGIN")
        self.far(f"ALTER ROLE {name} PASSWORD '{password}'")
        self.secret.write_text(password)
        body = yaml.safe_load(self.config.path.read_text())
        body["connections"]["far"]["username"] = name
        self.config.path.write_text(yaml.safe_dump(body))
        self.config = load_config(self.config.path)

    def far(self, sql: str) -> list[tuple[Any, ...]]:
        return self.server.execute(sql, self.database)

    def near(self, sql: str) -> None:
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=60)) as connection:
            connection.execute(sql)

    def ids(self, view: str) -> list[int]:
        """What a view shows; none where it was not built."""
        try:
            rows = mview.connect(self.config.path)[view].arrow().to_pylist()
        except MviewError:
            return []
        return sorted(row["id"] for row in rows)

    def until(self, run: Running, view: str, ids: list[int]) -> None:
        wait_until(lambda: self.ids(view) == ids, f"{view} to be {ids}", PATIENCE, run.check)

    @contextmanager
    def no_slot_left(self) -> Iterator[None]:
        """All that the server may have are there."""
        ((left,),) = self.far(
            "SELECT current_setting('max_replication_slots')::int"
            " - (SELECT count(*) FROM pg_replication_slots)"
        )
        with ExitStack() as taken:
            for name in (f"taken_{number}" for number in range(left)):
                self.far(f"SELECT pg_create_physical_replication_slot('{name}')")
                taken.callback(self.far, f"SELECT pg_drop_replication_slot('{name}')")
            yield

    @contextmanager
    def without_far(self, said: str) -> Iterator[Running]:
        """A run in which the views of PostgreSQL wait, and that says at its end why."""
        with Running(self.config, VIEWS) as run:
            yield run
            run._pipeline.stop()
            error = run.failure()
        assert isinstance(error, UserError)
        assert said in str(error)
        assert "of_far" in str(error)


@pytest.fixture
def sources(postgresql: Any, spark: Any, tmp_path: Path) -> Iterator[Sources]:
    with postgresql.new_database() as database:
        yield Sources(postgresql, database, tmp_path)


def test_others_go_on(sources: Sources) -> None:
    slots = "replication slots are in use, and 1 more needed"
    with sources.no_slot_left():
        # The first run: nothing of any table is there yet.
        with sources.without_far(slots) as run:
            sources.near("INSERT INTO t VALUES (1, 1)")
            sources.until(run, "of_near", [1])
        with sources.without_far(slots) as run:
            sources.near("INSERT INTO t VALUES (2, 2)")
            sources.until(run, "of_near", [1, 2])
        assert sources.ids("of_far") == []
        (halted,) = (view for view in status(sources.config).views if view.halted)
        assert halted.name == "of_far"
        assert slots in halted.halted
        assert "set max_replication_slots to" in halted.halted
    with Running(sources.config, VIEWS) as run:
        sources.until(run, "of_far", [0])
        sources.near("INSERT INTO t VALUES (3, 3)")
        sources.until(run, "of_near", [1, 2, 3])
    # What a lost log calls for: the table is dropped, and loaded anew by a new slot.
    drop(sources.config, ["far.t"])
    sources.far(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
    sources.far("INSERT INTO t VALUES (7, 7)")
    with sources.no_slot_left(), sources.without_far(slots) as run:
        sources.near("INSERT INTO t VALUES (4, 4)")
        sources.until(run, "of_near", [1, 2, 3, 4])
    with Running(sources.config, VIEWS) as run:
        sources.until(run, "of_far", [0, 7])
        sources.near("INSERT INTO t VALUES (6, 6)")
        sources.until(run, "of_near", [1, 2, 3, 4, 6])


def test_alone_it_ends_the_run(sources: Sources) -> None:
    with sources.no_slot_left(), Running(sources.config, VIEWS[:1]) as run:
        error = run.failure()
    assert isinstance(error, UserError)
    assert "set max_replication_slots to" in str(error)


def test_what_does_not_read_it_is_applied_meanwhile(sources: Sources) -> None:
    """Views of other sources come and go, and its own is taken once the source is well."""
    twice = parse_view("SELECT x, count(*) AS n FROM near.t GROUP BY x", "twice")
    other = parse_view("SELECT id, x FROM near.u", "of_other")
    sources.near("CREATE TABLE u (id INTEGER PRIMARY KEY, x INTEGER)")
    sources.near("INSERT INTO u VALUES (5, 5)")
    with closing(SqliteServer(sources.config.connections["near"])) as near:
        near.install(["u"])
    with ExitStack() as slots:
        slots.enter_context(sources.no_slot_left())  # before the run can take one of them
        with Running(sources.config, VIEWS) as run:
            sources.near("INSERT INTO t VALUES (1, 1)")
            sources.until(run, "of_near", [1])
            for views, removed in (([twice], []), ([other], []), ([], ["twice"])):
                answer = apply_views(sources.config, views, removed, run.messages.append)
                assert answer.state == "done", answer.error
            assert sources.ids("of_other") == [5]
            answer = apply_views(sources.config, VIEWS[:1], (), run.messages.append)
            assert answer.state == "refused"
            assert "replication slots are in use" in answer.error
            sources.near("INSERT INTO t VALUES (2, 2)")
            sources.until(run, "of_near", [1, 2])
            slots.close()
            answer = apply_views(sources.config, VIEWS[:1], (), run.messages.append)
            assert answer.state == "done", answer.error
            sources.until(run, "of_far", [0])
            sources.far("INSERT INTO t VALUES (8, 8)")
            sources.until(run, "of_far", [0, 8])
    assert {view.name for view in status(sources.config).views} == {
        "of_far",
        "of_near",
        "of_other",
    }


def test_an_apply_is_refused(sources: Sources) -> None:
    with sources.no_slot_left(), Running(sources.config, VIEWS[1:]) as run:
        sources.near("INSERT INTO t VALUES (1, 1)")
        sources.until(run, "of_near", [1])
        answer = apply_views(sources.config, VIEWS[:1], (), run.messages.append)
        assert answer.state == "refused"
        assert "replication slots are in use" in answer.error
        sources.near("INSERT INTO t VALUES (2, 2)")
        sources.until(run, "of_near", [1, 2])
    assert [view.name for view in status(sources.config).views] == ["of_near"]
