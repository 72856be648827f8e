"""`mview demo` for real, as a person sees it, and the commands on what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from mview.cli import main
from mview.cli.demo.command import set_up
from mview.errors import UserError
from tests.patience import end_of

MVIEW = str(Path(sys.executable).with_name("mview"))
#: `mview demo`, whose view is not watched for as long.
DEMO = """
from mview.cli import main
from mview.cli.demo import conductor
conductor.LIVE_SECONDS = 3
main(["demo"])
"""
VIEW = "sql/shop/order_revenue.sql"
#: Its queries are small: to compile them well takes longer than to run them.
JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

spark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("demo"),
]


def test_the_demo_makes_no_use_of_a_folder_that_is_not_its_own(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    result = CliRunner().invoke(main, ["demo", "--path", str(tmp_path)])
    assert result.exit_code == 2
    assert "not an earlier demo" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["precious.txt"]


def test_an_earlier_demo_is_replaced(tmp_path):
    set_up(tmp_path)
    (tmp_path / "left-over").touch()
    set_up(tmp_path)
    assert not (tmp_path / "left-over").exists()
    assert (tmp_path / "conf/mview.yml").exists()
    assert (tmp_path / VIEW).exists()


def mview(folder, *arguments, code=0, program=(MVIEW,)):
    """Run a command to its end; returns what it printed."""
    command, env = [*program, *arguments], {**os.environ, **JAVA}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a demo that has run, and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    return folder, mview(folder.parent, program=(sys.executable, "-c", DEMO))


def oldest(view):
    """The view at its first epoch: it is built when all tables are loaded."""
    for epoch in range(1, view.epoch):
        with suppress(UserError):
            return view.as_of(epoch)
    raise AssertionError("the view has one epoch only: no change came while it was live")


@pytest.mark.long
class TestDemo:
    pytestmark = spark

    def test_it_shows_the_whole_way(self, demo):
        _, shown = demo
        for table in ("customers", "orders", "order_lines"):
            assert f"shop.{table}: loaded" in shown
        told = r"order_revenue: epochs? [\d to]+, lag (up to )?[\d.]+ s, \+\d+ ~\d+ -\d+"
        assert re.search(told, shown)
        assert re.search(r"The Delta table \S+, epoch \d+: [\d,]+ rows", shown)
        assert re.search(r"The writer made [\d,]+ changes", shown)
        assert re.search(r"order_revenue: OK, [\d,]+ rows equal at epoch \d+", shown)
        assert "mview status" in shown.split("What next")[1]

    def test_anybody_can_read_the_table(self, demo):
        folder, _ = demo
        (view,) = json.loads(mview(folder, "status", "--json"))["views"]
        table = DeltaTable(view["path"]).to_pyarrow_table()
        assert table.num_rows == view["rows"]
        assert table.schema.names[0] == "order_id"
        assert not [name for name in table.schema.names if name.startswith("_")]

    def test_python_sees_every_epoch(self, demo, monkeypatch):
        import mview as package

        folder, _ = demo
        monkeypatch.chdir(folder)
        project = package.connect()
        view = project["order_revenue"]
        assert list(project) == ["order_revenue"]
        older = oldest(view)
        changes = view.changes(older.epoch)
        assert len(view.df()) - len(older.df()) == changes["__weight"].sum()
        assert len(changes) > 0
        assert view.status().rows == view.arrow().num_rows
        assert "order_revenue" in project._repr_html_()
        assert f"{len(view.df()):,} rows" in view._repr_html_()

    def test_more_views_then_two_runners_then_ctrl_c_then_drop(self, demo):
        folder, _ = demo
        assert "region_revenue: epoch" in mview(folder, "run", "sql/shop", "--once")
        verified = mview(folder, "verify", "sql/shop", "--source")
        assert len(re.findall(r"^\w+: OK, .* equal at epoch", verified, re.MULTILINE)) == 3
        assert "shop.orders: OK, " in verified
        with subprocess.Popen(
            [MVIEW, "run", VIEW], cwd=folder, stdout=subprocess.PIPE, text=True
        ) as running:
            try:
                assert running.stdout.readline().endswith("  starting Spark\n")
                refused = mview(folder, "run", VIEW, code=4)
                assert str(running.pid) in refused
                assert f"process {running.pid}" in mview(folder, "status")
                running.send_signal(signal.SIGINT)
                said = running.stdout.read()
                assert "finishing the running epoch" in said
                assert end_of(running, 120) == 130
            finally:
                running.kill()
        assert "view region_revenue reads order_revenue" in mview(
            folder, "drop", "order_revenue", "--yes", code=1
        )
        mview(folder, "drop", "region_revenue", "order_revenue", "--yes")
        assert [v["name"] for v in json.loads(mview(folder, "status", "--json"))["views"]] == [
            "customer_totals"
        ]
        assert not (folder / "store/views/order_revenue/data/_delta_log").exists()
