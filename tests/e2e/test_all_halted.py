"""All tables halt while they are loaded: the run ends and says why, and is well once they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.admin.content import StoredView
from mview.admin.verify import verify
from mview.config import Config
from mview.config.file import load_config
from mview.errors import UserError
from mview.ingest.spec import open_changelog
from tests.e2e.running import Live, live, run_once, views_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
store: store
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: sqlite, T: 200ms}
"""
#: Both read the table; a third view reads none, and can always be shown.
NEED = {"v": "select id, at from shop.t", "n": "select count(*) as n from v"}
NONE = {"c": "select 1 as id"}


@pytest.fixture
def config(spark: SparkSession, tmp_path: Path) -> Config:
    (tmp_path / "mview.yml").write_text(CONFIG)
    execute(
        tmp_path,
        "create table t (id integer primary key, at timestamptz)",
        "insert into t values (1, '2024-01-01 00:00:00+00:00'), (2, '2024-05-01 10:00:00')",
    )
    config = load_config(tmp_path / "mview.yml")
    with closing(open_changelog(config, "shop", ["t"])) as log:
        log.install()
    return config


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def counted(config: Config) -> list[int]:
    with suppress(UserError):  # it has halted still
        return StoredView(config, "n").arrow()["n"].to_pylist()
    return []


@pytest.mark.days(2)
@pytest.mark.parametrize("others", [{}, NONE], ids=["alone", "beside a view of no table"])
def test_a_bounded_run_ends_with_the_reason(
    config: Config, tmp_path: Path, others: dict[str, str]
) -> None:
    views = views_of(**NEED, **others)
    for _ in range(2):
        with pytest.raises(UserError, match="no offset of a time zone") as caught:
            run_once(config, *views)
        assert "shop.t.at, row with id=2" in str(caught.value)
    execute(tmp_path, "update t set at = '2024-05-01 10:00:00+00:00' where id = 2")
    run_once(config, *views)
    assert counted(config) == [2]
    assert all(result.equal for result in verify(config, views))


def test_a_run_ends_with_the_reason_also_beside_a_view_of_no_table(
    config: Config, tmp_path: Path
) -> None:
    views = views_of(**NEED, **NONE)
    for _ in range(2):
        assert "no offset of a time zone" in str(Live(config, *views).failure())
    assert StoredView(config, "c").arrow().num_rows == 1
    execute(tmp_path, "update t set at = '2024-05-01 10:00:00+00:00' where id = 2")
    with live(config, *views) as running:
        running.until(lambda: counted(config) == [2])
        execute(tmp_path, "insert into t values (3, '2024-06-01 00:00:00+02:00')")
        running.until(lambda: counted(config) == [3])
    assert all(result.equal for result in verify(config, views))
