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


def table(name: str, rows: int = 100) -> ResidentTable:
    return ResidentTable(
        name, ("id",), pa.table({"id": range(rows), "v": [n % 7 for n in range(rows)]})
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
            Request("a", pa.table({"v": [3, 3]}), ("id",)),
            Request("b", None, ("v", "id")),
            Request("a", pa.table({"id": [5, 500]}), ("id", "v")),
        ]
    )
    assert sorted(answers[0].column("id").to_pylist()) == list(range(3, 100, 7))
    assert answers[1].column_names == ["v", "id"]
    assert answers[2].to_pylist() == [{"id": 5, "v": 5}]


def test_what_does_not_fit_is_not_resident(lookups: LocalLookups) -> None:
    assert lookups.add(table("a"))
    assert not lookups.add(table("big", 10_000))
    assert lookups.resident("a", ("id", "v"))
    assert not lookups.resident("a", ("id", "w"))
    assert not lookups.resident("big", ("id",))


def test_follows_epochs(lookups: LocalLookups) -> None:
    lookups.add(table("a"))
    old, new = pa.table({"id": [1]}), pa.table({"id": [1, 200], "v": [70, 71]})
    assert lookups.apply({"a": (old, new), "elsewhere": (old, new)}) == []
    (rows,) = lookups.fetch([Request("a", pa.table({"id": [1, 200]}), ("v",))])
    assert rows.column("v").to_pylist() == [70, 71]


def test_a_table_that_missed_an_epoch_is_dropped(lookups: LocalLookups) -> None:
    lookups.add(table("a"))
    lookups.add(table("b"))
    assert lookups.apply({"a": (pa.table({"id": [999]}), NONE)}) == ["a"]
    assert not lookups.resident("a", ("id",))
    assert lookups.resident("b", ("id",))


def test_a_table_that_outgrows_the_budget_is_dropped(lookups: LocalLookups) -> None:
    lookups.add(table("a"))
    lookups.add(table("b"))
    grown = pa.table({"id": range(1000, 8000), "v": range(7000)})
    assert lookups.apply({"b": (NONE, grown)}) == ["b"]
    assert lookups.resident("a", ("id",))
    assert lookups.nbytes < 10_000


def test_merges_in_the_background(lookups: LocalLookups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_SMALL", 4)
    resident = table("a", 10)
    lookups.add(resident)
    for first in range(100, 200, 5):
        new = pa.table({"id": range(first, first + 5), "v": range(5)})
        assert lookups.apply({"a": (NONE, new)}) == []
        # One merge at a time: what came meanwhile is merged after a later epoch.
        wait(lookups._merges.values())
    assert not resident.merge_due
    assert resident.num_rows == 110
