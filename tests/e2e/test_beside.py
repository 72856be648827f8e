"""Views that are built while the epochs of others go on; each epoch that shows them is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from mview.admin.content import StoredView, published
from mview.catalog.definitions import digest_of
from mview.config import Config
from mview.epoch.upkeep import Upkeep
from mview.epoch.views.beside import Building
from mview.errors import MviewError
from mview.failpoints import FaultError, armed
from mview.plan.definition import ViewDefinition
from mview.store.layout import Store
from mview.store.manifest import Manifest
from mview.store.requests.applies import ApplyLog, ApplyRequest
from tests.e2e.running import Live, beating, live, run_once, views_of
from tests.e2e.shop import Shop
from tests.e2e.truth import Truth
from tests.relations import rel

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TEXTS = {
    "names": "select id, name from shop.customers",
    "edited": "select id, name, segment from shop.customers where segment is not null",
    # A state, and read by another view; a part; no key; looked up by two tables; as a whole.
    "spent": "select product, count(*) as n, sum(amount) as total from shop.lines group by product",
    "above": "select n, count(*) as products from spent group by n",
    "alone": "select order_id as n, count(*) as products from shop.lines group by order_id",
    "sizes": "select order_id, count(*) as n from shop.lines group by order_id",
    "over": "select n, count(*) as orders from sizes group by n",
    "most": "select product, n from (select product, count(*) as n from shop.lines"
    " group by product) where n > 1",
    "bodies": "select body from shop.notes",
    "sold": "select l.order_id, l.line, l.amount, o.customer_id from shop.lines l"
    " left join shop.orders o on o.id = l.order_id",
    "days": "select day, count(distinct customer_id) as buyers from shop.orders group by day",
}


def view(name: str, text: str = "") -> ViewDefinition:
    return views_of(**{name: TEXTS[text or name]})[0]


#: All that any test gives.
EVERY = [
    *(view(name) for name in TEXTS if name not in ("edited", "alone")),
    view("names", "edited"),
    view("above", "alone"),
]

NEW = [view(name) for name in ("spent", "above", "most", "bodies", "sold", "days")]


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


def no_build_is_left(config: Config) -> None:
    store = Store(config.store)
    assert not store.building.exists() or not [*store.building.iterdir()]
    assert not [file for file in store.root.rglob("_staging/**/*") if file.is_file()]


@contextmanager
def held(place: str = "in-build", nth: int = 1) -> Iterator[tuple[Event, Event]]:
    """A build that stops at a place until it may go on: yields what says so, and that."""
    go = Event()
    with armed(place, lambda: go.wait(120), nth) as hit:
        try:
            yield hit, go
        finally:
            go.set()


def answered(running: Live, file: Path) -> None:
    running.until(lambda: not file.exists())


def asked(config: Config, views: Sequence[ViewDefinition], remove: Sequence[str] = ()) -> Path:
    return ApplyLog(Store(config.store).applies).ask(ApplyRequest(tuple(views), tuple(remove)))


def test_others_go_on_and_the_first_epoch_of_new_views_is_right(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    given = [view(name) for name in ("names", "days", "spent", "above")]
    new = [view(name) for name in ("sizes", "over", "most", "bodies", "sold")]
    with shop.busy(pause=0.01), live(config, *given) as running:
        running.epochs("names", 1)
        with held() as (hit, go):
            # Nobody will read `spent` then, and its former reader goes on meanwhile.
            file = asked(config, [*new, view("names", "edited"), view("above", "alone")])
            running.until(hit.is_set)
            running.epochs("names", 5)
            running.epochs("above", 1)
            state = published(config).views["names"]
            assert state.definition == digest_of(view("names")), "it is kept by its former text"
            assert not state.stale
            assert "sizes" not in published(config).views
            go.set()
            answered(running, file)
        running.epochs("sizes", 2)
        running.epochs("names", 2)
        assert rel("spent") not in published(config).tables
        assert "segment" in StoredView(config, "names").arrow().column_names
        no_build_is_left(config)
    states = truth.check().views
    begun = {name: states[name].built_epoch for name in ("over", "above", "names", "days")}
    assert begun["over"] == begun["above"] == begun["names"] > begun["days"]
    run_once(config)
    states = truth.check_end().views
    assert {name for name, state in states.items() if not state.stale} == {v.name for v in EVERY}


@pytest.mark.long
def test_what_a_build_reads_stays_on_disk(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is folded and deleted meanwhile."""
    monkeypatch.setattr("mview.epoch.upkeep._TAIL_ROWS", 1)
    monkeypatch.setattr("mview.epoch.upkeep._CLEAN_EVERY", 3)
    monkeypatch.setattr("mview.epoch.upkeep._CLEAN_EVERY_S", 0.0)
    config = shop.config(keep_files="1ms", history="1ms")
    truth = Truth(config, shop, EVERY)
    cleaned: list[int] = []
    clean = Upkeep._clean

    def cleaning(upkeep: Upkeep, newest: Manifest) -> None:
        clean(upkeep, newest)
        cleaned.append(newest.epoch)

    monkeypatch.setattr(Upkeep, "_clean", cleaning)
    with shop.busy(pause=0.01), live(config, view("names")) as running:
        running.epochs("names", 1)
        with held() as (hit, go):
            file = asked(config, NEW)
            running.until(hit.is_set)
            cleaned.clear()
            running.until(lambda: len(cleaned) > 3)
            go.set()
            answered(running, file)
    run_once(config)
    newest = published(config)
    assert not [name for name, state in newest.views.items() if state.stale]
    truth.check_end(newest.epoch - 1)


def test_views_are_added_at_the_start_of_a_run(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    run_once(config, view("names"))
    with shop.busy(pause=0.02), held() as (hit, go), live(config, view("spent")) as running:
        running.until(hit.is_set)
        running.epochs("names", 3)
        assert "spent" not in published(config).views
        go.set()
        running.epochs("spent", 2)
    truth.check()


@pytest.mark.long
def test_a_source_is_truncated_meanwhile(shop: Shop) -> None:
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    with beating(shop), live(config, view("names")) as running:
        shop.insert("notes", {"id": 1, "body": "old"})
        running.to_the_end(shop)
        with held() as (hit, go):
            file = asked(config, NEW)
            running.until(hit.is_set)
            for table in ("lines", "notes", "orders"):
                shop.truncate(table)
            shop.insert("notes", {"id": 2, "body": "new"})
            running.to_the_end(shop)
            go.set()
            answered(running, file)
        assert StoredView(config, "bodies").arrow().to_pylist() == [{"body": "new"}]
        assert published(config).views["sold"].rows == 0
    truth.check()


@pytest.mark.long
def test_a_view_that_fails_halts_alone(shop: Shop) -> None:
    """On the data at the pinned epoch and after; by a key that only a later change gives twice."""
    config = shop.config()
    truth = Truth(config, shop, [*EVERY, *views_of(
        late="create materialized view late with (key='body') as select id, body from shop.notes",
        wrong="select id, 1 / (length(body) - 3) as x from shop.notes",
        reads="select x from wrong",
    )])  # fmt: skip
    given = [definition for (name, _), definition in truth.views.items()]
    bad = [v for v in given if v.name in ("late", "wrong", "reads")]
    with beating(shop):
        running = Live(config, view("names"))
        shop.insert("notes", {"id": 1, "body": "a"})
        running.to_the_end(shop)
        with held("in-build", 4) as (hit, go):
            file = asked(config, [*bad, view("spent")])
            running.until(hit.is_set)
            shop.insert("notes", {"id": 2, "body": "a"})  # twice
            shop.insert("notes", {"id": 3, "body": "abc"})  # divided by zero
            running.to_the_end(shop)
            go.set()
            answered(running, file)
        answer = ApplyLog(Store(config.store).applies).answer(file)
        assert answer is not None
        assert set(answer.halted) == {"late", "wrong", "reads"}
        assert "is not unique" in answer.halted["late"]
        assert "DIVIDE_BY_ZERO" in answer.halted["wrong"]
        assert "which has halted" in answer.halted["reads"]
        shop.insert("customers", {"id": 901, "name": "x", "segment": "gold"})
        running.epochs("names", 1)
        running.stop()
    assert isinstance(running.error, MviewError), "a run ends with why views have halted"
    no_build_is_left(config)
    assert not truth.check().views["spent"].stale


@pytest.mark.long
def test_a_request_that_comes_meanwhile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more view, a bad view, and that a view goes which is being built."""
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    with shop.busy(pause=0.02), live(config, view("names")) as running:
        running.epochs("names", 1)
        with held() as (hit, go):
            first = asked(config, [view("spent"), view("bodies")])
            running.until(hit.is_set)
            close = Building.close

            def closing(building: Building) -> None:
                """The run ends the build for the request, and waits for its thread."""
                go.set()
                close(building)

            monkeypatch.setattr(Building, "close", closing)
            refused = asked(config, views_of(bad="select nothing from shop.customers"))
            go_on = asked(config, [view("sold")], ["bodies"])
            answered(running, refused)
            assert go.is_set()
            answered(running, first)
            answered(running, go_on)
        log = ApplyLog(Store(config.store).applies)
        states = {file: log.answer(file) for file in (first, refused, go_on)}
        assert [answer and answer.state for answer in states.values()] == [
            "done",
            "refused",
            "done",
        ]
        running.epochs("spent", 1)
        running.epochs("sold", 1)
        assert "bodies" not in published(config).views
        assert not Store(config.store).view("bodies").exists()
        no_build_is_left(config)
        # Nothing but a request that is refused: the build begins anew all the same.
        with held() as (hit, go):
            edited = asked(config, [view("names", "edited")])
            running.until(hit.is_set)
            answered(running, asked(config, views_of(bad="select nothing from shop.customers")))
            answered(running, edited)
        answer = log.answer(edited)
        assert answer is not None
        assert answer.state == "done"
        no_build_is_left(config)
    truth.check()


@pytest.mark.long
@pytest.mark.parametrize("place", ["in-build", "build-closed", "after-build", "after-intent"])
def test_a_run_that_ends_in_it_leaves_it_to_the_next(shop: Shop, place: str) -> None:
    config = shop.config()
    truth = Truth(config, shop, EVERY)
    run_once(config, view("names"))
    shop.insert("notes", {"id": 1, "body": "old"})
    failed = Event()

    def fail() -> None:
        failed.set()
        raise FaultError("on purpose")

    asked(config, [view("bodies"), view("spent"), view("names", "edited")])
    with shop.busy(pause=0.02), held("apply-begun") as (begun, go):
        running = Live(config)
        running.until(begun.is_set)
        with armed(place, fail):  # before anything is built
            go.set()
            running.until(failed.is_set)
        running.stop() if place == "in-build" else running.failure()
    run_once(config)
    newest = truth.check_end()
    assert set(newest.views) == {"names", "bodies", "spent"}
    no_build_is_left(config)


@pytest.mark.long
def test_a_run_that_is_stopped_meanwhile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends without the build, which the next one does."""
    config, close = shop.config(), Building.close
    with beating(shop), live(config, view("names")) as running:
        running.to_the_end(shop)
        with held() as (hit, go):
            monkeypatch.setattr(Building, "close", lambda building: (go.set(), close(building)))
            asked(config, [view("spent")])
            running.until(hit.is_set)
            running.stop()
        assert "spent" not in published(config).views
        no_build_is_left(config)
    run_once(config)
    assert published(config).views["spent"].rows > 0
