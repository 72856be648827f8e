"""A chunk of a real database that goes away, changes its clock, or changes the table meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mview.clock import SourceMs
from mview.config import Config
from mview.config.file import load_config
from mview.errors import AwayError, UserError
from mview.ingest import chunks
from mview.ingest.chunks import high_ms, read_chunk
from mview.ingest.spec import TableSpec, open_database
from tests.relations import rel


class Shop:
    """A table of ten rows, in one chunk."""

    def __init__(self, folder: Path) -> None:
        self.database = sqlite3.connect(folder / "shop.db")
        self.run("create table t(id integer primary key, name text, price decimal(10,2))")
        for number in range(10):
            self.run(f"insert into t values ({number}, 'n{number}', '1.50')")
        (folder / "mview.yml").write_text(
            "store: data\nconnections: {shop: {drivername: sqlite, database: shop.db}}\n"
            "changes: {shop: {source: files, format: unified, path: log, T: 1 s}}\n"
        )
        self.config: Config = load_config(folder / "mview.yml")
        database = open_database(self.config, "shop")
        schema = database.describe("t")
        plan = database.plan("t", schema, 100, 1 << 20)
        database.close()
        self.table = TableSpec(rel("shop.t"), schema, folder / "base", "stage", plan)

    def run(self, sql: str) -> None:
        self.database.execute(sql)
        self.database.commit()

    def staged(self) -> list[Path]:
        return list(self.table.base.rglob("*.parquet"))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.database.close()


def faulty(shop: Shop, monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    """Call `fault(n)` in the middle of the n-th read; it may raise."""
    reads = iter(range(9))

    def open_faulty(config: Config, connection: str) -> Any:
        database = open_database(config, connection)
        real = database.read

        def read(*args: Any) -> Iterator[pa.RecordBatch]:
            number = next(reads)
            for batch in real(*args):
                yield batch.slice(0, 4)
                fault(number)
                yield batch.slice(4)

        database.read = read  # type: ignore[method-assign]
        return database

    monkeypatch.setattr(chunks, "open_database", open_faulty)


def test_a_lost_connection_costs_one_chunk_not_the_run(shop: Shop, monkeypatch) -> None:
    pauses: list[float] = []

    def lose(number: int) -> None:
        if number < 2:
            raise AwayError("the server is gone")

    faulty(shop, monkeypatch, lose)
    marker = read_chunk(shop.config, shop.table, 0, pauses.append)
    assert pauses == [1, 3]
    (file,) = shop.staged()
    assert pq.read_table(file)["id"].to_pylist() == list(range(10))
    assert (marker.rows, shop.table.base / marker.file) == (10, file)


def test_one_that_stays_away_is_raised(shop: Shop, monkeypatch) -> None:
    def lose(number: int) -> None:
        raise AwayError("the server is gone")

    faulty(shop, monkeypatch, lose)
    with pytest.raises(AwayError):
        read_chunk(shop.config, shop.table, 0, lambda seconds: None)
    assert shop.staged() == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (["drop table t"], "shop.t cannot be read any more: unknown table"),
        (["alter table t drop column price"], "column shop.t.price was changed"),
        (["alter table t rename column name to title"], "column shop.t.name was changed"),
        (
            ["drop table t", "create table t(id integer, name text, price decimal(10,2),"
             " primary key(id, name))"],
            "the key of shop.t was changed",
        ),
        (
            ["drop table t", "create table t(id integer primary key, name text, price double)"],
            "column shop.t.price was changed",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_table_that_changes_while_it_is_loaded(
    shop: Shop, monkeypatch, sql: list[str], said: str, when: str
) -> None:
    def change(number: int) -> None:
        for statement in sql:
            shop.run(statement)

    if when == "before":
        change(0)
    else:
        faulty(shop, monkeypatch, change)
    with pytest.raises(UserError) as caught:
        read_chunk(shop.config, shop.table, 0, lambda seconds: None)
    assert said in str(caught.value)
    assert "drop" not in str(caught.value.hint)  # who reads the table loads it anew


def test_a_column_that_was_added_is_not_seen(shop: Shop) -> None:
    shop.run("alter table t add column more text")
    assert read_chunk(shop.config, shop.table, 0).rows == 10


def test_a_clock_that_is_set_back_releases_no_chunk_early() -> None:
    assert high_ms(SourceMs(10_000), SourceMs(12_500), 2.5) == 12_500
    assert high_ms(SourceMs(10_000), SourceMs(4_000), 2.5) == 12_500
    assert high_ms(SourceMs(10_000), SourceMs(11_000), 60.0) == 70_000
