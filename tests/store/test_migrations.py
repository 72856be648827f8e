"""A store that an older version has made is refused, brought up by one command, and goes on.

`stores/` has one of each format, made by the code of its time (`python -m tests.store.kept`).
"""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import mview
from mview.cli import main
from mview.clock import SystemClock
from mview.errors import AlreadyRunningError, ConfigError, CorruptionError, ExitCode
from mview.files.durable import put
from mview.files.marks import content_of
from mview.store import migrations
from mview.store.failure import last_failure
from mview.store.identity import FORMAT, STORE_MARK, claim_store, format_of, put_format
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.migrations import MIGRATIONS, Migration, migrate
from tests.store.kept import KEPT, ROWS, change


def test_there_is_a_store_of_each_format() -> None:
    """Who adds a format writes the store of it: the next one has to read that."""
    kept = {file.name for file in KEPT.glob("*.zip")}
    assert kept == {f"format-{number}.zip" for number in range(1, FORMAT + 1)}
    assert [step.to for step in MIGRATIONS] == [*range(2, FORMAT + 1)]


@pytest.fixture(params=range(1, FORMAT + 1), ids="format {}".format)
def shop(request, tmp_path: Path, monkeypatch) -> Path:
    """A folder with a shop, views, and the store of a format."""
    with zipfile.ZipFile(KEPT / f"format-{request.param}.zip") as file:
        file.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert format_of(tmp_path / "store") == request.param
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--config", "mview.yml"])


def shown(view: str) -> list[tuple[object, ...]]:
    rows = mview.connect("mview.yml")[view].df()
    return sorted(
        tuple(v if isinstance(v, int) else str(v) for v in row) for row in rows.to_numpy()
    )


#: Every command that reads or writes a store, and takes no other argument.
COMMANDS = (
    ("status",),
    ("doctor",),
    ("check", "sql"),
    ("plan", "sql"),
    ("lineage",),
    ("run", "sql", "--once"),
    ("apply", "sql"),
    ("pause", "shop.orders"),
    ("verify", "sql"),
    ("maintain",),
    ("repair", "spent"),
    ("drop", "spent", "--yes"),
)


def test_a_store_of_each_format_goes_on(shop: Path) -> None:
    before = format_of(shop / "store")
    if before != FORMAT:
        files = {file: file.read_bytes() for file in (shop / "store").rglob("*") if file.is_file()}
        for command in COMMANDS:
            refused = run(*command)
            assert refused.exit_code == ExitCode.USAGE, command
            assert "mview migrate" in refused.stderr, command
        with pytest.raises(ConfigError, match="older version"):
            mview.connect("mview.yml")["spent"].df()
        assert all(file.read_bytes() == content for file, content in files.items())
    done = json.loads(run("migrate", "--json").stdout)
    assert (done["before"], done["format"]) == (before, FORMAT)
    assert done["done"] == [step.what for step in MIGRATIONS if step.to > (before or 0)]
    assert "nothing was to be done" in run("migrate").stdout

    failure = last_failure(Store(shop / "store"), 0)
    assert failure is not None
    assert failure.code.startswith("MV")
    assert "shop.db" in run("status").stdout
    assert {view: shown(view) for view in ROWS} == ROWS


@pytest.mark.slow
def test_runs_go_on_with_a_store_of_each_format(shop: Path) -> None:
    """All tables are loaded, and the views run in process: no Java is needed."""
    assert run("migrate").exit_code == 0
    change(shop / "shop.db", "UPDATE orders SET total = total + 1 WHERE customer_id = 1")
    ran = run("run", "sql", "--once")
    assert ran.exit_code == 0, ran.output
    assert shown("spent") == [(1, "Ada", 2, "17.50"), (2, "Grace", 1, "100.00")]
    with closing(sqlite3.connect(shop / "other.db")) as other:
        rows = other.execute("SELECT id, CAST(total AS REAL) FROM spent ORDER BY id").fetchall()
    assert rows == [(1, 17.5), (2, 100.0)]


# --- the mechanism -------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    claim_store(tmp_path / "store")
    return Store(tmp_path / "store", any_format=True)


def test_a_new_store_is_of_the_newest_format(store: Store) -> None:
    assert format_of(store.root) == FORMAT
    assert migrate(store, SystemClock()) == []
    assert not store.lease.exists()


def test_no_store_is_none_to_be_migrated(tmp_path: Path) -> None:
    assert format_of(tmp_path / "store") is None
    assert migrate(Store(tmp_path / "store", any_format=True), SystemClock()) == []
    assert not (tmp_path / "store").exists()


def test_a_store_of_a_newer_version_is_refused(store: Store) -> None:
    put_format(store.root, FORMAT + 1)
    for refused in (lambda: Store(store.root), lambda: migrate(store, SystemClock())):
        with pytest.raises(ConfigError, match="newer version") as told:
            refused()
        assert told.value.got == f"format {FORMAT + 1}"


def test_a_store_that_is_moved_keeps_its_format(store: Store, tmp_path: Path) -> None:
    put_format(store.root, 1)
    store.root.rename(tmp_path / "moved")
    claim_store(tmp_path / "moved")
    assert format_of(tmp_path / "moved") == 1


def test_a_format_that_is_no_number_is_damage(store: Store) -> None:
    put(store.root / STORE_MARK, content_of({"id": "a", "home": "b", "format": "two"}))
    with pytest.raises(CorruptionError, match="names no format"):
        format_of(store.root)


def test_steps_are_taken_in_order_and_one_that_was_killed_again(store: Store, monkeypatch) -> None:
    done: list[str] = []

    def fails(of: Store) -> None:
        done.append("fails")
        if done.count("fails") == 1:
            raise OSError("killed")

    steps = (
        Migration(FORMAT + 1, "one", lambda of: done.append("one")),
        Migration(FORMAT + 2, "two", fails),
    )
    monkeypatch.setattr(migrations, "MIGRATIONS", steps)
    monkeypatch.setattr(migrations, "FORMAT", FORMAT + 2)
    with pytest.raises(OSError, match="killed"):
        migrate(store, SystemClock())
    assert format_of(store.root) == FORMAT + 1
    assert [step.what for step in migrate(store, SystemClock())] == ["two"]
    assert done == ["one", "fails", "fails"]
    assert format_of(store.root) == FORMAT + 2


def test_nothing_is_done_while_somebody_runs(store: Store) -> None:
    put_format(store.root, 1)
    with Lease(store.lease), pytest.raises(AlreadyRunningError):
        migrate(store, SystemClock())
    assert format_of(store.root) == 1
