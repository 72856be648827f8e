"""Hashes of rows: the same for the same value, wherever it stands."""

from __future__ import annotations

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
