"""A shop that is loaded: once in a test process, for all tests that begin after a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.admin.content import published
from mview.clock import SystemClock
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, fenced
from tests.e2e.running import run_once, views_of
from tests.e2e.shop import TABLES, Shop

SIZE = 24


@pytest.fixture(scope="session")
def loaded_shop(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Callable[[Path], Shop]:
    """Makes a shop of 24 orders in a folder, with a store: all tables are loaded, no view is there.

    A load takes seconds, a copy of it none.
    """
    folder = tmp_path_factory.mktemp("loaded")
    shop = Shop(folder / "first", SIZE)
    config = shop.config()
    shop.heartbeat()
    # All columns: else those that a test's views use would be loaded first.
    run_once(config, *views_of(**{name: f"select * from shop.{name}" for name in TABLES}))
    shop.close()
    store, newest = Store(config.store), published(config)
    with Lease(store.lease, SystemClock(), above=newest.token) as lease, fenced(lease):
        known = newest.tables.items()
        tables = {name: state for name, state in known if name.is_table}
        log = ManifestLog(store.manifests, lease)
        log.publish_after(newest, SystemClock().now(), tables=tables, views={})
        log.prune(log.epochs()[:-1])
    # Away from its home: each copy is then a store that was moved, at home where it is.
    copied = shop.root.rename(folder / "copied")
    return lambda root: Shop(root, SIZE, copied)


@pytest.fixture
def new_shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    """A shop of 24 orders of which nothing is loaded, for tests of the load and the first build."""
    shop = Shop(tmp_path, SIZE)
    yield shop
    shop.close()
