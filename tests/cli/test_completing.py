"""What a shell offers for arguments: names that the store has, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from mview.cli import main
from tests.cli.test_past import published


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    published(tmp_path, 1_700_000_000_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(*words: str) -> list[str]:
    """For the last of these words; files are in angle brackets."""
    shell = ShellComplete(main, {}, "mview", "_MVIEW_COMPLETE")
    items = shell.get_completions([*words[:-1]], words[-1])
    return [f"<{item.value}>" if item.type == "file" else item.value for item in items]


@pytest.mark.parametrize(
    "command", ["why", "rollback", "repair", "maintain", "history", "promote", "plan --select"]
)
def test_views_are_offered_by_their_names(folder: Path, command: str) -> None:
    assert offered(*command.split(), "") == ["v", "w"]
    assert offered(*command.split(), "x") == []


@pytest.mark.parametrize("command", ["pause", "resume", "backfill", "quarantine retry"])
def test_tables_are(folder: Path, command: str) -> None:
    assert offered(*command.split(), "shop.o") == ["shop.orders"]


def test_both_where_both_are_meant(folder: Path) -> None:
    assert offered("drop", "") == ["shop.orders", "v", "w"]


@pytest.mark.parametrize("command", ["run", "plan", "apply", "check", "verify", "status --config"])
def test_files_are_the_shells(folder: Path, command: str) -> None:
    assert offered(*command.split(), "sq") == ["<sq>"]


def test_the_store_is_that_of_the_configuration(folder: Path) -> None:
    (folder / "mview.yml").rename(folder / "other.yml")
    assert offered("why", "") == [], "without one nothing is offered, and nothing said"
    assert offered("why", "--config", "other.yml", "") == ["v", "w"]
    (folder / "other.yml").write_text("store: [")
    assert offered("why", "--config", "other.yml", "") == []
