"""The mutants fit the code as it is: one that does not is no test of the tests."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

import pytest

from tests.mutation.__main__ import folders
from tests.mutation.mutants import MUTANTS

BY_FILE = {
    file: list(mutants)
    for file, mutants in groupby(sorted(MUTANTS, key=lambda one: one.file), lambda one: one.file)
}


@pytest.mark.parametrize("file", BY_FILE)
def test_each_stands_there_once_and_is_code(file: str) -> None:
    text = Path(file).read_text()
    for mutant in BY_FILE[file]:
        mutant.position(text)
        after = text.replace(mutant.before, mutant.after)
        assert after != text, mutant
        ast.parse(after)


def test_their_tests_are_there() -> None:
    named = {mutant.test for mutant in MUTANTS if mutant.test}
    assert [name for name in (*named, *folders(MUTANTS)) if not Path(name).exists()] == []
