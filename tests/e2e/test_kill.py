"""Killed anywhere and started again without flags: nothing lost, nothing twice.

A store goes through a chain of runs, each of which is killed at another fail point; the next run
recovers and is killed in turn. After every kill the published epochs are held against the truth.
`MVIEW_ALL_FAILPOINTS=1` takes every fail point; otherwise a few are chosen, by a seed that changes
with the day and is printed.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mview.errors import ExitCode
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from tests.e2e.running import PATIENCE, views_of
from tests.e2e.shop import Changes, Shop
from tests.e2e.truth import Truth

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

VIEWS = {
    "names": "select id, name from shop.customers where segment is not null",
    "totals": "select product, count(*) as n, sum(amount) as total from shop.lines"
    " group by product",
    "priced": "select l.order_id, l.line, p.price from shop.lines l"
    " left join shop.products p on p.code = l.product",
}

#: While tables are loaded and views are built. The number is the hit at which it kills.
LOADING = [
    "after-plan:2", "after-publish:1", "after-net:1", "after-mirrors:2", "after-commit:1",
    "after-stage:1", "after-build:1", "after-intent:1", "after-sink:2",
]  # fmt: skip
#: While changes are followed, in the one epoch of a bounded run.
LIVE = [
    "after-net", "after-mirrors", "after-views", "after-stage", "after-intent", "after-sink:1",
    "after-sink:2", "after-commit", "after-publish", "after-compact:1", "after-compact:3",
]  # fmt: skip


def chosen(points: list[str], number: int) -> list[str]:
    """Some fail points, in order; all of them when asked for."""
    if os.environ.get("MVIEW_ALL_FAILPOINTS"):
        return points
    seed = int(os.environ.get("MVIEW_SEED", dt.date.today().toordinal()))
    print(f"MVIEW_SEED={seed}")
    picked = set(random.Random(seed).sample(points, number))
    return [point for point in points if point in picked]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, size=24)
    (tmp_path / "views").mkdir()
    for name, sql in VIEWS.items():
        (tmp_path / "views" / f"{name}.sql").write_text(sql)
    yield shop
    shop.close()


@contextmanager
def process(shop: Shop, *arguments: str, point: str = "") -> Iterator[subprocess.Popen[str]]:
    """A run; everything it started is gone at the end."""
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.program", str(shop.root), *arguments],
        env={**os.environ, "MVIEW_FAILPOINT": point},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


def run(shop: Shop, point: str = "") -> int:
    """Run to the end of the log, or to the fail point; returns the exit code."""
    with process(shop, point=point) as running:
        output, _ = running.communicate(timeout=4 * PATIENCE)
    # What a user's terminal would show.
    assert output == "", output
    return running.returncode


def change(shop: Shop, seed: int) -> None:
    """Changes in every table, those of the views' sinks for certain, and a last heartbeat."""
    changes = Changes(shop, random.Random(seed))
    for _ in range(30):
        changes.one()
    for name in ("customers", "lines"):
        row = shop.rows(name)[0]
        shop.delete(name, row)
        shop.insert(name, row)
    customer = shop.rows("customers")[0]
    shop.update("customers", customer, {**customer, "name": f"again{seed}", "segment": "gold"})
    line = shop.rows("lines")[0]
    shop.update("lines", line, {**line, "product": f"new{seed}", "amount": f"{seed}.50"})
    shop.heartbeat()


def test_killed_while_loading(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, views_of(**VIEWS))
    for number, point in enumerate(chosen(LOADING, 2)):
        with shop.busy(seed=number, pause=0.05):
            assert run(shop, point) == -signal.SIGKILL, f"{point} was not hit"
        truth.check_published()
    with shop.busy(seed=99, pause=0.05):
        assert run(shop) == 0
    change(shop, 1)
    assert run(shop) == 0
    assert set(truth.check_end().views) == set(VIEWS)


def test_killed_while_live(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, views_of(**VIEWS))
    with shop.busy(pause=0.05):
        assert run(shop) == 0
    for number, point in enumerate(chosen(LIVE, 2)):
        change(shop, number)
        assert run(shop, point) == -signal.SIGKILL, f"{point} was not hit"
        truth.check()
    assert run(shop) == 0
    truth.check_end()


def test_a_worker_is_killed_in_the_middle_of_a_chunk(shop: Shop) -> None:
    """The run fails or goes on, as Spark decides; the next one finishes."""
    config = shop.config()
    truth = Truth(config, shop, views_of(**VIEWS))
    with shop.busy(pause=0.05):
        with process(shop, point="in-chunk") as running:
            running.communicate(timeout=4 * PATIENCE)
        assert running.returncode == ExitCode.CHECK_FAILED, "in-chunk was not hit"
        assert run(shop) == 0
    truth.check()


def test_a_paused_runner_is_fenced(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, views_of(**VIEWS))
    log = ManifestLog(Store(config.store).manifests)
    lease = Lease(Store(config.store).lease)
    with shop.busy(pause=0.05), process(shop, "live", "2000") as old:
        wait_for(lambda: (latest := log.latest()) and latest.views and latest.batch >= 1, old)
        os.kill(old.pid, signal.SIGSTOP)
        wait_for(lambda: lease.holder() is None)
        paused = log.latest()
        with process(shop, "live", "2000") as new:
            wait_for(lambda: (latest := log.latest()) and latest.token > paused.token, new)
            os.kill(old.pid, signal.SIGCONT)
            output, _ = old.communicate(timeout=PATIENCE)
            assert old.returncode == ExitCode.ALREADY_RUNNING, output
            # Also where it was stopped just after it had asked, and a table's log stops it first.
            assert "taken this store over" in output
            epoch = log.latest().epoch
            wait_for(lambda: log.latest().epoch > epoch + 1, new)
            assert new.poll() is None
    newest = truth.check()
    tokens = [log.read(epoch).token for epoch in log.epochs()]
    assert tokens == sorted(tokens)
    assert newest.token > paused.token


def wait_for(condition: Callable[[], object], running: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 2 * PATIENCE
    while not condition():
        if running is not None and running.poll() is not None:
            raise AssertionError(f"the run ended: {running.communicate()[0]}")
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)
