"""A SELECT cut into pieces of its text: what is made of a user's query is made of these."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from mview.plan import ir

#: Words after which the rows of the outermost query are only grouped, chosen, or ordered.
_TAIL = ("HAVING", "QUALIFY", "ORDER BY", "SORT BY", "WINDOW", "LIMIT", "OFFSET")
#: Words after which another branch of a set operation stands, or all of it is put in order.
_AFTER_A_BRANCH = ("UNION", "EXCEPT", "MINUS", "INTERSECT", *_TAIL, "CLUSTER BY", "DISTRIBUTE BY")
#: Tokens whose text is data or a quoted name, never a word of SQL.
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER, TokenType.RAW_STRING)


def word_of(token: Token) -> str:
    """The token as a word of SQL, in upper case; empty for strings and quoted names."""
    return "" if token.token_type in _QUOTED else " ".join(token.text.upper().split())


class Pieces:
    """A SELECT cut into pieces of its text, at the level of its outermost query."""

    def __init__(self, sql: str, tree: exp.Select) -> None:
        self.sql = sql
        self.aliases = {one.alias.lower() for one in tree.expressions if one.alias}
        self.tokens = sqlglot.tokenize(sql, read="spark")
        self.depths = list(self._depths())
        select = self.at("SELECT", 0)
        # The first branch of a set operation may stand in parentheses.
        words = [word_of(token) for token in self.tokens]
        self.select = words.index("SELECT") if select is None else select
        select = self.select
        self.prefix = sql[: self.tokens[select].start]
        self.from_ = self.at("FROM", self.select)
        self.group = self.at("GROUP BY", self.select)
        ends = [self.at(word, self.select) for word in _TAIL]
        after = [at for at in (self.group, *ends) if at is not None]
        self.body_end = self.tokens[min(after)].start if after else len(sql)
        self.group_end = min((at for at in ends if at is not None), default=len(self.tokens))
        self.body = "" if self.from_ is None else sql[self.tokens[self.from_].start : self.body_end]

    @property
    def having_end(self) -> int:
        """The character after GROUP BY and HAVING."""
        ends = [at for word in _TAIL[1:] if (at := self.at(word, self.select)) is not None]
        return self.tokens[min(ends)].start if ends else len(self.sql)

    @classmethod
    def of(cls, sql: str, tree: exp.Query) -> Pieces:
        """The pieces of a query, also of a set operation: then those of its first SELECT."""
        first = tree if isinstance(tree, exp.Select) else next(tree.find_all(exp.Select))
        return cls(sql, first)

    @property
    def from_start(self) -> int:
        """The character at which FROM begins; there must be one."""
        assert self.from_ is not None
        return self.tokens[self.from_].start

    def _depths(self) -> list[int]:
        depth, found = 0, []
        for token in self.tokens:
            depth -= word_of(token) == ")"
            found.append(depth)
            depth += word_of(token) == "("
        return found

    def at(self, word: str, start: int) -> int | None:
        """The index of the first such word of the outermost level, from a token on."""
        for index in range(start, len(self.tokens)):
            found = self.depths[index] == 0 and word_of(self.tokens[index]) == word
            # window(…) is a function, WINDOW w AS … is the clause.
            if found and (word != "WINDOW" or word_of(self.tokens[index + 1]) != "("):
                return index
        return None

    def subquery_around(self, start: int, end: int) -> tuple[int, int]:
        """The characters of the smallest `(SELECT …)` around characters [start, end)."""
        stack: list[int] = []
        found: list[tuple[int, int]] = []
        for index, token in enumerate(self.tokens):
            if word_of(token) == "(":
                stack.append(index)
            elif word_of(token) == ")" and stack:
                first = stack.pop()
                if word_of(self.tokens[first + 1]) in ("SELECT", "WITH", "("):
                    found.append((self.tokens[first].start, token.end + 1))
        around = [one for one in found if one[0] < start and end < one[1]]
        return min(around, key=lambda one: one[1] - one[0])

    def select_around(self, call: exp.Expr) -> tuple[int, int]:
        """The characters of the SELECT in whose list a call stands."""
        index = self.index_of(call)
        assert index is not None
        open_ = 0
        while open_ > 0 or word_of(self.tokens[index]) != "SELECT":
            # A query in parentheses before the call is another.
            index -= 1
            open_ += {")": 1, "(": -1}.get(word_of(self.tokens[index]), 0)
            open_ = max(open_, 0)
        last = index
        while last + 1 < len(self.tokens):
            after = word_of(self.tokens[last + 1])
            level = self.depths[last + 1] - self.depths[index]
            if level < 0 or (level == 0 and after in _AFTER_A_BRANCH):
                break
            last += 1
        return self.tokens[index].start, self.tokens[last].end + 1

    def split(self, start: int, end: int) -> list[list[Token]]:
        """Tokens [start, end) cut at the commas of the outermost level."""
        found: list[list[Token]] = [[]]
        for index in range(start, end):
            if self.depths[index] == 0 and word_of(self.tokens[index]) == ",":
                found.append([])
            else:
                found[-1].append(self.tokens[index])
        return found

    def text(self, tokens: list[Token]) -> str:
        """The text of some tokens in a row."""
        return self.sql[tokens[0].start : tokens[-1].end + 1]

    @property
    def group_text(self) -> str:
        """What stands after GROUP BY."""
        assert self.group is not None
        return self.text(self.tokens[self.group + 1 : self.group_end])

    def group_texts(self, aggregate: ir.Aggregate, tree: exp.Select) -> list[str] | None:
        """The text of every group expression; None when they cannot be told."""
        if self.group is None:
            return [] if not aggregate.group else None
        listed = self.split(self.group + 1, self.group_end)
        if len(listed) != len(aggregate.group) or self.from_ is None:
            return None
        items = self.split(self.select + 1, self.from_)
        found = []
        for tokens, (_, bound) in zip(listed, aggregate.group, strict=True):
            item = self._select_item(tokens, bound, tree)
            found.append(
                self.text(tokens) if item is None else self._without_alias(items[item], tree, item)
            )
        return found

    def _select_item(self, tokens: list[Token], bound: exp.Expr, tree: exp.Select) -> int | None:
        """The position in the select list that a GROUP BY item names, if it names one."""
        if len(tokens) != 1:
            return None
        word = tokens[0].text
        if word.isdigit():
            return int(word) - 1
        ref = ir.as_ref(bound)
        if ref is not None and ref.column.lower() == word.lower():
            return None
        names = [one.alias.lower() for one in tree.expressions]
        return names.index(word.lower()) if word.lower() in names else None

    def _without_alias(self, tokens: list[Token], tree: exp.Select, position: int) -> str:
        if isinstance(tree.expressions[position], exp.Alias):
            tokens = tokens[:-1]
            if tokens[-1].text.upper() == "AS":
                tokens = tokens[:-1]
        return self.text(tokens)

    def index_of(self, call: exp.Expr) -> int | None:
        """The index of the token with which a call of this text begins."""
        start = call.meta.get("start")
        return next((i for i, token in enumerate(self.tokens) if token.start == start), None)

    def condition(self, call: exp.Filter) -> str | None:
        """The condition of `f(…) FILTER (WHERE …)`, if it means the same over the same FROM."""
        index = self.index_of(call.this)
        words = [word_of(token) for token in self.tokens]
        if index is None or "FILTER" not in words[index:]:
            return None
        first = words.index("FILTER", index) + 1
        last = next(
            i
            for i in range(first + 1, len(words))
            if words[i] == ")" and self.depths[i] == self.depths[first]
        )
        if words[first : first + 2] != ["(", "WHERE"]:
            return None
        inside = self.tokens[first + 2 : last]
        columns = {ref.column.lower() for n in call.walk() if (ref := ir.as_ref(n)) is not None}
        plain = (token for token in inside if token.token_type != TokenType.STRING)
        if any(token.text.lower() in self.aliases - columns for token in plain):
            return None
        return self.text(inside)

    def argument(self, call: exp.Expr) -> str | None:
        """The text between the parentheses of a call, if it means the same over the same FROM."""
        index = self.index_of(call)
        if index is None or self.tokens[index + 1].text != "(":
            return None
        depth, last = self.depths[index + 1], index + 2
        while not (self.depths[last] == depth and self.tokens[last].text == ")"):
            last += 1
        inside = self.tokens[index + 2 : last]
        columns = {ref.column.lower() for n in call.walk() if (ref := ir.as_ref(n)) is not None}
        words = (token for token in inside if token.token_type != TokenType.STRING)
        if any(token.text.lower() in self.aliases - columns for token in words):
            return None
        return self.text(inside) if inside else None


def arguments_of(inside: str) -> list[str]:
    """The arguments of a call, of which the text between its parentheses is given."""
    pieces = Pieces(f"SELECT {inside}", exp.Select())
    listed = pieces.split(pieces.select + 1, len(pieces.tokens))
    return [pieces.text(one) for one in listed if one]


def end_of_call(tokens: list[Token], name: int, *, over: bool = True) -> int:
    """The character after a call with its FILTER, and with its OVER unless that is left out."""
    last, more = _closing(tokens, name + 1), ("FILTER", "OVER") if over else ("FILTER",)
    while last + 1 < len(tokens) and word_of(tokens[last + 1]) in more:
        # OVER may be followed by a name alone.
        last = _closing(tokens, last + 2)
    return tokens[last].end + 1


def _closing(tokens: list[Token], first: int) -> int:
    """The index of the parenthesis that closes the one at an index."""
    depth = 0
    for index in range(first, len(tokens)):
        depth += {"(": 1, ")": -1}.get(word_of(tokens[index]), 0)
        if depth == 0:
            return index
    raise ValueError("a parenthesis is open")
