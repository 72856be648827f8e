"""Small files: which of them are written together into a larger one, so that few are left."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pyarrow as pa

from mview.delta.parquet import DataFile

#: Rows of a large file. A changed row costs a rewrite of its file: larger is dearer to change,
#: smaller makes more files to open for a full read.
TARGET_ROWS = 131_072


class Large:
    """How many bytes a large file has in memory, where rows are wide.

    Args:
        nbytes: so many.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


#: Whoever changes a row reads its file and writes it anew, so an engine sets it by its budget.
LARGE = Large(64 << 20)

#: Files of one tier before they are merged. A row is rewritten once per tier: three times.
_FAN = 8

#: Upper bounds of the tiers, in rows; larger files are left alone.
_TIERS = (1 << 10, 1 << 13, 1 << 16)


def is_small(file: DataFile) -> bool:
    """Whether a file should become part of a larger one when it is at hand."""
    return file.rows < TARGET_ROWS // 2 and file.size < LARGE.nbytes // 4


def is_full(rows: int, nbytes: int) -> bool:
    """Whether rows in memory are as many as a large file should have."""
    return rows >= TARGET_ROWS or nbytes >= LARGE.nbytes


def crowded(files: Iterable[DataFile]) -> list[DataFile]:
    """The files of the lowest tier that has too many of them; none when all is well."""
    tiers: list[list[DataFile]] = [[] for _ in _TIERS]
    # Larger ones are left alone, however few rows they have: a tier is held at once.
    alone = LARGE.nbytes // 2 // _FAN
    for file in files:
        for number, bound in enumerate(_TIERS):
            if file.rows < bound and file.size < alone:
                tiers[number].append(file)
                break
    return next((tier for tier in tiers if len(tier) >= _FAN), [])


def pieces(rows: pa.Table) -> list[pa.Table]:
    """Rows cut into parts of TARGET_ROWS, or of `LARGE`, about, in order; none for no rows."""
    count = rows.num_rows
    if 0 < count < TARGET_ROWS and rows.get_total_buffer_size() < LARGE.nbytes:
        return [rows]  # for which the bytes of every part need not be counted
    wanted = max(round(count / TARGET_ROWS), round(rows.nbytes / LARGE.nbytes), 1)
    parts = min(wanted, count)
    bounds = [count * number // max(parts, 1) for number in range(parts + 1)]
    return [rows.slice(low, high - low) for low, high in pairwise(bounds)]
