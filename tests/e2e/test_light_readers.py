"""Each sink of a light view has a place of its own in a database's own log, and leaves it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mview_connectors.changelogs.sqlite.server import SqliteServer

from mview.admin.content import StoredView, published
from mview.admin.doctor import Doctor
from mview.admin.drop import Remains, drop
from mview.admin.status import status
from mview.cli import main
from mview.config.file import load_config
from mview.errors import AwayError, RetryableError
from mview.follow.light.readers import log_readers
from mview.plan.definition import ViewDefinition, parse_view
from mview.store.layout import Store
from tests.e2e.running import Live, run_once


class Project:
    """A SQLite database whose changes triggers note, and sinks beside it, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "shop.db"
        self.run("PRAGMA journal_mode = WAL", "CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")
        self.write()
        database = self.config.connections["shop"]
        with closing(SqliteServer(database)) as server:
            server.install(["t"])

    def write(self, **changed: Any) -> None:
        """The configuration."""
        sinks = {
            name: {"type": "sqlite", "url": f"sqlite:///{self.folder}/{name}.db", "every": "1ms"}
            for name in ("here", "there")
        }
        settings = {
            "store": str(self.folder / "store"),
            "connections": {"shop": {"drivername": "sqlite", "database": str(self.file)}},
            "changes": {"shop": {"source": "sqlite", "T": "100ms"}},
            "sinks": sinks,
        }
        (self.folder / "mview.yml").write_text(yaml.safe_dump(settings | changed))
        self.config = load_config(self.folder / "mview.yml")

    def run(self, *statements: str) -> list[Any]:
        """Statements, each a transaction; the rows of the last one."""
        with closing(sqlite3.connect(self.file, isolation_level=None, timeout=60)) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    def view(self, name: str, *sinks: str, query: str = "SELECT id, x FROM shop.t") -> Any:
        """A view in light mode."""
        given = f"WITH (mode = 'light', sinks = '{', '.join(sinks)}')"
        return parse_view(f"CREATE MATERIALIZED VIEW {name} {given} AS {query}", name)

    def rows(self, view: str, sink: str) -> list[Any]:
        """What a sink has."""
        with closing(sqlite3.connect(self.folder / f"{sink}.db", timeout=60)) as connection:
            return connection.execute(f"SELECT id, x FROM {view} ORDER BY id").fetchall()

    def readers(self) -> list[str]:
        """Who has a place in the log."""
        return [name for (name,) in self.run("SELECT reader FROM _mview_readers ORDER BY 1")]

    @contextmanager
    def locked(self, sink: str) -> Iterator[None]:
        """Nobody writes to a sink's file meanwhile."""
        file = self.folder / f"{sink}.db"
        with closing(sqlite3.connect(file, isolation_level=None, timeout=60)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

    def is_live(self) -> bool:
        """Whether all sinks are loaded."""
        lights = status(self.config).lights
        return bool(lights) and all(light.phase == "live" for light in lights)

    def errors(self) -> list[str]:
        """Why sinks do not get on."""
        return [light.error for light in status(self.config).lights if light.error]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@contextmanager
def running(project: Project, *views: ViewDefinition) -> Iterator[Live]:
    """A run in the block, ended after it."""
    live = Live(project.config, *views)
    try:
        yield live
    finally:
        live.stop()


@pytest.mark.parametrize("pair", [("a:here", "b:there"), ("a:here", "a:there")])
def test_a_sink_that_is_slow_loses_nothing_to_one_that_is_not(
    project: Project, pair: tuple[str, str]
) -> None:
    """Two views, and two sinks of one view: what the fast one has, the slow one still gets."""
    project.run("INSERT INTO t VALUES (0, 'first')")
    sinks: dict[str, list[str]] = {}
    for name, _, sink in (part.partition(":") for part in pair):
        sinks.setdefault(name, []).append(sink)
    views = [project.view(name, *names) for name, names in sinks.items()]
    slow = pair[1].partition(":")[0]
    with running(project, *views) as live:
        live.until(project.is_live)
        number = 0
        with project.locked("there"):
            # More than once: a log is cut now and then, and from the second batch on.
            ((begun,),) = project.run("SELECT max(id) FROM _mview_changes")

            def fast_is_ahead() -> bool:
                nonlocal number
                number += 1
                project.run(f"INSERT INTO t VALUES ({number}, 'x{number}')")
                ((newest,),) = project.run("SELECT max(id) FROM _mview_readers")
                return bool(newest > begun + 10)

            live.until(fast_is_ahead)
        rows = project.run("SELECT id, x FROM t ORDER BY id")
        live.until(lambda: project.rows(slow, "there") == rows)
        assert project.errors() == []
    assert len(project.readers()) == 2


def ends(readers: list[str]) -> list[str]:
    """Names of readers without the beginning, which all of a store have."""
    assert len({name.partition("/")[0] for name in readers}) == 1
    return [name.partition("/")[2] for name in readers]


def test_a_view_that_is_dropped_leaves_the_log(project: Project) -> None:
    """A row that nobody moves would have all changes kept for ever."""
    run_once(project.config, project.view("a", "here", "there"), project.view("b", "there"))
    assert ends(project.readers()) == ["a/here", "a/there", "b/there"]
    assert drop(project.config, ["a"]) == Remains()
    assert ends(project.readers()) == ["b/there"]
    assert drop(project.config, ["b"]) == Remains()
    assert project.readers() == []
    # The table in the sink is still there, and is taken up again.
    project.run("INSERT INTO t VALUES (7, 'new')")
    run_once(project.config, project.view("a", "here"))
    assert project.rows("a", "here") == [(7, "new")]


def test_a_sink_that_a_view_has_no_more_leaves_the_log(project: Project) -> None:
    project.run("INSERT INTO t VALUES (1, 'x')")
    run_once(project.config, project.view("a", "here", "there"))
    run_once(project.config, project.view("a", "here"))
    assert ends(project.readers()) == ["a/here"]
    # What went on meanwhile is not in its log: it is filled anew when it comes back.
    project.run("INSERT INTO t VALUES (2, 'y')", "DELETE FROM t WHERE id = 1")
    run_once(project.config, project.view("a", "here", "there"))
    assert ends(project.readers()) == ["a/here", "a/there"]
    assert project.rows("a", "there") == project.rows("a", "here") == [(2, "y")]


def with_another(project: Project) -> Project:
    """A second database, of the connection `more`."""
    (project.folder / "other").mkdir()
    other = Project(project.folder / "other")
    other.run("INSERT INTO t VALUES (5, 'other')")
    project.run("INSERT INTO t VALUES (1, 'x')")
    connections = {
        name: {"drivername": "sqlite", "database": str(one.file)}
        for name, one in (("shop", project), ("more", other))
    }
    changes = {name: {"source": "sqlite", "T": "100ms"} for name in connections}
    project.write(connections=connections, changes=changes)
    return other


def test_a_view_of_another_database_leaves_the_log_of_the_first(project: Project) -> None:
    other = with_another(project)
    run_once(project.config, project.view("a", "here"))
    run_once(project.config, project.view("a", "here", query="SELECT id, x FROM more.t"))
    assert project.readers() == []
    assert ends(other.readers()) == ["a/here"]
    assert project.rows("a", "here") == [(5, "other")]


def test_a_database_that_is_down_is_told_later_and_holds_up_no_load_from_another(
    project: Project,
) -> None:
    other = with_another(project)
    run_once(project.config, project.view("a", "here"))
    away = project.file.rename(project.folder / "away.db")
    moved = project.view("a", "here", query="SELECT id, x FROM more.t")
    for number in range(2):
        other.run(f"INSERT INTO t VALUES ({number}, 'new')")
        said = run_once(project.config, moved).messages
        assert "cannot be told that a/here reads its log no more" in "\n".join(said)
        assert len(project.rows("a", "here")) == 2 + number
    (told,) = drop(project.config, ["a"]).at_servers
    assert "cannot be told that a/here reads its log no more" in told
    away.rename(project.file)
    assert ends(project.readers()) == ["a/here"]
    assert other.readers() == []
    run_once(project.config, moved)
    assert project.readers() == []
    assert ends(other.readers()) == ["a/here"]
    store = Store(project.config.store)
    folder = store.follower("a", "here", light=True)
    assert list(folder.parent.iterdir()) == [folder]


def test_who_could_not_be_ended_and_reads_again_is_not_ended(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, view = with_another(project), project.view("a", "here")
    moved = project.view("a", "here", query="SELECT id, x FROM more.t")

    def leave(*_: Any) -> None:
        raise AwayError("the database is busy")

    run_once(project.config, view)
    monkeypatch.setattr(SqliteServer, "leave", leave)
    run_once(project.config, moved)
    run_once(project.config, view)
    monkeypatch.undo()
    run_once(project.config)
    assert ends(project.readers()) == ["a/here"]
    assert other.readers() == []
    assert project.rows("a", "here") == [(1, "x")]


def test_a_database_that_cannot_be_told_is_told_by_the_next_run(project: Project) -> None:
    """It holds up no drop, and no other database; what was dropped is not shown any more."""
    other = with_another(project)
    views = [project.view("a", "here"), project.view("c", "here")]
    run_once(project.config, *views, project.view("b", "here", query="SELECT id, x FROM more.t"))
    away = other.file.rename(other.folder / "away.db")
    (said,) = drop(project.config, ["a", "b"]).at_servers
    assert "the database of more cannot be told that b/here reads its log no more" in said
    assert ends(project.readers()) == ["c/here"]
    assert [light.view for light in status(project.config).lights] == ["c"]
    assert drop(project.config, ["c"]).at_servers == (said,)
    away.rename(other.file)
    assert ends(other.readers()) == ["b/here"]
    run_once(project.config, views[0])
    assert other.readers() == []
    assert ends(project.readers()) == ["a/here"]


def test_a_database_that_is_gone_for_good_is_left_out_of_the_configuration(
    project: Project,
) -> None:
    run_once(project.config, project.view("a", "here"), project.view("b", "here"))
    project.file.rename(project.folder / "away.db")
    drop(project.config, ["a"])
    project.write(connections={"other": {"drivername": "sqlite", "database": "x"}}, changes={})
    said = drop(project.config, ["b"]).at_servers
    assert len(said) == 2
    assert all("stays there" in text for text in said)
    assert not list(Store(project.config.store).left_readers.iterdir()), "it is told once"


@pytest.mark.parametrize("cut", ["end_left_readers", "shutil.rmtree"])
def test_a_drop_that_is_cut_off_leaves_no_place_of_what_is_gone(
    project: Project, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """Either the view goes on by its reader, or it is filled anew by another one."""
    view, other = project.view("a", "here"), project.view("b", "here")
    run_once(project.config, view, other)

    def cuts(*given: Any) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(f"mview.admin.lights.{cut}", cuts)
        with pytest.raises(InterruptedError):
            drop(project.config, ["a"])
    assert ends(project.readers()) == ["a/here", "b/here"]
    project.run("INSERT INTO t VALUES (1, 'x')")
    is_known = "a" in {light.view for light in status(project.config).lights}
    assert is_known == (cut == "shutil.rmtree")
    run_once(project.config, other)
    assert ends(project.readers()) == (["a/here", "b/here"] if is_known else ["b/here"])
    run_once(project.config, view)
    assert project.rows("a", "here") == [(1, "x")]
    assert not list(Store(project.config.store).left_readers.iterdir())
    assert ends(project.readers()) == ["a/here", "b/here"]


def test_a_copy_of_a_store_leaves_the_readers_of_the_original(project: Project) -> None:
    """It may be the original's place in the log that a copy has noted."""
    view = project.view("a", "here", "there")
    run_once(project.config, view)
    copy = project.folder / "copy"
    shutil.copytree(project.config.store, copy)
    project.write(store=str(copy))
    before = project.readers()
    said = drop(project.config, ["a"]).at_servers
    assert project.readers() == before
    assert len(said) == 2
    assert f"a copy of {project.folder / 'store'}, which reads the log of shop" in said[0]
    project.write()
    assert drop(project.config, ["a"]) == Remains()
    assert project.readers() == []


def test_a_store_that_was_moved_keeps_its_place_in_the_log(project: Project) -> None:
    """One by another name would leave the first where it is, and all changes be kept for ever."""
    view = project.view("a", "here")
    project.run("INSERT INTO t VALUES (0, 'x')")
    run_once(project.config, view)
    before, moved = project.readers(), project.folder / "moved"
    project.config.store.rename(moved)
    project.write(store=str(moved))
    with running(project, view) as live:
        live.until(project.is_live)
        ((at,),) = project.run("SELECT id FROM _mview_readers")
        number = 0

        def is_further() -> bool:
            nonlocal number
            number += 1
            project.run(f"INSERT INTO t VALUES ({number}, 'x')")
            assert project.readers() == before
            return bool(project.run("SELECT id FROM _mview_readers")[0][0] > at)

        live.until(is_further)
    shutil.rmtree(Store(project.config.store).follower("a", "here", light=True) / "light")
    run_once(project.config, view)  # filled anew
    assert len(project.rows("a", "here")) == number + 1
    assert project.readers() == before
    assert drop(project.config, ["a"]) == Remains()
    assert project.readers() == []


def test_a_store_of_version_0_2_is_filled_anew_by_readers_of_its_sinks(project: Project) -> None:
    """There one reader, that of the store, read for all."""
    view = project.view("a", "here", "there")
    run_once(project.config, view)
    store = Store(project.config.store)
    for sink in view.sinks:
        (store.follower("a", sink, light=True) / "reader.json").unlink()
    own = project.readers()[0].partition("/")[0]
    project.run("DELETE FROM _mview_readers", f"INSERT INTO _mview_readers VALUES ('{own}', 0, 0)")
    project.run("INSERT INTO t VALUES (1, 'x')")
    run_once(project.config, view)
    assert ends(project.readers()) == ["a/here", "a/there"]
    assert project.rows("a", "there") == project.rows("a", "here") == [(1, "x")]


def test_what_is_wrong_with_one_sink_ends_no_start(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note that cannot be read, and a folder that cannot be removed: the others go on."""
    views = [project.view(name, "here", "there") for name in ("a", "b")]
    run_once(project.config, *views)
    store = Store(project.config.store)
    note = store.follower("a", "here", light=True) / "reader.json"
    sound = note.read_bytes()
    note.write_bytes(b"{}")
    gone = store.follower("b", "there", light=True)

    def busy(folder: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(folder))

    monkeypatch.setattr("mview.follow.light.readers.shutil", SimpleNamespace(rmtree=busy))
    project.run("INSERT INTO t VALUES (7, 'new')")
    live = Live(project.config, views[0], project.view("b", "here"))
    try:
        live.until(lambda: project.rows("a", "there") == project.rows("b", "here") == [(7, "new")])
        live.until(project.errors)
    finally:
        live.stop()
    assert live.error is None
    said = "\n".join(live.notes.messages)
    assert "it cannot be read who reads a log for a sink" in said
    assert f"{gone} cannot be removed" in said
    assert all("it cannot be read who reads" in text for text in project.errors())
    monkeypatch.undo()
    note.write_bytes(sound)
    run_once(project.config)
    assert not gone.exists()
    assert project.rows("a", "here") == [(7, "new")]


def test_a_drop_ends_the_reader_of_a_sink_whose_note_is_damaged(project: Project) -> None:
    """Who reads for a sink of the view is known by name; who did for another one is told."""
    run_once(project.config, project.view("a", "here", "there"))
    store = Store(project.config.store)
    folder = store.follower("a", "here", light=True)
    (folder / "reader.json").write_bytes(b"{}")
    folder.with_name("former").mkdir()
    (folder.with_name("former") / "reader.json").write_bytes(b"{}")
    remains = drop(project.config, ["a"])
    assert project.readers() == []
    (told,) = remains.at_servers
    assert "former, which view a had before" in told
    assert "see docs/light.md#readers" in told
    assert not store.light("a").exists()
    run_once(project.config, project.view("a", "here"))
    assert drop(project.config, ["a"]) == Remains()


def test_a_log_that_was_cut_is_told_with_what_helps(project: Project) -> None:
    """Somebody deletes what a sink has not read: it says how its table is filled anew."""
    view = project.view("a", "here")
    project.run("INSERT INTO t VALUES (0, 'x')")
    run_once(project.config, view)
    project.run("INSERT INTO t VALUES (1, 'x')", "DELETE FROM _mview_changes")
    project.run("UPDATE sqlite_sequence SET seq = 0 WHERE name = '_mview_changes'")
    with pytest.raises(RetryableError, match="`mview drop a` and run it again"):
        run_once(project.config, view)
    drop(project.config, ["a"])
    run_once(project.config, view)
    assert project.rows("a", "here") == [(0, "x"), (1, "x")]


def test_who_reads_a_log_is_known_with_how_far(project: Project) -> None:
    """A slot is looked for by the name by which it is read, whatever settings make of it now."""
    views = [project.view("a", "here"), project.view("b", "here", "there")]
    kept = {"shop": {"slot": "old"}}
    full = parse_view("CREATE MATERIALIZED VIEW f AS SELECT x FROM shop.t", "f")
    run_once(project.config, views[0])
    readers = log_readers(project.config, "shop", [*views, full], kept)
    known: dict[str, Any] = {reader.light: at for reader, at in readers.items()}
    assert known.pop("a/here")["database"]
    assert known == {"": {"slot": "old"}, "b/here": None, "b/there": None}
    assert log_readers(project.config, "more", views, kept) == {}
    apart = project.config.of_environment("dev", project.folder / "dev")
    assert log_readers(apart, "shop", [full], kept) == {}


def test_what_is_kept_for_readers_is_counted_by_doctor_only(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = project.view("a", "here")
    project.run("INSERT INTO t VALUES (1, 'x')")
    found = {one.about: one.text for one in Doctor(project.config, [view]).examine()}
    assert found["changes.shop: changes"] == "1 change kept for 0 readers"
    assert found["changes.shop: readers"] == "any number may read"

    def kept(_: Any) -> None:
        raise AssertionError("all changes are counted")

    monkeypatch.setattr(SqliteServer, "kept", kept)
    file = project.folder / "a.sql"
    given = "mode = 'light', sinks = 'here'"
    file.write_text(f"CREATE MATERIALIZED VIEW a WITH ({given}) AS SELECT id, x FROM shop.t")
    done = CliRunner().invoke(main, ["check", str(file), "-c", str(project.folder / "mview.yml")])
    assert done.exit_code == 0, done.output
    run_once(project.config, view)


def test_check_knows_the_tables_of_light_views_of_the_store(project: Project) -> None:
    run_once(project.config, project.view("a", "here"))
    file = project.folder / "b.sql"
    given = "mode = 'light', sinks = 'here', sinks.here.table = 'a'"
    file.write_text(f"CREATE MATERIALIZED VIEW b WITH ({given}) AS SELECT id FROM shop.t")
    done = CliRunner().invoke(main, ["check", str(file), "-c", str(project.folder / "mview.yml")])
    assert done.exit_code == 1, done.output
    assert "views a and b would write one table of sink here" in done.output


@pytest.mark.spark
@pytest.mark.slow
def test_epochs_and_sinks_of_light_views_read_beside_each_other(project: Project) -> None:
    """Each ends alone: who reads for the epochs does when no table is read any more."""
    full = parse_view(
        "CREATE MATERIALIZED VIEW f AS SELECT x, count(*) AS n FROM shop.t GROUP BY x", "f"
    )
    light = project.view("a", "here", "there")
    project.run("INSERT INTO t VALUES (1, 'x')")
    with running(project, full, light) as live:
        live.until(lambda: project.is_live() and "f" in published(project.config).views)
        live.until(lambda: len(project.readers()) == 3)
        with project.locked("there"):
            for number in range(2, 9):
                project.run(f"INSERT INTO t VALUES ({number}, 'x')")
                live.epochs("f", 1)
        live.until(lambda: len(project.rows("a", "there")) == 8)
        assert project.errors() == []
    own = project.readers()[0]
    assert StoredView(project.config, "f").arrow().to_pylist() == [{"x": "x", "n": 8}]
    drop(project.config, ["f"])
    assert project.readers() == [own, f"{own}/a/here", f"{own}/a/there"]  # the table is kept up
    drop(project.config, ["shop.t"])
    assert project.readers() == [f"{own}/a/here", f"{own}/a/there"]
    run_once(project.config, full)
    assert len(project.readers()) == 3
    drop(project.config, ["a"])
    assert project.readers() == [own]
    # What cannot be told now is noted, and told by the next run; it ends no place that is used.
    away = project.file.rename(project.folder / "away.db")
    (said,) = drop(project.config, ["f"], with_tables=True).at_servers
    assert "shop cannot be told that the store reads its log no more" in said
    away.rename(project.file)
    assert project.readers() == [own]
    run_once(project.config, light)
    assert ends(project.readers()) == ["a/here", "a/there"]
    drop(project.config, ["a"])
    run_once(project.config, full)
    project.write(changes={})
    (said,) = drop(project.config, ["f"], with_tables=True).at_servers
    assert "keep for the store stays there" in said
    assert project.readers() == [own]


@pytest.mark.spark
@pytest.mark.slow
def test_a_drop_that_is_killed_before_it_tells_the_server(project: Project) -> None:
    """Whoever comes next ends the reader; a run that reads the table again begins it anew."""
    full = parse_view("CREATE MATERIALIZED VIEW f AS SELECT id, x FROM shop.t", "f")
    light = project.view("a", "here")
    run_once(project.config, full)
    command = [sys.executable, "-m", "mview", "drop", "f", "--drop-tables", "--yes"]
    for number, view in enumerate((full, light)):
        project.run(f"INSERT INTO t VALUES ({number}, 'x')")
        (own,) = project.readers()
        killed = subprocess.run(
            [*command, "-c", str(project.folder / "mview.yml")],
            env={**os.environ, "MVIEW_FAILPOINT": "drop-published=kill"},
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        assert project.readers() == [own]
        assert published(project.config).tables == {}
        ((at,),) = project.run("SELECT id FROM _mview_readers")
        project.run(f"INSERT INTO t VALUES ({number + 10}, 'between')")
        run_once(project.config, view)
        if view is full:
            ((begun,),) = project.run("SELECT id FROM _mview_readers")
            assert begun > at
            rows = StoredView(project.config, "f").arrow().to_pylist()
            assert [row["id"] for row in rows] == [0, 10]
    assert ends(project.readers()) == ["a/here"]
    assert [row[0] for row in project.rows("a", "here")] == [0, 1, 10, 11]
