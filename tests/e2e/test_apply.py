"""Views that a run takes while it goes on: every epoch is right, by the views that it has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from mview.admin.apply import apply_views
from mview.admin.content import StoredView, published
from mview.admin.pauses import pause_loads, resume_loads
from mview.catalog.definitions import load_definition
from mview.cli import main
from mview.config import Config
from mview.errors import RetryableError, UserError
from mview.failpoints import FaultError, armed
from mview.plan.definition import ViewDefinition
from mview.store.layout import Store
from mview.store.requests.applies import ApplyAnswer, ApplyLog, ApplyRequest
from mview.store.requests.asked import asked_views
from tests.e2e.running import Live, beating, live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.relations import rel

T = TypeVar("T")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = {
    "names": "select id, name from shop.customers",
    "edited": "select id, name, segment from shop.customers where segment is not null",
    "spent": "select product, count(*) as n, sum(amount) as total from shop.lines group by product",
    "above": "select n, count(*) as products from spent group by n",
    "bodies": "select id, body from shop.notes",
}


def view(name: str, text: str = "") -> ViewDefinition:
    return views_of(**{name: TEXTS[text or name]})[0]


#: All that any test gives.
EVERY = [view("names"), view("names", "edited"), *(view(n) for n in ("spent", "above", "bodies"))]


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


def ask(
    running: Live, views: Sequence[ViewDefinition] = (), remove: Sequence[str] = ()
) -> ApplyAnswer:
    """Ask the run, which must not end by it."""
    config = running.pipeline.config
    return aside(running, lambda: apply_views(config, views, remove, lambda text: None))


def aside(running: Live, asking: Callable[[], T]) -> T:
    """Ask the run from a thread, as long as it goes on."""
    answers: list[T] = []
    thread = Thread(target=lambda: answers.append(asking()))
    thread.start()
    running.until(lambda: not thread.is_alive())
    return answers[0]


def mview(config: Config, *words: str) -> Any:
    """What a command prints with --json."""
    told = CliRunner().invoke(main, [*words, "--json", "--config", str(config.path)])
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def nothing_is_left(config: Config) -> None:
    store = Store(config.store)
    assert not [*store.applies.iterdir()]


def built(config: Config) -> Mapping[str, int]:
    return {name: state.built_epoch for name, state in published(config).views.items()}


def has_halted(running: Live, name: str) -> bool:
    """Whether the newest epoch says what the run has said."""
    error = running.notes.halts.get(name)
    states = published(running.pipeline.config).views
    return error is not None and error.what in states[name].halted


def test_views_come_change_and_go_while_all_goes_on(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    with shop.busy(pause=0.05), live(config, view("names")) as running:
        running.epochs("names", 1)
        first = ask(running, [view("spent"), view("names")])
        assert (first.state, first.halted) == ("done", {})
        assert first.views["spent"].startswith("built, ")
        assert first.views["names"].startswith("goes on as it was")
        before = built(config)
        assert before["names"] < before["spent"]
        running.epochs("spent", 1)
        # What another one reads is kept as a mirror, too: that has a reason, as in a plan.
        second = ask(running, [view("above")])
        assert "above reads it now" in second.views["spent"]
        running.epochs("above", 1)
        third = ask(running, [view("names", "edited")])
        assert third.views["names"].startswith("built anew (its query")
        assert built(config)["above"] == published(config).views["spent"].built_epoch
        running.epochs("names", 1)
        # Back to the text before, and from there to the newer one.
        for text in (TEXTS["names"], TEXTS["edited"]):
            plan = mview(config, "rollback", "names", "--plan")
            assert plan["sql"] == text
            assert [v["fate"] for v in plan["plan"]["views"]] == ["changed"]
            assert plan["answer"] is None
            told = aside(running, lambda: mview(config, "rollback", "names"))
            assert told["answer"]["state"] == "done"
            assert told["answer"]["views"]["names"].startswith("built anew (its query")
            kept = load_definition(Store(config.store), published(config), "names")
            assert kept.sql == text
            running.epochs("names", 1)
        target = Store(config.store).view("above")
        assert target.exists()
        fourth = ask(running, remove=["above"])
        assert fourth.views == {"above": "gone"}
        assert not target.exists()
        assert set(built(config)) == {"names", "spent"} == set(asked_views(Store(config.store)))
        running.epochs("spent", 1)
        nothing_is_left(config)
    truth.check()
    run_once(config)
    assert set(truth.check_end().views) == {"names", "spent"}


def test_a_view_is_changed_again_while_nothing_else_changes(shop: Shop) -> None:
    """Its state begins anew each time, beside the files of the one before."""
    config = shop.config()
    texts = [TEXTS["spent"], f"{TEXTS['spent']} having count(*) > 0", TEXTS["spent"]]
    truth = Truth(config, shop, [*EVERY, *views_of(spent=texts[1])])
    with live(config, view("names")) as running:
        running.to_the_end(shop)
        for text in texts:
            answer = ask(running, [*views_of(spent=text), view("above")])
            assert (answer.state, answer.halted) == ("done", {})
    truth.check()
    run_once(config)
    assert set(truth.check_end().views) == {"names", "spent", "above"}


def test_back_from_a_text_that_halts(shop: Shop) -> None:
    """It never was the view's: the text to go back to is the one whose rows are shown."""
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    wrong = "select id, cast(concat('c', name) as int) as name from shop.customers"
    with live(config, view("names"), view("spent")) as running:
        running.epochs("names", 1)
        ask(running, [view("names", "edited")])
        assert set(ask(running, views_of(names=wrong)).halted) == {"names"}
        told = aside(running, lambda: mview(config, "rollback", "names"))
        assert (told["sql"], told["answer"]["halted"]) == (TEXTS["edited"], {})
        assert load_definition(Store(config.store), published(config), "names").sql == told["sql"]
        told = aside(running, lambda: mview(config, "rollback", "names"))
        assert (told["sql"], told["answer"]["halted"]) == (TEXTS["names"], {})
        running.to_the_end(shop)
    truth.check()


def test_back_from_a_text_that_spark_refuses_at_the_start(shop: Shop) -> None:
    """A start halts its view alone: the text was tried, as one that fails when it is built."""
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    refused = "select id, year(id > 0) as name from shop.customers"
    with live(config, view("names"), view("spent")) as running:
        running.epochs("names", 1)
    with live(config, *views_of(names=refused)) as running:
        running.until(lambda: has_halted(running, "names"))
        told = aside(running, lambda: mview(config, "rollback", "names"))
        assert (told["sql"], told["answer"]["halted"]) == (TEXTS["names"], {})
        running.to_the_end(shop)
    truth.check()


def test_a_view_of_a_new_table(new_shop: Shop) -> None:
    """It is loaded while the published views go on; the answer comes when it is live."""
    config = new_shop.config(chunk_rows=8, chunks_per_epoch=1)
    truth = Truth(config, new_shop, EVERY)
    with new_shop.busy(pause=0.02), live(config, view("names")) as running:
        running.epochs("names", 1)
        epochs = len(running.notes.epochs)
        answer = ask(running, [view("spent")])
        assert answer.state == "done"
        while_loaded = running.notes.epochs[epochs:]
        assert any("names" in epoch.views for epoch in while_loaded)
        assert published(config).tables[rel("shop.lines")].phase == "loaded"
        running.epochs("spent", 1)
        nothing_is_left(config)
    truth.check()


@pytest.mark.long
def test_views_are_built_while_a_table_is_loaded_that_they_do_not_read(new_shop: Shop) -> None:
    """Each request is answered when its own views are live; what waits is left to the next run."""
    config = new_shop.config(chunk_rows=8, chunks_per_epoch=1)
    truth = Truth(config, new_shop, EVERY)

    def is_loading() -> bool:
        state = published(config).tables.get(rel("shop.lines"))
        return state is not None and state.phase == "loading"

    with new_shop.busy(pause=0.02):
        with live(config, view("names")) as running:
            running.epochs("names", 1)
            paused = pause_loads(config, ["shop.lines"], lambda text: None)
            assert paused == {"shop.lines": True}
            log = ApplyLog(Store(config.store).applies)
            slow = log.ask(ApplyRequest((view("spent"), view("above"))))
            running.until(lambda: (answer := log.answer(slow)) and answer.load == ("shop.lines",))
            assert ask(running, [view("bodies")]).views["bodies"].startswith("built, ")
            running.epochs("bodies", 1)
            assert is_loading()
            assert log.files() == [slow]
        with live(config) as running:
            running.until(is_loading)
            resume_loads(config, ["shop.lines"])
            running.until(lambda: not log.files())
            running.epochs("above", 1)
    truth.check()
    assert set(built(config)) == {"names", "bodies", "spent", "above"}


REFUSED = {
    "text": ([*views_of(bad="select nothing from shop.customers")], [], "nothing"),
    "table": ([*views_of(bad="select id from shop.nowhere")], [], "nowhere"),
    "connection": ([*views_of(bad="select id from crm.people")], [], "crm"),
    "read": ([], ["spent"], "view above reads spent, which is to go"),
    "light": (
        [
            *views_of(
                bad="create materialized view bad with (mode='light', sinks='s') as"
                " select id from shop.notes"
            )
        ],
        [],
        "light",
    ),
}


def test_what_is_refused_changes_nothing(shop: Shop) -> None:
    config = shop.config()
    views = [view("names"), view("spent"), view("above")]
    truth = Truth(config, shop, EVERY)
    with shop.busy(pause=0.05), live(config, *views) as running:
        running.epochs("above", 1)
        before = built(config)
        for name, (given, remove, why) in REFUSED.items():
            answer = ask(running, [*given, view("bodies")], remove)
            assert answer.state == "refused", name
            assert why in answer.error, name
        log = ApplyLog(Store(config.store).applies)
        damaged = log.ask(ApplyRequest((view("bodies"),)))
        damaged.write_text("half")
        running.until(lambda: not damaged.exists())
        refused = log.answer(damaged)
        assert refused is not None
        assert "cannot be read" in refused.error
        running.epochs("above", 1)  # by a query that has read the file
        text = config.path.read_text()
        config.path.write_text(text.replace("200ms", "300ms"))
        answer = ask(running, [view("bodies")])
        assert answer.state == "refused"
        assert "connections or changes were edited" in answer.error
        config.path.write_text(text)
        running.epochs("above", 1)
        assert built(config) == before
        assert set(asked_views(Store(config.store))) == set(before)
    truth.check()


def test_a_view_that_fails_on_the_data_halts_alone(shop: Shop) -> None:
    config = shop.config()
    wrong = views_of(
        twice="create materialized view twice with (key='segment') as"
        " select segment, name from shop.customers"
    )

    def is_followed(number: int) -> None:
        shop.insert("customers", {"id": number, "name": "x", "segment": "gold"})
        running.epochs("names", 1)

    with beating(shop):
        running = Live(config, view("names"))
        running.epochs("names", 1)
        answer = ask(running, wrong)
        assert (answer.state, answer.views["twice"]) == ("done", "not built: halted")
        assert "is not unique" in answer.halted["twice"]
        is_followed(901)
        assert ask(running, remove=["twice"]).views == {"twice": "gone"}
        is_followed(902)
        running.stop()
    assert running.error is None, "a view that is gone is no reason to end with an error"


def test_nobody_runs(shop: Shop) -> None:
    config = shop.config()
    with pytest.raises(UserError, match="nobody runs the store"):
        apply_views(config, [view("names")], [], print)
    assert not Store(config.store).applies.exists()


def test_a_run_that_ends_before_it_looks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    config = shop.config()
    with beating(shop), live(config, view("names")) as running:
        running.epochs("names", 1)
        monkeypatch.setattr("mview.run.applying.Applying.is_asked", False)

        def stop(seconds: float) -> None:
            running.stop()

        with pytest.raises(RetryableError, match="before it looked"):
            apply_views(config, [view("spent")], [], print, stop)
    nothing_is_left(config)


@pytest.mark.long
@pytest.mark.parametrize("place", ["apply-taken", "apply-begun", "apply-removed", "apply-answered"])
def test_a_run_that_fails_in_it_leaves_it_to_the_next(shop: Shop, place: str) -> None:
    """Without the files: what was asked for is in the store, with what it takes away."""
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    run_once(config, view("names"), view("bodies"))
    shop.insert("customers", {"id": 900, "name": "x", "segment": "gold"})
    log = ApplyLog(Store(config.store).applies)
    file = log.ask(ApplyRequest((view("names", "edited"), view("spent")), ("bodies",)))

    def fail() -> None:
        raise FaultError("on purpose")

    with armed(place, fail) as hit, pytest.raises(FaultError):
        run_once(config)
    assert hit.is_set()
    assert file.exists()
    shop.heartbeat()
    run_once(config)
    answer = log.answer(file)
    assert answer is not None
    assert (answer.state, answer.halted) == ("done", {})
    assert not log.files()
    assert set(truth.check_end().views) == {"names", "spent"}
    assert "segment" in StoredView(config, "names").arrow().column_names
