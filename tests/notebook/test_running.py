"""A run that a notebook begins: a process that ends with it, and whose errors are told."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

import mview
from mview.admin.init import init
from mview.errors import RetryableError, UserError
from mview.notebook.project import Project
from mview.notebook.running import RunFailedError
from tests.conftest import SMALL
from tests.patience import wait_for

PATIENCE = 180


def shop(folder: Path) -> Path:
    """A SQLite database with triggers, its configuration, and a view over it."""
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, kind TEXT, n BIGINT)")
        rows = [(n, f"k{n % 3}", n) for n in range(30)]
        database.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        database.commit()
    init(f"sqlite:///{folder / 'shop.db'}", folder, None, triggers=True)
    file = folder / "mview.yml"
    spark = {**SMALL, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    settings = yaml.safe_load(file.read_text()) | {"spark": {"master": "local[1]", "conf": spark}}
    settings["changes"]["shop"]["T"] = "100ms"
    file.write_text(yaml.safe_dump(settings))
    views = folder / "views"
    views.mkdir()
    (views / "kinds.sql").write_text(
        "SELECT kind, count(*) AS c, sum(n) AS total FROM shop.items GROUP BY kind"
    )
    return file


@pytest.fixture
def p(tmp_path: Path) -> Project:
    return mview.connect(shop(tmp_path))


def test_what_is_no_view_begins_no_process(p: Project, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="files or folders of views"):
        p.run()
    with pytest.raises(UserError, match="no file or folder 'nope'"):
        p.run("nope")
    (tmp_path / "wrong.sql").write_text("SELECT FROM")
    with pytest.raises(UserError, match=r"wrong\.sql:1"):
        p.run(tmp_path / "wrong.sql")
    assert p.running is None
    p.stop()
    p.stop()


@pytest.mark.slow
def test_a_run_that_fails_tells_its_own_error(p: Project, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        made = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in made:
            database.execute(f'DROP TRIGGER "{name}"')
    with pytest.raises(RunFailedError) as failed:
        p.run(tmp_path / "views")
    block = failed.value.render()
    assert made
    assert block.startswith("the triggers of shop.items are not installed\n  where:")
    assert "Fatal" not in block
    assert "Traceback" not in block
    assert p.running is not None
    assert not p.running.is_running
    assert "the triggers of shop.items" in p.running._repr_html_()
    assert repr(p.running) == "<run that has ended: by an error>"
    p.stop()


def test_a_run_that_is_stopped_has_not_failed_by_a_view_that_has_halted(
    p: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the error of the view, as a run of the command line does."""
    program = tmp_path / "program"
    halt = json.dumps({"event": "halt", "view": "v", "error": "a row is wrong"})
    program.write_text(f"#!/bin/sh\necho '{halt}'\ncat\necho 'Error: a row is wrong' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    run = p.run(tmp_path / "views", wait=False)
    assert run.wait(lambda: bool(run.events), PATIENCE)
    run.stop()
    assert repr(run) == "<run that was stopped; halted: v>"
    assert run.error is not None


@pytest.mark.slow
def test_a_run_that_is_killed_is_told(p: Project, tmp_path: Path) -> None:
    run = p.run(tmp_path / "views", wait=False)
    os.kill(run.pid, signal.SIGKILL)
    with pytest.raises(RunFailedError, match=r"(?s)ended by signal 9.*what was published stays"):
        run.wait(lambda: False, PATIENCE)
    run.stop()
    run.stop()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_lives_beside_and_takes_more(
    p: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mview.notebook.magics import mview as magic

    monkeypatch.chdir(tmp_path)
    with pytest.raises(RetryableError, match=r"(?s)not live after 0.01 s.*the run goes on"):
        p.run("views", seconds=0.01)
    run = p.running
    assert run is not None
    with pytest.raises(UserError, match="was begun here, and goes on"):
        p.run("views")
    assert run.wait(lambda: len(list(p)) == 1, PATIENCE)
    assert p["kinds"].df()["c"].sum() == 30

    with closing(sqlite3.connect("shop.db")) as database:
        first = p["kinds"]
        database.execute("UPDATE items SET n = n + 1, kind = 'k9' WHERE id = 7")
        database.commit()
        step = next(first.follow(PATIENCE))
        assert (step.come, step.gone) == (2, 1)
        log = p.table("shop.items").changes(first.epoch)
        assert log["__kind"].tolist() == ["-U", "+U"]
        assert log["n"].tolist() == [7, 8]

    done = magic("many", "SELECT kind, c FROM kinds WHERE c > 9\n")
    assert "live at epoch" in done.done
    assert sorted(p["many"].df()["kind"]) == ["k0", "k2"]
    with pytest.raises(UserError, match="unknown column"):
        magic("many", "SELECT nope FROM kinds\n")
    assert Path("views/many.sql").read_text() == "SELECT kind, c FROM kinds WHERE c > 9\n"
    assert sorted(p) == ["kinds", "many"]

    other = Project(p.config)
    assert other.running is run
    p.stop()
    p.stop()
    assert not run.is_running
    assert run.error is None
    assert "epoch" in run.log()
    again = p.run("views", once=True)
    assert not again.is_running
    p.stop()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_ends_with_the_kernel_that_began_it(p: Project, tmp_path: Path) -> None:
    """Also where a process that the kernel has forked holds the pipe open."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        dedent("""
        import os, sys, time
        import mview
        run = mview.connect("mview.yml").run("views")
        forked = os.fork()
        if forked:
            print(run.pid, forked, flush=True)
        time.sleep(600)
        """)
    )
    process = subprocess.Popen(
        [sys.executable, str(kernel)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        run, forked = map(int, process.stdout.readline().split())
        process.kill()
        process.wait()
        try:
            assert wait_for(lambda: not is_alive(run), PATIENCE)
        finally:
            os.kill(forked, signal.SIGKILL)
    status = p.status()
    assert status.running is None  # it has given the lease back: nothing is to be taken over
    assert status.failure is None
    assert p["kinds"].df()["c"].sum() == 30


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
