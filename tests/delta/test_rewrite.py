"""Which files a large upsert touches is told as for a small one."""

from __future__ import annotations

import datetime as dt
import random
from bisect import bisect_left, bisect_right
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mview.delta import rewrite
from mview.delta.log import DeltaLog
from mview.rows import match
from mview.rows.equality import as_shown
from mview.rows.match import IndexedRows, key_codes, row_codes
from mview.schema import Column, TableSchema, parse_type
from mview.store.mirror import Mirror
from tests.seeds import seeds
from tests.store.mirrors import delta_of, stage

_DAY = dt.date(1970, 1, 1)
_AT = dt.datetime(1970, 1, 1)
_NAN = float("nan")
#: Per type some values that are near to each other, or that have an order of their own.
VALUES: dict[str, list[Any]] = {
    "boolean": [False, True],
    "tinyint": [-128, 0, 127],
    "bigint": [-(2**63), -1, 0, 1, 2**63 - 1],
    "float": [0.0, -0.0, _NAN, float("inf"), -1.5],
    "double": [0.0, -0.0, _NAN, float("-inf"), 1.5],
    "decimal(30,2)": [Decimal("-0.01"), Decimal("0.00"), Decimal(10**27)],
    "string": ["", "a", "a\0", "B", "é", "\U0001f600", "\uffff"],
    "binary": [b"", b"\0", b"\x7f", b"\x80", b"\xff"],
    "date": [_DAY, _DAY - dt.timedelta(1), dt.date(1, 1, 1)],
    "timestamp": [
        (_AT + dt.timedelta(microseconds=n)).replace(tzinfo=dt.timezone.utc) for n in (-1, 0)
    ],
    "timestamp_ntz": [_AT, _AT - dt.timedelta(microseconds=1), dt.datetime(9999, 12, 31)],
    "array<bigint>": [[], [1], [None]],
}


@pytest.mark.parametrize("name", VALUES)
def test_many_values_are_in_the_order_of_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is asked of it: its length, and where a bound stands, from some place on."""
    for seed in seeds(20):
        chance = random.Random(seed)
        drawn = [chance.choice([None, *VALUES[name]]) for _ in range(chance.randrange(12))]
        cut = chance.randrange(len(drawn) + 1)
        kind = parse_type(name)
        column = pa.chunked_array([pa.array(drawn[:cut], kind), pa.array(drawn[cut:], kind)])
        few = rewrite._orderly(column)
        monkeypatch.setattr(rewrite, "_LISTED", -1)
        many = rewrite._orderly(column)
        monkeypatch.undo()
        assert [many[place] for place in range(len(many))] == list(few), seed
        assert name.startswith("array") or isinstance(many, rewrite._Ordered)
        for bound in few:
            assert bisect_left(many, bound) == bisect_left(few, bound)
            begin = chance.randrange(len(few))
            assert bisect_right(many, bound, begin) == bisect_right(few, bound, begin)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_compaction_of_many_changes_writes_the_files_of_few(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    kind = chance.choice(["string", "bigint", "timestamp", "decimal(30,2)"])
    columns = (Column("k", parse_type(kind), nullable=False), Column("v", pa.int64()))
    schema = TableSchema(columns, ("k",))
    keys = sorted(_key(kind, number) for number in chance.sample(range(1000), 90))
    written = []
    for listed in (rewrite._LISTED, 0):
        monkeypatch.setattr(rewrite, "_LISTED", listed)
        draw, mirror = random.Random(seed), Mirror(tmp_path / str(listed), schema)
        state = mirror.create()
        loaded = [keys[low : low + 20] for low in (0, 20, 40)]
        markers = [
            stage(mirror, [(key, 0) for key in part], name=str(number), chunk=number)
            for number, part in enumerate(loaded)
        ]
        state = replace(state, base_version=mirror.register(1, markers, {}))
        there = dict.fromkeys((key for part in loaded for key in part), 0)
        for epoch in range(2, 6):
            changes = []
            for key in draw.sample(keys, 12):
                if (old := there.pop(key, None)) is not None:
                    changes.append(("-U", (key, old)))
                if draw.random() < 0.7:
                    there[key] = epoch
                    changes.append(("+U", (key, epoch)))
            version = mirror.append(epoch, delta_of(changes, schema))
            state = replace(state, changelog_version=version)
        version, folded = mirror.compact(state)
        state = replace(state, base_version=version, folded=folded)
        files = [part.to_pylist() for part in mirror.parts(state)]
        assert {row["k"]: row["v"] for part in files for row in part} == there
        written.append(sorted(files, key=str))
    assert written[0] == written[1]


def _key(kind: str, number: int) -> Any:
    if kind == "string":
        return f"é{number % 7}\U0001f600{number}"
    if kind == "timestamp":
        return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(hours=number - 500)
    return Decimal(number - 500) if kind.startswith("decimal") else number - 500


@pytest.mark.parametrize("seed", seeds(30))
def test_what_is_known_of_a_change_is_what_would_be_found(seed: int, tmp_path: Path) -> None:
    """Keys are coded once, and hashed once for the files that have them from then on."""
    chance = random.Random(seed)
    kinds = {f"k{n}": chance.choice([*VALUES]) for n in range(chance.choice([1, 1, 2]))}
    rows = pa.table(
        {
            **{name: _drawn(chance, kind) for name, kind in kinds.items()},
            "v": pa.array(np.arange(40), pa.int64()),
        }
    )
    key, log = list(kinds), DeltaLog(tmp_path)
    rows = rows.take(pa.array(np.sort(rewrite.first_rows(row_codes([rows.select(key)])[0])[0])))
    weight = np.array([chance.choice([1, 1, -1]) for _ in range(rows.num_rows)])
    told = key_codes(rows, key)
    assert key_codes(rows, key) is told
    assert told.codes.tolist() == row_codes([rows.select(key)])[0].tolist()

    rewriter = rewrite.Rewriter(log, rows.schema, key, "view v")
    upsert = rewriter.weighted(rows, weight, told)
    again = rewriter.weighted(rows.slice(0), weight)
    for ours, theirs in ((upsert.keys, again.keys), (upsert.comes, again.comes)):
        assert as_shown(ours).equals(as_shown(theirs))
    assert upsert.comes["v"].to_pylist() == rows["v"].filter(pa.array(weight > 0)).to_pylist()
    comes = replace(upsert, goes=None)
    (file,) = rewriter.plan("a", comes, {}).adds or [None]
    if file is not None:
        known, made = rewriter._looked.get(file.path), IndexedRows.of(upsert.comes.select(key))
        assert known is not None
        assert known.index.hashes.tolist() == made.index.hashes.tolist()
        assert as_shown(known.rows).equals(as_shown(made.rows))


def _drawn(chance: random.Random, kind: str) -> pa.Array:
    return pa.array([chance.choice([None, *VALUES[kind]]) for _ in range(40)], parse_type(kind))


def test_codes_are_forgotten_with_their_table() -> None:
    rows = pa.table({"k": [1, 2, 1], "v": ["a", "b", "c"]})
    place = id(rows), ("k",)
    assert key_codes(rows, ["k"]).codes.tolist() == [0, 1, 0]
    assert key_codes(rows, ["v"]).codes.max() == 2
    assert key_codes(rows, []).codes.tolist() == [0, 0, 0]
    assert place in match._coded
    del rows
    assert place not in match._coded


def test_a_file_of_some_rows_that_come_holds_no_others(tmp_path: Path) -> None:
    """It is remembered by what it has."""
    rows = pa.table({"k": np.arange(20_000), "v": np.arange(20_000)})
    rewriter = rewrite.Rewriter(DeltaLog(tmp_path), rows.schema, ["k"], "view v")
    upsert = rewriter.weighted(rows, np.ones(20_000, np.int64))
    last = rewrite._Part(None, added=np.arange(19_990, 20_000))
    (some,) = rewriter._after(last, upsert)
    assert some.equals(rows.slice(19_990))
    assert some.get_total_buffer_size() == some.nbytes == 160
    (whole,) = rewriter._after(rewrite._Part(None, added=np.arange(20_000)), upsert)
    assert whole.equals(rows)
    assert (
        whole["v"].chunk(0).buffers()[1].address == upsert.comes["v"].chunk(0).buffers()[1].address
    )
