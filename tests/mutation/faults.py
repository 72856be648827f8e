"""Putting a fault into the code that runs: functions get the code of the mutated file.

No module is imported again, so that one process can try a fault after the other, each in a fork of
its own. What is decided while a module is imported is out of reach: such faults name their test.
"""

from __future__ import annotations

import ast
import builtins
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

#: What a probe calls.
_HIT = "hit_by_a_test"


class StaleError(Exception):
    """A mutant that does not fit the code any more."""


class Mutant(NamedTuple):
    """A fault: in a file, this text (which stands there once) instead of that.

    `test` runs in a process of its own over a copy of the tree: it alone notices the fault, as it
    shows on import or in Spark's workers.
    """

    file: str
    before: str
    after: str
    test: str = ""

    def position(self, text: str) -> int:
        """Where the two texts begin to differ."""
        if text.count(self.before) != 1:
            raise StaleError(f"stands there {text.count(self.before)} times")
        same = next(
            (i for i, (a, b) in enumerate(zip(self.before, self.after, strict=False)) if a != b),
            min(len(self.before), len(self.after)),
        )
        rest = self.before[min(same, len(self.before.rstrip()) - 1) :]
        return text.index(self.before) + len(self.before) - len(rest.lstrip())

    @property
    def place(self) -> str:
        """Its file and line; the file alone of one that is stale."""
        text = Path(self.file).read_text()
        try:
            return f"{self.file}:{text.count(chr(10), 0, self.position(text)) + 1}"
        except StaleError:
            return self.file


Functions = Mapping[tuple[str, str, int], Sequence[FunctionType]]


def functions() -> Functions:
    """All functions of the package that are there, by file, name and line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            code = one.__code__
            found.setdefault((code.co_filename, code.co_name, code.co_firstlineno), []).append(one)
    return found


def put_in(mutant: Mutant, known: Functions) -> None:
    """Make the functions of this process those of the mutated file.

    Raises:
        StaleError: the text is not there (once), or no function is another one by it.
    """
    text = Path(mutant.file).read_text()
    mutant.position(text)
    after = text.replace(mutant.before, mutant.after)
    if not _replace(mutant.file, compile(after, _name(mutant.file), "exec"), known):
        raise StaleError("no function has changed")


def put_probes(mutants: Sequence[Mutant], known: Functions, hit: Callable[[int], None]) -> None:
    """Have each mutant's number told whenever its place is about to run."""
    setattr(builtins, _HIT, hit)
    for file in dict.fromkeys(mutant.file for mutant in mutants):
        text = Path(file).read_text()
        tree = ast.parse(text)
        lines = [0]
        for line in text.encode().splitlines(keepends=True):
            lines.append(lines[-1] + len(line))
        wanted: dict[int, list[int]] = {}
        for number, mutant in enumerate(mutants):
            if mutant.file == file and text.count(mutant.before) == 1:
                at = len(text[: mutant.position(text)].encode())
                wanted.setdefault(id(_statement(tree, at, lines)), []).append(number)
        probed = ast.fix_missing_locations(_Prober(wanted).visit(tree))
        _replace(file, compile(probed, _name(file), "exec"), known)


def _statement(tree: ast.Module, at: int, lines: Sequence[int]) -> ast.stmt:
    """The innermost statement around a byte."""
    found: ast.stmt | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[node.end_lineno - 1] + node.end_col_offset
            if start <= at < end:
                found = node  # the walk goes from the outside to the inside
    if found is None:
        raise StaleError("no statement is there")
    return found


class _Prober(ast.NodeTransformer):
    def __init__(self, wanted: Mapping[int, Sequence[int]]) -> None:
        self._wanted = wanted

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        numbers = self._wanted.get(id(node), ())
        self.generic_visit(node)
        calls = (ast.parse(f"{_HIT}({number})").body[0] for number in numbers)
        return [*calls, node] if numbers else node


def _name(file: str) -> str:
    return str(Path(file).resolve())


def _replace(file: str, new: CodeType, known: Functions) -> bool:
    """Whether a function is another one now."""
    old = compile(Path(file).read_text(), _name(file), "exec")
    changed = False
    for before, after in _pairs(old, new):
        for one in known.get((_name(file), before.co_name, before.co_firstlineno), ()):
            if len(one.__code__.co_freevars) != len(after.co_freevars):
                raise StaleError("the function uses other names of the one around it")
            one.__code__ = after
            changed |= _differs(before, after)
    return changed


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    olds, news = _inside(old), _inside(new)
    if [one.co_name for one in olds] == [one.co_name for one in news]:
        for before, after in zip(olds, news, strict=True):
            yield before, after
            yield from _pairs(before, after)


def _inside(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _differs(before: CodeType, after: CodeType) -> bool:
    def facts(code: CodeType) -> object:
        plain = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
        return code.co_code, code.co_names, plain, list(map(facts, _inside(code)))

    return facts(before) != facts(after)
