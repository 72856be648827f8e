"""Fixtures for all tests: one Spark session per test process, small and quiet."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mview.config import Config
from tests.seeds import SEED, has_its_day

pytest_plugins = ["tests.services.fixtures"]

#: Seconds after which a test with Spark or a server hangs, on any machine; how long something in
#: it may take is said by `Patience`, which knows a busy machine.
HANGS = 3600

#: What makes a JVM for tests small and quick to start, and queries over little data quick: each is
#: planned anew, and to compile it takes longer than to interpret it.
SMALL = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(autouse=True)
def wide_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen on which each line of a command is one, for tests that read lines.

    Also of processes that they begin; `tests/cli/test_folding.py` has narrower ones.
    """
    monkeypatch.setenv("COLUMNS", "1000")


def small_config(folder: Path, **sections: Any) -> Config:
    """A configuration with its store in `folder`; `sections` are those of `mview.yml`."""
    spark = {"master": "local[2]", "conf": SMALL}
    return Config(
        path=folder / "mview.yml", store=folder / "store", **({"spark": spark} | sections)
    )


def pytest_report_header() -> str:
    """Say where the random tests' cases come from."""
    return f"MVIEW_SEED={SEED}  (of the day; set it to run the same random cases again)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Say with a failure how it is run again."""
    report = yield
    if report.failed:
        command = f"MVIEW_SEED={SEED} pytest '{item.nodeid}'"
        report.sections.append(("run it again", command))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say, where `--durations` asks for times, in which files the time went."""
    if not (shown := terminalreporter.config.option.durations):
        return
    took: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"{took.total():.0f} s of tests, by file")
    for name, seconds in took.most_common(shown):
        terminalreporter.line(f"{seconds:8.1f}s {name}")


# First: xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep all tests with servers on one xdist worker (needs `--dist loadgroup`).

    Tests that have their day are for the long lane on all others, which has each on one day in
    five, unless it is told by name. Those that may take half an hour come first: at the end one
    worker would wait for the other.
    """
    for item in items:
        if item.get_closest_marker("service"):
            item.add_marker(pytest.mark.xdist_group("services"))
        days = item.get_closest_marker("days")
        if days and not has_its_day(item.nodeid, days.args[0]):
            item.add_marker(pytest.mark.long)
    if not _are_told(config):
        others = [item for item in items if not _is_for_today(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _is_for_today(item)]
    items.sort(key=lambda item: not _is_long(item))
    for item in items:
        if item.get_closest_marker("spark") or item.get_closest_marker("service"):
            item.add_marker(pytest.mark.timeout(HANGS), append=False)


def _are_told(config: pytest.Config) -> bool:
    """Whether files or tests are named, or the day has to make no difference."""
    return bool(config.option.file_or_dir) or os.environ.get("MVIEW_DAYS") == "all"


def _is_for_today(item: pytest.Item) -> bool:
    """Whether a test for the long lane has its day today; `long(days=1)` has every day."""
    if (mark := item.get_closest_marker("long")) is None:
        return True
    # Another name than the everyday lane's: a test that has its day in neither would wait longer.
    return has_its_day(f"long {item.nodeid}", mark.kwargs.get("days", 5))


def _is_long(item: pytest.Item) -> bool:
    timeout = item.get_closest_marker("timeout")
    return timeout is not None and timeout.args[0] >= 1800


@pytest.fixture(scope="session", autouse=True)
def _power_stays_on() -> Iterator[None]:
    """Tests end processes, not the power: nothing has to wait for a disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., Config]:
    """`make_config(connections=…, changes=…)`: a configuration with its own store."""
    return lambda **sections: small_config(tmp_path, **sections)


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    """A configuration without connections and with its own store."""
    return make_config()


# Workers import nothing from the current folder; those of tests run functions of tests.
_ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this test process."""
    from mview.session.spark import spark_session

    session = spark_session(small_config(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()
