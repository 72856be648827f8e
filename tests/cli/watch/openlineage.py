"""Reads events of OpenLineage by the classes of its client: what is none of theirs is an error."""

from __future__ import annotations

import importlib
import pkgutil
import types
import typing
from functools import cache
from typing import Any

import attr
import openlineage.client.generated as generated
from openlineage.client.generated import base

_EVENTS = {"RunEvent": base.RunEvent, "JobEvent": base.JobEvent}


@cache
def _by_schema() -> dict[str, type]:
    """The classes of facets, by the URL of the schema that each was made of."""
    modules = [
        importlib.import_module(f"{generated.__name__}.{part.name}")
        for part in pkgutil.iter_modules(generated.__path__)
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {kind._get_schema(): kind for kind in kinds if issubclass(kind, base.BaseFacet)}


def read_event(event: dict[str, Any]) -> Any:
    """An event as its class has it, with its facets as theirs.

    Raises:
        TypeError: a field is missing, more, or of another type.
        ValueError: a value is not what its field takes.
    """
    url = event["schemaURL"]
    kind = _EVENTS[url.rpartition("/")[2]]
    assert kind._get_schema() == url
    return _made(kind, {name: part for name, part in event.items() if name != "schemaURL"})


def _made(kind: type, fields: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind, None, vars(typing))
    names = {a.name: a.alias for a in attr.fields(kind)}
    return kind(**{names[n]: _value(hints[n], part) for n, part in fields.items()})


def _value(hint: Any, value: Any) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        (hint,) = [part for part in parts if part is not type(None)]
        return _value(hint, value)
    if origin is list:
        return [_value(parts[0], part) for part in _of(list, value)]
    if origin is dict:
        return {name: _value(parts[1], part) for name, part in _of(dict, value).items()}
    if attr.has(hint):
        return _facet(value) if issubclass(hint, base.BaseFacet) else _made(hint, value)
    if hint is base.EventType:
        return base.EventType(value)
    return value if hint is Any else _of(hint, value)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _facet(fields: dict[str, Any]) -> Any:
    """A facet by its schema; one of a project's own says only that it is a facet."""
    kind = _by_schema()[fields["_schemaURL"]]
    if kind is base.RunFacet:
        return fields
    return _made(kind, {name: part for name, part in fields.items() if name != "_schemaURL"})
