"""The columns of a table at a place in the binary log: what statements make of them.

Rows in the log have no names, so they are read by the place of their columns. Who reads late must
know the columns as they were then, and not as the server has them now: a column may have been
dropped and added again, or an ENUM reordered and put back. Each such statement stands in the log,
between the rows, so the columns are followed by the statements. What one does to the values of a
column that is read is in no log, and what is not understood here, nobody knows. Both are
`AlteredError`: the table is to be loaded anew.

Source: MariaDB's knowledge base, "ALTER TABLE"; MySQL's manual, the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mview_connectors.formats.mysql_values import mysql_type


class Facts(NamedTuple):
    """A column: its name, its type as information_schema writes it, the character set of its texts.

    The type of one that was added since the table was loaded is empty: it is not read.
    """

    name: str
    type: str
    charset: str | None


#: The columns of a table, in order.
Layout = tuple[Facts, ...]


class AlteredError(Exception):
    """A statement changes what is read, or does something that is not understood; its text is why.

    It goes on after the table's name: "has column 'x' no more".
    """


#: Texts and names first: what looks like a comment in one is none. Of comments that servers run
#: (`/*!40000 … */`) the marks are left out, and what they have stays.
_TOKEN = re.compile(
    r"(?P<text>'(?:[^'\\]|''|\\.)*')|(?P<tick>`(?:[^`]|``)+`)|(?P<double>\"(?:[^\"\\]|\"\"|\\.)*\")"
    r"|(?P<none>\s+|/\*(?!M?!).*?\*/|--(?=\s)[^\n]*|#[^\n]*|/\*M?!\d*|\*/)"
    r"|(?P<word>[\w$]+)|(?P<sign>.)",
    re.DOTALL,
)


class Token(NamedTuple):
    """A word, a name in quotes, a text, or a sign."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        """A word in capitals, or a sign; empty for what stands in quotes."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def name(self) -> str:
        """The name that it is.

        Raises:
            AlteredError: it can be none.
        """
        if self.kind == "tick":
            return self.text[1:-1].replace("``", "`")
        if self.kind == "double":
            return self.text[1:-1].replace('""', '"')
        if self.kind == "word":
            return self.text
        raise AlteredError("was altered by a statement that is not understood")


#: What may be added and dropped beside columns, by its first word.
_NO_COLUMN = (
    "INDEX", "KEY", "UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK",
    "PARTITION",
)  # fmt: skip

#: First words of what changes no column.
_HARMLESS = frozenset((
    "ENGINE", "AUTO_INCREMENT", "COMMENT", "FORCE", "ALGORITHM", "LOCK", "ORDER", "ENABLE",
    "DISABLE", "ROW_FORMAT", "KEY_BLOCK_SIZE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "CHECKSUM", "DELAY_KEY_WRITE", "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH",
    "PACK_KEYS", "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "DATA", "INDEX", "TABLESPACE",
    "TRANSACTIONAL", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "ENCRYPTED",
    "ENCRYPTION", "ENCRYPTION_KEY_ID", "COMPRESSION", "WITH", "WITHOUT", "PARTITION", "REMOVE",
    "REORGANIZE", "COALESCE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR", "TRUNCATE",
    "EXCHANGE", "DISCARD", "IMPORT", "NOWAIT", "WAIT",
))  # fmt: skip

#: Whether a column is read.
Used = Callable[[str], bool]


def altered_table(sql: str) -> tuple[str | None, str] | None:
    """The table that an ALTER TABLE is of, and its database; None: it is another statement.

    >>> altered_table("alter table if exists `a`.b drop c")
    ('a', 'b')
    """
    tokens = tokens_of(sql)
    at = _head(tokens)
    if at is None:
        return None
    if len(tokens) > at + 2 and tokens[at + 1].word == ".":
        return tokens[at].name, tokens[at + 2].name
    return None, tokens[at].name


def after(sql: str, layout: Layout, is_used: Used) -> Layout:
    """The columns of a table after an ALTER TABLE of it.

    Args:
        sql: the statement.
        layout: the columns before it.
        is_used: whether a column is read; names are as in the layout.

    Raises:
        AlteredError: a column that is read is another one after it, or nobody knows.
    """
    tokens = tokens_of(sql)
    at = _head(tokens)
    if at is None:
        return layout
    if tokens[-1].word == ";":
        del tokens[-1]
    # By which rules a backslash is read, the session knows: what seems to be a text may be none.
    if any("\\" in token.text or token.text in "'\"`" for token in tokens):
        raise AlteredError("was altered by a statement that is not understood")
    at += 3 if len(tokens) > at + 2 and tokens[at + 1].word == "." else 1
    while at < len(tokens) and tokens[at].word in ("WAIT", "NOWAIT"):
        at += 2 if tokens[at].word == "WAIT" else 1
    changed = _Changed(layout, is_used)
    for clause in _parts(tokens[at:]):
        changed.take(clause)
    return tuple(changed.columns)


def tokens_of(sql: str) -> list[Token]:
    """The words, names, texts and signs of a statement, without its comments."""
    return [
        Token(str(match.lastgroup), match[0])
        for match in _TOKEN.finditer(sql)
        if match.lastgroup != "none"
    ]


def _head(tokens: Sequence[Token]) -> int | None:
    """Where the table's name stands in an ALTER TABLE; None: it is another statement."""
    words = [token.word for token in tokens[:6]]
    at = 1
    if words[:1] != ["ALTER"]:
        return None
    while words[at : at + 1] and words[at] in ("ONLINE", "IGNORE"):
        at += 1
    if words[at : at + 1] != ["TABLE"]:
        return None
    at += 1
    if words[at : at + 2] == ["IF", "EXISTS"]:
        at += 2
    return at if at < len(tokens) else None


def _parts(tokens: Sequence[Token]) -> list[list[Token]]:
    """What stands between commas, and not in parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if token.word == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    if depth:
        raise AlteredError("was altered by a statement that is not understood")
    return [part for part in parts if part]


class _Changed:
    """The columns while the parts of a statement are taken, one after the other."""

    def __init__(self, layout: Layout, is_used: Used) -> None:
        self.columns, self._is_used = list(layout), is_used

    def take(self, clause: list[Token]) -> None:
        """Take what stands between two commas."""
        word, rest = clause[0].word, clause[1:]
        if word == "ADD":
            self._add(rest)
        elif word == "DROP":
            self._drop(rest)
        elif word in ("CHANGE", "MODIFY"):
            is_optional, rest = _optional(_without(rest, "COLUMN"), "IF", "EXISTS")
            if not rest:
                raise self._unknown(clause)
            old, new = rest.pop(0).name, None
            if word == "CHANGE" and rest:
                new = rest.pop(0).name
            self._define(old, new, rest, is_optional=is_optional)
        elif word == "RENAME":
            self._rename(rest)
        elif word == "ALTER":
            return  # its default, or whether an index is used
        elif word == "CONVERT":
            self._convert(rest)
        elif word not in _HARMLESS:
            raise self._unknown(clause)

    def _add(self, rest: list[Token]) -> None:
        if rest and rest[0].word in _NO_COLUMN:
            return
        is_optional, rest = _optional(_without(rest, "COLUMN"), "IF", "NOT", "EXISTS")
        if rest and rest[0].word == "(":
            for part in _parts(rest[1 : _closing(rest)]):
                if part[0].word not in _NO_COLUMN:
                    self._insert(part[0].name, part[1:], is_optional=is_optional)
            return
        if len(rest) < 2 or rest[0].word in ("SYSTEM", "PERIOD"):
            raise self._unknown([Token("word", "ADD"), *rest])
        self._insert(rest[0].name, rest[1:], is_optional=is_optional)

    def _insert(self, name: str, rest: list[Token], *, is_optional: bool) -> None:
        if self._place(name) is not None:
            if is_optional:
                return
            raise AlteredError(f"gets column {name!r} once more than is known")
        self._put(len(self.columns), Facts(name, "", None), rest)

    def _put(self, at: int, column: Facts, definition: list[Token]) -> None:
        """Put a column where its definition says, else where it was, or at the end."""
        words = [token.word for token in definition]
        if words[-1:] == ["FIRST"]:
            at = 0
        elif words[-2:-1] == ["AFTER"]:
            before = self._place(definition[-1].name)
            if before is None:
                raise AlteredError(f"has column {column.name!r} after one that is not known")
            at = before + 1
        self.columns.insert(at, column)

    def _drop(self, rest: list[Token]) -> None:
        if rest and rest[0].word in _NO_COLUMN:
            return
        is_optional, rest = _optional(_without(rest, "COLUMN"), "IF", "EXISTS")
        if not rest or rest[0].word in ("SYSTEM", "PERIOD"):
            raise self._unknown([Token("word", "DROP"), *rest])
        if (at := self._known(rest[0].name, is_optional=is_optional)) is not None:
            self._refuse_used(self.columns[at].name, "no more")
            del self.columns[at]

    def _rename(self, rest: list[Token]) -> None:
        if not rest or rest[0].word in ("INDEX", "KEY"):
            return
        if rest[0].word != "COLUMN":
            return  # of the table: it moves its rows, which is told as such
        is_optional, rest = _optional(rest[1:], "IF", "EXISTS")
        if len(rest) != 3 or rest[1].word != "TO":
            raise self._unknown([Token("word", "RENAME"), *rest])
        if (at := self._known(rest[0].name, is_optional=is_optional)) is not None:
            self._refuse_used(self.columns[at].name, f"renamed to {rest[2].name!r}")
            self.columns[at] = self.columns[at]._replace(name=rest[2].name)

    def _convert(self, rest: list[Token]) -> None:
        for column in self.columns:
            if column.charset is not None:
                self._refuse_used(column.name, "in another character set")

    def _define(
        self, old: str, new: str | None, definition: list[Token], *, is_optional: bool
    ) -> None:
        """CHANGE and MODIFY: a column gets a definition, and maybe a name and a place."""
        at = self._known(old, is_optional=is_optional)
        if at is None:
            return
        column = self.columns.pop(at)
        new = column.name if new is None else new
        if self._is_used(column.name):
            if new != column.name:
                raise AlteredError(f"has column {column.name!r} renamed to {new!r}")
            column = column._replace(type=_type_after(column, definition))
        else:
            column = Facts(new, "", None)
        self._put(at, column, definition)

    # --- names -----------------------------------------------------------------------------------

    def _place(self, name: str) -> int | None:
        names = [column.name.casefold() for column in self.columns]
        return names.index(name.casefold()) if name.casefold() in names else None

    def _known(self, name: str, *, is_optional: bool) -> int | None:
        at = self._place(name)
        if at is None and not is_optional:
            raise AlteredError(f"loses or changes column {name!r}, which is not known")
        return at

    def _refuse_used(self, name: str, what: str) -> None:
        if self._is_used(name):
            raise AlteredError(f"has column {name!r} {what}")

    @staticmethod
    def _unknown(clause: Sequence[Token]) -> AlteredError:
        text = " ".join(token.text for token in clause[:8])
        return AlteredError(f"was altered in a way that is not understood ({text})")


def _type_after(column: Facts, definition: Sequence[Token]) -> str:
    """The type of a column that is read, by its new definition: no value may be another by it.

    Raises:
        AlteredError: it may, or it is a text: its character set may be another one.
    """
    type_text = _type_text(definition)
    then, now = mysql_type(column.type), mysql_type(type_text)
    if then.name in ("enum", "set"):
        # Labels that stay have their rows, whatever their numbers are.
        words = {token.word for token in definition}
        is_known = now.name == then.name and set(then.labels) <= set(now.labels)
        if is_known and not words & {"CHARACTER", "CHARSET", "COLLATE"}:
            return type_text
    elif column.charset is None and _normal(column.type) == _normal(type_text):
        return column.type
    raise AlteredError(f"has column {column.name!r} with another type")


def _type_text(definition: Sequence[Token]) -> str:
    """The type that a definition begins with, as information_schema writes it."""
    if not definition or definition[0].kind != "word":
        return ""
    text, rest = definition[0].text.lower(), list(definition[1:])
    if rest and rest[0].word == "(":
        end = _closing(rest)
        inner = "".join(
            f"'{token.text[1:-1]}'" if token.kind in ("text", "double") else token.text
            for token in rest[1:end]
        )
        text += f"({inner})"
        rest = rest[end + 1 :]
    words = [token.word for token in rest]
    signs = [word.lower() for word in words if word in ("UNSIGNED", "ZEROFILL")]
    return " ".join([text, *dict.fromkeys(signs)])


_SAME = {"integer": "int", "numeric": "decimal", "dec": "decimal", "bool": "tinyint(1)",
         "boolean": "tinyint(1)", "double precision": "double", "real": "double"}  # fmt: skip
_WHOLE = re.compile(r"\b(tinyint|smallint|mediumint|int|bigint|year)\s*\(\d+\)")


def _normal(type_text: str) -> str:
    """A type as two ways to write it have in common; what is shown of numbers is left out."""
    text = type_text.lower().partition("/*")[0].strip()
    head = re.match(r"[a-z]+", text)
    if head is not None:
        text = _SAME.get(head[0], head[0]) + text[head.end() :]
    text = _WHOLE.sub(r"\1", text).replace(" zerofill", " unsigned" * ("unsigned" not in text))
    if text == "decimal":
        text = "decimal(10,0)"
    elif match := re.fullmatch(r"decimal\((\d+)\)(.*)", text):
        text = f"decimal({match[1]},0){match[2]}"
    return text.replace(" ", "")


def _closing(tokens: Sequence[Token]) -> int:
    """Where the parenthesis ends that is the first token."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.word, 0)
        if not depth:
            return at
    raise AlteredError("was altered by a statement that is not understood")


def _without(tokens: list[Token], word: str) -> list[Token]:
    return tokens[1:] if tokens and tokens[0].word == word else tokens


def _optional(tokens: list[Token], *words: str) -> tuple[bool, list[Token]]:
    """Whether tokens begin with some words, and what stands behind them."""
    if [token.word for token in tokens[: len(words)]] == [*words]:
        return True, list(tokens[len(words) :])
    return False, list(tokens)
