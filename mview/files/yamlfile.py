"""YAML as values with their places; what YAML would take in silence is a mistake here.

Names that stand twice, names that are no text (`on:`, `1:`), tags, aliases inside of themselves.
No message has a value of the file: it may be a password.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml

#: Names and numbers from the top: `("connections", "shop", "port")`.
Path = tuple[str | int, ...]

#: Values that aliases may multiply a text to.
_MOST = 100_000
_TAG = "tag:yaml.org,2002:"
#: Numbers that mean the same to every YAML; to some 017 is 15, and 1:30 is 90.
_NUMBER = re.compile(r"[-+]?(0|[1-9][\d_]*|0x[\da-fA-F]+|[\d.]+([eE][-+]?\d+)?|\.(inf|nan))", re.I)
_LEADING_ZERO = re.compile(r"[-+]?0\d+")
#: What escapes can write and no text has: the end of a name of a file, and halves of characters.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_PLAIN = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True)
class Mistake:
    """Something wrong at a place; lines and columns count from 1."""

    what: str
    line: int
    column: int
    hint: str | None = None


@dataclass
class Document:
    """A text that was read.

    Attributes:
        value: mappings, lists, text, numbers, true and false, None.
        places: line and column of every value, and of names before their values.
        mistakes: what is wrong in it.
    """

    value: Any = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def place(self, path: Path) -> tuple[int, int]:
        """Where a value stands; for one that does not, the nearest around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))


def shown(name: object) -> str:
    """A name of the file for messages; what is no plain name may be a secret in a wrong place."""
    text = str(name)
    return text if _PLAIN.fullmatch(text) else "(a name that is not shown)"


#: What a schema finds in values, by pydantic's kinds; the others say it well enough.
_MISFITS = {
    "missing": "is missing",
    "extra_forbidden": "unknown property",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "string_pattern_mismatch": "is not of the form that it must have",
    "path_type": "must be the path of a folder",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def misfit(detail: Mapping[str, Any]) -> str:
    """What a schema has found at a place, in words for people; without the value.

    Args:
        detail: one of the `errors` of pydantic's ValidationError.
    """
    said = str(detail["msg"]).removeprefix("Value error, ")
    said = re.sub(r"^Input should be ", "must be ", said)
    return _MISFITS.get(detail["type"], said)


def parse_yaml(text: str) -> Document:
    """Read one YAML document; never raises."""
    document = Document()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            document.value = _YamlReader(document).value(node, ())
    except yaml.MarkedYAMLError as error:
        document.mistakes.append(_problem(error))
    except yaml.YAMLError:
        document.mistakes.append(Mistake("it has characters that YAML does not allow", 1, 1))
    except RecursionError:
        document.mistakes.append(Mistake("it is nested too deeply", 1, 1))
    except _TooLargeError:
        document.mistakes.append(Mistake(f"it has more than {_MOST:,} values, by aliases", 1, 1))
    return document


class _TooLargeError(Exception):
    """Aliases of aliases."""


def _problem(error: yaml.MarkedYAMLError) -> Mistake:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = error.problem or "it cannot be read"
    hint = None
    if "undefined alias" in problem:
        problem, hint = "unknown alias", "put a value that begins with * in quotes"
    elif "another document" in problem:
        problem = "a second document begins here; one is allowed"
    elif "'\\t'" in problem:
        hint = "indent by spaces, not by tabs"
    elif "cannot start any token" in problem:
        hint = "put the value in quotes"
    # Of what stands in quotes only single characters and kinds of tokens are sure to be no secret.
    problem = re.sub(r"'(?!<)(?!\\?.')[^']*'", "…", problem)
    return Mistake(f"it is not valid YAML: {problem}", line, column, hint)


_ESCAPED = r"an escape (\0, \ud800 to \udfff) that is no character of a text"
_TWO_WAYS = "write it without a zero in front and without colons, or put text in quotes"

_ROUNDED = "put it in quotes: as text it is exact"


def _is_rounded(text: str, value: float) -> bool:
    return math.isfinite(value) and Decimal(text) != Decimal(repr(value))


def _is_plain_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and _LEADING_ZERO.fullmatch(text) is None


class _YamlReader:
    """Values of nodes."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._inside: set[int] = set()
        self._count = 0
        self._plain = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node, and its place."""
        self._count += 1
        if self._count > _MOST:
            raise _TooLargeError
        mark = node.start_mark
        self._document.places.setdefault(path, (mark.line + 1, mark.column + 1))
        if id(node) in self._inside:
            return self._wrong(node, "an alias inside of what it stands for")
        self._inside.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
                return [self.value(part, (*path, n)) for n, part in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._inside.discard(id(node))

    def _wrong(self, node: yaml.Node, what: str, hint: str | None = None) -> None:
        mark = node.start_mark
        self._document.mistakes.append(Mistake(what, mark.line + 1, mark.column + 1, hint))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, part in node.value:
            if key.tag == f"{_TAG}merge":
                merged = {**self._merged(part, path), **merged}
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
                self._wrong(key, "a name must be text", "put it in quotes")
                continue
            name, mark = key.value, key.start_mark
            if _NO_TEXT.search(name):
                self._wrong(key, _ESCAPED)
                continue
            if name in lines:
                what = f"{shown(name)} stands twice; first in line {lines[name]}"
                self._wrong(key, what, "remove one of them")
                continue
            lines[name] = mark.line + 1
            place = (*path, name)
            self._document.places[place] = (mark.line + 1, mark.column + 1)
            values[name] = self.value(part, place)
        return {**merged, **values}

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        parts = list(node.value) if isinstance(node, yaml.SequenceNode) else [node]
        values: dict[str, Any] = {}
        for part in parts:
            value = self.value(part, (*path, "<<"))
            if not isinstance(value, dict):
                self._wrong(part, "<< takes a mapping")
                continue
            values = {**value, **values}
        return values

    def _scalar(self, node: yaml.Node) -> Any:
        tag = str(node.tag).removeprefix(_TAG)
        if not isinstance(node, yaml.ScalarNode) or not node.tag.startswith(_TAG):
            return self._wrong(node, "a tag (!…) has no meaning here", "remove it, or use quotes")
        if tag in ("str", "timestamp", "value", "merge"):
            if _NO_TEXT.search(node.value):
                return self._wrong(node, _ESCAPED)
            return node.value
        if tag in ("int", "float") and not _is_plain_number(node.value):
            return self._wrong(node, "a number that can be read in two ways", _TWO_WAYS)
        try:
            value = {
                "null": self._plain.construct_yaml_null,
                "bool": self._plain.construct_yaml_bool,
                "int": self._plain.construct_yaml_int,
                "float": self._plain.construct_yaml_float,
            }[tag](node)
        except KeyError:
            return self._wrong(node, "a tag (!…) has no meaning here", "remove it, or use quotes")
        except (ValueError, OverflowError):
            return self._wrong(node, "a number that cannot be read", "put text in quotes")
        if isinstance(value, float) and _is_rounded(node.value, value):
            return self._wrong(node, "a number of more digits than are kept", _ROUNDED)
        return value


def paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value inside a value, with its path."""
    yield path, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from paths(part, (*path, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from paths(part, (*path, number))
