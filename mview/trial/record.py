"""What views show, written into a test file where it expects nothing: `mview test --record`.

Only text is put in, at places that the tokens of YAML tell; all else stays, comments and layout
too. YAML can be written in more ways than are thought of here: so the new file is read again before
it takes the name, and must say what the old one said, and what was recorded.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from mview.errors import MistakesError, UserError, one_line, shown
from mview.files.durable import put
from mview.files.yamlfile import parse_yaml
from mview.trial.cases import Given, Listed, TestFile, TrialCase, TrialStep, read_tests
from mview.trial.values import given_of
from mview.trial.world import TrialWorld

#: A test by its number, and one of its steps by its number; None: before the first.
Place = tuple[int, int | None]

_SAFE = "the file is as it was"
_SHARED = "tests share parts (&name, *name), and what is put into one comes into others"
_NO_END = "its last line has no end, and with one the text that stands there would be another"
_ELSEWHERE = "write these expects by hand, or its tests and steps as docs/testing.md has them"

_FEWER = "write these expects by hand, of fewer columns or views; choose the other tests by -k"


class Recorder:
    """What the views of a test file show in tests that pass, where it expects nothing.

    Args:
        file: the test file.
    """

    def __init__(self, file: TestFile) -> None:
        self._file = file
        self._seen: dict[int | None, dict[str, pa.Table]] = {}
        self._shown: dict[Place, dict[str, pa.Table]] = {}
        self._ended: list[int] = []

    def see(self, at: int | None, world: TrialWorld) -> None:
        """Remember what views show after a step of the test that runs."""
        self._seen[at] = {
            view.name: world.rows(view.relation).select(
                [column.name for column in world.schema(view.relation).columns]
            )
            for view in world.views
        }

    def end(self, number: int, passed: bool) -> None:
        """The test has ended. What views show in one that fails may be wrong."""
        seen, self._seen = self._seen, {}
        self._ended.append(number)
        for at, views in seen.items():
            if passed and "expect" not in _form(self._file.cases[number], at).model_fields_set:
                self._shown[number, at] = views

    def write(self) -> list[int]:
        """Write it into the file, all of it or nothing.

        Returns:
            For each test that has ended, how many expects it was given.

        Raises:
            UserError: it cannot be written there; the file is as it was.
        """
        if self._shown:
            listed = {
                place: {name: _rows(name, rows) for name, rows in views.items()}
                for place, views in self._shown.items()
            }
            try:
                text = _TestText(self._file.text).with_expects(listed)
            except LookupError:
                raise self._refused(_SHARED, _ELSEWHERE) from None
            self._put(text, _with(self._file, listed))
        return [sum(number == test for test, _ in self._shown) for number in self._ended]

    def _put(self, text: str, wanted: TestFile) -> None:
        path = self._file.path.resolve()

        def is_right(staged: Path) -> None:
            self._check(staged, wanted)
            was = path.stat()
            with suppress(PermissionError):
                os.chown(staged, was.st_uid, was.st_gid)
            shutil.copymode(path, staged)

        try:
            content = path.read_bytes()
            if content.decode("utf-8-sig", errors="replace") != self._file.text:
                raise self._refused("it was changed while its tests ran", "run them again")
            if not os.access(path, os.W_OK):
                raise self._refused("it may not be written to", "see who may write to it")
            mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
            put(path, mark + text.encode(), check=is_right)
        except OSError as error:
            reason = error.strerror or str(error)
            raise self._refused(reason, "see who may write to it and its folder") from None

    def _check(self, staged: Path, wanted: TestFile) -> None:
        """Check that a file says what it is to say."""
        try:
            made = read_tests(staged)
        except UserError as error:
            # A view can show a text that no YAML file has, or more than one may have.
            first = error.errors[0] if isinstance(error, MistakesError) else error
            why = one_line(first.what.replace(str(staged), "the file"))
            raise self._refused(f"with it the file could not be read: {why}", _FEWER) from None
        if _said(made) != _said(wanted):
            if not self._file.text.endswith(("\n", "\r")):
                raise self._refused(_NO_END, "end the file with a newline, and record again")
            has_alias = any(isinstance(t, yaml.AliasToken) for t in _tokens(self._file.text))
            why = _SHARED if has_alias else "it does not fit into the layout of the file"
            raise self._refused(why, _ELSEWHERE)

    def _refused(self, why: str, hint: str) -> UserError:
        return UserError(
            f"what views show is not recorded in {self._file.path}: {why}",
            where=str(self._file.path),
            safe=_SAFE,
            hint=hint,
        )


def _form(case: TrialCase, at: int | None) -> TrialCase | TrialStep:
    return case if at is None else case.steps[at]


def _with(file: TestFile, listed: Mapping[Place, Listed]) -> TestFile:
    """What a file is to say."""
    cases = list(file.cases)
    for (number, at), views in listed.items():
        case = cases[number]
        if at is None:
            cases[number] = case.model_copy(update={"expect": views})
        else:
            steps = list(case.steps)
            steps[at] = steps[at].model_copy(update={"expect": views})
            cases[number] = case.model_copy(update={"steps": steps})
    return replace(file, cases=cases)


def _said(file: TestFile) -> str:
    """All that a file says: 1, 1.0 and true are three things, and NaN equals itself."""
    said = [_sorted(case.model_dump(exclude_unset=True)) for case in file.cases]
    return repr((file.document.value["views"], file.tables, said))


def _sorted(value: Any) -> Any:
    """A value with its names in one order: which comes first in a mapping says nothing."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(part) for part in value] if isinstance(value, list) else value


# --- rows ----------------------------------------------------------------------------------------


def _rows(view: str, rows: pa.Table) -> list[Given]:
    """Rows of a view as a test file has them, in the same order each time.

    Raises:
        UserError: one has a value that no test file can have.
    """
    columns = []
    for field in rows.schema:
        try:
            values = rows[field.name].to_pylist()
            given = [given_of(value, field.type) for value in values]
        except (ValueError, OverflowError) as error:  # a time that Python does not have
            raise _unfit(view, field.name, str(error)) from None
        except UserError as error:
            raise _unfit(view, field.name, error.got) from None
        columns.append((field.name, values, given))
    orders = [tuple(_order(values[at]) for _, values, _ in columns) for at in range(len(rows))]
    return [
        {name: given[at] for name, _, given in columns}
        for at in sorted(range(len(rows)), key=orders.__getitem__)
    ]


def _unfit(view: str, column: str, got: object) -> UserError:
    return UserError(
        f"view {view}, column {column}: a test file cannot have a value that it shows",
        got=shown(got),
        safe=_SAFE,
        hint="choose the tests that are recorded by -k",
    )


def _order(value: Any) -> tuple[Any, ...]:
    """Of values of one type: NULL and NaN come last."""
    if isinstance(value, list):
        return (0, tuple(map(_order, value)))
    if value is None:
        return (2,)
    return (1,) if isinstance(value, float) and math.isnan(value) else (0, value)


# --- the text of what is put in ------------------------------------------------------------------

#: Words that stand without quotes.
_PLAIN = re.compile(r"[^\W\d_][\w-]*( [\w-]+)*")
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _flow(value: Any) -> str:
    """A value in YAML, in one line."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_flow(name)}: {_flow(part)}" for name, part in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if not isinstance(value, str):
        # Of a scalar alone it marks the end.
        return yaml.safe_dump(value, width=math.inf).splitlines()[0]
    if _PLAIN.fullmatch(value) and parse_yaml(f"[{value}]").value == [value]:
        return value
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPED or character.isprintable():
        return _ESCAPED.get(character, character)
    return f"\\U{ord(character):08x}"


def _block(views: Listed) -> Iterator[str]:
    """`expect:` with these rows, a line each."""
    yield "expect:"
    for view, rows in views.items():
        yield f"  {_flow(view)}:" if rows else f"  {_flow(view)}: []"
        for row in rows:
            yield f"    - {_flow(row)}"


# --- where it is put -----------------------------------------------------------------------------

#: Tokens that are nothing in the text, or stand between two entries.
_BETWEEN = (
    yaml.BlockEndToken,
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.DocumentEndToken,
    yaml.DocumentStartToken,
    yaml.FlowEntryToken,
    yaml.KeyToken,
    yaml.StreamEndToken,
    yaml.StreamStartToken,
)
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def _tokens(text: str) -> list[yaml.Token]:
    return list(yaml.scan(text, Loader=yaml.SafeLoader))


class _TestText:
    """The text of a test file, and where its parts stand.

    Args:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        tokens = _tokens(text)
        self._ends = [t.end_mark.index for t in tokens if not isinstance(t, _BETWEEN)]
        #: Those of a mapping begin in one column; of `? name` it is that of the mark.
        self._names = [t.start_mark for t in tokens if isinstance(t, yaml.KeyToken)]
        self._starts = [mark.index for mark in self._names]
        first = _LINE_END.search(text)
        self._line_end = first.group() if first and first.group().startswith("\r") else "\n"

    def with_expects(self, listed: Mapping[Place, Listed]) -> str:
        """The text with `expect` in tests and steps.

        Raises:
            LookupError: tests share a step by an alias, and views show it otherwise in each.
        """
        text = self._text
        tests = _part(yaml.compose(text, Loader=yaml.SafeLoader), "tests").value
        pieces: dict[int, str] = {}
        for (number, at), views in listed.items():
            node = tests[number] if at is None else _part(tests[number], "steps").value[at]
            for place, piece in self._pieces(node, views):
                if pieces.setdefault(place, piece) != piece:
                    raise LookupError(place)
        for place, piece in sorted(pieces.items(), reverse=True):
            text = text[:place] + piece + text[place:]
        return text

    def _pieces(self, node: yaml.MappingNode, views: Listed) -> Iterator[tuple[int, str]]:
        """What is put into a test or step, and at which place."""
        names = [key for key, _ in node.value]
        # In a list in brackets a mapping of one name needs no braces: `[insert: …]`.
        is_bare = bool(names) and node.start_mark.index == names[0].start_mark.index
        bound = node.end_mark.index
        if node.flow_style and not is_bare:
            bound -= 1
        for name in names[1:]:
            if name.value == "steps":  # what comes first stands first
                bound = name.start_mark.index
        end = self._ends[bisect_right(self._ends, bound) - 1]
        if node.flow_style:
            if is_bare:
                yield node.start_mark.index, "{"
            comma, brace = ", " if names else "", "}" if is_bare else ""
            yield end, f"{comma}expect: {_flow(views)}{brace}"
            return
        first = self._names[bisect_right(self._starts, names[0].start_mark.index) - 1]
        lines = [" " * first.column + line for line in _block(views)]
        if self._text[:end].endswith(("\n", "\r")):  # a text of lines has the end of the last
            place = end
        elif line_end := _LINE_END.search(self._text, end):
            place = line_end.end()
        else:
            yield len(self._text), self._line_end + self._line_end.join(lines)
            return
        yield place, "".join(line + self._line_end for line in lines)


def _part(node: Any, name: str) -> Any:
    """A value of a mapping; `<<` can bring it from elsewhere."""
    for key, value in node.value:
        if key.value == name:
            return value
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                with suppress(LookupError):
                    return _part(merged, name)
    raise LookupError(name)
