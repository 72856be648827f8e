"""Fixtures for all tests: one Spark session per test process, small and quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mview.config import Config

pytest_plugins = ["tests.services.fixtures"]

#: What makes a JVM for tests small and quick to start.
_SMALL = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def small_config(folder: Path, **sections: Any) -> Config:
    """A configuration with its store in `folder`; `sections` are those of `mview.yml`."""
    spark = {"master": "local[2]", "conf": _SMALL}
    return Config(
        path=folder / "mview.yml", store=folder / "store", **({"spark": spark} | sections)
    )


# First: xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests with servers on one xdist worker (needs `--dist loadgroup`).

    Tests that may take half an hour come first: at the end one worker would wait for the other.
    """
    for item in items:
        if item.get_closest_marker("service"):
            item.add_marker(pytest.mark.xdist_group("services"))
    items.sort(key=lambda item: not _is_long(item))


def _is_long(item: pytest.Item) -> bool:
    timeout = item.get_closest_marker("timeout")
    return timeout is not None and timeout.args[0] >= 1800


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., Config]:
    """`make_config(connections=…, changes=…)`: a configuration with its own store."""
    return lambda **sections: small_config(tmp_path, **sections)


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    """A configuration without connections and with its own store."""
    return make_config()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this test process."""
    from mview.runtime.session import spark_session

    session = spark_session(small_config(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()
