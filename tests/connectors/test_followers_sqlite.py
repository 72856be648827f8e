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
from mview_connectors.followers.sql.follower import SqlSettings
from mview_connectors.followers.sql.sqlite import SqliteFollower

from mview.errors import MviewError
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.view import Row


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


class TestUnfillable(FollowerContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return UnfillableHarness(tmp_path / "sink.db")
