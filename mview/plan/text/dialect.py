"""Spark's SQL to a tree and back to the same words: what sqlglot loses on the way is kept.

sqlglot reads `date_sub(d, 1)` as an addition, `to_date(s, fmt)` with a format of its own, and a
string without its escapes. Here a node that may be written in other words than it was read from
has its own words in its `meta`: texts, and paths to the nodes that stand between them. So a part of
an expression can be replaced, and the rest is what the user wrote. Trees are those of sqlglot's
`spark`, as far as they are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel
from sqlglot.generators.spark import SparkGenerator
from sqlglot.tokenizer_core import Token

from mview.plan.text.grammar import FORMATS, SparkGrammar

#: The key in `meta` of what a node was read from: a list of texts, and of paths to nodes below.
_WRITTEN = "written"
#: The key in `meta` of the words of a hint, which stands after SELECT.
_HINT = "hint_words"

#: The key in `meta` of the name and the arguments of a call.
_CALLED = "called"
#: Keys in `meta` that sqlglot gives places in a text by.
_PLACES = ("line", "col", "start", "end")

#: Keys of `args`, each with the position in the list there, or None.
_Path = tuple[tuple[str, int | None], ...]


class Called(NamedTuple):
    """How a call was written: its name, in lower case, and how many arguments it has."""

    name: str
    arguments: int


def called_as(node: exp.Expr) -> Called | None:
    """How a call was written; None for what is no call, or has a form of its own such as CAST."""
    if isinstance(node, exp.Anonymous):
        return Called(str(node.name).lower(), len(node.expressions))
    called: Called | None = node.meta_get(_CALLED)
    return called


def parse(sql: str) -> list[exp.Expr | None]:
    """The statements of a text.

    Raises:
        sqlglot.errors.SqlglotError: it cannot be parsed.
    """
    return sqlglot.parse(sql, dialect=_AsWritten)


def write(tree: exp.Expr) -> str:
    """The text of a tree for Spark: in the words it was read from, without comments."""
    return tree.sql(
        dialect=_AsWritten,
        comments=False,
        normalize_functions=False,
        unsupported_level=ErrorLevel.IGNORE,
    )


def fragment(sql: str, **parts: exp.Expr) -> exp.Expr:
    """An expression of ours, with other expressions in the place of its columns of some names."""
    made = _fragment(sql).copy()
    for column in list(made.find_all(exp.Column)):
        part = parts.get(column.name) if len(column.parts) == 1 else None
        if part is None:
            continue
        if column is made:
            return part.copy()
        column.replace(part.copy())
    return made


@lru_cache(maxsize=256)
def _fragment(sql: str) -> exp.Expr:
    made = sqlglot.parse_one(sql, dialect=_AsWritten)
    for node in made.walk():
        for key in _PLACES:
            node.meta.pop(key, None)
    return made


def verbatim(sql: str) -> exp.Expr:
    """What is written as it stands: SQL that no tree is made of."""
    return exp.Var(this=sql)


def drop_hints(tree: exp.Expr) -> None:
    """Take `/*+ BROADCAST(c) */` out of a tree, where `c` would pass for a table.

    What is written of the tree has it: Spark follows it where it runs the text.
    """
    for select in tree.find_all(exp.Select):
        hint = select.args.get("hint")
        if hint is not None:
            select.meta[_HINT] = hint.sql(dialect="spark", normalize_functions=False).strip()
            select.set("hint", None)


def _keep(node: exp.Expr, words: list[str | _Path]) -> None:
    node.meta[_WRITTEN] = words


def _path(node: exp.Expr, part: exp.Expr) -> _Path | None:
    """How to come from a node to a part of it; None: it is no part of it."""
    path: list[tuple[str, int | None]] = []
    above: exp.Expr | None = part
    while above is not None and above is not node:
        path.append((above.arg_key or "", above.index))
        above = above.parent
    return tuple(reversed(path)) if above is node and path else None


def _path_of_equal(node: exp.Expr, part: exp.Expr) -> _Path | None:
    """The same for a copy of the part."""
    copied = next((below for below in node.walk() if below == part), None)
    return None if copied is None else _path(node, copied)


def _at(node: exp.Expr, path: _Path) -> exp.Expr:
    for key, index in path:
        value = node.args[key]
        node = value if index is None else value[index]
    return node


def _calling(name: str, build: Callable[..., exp.Expr]) -> Callable[..., exp.Expr]:
    """What builds the node of a call, so that the call is kept with its name and arguments."""

    def built(args: list[exp.Expr], dialect: Any = None) -> exp.Expr:
        node = build(args) if dialect is None else build(args, dialect=dialect)
        node.meta[_CALLED] = Called(name.lower(), len(args))
        words: list[str | _Path] = [f"{name.lower()}("]
        for number, part in enumerate(args):
            words += [", "] if number else []
            # A constant may have become another, such as a format: it is written as it was.
            path = _path(node, part) or _path_of_equal(node, part)
            if path is None and part.find(exp.Column, exp.Query) is not None:
                return node
            words.append(write(part) if path is None else path)
        _keep(node, [*words, ")"])
        return node

    return built


def _quoting(read: Callable[[Any, Token], exp.Expr]) -> Callable[[Any, Token], exp.Expr]:
    """What reads a literal of one token, so that it is kept with its quotes and escapes."""

    def quoted(parser: Any, token: Token) -> exp.Expr:
        node = read(parser, token)
        _keep(node, [parser.sql[token.start : token.end + 1]])
        return node

    return quoted


_STRINGS = {kind: _quoting(read) for kind, read in SparkGrammar.STRING_PARSERS.items()}
_NUMBERS = {kind: _quoting(read) for kind, read in SparkGrammar.NUMERIC_PARSERS.items()}


class _Parser(SparkGrammar):
    STRING_PARSERS = _STRINGS
    NUMERIC_PARSERS = _NUMBERS
    PRIMARY_PARSERS: ClassVar = {**SparkGrammar.PRIMARY_PARSERS, **_STRINGS, **_NUMBERS}
    FUNCTIONS: ClassVar = {
        # The items of a STRUCT may have names, which is written as it is read.
        name: build if name == "STRUCT" else _calling(name, build)
        for name, build in SparkGrammar.FUNCTIONS.items()
    }

    def _from(self, index: int) -> str:
        """The text from a token to the last one that was read."""
        return str(self.sql[self._tokens[index].start : self._prev.end + 1])

    def _parse_primary(self) -> exp.Expr | None:
        index = self._index
        node = super()._parse_primary()
        # 'a' 'b' is one string, and .5 has two tokens.
        if isinstance(node, exp.Literal | exp.Concat) and self._index > index + 1:
            _keep(node, [self._from(index)])
        return node

    def _parse_interval(self, *args: Any, **options: Any) -> exp.Add | exp.Interval | None:
        index = self._index
        node = super()._parse_interval(*args, **options)
        if node is not None and node.find(exp.Column, exp.Query) is None:
            _keep(node, [self._from(index)])
        return node

    def _parse_types(self, *args: Any, **options: Any) -> exp.Expr | None:
        index = self._index
        node = super()._parse_types(*args, **options)
        if isinstance(node, exp.DataType):
            _keep(node, [self._from(index)])
        return node

    def _parse_type(self, *args: Any, **options: Any) -> exp.Expr | None:
        index = self._index
        node = super()._parse_type(*args, **options)
        # DATE '2024-01-01'
        if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
            words = self._from(index)
            if words.endswith(str(node.this.meta.get(_WRITTEN, [""])[0])) and "::" not in words:
                _keep(node, [words])
        return node

    def _parse_function_call(self, *args: Any, **options: Any) -> exp.Expr | None:
        token = self._curr
        node = super()._parse_function_call(*args, **options)
        call = node
        while isinstance(call, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            call = call.this
        # sqlglot gives these no places.
        if isinstance(call, exp.ArgMax | exp.ArgMin) and _CALLED not in call.meta:
            call.update_positions(token)
            call.meta[_CALLED] = Called(
                token.text.lower(), 2 + (call.args.get("count") is not None)
            )
        return node

    def build_cast(self, strict: bool, **options: Any) -> exp.Expr:
        node = super().build_cast(strict, **options)
        # 2L is read as 2::BIGINT.
        words = self._from(self._index - 1)
        if words[:1].isdigit() or words[:1] == ".":
            _keep(node, [words])
        return node


class _Generator(SparkGenerator):
    WRAP_DERIVED_VALUES = True
    # WITH stays where it stands.
    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()
    TRANSFORMS: ClassVar = {
        kind: transform
        for kind, transform in SparkGenerator.TRANSFORMS.items()
        # Rewritten for older versions of Spark.
        if kind not in (exp.Select, exp.From, exp.Pivot, exp.WithinGroup)
    } | {
        # Operators stay operators: what binds tighter is told by them.
        exp.NullSafeEQ: lambda self, node: self.binary(node, "<=>"),
        exp.BitwiseLeftShift: lambda self, node: self.binary(node, "<<"),
        exp.BitwiseRightShift: lambda self, node: self.binary(node, ">>"),
    }

    def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
        if key == "hint" and _HINT in expression.meta:
            return f" {expression.meta[_HINT]}"
        words = (
            None if key or not isinstance(expression, exp.Expr) else expression.meta_get(_WRITTEN)
        )
        if words is None:
            return super().sql(expression, key, comment)
        return "".join(
            word if isinstance(word, str) else self.sql(_at(expression, word)) for word in words
        )


class _AsWritten(Spark):
    TIME_MAPPING = FORMATS
    Parser = _Parser
    Generator = _Generator
