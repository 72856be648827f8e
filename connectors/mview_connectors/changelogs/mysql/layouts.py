"""The columns of a table at a place in the binary log: what statements make of them.

Rows in the log have no names, so they are read by the place of their columns. Who reads late must
know the columns as they were then, and not as the server has them now: a column may have been
dropped and added again, or an ENUM reordered and put back. Each such statement stands in the log,
between the rows, so the columns are followed by the statements. What one does to rows, or to the
values of a column that is read, is in no log, and what is not understood here, nobody knows. Both
are `AlteredError`: the table is to be loaded anew. So is one that loses the index of its key.

Source: MariaDB's knowledge base, "ALTER TABLE"; MySQL's manual, the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mview_connectors.formats.mysql_values import mysql_type


class Facts(NamedTuple):
    """A column; the type of one that was added since the table was loaded is empty: it is not read.

    Attributes:
        name: its name.
        type: as information_schema writes it.
        charset: the character set of its texts.
        nullable: whether it may be NULL. A store of before does not say: then it may.
        extra: EXTRA of information_schema, `auto_increment` or `STORED GENERATED`. None: a store of
            before does not say.
    """

    name: str
    type: str
    charset: str | None
    nullable: bool = True
    extra: str | None = None

    @property
    def may_be_computed(self) -> bool:
        """Whether its values may be made of those of other columns."""
        return self.extra is None or _COMPUTED.search(self.extra) is not None

    @property
    def counts(self) -> bool:
        """Whether the server numbers it by itself."""
        return self.extra is not None and "auto_increment" in self.extra.lower()


_COMPUTED = re.compile("virtual|stored|persistent", re.IGNORECASE)


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

#: First words of what changes neither a column nor a row.
_HARMLESS = frozenset((
    "ENGINE", "AUTO_INCREMENT", "COMMENT", "FORCE", "ALGORITHM", "LOCK", "ORDER", "ENABLE",
    "DISABLE", "ROW_FORMAT", "KEY_BLOCK_SIZE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "CHECKSUM", "DELAY_KEY_WRITE", "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH",
    "PACK_KEYS", "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "DATA", "INDEX", "TABLESPACE",
    "TRANSACTIONAL", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "ENCRYPTED",
    "ENCRYPTION", "ENCRYPTION_KEY_ID", "COMPRESSION", "PARTITION", "REMOVE", "REORGANIZE",
    "COALESCE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "NOWAIT", "WAIT",
))  # fmt: skip

#: Engines that keep every row (BLACKHOLE keeps none).
_ENGINES = ("INNODB", "MYISAM", "ARIA", "ROCKSDB", "TOKUDB", "MEMORY", "HEAP")

#: The name of the index of a primary key.
PRIMARY = "PRIMARY"

#: Whether a column is read.
Used = Callable[[str], bool]


def altered_table(sql: str) -> tuple[str | None, str] | None:
    """The table that a statement alters, and its database; None: it is none that is known here.

    >>> altered_table("alter table if exists `a`.b drop c")
    ('a', 'b')
    >>> altered_table("drop index i on b")
    (None, 'b')
    """
    tokens = tokens_of(sql)
    if (at := _head(tokens)) is None:
        return None
    if len(tokens) > at + 2 and tokens[at + 1].word == ".":
        return tokens[at].name, tokens[at + 2].name
    return None, tokens[at].name


def after(sql: str, layout: Layout, is_used: Used, key: str | None = None) -> Layout:
    """The columns of a table after a statement that alters it.

    Args:
        sql: the statement.
        layout: the columns before it.
        is_used: whether a column is read; names are as in the layout.
        key: the index that tells the table's rows apart; None: there is none.

    Raises:
        AlteredError: rows, or the values of a column that is read, are others after it, or nobody
            knows; or its key is another one.
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
    changed = _Changed(layout, is_used, key)
    if tokens[0].word != "ALTER":
        changed.take([Token("word", "DROP"), Token("word", "INDEX"), _index_of(tokens)])
        return layout
    if any(token.word == "IGNORE" for token in tokens[:at]):
        raise AlteredError("was altered by IGNORE, which takes rows and changes values as it likes")
    at += 3 if len(tokens) > at + 2 and tokens[at + 1].word == "." else 1
    while at < len(tokens) and tokens[at].word in ("WAIT", "NOWAIT"):
        at += 2 if tokens[at].word == "WAIT" else 1
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
    """Where the table's name stands in a statement that alters it; None: it is another one."""
    words = [token.word for token in tokens]
    at = 1
    if _drops_index(words):
        # A word of the language is none: names like it stand in quotes.
        at = words.index("ON") + 1 if "ON" in words else len(words)
        return at if at < len(tokens) else None
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


def _drops_index(words: Sequence[str]) -> bool:
    """Whether a statement drops an index, or makes another one of its name."""
    if words[:3] == ["CREATE", "OR", "REPLACE"]:
        return "INDEX" in words[3:5]
    return words[:1] == ["DROP"] and "INDEX" in words[1:3]


def _index_of(tokens: Sequence[Token]) -> Token:
    """The name of the index that a statement drops, or makes anew."""
    at = next(n for n, token in enumerate(tokens) if token.word == "INDEX") + 1
    while tokens[at].word in ("IF", "NOT", "EXISTS"):
        at += 1
    return tokens[at]


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

    def __init__(self, layout: Layout, is_used: Used, key: str | None) -> None:
        self.columns, self._is_used = list(layout), is_used
        self._key = "" if key is None else key.casefold()

    def take(self, clause: list[Token]) -> None:
        """Take what stands between two commas."""
        word, rest = clause[0].word, clause[1:]
        if word in ("ADD", "CHANGE", "MODIFY"):
            _refuse_cascade(clause)
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
        elif word == "CONVERT" and [token.word for token in rest[:1]] == ["TO"]:
            self._convert()
        elif word not in _HARMLESS or not _keeps_rows(clause):
            raise self._unknown(clause)

    def _add(self, rest: list[Token]) -> None:
        if rest and rest[0].word in _NO_COLUMN:
            self._add_index(rest)
            return
        is_optional, rest = _optional(_without(rest, "COLUMN"), "IF", "NOT", "EXISTS")
        if rest and rest[0].word == "(":
            for part in _parts(rest[1 : _closing(rest)]):
                if part[0].word in _NO_COLUMN:
                    self._add_index(part)
                else:
                    self._insert(part[0].name, part[1:], is_optional=is_optional)
            return
        if len(rest) < 2 or rest[0].word in ("SYSTEM", "PERIOD"):
            raise self._unknown([Token("word", "ADD"), *rest])
        self._insert(rest[0].name, rest[1:], is_optional=is_optional)

    def _add_index(self, rest: list[Token]) -> None:
        """An index, a constraint or a partition; columns of a primary key become NOT NULL."""
        words = [token.word for token in rest]
        if PRIMARY not in words or "(" not in words:
            return
        begin = words.index("(")
        for part in _parts(rest[begin + 1 : begin + _closing(rest[begin:])]):
            if (at := self._place(part[0].name)) is not None:
                self._refuse_null(self.columns[at])

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
            self._drop_index(rest)
            return
        is_optional, rest = _optional(_without(rest, "COLUMN"), "IF", "EXISTS")
        if not rest or rest[0].word in ("SYSTEM", "PERIOD"):
            raise self._unknown([Token("word", "DROP"), *rest])
        if (at := self._known(rest[0].name, is_optional=is_optional)) is not None:
            self._refuse_used(self.columns[at].name, "no more")
            del self.columns[at]

    def _drop_index(self, rest: list[Token]) -> None:
        """An index or a constraint; a partition takes its rows with it."""
        word, (_, rest) = rest[0].word, _optional(rest[1:], "IF", "EXISTS")
        if word == "PARTITION":
            raise self._unknown([Token("word", "DROP"), Token("word", word), *rest])
        if word == PRIMARY:
            self._refuse_key(PRIMARY)
        elif word in ("INDEX", "KEY", "CONSTRAINT") and rest:
            self._refuse_key(rest[0].name)

    def _rename(self, rest: list[Token]) -> None:
        if not rest or rest[0].word in ("INDEX", "KEY"):
            if len(rest) > 1:
                self._refuse_key(rest[1].name)
            return
        if rest[0].word != "COLUMN":
            return  # of the table: it moves its rows, which is told as such
        is_optional, rest = _optional(rest[1:], "IF", "EXISTS")
        if len(rest) != 3 or rest[1].word != "TO":
            raise self._unknown([Token("word", "RENAME"), *rest])
        if (at := self._known(rest[0].name, is_optional=is_optional)) is not None:
            self._refuse_used(self.columns[at].name, f"renamed to {rest[2].name!r}")
            self.columns[at] = self.columns[at]._replace(name=rest[2].name)

    def _convert(self) -> None:
        for column in self.columns:
            if column.charset is not None:
                self._refuse_used(column.name, "in another character set")
        self._refuse_computed()

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
            column = self._defined(column, definition)
        else:
            self._refuse_computed()
            column = Facts(new, "", None)
        self._put(at, column, definition)

    def _defined(self, column: Facts, definition: list[Token]) -> Facts:
        """A column that is read by its new definition: no value may be another by it."""
        type_text = _type_after(column, definition)
        words = _outside(definition)
        if "AS" in words or "GENERATED" in words:
            raise AlteredError(f"has column {column.name!r} computed, maybe otherwise than before")
        if "AUTO_INCREMENT" in words and not column.counts:
            # Where it is 0, the server gives it a number.
            raise AlteredError(f"has column {column.name!r} numbered by AUTO_INCREMENT")
        # An old setting has a TIMESTAMP be NOT NULL where nothing is said of NULL.
        is_moment = words[0] == "TIMESTAMP" and "NULL" not in words
        is_key = "KEY" in words and words[words.index("KEY") - 1] != "UNIQUE"
        nullable = not (is_moment or "NOT" in words or is_key)
        if not nullable:
            self._refuse_null(column)
        extra = "auto_increment" if "AUTO_INCREMENT" in words else ""
        return Facts(column.name, type_text, column.charset, nullable, extra)

    def _refuse_null(self, column: Facts) -> None:
        """Raise where NULL would have become something else."""
        if column.nullable and self._is_used(column.name):
            raise AlteredError(f"has column {column.name!r} NOT NULL, which could be NULL before")

    def _refuse_computed(self) -> None:
        """Raise where values that are read may be made of those of a column that changes."""
        for column in self.columns:
            if column.type and self._is_used(column.name) and column.may_be_computed:
                raise AlteredError(
                    f"has a column with other values, and {column.name!r} may be made of them"
                )

    def _refuse_key(self, index: str) -> None:
        if index.casefold() == self._key:
            raise AlteredError(f"has no longer the key ({index}) that told its rows apart")

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


def _keeps_rows(options: Sequence[Token]) -> bool:
    """Whether options of a table name no engine that loses rows; they may stand without commas."""
    for at, token in enumerate(options):
        if token.word == "ENGINE":
            name = _without(list(options[at + 1 :]), "=")[:1]
            if not name or name[0].text.strip("'\"`").upper() not in _ENGINES:
                return False
    return True


def _refuse_cascade(clause: Sequence[Token]) -> None:
    """Raise where a foreign key changes rows by itself: the server writes no log of that."""
    words = [token.word for token in clause]
    if "REFERENCES" not in words:
        return
    for at, word in enumerate(words[:-2]):
        if word == "ON" and words[at + 2] in ("CASCADE", "SET"):
            raise AlteredError("has a foreign key with CASCADE or SET NULL, which is not logged")


def _outside(tokens: Sequence[Token]) -> list[str]:
    """The words that stand outside of parentheses."""
    words: list[str] = []
    depth = 0
    for token in tokens:
        depth -= token.word == ")"
        if not depth:
            words.append(token.word)
        depth += token.word == "("
    return words


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
