"""Faults of every kind at every step of one view: it halts alone, and the others are right."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from mview.admin.mending.repair import repair
from mview.clock import SystemClock
from mview.connector import TableHalt, passed_by
from mview.epoch import stages, upkeep
from mview.epoch.halts import has_halted, reads_halted_table, told_of
from mview.epoch.recover import forget_folders, recover
from mview.epoch.views import cost, maintain
from mview.epoch.views.opening import open_sinks
from mview.errors import (
    CorruptionError,
    DataLostError,
    DecodeError,
    FencedError,
    MviewError,
    RetryableError,
    UserError,
    without_secrets_in,
)
from mview.execute.turns import aside
from mview.files.waiting import Waiting
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.secrets import Mask
from mview.session.spark_errors import WorkerEndedError, WorkerStartError
from mview.store.layout import Store
from mview.store.lease import Lease
from tests.epoch.epochs import Epochs
from tests.relations import rel
from tests.seeds import SEED, some_today

pytestmark = [pytest.mark.spark]

SCHEMAS = {
    "shop.orders": TableSchema(
        (
            Column("id", pa.int64(), nullable=False),
            Column("customer", pa.int64()),
            Column("amount", pa.decimal128(10, 2)),
        ),
        ("id",),
    ),
    "shop.customers": TableSchema(
        (Column("id", pa.int64(), nullable=False), Column("name", pa.string())), ("id",)
    ),
}
#: `totals` has parts, a state table, and a reader that has one itself.
VIEWS = {
    "named": "select o.id, c.name from shop.orders o join shop.customers c on c.id = o.customer",
    "totals": "select customer, sum(amount) as total, count(*) as n from shop.orders"
    " where amount > (select min(amount) from shop.orders) group by customer",
    "readers": "select n, count(*) as customers from totals group by n",
    "far": "select n + 1 as more, customers from readers",
    "others": "select customer, count(*) as n from shop.orders group by customer",
}
HALTED = ("totals", "readers", "far")

ERRORS: list[Exception] = [
    ValueError("a value"),
    KeyError("a key"),
    AssertionError(),
    MemoryError(),
    pa.ArrowInvalid("arrow"),
    duckdb.OutOfRangeException("duckdb"),
    Py4JError("py4j"),
    IllegalArgumentException("requirement failed"),
    OSError(errno.EACCES, "Permission denied", "/mnt/elsewhere"),
    OSError(errno.ENOSPC, "No space left on device", "/mnt/elsewhere"),
    UserError("bad"),
    RetryableError("try again"),
]
#: Only a sink may say these without it being the store's word.
OF_TARGETS: list[Exception] = [FencedError("not ours"), CorruptionError("broken")]
STEPS = ("perform", "count_changes", "appended", "stage")


def order(number: int) -> Any:
    after = {"id": number, "customer": number % 5, "amount": f"{number}.50"}
    return ("orders", "insert", None, after)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Epochs:
    world = Epochs(tmp_path_factory.mktemp("built"), spark, SCHEMAS, VIEWS)
    world.seed()
    with world.opened():
        assert not world.build()
        customers = [("customers", "insert", None, {"id": n, "name": f"c{n}"}) for n in range(4)]
        world.epoch(*customers, *(order(n) for n in range(20)))
        world.check()
    return world


@pytest.fixture
def world(built: Epochs, tmp_path: Path) -> Iterator[Epochs]:
    with built.copy(tmp_path / "copy").opened() as world:
        yield world


@pytest.fixture(params=["few", "many"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views one after the other, as of few rows, and side by side."""
    if request.param == "many":
        monkeypatch.setattr(maintain, "_FEW", -1)


def inject(patch: pytest.MonkeyPatch, world: Epochs, step: str, error: Exception) -> None:
    """Have a step of the view `totals` fail, wherever in it the step comes."""
    if step == "stage":
        patch.setattr(world.engine.views["totals"].sink, "stage", _raiser(error))
        return
    real = getattr(maintain, step)

    def failing(*args: Any) -> Any:
        of = args[2 if step == "appended" else 1]
        name = of.plan.relation if step == "perform" else rel(str(of))
        if name.view == "totals":
            raise error
        return real(*args)

    patch.setattr(maintain, step, failing)


def _raiser(error: Exception) -> Any:
    def fail(*args: Any) -> Any:
        raise error

    return fail


def _name(case: tuple[Exception, str]) -> str:
    return f"{type(case[0]).__name__}-{case[1]}"


#: Each error at one of the steps, at another one every day.
CASES = [(error, STEPS[(place + SEED) % len(STEPS)]) for place, error in enumerate(ERRORS)]


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("case", some_today(CASES, 6), ids=_name)
def test_a_view_halts_alone(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, case: tuple[Exception, str]
) -> None:
    error, step = case
    _halts_alone(world, monkeypatch, step, error)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("error", OF_TARGETS, ids=lambda one: type(one).__name__)
def test_what_a_sink_says_is_of_its_view(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _halts_alone(world, monkeypatch, "stage", error)


def _halts_alone(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    before = {name: world.rows(name) for name in HALTED}
    kept = world.engine.manifest.tables
    with monkeypatch.context() as patch:
        inject(patch, world, step, error)
        report = world.epoch(order(20), order(21))
    assert set(report.halted) == set(HALTED)
    assert set(report.views) == {"named", "others"}
    said = error.what if isinstance(error, MviewError) else str(error).strip("'")
    assert said in str(report.halted["totals"])
    world.epoch(order(22), (*order(3)[:1], "delete", order(3)[3], None))
    world.check(*HALTED)
    for name in HALTED:
        assert world.rows(name) == before[name]
    # Nothing of the epoch in which it failed is published of it.
    for relation, state in world.engine.manifest.tables.items():
        if relation.view in HALTED:
            assert state == kept[relation]


def test_of_what_the_machine_refuses_it_is_told_what_to_do_while_the_run_goes_on() -> None:
    """The same command again would find that it runs already."""
    told = told_of(OSError(errno.ENOSPC, "No space left on device"), "view v")
    next_one = "`mview apply` or the next run builds the view anew"
    assert told.hint == f"make room on it; then {next_one}"


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("error", OF_TARGETS, ids=lambda one: type(one).__name__)
def test_what_is_of_the_store_ends_the_run(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    before = world.engine.manifest
    inject(monkeypatch, world, "appended", error)
    with pytest.raises(type(error)):
        world.epoch(order(20))
    assert world.engine.manifest == before


def test_few_rows_wake_up_no_thread(world: Epochs, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[str]] = {}

    def noting(name: str, call: Any) -> Any:
        def noted(*args: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return call(*args)

        return noted

    monkeypatch.setattr(stages, "_waiting", Waiting(60))  # however busy the machine is
    monkeypatch.setattr(cost, "QUICK_SECONDS", 60)
    world.epoch(order(20))  # all views are known to be quick
    monkeypatch.setattr(maintain, "perform", noting("views", maintain.perform))
    sinks = [view.sink for view in world.engine.views.values()]
    for sink in sinks:
        monkeypatch.setattr(sink, "stage", noting("sinks", sink.stage))
    world.epoch(order(21))
    assert threads == {key: {threading.current_thread().name} for key in ("views", "sinks")}
    threads.clear()
    monkeypatch.setattr(maintain, "_FEW", 0)
    world.epoch(order(22))
    # Of the views only one that is alone on its level needs no other thread.
    assert any(name.startswith("mview-view") for name in threads["views"])
    assert all(name.startswith("mview-write") for name in threads["sinks"])
    world.check()


def test_a_view_that_takes_long_does_so_beside_the_others(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`others`, say by Spark: `named` is through before it."""
    through, real = threading.Event(), maintain.perform

    def performed(engine: Any, task: Any) -> Any:
        if task.plan.relation.view == "others":
            with aside():
                assert through.wait(60)
        done = real(engine, task)
        if task.plan.relation.view == "named":
            through.set()
        return done

    monkeypatch.setattr(maintain, "perform", performed)
    quick = maintain.is_quick
    monkeypatch.setattr(
        maintain, "is_quick", lambda state, plan: plan.view != "others" and quick(state, plan)
    )
    assert not world.epoch(order(20)).halted
    world.check()


def test_views_that_spark_computes_side_by_side_are_right(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them read tables of the same names, with rows of their own."""
    monkeypatch.setattr(world.engine.executors, "_choice", "spark")
    report = world.epoch(order(20), order(21))
    assert {change.executor for change in report.views.values()} == {"spark"}
    world.epoch(order(22), (*order(3)[:1], "delete", order(3)[3], None))
    world.check()


def test_a_target_that_refuses_a_commit_halts_its_view(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.rows("totals")
    sink = world.engine.views["totals"].sink
    monkeypatch.setattr(sink, "commit", _raiser(FencedError("somebody else wrote")))
    report = world.epoch(order(20))
    assert set(report.halted) == {"totals"}
    assert isinstance(report.halted["totals"], UserError)
    assert "totals" not in report.views
    assert world.engine.manifest.views["totals"].rows == sum(before.values())
    # Those that read it have read its rows in the store, which are right.
    world.check("totals")
    assert set(world.epoch(order(21)).halted) == {"readers", "far"}
    world.check(*HALTED)
    assert world.rows("totals") == before


def test_a_commit_that_is_reported_as_failed_counts(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, once = world.engine.views["totals"].sink, [OSError("the network is down")]
    real = sink.commit

    def commit(token: dict[str, Any]) -> dict[str, Any]:
        facts = real(token)
        if once:
            raise once.pop()
        return facts

    monkeypatch.setattr(sink, "commit", commit)
    assert not world.epoch(order(20)).halted
    assert not once
    world.check()


def test_a_target_that_cannot_be_brought_back_does_not_stop_a_start(
    built: Epochs, tmp_path: Path
) -> None:
    world = built.copy(tmp_path / "copy")
    store = Store(world.config.store)
    target = store.view_target("others")
    shutil.rmtree(target)
    target.write_text("a file in the place of the table")
    with Lease(store.lease, SystemClock()) as lease:
        opener = partial(open_sinks, world.config, fence=lease)
        manifest, refused = recover(store, lease, SystemClock(), opener, Mask(()))
    assert set(refused) <= {"others"}
    assert {name for name, state in manifest.views.items() if state.halted} == {"others"}


def test_what_a_manifest_tells_of_a_halt_has_no_secret(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.engine.mask = Mask({"p@ss word"})
    told = "no answer of pg://u:p%40ss%20word@db, of s3://key:another@bucket; tried 'p@ss word'"
    with monkeypatch.context() as patch:
        inject(patch, world, "stage", RuntimeError(told))
        assert set(world.epoch(order(20)).halted) == set(HALTED)
    world.check(*HALTED)
    manifest = world.engine.manifests.latest()
    assert manifest is not None
    assert "s3://key:******@bucket" in manifest.views["totals"].halted
    for file in world.config.store.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        for secret in (b"p@ss word", b"p%40ss", b"another"):
            assert secret not in content, file


def test_an_epoch_that_runs_again_takes_what_has_come_since(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        inject(patch, world, "perform", WorkerStartError("no worker"))
        with pytest.raises(WorkerStartError):
            world.epoch(order(20))
    world.upkeep.take_back()
    world.epoch(order(20), order(21))
    assert world.engine.manifest.tables[rel("shop.orders")].rows == 22
    world.check()


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_is_ended_once_halts_no_view(
    world: Epochs, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The system has ended it, and the next one passes; the second time the view itself may."""
    left, real = [WorkerEndedError("a worker was killed")] * times, maintain.perform

    def performed(engine: Any, task: Any) -> Any:
        if left and task.plan.relation.view == "totals":
            raise left.pop()
        return real(engine, task)

    monkeypatch.setattr(maintain, "perform", performed)
    halted = world.epoch(order(20)).halted
    if times == 1:
        assert not halted
        world.check()
    else:
        assert "view totals fails: a worker was killed" in halted["totals"].render()
        assert "the other views go on" in halted["totals"].render()
        world.check(*halted)


#: What `totals` keeps beside its sink: its rows for its readers, a part, and state tables.
OWN = ("totals", "totals:state", "totals:1", "readers:state")


def damage(folder: Path, what: str) -> None:
    """Cut the newest file of a mirror: of its logs, or of its data."""
    files = sorted(folder.glob("*/_delta_log/*.json" if what == "log" else "*/**/*.parquet"))
    for file in files:
        if what == "data" or file.name == max(f.name for f in files if f.parent == file.parent):
            file.write_bytes(file.read_bytes()[:-9])


def recovered(world: Epochs) -> None:
    """What a start does before it opens the views."""
    store = Store(world.config.store)
    with Lease(store.lease, SystemClock()) as lease:
        manifest, refused = recover(
            store, lease, SystemClock(), partial(open_sinks, world.config, fence=lease), Mask(())
        )
        assert not refused
        forget_folders(store, manifest, lease)


@pytest.mark.parametrize("relation", some_today(OWN, len(OWN)))
def test_a_damaged_log_of_a_view_is_the_views(built: Epochs, tmp_path: Path, relation: str) -> None:
    world = built.copy(tmp_path / "copy")
    damage(Store(world.config.store).mirror(rel(relation)), "log")
    recovered(world)
    with world.opened():
        name = RelationId.of(relation).view
        halted = HALTED[HALTED.index(name) :]
        assert {n for n, s in world.engine.manifest.views.items() if s.halted} == {name}
        assert rel(relation) not in world.engine.manifest.tables
        assert {name, *world.epoch(order(20)).halted} == set(halted)
        world.check(*halted)
        assert not world.build()
        world.epoch(order(21), order(22))
        world.check()


@pytest.mark.parametrize("relation", some_today(OWN, len(OWN)))
def test_damaged_copies_of_a_view_halt_it_alone(
    built: Epochs, tmp_path: Path, relation: str
) -> None:
    world = built.copy(tmp_path / "copy")
    damage(Store(world.config.store).mirror(rel(relation)), "data")
    assert repair(world.config, ["named"]) == []
    with world.opened():
        assert set(world.engine.executors.damaged) == {rel(relation)}
        report = world.epoch(order(20), order(21))
        halted = set(report.halted)
        assert halted <= set(HALTED)
        assert halted or relation == "totals"  # its rows are read by nobody
        assert {"named", "others"} <= set(report.views)
        world.check(*halted)
    assert repair(world.config, [RelationId.of(relation).view]) == [RelationId.of(relation).view]
    recovered(world)
    with world.opened():
        assert not world.build()
        world.epoch(order(22))
        world.check()


def test_copies_that_cannot_be_compacted_halt_their_view_alone(
    world: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    relation = "totals:state"
    base = Store(world.config.store).mirror(rel(relation))
    monkeypatch.setattr(upkeep, "_TAIL_ROWS", 1)
    world.epoch(order(20))
    wait(world.upkeep._compactions.values())
    assert not world.epoch(order(21)).halted
    wait(world.upkeep._compactions.values())
    files = list(base.glob("base/*.parquet"))
    assert files
    for file in files:
        file.write_bytes(b"none")
    for number in range(22, 30):
        halted = world.epoch(order(number)).halted
        wait(world.upkeep._compactions.values())
        if halted:
            break
    assert set(halted) == set(HALTED)
    assert "a data file cannot be read" in str(halted["totals"])
    world.epoch(order(30))
    world.check(*HALTED)


def test_a_damaged_table_ends_the_run(built: Epochs, tmp_path: Path) -> None:
    world = built.copy(tmp_path / "copy")
    damage(Store(world.config.store).mirror(rel("shop.orders")), "log")
    with pytest.raises(CorruptionError, match=r"(?s)Delta table.*mview drop shop\.orders"):
        recovered(world)


def test_who_reads_a_halted_view_is_told_what_mends_that_view() -> None:
    why = UserError("its table is gone", hint="make it again", got="next:\n  next: not this")
    assert has_halted("v", 7, why.render()).hint == "make it again"
    assert str(has_halted("v", 7, "the query fails").hint).startswith("correct the row")


@pytest.mark.parametrize(
    ("mends", "told"), [("correct the row", "correct the row; then "), (None, "")]
)
def test_what_mends_a_table_comes_before_it_is_loaded_anew(mends: str | None, told: str) -> None:
    """A run goes on meanwhile: no advice that begins with its end, or that drops anything."""
    error = DecodeError("a value does not fit", hint=mends)
    halted = reads_halted_table("v", rel("shop.t"), error)
    assert halted.hint == (
        f"{told}`mview apply` or the next run loads shop.t anew, where that can be done"
    )


def test_the_halt_of_a_table_says_what_is_to_be_mended_and_not_what_loads_all_anew() -> None:
    """Whatever stands between the two, and also where the text was made of another error's."""
    for joint in ("; then", ", then", "; or"):
        told = DecodeError("no row of it", hint="correct ghp_secret")
        error = passed_by(told, "drop all", joint)
        assert error.hint == f"correct ghp_secret{joint} drop all"
        assert TableHalt.of(passed_by(error, "wait")).hint == "correct ghp_secret"
        masked = without_secrets_in(error, lambda text: text.replace("ghp_secret", "***"))
        assert TableHalt.of(masked).error().hint == "correct ***"


def test_a_log_that_has_lost_changes_has_nothing_to_be_mended_first() -> None:
    """Alone it ends the run, and says to drop its tables; beside others these are loaded anew."""
    lost = DataLostError("changes are gone", hint="`mview drop` the tables and run again")
    halted = reads_halted_table("v", rel("shop.t"), TableHalt.of(lost).error())
    assert str(halted.hint).startswith("`mview apply` or the next run loads shop.t anew")
