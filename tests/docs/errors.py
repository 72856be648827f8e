"""docs/errors.md, made of the code: every message that mview can tell, by its code.

Messages are read from the syntax of the code, not from errors that happened, so none is left out.
What is only known when it happens is shown as `…`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path

from mview import errors
from mview.codes import AREAS, Area, area_of
from mview.errors import ExitCode, MviewError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"

#: The errors that mview raises, by their names.
CLASSES: Mapping[str, type[MviewError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, MviewError)
}
#: It has no message of its own.
_SEVERAL = "MistakesError"

UNKNOWN = "…"
#: More forms of one message than a reader wants to see: the rest is `…`.
_MOST_FORMS = 24

#: A message of which the code has no word.
_PASSED_ON = "*what another error or another program has said*"

_HEAD = """# Errors and their codes

Written by `python -m tests.docs`, from the code; none of it by hand.

The last line of an error is its code, as in `code:    MV1003`; in JSON it is the field `code`. The
first two digits say what kind of error it is, and so what to do; the last two say which part of
mview tells it. `…` stands for what is only known when it happens. *Data* says what has become of
the data; an error that says nothing of it touched none. What the
command line itself refuses (an unknown option) has no code and ends with exit code 2.

Search this page for the code, or for words of the message.

## Kinds

| code | what it is | exit code |
|---|---|---|
"""


@dataclass(frozen=True, order=True)
class Told:
    """A message, as the code has it.

    Attributes:
        code: of the error.
        what: failed.
        data: what has become of the data; empty: nothing is said of it.
        hint: what to do next.
        module: where it is made.
    """

    code: str
    what: str
    data: str
    hint: str
    module: str = field(compare=False)


@dataclass(frozen=True)
class _Module:
    """A file of the code."""

    name: str
    tree: ast.Module

    @property
    def constants(self) -> Mapping[str, ast.expr]:
        """What the names of the module stand for."""
        assigned: dict[str, ast.expr] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned[node.targets[0].id] = node.value
        return assigned


@cache
def _modules() -> Sequence[_Module]:
    read = []
    for top, files in (("mview", ROOT), ("mview_connectors", ROOT / "connectors")):
        for file in sorted((files / top).rglob("*.py")):
            parts = file.relative_to(files).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            read.append(_Module(name, ast.parse(file.read_text(encoding="utf-8"))))
    return read


_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _calls() -> Mapping[str, Sequence[tuple[_Module, ast.Call]]]:
    """Where functions and classes are called, by their bare names."""
    calls = defaultdict(list)
    for module in _modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                calls[_bare(node.func)].append((module, node))
    return calls


def _bare(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def all_told() -> list[Told]:
    """Every message of the code, sorted."""
    return sorted({told for module in _modules() for told in _told_in(module)} | _refusals())


def _refusals() -> set[Told]:
    """What a file system refuses: the words are in a table, not where the error is made."""
    told = set()
    for numbers in errors._REFUSALS:
        error = errors.of_the_system(OSError(numbers[0], ""))
        assert error is not None
        told.add(Told(error.code, error.what, error.safe or "", error.hint or "", errors.__name__))
    return told


def _told_in(module: _Module) -> Iterator[Told]:
    for node, function in _walk(module.tree, None):
        if not isinstance(node, ast.Call):
            continue
        for kind in _classes(node, function):
            number = CLASSES[kind].kind
            code = f"MV{number:02}{area_of(module.name).number:02}"
            yield from _forms(node, kind, code, module, function)


def _walk(node: ast.AST, function: _Function | None) -> Iterator[tuple[ast.AST, _Function | None]]:
    """All nodes, each with the function it is in."""
    for child in ast.iter_child_nodes(node):
        inside = child if isinstance(child, _Function) else function
        yield child, inside
        yield from _walk(child, inside)


def _classes(call: ast.Call, function: _Function | None) -> Sequence[str]:
    """The errors that a call makes: one, none, or, where the class is a variable, several."""
    name = _bare(call.func)
    if name in CLASSES:
        # Made of the parts of another one: that one has told it.
        return [] if name == _SEVERAL or not (call.args or call.keywords) else [name]
    if name != "kind" or function is None:
        return []
    known = {_bare(node) for node in ast.walk(function) if isinstance(node, ast.expr)}
    for _, caller in _calls().get(function.name, ()):
        known |= {_bare(argument) for argument in _arguments(caller)}
    return sorted(known & CLASSES.keys() - {"MviewError"})


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _forms(
    call: ast.Call, kind: str, code: str, module: _Module, function: _Function | None
) -> Iterator[Told]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    what = call.args[0] if call.args else given.get("what")
    if what is None:
        return
    for names, place in _bindings(call, module, function):
        if "kind" in names and _bare(names["kind"]) != kind:
            continue
        texts = [
            _texts(node, place, names) if node is not None else [""]
            for node in (what, given.get("safe"), given.get("hint"))
        ]
        for message, data, hint in product(*texts):
            told = Told(code, *(_line(text) for text in (message, data, hint)), module.name)
            yield replace(told, hint="" if told.hint == UNKNOWN else told.hint)


def _bindings(
    call: ast.Call, module: _Module, function: _Function | None
) -> list[tuple[Mapping[str, ast.expr], _Module]]:
    """What the parameters of the function stand for, in each place that calls it."""
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    parameters = [] if function is None else [arg.arg for arg in function.args.args]
    keywords = [] if function is None else [arg.arg for arg in function.args.kwonlyargs]
    if function is None or not used & ({*parameters, *keywords} - {"self"}):
        return [({}, module)]
    if parameters[:1] == ["self"]:
        parameters = parameters[1:]
    optional = [*zip(reversed(parameters), reversed(function.args.defaults), strict=False)]
    optional += [*zip(keywords, function.args.kw_defaults, strict=True)]
    defaults = {name: default for name, default in optional if default is not None}
    private = function.name.startswith("_")
    bindings: list[tuple[Mapping[str, ast.expr], _Module]] = []
    for place, caller in _calls().get(function.name, ()):
        if private and place is not module:
            continue
        names = defaults | dict(zip(parameters, caller.args, strict=False))
        names |= {keyword.arg: keyword.value for keyword in caller.keywords if keyword.arg}
        if {*parameters, *keywords} <= names.keys():  # else it is another function of that name
            bindings.append((names, place))
    return bindings or [({}, module)]


def _texts(
    node: ast.expr, module: _Module, names: Mapping[str, ast.expr], depth: int = 0
) -> list[str]:
    """What an expression may say."""
    if depth > 3:
        return [UNKNOWN]
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Constant(value=None):
            return [""]
        case ast.JoinedStr(values=values):
            parts = [
                _texts(
                    part.value if isinstance(part, ast.FormattedValue) else part,
                    module,
                    names,
                    depth + 1,
                )
                for part in values
            ]
            return _joined(parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = [_texts(side, module, names, depth + 1) for side in (left, right)]
            return _joined(sides)
        case ast.IfExp(body=body, orelse=orelse):
            return [text for side in (body, orelse) for text in _texts(side, module, names, depth)]
        case ast.BoolOp(op=ast.Or(), values=values):
            return [text for side in values for text in _texts(side, module, names, depth)]
        case ast.Name(id=name) if name in names:
            return _texts(names[name], module, {}, depth + 1)
        case ast.Name(id=name) if name in module.constants:
            return _texts(module.constants[name], module, {}, depth + 1)
    return [UNKNOWN]


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    forms = 1
    for part in parts:
        forms *= len(part)
    if forms > _MOST_FORMS:
        parts = [part if len(part) == 1 else [UNKNOWN] for part in parts]
    return ["".join(form) for form in product(*parts)]


def _line(text: str) -> str:
    """A text as a cell of a table."""
    # Of a text with its place below it, the text.
    line = (
        " ".join(re.sub(rf"(\n{UNKNOWN}+)+$", "", text).split())
        .replace("|", r"\|")
        .replace("<", "&lt;")
    )
    return re.sub(rf"{UNKNOWN}(?: ?{UNKNOWN})+", UNKNOWN, line)


def page() -> str:
    """The whole page."""
    by_area: dict[Area, dict[str, list[Told]]] = defaultdict(lambda: defaultdict(list))
    for told in all_told():
        by_area[area_of(told.module)][told.code].append(told)
    lines = [_HEAD.rstrip("\n"), *_kinds()]
    for area in AREAS:
        if area in by_area:
            lines += ["", f"## {area.number:02}: {area.name}"]
        for code, messages in sorted(by_area[area].items()):
            lines += ["", f"### {code}", "", _kind_of(code), ""]
            lines += ["| message | data | what to do |", "|---|---|---|"]
            lines += map(_row, messages)
    return "\n".join(lines) + "\n"


def _row(told: Told) -> str:
    what = _PASSED_ON if told.what == UNKNOWN else told.what
    return f"| {what} | {told.data} | {told.hint} |"


def _kinds() -> Iterator[str]:
    numbers = {kind.kind: kind for name, kind in CLASSES.items() if name != _SEVERAL}
    for number, kind in sorted(numbers.items()):
        about = _about(kind) if number != MviewError.kind else "Nobody foresaw it. Report it."
        yield f"| MV{number:02}… | {about} | {int(ExitCode(kind.exit_code))} |"


def _kind_of(code: str) -> str:
    by_number = {kind.kind: kind for name, kind in CLASSES.items() if name != _SEVERAL}
    kind = by_number[int(code[2:4])]
    return _about(kind) if kind is not MviewError else "Nobody foresaw it. Report it."


def _about(kind: type[MviewError]) -> str:
    return " ".join((kind.__doc__ or "").split())
