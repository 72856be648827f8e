"""Every line of mview on the pages is run, in process, or by a test that is named here.

The shop is that of `tests/store/kept.py`. It goes on without Spark: what that has said of its
views' columns is known.
"""

from __future__ import annotations

import ast
import os
import shutil
import signal
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from mview.admin import apply as asking
from mview.admin.content import published
from mview.catalog.analyze import Analyst, _schema_of
from mview.cli import main
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.errors import ConfigError, ExitCode
from mview.session.lazy import Spark
from mview.store.history import ManifestLog
from mview.store.identity import FORMAT
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.requests.applies import ApplyAnswer, ApplyLog
from tests.docs.commands import PAGES, ROOT, shown_in
from tests.patience import join, wait_for
from tests.store.kept import KEPT, change

_TESTS = """
views: [../sql/spent.sql]
tables:
  shop.customers: {columns: {id: bigint, name: string not null}, key: [id]}
  shop.orders:
    columns: {id: bigint, customer_id: bigint, total: "decimal(12,2)", at: timestamp}
    key: [id]
tests:
  - name: an order counts
    given:
      shop.customers: [{id: 1, name: Ada}]
    steps:
      - insert: {shop.orders: [{id: 1, customer_id: 1, total: 5}]}
        expect: {spent: [{name: Ada, total: 5}]}
"""
#: What the shop has for words of the pages.
STANDS_FOR = {
    "URL": "sqlite:///shop.db",
    "FILE|VIEW|SQL": "spent",
    "FILE|VIEW": "spent",
    "FILE": "sql",
    "VIEW": "spent",
    "TABLE": "shop.orders",
    "VALUE": "1",
    "KEY": "1",
    "SHELL": "bash",
    "100": "3",  # as many take seconds
    "N": "3",
    "shop.events": "shop.orders",
    "crm.sales.orders": "shop.orders",
    "revenue": "rich",
    "sums": "spent",
    "region=north": "name=Ada",
    "sql/orders.sql": "sql/spent.sql",
    "customers_de.sql": "sql/spent.sql",
    "view.sql": "sql/spent.sql",
}
#: Lines that a sentence names, without all that they need; none of a block, which is typed.
NAMED = {
    "backfill": "backfill shop.orders",
    "check": "check sql",
    "drop": "drop rich",
    "drop …": "drop shop.orders",
    "drop --env …": "drop --env dev",
    "drop --env NAME": "drop --env dev",
    "drop NAME…": "drop rich",
    "explain": "explain sql",
    "explain --json": "explain --json sql",
    "init": "init sqlite:///shop.db",
    "init --triggers": "init sqlite:///shop.db --triggers",
    "pause": "pause shop.orders",
    "plan": "plan sql",
    "preview": "preview spent",
    "promote": "promote --env dev spent",
    "promote --env NAME [VIEW…]": "promote --env dev spent",
    "quarantine discard": "quarantine discard shop.orders 412.1",
    "quarantine retry": "quarantine retry shop.orders",
    "repair": "repair spent",
    "repair …": "repair spent",
    "resume": "resume shop.orders",
    "rollback": "rollback spent",
    "run": "run sql",
    "run --env": "run --env dev sql",
    "run --log-format json": "run --log-format json sql",
    "run --once": "run --once sql",
    "test": "test tests",
    "test --random N": "test --random 3 tests/revenue.yml",
    "test FILE…": "test tests",
    "verify": "verify sql",
    "why": "why spent --key 1",
    "why VIEW --key …": "why spent --key 1",
}
_ENVIRONMENTS = (
    "tests/e2e/test_environments.py::test_an_environment_follows_production_which_takes_its_views"
)
_QUARANTINE = "tests/e2e/test_quarantine.py::test_the_command"
_SERVERS = "tests/cli/test_init.py::test_servers"
_TIDB = "tests/cli/test_init.py::test_tidb_is_followed_by_ticdc"
_SQL_SERVER = "tests/cli/test_init.py::test_sql_server_is_followed_by_debezium"
#: Lines that need more than the shop (Spark, a server, a load that goes on): who runs them.
ELSEWHERE = {
    "demo": "tests/cli/test_demo.py::test_it_shows_the_whole_way",
    "drop --env dev": _ENVIRONMENTS,
    "init mariadb://mview@localhost/crm": _SERVERS,
    "init mssql://mview@erp.example.org/erp": _SQL_SERVER,
    "init postgresql://mview@localhost/crm": _SERVERS,
    "init tidb://": _TIDB,
    "init tidb://root@host:4000/shop": _TIDB,
    "pause shop.orders": "tests/cli/test_loads.py::test_a_load_is_paused_and_goes_on",
    "plan --env dev sql": _ENVIRONMENTS,
    "promote --env dev spent": _ENVIRONMENTS,
    "quarantine discard shop.orders 412.1": _QUARANTINE,
    "quarantine retry shop.orders": _QUARANTINE,
    "rollback spent": "tests/e2e/test_apply.py::test_views_come_change_and_go_while_all_goes_on",
    "run --env dev sql": "tests/e2e/test_environments.py::test_it_is_right_whatever_befalls",
    "run sql --listen 127.0.0.1:8080": (
        "tests/cli/watch/test_beside.py::test_the_page_beside_a_run"
    ),
    "status --env dev": _ENVIRONMENTS,
    "ui": "tests/cli/watch/test_beside.py::test_the_command",
    "verify sql": "tests/e2e/test_every_sink.py::test_every_sink_follows_one_run",
    "verify sql --source": (
        "tests/cli/test_demo.py::test_more_views_then_two_runners_then_ctrl_c_then_drop"
    ),
}

#: Every line that the pages have, by its text; those to be typed as they stand are of blocks.
SHOWN: dict[str, tuple[str, ...]] = {}
TO_BE_TYPED: set[str] = set()
for page in PAGES:
    for shown in shown_in(page):
        program, *words = shown.words
        if program == "mview":
            SHOWN[" ".join(words)] = tuple(words)
            if shown.whole:
                TO_BE_TYPED.add(" ".join(words))


def as_typed(line: str) -> tuple[str, ...]:
    """The words of a line of the pages, for this shop."""
    if line in NAMED:
        return tuple(NAMED[line].split())
    plain = (word.strip("[]").removesuffix("…") for word in SHOWN[line])
    return tuple(STANDS_FOR.get(word, word) for word in plain)


TYPED = {" ".join(as_typed(line)): as_typed(line) for line in SHOWN}


def no_spark() -> None:
    raise ConfigError("Java is needed here", hint="this test has none")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a shop whose store a run has taken up; others are copies of it."""
    folder = tmp_path_factory.mktemp("lines") / "shop"
    with zipfile.ZipFile(KEPT / f"format-{FORMAT}.zip") as file:
        file.extractall(folder)
    (folder / "tests").mkdir()
    for name in ("spent", "revenue"):
        (folder / "tests" / f"{name}.yml").write_text(_TESTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # What Spark said when the store was made, in that order: each run asks the same.
        store = Store(load_config("mview.yml").store)
        said = iter(orjson.loads(store.analyses.read_bytes().split(b"\n")[1])["columns"].values())
        known: dict[str, str] = defaultdict(lambda: next(said))
        patch.setattr(Analyst, "_said", lambda self, asked, ask: _schema_of(known[str(asked)]))
        patch.setattr(Spark, "of_config", lambda config, say: Spark(no_spark, say, slots=2))
        done = run("run", "sql", "--once")
        assert not done.exit_code, done.output
        shutil.copytree("sql", "views")
        yield folder


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words, input="y\n")


@pytest.fixture
def shop(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copytree(made, tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    # The one that was copied is there, and its run's files: what it has in sinks is the copy's.
    monkeypatch.setattr("mview.catalog.followers.copied_from", lambda _: None)
    return Store(load_config("mview.yml").store)


@contextmanager
def answered(store: Store) -> Iterator[None]:
    """A run that does at once what it is asked for."""

    def look(seconds: float) -> None:
        log = ApplyLog(store.applies)
        for file in log.files():
            log.note(file, ApplyAnswer("done", {"spent": "built, 2 rows, AGGREGATE"}, epoch=31))
            log.done(file)

    with Lease(store.lease, SystemClock()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking.apply_views, "__defaults__", (look,))
        yield


@contextmanager
def interrupted(store: Store) -> Iterator[None]:
    """Ctrl-C, when a change of now is published."""
    config = load_config("mview.yml")
    before = published(config).epoch
    change(Path("shop.db"), "INSERT INTO orders VALUES (99, 1, 1, NULL)")

    def watch() -> None:
        wait_for(lambda: published(config).epoch > before, 60)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=watch)
    thread.start()
    yield
    join(thread, 60)


@contextmanager
def followed(store: Store) -> Iterator[None]:
    """A run goes on, and has just read the logs."""
    log, now = ManifestLog(store.manifests), SystemClock().now()
    newest = log.latest()
    assert newest is not None
    cuts = {name: replace(cut, until=now) for name, cut in newest.cuts.items()}
    log.publish(replace(newest, epoch=newest.epoch + 1, cuts=cuts))
    with answered(store):
        yield


@contextmanager
def folder_anew(store: Store) -> Iterator[None]:
    """Nobody has made a project yet."""
    Path("mview.yml").unlink()
    shutil.rmtree("sql")
    yield


#: What is there beside commands.
BESIDE: dict[str, Callable[[Store], AbstractContextManager[Any]]] = {
    "apply": answered,
    "doctor": followed,
    "status": followed,
    "init": folder_anew,
    "live": interrupted,
}


@pytest.mark.parametrize("line", sorted(TYPED.keys() - ELSEWHERE.keys()))
def test_a_line_is_run(line: str, shop: Store) -> None:
    words = TYPED[line]
    live = words[0] == "run" and "--once" not in words
    with BESIDE.get("live" if live else words[0], nullcontext)(shop):
        result = run(*words)
    assert result.exit_code == (ExitCode.INTERRUPTED if live else ExitCode.OK), result.output
    assert result.output.strip()
    assert "unexpected" not in result.output


@pytest.mark.parametrize("line", ELSEWHERE)
def test_a_line_is_run_elsewhere(line: str) -> None:
    """The test is there, and its file has the command and its options."""
    path, _, name = ELSEWHERE[line].partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    nodes = [*ast.walk(tree)]
    assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    command, *words = TYPED[line]
    verbs = words[:1] if command == "quarantine" else []
    wanted = {command, *verbs, *(word for word in words if word.startswith("--"))}
    assert wanted <= {word for text in texts for word in text.split()}, line


def test_nothing_is_here_that_the_pages_do_not_have() -> None:
    assert NAMED.keys() <= SHOWN.keys() - TO_BE_TYPED
    assert ELSEWHERE.keys() <= TYPED.keys()
    words = {word.strip("[]").removesuffix("…") for line in SHOWN.values() for word in line}
    assert STANDS_FOR.keys() <= words
