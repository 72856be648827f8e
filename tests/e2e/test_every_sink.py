"""All sinks follow one `mview run`: one is down, one is new, each is read by its own readers."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from mview.admin.content import StoredView, published
from mview.cli import main
from mview.config import Config
from mview.config.file import load_config
from mview.errors import ExitCode
from mview.follow.cursor import Cursor, CursorLog
from mview.follow.followers import read_problem
from mview.plan.definition import load_views
from mview.store.layout import Store
from mview.testing import FollowerHarness
from mview.testing.contract import normal
from mview.testing.view import rows_of
from tests.connectors.every_sink import PLACES, places, section, table_of, target_of
from tests.e2e.running import live, run_once
from tests.e2e.shop import Shop
from tests.e2e.test_processes import Running, run
from tests.e2e.test_processes import wait_for as wait
from tests.e2e.truth import Truth

pytestmark = [pytest.mark.spark, pytest.mark.service, pytest.mark.long]

VIEWS = {
    # Groups come and go; a sum of nothing but NULLs is NULL.
    "totals": "select product, count(*) as n, sum(amount) as total from shop.lines"
    " where product is not null group by product",
    # Its keys change; NULLs of the tables and of the join.
    "sold": "select l.order_id, l.line, l.product, l.amount, o.customer_id, o.day"
    " from shop.lines l left join shop.orders o on o.id = l.order_id",
}
#: Down for a while, and not there at first.
DOWN, LATE = "postgresql", "files"


class Sinks:
    """A shop whose views all sinks follow."""

    def __init__(self, shop: Shop, there: dict[str, FollowerHarness]) -> None:
        self.there, self.folder = there, shop.root / "views"
        shop.config()
        self.file = shop.root / "mview.yml"
        sections = {name: section(harness) for name, harness in there.items()}
        settings = {**yaml.safe_load(self.file.read_text()), "sinks": sections}
        self.file.write_text(yaml.safe_dump(settings))
        self.config: Config = load_config(self.file)
        self.store = Store(self.config.store)
        self.folder.mkdir()

    def follow(self, names: list[str]) -> None:
        """Write the views, for these sinks."""
        for view, sql in VIEWS.items():
            tables = [f"sinks.{n}.table = '{table_of(self.there[n], view)}'" for n in names]
            said = ", ".join([f"sinks = '{', '.join(names)}'", *tables])
            text = f"CREATE MATERIALIZED VIEW {view} WITH ({said}) AS {sql}"
            (self.folder / f"{view}.sql").write_text(text)

    def cursor(self, view: str, sink: str) -> Cursor:
        return CursorLog(self.store.follower(view, sink)).latest()

    def later(self, commits: int, *but: str) -> Callable[[], bool]:
        """Whether all sinks but some have committed so many more times by then, for all views."""
        pairs = [(view, sink) for view in VIEWS for sink in self.there if sink not in but]
        before = {pair: self.cursor(*pair).tried for pair in pairs}

        def is_later() -> bool:
            return all(
                (now := self.cursor(*pair)).epoch is not None and now.tried >= tried + commits
                for pair, tried in before.items()
            )

        return is_later

    def check(self) -> None:
        """Each holds what the views are, which is the batch query's result, for its readers."""
        for view in VIEWS:
            stored = StoredView(self.config, view)
            wanted = normal(rows_of(stored.arrow()))
            assert wanted
            for sink, harness in self.there.items():
                schema = published(self.config).views[view].schema
                rows = harness.read(target_of(harness, view, schema))
                assert normal(rows or []) == wanted, f"view {view} in sink {sink}"

    def mview(self, *arguments: str) -> str:
        """A command of the program, which succeeds."""
        result = CliRunner().invoke(main, [*arguments, "-c", str(self.file)])
        assert result.exit_code == ExitCode.OK, result.output
        return result.stdout


def until(condition: Callable[[], object], running: Running) -> None:
    """Wait; a run that ends says why."""
    try:
        wait(condition, running.process)
    except AssertionError as error:
        raise AssertionError(f"{error}: {running.said.read_text()[-3000:]}") from error


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    shop.heartbeat()
    yield shop
    shop.close()


def test_every_sink_follows_one_run(shop: Shop, request: pytest.FixtureRequest) -> None:
    with places(shop.root / "places", request.getfixturevalue) as there:
        sinks = Sinks(shop, there)
        sinks.follow([name for name in PLACES if name != LATE])
        server = request.getfixturevalue(DOWN)
        with shop.busy(seed=15, pause=0.2):
            with run(shop) as running:
                until(sinks.later(1, LATE), running)
                server.kill()
                try:
                    folder = sinks.store.follower("sold", DOWN)
                    until(lambda: read_problem(folder), running)
                    behind = sinks.cursor("sold", DOWN).epoch
                    until(sinks.later(2, LATE, DOWN), running)
                    assert sinks.cursor("sold", DOWN).epoch == behind
                finally:
                    server.restart()
                until(sinks.later(1, LATE), running)
                os.killpg(running.process.pid, signal.SIGINT)
                code, said = running.end()
                assert code == ExitCode.INTERRUPTED, said
                assert "Traceback" not in said
                assert f"sink {DOWN} of view sold does not get on, alone" in said
                # Another reason for the same is said, too: a server ends before it is gone.
                held, on = (
                    set(re.findall(rf"sink (\w+) of view (\w+) {words}", said))
                    for words in ("does not get on", "gets on again")
                )
                assert held == on, said
            sinks.follow(list(PLACES))
            with live(sinks.config, *load_views([sinks.folder])) as again:
                again.until(sinks.later(1))
                sinks.mview("maintain")
                again.until(sinks.later(1))
        run_once(sinks.config)
        Truth(sinks.config, shop, load_views([sinks.folder])).check_end(
            published(sinks.config).epoch - 1
        )
        sinks.check()
        told = sinks.mview("verify", str(sinks.folder))
        assert told.count(": OK, ") == len(VIEWS) * (1 + len(there)), told
        for view in json.loads(sinks.mview("status", "--json"))["views"]:
            assert {sink["name"] for sink in view["sinks"]} == set(there)
            assert all(sink["waiting"] == 0 and not sink["error"] for sink in view["sinks"]), view
        told = sinks.mview("maintain")
        assert len(told.splitlines()) == len(VIEWS) * len(there), told
        sinks.check()
