"""Reading the text of a view: its SELECT as a tree, its header by tokens; errors with a caret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from mview.errors import UserError
from mview.plan.text.dialect import drop_hints, parse
from mview.plan.text.elsewhere import FUNCTIONS, UNPARSED
from mview.plan.text.lexemes import open_quote, tokens, word_of
from mview.plan.text.place import Text, did_you_mean

#: What a text may be, for hints.
QUERY_ONLY = "write the query alone: SELECT …; what is done with its rows is said in the header"
_HEADER = (
    "CREATE [OR REPLACE] MATERIALIZED VIEW name [COMMENT '…'] [WITH (property = '…')] AS SELECT …"
)
#: A view's name becomes a folder, a table and a metric label: letters of any script, no signs.
VIEW_NAME = re.compile(r"[^\W\d]\w{0,127}")
_PROPERTIES = ("key", "sink", "sinks", "path", "freshness", "policy", "mode", "tags")
#: Properties with this prefix go to the sink as they are.
SINK_PREFIX = "sink."
#: Those with this one, and the name of a sink, to the sink that follows the view.
FOLLOWER_PREFIX = "sinks."


def parse_select(text: Text) -> exp.Query:
    """The syntax tree of a SELECT.

    Raises:
        UserError: it is not one query that can be parsed; with line, column and caret.
    """
    try:
        with not_too_deep(text):
            parsed = [tree for tree in parse(text.sql) if tree is not None]
    except ParseError as error:
        raise other_query(text) or _syntax_error(text, error) from None
    except TokenError:
        raise open_quote(text) from None
    if len(parsed) != 1:
        raise text.error("a view is exactly one SELECT", (0, 1), hint="a file for each view")
    tree = parsed[0]
    if not isinstance(tree, exp.Query):
        start = (0, len(text.sql.split(None, 1)[0]))
        raise other_query(text) or text.error("a view must be a SELECT", start, hint=QUERY_ONLY)
    drop_hints(tree)
    return tree


def other_query(text: Text) -> UserError | None:
    """The error for a query of Spark that is no SELECT, at its place; None when there is none."""
    words, before = tokens(text), list[str]()
    whole = True
    for index, token in enumerate(words):
        word, hint = word_of(token), ""
        if word == "FROM" and (whole or before[-1] == "("):
            hint = "put SELECT first: SELECT … FROM …"
        elif word == "VALUES" and whole:
            hint = "SELECT * FROM VALUES (…), (…) AS v (a, b)"
        elif word == "TABLE" and (whole or _begins_a_query(before)) and _is_name(words, index + 1):
            called = (
                FUNCTIONS.get(before[-2].lower())
                if before[-1:] == ["("] and len(before) > 1
                else None
            )
            hint = called or f"SELECT * FROM {_name_at(text, words, index + 1)}"
        if hint:
            return text.error(
                f"a view must be a SELECT, also inside it: a query begins with {word}",
                (token.start, token.end + 1),
                hint=hint,
            )
        before.append(word)
        whole = whole and word == "("
    return None


def _begins_a_query(before: Sequence[str]) -> bool:
    """Whether a query begins after some words."""
    last = before[-2] if before[-1] in ("ALL", "DISTINCT") and len(before) > 1 else before[-1]
    return last in ("(", "UNION", "EXCEPT", "MINUS", "INTERSECT")


def _is_name(words: Sequence[Token], index: int) -> bool:
    return index < len(words) and words[index].token_type in (TokenType.VAR, TokenType.IDENTIFIER)


def _name_at(text: Text, words: Sequence[Token], index: int) -> str:
    """The name that begins at an index, with all that dots join to it."""
    last = index
    while words[last + 1 : last + 2] and words[last + 1].token_type == TokenType.DOT:
        last = min(last + 2, len(words) - 1)
    return text.sql[words[index].start : words[last].end + 1]


def _syntax_error(text: Text, error: ParseError) -> UserError:
    first = error.errors[0]
    start = len(first["start_context"] or "")
    line, column = first["line"] or 1, first["col"] or 1
    token = first["highlight"] or ""
    # sqlglot gives the line and the column after the token; the context alone is cut at 100 chars.
    begin = sum(len(line_before) + 1 for line_before in text.sql.split("\n")[: line - 1])
    start = max(begin + column - len(token), 0)
    if text.sql[start : start + len(token)] != token:
        start = max(text.sql.find(token), 0)
    message = str(first["description"] or "").splitlines()[0].split(" <Token")[0]
    message = re.sub(
        r"Required keyword: '(\w+)' missing for <class '.*\.(\w+)'>", r"incomplete \2", message
    )
    hint = None
    if message.startswith("Expected table name"):
        message = "a table or view is expected here"
        if token.isidentifier():
            hint = f"a word of SQL that is a name stands in backticks: `{token}`"
    hint = hint or UNPARSED.get(_call_around(text, start))
    return text.error(f"syntax error: {message}", (start, start + max(len(token), 1)), hint=hint)


def _call_around(text: Text, place: int) -> str:
    """The name before the parenthesis that is open at a character; empty: none is."""
    calls, before = [], ""
    for token in tokens(text):
        if token.start >= place:
            break
        if token.token_type == TokenType.L_PAREN:
            calls.append(before)
        elif token.token_type == TokenType.R_PAREN and calls:
            calls.pop()
        before = token.text.lower()
    return calls[-1] if calls else ""


@contextmanager
def not_too_deep(text: Text) -> Iterator[None]:
    """Walks over a tree, which go as deep as its parts stand inside one another.

    Raises:
        UserError: that is too deep: thousands of operators in one expression, say.
    """
    try:
        yield
    except RecursionError:
        raise text.error(
            "the query is nested too deeply",
            (0, 1),
            hint="cut it into several views, or into WITH … AS (…)",
        ) from None


class Header:
    """Reads `CREATE [OR REPLACE] MATERIALIZED VIEW name [COMMENT '…'] [WITH (…)] AS`."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.tokens = tokens(text)
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
                f"syntax error: expected {' or '.join(words)}",
                (token.start, token.end + 1),
                hint=_HEADER,
            )
        self.at += 1
        return token

    def accept(self, word: str) -> bool:
        """Step over the word if it is next."""
        is_next = self.at < len(self.tokens) and self.tokens[self.at].text.upper() == word
        self.at += is_next
        return is_next

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
                allowed="at most 128 letters, digits and _, no digit first, no path and no dot",
                hint="the place of the data is the property path='…'",
            )
        return token

    def properties(self) -> dict[str, tuple[str, Token]]:
        """`(name = 'value', …)` by name, each with its token."""
        properties: dict[str, tuple[str, Token]] = {}
        self.next("(")
        while True:
            token = self.next()
            name = token.text
            while self.accept("."):
                name += "." + self.next().text
            name = name.lower()
            self.next("=")
            value = self.next()
            self._check_property(name, token, properties)
            properties[name] = (value.text, value)
            if self.next(",", ")").text == ")":
                return properties

    def _check_property(self, name: str, token: Token, known: Iterable[str]) -> None:
        place = (token.start, token.end + 1)
        if name in known:
            raise self.text.error(f"property {name!r} stands twice", place)
        if name not in _PROPERTIES and not name.startswith((SINK_PREFIX, FOLLOWER_PREFIX)):
            raise self.text.error(
                f"unknown property {name!r}",
                place,
                allowed=", ".join([*_PROPERTIES, "sink.<option>", "sinks.<name>.<option>"]),
                hint=did_you_mean(name, _PROPERTIES),
            )
