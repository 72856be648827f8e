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
    return kind(**fields(data, _hints(cast(Hashable, kind))))


def fields(data: object, types: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a JSON object that has exactly these names, each of its type.

    Raises:
        ValueError: where it is another one, and how.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{_named(data)} instead of an object")
    for name in types.keys() ^ data.keys():
        raise ValueError(f"{name!r} is {'missing' if name in types else 'not known'}")
    return {name: _at(name, kind, data[name]) for name, kind in types.items()}


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in dataclasses.fields(kind) if field.compare}


def _at(name: str, kind: Any, data: Any) -> Any:
    try:
        return _value(kind, data)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _value(kind: Any, data: Any) -> Any:
    if isinstance(kind, NewType):
        return _value(kind.__supertype__, data)
    if kind is Any:
        return data
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if data is None:  # a union is of something or nothing
            return None
        (kind,) = (one for one in inner if one is not NoneType)
        return _value(kind, data)
    if origin is Literal:
        if data in inner:
            return data
    elif origin in (tuple, list):
        if isinstance(data, list):
            return origin(_at(str(n), inner[0], one) for n, one in enumerate(data))
    elif origin in _OBJECTS:
        if isinstance(data, dict):
            return {name: _at(name, inner[1], one) for name, one in data.items()}
    elif (own := getattr(kind, "from_json", None)) is not None:
        return own(data)
    elif dataclasses.is_dataclass(kind):
        return record(cast(type[Any], kind), data)
    # A bool is no number, whatever Python says.
    elif type(data) is kind or (kind is float and type(data) is int):
        return data
    raise ValueError(f"{_named(data)} instead of {_NAMES.get(origin or kind, kind)}")


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
