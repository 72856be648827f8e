"""SQLite as a sink: the contract."""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.sql.follower import MARKS, SqlSettings
from mview_connectors.followers.sql.sqlite import SqliteFollower

from mview.errors import ElsewhereError, MviewError, TargetError
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import raised, schema_of
from mview.testing.view import Row
from tests.connectors.worlds import a_world, change


class SqliteHarness(FollowerHarness):
    def __init__(self, file: Path) -> None:
        self.file = file

    def settings(self, **options: Any) -> FollowerSettings:
        return SqlSettings(type="sqlite", url=f"sqlite:///{self.file}", **options)

    def open(self, target: FollowerTarget) -> Follower:
        return SqliteFollower(target)

    def _query(self, sql: str) -> list[Row]:
        connection = sqlite3.connect(self.file)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.commit()
            connection.close()

    def read(self, target: FollowerTarget) -> list[Row] | None:
        names = ", ".join(map(quoted, target.schema.names))
        try:
            rows = self._query(f"SELECT {names} FROM {quoted(target.table)}")
        except sqlite3.OperationalError:
            return None
        kinds = [str(column.type) for column in target.schema.columns]
        return [tuple(map(value_of, row, kinds)) for row in rows]

    def foreign(self, target: FollowerTarget) -> bool:
        columns = ", ".join(f"{quoted(name)} TEXT" for name in target.schema.names)
        self._query(f"CREATE TABLE {quoted(target.table)} ({columns})")
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        copy = self.file.with_suffix(".copy")
        shutil.copy(self.file, copy)

        def restore() -> None:
            shutil.copy(copy, self.file)

        return restore

    def drop(self, target: FollowerTarget) -> bool:
        self._query(f"DROP TABLE {quoted(target.table)}")
        return True


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def value_of(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "date32[day]":
        return dt.date.fromisoformat(value)
    if kind.startswith("timestamp"):
        return dt.datetime.fromisoformat(value)
    return bool(value) if kind == "bool" else value


class Unfillable(SqliteFollower):
    """As a target of which only an empty one can be filled."""

    capabilities = replace(SqliteFollower.capabilities, fills=False)


class UnfillableHarness(SqliteHarness):
    def open(self, target: FollowerTarget) -> Follower:
        return Unfillable(target)


class TestSqlite(FollowerContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return SqliteHarness(tmp_path / "sink.db")

    def test_a_column_that_went_is_an_error_and_no_text(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            assert isinstance(harness, SqliteHarness)
            target = world.target()
            column = quoted(target.schema.names[-1])
            harness._query(f"ALTER TABLE {quoted(target.table)} RENAME COLUMN {column} TO other")
            with pytest.raises(MviewError):
                world.faulty.read().read_all()

    @pytest.mark.parametrize("event", ["INSERT", "UPDATE", "DELETE"])
    def test_a_trigger_that_leaves_rows_as_they_were_is_told(
        self, harness: SqliteHarness, event: str
    ) -> None:
        with self.filled(harness) as world:
            ignore = "BEGIN SELECT RAISE(IGNORE); END"
            harness._query(f"CREATE TRIGGER theirs BEFORE {event} ON t {ignore}")
            before = harness.read(world.target())
            world.view.publish([world.row(1, "changed"), world.row(50)], [(2,)])
            with pytest.raises(TargetError, match="has not written all rows") as told:
                world.sync()
            assert "are as they were" in str(told.value.render())
            assert harness.read(world.target()) == before
            harness._query("DROP TRIGGER theirs")
            world.sync()
            world.check()

    def test_a_fill_that_a_trigger_leaves_rows_in_is_told(self, harness: SqliteHarness) -> None:
        with self.filled(harness) as world:
            harness._query(
                "CREATE TRIGGER theirs BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END"
            )
            world.view.publish(delete=[(2,)])
            world.forget()
            with pytest.raises(TargetError, match="has not written all rows"):
                world.sync()
            harness._query("DROP TRIGGER theirs")
            world.sync()
            world.check()

    def test_a_view_in_the_place_of_the_table_is_told(self, harness: SqliteHarness) -> None:
        with self.filled(harness) as world:
            harness._query("ALTER TABLE t RENAME TO old")
            harness._query("CREATE VIEW t AS SELECT * FROM old")
            world.start()
            world.view.publish([world.row(50)])
            with pytest.raises(TargetError, match="a view in the place of the table t") as told:
                world.sync()
            assert "drop the view there" in str(told.value.render())
            harness._query("DROP VIEW t")
            world.sync()
            world.check()

    @pytest.mark.parametrize(
        ("made", "altered", "told"),
        [
            ("PRIMARY KEY", "UNIQUE", "told apart by its key"),
            ("k TEXT", "k TEXT COLLATE NOCASE", "k (collation NOCASE)"),
            ("d TEXT", "d REAL", "may not hold all values"),
        ],
    )
    def test_a_table_that_somebody_has_altered_is_told(
        self, harness: SqliteHarness, tmp_path: Path, made: str, altered: str, told: str
    ) -> None:
        """Keys would become one, and exact numbers inexact, without a word."""
        schema = schema_of([("k", "string"), ("d", "decimal(20,2)")])
        with a_world(harness, tmp_path / "other", schema) as world:
            world.view.publish([("a", Decimal("1.00"))])
            world.sync()
            ((ddl,),) = harness._query("SELECT sql FROM sqlite_master WHERE name = 't'")
            harness._query("ALTER TABLE t RENAME TO old")
            ddl = ddl.replace("`", "")
            assert made in ddl
            harness._query(ddl.replace(made, altered))
            harness._query("INSERT INTO t SELECT * FROM old")
            world.start()
            world.view.publish([("A", Decimal("2.10"))])
            assert told in str(raised(world.sync, TargetError))
            harness.drop(world.target())
            world.sync()
            world.check()

    @pytest.mark.parametrize("journal", ["DELETE", "WAL"])
    def test_a_file_that_was_put_in_the_place_of_ours_is_written(
        self, harness: SqliteHarness, journal: str
    ) -> None:
        """Also beside a run: its connections have the old one open, which no reader sees."""
        with self.filled(harness) as world:
            harness._query(f"PRAGMA journal_mode = {journal}")
            copy = harness.file.with_suffix(".copy")
            shutil.copy(harness.file, copy)
            change(world, 3)
            for rest in harness.file.parent.glob(f"{harness.file.name}-*"):
                rest.unlink()
            copy.replace(harness.file)
            world.view.publish([world.row(1, "changed")])
            with pytest.raises(ElsewhereError):
                world.sync()
            world.sync()
            world.check()
            harness.file.unlink()
            world.view.publish([world.row(1, "again")])
            with pytest.raises(MviewError):
                world.sync()
            world.sync()
            world.check()

    def test_an_altered_table_of_marks_is_told_with_what_mends_it(
        self, harness: SqliteHarness
    ) -> None:
        with self.filled(harness) as world:
            harness._query(f"ALTER TABLE {MARKS} RENAME COLUMN step TO other")
            world.view.publish([world.row(50)])
            for _ in range(2):
                told = str(raised(world.sync, TargetError))
                assert f"drop {MARKS} and t there" in told
            harness._query(f"DROP TABLE {MARKS}")
            harness.drop(world.target())
            world.sync()
            world.check()


class TestUnfillable(FollowerContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return UnfillableHarness(tmp_path / "sink.db")
