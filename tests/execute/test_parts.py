"""Queries over tables that come part by part: of a mirror at any of its states, and of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.errors import CorruptionError
from mview.execute.local.evaluate import LocalEvaluator
from mview.execute.refusal import EvaluationError
from mview.rows.parts import Parts
from mview.store.manifest import TableState
from mview.store.mirror import Mirror
from tests.seeds import seeds
from tests.store.mirrors import MirrorDriver

#: Each table is read twice, and one column of it not at all.
QUERY = (
    "select a.part, b.v, count(*) as n, min(a.id) as least from t a left join t b"
    " on b.id = a.id + 1 and b.part = a.part group by a.part, b.v"
)
RESULT = pa.schema(
    [("part", pa.string()), ("v", pa.string()), ("n", pa.int64()), ("least", pa.int64())]
)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    made = LocalEvaluator()
    yield made
    made.close()


def parts_of(mirror: Mirror, state: TableState) -> Parts:
    schema = pa.schema([("v", pa.string()), ("id", pa.int64()), ("part", pa.string())])
    return Parts(schema, lambda: mirror.parts(state, schema.names))


def expected(rows: set[tuple[Any, ...]]) -> Counter[Any]:
    by_key = {(row[1], row[2]): row[0] for row in rows}
    groups: dict[tuple[str, Any], list[int]] = {}
    for number, part in by_key:
        groups.setdefault((part, by_key.get((number + 1, part))), []).append(number)
    return Counter((*group, len(ids), min(ids)) for group, ids in groups.items())


@pytest.mark.parametrize("seed", seeds(4))
def test_a_mirror_with_a_tail_of_many_epochs(
    evaluator: LocalEvaluator, tmp_path: Path, seed: int
) -> None:
    """Keys that change, go and come, NULLs, chunks; compacted now and then, while it is read."""
    driver = MirrorDriver(tmp_path / "m", seed)
    for _ in range(14):
        driver.publish(driver.epoch_once())
        state, rows = driver.history[driver.epoch]
        answer = evaluator.stream(QUERY, {"t": parts_of(driver.mirror, state)}, RESULT)
        if driver.rng.random() < 0.3:
            driver.compact()
        found = pa.concat_tables([RESULT.empty_table(), *answer])
        assert Counter(map(tuple, map(dict.values, found.to_pylist()))) == expected(rows)


def test_why_a_part_cannot_be_had_is_told_as_it_is(evaluator: LocalEvaluator) -> None:
    def broken() -> Iterator[pa.Table]:
        yield pa.table({"id": [1]})
        raise CorruptionError("a page is damaged", where="here")

    given = {"t": Parts(pa.schema([("id", pa.int64())]), broken)}
    rows = evaluator.stream("select id from t", given, pa.schema([("id", pa.int64())]))
    with pytest.raises(CorruptionError, match="a page is damaged"):
        list(rows)


def test_what_only_spark_decides_may_show_late(evaluator: LocalEvaluator) -> None:
    """Rows may have come before; who takes them learns that they do not count."""
    schema = pa.schema([("id", pa.int64())])

    def growing() -> Iterator[pa.Table]:
        for _ in range(5):
            yield pa.table({"id": pa.array(range(50_000), pa.int64())})
        yield pa.table({"id": [2**63 - 1]})

    rows = evaluator.stream("select id + 1 as id from t", {"t": Parts(schema, growing)}, schema)
    with pytest.raises(EvaluationError, match="Overflow"):
        list(rows)


def test_parts_are_made_anew_each_time(evaluator: LocalEvaluator) -> None:
    """In the order of their own columns, and of types that fit; none are none."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    some = Parts(schema, lambda: iter([pa.table({"b": ["x"], "a": pa.array([1], pa.int32())})]))
    assert some.table().to_pylist() == some.table().to_pylist() == [{"a": 1, "b": "x"}]
    none = Parts(schema, lambda: iter([]))
    assert none.table().equals(schema.empty_table())
    counted = pa.schema([("n", pa.int64())])
    (row,) = evaluator.stream("select count(*) as n from t", {"t": none}, counted)
    assert row.to_pylist() == [{"n": 0}]
