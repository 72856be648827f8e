"""JSON forms of our dataclasses, read strictly: what was not written like that is not guessed.

A file of another version, or of somebody who edits by hand, may be whole and still be another one:
a field that is missing must not become its default, nor a text a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def record(kind: type[T], data: object) -> T:
    """The dataclass of a JSON object with exactly its fields, each of its type.

    Fields that are not compared are not part of what is kept. A class with a method `from_json` is
    read by it where it is the type of a field.

    Raises:
        ValueError: where the object is another one, and how.
    """
    return kind(**_fields(data, _readers(cast(Hashable, kind))))


def plain(value: Any) -> Any:
    """The JSON form of a dataclass, which `record` reads.

    A class with a method `to_json` is written by it.
    """
    if (own := getattr(value, "to_json", None)) is not None:
        return own()
    if dataclasses.is_dataclass(value):
        kept = (field.name for field in dataclasses.fields(value) if field.compare)
        return {name: plain(getattr(value, name)) for name in kept}
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def fields(data: object, types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a JSON object that has exactly these names, each of its type.

    Raises:
        ValueError: where it is another one, and how.
    """
    return _fields(data, {name: _reader(kind) for name, kind in types.items()})


#: Makes a value of what JSON has; raises ValueError where that is another one.
_Reader = Callable[[Any], Any]


def _fields(data: object, readers: Mapping[str, _Reader]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{_named(data)} instead of an object")
    for name in readers.keys() ^ data.keys():
        raise ValueError(f"{name!r} is {'missing' if name in readers else 'not known'}")
    values = {}
    try:
        for name, read in readers.items():
            values[name] = read(data[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return values


@cache
def _readers(kind: Any) -> Mapping[str, _Reader]:
    types = get_type_hints(kind)
    compared = [field.name for field in dataclasses.fields(kind) if field.compare]
    return {name: _reader(types[name]) for name in compared}


def _at(name: object, read: _Reader, data: Any) -> Any:
    try:
        return read(data)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@cache
def _reader(kind: Any) -> _Reader:
    """What reads values of a type: made once, as a type is looked at for longer than a value."""
    if isinstance(kind, NewType):
        return _reader(kind.__supertype__)
    if kind is Any:
        return lambda data: data
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # of something or nothing
        (some,) = (part for part in inner if part is not NoneType)
        read = _reader(some)
        return lambda data: None if data is None else read(data)
    if origin is Literal:
        return _checked(kind, lambda data: data in inner, lambda data: data)
    if origin in (tuple, list):
        item = _reader(inner[0])
        return _checked(
            kind,
            lambda data: isinstance(data, list),
            lambda data: origin(_at(n, item, value) for n, value in enumerate(data)),
        )
    if origin in _OBJECTS:
        key, item = map(_reader, inner)
        return _checked(
            kind,
            lambda data: isinstance(data, dict),
            lambda data: {key(name): _at(name, item, value) for name, value in data.items()},
        )
    if (own := getattr(kind, "from_json", None)) is not None:
        return cast(_Reader, own)
    if dataclasses.is_dataclass(kind):
        return lambda data: record(cast(type[Any], kind), data)
    # A bool is no number, whatever Python says.
    taken = {kind, int} if kind is float else {kind}
    return _checked(kind, lambda data: type(data) in taken, lambda data: data)


def _checked(kind: Any, is_such: Callable[[Any], bool], read: _Reader) -> _Reader:
    """Reads what is such, and raises else."""
    wanted = _NAMES.get(get_origin(kind) or kind, kind)

    def checked(data: Any) -> Any:
        if is_such(data):
            return read(data)
        raise ValueError(f"{_named(data)} instead of {wanted}")

    return checked


_OBJECTS: Sequence[Any] = (dict, Mapping)

#: Python's types as JSON has them.
_NAMES: Mapping[Any, str] = {
    NoneType: "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    tuple: "a list",
    dict: "an object",
    Mapping: "an object",
    Literal: "one of its words",
}


def _named(data: object) -> str:
    return _NAMES.get(type(data), type(data).__name__)


#: Makes a value of the JSON value that a file holds; raises ValueError where it is another one.
Parse = Callable[[Any], T]
