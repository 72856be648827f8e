"""`mview run` as a user's system starts and ends it: by signals, by killing its JVM, by kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from mview.admin.content import StoredView
from mview.admin.status import status
from mview.admin.verify import verify
from mview.errors import ExitCode
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest
from tests import patience
from tests.e2e.running import PATIENCE, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth

pytestmark = [pytest.mark.spark, pytest.mark.long]

#: The class that Spark's Java process runs.
_SPARK = "org.apache.spark.deploy.SparkSubmit"

VIEWS = {
    "names": "select id, name from shop.customers where segment is not null",
    "totals": "select product, count(*) as n, sum(amount) as total from shop.lines"
    " group by product",
    "priced": "select l.order_id, l.line, p.price from shop.lines l"
    " left join shop.products p on p.code = l.product",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    (tmp_path / "views").mkdir()
    for name, sql in VIEWS.items():
        (tmp_path / "views" / f"{name}.sql").write_text(sql)
    yield shop
    shop.close()


class Running:
    """A run in a process group of its own, and what it says."""

    def __init__(self, shop: Shop, fault: str = "", note: Path = Path()) -> None:
        self.said = shop.root / "said"
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from mview.cli import main; main()", "run", "views",
                 "-c", "mview.yml"],
                env={**os.environ, "MVIEW_FAILPOINT": fault, "MVIEW_FAILPOINT_HIT": str(note)},
                cwd=shop.root, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._log = ManifestLog(Store(shop.root / "store").manifests)

    def jvm(self) -> psutil.Process:
        """Its JVM, which starts beside the epochs of tables that are loaded.

        Another Java may run before it, to see whether it takes an archive of classes.
        """

        def is_spark(child: psutil.Process) -> bool:
            with suppress(psutil.NoSuchProcess):
                return child.name() == "java" and _SPARK in child.cmdline()
            return False

        def javas() -> list[psutil.Process]:
            return [*filter(is_spark, psutil.Process(self.process.pid).children())]

        wait_for(javas, self.process)
        (found,) = javas()
        return found

    def epochs(self, count: int) -> None:
        """Wait until it has published so many more epochs, and is live."""
        wait_for(lambda: "building" in self.said.read_text() or self._built(), self.process)
        wait_for(self._built, self.process)
        epoch = self.latest().epoch
        wait_for(lambda: self.latest().epoch >= epoch + count, self.process)

    def latest(self) -> Manifest:
        """What is published."""
        latest = self._log.latest()
        assert latest is not None
        return latest

    def _built(self) -> bool:
        latest = self._log.latest()
        return latest is not None and set(latest.views) == set(VIEWS)

    def end(self) -> tuple[int, str]:
        """Wait for its end; returns the exit code and what it said."""
        wait_for(lambda: self.process.poll() is not None)
        return self.process.returncode, self.said.read_text()


@contextmanager
def run(shop: Shop, fault: str = "", note: Path = Path()) -> Iterator[Running]:
    running = Running(shop, fault, note)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


def test_ends_that_are_not_a_crash_of_ours(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, views_of(**VIEWS))
    with shop.busy(seed=1, pause=0.05):
        with run(shop) as running:
            running.epochs(2)
            running.jvm().kill()
            code, said = running.end()
        assert code == ExitCode.CHECK_FAILED, said
        assert "Spark's Java process has ended" in said
        assert "killed by SIGKILL" in said
        assert "unexpected" not in said
        assert "Traceback" not in said
        assert "Exception" not in said
        truth.check_published()

        # A system that stops a service, and a terminal that closes, tell the whole group.
        with run(shop) as running:
            running.epochs(2)
            jvm = running.jvm()
            os.killpg(running.process.pid, signal.SIGTERM)
            code, said = running.end()
        assert code == ExitCode.INTERRUPTED, said
        assert "finishing the running epoch" in said
        assert "Error" not in said
        wait_for(lambda: not jvm.is_running())
        truth.check_published()

        with run(shop) as running:
            running.epochs(2)
            jvm = running.jvm()
            running.process.kill()
            wait_for(lambda: not jvm.is_running())
    truth.check()


def test_ctrl_c_twice(shop: Shop) -> None:
    """A terminal tells the whole group: the first drains, the second does not wait for it."""
    config = shop.config()
    truth = Truth(config, shop, views_of(**VIEWS))
    note, go = shop.root / "hit", shop.root / "go"
    with shop.busy(seed=1, pause=0.05):
        # The epoch hangs where it is decided, so that draining does not end before the second.
        with run(shop, f"after-intent:4=pause:{go}", note) as running:
            wait_for(note.exists, running.process)
            jvm = running.jvm()
            latest = running.latest()
            os.killpg(running.process.pid, signal.SIGINT)
            wait_for(lambda: "Ctrl-C again ends at once" in running.said.read_text())
            assert running.process.poll() is None
            assert jvm.is_running()
            os.killpg(running.process.pid, signal.SIGINT)
            code, said = running.end()
        assert code == ExitCode.INTERRUPTED, said
        for word in ("Error", "Traceback", "Exception", "unexpected"):
            assert word not in said
        wait_for(lambda: not jvm.is_running())
        assert running.latest().epoch == latest.epoch
        truth.check()

        # What was decided is published by the next one, at once: nobody waits for the dead one.
        with run(shop) as running:
            running.epochs(2)
            os.killpg(running.process.pid, signal.SIGINT)
            code, said = running.end()
        assert code == ExitCode.INTERRUPTED, said
        assert "Error" not in said
    assert truth.check().epoch >= latest.epoch + 2


def test_a_run_that_is_killed_while_a_table_has_halted(shop: Shop) -> None:
    """The table stays halted, its views keep their rows, and the next run loads it anew."""
    config, views = shop.config(), views_of(**VIEWS)
    table = RelationId("table", "lines", "shop")
    with run(shop) as running:
        wait_for(lambda: shop.heartbeat() or running._built(), running.process)
        (path,) = (view.path for view in status(config).views if view.name == "totals")
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        line = {"order_id": 9000, "line": 1, "product": "p", "amount": "1.00"}
        shop.log(table="lines", op="insert", after={**line, "order_id": "no number"})
        shop.log(table="products", op="insert", after={"code": "after", "price": "1.00"})
        wait_for(lambda: shop.heartbeat() or running.latest().tables[table].halted, running.process)
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
    assert {view.name for view in status(config).views if view.halted} == {"totals", "priced"}
    assert DeltaTable(path).to_pyarrow_table().to_pylist() == rows
    shop.insert("lines", line)
    shop.insert("products", {"code": "later", "price": "1.00"})
    with run(shop) as running:

        def is_whole() -> bool:
            latest = running.latest()
            states = [latest.tables.get(table), *map(latest.views.get, VIEWS)]
            return all(state is not None and not state.halted for state in states)

        wait_for(lambda: shop.heartbeat() or is_whole(), running.process)
        os.killpg(running.process.pid, signal.SIGTERM)
        code, said = running.end()
    assert code == ExitCode.INTERRUPTED, said
    assert "it had halted" in said
    run_once(config)
    for result in verify(config, views):
        assert result.equal, result
    assert len(StoredView(config, "priced").arrow()) == len(shop.rows("lines"))


def wait_for(
    condition: Callable[[], object], running: subprocess.Popen[bytes] | None = None
) -> None:
    def check() -> None:
        if running is not None and running.poll() is not None and not condition():
            raise AssertionError("the run ended")

    assert patience.wait_for(condition, 2 * PATIENCE, check), "waited too long"
