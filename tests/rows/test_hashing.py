"""Hashes of rows: the same for the same value, wherever it stands."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from mview.rows import hashing
from mview.rows.hashing import hash_rows


def hashes(values: list[bytes | None], kind: pa.DataType) -> list[int]:
    return [int(one) for one in hash_rows([pa.chunked_array([pa.array(values, kind)])])]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_long_values(kind: pa.DataType) -> None:
    sizes = [*range(4085, 4115), 8191, 65_536, 70_001]
    values: list[bytes | None] = [bytes(number % 251 for number in range(n)) for n in sizes]
    alone = [hashes([value], kind)[0] for value in values]
    assert hashes([b"", *values, None, b"x"], kind)[1:-2] == alone
    assert hashes([*reversed(values)], kind) == [*reversed(alone)]
    assert len({*alone}) == len(sizes)
    other = bytearray(values[-1] or b"")
    other[8], other[16] = other[16], other[8]
    assert hashes([bytes(other)], kind) != alone[-1:]
    sliced = pa.array([b"ab", *values], kind)[2:]
    assert [*hash_rows([pa.chunked_array([sliced])])] == alone[1:]


def test_one_long_value_among_many_makes_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def counted(words: hashing.Words) -> hashing.Words:
        rounds.append(len(words))
        return mix(words)

    mix = hashing._mix
    monkeypatch.setattr(hashing, "_mix", counted)
    hashes([b"short"] * 1_500 + [bytes(16 << 20)], pa.binary())
    assert len(rounds) < 5


def pairs(values: list[tuple[int | None, int | None]]) -> list[int]:
    columns = [pa.chunked_array([pa.array(side, pa.int64())]) for side in zip(*values, strict=True)]
    return [int(one) for one in hash_rows(columns)]


def test_two_small_integers_have_a_hash_in_their_order_that_is_theirs_alone() -> None:
    ordered = [(first, second) for first in (0, 1, 7, 2**31 - 1) for second in (0, 1, 2**32 - 1)]
    found = pairs(ordered)
    assert found == sorted({*found})
    assert len(found) == len(ordered)


@pytest.mark.parametrize("wide", [(2**32, 1), (1, 2**32), (-1, 0), (0, -1), (None, 1), (1, None)])
def test_the_hash_of_two_does_not_depend_on_other_rows(wide: tuple[int | None, int | None]) -> None:
    alone = pairs([wide]) + pairs([(1, 0)]) + pairs([(2, 3)])
    assert pairs([wide, (1, 0), (2, 3)]) == alone
    assert len({*alone}) == 3


def test_wide_integers_are_spread() -> None:
    many = np.arange(2**33, 2**33 + 10_000)
    found = pairs([(int(one), int(one) + step) for one in many for step in (0, 1)])
    assert len({*found}) == len(found)
    assert len({one >> 52 for one in found}) > 3_000
