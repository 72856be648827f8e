"""Functions that the user declared: Python behind a name in SQL, and the calls of such names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from mview.plan.functions.names import BUILT_IN

Kind = Literal["python", "pandas"]


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
    if name in BUILT_IN:
        return False
    try:
        call = sqlglot.parse_one(f"{name}(a)", dialect="spark")
    except SqlglotError:
        return False
    return isinstance(call, exp.Anonymous)


def calls(tree: exp.Expr) -> Iterator[exp.Anonymous]:
    """The calls of functions that are not built in; those in FROM give tables, and are left out."""
    for node in tree.find_all(exp.Anonymous):
        if node.name.lower() not in BUILT_IN and not isinstance(
            node.parent, exp.Table | exp.Lateral
        ):
            yield node


def declaration_of(name: str, close: str | None) -> str:
    """A hint with the lines that declare a function, and with a name that was perhaps meant."""
    lines = [
        f"did you mean {close!r}? Or declare it:" if close else "declare it:",
        "functions:    # in the configuration",
        f"  {name}:",
        f'    python: "my_module:{name}"    # the module may be beside the configuration file',
        "    returns: string",
        "    deterministic: true    # only if equal arguments always give an equal result",
    ]
    return "\n           ".join(lines)
