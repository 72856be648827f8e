"""`mview rollback`: what it says of the file that a view was read from."""

from __future__ import annotations

from pathlib import Path

from mview.cli.mending.rollback import is_in_its_file
from mview.plan.definition import load_views


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
