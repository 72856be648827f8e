"""The functions that the configuration declares, and the views under them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mview.config import Config
from mview.errors import ConfigError
from mview.execute.calls import find
from mview.plan.definition import ViewDefinition
from mview.plan.functions.declared import Function, is_free

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def declared_functions(config: Config) -> tuple[Function, ...]:
    """The functions of the configuration; their modules are imported.

    Raises:
        ConfigError: a name is taken, or the Python behind it cannot be found.
    """
    functions = []
    for name, declared in config.functions.items():
        _check_name(config, name)
        functions.append(Function(name, declared.python, declared.returns, declared.kind))
        find(functions[-1], folder_of(config))
    return tuple(functions)


def _check_name(config: Config, name: str) -> None:
    if not _NAME.fullmatch(name):
        what = f"{name!r} is no name: write lower case, digits and _; SQL may use any case"
    elif not is_free(name):
        what = f"{name}() is a built-in function, or a word of SQL"
    else:
        return
    raise ConfigError(
        f"functions.{name}: {what}", where=str(config.path), hint="give it another name"
    )


def with_functions(
    definitions: Sequence[ViewDefinition], functions: tuple[Function, ...]
) -> list[ViewDefinition]:
    """The views as they are with the functions that are declared now."""
    return [replace(definition, functions=functions) for definition in definitions]


def is_declared(config: Config, definition: ViewDefinition) -> bool:
    """Whether all functions that a view calls are those of the configuration.

    What a store says of a function is never run: who may write there could name any other.
    """
    declared = {Function(n, f.python, f.returns, f.kind) for n, f in config.functions.items()}
    return set(definition.called) <= declared


def folder_of(config: Config) -> str:
    """Where the modules of functions may lie, beside installed ones."""
    return str(config.path.parent)
