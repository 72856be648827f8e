"""The first n rows of a query: a reserve of the next ones is kept, so that few epochs read all.

The state is a prefix of the ranking. A change that ranks after its last row is not looked at; what
ranks before is taken in. While at least n rows are left, the first n of the state are the first n
of all rows; when fewer are left, all rows are ranked again.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from mview.plan.definition import ViewDefinition
from mview.relation import RelationId

#: The relation that is ranked, and the number of each of its rows.
RANKED, NUMBER = "__ranked", "__number"


@dataclass(frozen=True)
class Top:
    """ORDER BY … LIMIT over a part.

    Attributes:
        part: the part that holds all rows.
        order: ORDER BY over the part's columns; the part's key comes last, so that it is total.
        limit: rows of the view.
        offset: rows before them that are left out.
    """

    part: RelationId
    order: str
    limit: int
    offset: int = 0

    @property
    def least(self) -> int:
        """Rows the state needs."""
        return self.offset + self.limit

    @property
    def kept(self) -> int:
        """Rows the state holds when it is new."""
        return 2 * self.least + 100

    @property
    def ranking(self) -> str:
        """The query that ranks rows."""
        return f"SELECT {NUMBER} FROM {RANKED} ORDER BY {self.order}"

    def shown(self, state: pa.Table) -> pa.Table:
        """The view's rows of a state."""
        return state.slice(self.offset, self.limit)


def part_definition(main: ViewDefinition, top: Top) -> ViewDefinition:
    """The state table as a query over the part."""
    tree = main.tree.copy()
    tree.set("expressions", [exp.Star()])
    tree.set("offset", None)
    return main.with_tree(tree.limit(top.kept, copy=False), key=())
