"""Environments beside production: every epoch of theirs is right, whatever production does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from mview.admin.apply import apply_views
from mview.admin.content import published
from mview.catalog.environments import in_environment
from mview.cli import main
from mview.config import Config
from mview.errors import CorruptionError, ExitCode, UserError
from mview.failpoints import FaultError, armed
from mview.plan.definition import parse_view
from mview.store.environments import followed, names_of
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import TableState
from mview.store.mirror import Mirror
from mview.store.requests.applies import ApplyAnswer
from tests.e2e.running import PATIENCE, Live, live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.patience import wait_for
from tests.relations import rel
from tests.seeds import of_today

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PRODUCTION = {"names": "select id, name from shop.customers"}
DEV = {
    "names": "select id, name, segment from shop.customers where segment is not null",
    "spent": "select product, count(*) as n, sum(amount) as total from shop.lines group by product",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tail is folded at once, and what is folded is cleaned away."""
    hasty = {"_TAIL_ROWS": 1, "_TAIL_SHARE": 0.0, "_CLEAN_EVERY": 1, "_CLEAN_EVERY_S": 0.0}
    for name, value in hasty.items():
        monkeypatch.setattr(f"mview.epoch.upkeep.{name}", value)


def at(config: Config) -> int:
    """How far an environment has followed production."""
    told = followed(published(config))
    assert told is not None
    return told.epoch


def links(running: Live) -> list[str]:
    """What a run has said of tables that it took from production."""
    return [text for text in running.notes.messages if text.startswith("tables of production")]


def catches_up(running: Live, dev: Config, config: Config) -> None:
    reached = published(config).epoch
    running.until(lambda: at(dev) >= reached)


def command(config: Config, *words: str) -> Any:
    return CliRunner().invoke(main, [*words, "--config", str(config.path)])


def mview(config: Config, *words: str) -> Any:
    """What a command prints with --json."""
    told = command(config, *words, "--json")
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def aside(runs: Sequence[Live], asking: Callable[[], Any]) -> Any:
    """Ask from a thread, as long as all goes on."""
    answers: list[Any] = []
    thread = Thread(target=lambda: answers.append(asking()))
    thread.start()
    for running in runs:
        running.until(lambda: not thread.is_alive())
    return answers[0]


def test_an_environment_follows_production_which_takes_its_views(
    shop: Shop, hasty: None, tmp_path: Path
) -> None:
    config = shop.config()
    dev = in_environment(config, "dev")
    every = [*views_of(**PRODUCTION), *views_of(**DEV)]
    truth, own = Truth(config, shop, every), Truth(dev, shop, every)
    for name, sql in DEV.items():
        (tmp_path / f"{name}.sql").write_text(sql)
    with shop.busy(pause=0.05), live(config, *views_of(**PRODUCTION)) as prod:
        prod.epochs("names", 1)
        plan = mview(config, "plan", "--env", "dev", *(str(tmp_path / f"{n}.sql") for n in DEV))
        assert [(v["view"], v["fate"]) for v in plan["views"]] == [
            ("names", "new"),
            ("spent", "new"),
        ]
        assert (plan["load"], plan["shared"]) == ([], ["shop.customers", "shop.lines"])
        with live(dev, *views_of(**DEV)) as running:
            running.epochs("names", 2)
            running.epochs("spent", 2)
            # What production folds stays in its changelogs until it is taken.
            catches_up(running, dev, config)
            assert len(links(running)) == 1
            prod.epochs("names", 3)
            catches_up(running, dev, config)
            assert len(links(running)) == 1
            (told,) = mview(config, "status")["environments"]
            assert (told["name"], set(told["views"])) == ("dev", set(DEV))
            assert told["running"]
            assert {v["view"] for v in mview(config, "lag", "--env", "dev")["views"]} == set(DEV)
            assert mview(config, "history", "--env", "dev", "spent")
            assert mview(config, "status", "--env", "dev")["store"] == str(dev.store)
            refused = command(config, "drop", "--env", "dev", "--yes")
            assert refused.exit_code == ExitCode.ALREADY_RUNNING, refused.output
            assert set(published(config).views) == {"names"}
            answer = aside(
                [prod, running], lambda: mview(config, "promote", "--env", "dev", "names")
            )
            assert answer["answer"]["views"]["names"].startswith("built anew (its query")
            assert [v["view"] for v in answer["plan"]["views"]] == ["names"]
            prod.epochs("names", 1)
            running.epochs("names", 1)
        refused = command(config, "promote", "--env", "dev")
        assert refused.exit_code == ExitCode.CHECK_FAILED, refused.output
        assert "name the views that production is to take" in refused.output
        plan = mview(config, "promote", "--env", "dev", "--plan")["plan"]
        assert [(v["view"], v["fate"]) for v in plan["views"]] == [("spent", "new")]
        built = published(dev).views["spent"].built_epoch
        # It does not run: production cleans its changelogs, and all begins once more.
        prod.epochs("names", 3)
        with live(dev) as running:
            running.epochs("spent", 1)
            assert "once more" in links(running)[0]
        assert published(dev).views["spent"].built_epoch > built
    assert truth.check().views["names"].definition == published(dev).views["names"].definition
    own.check()
    assert own.compared > 5
    assert mview(config, "drop", "--env", "dev", "--yes")["what"]["views"].keys() == DEV.keys()
    assert not names_of(Store(config.store))
    assert command(config, "status", "--env", "dev").exit_code == ExitCode.CHECK_FAILED
    truth.check()


def tables_go_and_come(shop: Shop) -> None:
    """A table is dropped and loaded anew while an environment runs: it waits, and begins again."""
    config = shop.config()
    dev = in_environment(config, "dev")
    own = Truth(dev, shop, [*views_of(**PRODUCTION), *views_of(**DEV)])
    run_once(config, *views_of(**PRODUCTION))
    with shop.busy(pause=0.05), live(dev, *views_of(**DEV)) as running:
        running.until(lambda: running.notes.epochs)
        aside([running], lambda: mview(config, "drop", "--yes", "shop.lines"))
        running.until(lambda: any("waiting" in text for text in running.notes.messages))
        with live(config, *views_of(**PRODUCTION, all="select * from shop.lines")) as prod:
            running.until(lambda: len(links(running)) == 2)
            running.epochs("spent", 1)
            catches_up(running, dev, config)
            prod.epochs("names", 1)
    own.check()


#: The first table of an environment has its files; all have; all are published, and no view is
#: built. Then what it follows is known; in its mirrors; published.
PLACES = (
    ("log-committed", 3),
    ("log-committed", 6),
    ("after-publish", 1),
    ("after-net", 1),
    ("after-mirrors", 1),
    ("after-publish", 1),
)


def it_fails_at_each_step(shop: Shop) -> None:
    config = shop.config()
    dev = in_environment(config, "dev")
    own = Truth(dev, shop, views_of(**DEV))

    def fail() -> None:
        raise FaultError("on purpose")

    for number, (place, nth) in enumerate(PLACES):
        change(shop, number)
        run_once(config, *views_of(**PRODUCTION))
        with armed(place, fail, nth) as event, pytest.raises(FaultError):
            run_once(dev, *views_of(**DEV))
        assert event.is_set()
        if number >= 2:
            run_once(dev, *views_of(**DEV))
    assert set(own.check_end().views) == set(DEV)


def both_are_killed(shop: Shop) -> None:
    """As processes: the environment's at a step of today, then production's; each goes on."""
    config = shop.config()
    dev = in_environment(config, "dev")
    truth = Truth(config, shop, views_of(**PRODUCTION))
    own = Truth(dev, shop, views_of(**DEV))
    for folder, views in (("views", PRODUCTION), ("dev", DEV)):
        (shop.root / folder).mkdir()
        for name, sql in views.items():
            (shop.root / folder / f"{name}.sql").write_text(sql)
    (place,) = of_today(("after-net", "after-mirrors", "after-intent", "after-publish"), 4)
    with shop.busy(pause=0.02), process(shop, "run", "views") as prod:
        wait_for(lambda: is_built(config, PRODUCTION), PATIENCE, alive(prod))
        with process(shop, "run", "--env", "dev", "dev", fault=f"{place}:6") as killed:
            assert killed.wait(PATIENCE) == -signal.SIGKILL, (shop.root / "said-dev").read_text()
        reached = published(dev).epoch
        with live(dev) as running:
            running.until(lambda: published(dev).epoch > reached + 3)
            prod.kill()
            prod.wait()
    shop.heartbeat()
    run_once(config)
    run_once(dev)
    truth.check_end()
    assert set(own.check_end().views) == set(DEV)


@pytest.mark.long
@pytest.mark.parametrize(
    "befalls", of_today((tables_go_and_come, it_fails_at_each_step, both_are_killed), 3)
)
def test_it_is_right_whatever_befalls(shop: Shop, befalls: Callable[[Shop], None]) -> None:
    befalls(shop)


@pytest.mark.long
def test_a_link_that_fails_half_way_refuses_the_request_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = shop.config()
    dev, views = in_environment(config, "dev"), dict(zip(DEV, views_of(**DEV), strict=True))
    own = Truth(dev, shop, [*views.values()])
    run_once(config, *views_of(**PRODUCTION, prices="select product, amount from shop.lines"))
    copy, done = Mirror.copy, []

    def fails(self: Mirror, *given: Any) -> TableState:
        done.append(copy(self, *given))
        if len(done) == 2:  # both are begun anew
            raise CorruptionError("a file of production is damaged")
        return done[0]

    def asked(running: Live) -> ApplyAnswer:
        return aside([running], lambda: apply_views(dev, [views["names"]], (), print))

    with live(dev, views["spent"]) as running:
        running.until(lambda: is_built(dev, {"spent": ""}))
        change(shop, 9)  # not folded yet where the request comes
        run_once(config)
        catches_up(running, dev, config)
        with monkeypatch.context() as patched:
            patched.setattr(Mirror, "copy", fails)
            answer = asked(running)
        assert (answer.state, len(done)) == ("refused", 2)
        assert "a file of production is damaged" in answer.error
        for number in range(3):
            change(shop, number)
            run_once(config)
            catches_up(running, dev, config)
        assert asked(running).state == "done"
    assert set(own.check_end().views) == set(DEV)


def change(shop: Shop, number: int) -> None:
    shop.insert("customers", {"id": 900 + number, "name": "x", "segment": "gold"})
    shop.delete("lines", shop.rows("lines")[0])
    shop.heartbeat()


def is_built(config: Config, views: Mapping[str, str]) -> bool:
    latest = ManifestLog(Store(config.store).manifests).latest()
    return latest is not None and set(latest.views) == set(views)


def alive(process: subprocess.Popen[bytes]) -> Callable[[], None]:
    def check() -> None:
        assert process.poll() is None, "the run has ended"

    return check


@contextmanager
def process(shop: Shop, *words: str, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, which is killed at the end with all that it started."""
    with (shop.root / f"said-{words[-1]}").open("w") as output:
        started = subprocess.Popen(
            [sys.executable, "-c", "from mview.cli import main; main()", *words, "-c", "mview.yml"],
            env={**os.environ, "MVIEW_FAILPOINT": fault},
            cwd=shop.root, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_production_keeps_what_a_slow_first_link_goes_on_from(
    shop: Shop, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = shop.config()
    dev = in_environment(config, "dev")
    copy = Mirror.copy

    def slow(mirror: Mirror, *of: Any) -> TableState:
        """Production folds and cleans up some times between the look at it and the link."""
        copied, reached = copy(mirror, *of), published(config).epoch
        assert wait_for(lambda: published(config).epoch >= reached + 8, PATIENCE)
        return copied

    with shop.busy(pause=0.05), live(config, *views_of(**PRODUCTION)) as prod:
        prod.epochs("names", 1)
        with monkeypatch.context() as patch:
            patch.setattr(Mirror, "copy", slow)
            with live(dev, *views_of(**DEV)) as running:
                running.epochs("spent", 1)
                catches_up(running, dev, config)
                assert len(links(running)) == 1


def test_what_cannot_be_is_told(shop: Shop) -> None:
    """Names, tables that production has not, environments that are not there."""
    config = shop.config()
    for name in ("../dev", "Dev", ""):
        with pytest.raises(UserError, match="cannot be the name"):
            in_environment(config, name)
    told = command(config, "status", "--env", "dev")
    assert told.exit_code == ExitCode.CHECK_FAILED
    assert "--env dev FILE…" in told.output
    dev = in_environment(config, "dev")
    with pytest.raises(UserError, match=r"has not loaded shop\.away") as error:
        run_once(dev, parse_view("select id from shop.away", "v"))
    assert "mview run FILE" in str(error.value.hint)
    assert rel("shop.lines") in published(config).tables
