"""Equal rows put in an order: one text, one result, for the build, every epoch and `verify`.

Rows that are equal in an ORDER BY come in any order, so two runs of `row_number()`, `lag(x)`,
`ORDER BY … LIMIT` or `max_by(x, y)` over the same rows may differ. Where the key of the rows does
not stand in the order already, the text that runs has it there as well, or all columns of the rows
where they have no key: what is equal in all of them may change places unseen. `max_by(x, y)` takes
the greatest of the x that tie, `min_by` the least. The result is one of those that Spark may give
for the user's text, and always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import Token

from mview.ivm.keys import equal_columns, unique_columns
from mview.plan import ir
from mview.plan.build import build
from mview.plan.clocks import CLOCKS
from mview.plan.definition import ViewDefinition
from mview.plan.ir import Unsupported
from mview.plan.orderings import Ordering, with_value
from mview.plan.pieces import word_of
from mview.plan.place import Edit, edited, span
from mview.schema import TableSchema

_OPEN, _CLOSE = ("(", "["), (")", "]")
_EXTREMES = ("MAX_BY", "MIN_BY")
_FRAMES = ("ROWS", "RANGE", "GROUPS")


def in_total_order(
    definition: ViewDefinition, schemas: Mapping[str, TableSchema]
) -> ViewDefinition:
    """The view with every order that decides something made total.

    A query that the IR cannot express keeps its orders, but for max_by and min_by.

    Args:
        definition: a view as its user wrote it.
        schemas: of the tables and views that it reads.

    Raises:
        UserError: equal rows matter in a place where the text cannot tell them apart.
    """
    try:
        orderings = build(definition, {**schemas, **CLOCKS}).orderings
    except Unsupported:
        orderings = ()
    words = _Words(definition.sql)
    edits: dict[Edit | None, None] = dict.fromkeys(_of_extremes(definition.sql, words, orderings))
    for one in orderings:
        if not _is_extreme(one) and not _is_total(one):
            edits[_edit(definition, words, one)] = None
    wanted = [edit for edit in edits if edit is not None]
    return definition.with_sql(edited(definition.sql, wanted)) if wanted else definition


def _is_total(ordering: Ordering) -> bool:
    """Whether no two rows can be equal in the order, or there is one row at most."""
    node = ordering.node
    if isinstance(node, ir.Project | ir.Distinct):
        outputs, node = ordering.by, _below(node)
        by = {_input(ordering.node, ref) for ref in outputs}
    else:
        by = set(ordering.by)
    key, same = unique_columns(node), equal_columns(node)
    if key is None:
        return isinstance(node, ir.Aggregate) and not node.group and node.sets is None
    return all(ref in by or same.get(ref, set()) & by for ref in key)


def _is_extreme(ordering: Ordering) -> bool:
    return isinstance(ordering.where, exp.ArgMax | exp.ArgMin)


def _below(node: ir.Node) -> ir.Node:
    return node.child if isinstance(node, ir.Project) else node


def _input(node: ir.Node, ref: ir.Ref | None) -> ir.Ref | None:
    """The column below a projection that one of its columns is."""
    if isinstance(node, ir.Project) and ref is not None and ref.relation == node.relation:
        return ir.as_ref(dict(node.items)[ref.column])
    return ref


# -- the text ------------------------------------------------------------------------------------


class _Words:
    """The tokens of a text, each with the number of parentheses around it."""

    def __init__(self, sql: str) -> None:
        self.tokens: list[Token] = sqlglot.tokenize(sql, read="spark")
        self.words = [word_of(token) for token in self.tokens]
        self.depths: list[int] = []
        depth = 0
        for word in self.words:
            depth -= word in _CLOSE
            self.depths.append(depth)
            depth += word in _OPEN

    def at(self, start: int | None) -> int | None:
        """The index of the token that begins at a character."""
        return next((i for i, one in enumerate(self.tokens) if one.start == start), None)

    def call_around(self, names: Sequence[str], start: int | None) -> int | None:
        """The index of the name of the innermost call, of some functions, around a character."""
        if start is None:
            return None
        before = [i for i, one in enumerate(self.tokens[:-1]) if one.start < start]
        calls = (i for i in reversed(before) if self.words[i] in names)
        around = (i for i in calls if self.words[i + 1] == "(")
        return next((i for i in around if self.tokens[self.closing(i + 1)].start >= start), None)

    def closing(self, first: int) -> int:
        """The index of the parenthesis that closes the one at an index."""
        inside = range(first + 1, len(self.words))
        return next(i for i in inside if self.depths[i] == self.depths[first])

    def around(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The indexes within each pair of parentheses around characters, the innermost first."""
        index = next(i for i, one in enumerate(self.tokens) if one.start >= first)
        for i in range(index - 1, -1, -1):
            if self.words[i] == "(" and self.tokens[end := self.closing(i)].start >= last:
                yield i + 1, end
        yield 0, len(self.words)

    def level(self, begin: int, end: int, words: Sequence[str]) -> int | None:
        """The first of some words between two indexes, in no parentheses of its own."""
        inside = (i for i in range(begin, end) if self.depths[i] == self.depths[begin])
        return next((i for i in inside if self.words[i] in words), None)

    def behind(self, index: int) -> int:
        """The character after a token."""
        return self.tokens[index].end + 1


def _of_extremes(sql: str, words: _Words, orderings: Sequence[Ordering]) -> Iterator[Edit]:
    """Edits that make `max_by(x, y)` take the greatest of the x that have the greatest y."""
    extremes = [one for one in orderings if _is_extreme(one)]
    total = {words.call_around(_EXTREMES, one.start) for one in extremes if _is_total(one)}
    total -= {words.call_around(_EXTREMES, one.start) for one in extremes if not _is_total(one)}
    for name, word in enumerate(words.words[:-1]):
        if word not in _EXTREMES or words.words[name + 1] != "(" or name in total:
            continue
        end = words.closing(name + 1)
        commas = [i for i in range(name + 2, end) if _is_comma(words, i, name + 2)]
        last = commas[1] if len(commas) > 1 else end
        # max_by(DISTINCT x, y) is max_by(x, y).
        value_at = name + 1 + (words.words[name + 2] in ("DISTINCT", "ALL"))
        value = sql[words.behind(value_at) : words.tokens[commas[0]].start]
        first, behind = words.behind(commas[0]), words.tokens[last].start
        by = sql[first:behind]
        yield first, behind, with_value(by, value)


def _is_comma(words: _Words, index: int, inside: int) -> bool:
    return words.words[index] == "," and words.depths[index] == words.depths[inside]


def _edit(definition: ViewDefinition, words: _Words, ordering: Ordering) -> Edit | None:
    """The text with more columns in an ORDER BY.

    Raises:
        UserError: it cannot be written.
    """
    more = _more(ordering)
    if more == "":
        return None
    if isinstance(ordering.where, exp.Window):
        index = words.at(ordering.start)
        found = None if index is None or not ordering.may_add else _window(definition, words, index)
    else:
        found = _query(words, ordering.where)
    if more is None or found is None:
        raise _not_total(definition, ordering)
    start, end, text = found
    return start, end, text.format(more=more) if text != _ADDED else f", {more}"


#: Stands for the columns that are added.
_ADDED = "{more}"


def _more(ordering: Ordering) -> str | None:
    """The columns that tell equal rows apart; None when the text cannot name them."""
    key = unique_columns(ordering.node)
    if key is not None and all(ref in ordering.names for ref in key):
        return ", ".join(ordering.names[ref] for ref in key if ref not in ordering.by)
    if not ordering.complete:
        return None
    return ", ".join(text for ref, text in ordering.names.items() if ref not in ordering.by)


def _window(definition: ViewDefinition, words: _Words, name: int) -> Edit | None:
    """Where the order of a window has its end; a window by a name is written out."""
    over = words.level(name, len(words.words), ["OVER"])
    if over is None:
        return None
    if words.words[over + 1] == "(":
        return _after_order(words, over + 2, words.closing(over + 1))
    alias = words.tokens[over + 1]
    for index in range(over + 2, len(words.words) - 2):
        named = words.tokens[index].text.lower() == alias.text.lower()
        if named and words.words[index + 1 : index + 3] == ["AS", "("]:
            end = words.closing(index + 2)
            place = _after_order(words, index + 3, end)
            if place is None:
                return None
            head = definition.sql[words.tokens[index + 2].start : place[0]]
            tail = definition.sql[place[0] : words.behind(end)]
            braces = [part.replace("{", "{{").replace("}", "}}") for part in (head, tail)]
            return alias.start, alias.end + 1, f"{braces[0]}, {_ADDED}{braces[1]}"
    return None


def _query(words: _Words, query: exp.Expr) -> Edit | None:
    """Where the order of a query with a LIMIT has its end."""
    for begin, end in words.around(*span(query)):
        order = words.level(begin, end, ["ORDER BY"])
        if order is not None and words.level(order, end, ["LIMIT", "OFFSET"]) is not None:
            return _after_order(words, begin, end)
    return None


def _after_order(words: _Words, begin: int, end: int) -> Edit | None:
    """The place after the list of ORDER BY between two indexes."""
    order = words.level(begin, end, ["ORDER BY"])
    if order is None:
        return None
    after = words.level(order, end, [*_FRAMES, "LIMIT", "OFFSET"]) or end
    place = words.behind(after - 1)
    return place, place, _ADDED


def _not_total(definition: ViewDefinition, ordering: Ordering) -> Exception:
    where = ordering.where
    hint = "add columns to ORDER BY that no two rows have alike"
    if isinstance(where, exp.Window) and not ordering.may_add:
        hint += ", or write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    place = span(where)
    if ordering.start is not None:
        place = (ordering.start, ordering.start + 1)
    return definition.text.error(
        "rows that are equal in ORDER BY come in any order, and it is not known what tells them "
        "apart (ORDER_DEPENDENT)",
        place,
        hint=hint,
    )
