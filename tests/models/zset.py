"""Z-sets in plain Python: rows with integer weights, the specification every delta rule is held to.

A Z-set is a finite map from rows to non-zero weights. A table is one whose weights are positive; a
change is any Z-set; applying a change is addition. Here for tests and for small data: clear, slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from mview.changelog import RowKind

Row = TypeVar("Row", bound=Hashable)
Other = TypeVar("Other", bound=Hashable)
Out = TypeVar("Out", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)


class ZSet(Generic[Row]):
    """Rows with weights; zero weights are never stored. Treat as a value: no method changes it.

    >>> ZSet({"a": 2}) + ZSet({"a": -2, "b": 1})
    ZSet({'b': 1})
    """

    __slots__ = ("_weights",)

    def __init__(self, weights: Mapping[Row, int] | None = None) -> None:
        self._weights: dict[Row, int] = {r: w for r, w in (weights or {}).items() if w}

    @classmethod
    def of(cls, rows: Iterable[Row]) -> ZSet[Row]:
        """Each row with the number of times it occurs."""
        return cls(Counter(rows))

    @classmethod
    def summed(cls, pairs: Iterable[tuple[Row, int]]) -> ZSet[Row]:
        """Rows with weights, the weights of equal rows added up."""
        weights: dict[Row, int] = {}
        for row, weight in pairs:
            weights[row] = weights.get(row, 0) + weight
        return cls(weights)

    @classmethod
    def from_changelog(cls, changes: Iterable[tuple[RowKind, Row]]) -> ZSet[Row]:
        """The net effect of changelog rows."""
        return cls.summed((row, kind.weight) for kind, row in changes)

    # --- reading ---------------------------------------------------------------------------------

    def weight(self, row: Row) -> int:
        """The row's weight; 0 when it is absent."""
        return self._weights.get(row, 0)

    def items(self) -> Iterable[tuple[Row, int]]:
        """Rows with their weights."""
        return self._weights.items()

    def rows(self) -> list[Row]:
        """Every row as often as its weight says.

        Raises:
            ValueError: a weight is negative: a change is not a table.
        """
        if negative := [row for row, weight in self.items() if weight < 0]:
            raise ValueError(f"row with a negative weight: {negative[0]!r}")
        return [row for row, weight in self.items() for _ in range(weight)]

    @property
    def is_table(self) -> bool:
        """True when no weight is negative."""
        return all(weight > 0 for weight in self._weights.values())

    @property
    def is_set(self) -> bool:
        """True when every weight is one."""
        return all(weight == 1 for weight in self._weights.values())

    def __iter__(self) -> Iterator[Row]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, row: object) -> bool:
        return row in self._weights

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZSet) and self._weights == other._weights

    def __hash__(self) -> int:
        return hash(frozenset(self._weights.items()))

    def __repr__(self) -> str:
        return f"ZSet({self._weights!r})"

    # --- the group: every change can be added, taken back, scaled --------------------------------

    def __add__(self, other: ZSet[Row]) -> ZSet[Row]:
        return ZSet.summed([*self.items(), *other.items()])

    def __neg__(self) -> ZSet[Row]:
        return ZSet({row: -weight for row, weight in self.items()})

    def __sub__(self, other: ZSet[Row]) -> ZSet[Row]:
        return self + -other

    def __mul__(self, factor: int) -> ZSet[Row]:
        return ZSet({row: weight * factor for row, weight in self.items()})

    # --- linear operators: f(a + b) = f(a) + f(b) ------------------------------------------------

    def filter(self, keep: Callable[[Row], bool]) -> ZSet[Row]:
        """The rows that pass, with their weights."""
        return ZSet({row: weight for row, weight in self.items() if keep(row)})

    def map(self, change: Callable[[Row], Out]) -> ZSet[Out]:
        """Each row replaced; weights of rows that become equal add up."""
        return ZSet.summed((change(row), weight) for row, weight in self.items())

    def flat_map(self, expand: Callable[[Row], Iterable[Out]]) -> ZSet[Out]:
        """Each row replaced by any number of rows."""
        return ZSet.summed((out, weight) for row, weight in self.items() for out in expand(row))

    # --- bilinear: (a + da) ⋈ (b + db) = a⋈b + da⋈b + a⋈db + da⋈db -------------------------------

    def join(
        self,
        other: ZSet[Other],
        left: Callable[[Row], Key | None],
        right: Callable[[Other], Key | None],
        merge: Callable[[Row, Other], Out],
    ) -> ZSet[Out]:
        """Equi-join; weights multiply. A key of None (SQL NULL) meets nothing."""
        index = other.group(right)
        return ZSet.summed(
            (merge(row, match), weight * matched)
            for row, weight in self.items()
            if (key := left(row)) is not None and key in index
            for match, matched in index[key].items()
        )

    # --- neither: their deltas need the rows before ----------------------------------------------

    def distinct(self) -> ZSet[Row]:
        """Every row of positive weight, once."""
        return ZSet({row: 1 for row, weight in self.items() if weight > 0})

    def group(self, key: Callable[[Row], Key]) -> dict[Key, ZSet[Row]]:
        """The rows split by key."""
        pairs: dict[Key, list[tuple[Row, int]]] = {}
        for row, weight in self.items():
            pairs.setdefault(key(row), []).append((row, weight))
        return {k: ZSet.summed(group) for k, group in pairs.items()}

    def aggregate(
        self, key: Callable[[Row], Key], fold: Callable[[Key, ZSet[Row]], Out]
    ) -> ZSet[Out]:
        """One row per group that has rows."""
        return ZSet.of(fold(k, group) for k, group in self.group(key).items())

    def semi_join(
        self,
        other: ZSet[Other],
        left: Callable[[Row], Key | None],
        right: Callable[[Other], Key | None],
    ) -> ZSet[Row]:
        """The rows that have a match, with their own weights."""
        keys = {right(row) for row, weight in other.items() if weight > 0} - {None}
        return self.filter(lambda row: left(row) in keys)

    def anti_join(
        self,
        other: ZSet[Other],
        left: Callable[[Row], Key | None],
        right: Callable[[Other], Key | None],
    ) -> ZSet[Row]:
        """The rows that have no match, with their own weights."""
        return self - self.semi_join(other, left, right)
