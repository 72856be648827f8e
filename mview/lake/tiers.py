"""Small files: which of them are written together into a larger one, so that few are left."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pyarrow as pa

from mview.lake.parquet import DataFile

#: Rows of a large file. A changed row costs a rewrite of its file: larger is dearer to change,
#: smaller makes more files to open for a full read.
TARGET_ROWS = 131_072

#: Files of one tier before they are merged. A row is rewritten once per tier: three times.
_FAN = 8

#: Upper bounds of the tiers, in rows; larger files are left alone.
_TIERS = (1 << 10, 1 << 13, 1 << 16)


def crowded(files: Iterable[DataFile]) -> list[DataFile]:
    """The files of the lowest tier that has too many of them; none when all is well."""
    tiers: list[list[DataFile]] = [[] for _ in _TIERS]
    for file in files:
        for number, bound in enumerate(_TIERS):
            if file.rows < bound:
                tiers[number].append(file)
                break
    return next((tier for tier in tiers if len(tier) >= _FAN), [])


def pieces(rows: pa.Table) -> list[pa.Table]:
    """Rows cut into parts of about TARGET_ROWS, in order; none for no rows."""
    count = rows.num_rows
    parts = max(1, round(count / TARGET_ROWS)) if count else 0
    bounds = [count * number // max(parts, 1) for number in range(parts + 1)]
    return [rows.slice(low, high - low) for low, high in pairwise(bounds)]
