"""Every command on a page is one: the program takes it apart, and it runs on a small shop."""

from __future__ import annotations

import re
import shlex
import zipfile
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.errors import ExitCode
from mview.store.identity import FORMAT
from tests.docs.commands import PAGES, ROOT, Shown, shown_in
from tests.store.kept import KEPT

SHOWN = list(dict.fromkeys(shown for page in PAGES for shown in shown_in(page)))

#: Words that stand for something in the text: `mview explain FILE…`, `mview history [VIEW…]`.
_STANDS_FOR = re.compile(r"\[.*\]|.*…|[A-Z|]+")

#: What a command lacks that is only named.
_UNFINISHED = (click.MissingParameter, click.BadOptionUsage)


def of(program: str) -> list[Shown]:
    return [shown for shown in SHOWN if shown.words[0] == program]


@pytest.mark.parametrize("shown", of("mview"), ids=str)
def test_a_command_of_mview_is_parsed(shown) -> None:
    name, *arguments = shown.words[1:]
    if name.startswith("-"):
        return
    if name.endswith("…"):
        assert not shown.whole
        return
    command = main.get_command(click.Context(main), name)
    assert command is not None, shown
    with nullcontext() if shown.whole else suppress(*_UNFINISHED):
        if shown.whole or not any(map(_STANDS_FOR.fullmatch, arguments)):
            command.make_context(name, list(arguments), parent=click.Context(main))


def test_pages_show_commands() -> None:
    """The pages are read: there are many commands, and some in blocks."""
    assert len(of("mview")) > 100
    assert sum(shown.whole for shown in of("mview")) > 10


@pytest.mark.parametrize("shown", of("make"), ids=str)
def test_a_target_is_there(shown) -> None:
    text = (ROOT / "Makefile").read_text()
    targets = [word for word in shown.words[1:] if "=" not in word]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", text, re.MULTILINE), shown


@pytest.mark.parametrize("shown", of("python"), ids=str)
def test_a_program_is_there(shown) -> None:
    if shown.words[1] == "-m":
        assert find_spec(shown.words[2]), shown
    else:  # a program beside the page
        assert ((ROOT / shown.page).parent / shown.words[1]).is_file(), shown


@pytest.mark.parametrize("shown", [*of("pip"), *of("uv")], ids=str)
def test_what_is_installed_is_ours(shown) -> None:
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for extra in re.findall(r"mview-engine\[([\w,]+)\]", " ".join(shown.words)):
        assert set(extra.split(",")) <= set(extras), shown
    if shown.whole:
        assert any("mview-engine" in word for word in shown.words), shown


# --- every command, on a small shop --------------------------------------------------------------

#: What is run, and how it ends; the shop is that of `tests/store/kept.py`.
RUNS: dict[str, tuple[str, ExitCode]] = {
    "init": ("init sqlite:///shop.db --triggers --folder new", ExitCode.OK),
    # The last run ended by an error.
    "doctor": ("doctor sql", ExitCode.CHECK_FAILED),
    "check": ("check sql", ExitCode.OK),
    "explain": ("explain sql", ExitCode.OK),
    "preview": ("preview 'SELECT id FROM shop.orders'", ExitCode.OK),
    "test": ("test tests", ExitCode.OK),
    "plan": ("plan sql", ExitCode.OK),
    "lineage": ("lineage --mermaid", ExitCode.OK),
    "run": ("run sql --once", ExitCode.OK),
    # Nobody runs the store.
    "apply": ("apply sql", ExitCode.CHECK_FAILED),
    # The view was not changed.
    "rollback": ("rollback spent --plan", ExitCode.CHECK_FAILED),
    # There is no such environment.
    "promote": ("promote --env dev", ExitCode.CHECK_FAILED),
    "status": ("status", ExitCode.OK),
    "lag": ("lag", ExitCode.OK),
    "history": ("history spent --all", ExitCode.OK),
    "why": ("why spent --key 1", ExitCode.OK),
    # Its load is done.
    "pause": ("pause shop.orders", ExitCode.CHECK_FAILED),
    "resume": ("resume shop.orders", ExitCode.OK),
    "backfill": ("backfill shop.orders", ExitCode.OK),
    "quarantine": ("quarantine list", ExitCode.OK),
    "maintain": ("maintain", ExitCode.OK),
    "repair": ("repair latest", ExitCode.OK),
    "migrate": ("migrate", ExitCode.OK),
    "support-bundle": ("support-bundle", ExitCode.OK),
    "drop": ("drop latest --yes", ExitCode.OK),
    "completion": ("completion bash", ExitCode.OK),
}
#: Those that take Spark or a server: who runs them.
ELSEWHERE = {
    "demo": "tests/cli/test_demo.py",
    "verify": "tests/cli/test_store_commands.py",
    "ui": "tests/cli/watch/test_beside.py",
}
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


@pytest.fixture
def shop(tmp_path: Path, monkeypatch) -> Path:
    with zipfile.ZipFile(KEPT / f"format-{FORMAT}.zip") as file:
        file.extractall(tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "spent.yml").write_text(_TESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_is_run_somewhere() -> None:
    """Who adds a command adds it here, or says which test runs it."""
    assert {*RUNS, *ELSEWHERE} == {*main.commands}
    assert not RUNS.keys() & ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        assert f'"{name}"' in (ROOT / file).read_text(), name


@pytest.mark.parametrize("name", RUNS)
def test_the_command_on_a_shop(name, shop) -> None:
    text, code = RUNS[name]
    takes_config = any(option.name == "config_path" for option in main.commands[name].params)
    given = ["--config", "mview.yml"] if takes_config else []
    result = CliRunner().invoke(main, [*shlex.split(text), *given])
    assert result.exit_code == code, result.output
    assert result.output.strip()
    assert "unexpected" not in result.output
