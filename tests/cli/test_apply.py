"""`mview apply`: what it asks a run for, and what it tells of the answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from mview.admin import apply as asking
from mview.catalog.definitions import digest_of, save_definition
from mview.catalog.environments import in_environment
from mview.cli import main
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.errors import UserError
from mview.plan.definition import parse_view
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest, ViewState
from mview.store.requests.applies import ApplyAnswer, ApplyLog, ApplyRequest
from mview.store.requests.asked import keep_asked
from mview.store.requests.paused import pause
from tests.e2e.shop import Shop


class Answering:
    """A run as far as it answers: between two looks of the command."""

    def __init__(self, store: Store) -> None:
        self.store, self.log = store, ApplyLog(store.applies)
        self.answers: list[ApplyAnswer] = []
        self.asked: list[ApplyRequest] = []
        self.end: Callable[[], None] = lambda: None

    def look(self, seconds: float) -> None:
        assert seconds > 0
        for file in self.log.files():
            if not self.answers:
                self.end()
                return
            answer = self.answers.pop(0)
            if (request := self.log.read(file)) not in self.asked:
                self.asked.append(request)
            self.log.note(file, answer)
            if answer.state != "taken":
                self.log.done(file)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    shop = Shop(tmp_path)
    config = shop.config()
    shop.close()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "names.sql").write_text("select id, name from shop.customers")
    store = Store(load_config(config.path).store)
    claim_store(store.root)
    answering = Answering(store)
    monkeypatch.setattr(asking.apply_views, "__defaults__", (answering.look,))
    with Lease(store.lease, SystemClock()):
        yield answering


def mview(*arguments: str, **more: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-c", "mview.yml"], **more)  # type: ignore[arg-type]


DONE = ApplyAnswer("done", {"names": "built, 6 rows, LINEAR"}, epoch=31)


def test_the_files_that_the_run_was_given_are_read_again(run: Answering) -> None:
    keep_asked(run.store, ["names"], [str(Path("views").resolve())])
    run.answers = [ApplyAnswer("taken", load=("shop.customers",)), DONE]
    told = mview("apply")
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[-2:] == [
        "view names: built, 6 rows, LINEAR",
        "live at epoch 31",
    ]
    assert told.stdout.startswith("new       view names: it is not in the store yet")
    assert "the run has taken it up; first it loads shop.customers" in told.stderr
    assert [view.name for view in run.asked[0].views] == ["names"]
    assert run.asked[0].remove == ()
    assert not [*run.store.applies.iterdir()]


def test_a_paused_table_that_is_waited_for_is_told_once(run: Answering) -> None:
    pause(run.store, RelationId.of("shop.customers"), 0)
    pause(run.store, RelationId.of("shop.orders"), 0)  # which is not waited for
    taken = ApplyAnswer("taken", load=("shop.customers",))
    run.answers = [taken, taken, DONE]
    told = mview("apply", "views")
    assert told.exit_code == 0, told.output
    waits = "shop.customers is paused: its load waits for `mview resume shop.customers`"
    assert told.stderr.count(waits) == told.stderr.count("is paused") == 1


def test_some_of_the_files_views_are_taken(run: Answering) -> None:
    Path("views/ids.sql").write_text("select id from shop.customers")
    assert mview("apply", "views", "--select", "ids", "--prune").exit_code == 2
    run.answers = [DONE]
    told = mview("apply", "views", "--select", "ids")
    assert told.exit_code == 0, told.output
    assert [view.name for view in run.asked[0].views] == ["ids"]


def publish(store: Store, **texts: str) -> None:
    """A store that shows these views."""
    state = ViewState("", "LINEAR", TableSchema((Column("id", pa.int64()),), ("id",)), {}, 1)
    views = {}
    for name, sql in texts.items():
        save_definition(store, view := parse_view(sql, name))
        views[name] = replace(state, definition=digest_of(view))
    ManifestLog(store.manifests).publish(Manifest(1, 1, 1, 1, 0, tables={}, views=views))


def test_prune_removes_what_the_files_do_not_have_when_it_is_answered(run: Answering) -> None:
    publish(run.store, names="select id from shop.customers", gone="select id from names")
    refused = mview("apply", "views", "--prune", input="n\n")
    assert "to be removed, with their data: gone" in refused.stderr
    assert (refused.exit_code, run.asked) == (1, [])
    run.answers = [DONE]
    told = mview("apply", "views", "--prune", "--yes")
    assert told.exit_code == 0, told.output
    assert "changed   view names" in told.stdout
    assert "view gone" not in told.stdout, "it is neither built anew nor goes on"
    assert run.asked[0].remove == ("gone",)


def test_prune_removes_what_is_still_being_built(run: Answering) -> None:
    """No manifest names it yet: a prune that left it would have it be there when it is built."""
    keep_asked(run.store, ["names", "building"])
    waiting = run.log.ask(ApplyRequest((parse_view("select id from shop.customers", "asked"),)))
    run.answers = [DONE, DONE]
    told = mview("apply", "views", "--prune", "--yes")
    assert told.exit_code == 0, told.output
    assert "to be removed, with their data: asked, building" in told.stderr
    assert not waiting.exists()
    assert run.asked[-1].remove == ("asked", "building")


def test_without_prune_what_the_files_do_not_have_goes_on(run: Answering) -> None:
    publish(run.store, names="select id from shop.customers", gone="select id from names")
    run.answers = [DONE]
    told = mview("apply", "views")
    assert "goes on   view gone" in told.stdout
    assert run.asked[0].remove == ()


def test_as_json(run: Answering) -> None:
    run.answers = [DONE]
    told = json.loads(mview("apply", "views", "--json").stdout)
    assert told["answer"]["views"] == {"names": "built, 6 rows, LINEAR"}
    assert told["plan"]["views"][0]["fate"] == "new"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ApplyAnswer("refused", error="no such table"), "refused:\nno such table\n"),
        (
            ApplyAnswer("done", {"names": "not built: halted"}, halted={"names": "twice"}),
            "view names: not built: halted\nview names has halted:\n  twice\nlive at epoch 0\n",
        ),
    ],
)
def test_what_is_not_live_ends_with_1(run: Answering, answer: ApplyAnswer, said: str) -> None:
    run.answers = [answer]
    told = mview("apply", "views")
    assert told.exit_code == 1
    assert told.stdout.endswith(said)


def test_a_wrong_view_is_refused_before_the_run_is_asked(run: Answering) -> None:
    Path("views/bad.sql").write_text("select nothing from shop.customers")
    told = mview("apply", "views")
    assert told.exit_code == 1
    assert "refused   view bad" in told.stdout
    assert "the run goes on as it was" in told.stderr
    assert not run.store.applies.exists()


def test_a_run_that_ends(run: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        monkeypatch.setattr(Lease, "holder", lambda self: None)

    run.end = end
    told = mview("apply", "views")
    assert (told.exit_code, "before it looked" in told.stderr) == (1, True)
    assert "next:    mview run FILE…, which takes them up at its start" in told.stderr
    assert not run.log.files()
    monkeypatch.undo()


def test_what_no_start_does_is_asked_for_again_when_a_run_is_live(
    run: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start removes nothing: to run the files alone would have the view go on."""
    Path("my views").mkdir()
    Path("my views/names.sql").write_text("select id, name from shop.customers")
    again = "next: mview run FILE…, and when it is live, mview apply --prune 'my views'"
    with monkeypatch.context() as nobody:
        nobody.setattr(Lease, "holder", lambda self: None)
        told = mview("apply", "my views", "--prune", "--yes")
    assert again in " ".join(told.stderr.split())
    with monkeypatch.context() as nobody:
        run.end = lambda: nobody.setattr(Lease, "holder", lambda self: None)
        told = mview("apply", "my views", "--prune", "--yes")
    assert "before it looked" in told.stderr
    assert again in " ".join(told.stderr.split())


def test_an_environment_that_nobody_runs_is_named(run: Answering) -> None:
    dev = in_environment(load_config(Path("mview.yml").resolve()), "dev")
    with pytest.raises(UserError) as told:
        asking.check_running(dev)
    assert told.value.hint == "mview run --env dev FILE…, which takes them up at its start"


def test_commands_that_are_advised_are_about_the_same_project(run: Answering) -> None:
    Path("mview.yml").rename("my conf.yml")
    Path("views/bad.sql").write_text("select nothing from shop.customers")
    told = CliRunner().invoke(main, ["apply", "views", "-c", "my conf.yml"])
    assert "next:    mview plan --config 'my conf.yml' views" in told.stderr
    (advised,) = [line for line in told.stderr.splitlines() if "next:" in line]
    words = shlex.split(advised.replace("next:", ""))
    assert CliRunner().invoke(main, words[1:]).exit_code == 1  # the bad view, and no usage


def test_a_run_that_ends_when_it_has_taken_the_views_up(
    run: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.answers = [ApplyAnswer("taken")]
    run.end = lambda: monkeypatch.setattr(Lease, "holder", lambda self: None)
    told = mview("apply", "views")
    assert "the next run of this store does the rest" in told.stderr
    assert len(run.log.files()) == 1


def test_ctrl_c_takes_back_what_nobody_has_looked_at(run: Answering) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    run.end = interrupt
    assert mview("apply", "views").exit_code == 130
    assert not run.log.files()


def test_without_files_that_are_known(run: Answering) -> None:
    told = mview("apply")
    assert "nobody knows which files a run was given" in told.stderr


def test_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mview.yml").write_text("store: data")
    told = mview("apply", "views")
    assert (told.exit_code, "nobody runs the store" in told.stderr) == (1, True)
