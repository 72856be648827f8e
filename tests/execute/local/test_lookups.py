"""Look-ups over several resident tables within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait

import pyarrow as pa
import pytest

from mview.execute.local import index
from mview.execute.local.index import ResidentTable
from mview.execute.local.lookups import LocalLookups
from mview.execute.program import Request
from tests.relations import keyed, rel


def table(name: str, rows: int = 100) -> ResidentTable:
    return ResidentTable(
        rel(name), ("id",), pa.table({"id": range(rows), "v": [n % 7 for n in range(rows)]})
    )


NONE = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.int64())})


@pytest.fixture
def lookups() -> Iterator[LocalLookups]:
    made = LocalLookups(memory=100_000)
    yield made
    made.close()


def test_fetches_what_each_request_names(lookups: LocalLookups) -> None:
    assert lookups.add(table("a"))
    assert lookups.add(table("b", 3))
    answers = lookups.fetch(
        [
            Request(rel("a"), pa.table({"v": [3, 3]}), ("id",)),
            Request(rel("b"), None, ("v", "id")),
            Request(rel("a"), pa.table({"id": [5, 500]}), ("id", "v")),
        ]
    )
    assert sorted(answers[0].column("id").to_pylist()) == list(range(3, 100, 7))
    assert answers[1].column_names == ["v", "id"]
    assert answers[2].to_pylist() == [{"id": 5, "v": 5}]


def test_what_does_not_fit_is_not_resident(lookups: LocalLookups) -> None:
    assert lookups.add(table("a"))
    assert not lookups.add(table("big", 10_000))
    assert lookups.resident(rel("a"), ("id", "v"))
    assert not lookups.resident(rel("a"), ("id", "w"))
    assert not lookups.resident(rel("big"), ("id",))


def test_follows_epochs(lookups: LocalLookups) -> None:
    lookups.add(table("a"))
    old, new = pa.table({"id": [1]}), pa.table({"id": [1, 200], "v": [70, 71]})
    assert lookups.apply({rel("a"): (old, new), rel("elsewhere"): (old, new)}) == []
    (rows,) = lookups.fetch([Request(rel("a"), pa.table({"id": [1, 200]}), ("v",))])
    assert rows.column("v").to_pylist() == [70, 71]


def test_a_table_as_an_epoch_will_leave_it(lookups: LocalLookups) -> None:
    lookups.add(table("a", 3))
    old, new = pa.table({"id": [1]}), pa.table({"v": [70], "id": [200]})
    after = lookups.after(rel("a"), (old, new), ("v", "id"))
    assert after is not None
    assert after.table().to_pydict() == {"v": [0, 2, 70], "id": [0, 2, 200]}
    assert lookups.after(rel("a"), (pa.table({"id": [999]}), NONE), ("id",)) is None
    (rows,) = lookups.fetch([Request(rel("a"), None, ("id",))])
    assert rows["id"].to_pylist() == [0, 1, 2]


def test_a_table_that_missed_an_epoch_is_dropped(lookups: LocalLookups) -> None:
    lookups.add(table("a"))
    lookups.add(table("b"))
    assert lookups.apply({rel("a"): (pa.table({"id": [999]}), NONE)}) == [rel("a")]
    assert not lookups.resident(rel("a"), ("id",))
    assert lookups.resident(rel("b"), ("id",))


def test_a_table_that_outgrows_the_budget_is_dropped(lookups: LocalLookups) -> None:
    lookups.add(table("a"))
    lookups.add(table("b"))
    grown = pa.table({"id": range(1000, 8000), "v": range(7000)})
    assert lookups.apply({rel("b"): (NONE, grown)}) == [rel("b")]
    assert lookups.resident(rel("a"), ("id",))
    assert lookups.nbytes < 10_000


def test_merges_in_the_background(lookups: LocalLookups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_SMALL", 4)
    resident = table("a", 10)
    lookups.add(resident)
    for first in range(100, 200, 5):
        new = pa.table({"id": range(first, first + 5), "v": range(5)})
        assert lookups.apply({rel("a"): (NONE, new)}) == []
        # One merge at a time: what came meanwhile is merged after a later epoch.
        wait(lookups._merges.values())
    assert not resident.merge_due
    assert resident.num_rows == 110


def needed(*tables: ResidentTable) -> int:
    """What some tables take, with the merge of the largest."""
    sizes = [one.nbytes for one in tables]
    return sum(sizes) + max(sizes)


def test_tables_that_fit_alone_but_not_together() -> None:
    """Each would have room; those that came first stay, and nobody makes room for the others."""
    names = ("a", "b", "c", "d")
    made = {name: table(name, 1000) for name in names}
    made["a"].lookup(["v"], pa.table({"v": [3]}))  # an index: it counts
    memory = needed(made["a"], made["b"]) + made["c"].nbytes // 2
    for name in names:
        alone = LocalLookups(memory)
        assert alone.add(made[name])
    together = LocalLookups(memory)
    assert [name for name in names if together.add(made[name])] == ["a", "b"]
    assert together.needed <= memory
    assert together.room < made["c"].nbytes
    # Changes of those that are not here are no work, and bring nobody back.
    change = (NONE, pa.table({"id": [5000], "v": [1]}))
    assert together.apply(dict.fromkeys(map(rel, names), change)) == []
    assert [name for name in names if together.resident(rel(name), ())] == ["a", "b"]
    (rows,) = together.fetch([Request(rel("b"), pa.table({"id": [5000, 7]}), ("id", "v"))])
    assert sorted(rows["id"].to_pylist()) == [7, 5000]


def test_growing_tables_go_once_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds after every epoch, with the merge that may come; no table comes back."""
    monkeypatch.setattr(index, "_SMALL", 64)
    made = {name: table(name, 200 + size) for size, name in enumerate("abc")}
    memory = needed(*made.values()) * 2
    lookups = LocalLookups(memory)
    rows = {name: set(range(one.num_rows)) for name, one in made.items()}
    assert all(lookups.add(one) for one in made.values())
    gone: list[str] = []
    for epoch in range(120):
        # One grows fast, one slowly, one not at all.
        new = {
            name: range(1000 + size * epoch, 1000 + size * (epoch + 1))
            for name, size in {"a": 40, "b": 20}.items()
        }
        changes = {
            name: (NONE, pa.table({"id": ids, "v": [0] * len(ids)})) for name, ids in new.items()
        }
        gone += map(str, lookups.apply(keyed(changes)))
        assert lookups.needed <= memory
        for name, ids in new.items():
            rows[name] |= set(ids)
        for name in set(made) - set(gone):
            (found,) = lookups.fetch([Request(rel(name), None, ("id",))])
            assert set(found["id"].to_pylist()) == rows[name]
    assert gone == ["a", "b"]
    assert lookups.resident(rel("c"), ("id", "v"))
    wait(lookups._merges.values())
    lookups.close()


def test_large_rows_of_look_ups_are_not_remembered() -> None:
    """A table that never changes would hold what was ever found in it, and nobody counts that."""
    wide = pa.table({"id": range(64), "s": ["x" * (1 << 18)] * 64, "n": range(64)})
    one = ResidentTable(rel("w"), ("id",), wide)
    before, held = one.nbytes, pa.total_allocated_bytes()
    for first in range(32):
        found = one.lookup(["id"], pa.table({"id": range(first, first + 32)}))
        assert sorted(found["n"].to_pylist()) == list(range(first, first + 32))
    del found
    assert pa.total_allocated_bytes() - held < 4 << 20
    assert one.nbytes - before < 1 << 20


def test_where_many_keys_were_found_is_forgotten_with_the_epoch(
    lookups: LocalLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a table that has not changed: what it has found counts as nobody's memory."""
    monkeypatch.setattr(index, "_SMALL", 2)
    still = table("still")
    assert lookups.add(still)
    assert lookups.add(table("moved"))
    keys = pa.table({"id": [1, 2, 3, 4]})
    lookups.fetch([Request(rel("still"), keys, ("id", "v"))])
    numbers = lookups.key_numbers(rel("still"), keys)
    assert numbers is not None
    assert sorted(numbers.tolist()) == [0, 1, 2, 3]
    assert not lookups.apply({rel("moved"): (NONE, NONE)})
    assert still._located is None
