from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mview.rows.match import first_rows, match, row_codes
from tests.seeds import seeds

NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [0, 1, 2**62, None]),
    "s": (pa.string(), ["", "a", "A", None]),
    "f": (pa.float64(), [0.0, -0.0, NAN, None, 1.5]),
    "g": (pa.float32(), [0.0, -0.0, NAN]),
    "b": (pa.binary(), [b"", b"\x00", None]),
    "l": (pa.list_(pa.int64()), [[], [1], [1, None], None]),
    "t": (pa.bool_(), [True, False, None]),
}


def canonical(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return repr(value)


def random_table(rng: random.Random, names: list[str], rows: int) -> pa.Table:
    columns = {
        n: pa.array([rng.choice(VALUES[n][1]) for _ in range(rows)], VALUES[n][0]) for n in names
    }
    table = pa.table(columns)
    # Several pieces, as they come from files.
    return pa.concat_tables([table.slice(0, rows // 3), table.slice(rows // 3)])


@pytest.mark.parametrize(
    "names", [["i"], ["f"], ["l"], ["s", "f"], ["i", "s", "b"], ["g", "l", "t"]]
)
@pytest.mark.parametrize("seed", seeds(5))
def test_match_equals_a_dict(names: list[str], seed: int) -> None:
    rng = random.Random(seed)
    rows, wanted = random_table(rng, names, 60), random_table(rng, names, rng.randrange(8))
    wanted = wanted.take(first_rows(row_codes([wanted])[0])[0])
    keys = {tuple(map(canonical, row.values())): n for n, row in enumerate(wanted.to_pylist())}
    expected = [
        (n, keys[key])
        for n, row in enumerate(rows.to_pylist())
        if (key := tuple(map(canonical, row.values()))) in keys
    ]
    assert list(zip(*map(np.ndarray.tolist, match(rows, wanted)), strict=True)) == expected


@pytest.mark.parametrize("names", [["f"], ["i", "s", "f", "b", "l"]])
def test_equal_rows_have_equal_codes_across_tables(names: list[str]) -> None:
    rng = random.Random(7)
    parts = [random_table(rng, names, size) for size in (40, 0, 30)]
    codes = row_codes(parts)
    assert [len(part) for part in codes] == [40, 0, 30]
    seen: dict[Any, set[int]] = defaultdict(set)
    for part, found in zip(parts, codes, strict=True):
        for row, code in zip(part.to_pylist(), found.tolist(), strict=True):
            seen[tuple(map(canonical, row.values()))].add(code)
    assert all(len(found) == 1 for found in seen.values())
    assert len({code for found in seen.values() for code in found}) == len(seen)


def test_many_wide_columns_do_not_overflow() -> None:
    size = 3000
    rng = np.random.default_rng(1)
    table = pa.table({f"c{n}": rng.permutation(size) for n in range(8)})
    (codes,) = row_codes([table])
    assert len(set(codes.tolist())) == size
