"""Comparing two contents that may be larger than memory: in pieces, equal rows in the same one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mview.execute.slices import difference
from mview.rows.hashing import hash_rows

#: Pieces that are made of what does not fit: each has two files that are open at once.
_BITS = 5

#: So many times pieces are made of pieces; what is still too large then are copies of few rows.
_DEPTH = 3

#: So few rows are not divided, however large they are.
_FEW = 32

#: An odd constant with well spread bits: integers are their own hashes.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

#: A part, and whether it is of the old content.
_Parts = Iterator[tuple[bool, pa.Table]]


def differences(
    new: Iterable[pa.Table],
    old: Iterable[pa.Table],
    schema: pa.Schema,
    most: int,
    *,
    signs: bool = True,
) -> Iterator[pa.Table]:
    """The rows of `new` minus those of `old`, see `difference`, in as many tables as needed.

    Args:
        new: the new content, in parts.
        old: the old one; other types that the schema can hold.
        schema: the columns of the result, without WEIGHT.
        most: bytes of both to hold at once; beyond, they go to the disk for temporary files.
        signs: rows that are equal but not identical differ.
    """
    for contents in in_pieces(new, old, schema, most):
        yield difference(*contents, signs=signs)


def in_pieces(
    new: Iterable[pa.Table],
    old: Iterable[pa.Table],
    schema: pa.Schema,
    most: int,
    *,
    by: Sequence[str] = (),
    depth: int = 0,
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Two contents, piece by piece of both.

    Args:
        new: the new content, in parts.
        old: the old one; other types that the schema can hold.
        schema: the columns of both.
        most: bytes of both to hold at once; beyond, they go to the disk for temporary files.
        by: rows that are equal in these columns are in one piece; in all, where none are named.
        depth: how often these were divided already.
    """
    sides = ((False, new), (True, old))
    parts: _Parts = (
        (side, part.select(schema.names).cast(schema)) for side, some in sides for part in some
    )
    held: list[tuple[bool, pa.Table]] = []
    size = rows = 0
    for side, part in parts:
        held.append((side, part))
        size, rows = size + part.nbytes, rows + part.num_rows
        if size > most and rows > _FEW and depth < _DEPTH:
            break
    else:
        come, gone = (
            pa.concat_tables([schema.empty_table(), *(p for s, p in held if s is side)])
            for side in (False, True)
        )
        held.clear()
        yield come, gone
        return
    with TemporaryDirectory(prefix="mview-compare-") as folder:
        _divide(chain(_drained(held), parts), schema, Path(folder), list(by), depth)
        for number in range(1 << _BITS):
            some, others = (_read(Path(folder) / f"{side}-{number}") for side in (False, True))
            yield from in_pieces(some, others, schema, most, by=by, depth=depth + 1)


def _drained(held: list[tuple[bool, pa.Table]]) -> _Parts:
    """What was held; it is freed as it is handed over."""
    while held:
        yield held.pop()


def _divide(parts: _Parts, schema: pa.Schema, folder: Path, by: list[str], depth: int) -> None:
    with ExitStack() as stack:
        writers = {
            (side, number): stack.enter_context(
                pa.ipc.new_file(str(folder / f"{side}-{number}"), schema)
            )
            for side in (False, True)
            for number in range(1 << _BITS)
        }
        for side, part in parts:
            numbers = _numbers(part.select(by or schema.names), depth)
            order = np.argsort(numbers, kind="stable")
            bounds = np.searchsorted(numbers[order], np.arange((1 << _BITS) + 1))
            rows = part.take(pa.array(order))
            for number in np.unique(numbers):
                low, high = bounds[number], bounds[number + 1]
                writers[side, int(number)].write_table(rows.slice(low, high - low))


def _numbers(rows: pa.Table, depth: int) -> npt.NDArray[np.int64]:
    """The piece of each row: equal rows have the same."""
    spread = hash_rows(rows.columns).view(np.uint64) * _SPREAD
    shift = np.uint64(64 - _BITS * (depth + 1))
    numbers: npt.NDArray[np.int64] = (spread >> shift).astype(np.int64) % (1 << _BITS)
    return numbers


def _read(file: Path) -> Iterator[pa.Table]:
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])
