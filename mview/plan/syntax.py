"""Reading the text of a view: its SELECT as a tree, its header by tokens; errors with a caret."""

from __future__ import annotations

import re
from collections.abc import Iterable

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token

from mview.errors import UserError
from mview.plan.place import Text, did_you_mean

#: A view's name becomes a folder, a table and a metric label: keep it plain.
VIEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PROPERTIES = ("key", "sink", "path", "freshness", "policy")
#: Properties with this prefix go to the sink as they are.
SINK_PREFIX = "sink."


def parse_select(text: Text) -> exp.Query:
    """The syntax tree of a SELECT.

    Raises:
        UserError: it is not one query that can be parsed; with line, column and caret.
    """
    try:
        parsed = [one for one in sqlglot.parse(text.sql, dialect="spark") if one is not None]
    except ParseError as error:
        raise _syntax_error(text, error) from None
    except TokenError as error:
        raise _open_quote(text, str(error)) from None
    if len(parsed) != 1:
        raise text.error("a view is exactly one SELECT", (0, 1))
    tree = parsed[0]
    if not isinstance(tree, exp.Query):
        raise text.error("a view must be a SELECT", (0, len(text.sql.split(None, 1)[0])))
    drop_hints(tree)
    return tree


def drop_hints(tree: exp.Expr) -> None:
    """Take `/*+ BROADCAST(c) */` out of a tree, where `c` would pass for a table.

    The text keeps it: Spark follows it where it runs the text.
    """
    for select in tree.find_all(exp.Select):
        select.set("hint", None)


def _syntax_error(text: Text, error: ParseError) -> UserError:
    first = error.errors[0]
    start = len(first["start_context"] or "")
    line, column = first["line"] or 1, first["col"] or 1
    token = first["highlight"] or ""
    # sqlglot gives the line and the column after the token; the context alone is cut at 100 chars.
    begin = sum(len(one) + 1 for one in text.sql.split("\n")[: line - 1])
    start = max(begin + column - len(token), 0)
    if text.sql[start : start + len(token)] != token:
        start = max(text.sql.find(token), 0)
    message = str(first["description"] or "").splitlines()[0].split(" <Token")[0]
    message = re.sub(
        r"Required keyword: '(\w+)' missing for <class '.*\.(\w+)'>", r"incomplete \2", message
    )
    return text.error(f"syntax error: {message}", (start, start + max(len(token), 1)))


def _open_quote(text: Text, message: str) -> UserError:
    start = max((text.sql.rfind(quote) for quote in "'\"`"), default=0)
    return text.error(
        "syntax error: text that cannot be read; is a quote open?", (max(start, 0), start + 1)
    )


def _tokens(text: Text) -> list[Token]:
    try:
        return sqlglot.tokenize(text.sql, read="spark")
    except TokenError as error:
        raise _open_quote(text, str(error)) from None


class Header:
    """Reads `CREATE [OR REPLACE] MATERIALIZED VIEW name [COMMENT '…'] [WITH (…)] AS`."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0

    def next(self, *words: str) -> Token:
        """The next token, which must be one of the words when words are given."""
        if self.at >= len(self.tokens):
            raise self.text.error(
                f"the text ends before {' or '.join(words) or 'the SELECT'}", self._last()
            )
        token = self.tokens[self.at]
        if words and token.text.upper() not in words:
            raise self.text.error(
                f"syntax error: expected {' or '.join(words)}", (token.start, token.end + 1)
            )
        self.at += 1
        return token

    def accept(self, word: str) -> bool:
        """Step over the word if it is next."""
        found = self.at < len(self.tokens) and self.tokens[self.at].text.upper() == word
        self.at += found
        return found

    def _last(self) -> tuple[int, int]:
        end = self.tokens[-1].end + 1 if self.tokens else 0
        return max(end - 1, 0), end

    def view_name(self) -> Token:
        """The view's name: one plain identifier."""
        token = self.next()
        end = token
        while self.accept("."):
            end = self.next()
        raw = self.text.sql[token.start : end.end + 1]
        if not VIEW_NAME.fullmatch(raw.strip("`")):
            raise self.text.error(
                f"{raw!r} is not a view name",
                (token.start, end.end + 1),
                allowed="letters, digits and _, no path and no dot",
                hint="the place of the data is the property path='…'",
            )
        return token

    def properties(self) -> dict[str, tuple[str, Token]]:
        """`(name = 'value', …)` by name, each with its token."""
        found: dict[str, tuple[str, Token]] = {}
        self.next("(")
        while True:
            token = self.next()
            name = token.text
            while self.accept("."):
                name += "." + self.next().text
            name = name.lower()
            self.next("=")
            value = self.next()
            self._check_property(name, token, found)
            found[name] = (value.text, value)
            if self.next(",", ")").text == ")":
                return found

    def _check_property(self, name: str, token: Token, found: Iterable[str]) -> None:
        place = (token.start, token.end + 1)
        if name in found:
            raise self.text.error(f"property {name!r} stands twice", place)
        if name not in _PROPERTIES and not name.startswith(SINK_PREFIX):
            raise self.text.error(
                f"unknown property {name!r}",
                place,
                allowed=", ".join([*_PROPERTIES, "sink.<option>"]),
                hint=did_you_mean(name, _PROPERTIES),
            )
