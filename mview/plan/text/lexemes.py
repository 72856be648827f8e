"""The text of a view as Spark cuts it into words: nothing in it may be read in two ways.

What a view may do is judged on sqlglot's words and tree, and Spark runs the text. If the two cut
one text differently (where a comment ends, what a string is), a view could show one thing and do
another. So the text is cut here once more, by Spark's rules, and must come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import sqlglot
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from mview.errors import UserError
from mview.plan.text.place import Text

_LEXEME = re.compile(
    r"""
      (?P<hint>/\*\+.*?\*/)
    | (?P<comment>--[^\r\n]*|/\*.*?\*/)
    | (?P<quoted>(?<!\w)[rR]'[^']*'|(?<!\w)[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"
                |`(?:[^`]|``)+`)
    | (?P<space>[ \t\r\n]+)
    | (?P<word>\w+)
    | (?P<sign>[-+*/%=<>!|&^~.,:;()\[\]])
    | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTED = (
    TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER, TokenType.HEX_STRING,
)  # fmt: skip
#: Tokens whose text is data or a quoted name, never a word of SQL.
_DATA = (TokenType.STRING, TokenType.IDENTIFIER, TokenType.RAW_STRING)
#: Hints on how to join and to distribute, which change no result.
_HINTS = re.compile(
    r"/\*\+\s*(?:(?:BROADCAST|BROADCASTJOIN|MAPJOIN|MERGE|MERGEJOIN|SHUFFLE_MERGE|SHUFFLE_HASH"
    r"|SHUFFLE_REPLICATE_NL|COALESCE|REPARTITION|REPARTITION_BY_RANGE|REBALANCE)"
    r"(?:\s*\(\s*\w*(?:\s*,\s*\w+)*\s*\))?[\s,]*)+\*/",
    re.IGNORECASE,
)
#: Parentheses inside one another; people write ten, and both parsers recurse.
_DEEPEST = 100


_TEMPLATE = (
    "templates are not filled in here: give the SQL that dbt or another program makes of them"
)


def tokens(text: Text) -> list[Token]:
    """The words of a text.

    Raises:
        UserError: it cannot be read, or not in one way only.
    """
    try:
        listed: list[Token] = sqlglot.tokenize(text.sql, read="spark")
    except TokenError:
        raise open_quote(text) from None
    _check_depth(text, listed)
    ours: set[tuple[str, int]] = set()
    covered = bytearray(len(text.sql))
    for lexeme in _LEXEME.finditer(text.sql):
        kind = lexeme.lastgroup or ""
        _check_lexeme(text, kind, lexeme.start(), lexeme.group())
        if kind == "quoted":
            ours.add(("quoted", lexeme.end() - 1))
        if kind not in ("space", "comment", "hint"):
            covered[lexeme.start() : lexeme.end()] = b"\1" * (lexeme.end() - lexeme.start())
        elif kind == "hint":
            covered[lexeme.start() : lexeme.end()] = b"\2" * (lexeme.end() - lexeme.start())
    theirs: set[tuple[str, int]] = set()
    for token in listed:
        own = covered[token.start : token.end + 1]
        if 0 in own and token.token_type not in _QUOTED and not _is_phrase(token):
            raise _two_ways(text, token.start)
        if token.token_type in _QUOTED and 2 not in own:
            theirs.add(("quoted", token.end))
        covered[token.start : token.end + 1] = b"\3" * len(own)
    if ours != theirs:
        raise _two_ways(text, min(end for _, end in ours ^ theirs))
    if (left := covered.find(b"\1")) >= 0:
        raise _two_ways(text, left)
    return listed


def word_of(token: Token) -> str:
    """The token as a word of SQL, in upper case; empty for strings and quoted names."""
    return "" if token.token_type in _DATA else " ".join(token.text.upper().split())


def open_quote(text: Text) -> UserError:
    """The error for a text that sqlglot cannot cut into words."""
    start = max(text.sql.rfind(quote) for quote in "'\"`")
    return text.error(
        "syntax error: text that cannot be read; is a quote open?", (max(start, 0), start + 1)
    )


def _is_phrase(token: Token) -> bool:
    """Whether a token is made of several words, such as GROUP BY, with space between them."""
    return " " in token.text or "\n" in token.text or "\t" in token.text


def _check_lexeme(text: Text, kind: str, start: int, lexeme: str) -> None:
    if kind == "hint" and not _HINTS.fullmatch(lexeme):
        raise text.error(
            "a hint that is not known",
            (start, start + len(lexeme)),
            allowed="BROADCAST(t), MERGE(t), SHUFFLE_HASH(t), REPARTITION(n) and such",
        )
    if kind == "comment" and ("/*" in lexeme[2:] or lexeme.endswith("\\")):
        raise text.error(
            "a comment that has no end of its own: a comment in it, or a \\ at the end of its line",
            (start, start + len(lexeme.splitlines()[0])),
        )
    odd = kind == "other" or (
        kind == "word" and not all(c.isalpha() or c.isdigit() or c == "_" for c in lexeme)
    )
    if odd:
        raise text.error(
            f"syntax error: {lexeme!r} means nothing in a view",
            (start, start + len(lexeme)),
            hint=_TEMPLATE
            if text.sql.startswith(("{{", "{%", "{#"), start)
            else "names with such characters stand in backticks: `a b`; texts in quotes: 'a b'",
        )


def _check_depth(text: Text, listed: Sequence[Token]) -> None:
    depth = 0
    for token in listed:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth > _DEEPEST:
            raise text.error(
                f"more than {_DEEPEST} parentheses stand inside one another",
                (token.start, token.end + 1),
                hint="cut the query into several views, or into WITH … AS (…)",
            )


def _two_ways(text: Text, start: int) -> UserError:
    return text.error(
        "syntax error: text that can be read in two ways",
        (start, start + 1),
        hint="write strings as 'it\\'s', names as `a b`, and comments as -- or /* */",
    )
