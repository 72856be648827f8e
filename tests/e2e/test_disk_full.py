"""A disk that is full, or read-only: it is told, nothing is lost, and the same command goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.admin.drop import drop
from mview.admin.mending.repair import repair
from mview.admin.status import status
from mview.admin.verify import verify
from mview.config import Config
from mview.config.file import load_config
from mview.epoch import upkeep
from mview.errors import MviewError, known_error
from mview.plan.definition import ViewDefinition
from tests.e2e.running import Live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or sys.platform != "linux",
        reason="a small disk is mounted: only root may, on Linux",
    ),
]

VIEWS = {
    "totals": "select customer_id, count(*) as n from shop.orders group by customer_id",
    "revenue": "select o.customer_id, sum(l.amount) as total from shop.orders o"
    " join shop.lines l on l.order_id = o.id group by o.customer_id",
    "over": "select n, count(*) as customers from totals group by n",
}


class Disk:
    """A small file system."""

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        folder.mkdir()
        self.folder, self._filler = folder, folder / "filler"
        size = f"size={megabytes}m"
        _system("mount", "-t", "tmpfs", "-o", size, "mview-test", str(folder))

    def fill(self, leave_kb: int = 0) -> None:
        """Have so much room left."""
        self.free()
        with self._filler.open("wb") as out:
            while True:
                found = os.statvfs(self.folder)
                wanted = found.f_bavail * found.f_frsize - leave_kb * 1024
                try:
                    return os.posix_fallocate(out.fileno(), 0, max(wanted, 1))
                except OSError as error:
                    # Others write at the same time.
                    if error.errno != errno.ENOSPC or found.f_bavail == 0:
                        raise

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def read_only(self) -> None:
        """A mount of its own: what is open for writing would keep the first one from it."""
        _system("mount", "--bind", str(self.folder), str(self.folder))
        _system("mount", "-o", "remount,bind,ro", str(self.folder))

    def writable(self) -> None:
        self.close()

    def close(self) -> None:
        _system("umount", "-l", str(self.folder))


def _system(*command: str) -> None:
    subprocess.run(command, check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "small")
    yield disk
    disk.close()


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(tmp_path, size=24)
    shop.heartbeat()
    yield shop
    shop.close()


def configured(shop: Shop, store: Path) -> Config:
    config = shop.config()
    file = config.path
    file.write_text(file.read_text().replace("store: store", f"store: {store}"))
    return load_config(file)


def change(shop: Shop, first: int, count: int = 5) -> None:
    for number in range(first, first + count):
        row = {"id": number, "customer_id": number % 5, "day": "2024-02-29"}
        shop.insert("orders", row)
        line = {"order_id": number, "line": 1, "product": None, "amount": f"{number}.10"}
        shop.insert("lines", line)
    shop.heartbeat()


#: What brings back a view that has halted alone.
ANEW = "the next run builds the view anew"


def said(
    error: BaseException, what: str = "the disk is full", place: str = "", then: str = "again"
) -> None:
    """Look at what the user is told."""
    block = known_error(error)
    text = block.render()
    assert what in text, text
    assert "report it" not in text
    assert then in text
    assert block.where, text
    assert place in block.where, text
    assert block.safe, text


def tried(config: Config, views: list[ViewDefinition]) -> BaseException | None:
    try:
        run_once(config, *views)
    except Exception as error:
        return error
    return None


@pytest.mark.long
def test_a_store_that_is_full_in_load_and_first_build(
    shop: Shop, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_TAIL_ROWS", 1)
    config, views = configured(shop, disk.folder / "store"), views_of(**VIEWS)
    ends = []
    # Each has some more room than the one before, so that it ends a little later.
    for leave in (0, 16, 48, 96, 160, 240, 400, 800):
        disk.fill(leave)
        error = tried(config, views)
        ends.append(error is None)
        if error is not None:
            print(leave, "kB:", error)
            said(error, place=str(disk.folder))
    assert ends[0] is False
    disk.free()
    change(shop, 100)
    run_once(config, *views)
    Truth(config, shop, views).check_end()


@pytest.mark.long
def test_a_store_that_is_full_while_live(
    shop: Shop, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_TAIL_ROWS", 1)
    monkeypatch.setattr(upkeep, "_CLEAN_EVERY", 2)
    monkeypatch.setattr(upkeep, "_CLEAN_EVERY_S", 0.0)
    config, views = configured(shop, disk.folder / "store"), views_of(**VIEWS)
    run_once(config, *views)
    for turn, leave in enumerate((0, 20, 60)):
        running = Live(config, *views)
        change(shop, 1000 * turn + 100)
        running.epochs("totals", 1)
        disk.fill(leave)
        numbers = iter(range(1000 * turn + 200, 1000 * turn + 900, 5))
        while running._thread.is_alive():
            change(shop, next(numbers))
            running._thread.join(0.5)
        print(leave, "kB:", running.error)
        said(running.failure(), place=str(disk.folder))
        # Nobody can drop or repair, and both say why.
        for command in (drop, repair):
            disk.fill()
            with pytest.raises(MviewError) as caught:
                command(config, ["over"])
            said(caught.value, place=str(disk.folder))
        assert status(config).epoch
        disk.free()
        assert tried(config, views) is None
        Truth(config, shop, views).check_end()
    drop(config, ["over"])


@pytest.mark.long
def test_a_folder_of_one_view_that_is_full_halts_it_alone(shop: Shop, disk: Disk) -> None:
    """In the first build and while live; what reads it halts with it, the others publish."""
    config = shop.config()
    path = f"create materialized view totals with (path = '{disk.folder / 'totals'}') as "
    views = views_of(**{**VIEWS, "totals": path + VIEWS["totals"]})
    good = [view for view in views if view.name == "revenue"]
    disk.fill()
    said(tried(config, views) or Exception("no error"), place=str(disk.folder), then=ANEW)
    assert _halted(config) == {"totals", "over"}
    Truth(config, shop, views).check_end()
    disk.free()
    assert tried(config, views) is None
    assert not _halted(config)

    running = Live(config, *views)
    try:
        change(shop, 100)
        running.epochs("totals", 1)
        disk.fill()
        change(shop, 200)
        running.until(lambda: _halted(config) == {"totals", "over"})
        # One halt ends no run: what comes later is published for the others.
        for number in (300, 400):
            change(shop, number)
            running.epochs("revenue", 1)
        assert "totals" not in running.notes.epochs[-1].views
    finally:
        running.stop()
    said(running.failure(), place=str(disk.folder), then=ANEW)
    Truth(config, shop, views).check_end()
    assert [result.equal for result in verify(config, good)] == [True]
    disk.free()
    assert tried(config, views) is None
    assert not _halted(config)
    Truth(config, shop, views).check_end()


def _halted(config: Config) -> set[str]:
    return {view.name for view in status(config).views if view.halted}


@pytest.mark.long
def test_a_store_that_becomes_read_only(shop: Shop, disk: Disk) -> None:
    config, views = configured(shop, disk.folder / "store"), views_of(**VIEWS)
    run_once(config, *views)
    change(shop, 100)
    disk.read_only()
    said(tried(config, views) or Exception("no error"), "read-only", str(disk.folder))
    for command in (drop, repair):
        with pytest.raises(Exception, match=r"[Rr]ead-only") as caught:
            command(config, ["over"])
        said(caught.value, "read-only", str(disk.folder))
    assert status(config).epoch
    disk.writable()
    run_once(config, *views)
    Truth(config, shop, views).check_end()
