"""Whose a store is: where it was made, where it was moved, of which one it is a copy."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mview.errors import ConfigError
from mview.files.marks import content_of
from mview.store.identity import STORE_MARK, claim_store, copied_from, named_by, put_format, refusal


def test_a_store_in_use_is_at_home(tmp_path: Path) -> None:
    claim_store(tmp_path / "a")
    (tmp_path / "a" / "tables").mkdir()
    assert refusal(tmp_path / "a") is None
    assert copied_from(tmp_path / "a") is None


def test_a_copy_stays_one_until_its_original_is_gone(tmp_path: Path) -> None:
    original, copy = tmp_path / "a", tmp_path / "b"
    made = claim_store(original)
    shutil.copytree(original, copy)
    assert copied_from(copy) == original
    assert claim_store(copy) == made
    assert copied_from(copy) == original
    shutil.rmtree(original)
    assert copied_from(copy) is None


def test_a_store_that_was_moved_is_at_home_there(tmp_path: Path) -> None:
    made = claim_store(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert copied_from(tmp_path / "b") is None
    assert claim_store(tmp_path / "b") == made
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    assert copied_from(tmp_path / "c") == tmp_path / "b"


def test_databases_know_a_store_that_was_moved_by_its_first_path(tmp_path: Path) -> None:
    """And a copy by its own: the other name is the original's."""
    first, second, third = (tmp_path / name for name in "abc")
    assert named_by(first) == first
    claim_store(first)
    assert named_by(first) == first
    for before, after in ((first, second), (second, third)):
        before.rename(after)
        assert named_by(after) == first, "before a run"
        claim_store(after)
        put_format(after, 2)
        assert named_by(after) == first
    copy = tmp_path / "d"
    shutil.copytree(third, copy)
    claim_store(copy)
    assert named_by(copy) == copy
    assert named_by(third) == first


def test_a_store_of_an_older_version_is_known_by_the_path_that_it_had(tmp_path: Path) -> None:
    claim_store(tmp_path / "a")
    mark = tmp_path / "a" / STORE_MARK
    mark.write_bytes(content_of({"id": "x", "home": str(tmp_path / "a"), "format": "2"}))
    assert named_by(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").rename(tmp_path / "b")
    assert named_by(tmp_path / "b") == tmp_path / "a"
    claim_store(tmp_path / "b")
    assert named_by(tmp_path / "b") == tmp_path / "a"


def test_a_store_that_is_just_being_made_is_refused_to_nobody(tmp_path: Path) -> None:
    """`status` beside the start of a first run: the folder comes, its mark, and what is in it."""
    roots = [tmp_path / str(number) for number in range(300)]

    def make() -> None:
        for root in roots:
            claim_store(root)
            (root / "tables").mkdir()

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(make)
        for root in roots:
            while not (root / "tables").exists():
                assert refusal(root) is None
        made.result()


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_store_that_is_made_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Made at the first, second or third time that somebody asks the system for something."""
    asked = 0

    def making(ask: Callable[..., object]) -> Callable[..., object]:
        def answer(*given: object, **named: object) -> object:
            nonlocal asked
            asked += 1
            if asked == moment:
                monkeypatch.undo()
                claim_store(tmp_path / "a")
                (tmp_path / "a" / "tables").mkdir()
            return ask(*given, **named)

        return answer

    for name in ("stat", "open", "listdir", "scandir"):
        monkeypatch.setattr(f"os.{name}", making(getattr(os, name)))
    monkeypatch.setattr("io.open", making(io.open))
    assert refusal(tmp_path / "a") is None
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.symlink_to("nowhere"), "a (a link to nothing)"),
        (lambda path: path.touch(), "a (a file)"),
        (lambda path: (path / "theirs").mkdir(parents=True), "theirs"),
    ],
)
def test_what_is_no_store_is_refused(
    tmp_path: Path, made: Callable[[Path], object], said: str
) -> None:
    made(tmp_path / "a")
    assert (why := refusal(tmp_path / "a")) is not None
    assert why.got == said


@pytest.mark.parametrize("below", ["a file", "/proc"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, below: str) -> None:
    """Neither is a matter of rights: the system's words alone would help nobody."""
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match="cannot be made") as error:
        claim_store(tmp_path / below / "store")
    assert error.value.where == str(tmp_path / below / "store")
    assert "store:" in str(error.value.hint)
