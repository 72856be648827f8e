"""`mview rollback`: what it says of the file that a view was read from, and where nobody runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.mending.rollback import is_in_its_file
from mview.plan.definition import load_views, parse_view


def test_a_file_that_has_the_text_already_is_left_as_it_is(tmp_path: Path) -> None:
    """After a second rollback: to be told to put it there would have it be looked for in vain."""
    file = tmp_path / "v.sql"
    file.write_text("SELECT id FROM shop.t")
    (view,) = load_views([file])
    assert is_in_its_file(view)
    file.write_text("SELECT id, x FROM shop.t")
    assert not is_in_its_file(view)
    file.write_text("SELECT FROM WHERE")
    assert not is_in_its_file(view)
    file.unlink()
    assert not is_in_its_file(view)


def test_without_a_run_it_is_told_what_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the files alone has the newer text."""
    monkeypatch.chdir(tmp_path)
    Path("mview.yml").write_text("store: data")
    former = parse_view("SELECT 1 AS a", "v")
    monkeypatch.setattr("mview.admin.content.published", lambda _: None)
    monkeypatch.setattr("mview.catalog.definitions.load_former", lambda *_: former)
    told = CliRunner().invoke(main, ["rollback", "v"])
    assert told.exit_code == 1
    assert "nobody runs the store" in told.stderr
    hint = " ".join(told.stderr.split())
    assert "next: mview run FILE…, and when it is live, mview rollback v; or put the text" in hint
    assert "takes the views up at its start" not in told.stderr
