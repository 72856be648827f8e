"""Functions that the user declared: Python behind a name in SQL, and the calls of such names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mview.plan.function_names import AGGREGATES, GENERATORS, SCALARS
from mview.plan.place import Text, span

Kind = Literal["python", "pandas"]

_BUILT_IN = AGGREGATES | GENERATORS | SCALARS


@dataclass(frozen=True)
class Function:
    """A deterministic function of the values of one row, declared by the user.

    Attributes:
        name: what SQL calls it, in lower case.
        python: where it is: `package.module:attribute`.
        returns: its type in Spark SQL.
        kind: `python`: called with the values of one row; `pandas`: with a Series per argument.
    """

    name: str
    python: str
    returns: str
    kind: Kind


def is_free(name: str) -> bool:
    """Whether a name means nothing in SQL yet: no function of Spark, and no word of the parser."""
    if name in _BUILT_IN:
        return False
    try:
        call = sqlglot.parse_one(f"{name}(a)", dialect="spark")
    except SqlglotError:
        return False
    return isinstance(call, exp.Anonymous)


def calls(tree: exp.Expr) -> Iterator[exp.Anonymous]:
    """The calls of functions that are not built in; those in FROM give tables, and are left out."""
    for node in tree.find_all(exp.Anonymous):
        if node.name.lower() not in _BUILT_IN and not isinstance(
            node.parent, exp.Table | exp.Lateral
        ):
            yield node


def check_calls(tree: exp.Expr, text: Text, functions: Sequence[Function]) -> None:
    """Make sure that every function is built in or declared.

    Raises:
        UserError: one is not; the message has close names, and the lines that would declare it.
    """
    declared = {function.name for function in functions}
    for call in calls(tree):
        if call.name.lower() not in declared:
            raise text.error(
                f"{call.name}() is neither built in nor declared: what it does is not known "
                "(UNKNOWN_FUNCTION)",
                span(call),
                hint=_fix(call.name.lower(), declared),
            )


def _fix(name: str, declared: set[str]) -> str:
    # Of hundreds of built-in names some are a little like any other: only typing errors count.
    close = get_close_matches(name, declared, n=1) or get_close_matches(
        name, sorted(_BUILT_IN), n=1, cutoff=0.75
    )
    lines = [
        f"did you mean {close[0]!r}? Or declare it:" if close else "declare it:",
        "functions:    # in the configuration",
        f"  {name}:",
        f'    python: "my_module:{name}"    # the module may be beside the configuration file',
        "    returns: string",
        "    deterministic: true    # only if equal arguments always give an equal result",
    ]
    return "\n           ".join(lines)
