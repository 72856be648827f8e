from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from mview.execute.relations import Relation
from mview.schema import Column, TableSchema
from mview.store.mirror import Mirror
from tests.store.mirrors import delta_of

SCHEMA = TableSchema((Column("id", pa.int64(), nullable=False),), ("id",))


def test_the_size_of_a_tail_follows_its_epochs(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, SCHEMA)
    state = replace(mirror.create(), phase="loaded")
    relation = Relation(mirror, state)
    deltas = {}
    for epoch in range(1, 5):
        ids = range(10 * epoch, 11 * epoch)
        deltas[epoch] = delta = delta_of([("+I", (n,)) for n in ids], SCHEMA)
        state = replace(state, changelog_version=mirror.append(epoch, delta))
        relation.move(state, delta, epoch)
    relation.move(state, deltas[1].slice(0, 0), 5)
    opened = Relation(mirror, state)
    for folded in (0, 2, 3, 4):
        tail = [delta for epoch, delta in deltas.items() if epoch > folded]
        relation.move(replace(state, folded=folded), None, 6 + folded)
        assert relation.tail_rows == sum(delta.num_rows for delta in tail)
        assert relation.tail_bytes == sum(delta.nbytes for delta in tail)
    assert opened.tail_rows == 1 + 2 + 3 + 4
    opened.move(replace(state, folded=4), None, 7)
    assert (opened.tail_rows, opened.tail_bytes) == (0, 0)
