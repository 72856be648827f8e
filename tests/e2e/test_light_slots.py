"""Each sink of a light view has a reader of its own at PostgreSQL and MariaDB, and ends it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from mview.admin.doctor import Doctor, Finding
from mview.admin.drop import Remains, drop
from mview.admin.status import status
from mview.cli import main
from mview.config.file import load_config
from mview.plan.definition import parse_view
from tests.e2e.running import Live, run_once

pytestmark = [pytest.mark.service, pytest.mark.slow]


class Served:
    """Two tables of a server's database, and files of SQLite as sinks."""

    def __init__(self, kind: str, server: Any, database: str, folder: Path, **options: str) -> None:
        self.kind, self.server, self.database, self.folder = kind, server, database, folder
        for table in ("t", "u"):
            self.run(f"CREATE TABLE {table} (id int PRIMARY KEY, x varchar(9))")
        settings = {
            "store": str(folder / "store"),
            "connections": {"shop": server.settings(database)},
            "changes": {"shop": {"source": kind, "T": "200ms", "options": options}},
            "sinks": {
                name: {"type": "sqlite", "url": f"sqlite:///{folder}/{name}.db", "every": "1ms"}
                for name in ("here", "there")
            },
        }
        (folder / "mview.yml").write_text(yaml.safe_dump(settings))
        self.config = load_config(folder / "mview.yml")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement."""
        rows: list[tuple[Any, ...]] = self.server.execute(sql, self.database)
        return rows

    def view(self, name: str, *sinks: str, table: str = "t") -> Any:
        """A view in light mode."""
        given = f"WITH (mode = 'light', sinks = '{', '.join(sinks)}')"
        query = f"SELECT id, x FROM shop.{table}"
        return parse_view(f"CREATE MATERIALIZED VIEW {name} {given} AS {query}", name)

    def rows(self, view: str, sink: str) -> list[Any]:
        """What a sink has."""
        with closing(sqlite3.connect(self.folder / f"{sink}.db", timeout=60)) as connection:
            return connection.execute(f"SELECT id, x FROM {view} ORDER BY id").fetchall()

    def is_live(self) -> bool:
        """Whether all sinks are loaded."""
        lights = status(self.config).lights
        return bool(lights) and all(light.phase == "live" for light in lights)

    def slots(self) -> dict[str, int]:
        """PostgreSQL's slots, with how far the server is told that each has read."""
        return dict(
            self.run(
                "SELECT slot_name, (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots "
                f"WHERE database = '{self.database}' ORDER BY 1"
            )
        )

    def checked(self, name: str, sinks: str) -> Any:
        """What `mview check` says of a view in light mode."""
        given = f"WITH (mode = 'light', sinks = '{sinks}')"
        file = self.folder / f"{name}.sql"
        file.write_text(f"CREATE MATERIALIZED VIEW {name} {given} AS SELECT id, x FROM shop.t")
        told = ["check", str(file), "-c", str(self.folder / "mview.yml")]
        return CliRunner().invoke(main, told)

    def asked(self, *views: Any) -> dict[str, Finding]:
        """What `mview doctor` finds, by what it asks about."""
        return {one.about: one for one in Doctor(self.config, views).examine()}


@pytest.fixture
def postgres(postgresql: Any, tmp_path: Path) -> Iterator[Served]:
    with postgresql.new_database() as database:
        yield Served("postgresql", postgresql, database, tmp_path)


def test_postgresql_keeps_its_log_for_each_sink(postgres: Served) -> None:
    """One target is locked while the other sinks go on: its slot stays where it is."""
    postgres.run("INSERT INTO t VALUES (0, 'x'); INSERT INTO u VALUES (0, 'x')")
    views = [postgres.view("a", "here", "there"), postgres.view("b", "here", table="u")]
    found = postgres.asked(*views)
    assert found["changes.shop: readers"].text.startswith("3 slots, 3 of them made by the first")
    assert [one.about for one in found.values() if one.state == "wrong"] == []
    live = Live(postgres.config, *views)
    try:
        live.until(postgres.is_live)
        began = postgres.slots()
        assert len(began) == 3
        assert all(len(name) <= 63 for name in began)
        number = 0
        with closing(sqlite3.connect(postgres.folder / "there.db", timeout=60)) as locked:
            locked.execute("BEGIN IMMEDIATE")

            def others_are_ahead() -> bool:
                nonlocal number
                number += 1
                postgres.run(f"INSERT INTO t VALUES ({number}, 'x')")
                postgres.run(f"INSERT INTO u VALUES ({number}, 'x')")
                return sum(at > began[name] for name, at in postgres.slots().items()) == 2

            live.until(others_are_ahead)
        whole = [(n, "x") for n in range(number + 1)]
        live.until(lambda: postgres.rows("a", "there") == whole)
        live.until(lambda: postgres.rows("b", "here") == whole == postgres.rows("a", "here"))
        found = postgres.asked()
        assert found["changes.shop: readers"].text.startswith("3 slots; ")
    finally:
        live.stop()
    assert drop(postgres.config, ["a"]) == Remains()
    assert len(postgres.slots()) == 1
    postgres.run("INSERT INTO u VALUES (-1, 'y')")
    run_once(postgres.config)
    assert (-1, "y") in postgres.rows("b", "here")
    drop(postgres.config, ["b"])
    assert postgres.slots() == {}


def test_postgresql_keeps_the_slots_that_a_copy_of_the_store_has_noted(postgres: Served) -> None:
    """They are the places of the original, which reads on."""
    run_once(postgres.config, postgres.view("a", "here", "there"))
    before, copy = postgres.slots(), postgres.folder / "copy"
    shutil.copytree(postgres.config.store, copy)
    file = postgres.folder / "mview.yml"
    settings = yaml.safe_load(file.read_text()) | {"store": str(copy)}
    file.write_text(yaml.safe_dump(settings))
    said = drop(load_config(file), ["a"]).at_servers
    assert len(said) == 2
    assert all("is a copy of" in text for text in said)
    assert postgres.slots().keys() == before.keys()
    assert drop(postgres.config, ["a"]) == Remains()
    assert postgres.slots() == {}


def test_postgresql_is_asked_for_all_the_slots(postgresql: Any, postgres: Served) -> None:
    """Before the first is made, and with the number that is needed; whose slot is there goes on."""
    ((most, used),) = postgresql.execute(
        "SELECT current_setting('max_replication_slots')::int, count(*) FROM pg_replication_slots"
    )
    taken = [f"taken_{number}" for number in range(most - used - 1)]
    try:
        for name in taken:
            postgres.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        views = [postgres.view("a", "here", "there")]
        postgres.run("INSERT INTO t VALUES (0, 'x')")
        told = postgres.asked(*views)["changes.shop: readers"]
        assert told.state == "wrong"
        assert f"{most - 1} of {most} replication slots are in use, and 2 more" in told.text
        assert f"max_replication_slots to {most + 1}" in told.next
        checked = postgres.checked("a", "here, there")
        assert checked.exit_code != 0
        assert f"{most - 1} of {most} replication slots are in use, and 2 more" in checked.output
        # In a run each sink asks for itself: one is loaded, and goes on while no slot is left.
        for number in range(2):
            with pytest.raises(Exception, match="replication slots are in use, and 1 more"):
                run_once(postgres.config, *views)
            assert len(postgres.slots()) == len(taken) + 1
            loaded = [
                light.sink for light in status(postgres.config).lights if light.phase == "live"
            ]
            assert len(loaded) == 1
            assert len(postgres.rows("a", loaded[0])) == 1 + number
            postgres.run(f"INSERT INTO t VALUES ({1 + number}, 'x')")
    finally:
        for name in taken:
            postgres.run(f"SELECT pg_drop_replication_slot('{name}')")
    run_once(postgres.config, *views)
    assert len(postgres.slots()) == 2


def test_mariadb_is_told_another_number_by_each_sink(mariadb: Any, tmp_path: Path) -> None:
    """Two replicas with one number would end each other, again and again."""
    with mariadb.new_database() as database:
        served = Served("mariadb", mariadb, database, tmp_path, server_id="4711")
        served.run("INSERT INTO t VALUES (0, 'x')")
        live = Live(served.config, served.view("a", "here", "there"), served.view("b", "here"))
        try:
            live.until(served.is_live)
            replicas = []
            for number in range(1, 6):
                served.run(f"INSERT INTO t VALUES ({number}, 'x')")
                whole = [(n, "x") for n in range(number + 1)]
                for view, sink in (("a", "here"), ("a", "there"), ("b", "here")):
                    live.until(lambda v=view, s=sink, rows=whole: served.rows(v, s) == rows)
                # From the first change on all have opened the log for good.
                replicas.append(
                    mariadb.execute(
                        "SELECT id FROM information_schema.PROCESSLIST "
                        "WHERE command = 'Binlog Dump' ORDER BY id"
                    )
                )
            assert len(replicas[0]) == 3
            assert replicas == [replicas[0]] * 5, "a reader was ended by another one"
            assert not [light.error for light in status(served.config).lights if light.error]
        finally:
            live.stop()
