"""Columns that have other names for a while are never taken for each other."""

from __future__ import annotations

from random import Random

import pytest
from mview_connectors.changelogs.postgresql.changelog import has_place, is_by_another_key
from mview_connectors.formats.ownlog.pgoutput import PgRelation

from tests.seeds import daily

INT = [23, -1]


def columns(*names: str) -> dict[str, list[int]]:
    return {name: [number, *INT] for number, name in enumerate(names, 1)}


THEN = columns("id", "note", "x", "spare")


@pytest.mark.parametrize(
    ("written", "now", "is_right"),
    [
        (("id", "note", "x", "spare"), THEN, True),
        (("id", "note", "z", "x"), THEN, False),  # exchanged, and back
        (("id", "note", "spare", "x"), THEN, False),
        (("id", "note", "z", "spare"), THEN, False),
        (("id", "other", "x", "spare", "more"), THEN, True),  # what is not used may do so
        (("id", "note", "x"), {n: c for n, c in THEN.items() if n != "spare"}, True),
        # Of a column behind one that was dropped it is not known.
        (("id", "x", "spare"), {n: c for n, c in THEN.items() if n != "note"}, False),
        (("id",), {n: c for n, c in THEN.items() if n != "note"}, False),
    ],
)
def test_cases(written: tuple[str, ...], now: dict[str, list[int]], is_right: bool) -> None:
    assert has_place(written, THEN, now, ["id", "x"]) is is_right


@pytest.mark.parametrize(
    ("columns_of_key", "identity", "is_other", "is_other_than_unique"),
    [
        (("id",), "d", False, False),
        (("id", "x"), "d", True, False),
        ((), "d", True, True),  # there was none: two rows may have had one key
        (("id", "note", "x", "spare"), "f", False, False),  # which says nothing of keys
        (("x",), "i", True, True),  # an UPDATE of id says nothing of the row before
        (("id", "x"), "i", False, False),
        (("x",), "d", True, True),
    ],
)
def test_a_change_by_another_key(
    columns_of_key: tuple[str, ...], identity: str, is_other: bool, is_other_than_unique: bool
) -> None:
    written = PgRelation(1, "public", "t", tuple(THEN), columns_of_key, identity)
    assert is_by_another_key(written, [5, True, ["id"]]) is is_other
    assert is_by_another_key(written, [5, False, ["id"]]) is is_other_than_unique


def test_whatever_is_altered_and_put_back() -> None:
    """Against a table that knows which column is which."""
    random = Random(daily())
    wrong = passed = 0
    for _ in range(4_000):
        names = [f"c{number}" for number in range(random.randint(2, 5))]
        then = columns(*names)
        used = random.sample(names, random.randint(1, len(names)))
        others = [then[name][0] for name in names if name not in used]
        alive = {number: name for name, (number, *_) in then.items()}
        last = len(names)
        written = []
        for _ in range(random.randint(1, 6)):
            free = [name for name in (*names, "w", "y", "z", "more") if name not in alive.values()]
            kind = random.random()
            if kind < 0.6 and free:
                alive[random.choice(list(alive))] = random.choice(free)
            elif kind < 0.75 and (may_go := [number for number in others if number in alive]):
                del alive[random.choice(may_go)]
            elif free:
                last += 1
                alive[last] = random.choice(free)
            written.append(dict(alive))
        for name in used:  # as they were, else it is noticed without the log
            for number, other in alive.items():
                if other == name:
                    alive[number] = f"moved {number}"
            alive[then[name][0]] = name
        now = {name: [number, *INT] for number, name in alive.items()}
        for layout in written:
            order = tuple(layout[number] for number in sorted(layout))
            taken = has_place(order, then, now, used)
            right = all(layout.get(then[name][0]) == name for name in used)
            assert right or not taken, (names, used, order, now)
            passed += taken
            wrong += not right
    assert wrong > 1_000
    assert passed > 1_000
