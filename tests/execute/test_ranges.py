"""Ranges: how bounds become one, and look-ups by range against a plain filter."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mview.connector import WEIGHT
from mview.execute import executors
from mview.execute.executors import Executors
from mview.execute.local import index as index_module
from mview.execute.local.index import ResidentTable
from mview.execute.program import Request, TooManyRowsError
from mview.execute.relations import Relation, row_bytes
from mview.execute.slices import Changes, weighted
from mview.execute.spark import copies
from mview.execute.spark.copies import look_up_range
from mview.execute.spark.executor import SparkExecutor
from mview.ivm.compile import compile_view
from mview.memory import Memory, Share
from mview.plan.clocks import INSTANT, pinned_rows
from mview.plan.definition import parse_view
from mview.relation import RelationId
from mview.rows.ranges import Range, range_of
from mview.schema import Column, TableSchema, parse_type
from mview.session.lazy import Spark
from mview.store.mirror import Mirror
from tests.relations import keyed, rel
from tests.seeds import seeds
from tests.store.mirrors import Row, delta_of, stage

UTC = dt.timezone.utc
START = dt.datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = TableSchema(
    (
        Column("id", parse_type("bigint"), nullable=False),
        Column("at", parse_type("timestamp")),
        Column("naive", parse_type("timestamp_ntz")),
        Column("day", parse_type("date")),
        Column("n", parse_type("int")),
    ),
    ("id",),
)
TYPES = {name: SCHEMA.column(name).type for name in SCHEMA.names}


def random_row(draw: random.Random, key: int) -> Row:
    """Around 1970, where days and microseconds change their sign; the same values are frequent."""
    at = START + dt.timedelta(hours=12 * draw.randrange(-8, 8))
    naive = at.replace(tzinfo=None)
    values = (at, naive, at.date(), draw.randrange(-8, 8))
    return (key, *(one if draw.random() < 0.8 else None for one in values))


def random_range(draw: random.Random) -> Range:
    name = draw.choice(SCHEMA.names)
    place = SCHEMA.names.index(name)
    ends: list[Any] = []
    while len(ends) < 2:
        value = random_row(draw, draw.randrange(20))[place]
        ends += [] if value is None else [value]
    return Range(name, *(pa.scalar(one, TYPES[name]) for one in sorted(ends)))


def arrow(rows: list[Row]) -> pa.Table:
    listed = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    fields = [pa.field(name, kind) for name, kind in TYPES.items()]
    return pa.Table.from_pylist(listed, pa.schema(fields))


def inside(wanted: Range, rows: list[Row]) -> set[Row]:
    place = SCHEMA.names.index(wanted.column)
    low, high = wanted.low.as_py(), wanted.high.as_py()
    return {row for row in rows if row[place] is not None and low <= row[place] <= high}


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row[name] for name in SCHEMA.names) for row in table.to_pylist()]


# --- bounds --------------------------------------------------------------------------------------

NOON, NEXT = dt.datetime(1969, 12, 31, 12, tzinfo=UTC), dt.datetime(1970, 1, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "bounds", "expected"),
    [
        ("n", pa.array([7, -3], pa.int64()), [-3, 7]),
        ("n", pa.array([2**40, -3]), [-3, 2**40]),
        ("id", pa.array([7, 7], pa.int8()), [7, 7]),
        ("at", pa.array([NEXT, NOON]), [NOON, NEXT]),
        ("naive", pa.array([NEXT, NOON]), [NOON.replace(tzinfo=None), NEXT.replace(tzinfo=None)]),
        # A day that is compared with a time is its first moment: the day before is no candidate.
        ("day", pa.array([NEXT, NOON]), [NOON.date(), NEXT.date()]),
        ("day", pa.array([NEXT.date(), NOON.date()]), [NOON.date(), NEXT.date()]),
        ("at", pa.array([NEXT.date()]), [NEXT.replace(hour=0)] * 2),
        ("n", pa.array([7, None]), None),
        ("n", pa.array([], pa.int64()), None),
        ("n", pa.array([1.5, 2.5]), None),
        ("day", pa.array(["2024-01-01"]), None),
        ("n", pa.array([NOON.date()]), None),
    ],
)
def test_bounds_become_a_range(column: str, bounds: pa.Array, expected: list[Any] | None) -> None:
    found = range_of(column, TYPES[column], pa.chunked_array([bounds]))
    assert (found and [found.low.as_py(), found.high.as_py()]) == expected


def test_a_bound_beyond_the_column_type_finds_what_there_is() -> None:
    table = ResidentTable(rel("t"), ("id",), arrow([(k, None, None, None, k) for k in range(5)]))
    wanted = range_of("n", pa.int32(), pa.chunked_array([[3, 2**40]]))
    assert wanted is not None
    assert {row[0] for row in rows_of(table.within(wanted))} == {3, 4}
    assert {row[0] for row in rows_of(wanted.rows_of(table.rows()))} == {3, 4}


# --- look-ups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(12))
def test_a_resident_table_finds_what_a_filter_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_SMALL", 4)
    draw = random.Random(seed)
    model = {k: random_row(draw, k) for k in draw.sample(range(40), draw.choice([0, 30]))}
    table = ResidentTable(rel("c.t"), SCHEMA.key, arrow(list(model.values())))
    for _ in range(20):
        going = draw.sample(sorted(model), min(len(model), draw.randrange(6)))
        old = [model.pop(key) for key in going]
        come = draw.sample(sorted(set(range(60)) - set(model)), draw.randrange(6))
        model |= (new := {key: random_row(draw, key) for key in come})
        table.apply(arrow(old).select(["id"]), arrow(list(new.values())))
        for _ in range(4):
            wanted = random_range(draw)
            found = rows_of(table.within(wanted))
            assert len(found) == len(set(found))
            assert set(found) == inside(wanted, list(model.values()))
        assert table.within(wanted, ["day", "id"]).column_names == ["day", "id"]
        if draw.random() < 0.2:
            table.merge()


def test_null_may_come_where_its_hash_is_a_value() -> None:
    """More rows than asked for are fine: no outcome of theirs changes."""
    table = ResidentTable(rel("t"), ("id",), arrow([(1, None, None, None, None)]))
    wide = Range("n", pa.scalar(0, pa.int64()), pa.scalar(2**63 - 1, pa.int64()))
    assert wide.rows_of(table.rows()).num_rows == 0
    assert table.within(wide).num_rows <= 1


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    copies._open.cache_clear()
    return tmp_path


def mirrored(
    folder: Path, draw: random.Random, tails: Share | None = None
) -> tuple[Relation, list[Row]]:
    """A table of two base files and a tail of some epochs, and its rows."""
    mirror = Mirror(folder, SCHEMA)
    state = mirror.create()
    model = {key: random_row(draw, key) for key in range(40)}
    for number in range(2):
        rows = [model[key] for key in range(20 * number, 20 * number + 20)]
        marker = stage(mirror, rows, name=f"f{number}", chunk=number)
        state = replace(state, base_version=mirror.register(number + 1, [marker], {}))
    for epoch in range(3, 7):
        changes: list[tuple[str, Row]] = []
        for key in draw.sample(range(60), 8):
            old, new = model.pop(key, None), draw.choice([None, random_row(draw, key)])
            changes += [] if old is None else [("-U" if new else "-D", old)]
            if new is not None:
                model[key] = new
                changes.append(("+U" if old else "+I", new))
        state = replace(state, changelog_version=mirror.append(epoch, delta_of(changes, SCHEMA)))
    return Relation(mirror, state, tails), list(model.values())


@pytest.mark.parametrize("seed", seeds(6))
def test_files_and_tails_have_what_a_filter_finds(disk: Path, seed: int) -> None:
    draw = random.Random(seed)
    relation, model = mirrored(disk / "t", draw)
    files, schema = [path for path, _ in relation.base_files], relation.base_schema()
    none = relation.tail_schema().empty_table()
    for _ in range(10):
        wanted = random_range(draw)
        base = look_up_range(files, schema, schema, wanted, 1_000)
        found = relation.rows(base, none, None, SCHEMA.names, False, wanted)
        assert sorted(rows_of(found), key=repr) == sorted(inside(wanted, model), key=repr)
        assert look_up_range(files, schema, schema, wanted, 3).num_rows == min(3, base.num_rows)


def test_a_file_without_room_for_a_copy_is_read(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    relation, _ = mirrored(disk / "t", random.Random(0))
    files, schema = [path for path, _ in relation.base_files], relation.base_schema()
    wanted = Range("n", pa.scalar(-2), pa.scalar(2))
    expected = look_up_range(files, schema, schema, wanted, 1_000)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(copies, "_opened", full)
    found = look_up_range(files, schema, schema, wanted, 1_000)
    assert sorted(rows_of(found), key=repr) == sorted(rows_of(expected), key=repr)
    assert look_up_range(files, schema, schema, wanted, 2).num_rows == 2
    assert "no space left" in capsys.readouterr().err


# --- executors -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_and_memory_find_the_same(disk: Path, spark: SparkSession) -> None:
    draw = random.Random(5)
    relation, model = mirrored(disk / "t", draw)
    relations = {"c.t": relation}
    far = SparkExecutor(Spark.of(spark), keyed(relations))
    on_disk = SparkExecutor(
        Spark.of(spark), {rel("c.t"): Relation(relation.mirror, relation.state, Share(9))}
    )
    near = Executors(far, keyed(relations), "auto", Memory(1 << 20))
    relation.state = replace(relation.state, phase="loaded")
    assert near.warm({rel("c.t"): [("at",), ("day",)]}) == []
    requests = [
        Request(rel("c.t"), None, SCHEMA.names, within=random_range(draw)) for _ in range(6)
    ]
    found = (executor.fetch(requests) for executor in (near, far, on_disk))
    for request, one, other, third in zip(requests, *found, strict=True):
        assert request.within is not None
        expected = sorted(inside(request.within, model), key=repr)
        assert sorted(rows_of(one), key=repr) == expected
        assert sorted(rows_of(other), key=repr) == expected
        assert sorted(rows_of(third), key=repr) == expected
    keys = pa.table({"id": pa.array([0, 7, 21, 45, 59, 99], SCHEMA.arrow.field("id").type)})
    requests = [Request(rel("c.t"), keys, SCHEMA.names), Request(rel("c.t"), None, SCHEMA.names)]
    for one, other, third in zip(*(x.fetch(requests) for x in (near, far, on_disk)), strict=True):
        assert sorted(rows_of(one), key=repr) == sorted(rows_of(other), key=repr)
        assert sorted(rows_of(other), key=repr) == sorted(rows_of(third), key=repr)
    most = replace(requests[0], within=Range("id", pa.scalar(0), pa.scalar(99)), most=3)
    for executor in (near, far):
        with pytest.raises(TooManyRowsError, match=r"more than 3 rows of c\.t"):
            executor.fetch([most])
    near.close()


@pytest.mark.spark
@pytest.mark.parametrize("empty", [1, 2, 3])
def test_spark_sees_rows_behind_empty_chunks(spark: SparkSession, empty: int) -> None:
    rows = pa.table({"id": [1, 2]})
    chunks = pa.concat_tables([rows.slice(0, 0)] * empty + [rows])
    found = SparkExecutor(Spark.of(spark), {}).run("SELECT id FROM t", {"t": chunks}, None)
    assert found["id"].to_pylist() == [1, 2]


MINUTE = dt.timedelta(minutes=1)


class NoSpark:
    """A stand-in where nothing may run on Spark."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AssertionError(name)


def test_how_long_texts_are_is_seen_and_not_guessed(disk: Path) -> None:
    """Eight columns of a letter each: 40 bytes a row, where a guess says 200."""
    letters = tuple(f"c{n}" for n in range(8))
    columns = [
        Column("id", parse_type("bigint"), nullable=False),
        *(Column(name, parse_type("string")) for name in letters),
    ]
    schema = TableSchema(tuple(columns), ("id",))
    rows = pa.Table.from_pylist(
        [{"id": n, **dict.fromkeys(letters, "x")} for n in range(20_000)], schema=schema.arrow
    )
    mirror = Mirror(disk / "t", schema)
    state = mirror.create()
    version = mirror.register(
        1, [stage(mirror, map(tuple, map(dict.values, rows.to_pylist())))], {}
    )
    state = replace(state, base_version=version, rows=rows.num_rows, phase="loaded")
    # With an index and what a merge takes, some three times the rows.
    made = Executors(
        NoSpark(),  # type: ignore[arg-type]
        {rel("c.t"): Relation(mirror, state)},
        "local",
        Memory(3 * rows.nbytes * 16 // 7),
    )
    assert 2 * rows.num_rows * row_bytes(columns) > made._memory.tables
    assert made.warm({rel("c.t"): []}) == []
    (answer,) = made.fetch([Request(rel("c.t"), pa.table({"id": [5]}), ("c0", "c7"))])
    assert answer.to_pylist() == [{"c0": "x", "c7": "x"}]
    made.close()


def test_a_tick_over_a_large_table_reads_a_band(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no table to bring to the driver whole; ten of its rows expire."""
    monkeypatch.setattr(executors, "WHOLE_ROWS", 1_000)
    rows = [(n, START + n * MINUTE / 10, None, None, n % 7) for n in range(20_000)]
    mirror = Mirror(disk / "t", SCHEMA)
    state = mirror.create()
    version = mirror.register(1, [stage(mirror, rows)], {})
    state = replace(state, base_version=version, rows=len(rows), phase="loaded")
    pinned = [START + 60 * 24 * MINUTE]
    made = Executors(
        NoSpark(),  # type: ignore[arg-type]
        {rel("c.t"): Relation(mirror, state)},
        "local",
        Memory(1 << 30),
        lambda: int(pinned[0].timestamp() * 1000),
    )
    assert made.warm({rel("c.t"): [("at",)]}) == []
    sql = "select id, at from c.t where at > now() - interval 1 hour"
    plan = compile_view(parse_view(sql, "v"), keyed({"c.t": SCHEMA}))
    clock = [
        pinned_rows(INSTANT, int(at.timestamp() * 1000)) for at in (pinned[0], pinned[0] + MINUTE)
    ]
    tick = pa.concat_tables(clock).append_column(WEIGHT, pa.array([-1, 1], pa.int32()))
    delta, executor = made.run(plan, {INSTANT: Changes(tick)})
    assert executor == "local"
    assert delta is not None
    assert made.rows_read == 11  # both ends belong to the band
    expired = sorted(delta.rows["id"].to_pylist())
    first = (60 * 24 - 60) * 10
    assert expired == list(range(first + 1, first + 11))
    assert set(delta.rows[WEIGHT].to_pylist()) == {-1}
    made.close()


def test_rows_are_not_blamed_where_the_table_is_too_large(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that was computed as a whole failed: none of the changes is told to be why."""
    monkeypatch.setattr(executors, "WHOLE_ROWS", 1)
    mirror = Mirror(disk / "t", SCHEMA)
    state = replace(mirror.create(), rows=5)
    relation = {"c.t": Relation(mirror, state)}
    made = Executors(NoSpark(), keyed(relation), "local", Memory(1 << 30))  # type: ignore[arg-type]
    sql = "select a.id from c.t a join c.t b on a.n < b.n"
    plan = compile_view(parse_view(sql, "v"), keyed({"c.t": SCHEMA}))
    rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, (1, START, None, None, 1), strict=True))])
    changed = rows.append_column(WEIGHT, pa.array([1], pa.int32()))
    with pytest.raises(TooManyRowsError):
        made.run(plan, {rel("c.t"): Changes(changed)})
    found = made.failing_rows(plan, {rel("c.t"): changed}, lambda error: True)
    assert found is None
    made.close()


class Far:
    """A stand-in for Spark that finds nothing, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[RelationId] = []

    def fetch(self, requests: list[Request]) -> list[pa.Table]:
        self.asked += [request.table for request in requests]
        return [SCHEMA.arrow.empty_table() for _ in requests]


def test_a_table_that_outgrows_memory_is_looked_up_far_and_told_once(disk: Path) -> None:
    mirrors = {name: mirrored(disk / name, random.Random(1))[0] for name in ("c.a", "c.b")}
    for relation in mirrors.values():
        relation.state = replace(relation.state, phase="loaded")
    far = Far()
    near = Executors(far, keyed(mirrors), "auto", Memory(1 << 20))  # type: ignore[arg-type]
    assert near.warm({}) == []
    keys = pa.table({"id": pa.array([5_000], pa.int64())})
    requests = [Request(rel(name), keys, SCHEMA.names) for name in mirrors]
    rows = [(n, START, None, None, n % 7) for n in range(1_000, 9_000)]
    for epoch in range(2):
        (found, _) = near.fetch(requests)
        assert found.num_rows == 0
        assert far.asked == [rel("c.a")] * epoch
        if not epoch:
            come = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
            near.move({rel("c.a"): weighted(pa.Table.from_pylist(come, SCHEMA.arrow), 1)})
            assert (near.left(), near.left()) == ([rel("c.a")], [])
            assert (near.news(), near.news()) == (["looked up on Spark, beyond memory: c.a"], [])
    near.close()
