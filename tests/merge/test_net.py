"""Netting one epoch's changes, and the changelog rows they make."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mview.changelog import batch_schema, encode_position
from mview.connector import WEIGHT
from mview.errors import CorruptionError, UserError
from mview.execute.delta import Delta
from mview.merge.net import EVERY_PARTITION, Netted, net_changes, old_and_new
from mview.schema import Column, TableSchema, parse_type
from tests.seeds import seeds

SCHEMA = TableSchema(
    (Column("id", pa.int64(), False), Column("v", pa.int64()), Column("s", pa.string())), ("id",)
)


def change(
    kind: str,
    id_: int | None,
    v: int | None = None,
    s: str | None = None,
    *,
    at: int | None,
    partition: str = "p0",
    offset: int = 0,
    unchanged: list[str] | None = None,
    ms: int | None = None,
) -> dict[str, Any]:
    return {
        "__op": kind,
        "__position": "" if at is None else encode_position((1, at)),
        "__source_ms": ms,
        "__partition": partition,
        "__offset": offset,
        "__unchanged": unchanged,
        "id": id_,
        "v": v,
        "s": s,
    }


def net(
    *rows: dict[str, Any],
    high: Mapping[str, str] | None = None,
    newest: Mapping[str, int] | None = None,
) -> Netted:
    results = []
    for seed in seeds(6):
        shuffled = random.Random(seed).sample(rows, len(rows))
        cut = seed % (len(rows) + 1)
        batches = [
            pa.Table.from_pylist(part, schema=batch_schema(SCHEMA))
            for part in (shuffled[:cut], shuffled[cut:])
        ]
        netted = net_changes(batches, SCHEMA, high or {}, newest or {})
        results.append((content(netted), netted))
    assert all(result[0] == results[0][0] for result in results), "the order of rows matters"
    return results[0][1]


def content(netted: Netted) -> tuple[Any, ...]:
    upserts = [tuple(row.values()) for row in netted.upserts.to_pylist()]
    deleted = [row["id"] for row in netted.deleted.to_pylist()]
    key = repr
    return sorted(upserts, key=key), sorted(deleted), netted.truncated, netted.high_water


def mirror(*rows: tuple[Any, ...], schema: TableSchema = SCHEMA) -> pa.Table:
    dicts = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(dicts, schema=schema.arrow)


def delta(netted: Netted, *old: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    rows, codes = old_and_new(netted, mirror(*old), SCHEMA)
    # The numbers that it knows of the keys tell rows apart as those that are worked out.
    worked_out = Delta(rows, SCHEMA.key)
    assert len(codes) == rows.num_rows
    assert ((codes == codes[:, None]) == (worked_out.codes == worked_out.codes[:, None])).all()
    if not netted.truncated:  # as from a look-up, which knows which key each row has
        keys = [*netted.upserts["id"].to_pylist(), *netted.deleted["id"].to_pylist()]
        there = [row for row in old if row[0] in keys]
        numbers = np.array([keys.index(row[0]) for row in there], np.int64)
        known, given = old_and_new(netted, mirror(*there), SCHEMA, numbers)
        assert known.equals(rows)
        assert [keys[number] for number in given] == rows["id"].to_pylist()
    rows = Delta(rows, SCHEMA.key, codes).changelog
    return [tuple(row.values()) for row in rows.to_pylist()]


def p(at: int) -> str:
    return encode_position((1, at))


def test_last_change_of_a_key_by_position() -> None:
    netted = net(
        change("c", 1, 10, "a", at=1, offset=0),
        change("u", 1, 11, "b", at=3, offset=2),
        change("u", 1, 12, "c", at=2, offset=9),  # sent again
        change("c", 2, 20, "x", at=4, offset=3),
        change("d", 2, at=5, offset=4),
    )
    assert content(netted)[:2] == ([(1, 11, "b", None)], [2])
    assert (netted.taken, netted.duplicates) == (5, 0)


def test_positions_order_across_partitions() -> None:
    netted = net(
        change("d", 1, at=9, partition="p0", offset=1),
        change("c", 1, 5, "x", at=10, partition="p1"),
    )
    assert content(netted)[:2] == ([(1, 5, "x", None)], [])


def test_without_positions_offsets_order() -> None:
    rows = [change("u", 1, n, at=None, offset=n) for n in range(12)]
    netted = net(*rows, high={"p0": p(999)})
    assert content(netted)[0] == [(1, 11, None, None)]
    assert netted.high_water == {"p0": p(999)}


def test_what_was_taken_is_dropped_by_partition() -> None:
    high = {"p0": p(5), "p1": p(1)}
    rows = (
        change("u", 1, 1, at=4, partition="p0"),
        change("u", 2, 2, at=6, partition="p0"),
        change("u", 3, 3, at=2, partition="p1"),
        change("u", 4, 4, at=1, partition="p2"),
    )
    netted = net(*rows, high=high)
    assert [row[0] for row in content(netted)[0]] == [2, 3, 4]
    assert (netted.taken, netted.duplicates) == (3, 1)
    assert netted.high_water == {"p0": p(6), "p1": p(2), "p2": p(1)}
    nothing = net(*rows, high=netted.high_water)
    # Those at the marks count again: another key may have the same position.
    assert (nothing.taken, nothing.duplicates, nothing.high_water) == (3, 1, netted.high_water)


def test_what_was_before_a_truncate_is_dropped_in_every_partition() -> None:
    netted = net(
        change("u", 1, 1, at=5),
        change("u", 2, 2, at=6, partition="p9"),
        high={EVERY_PARTITION: p(5)},
    )
    assert [row[0] for row in content(netted)[0]] == [2]
    assert netted.high_water == {EVERY_PARTITION: p(5), "p9": p(6)}


def test_changes_that_are_sent_again_are_no_news() -> None:
    netted = net(
        change("u", 1, 1, at=2, ms=200, offset=10),
        change("u", 1, 2, at=3, ms=150, offset=11),
        change("u", 2, 3, at=6, ms=900, offset=12),
        change("u", 3, 4, at=1, ms=950, partition="p1"),
        high={"p0": p(5)},
        newest={"p0": 200},
    )
    assert (netted.taken, netted.duplicates) == (2, 2)
    assert netted.newest == {"p0": 900, "p1": 950}
    only = net(change("u", 1, 1, at=2, ms=200), high={"p0": p(5)}, newest={"p0": 200})
    assert (only.duplicates, only.newest) == (1, {})


OLD_SERVER = (
    change("u", 1, 1, at=8, ms=100, offset=1),
    change("u", 2, 1, at=9, ms=110, offset=2),
)


@pytest.mark.parametrize(
    ("rows", "high", "newest"),
    [
        # What was taken before came from the old server, what comes now from the new one.
        ([change("u", 1, 2, at=3, ms=201, offset=3)], {"p0": p(5)}, {"p0": 200}),
        # Both in one epoch, in which the new server's change would lose against the old one's.
        ([*OLD_SERVER, change("u", 1, 2, at=7, ms=111, offset=3)], {"p0": p(5)}, {"p0": 90}),
        ([*OLD_SERVER, change("u", 1, 2, at=7, ms=111, offset=3)], {}, {}),
    ],
)
def test_positions_of_another_server_halt(rows, high, newest) -> None:
    with pytest.raises(UserError) as caught:
        net(*rows, high=high, newest=newest)
    assert caught.value.what.startswith("the changelog goes on with the log of another server")
    assert caught.value.where == "p0, offset 3"
    assert "mview drop" in caught.value.hint


def test_what_is_sent_again_after_a_restart_of_the_connector_is_dropped() -> None:
    again = [change("u", row["id"], 1, at=at, ms=row["__source_ms"], offset=offset)
             for row, at, offset in zip(OLD_SERVER, (8, 9), (3, 4), strict=True)]  # fmt: skip
    netted = net(*OLD_SERVER, *again, change("u", 3, 1, at=10, ms=105, offset=5))
    assert netted.taken == 5
    later = net(*again, high=netted.high_water, newest=netted.newest)
    assert (later.taken, later.duplicates) == (0, 2)


def test_no_changes() -> None:
    netted = net_changes([], SCHEMA, {"p0": p(3)}, {})
    assert (netted.taken, netted.high_water) == (0, {"p0": p(3)})
    assert delta(netted, (1, 1, "a")) == []


def test_truncate_clears_what_came_before() -> None:
    netted = net(
        change("c", 1, 1, at=1),
        change("truncate", None, at=2, partition="p1"),
        change("c", 2, 2, "n", at=3),
    )
    assert content(netted)[:3] == ([(2, 2, "n", None)], [], True)
    assert netted.high_water == {"p0": p(3), "p1": p(2), EVERY_PARTITION: p(2)}
    old = ((2, 2, "n"), (3, 3, "o"), (4, 4, "o"))
    assert delta(netted, *old) == [("-D", 3, 3, "o"), ("-D", 4, 4, "o")]
    # A laggard from before the truncate is moot.
    assert net(change("c", 7, 7, at=1, partition="p5"), high=netted.high_water).taken == 0


def test_truncate_behind_another_partition_halts() -> None:
    with pytest.raises(UserError, match="cannot be ordered"):
        net(change("truncate", None, at=2), high={"p1": p(3)})
    net(change("truncate", None, at=2), high={"p1": p(1), "p0": p(1)})
    with pytest.raises(UserError, match="cannot be ordered"):
        net(change("truncate", None, at=None), change("c", 1, at=None, partition="p1"))
    netted = net(change("truncate", None, at=None, offset=4), change("c", 1, at=None, offset=3))
    assert content(netted)[:3] == ([], [], True)


def test_a_key_that_changes_beside_other_partitions_halts() -> None:
    """By one message: of the other key's changes nobody knows whether they came before."""
    moved = change("d", 1, at=None, offset=5), change("c", 2, at=None, offset=5)
    other = change("c", 1, at=None, offset=3, partition="p1")
    with pytest.raises(UserError, match="change of a key cannot be ordered"):
        net(*moved, other)
    with pytest.raises(UserError, match="change of a key cannot be ordered"):
        net(*moved, newest={"p1": 7})
    assert net(*moved, newest={"p0": 7}).taken == 2
    two_messages = change("d", 1, at=None, offset=5), change("c", 2, at=None, offset=6)
    assert net(*two_messages, other).taken == 3


def test_old_rows_come_from_the_mirror() -> None:
    netted = net(
        change("u", 1, 11, "a", at=1),
        change("u", 2, 20, "b", at=2),
        change("c", 3, 30, None, at=3),
        change("d", 4, at=4),
        change("d", 5, at=5),
    )
    old = ((4, 40, "d"), (1, 10, None), (2, 20, "b"))
    assert delta(netted, *old) == [
        ("-D", 4, 40, "d"),
        ("-U", 1, 10, None),
        ("+U", 1, 11, "a"),
        ("+I", 3, 30, None),
    ]


def test_unchanged_cells() -> None:
    netted = net(
        change("u", 1, 11, None, at=1, unchanged=["s"]),  # from the mirror
        change("u", 2, 20, "sent", at=2),
        change("u", 2, None, "-", at=3, unchanged=["v", "s"]),  # both from the event before
        change("u", 3, 1, "new", at=4),
        change("u", 3, 2, None, at=5, unchanged=["s"]),
        change("u", 3, None, None, at=6, unchanged=["s", "v"]),
        change("u", 4, 4, None, at=7, unchanged=["s"]),
        change("u", 4, 5, None, at=8, unchanged=["s"]),
    )
    assert sorted(delta(netted, (1, 10, "kept"), (4, 0, "k4"))) == [
        ("+I", 2, 20, "sent"),
        ("+I", 3, 2, "new"),
        ("+U", 1, 11, "kept"),
        ("+U", 4, 5, "k4"),
        ("-U", 1, 10, "kept"),
        ("-U", 4, 0, "k4"),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [change("u", 77, 1, at=1, unchanged=["s"])],
        [
            change("c", 77, 1, "x", at=1),
            change("d", 77, at=2),
            change("u", 77, 1, at=3, unchanged=["s"]),
        ],
        [
            change("u", 1, 5, "x", at=1),
            change("d", 77, at=2),
            change("u", 77, 1, at=3, unchanged=["s"]),
            change("u", 1, 6, None, at=4, unchanged=["s"]),
        ],
        [change("truncate", None, at=1), change("u", 77, 1, at=2, unchanged=["s"])],
    ],
    ids=["never read", "deleted", "deleted beside another", "truncated"],
)
def test_unchanged_cell_without_a_row_halts(rows: list[dict[str, Any]]) -> None:
    old = [] if len(rows) == 1 else [(77, 0, "old")]
    with pytest.raises(UserError, match=r"column 's' was not sent(.|\n)*id=77"):
        delta(net(*rows), *old)


@pytest.mark.parametrize(
    ("kind", "a", "b", "same"),
    [
        ("double", float("nan"), float("nan"), True),
        ("double", 0.0, -0.0, False),
        ("double", None, float("nan"), False),
        ("float", 1.5, 1.5, True),
        ("string", None, "", False),
        ("string", None, None, True),
        ("decimal(5,2)", Decimal("1.00"), Decimal("1.00"), True),
        ("binary", b"a", b"b", False),
        ("array<double>", [1.0, float("nan")], [1.0, float("nan")], True),
        ("array<double>", [0.0], [-0.0], False),
        ("array<string>", None, [], False),
    ],
)
def test_equal_rows_make_no_changelog(kind: str, a: Any, b: Any, same: bool) -> None:
    schema = TableSchema((Column("id", pa.int64()), Column("x", parse_type(kind))), ("id",))
    rows = [change("u", 1, at=1) | {"x": a}]
    netted = net_changes([pa.Table.from_pylist(rows, schema=batch_schema(schema))], schema, {}, {})
    found, _ = old_and_new(netted, mirror((1, b), schema=schema), schema)
    assert found[WEIGHT].to_pylist() == ([] if same else [-1, 1])


@pytest.mark.parametrize(
    "kinds", [["string", "int"], ["date", "decimal(9,2)"], ["timestamp", "binary"]]
)
def test_composite_keys_of_any_type(kinds: list[str]) -> None:
    values: dict[str, list[Any]] = {
        "string": ["a", "b"],
        "int": [1, 2],
        "date": [1, 2],
        "decimal(9,2)": [Decimal("1.00"), Decimal("2.00")],
        "timestamp": [1, 2],
        "binary": [b"", b"x"],
    }
    columns = [Column(f"k{n}", parse_type(kind), False) for n, kind in enumerate(kinds)]
    schema = TableSchema((*columns, Column("v", pa.int64())), ("k0", "k1"))
    keys = [(x, y) for x in values[kinds[0]] for y in values[kinds[1]]]
    rows = [
        change("u", None, 10 * n + turn, at=10 * turn + n) | {"k0": key[0], "k1": key[1]}
        for n, key in enumerate(keys)
        for turn in range(2)
    ]
    netted = net_changes([pa.Table.from_pylist(rows, schema=batch_schema(schema))], schema, {}, {})
    old = mirror((*keys[1], 5), (*keys[3], 31), schema=schema)
    found, _ = old_and_new(netted, old, schema)
    assert sorted(zip(found[WEIGHT].to_pylist(), found["v"].to_pylist(), strict=True)) == [
        (-1, 5),
        (1, 1),
        (1, 11),
        (1, 21),
    ]


def test_bad_input_halts() -> None:
    with pytest.raises(UserError, match=r"'id' of a change is NULL(.|\n)*p0 offset 42"):
        net(change("u", None, at=1, offset=42))
    with pytest.raises(UserError, match="changed their shape"):
        net(change("u", 1, at=1), high={"p0": encode_position((1, 2, 3))})
    schema = TableSchema((*SCHEMA.columns[:2], Column("s", pa.string(), False)), ("id",))
    with pytest.raises(UserError, match=re.escape("column 's' is NOT NULL")):
        old_and_new(net(change("u", 1, at=1)), mirror(schema=schema), schema)
    with pytest.raises(CorruptionError, match="two rows of one key"):
        delta(net(change("u", 1, at=1)), (1, 1, "a"), (1, 2, "b"))


@pytest.mark.parametrize(("size", "budget"), [(1_000, 0.015), (50_000, 0.5)])
def test_speed(size: int, budget: float) -> None:
    rng = random.Random(1)
    ids = [rng.randrange(10**6) for _ in range(size)]
    batch = pa.table(
        [
            pa.array(rng.choices("cuud", k=size)),
            pa.array([p(n) for n in rng.sample(range(size), size)]),
            pa.array([None] * size, pa.int64()),
            pa.array([f"t/{i % 3}" for i in ids]),
            pa.array(range(size)),
            pa.array([None] * size, pa.list_(pa.string())),
            pa.array(ids),
            pa.array(ids),
            pa.array([f"name {i}" for i in ids]),
        ],
        schema=batch_schema(SCHEMA),
    )
    old = batch.select(list(SCHEMA.names)).group_by("id").aggregate([("v", "max"), ("s", "max")])
    old = old.rename_columns(list(SCHEMA.names)).slice(0, size // 2)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        old_and_new(net_changes([batch], SCHEMA, {"t/0": p(0)}, {}), old, SCHEMA)
        best = min(best, time.perf_counter() - begin)
    assert best < budget


def test_every_nan_is_the_same_value() -> None:
    """Databases and connectors write other bits for it: an update from one to the other is none."""
    bits = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000]
    values = np.array(bits, np.uint64).view(np.float64)
    schema = TableSchema((Column("id", pa.int64(), False), Column("x", pa.float64())), ("id",))
    old = pa.table({"id": [1, 2, 3], "x": values})
    new = pa.table({"id": [1, 2, 3], "x": np.roll(values, 1)})
    upserts = new.append_column("__unchanged", pa.nulls(3, pa.list_(pa.string())))
    netted = Netted(upserts, old.select(["id"]).slice(0, 0), False, {}, {}, 3, 0)
    assert old_and_new(netted, old, schema)[0].num_rows == 0
