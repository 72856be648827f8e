"""Resident tables against a plain dict, over random changes, look-ups and merges."""

from __future__ import annotations

import datetime as dt
import random
import threading
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from mview.errors import CorruptionError
from mview.execute.local import index as index_module
from mview.execute.local.index import ResidentTable
from mview.rows import values as values_module
from mview.rows.hashing import hash_rows
from mview.schema import parse_type
from tests.relations import rel
from tests.seeds import seeds


@pytest.fixture(params=[values_module._FEW, 0], ids=["", "by hash alone"], autouse=True)
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are found by their values; all are by their hashes."""
    monkeypatch.setattr(values_module, "_FEW", request.param)


SCHEMA = pa.schema(
    [
        ("k1", parse_type("bigint")),
        ("k2", parse_type("string")),
        ("n", parse_type("int")),
        ("s", parse_type("string")),
        ("d", parse_type("decimal(12,2)")),
        ("f", parse_type("double")),
        ("t", parse_type("timestamp")),
        ("b", parse_type("boolean")),
        ("x", parse_type("binary")),
        ("day", parse_type("date")),
    ]
)
NAN = float("nan")
START = dt.datetime(1969, 12, 31, tzinfo=ZoneInfo("UTC"))
VALUES: dict[str, list[Any]] = {
    "n": [None, 0, 1, -1, 2**31 - 1, -(2**31)],
    "s": [None, "", "a", "a" * 8, "a" * 9, "ab" * 20, "é\U0001f600", "12345678\0"],
    "d": [None, Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99")],
    "f": [None, 0.0, -0.0, NAN, float("inf"), 1.5],
    "t": [None, START, START + dt.timedelta(microseconds=1)],
    "b": [None, True, False],
    "x": [None, b"", b"\0", b"\0\0"],
    "day": [None, dt.date(1970, 1, 1), dt.date(1600, 1, 1)],
}

Row = dict[str, Any]


def random_row(rng: random.Random, k1: int, k2: str) -> Row:
    return {"k1": k1, "k2": k2} | {name: rng.choice(values) for name, values in VALUES.items()}


def arrow(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def normal(value: Any) -> Any:
    """A value as SQL compares it: one NaN, one zero."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def keyed(rows: list[Row]) -> dict[tuple[int, str], str]:
    found = {(row["k1"], row["k2"]): repr(row) for row in rows}
    assert len(found) == len(rows), "a row came twice"
    return found


def random_delta(
    rng: random.Random, model: dict[tuple[int, str], Row]
) -> tuple[list[Row], list[Row]]:
    going = rng.sample(sorted(model), min(len(model), rng.randrange(8)))
    old = [model[key] for key in going]
    new = {key: random_row(rng, *key) for key in going if rng.random() < 0.6}
    for _ in range(rng.randrange(8)):
        key = (rng.randrange(-5, 40), rng.choice(["", "a", "x" * 17]))
        if key not in model or key in going:
            new[key] = random_row(rng, *key)
    return old, list(new.values())


def check_lookups(rng: random.Random, table: ResidentTable, model: dict[Any, Row]) -> None:
    assert keyed(table.rows().to_pylist()) == keyed(list(model.values()))
    assert table.num_rows == len(model)
    columns = rng.sample(SCHEMA.names, rng.choice([1, 1, 2, 3]))
    if rng.random() < 0.4:
        columns = ["k2", "k1"]
    asked = [random_row(rng, rng.randrange(-5, 40), rng.choice(["", "a", "zz"])) for _ in range(4)]
    asked += rng.sample(list(model.values()), min(len(model), 3)) * 2
    keys = arrow(asked).select(columns)
    for null_safe in (False, True):
        wanted = {tuple(normal(row[c]) for c in columns) for row in asked}
        if not null_safe:
            wanted = {key for key in wanted if None not in key}
        expected = [r for r in model.values() if tuple(normal(r[c]) for c in columns) in wanted]
        got = keyed(table.lookup(columns, keys, null_safe).to_pylist())
        assert keyed(expected).items() <= got.items()
        # No look-up of so few values collides; by the primary key none ever may.
        assert len(got) == len(expected)


@pytest.mark.parametrize("seed", seeds(12))
def test_equals_a_dict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_SMALL", 16)
    rng = random.Random(seed)
    model = {(k, "a"): random_row(rng, k, "a") for k in rng.sample(range(40), rng.choice([0, 30]))}
    table = ResidentTable(rel("c.t"), ("k1", "k2"), arrow(list(model.values())))
    for _ in range(25):
        old, new = random_delta(rng, model)
        gone, columns = arrow(old).select(["k2", "k1"]), rng.sample(SCHEMA.names, 5)
        after = table.after((gone, arrow(new)), columns)
        foreseen = after.table()
        assert foreseen.column_names == columns
        assert keyed(table.rows().to_pylist()) == keyed(list(model.values()))
        comes = arrow(new)
        if rng.random() < 0.5:
            table.foresee(gone, comes)
            if rng.random() < 0.3:
                table.merge()  # what was found stands elsewhere then
        table.apply(gone, comes)
        assert repr(after.table().to_pylist()) == repr(foreseen.to_pylist())
        for row in old:
            del model[row["k1"], row["k2"]]
        model |= {(row["k1"], row["k2"]): row for row in new}
        shown = [repr(row) for row in arrow([*model.values()]).select(columns).to_pylist()]
        assert sorted(map(repr, foreseen.to_pylist())) == sorted(shown)
        check_lookups(rng, table, model)
        if rng.random() < 0.15:
            table.merge()
            check_lookups(rng, table, model)


def test_changes_during_a_merge_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    model = {(k, "a"): random_row(rng, k, "a") for k in rng.sample(range(200), 100)}
    table = ResidentTable(rel("c.t"), ("k1", "k2"), arrow(list(model.values())))
    inside, go_on = threading.Event(), threading.Event()
    gather = ResidentTable._order

    def slow(self: ResidentTable, rows: pa.Table) -> Any:
        inside.set()
        assert go_on.wait(10)
        return gather(self, rows)

    old, new = random_delta(rng, model)
    table.apply(arrow(old), arrow(new))
    monkeypatch.setattr(ResidentTable, "_order", slow)
    merge = threading.Thread(target=table.merge)
    merge.start()
    assert inside.wait(10)
    for row in old:
        del model[row["k1"], row["k2"]]
    model |= {(row["k1"], row["k2"]): row for row in new}
    for _ in range(10):
        old, new = random_delta(rng, model)
        table.apply(arrow(old), arrow(new))
        for row in old:
            del model[row["k1"], row["k2"]]
        model |= {(row["k1"], row["k2"]): row for row in new}
    go_on.set()
    merge.join()
    for _ in range(5):
        check_lookups(rng, table, model)


def test_segments_stay_few() -> None:
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": pa.array([], pa.int64())}))
    for number in range(300):
        table.apply(pa.table({"k": pa.array([], pa.int64())}), pa.table({"k": [number]}))
    assert len(table._segments) < 12
    assert table.num_rows == 300


def test_merge_becomes_due_and_restores_one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_SMALL", 4)
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": list(range(100))}))
    none = pa.table({"k": pa.array([], pa.int64())})
    assert not table.merge_due
    for number in range(100, 200, 5):
        table.apply(none, pa.table({"k": list(range(number, number + 5))}))
    assert table.merge_due
    table.merge()
    assert not table.merge_due
    assert table.rows().column("k").to_pylist() == list(range(200))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ([7], [], "not in the table"),
        ([], [1], "already"),
        ([1], [2], "already"),
        ([1, 1], [], "not in"),
        ([], [9, 9], "twice"),
        # The keys that come are those that go.
        ([1, 1], [1, 1], "not in"),
        ([7], [7], "not in the table"),
    ],
)
def test_a_wrong_delta_changes_nothing(old: list[int], new: list[int], message: str) -> None:
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": [1, 2, 3]}))
    gone, come = (pa.table({"k": pa.array(keys, pa.int64())}) for keys in (old, new))
    for foreseen in (False, True):
        if foreseen:
            table.foresee(gone, come)
        with pytest.raises(CorruptionError, match=message):
            table.apply(gone, come)
        assert table.rows().column("k").to_pylist() == [1, 2, 3]
        assert table.num_rows == 3


def test_what_is_foreseen_is_found_once_and_holds_for_that_delta_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched, find = [], index_module.Segment.find

    def counted(segment: Any, *args: Any) -> Any:
        searched.append(segment)
        return find(segment, *args)

    monkeypatch.setattr(index_module.Segment, "find", counted)
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": [1, 2, 3]}))
    gone, come, others = (pa.table({"k": keys}) for keys in ([1], [4], [2]))
    table.foresee(gone, come)
    searched.clear()
    table.apply(gone, come)
    assert not searched
    assert table.rows().column("k").to_pylist() == [2, 3, 4]
    table.foresee(others, gone)  # its epoch fails
    table.apply(pa.table({"k": [3]}), gone)
    assert table.rows().column("k").to_pylist() == [2, 4, 1]


@pytest.mark.parametrize("seed", seeds(8))
def test_what_a_look_up_of_many_keys_has_found_is_not_searched_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_SMALL", 16)
    searched, find = [], index_module.Segment.find

    def counted(segment: Any, *args: Any) -> Any:
        searched.append(segment)
        return find(segment, *args)

    monkeypatch.setattr(index_module.Segment, "find", counted)
    rng = random.Random(seed)
    model = {(k, "a"): random_row(rng, k, "a") for k in range(30)}
    table = ResidentTable(rel("c.t"), ("k1", "k2"), arrow(list(model.values())))
    for _ in range(12):
        old, new = random_delta(rng, model)
        asked = {(row["k1"], row["k2"]): row for row in [*old, *new]}
        asked |= {(k, "none"): random_row(rng, k, "none") for k in range(17)}
        places = {key: number for number, key in enumerate(rng.sample(list(asked), len(asked)))}
        keys = arrow([asked[key] for key in places]).select(["k1", "k2"])
        found = table.lookup(["k1", "k2"], keys).to_pylist()
        numbers = table.key_numbers(keys)
        assert numbers is not None
        assert [places[row["k1"], row["k2"]] for row in found] == numbers.tolist()
        assert table.key_numbers(keys.slice(0)) is None, "it is not what was looked up"
        gone, come = arrow(old), arrow(new)
        codes = np.array([places[row["k1"], row["k2"]] for row in [*old, *new]], np.int64)
        is_told = rng.random() < 0.7
        if not is_told:  # numbers of whatever else
            codes = rng.choice([codes[::-1], codes + 1, codes * 0, codes[1:]])
        searched.clear()
        table.foresee(gone, come, codes)
        assert not is_told or not searched
        if rng.random() < 0.2:
            table.merge()  # what was found stands elsewhere then
        table.apply(gone, come)
        for row in old:
            del model[row["k1"], row["k2"]]
        model |= {(row["k1"], row["k2"]): row for row in new}
        assert keyed(table.rows().to_pylist()) == keyed(list(model.values()))
        assert table.key_numbers(keys) is None


@pytest.mark.parametrize(
    ("old", "new"), [([7], []), ([], [1]), ([1], [2]), ([1, 1], []), ([], [9, 9]), ([7], [7])]
)
def test_a_wrong_delta_is_seen_where_a_look_up_has_told_the_keys(
    old: list[int], new: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_SMALL", 4)
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": [1, 2, 3]}))
    keys = pa.table({"k": range(10)})
    table.lookup(["k"], keys)
    gone, come = (pa.table({"k": pa.array(keys, pa.int64())}) for keys in (old, new))
    table.foresee(gone, come, np.array([*old, *new]))
    with pytest.raises(CorruptionError):
        table.apply(gone, come)
    assert table.rows().column("k").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("second", [["x", "y", "x", None], [1, 2, 1, None], [0.0, 1.5, NAN, None]])
def test_updates_are_looked_for_once_in_whatever_order_they_come(
    second: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their keys are free, as they go; a state table's rows come in an order of their own."""
    searched, find = 0, ResidentTable._find

    def counted(table: Any, *args: Any) -> Any:
        nonlocal searched
        searched += 1
        return find(table, *args)

    rows = pa.table({"a": [1, 1, 2, 3], "b": second, "v": [10, 20, 30, 40]})
    table = ResidentTable(rel("c.t"), ("a", "b"), rows)
    others = rows.take([2, 0, 3, 1]).set_column(2, "v", pa.array([31, 11, 41, 21]))
    monkeypatch.setattr(ResidentTable, "_find", counted)
    table.apply(rows, others)
    assert searched == 1
    assert sorted(table.rows()["v"].to_pylist()) == [11, 21, 31, 41]
    with pytest.raises(CorruptionError, match="already"):
        table.apply(others.slice(0, 1), others.slice(1, 1))


@pytest.mark.parametrize(
    ("column", "keys", "expected"),
    [
        (pa.array([1, 2, None], pa.int8()), pa.array([1, 300, 257]), {1}),
        (pa.array([1, 2, 3], pa.int64()), pa.array([2], pa.int16()), {2}),
        (
            pa.array([Decimal("1.00"), Decimal("2.50")], pa.decimal128(10, 2)),
            pa.array([Decimal("2.5000"), Decimal("1.0001")], pa.decimal128(12, 4)),
            {Decimal("2.50")},
        ),
        (pa.array([Decimal("1.00")], pa.decimal128(10, 2)), pa.array([1]), {Decimal("1.00")}),
        (pa.array([1.5, 0.1], pa.float32()), pa.array([1.5, 0.1]), {1.5}),
        (
            pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("us")),
            pa.array([dt.date(2020, 1, 1)]),
            {dt.datetime(2020, 1, 1)},
        ),
    ],
)
def test_keys_of_another_type(column: pa.Array, keys: pa.Array, expected: set[Any]) -> None:
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": range(len(column)), "v": column}))
    found = table.lookup(["v"], pa.table({"v": keys})).column("v").to_pylist()
    assert set(found) == expected


def test_keys_that_compare_otherwise_bring_the_whole_table() -> None:
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": [1, 2, 3]}))
    assert table.lookup(["k"], pa.table({"k": ["01"]})).num_rows == 3
    assert table.lookup(["k"], pa.table({"k": [1.0]})).num_rows == 3


def test_primary_key_is_exact_when_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        index_module, "hash_rows", lambda columns: np.zeros(len(columns[0]), np.int64)
    )
    rows = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    table = ResidentTable(rel("c.t"), ("a", "b"), rows)
    keys = pa.table({"a": [1, 2, 1, 5], "b": ["y", "y", "y", "x"]})
    assert table.lookup(["a", "b"], keys).to_pylist() == [{"a": 1, "b": "y"}]
    table.apply(pa.table({"a": [1], "b": ["x"]}), pa.table({"a": [2], "b": ["y"]}))
    assert {tuple(r.values()) for r in table.rows().to_pylist()} == {(1, "y"), (2, "x"), (2, "y")}


def test_hashes_do_not_depend_on_chunks_or_offsets() -> None:
    values = ["", "a", None, "12345678", "123456789", "é" * 30] * 3
    whole = pa.chunked_array([values])
    sliced = pa.chunked_array([pa.array(["x", *values])[1:8], pa.array(values)[7:]])
    assert hash_rows([whole, whole]).tolist() == hash_rows([sliced, sliced]).tolist()
    assert len(set(hash_rows([whole]).tolist())) == len(set(values))


def test_every_nan_and_both_zeros_hash_alike() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x0, 0x8000000000000000], np.uint64)
    hashes = hash_rows([pa.chunked_array([bits.view(np.float64)])])
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3] != hashes[0]


def test_bytes_count_rows_and_indexes() -> None:
    table = ResidentTable(rel("c.t"), ("k",), pa.table({"k": range(1000), "v": [3, 1] * 500}))
    before = table.nbytes
    table.lookup(["k"], pa.table({"k": [5]}))
    assert table.nbytes == before, "a sorted bigint is its own index"
    table.lookup(["v"], pa.table({"v": [3]}))
    assert table.nbytes == before + 1000 * 12


@pytest.mark.parametrize("kind", ["bigint", "string"])
def test_null_is_a_key_where_groups_are_keys(kind: str) -> None:
    # The second value hashes as NULL does.
    value = 0x6A09E667F3BCC909 if kind == "bigint" else "a"
    schema = pa.schema([("g", parse_type(kind)), ("n", parse_type("bigint"))])

    def rows(*pairs: tuple[Any, int]) -> pa.Table:
        return pa.Table.from_pylist([{"g": g, "n": n} for g, n in pairs], schema)

    table = ResidentTable(rel("v:state"), ["g"], rows((None, 1), (value, 2)))
    null, other = rows((None, 0)).select(["g"]), rows((value, 0)).select(["g"])
    assert table.lookup(["g"], null, null_safe=True)["n"].to_pylist() == [1]
    assert table.lookup(["g"], other, null_safe=True)["n"].to_pylist() == [2]
    assert table.lookup(["g"], null).num_rows == 0
    table.apply(rows((None, 1)), rows((None, 5)))
    assert table.lookup(["g"], null, null_safe=True)["n"].to_pylist() == [5]
    table.apply(rows((value, 2)), rows())
    assert table.lookup(["g"], other, null_safe=True).num_rows == 0


def test_only_the_last_look_ups_are_remembered() -> None:
    made = ResidentTable(rel("t"), ["id"], pa.table({"id": pa.array(range(100), pa.int64())}))
    for count in [*range(1, 60), 5, 5]:
        found = made.lookup(["id"], pa.table({"id": pa.array(range(count), pa.int64())}))
        assert found.num_rows == count
    assert len(made._found) == 16
    made.apply(pa.table({"id": pa.array([3], pa.int64())}), pa.table({"id": [200]}))
    assert made.lookup(["id"], pa.table({"id": pa.array(range(5), pa.int64())})).num_rows == 4
