"""The chunk's state machine, rule by rule."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from mview.changelog import batch_schema, encode_position
from mview.clock import END_OF_TIME
from mview.errors import CorruptionError, UserError
from mview.merge.rules import ChunkState, LoadingTable, Phase, Release, step
from mview.merge.stateful import _merge_group
from mview.rows.key_sets import KeySet
from mview.schema import Column, TableSchema
from mview.snapshot import Marker
from tests.merge.real import COMPOSITE, SINGLE, change_batch
from tests.models.merge import Event
from tests.relations import rel

TABLE = LoadingTable(rel("db.t"), SINGLE, delay_ms=10, begin={"p": encode_position((7, 6))})
UNREAD = ChunkState(KeySet.empty(SINGLE.key_arrow))
MARK = Marker("db.t", 0, "f1", 3, 30, "00", 100)


def batch(*keys: int, kind: str = "u", position: int = 6) -> pa.Table:
    event = [(Event(kind, 0, (k,), (k, 1, "x"), position, "p"), 0) for k in keys]  # type: ignore[arg-type]
    return change_batch(SINGLE, event)


def seen(state: ChunkState) -> list[int]:
    return [int(key) for key in state.seen.values]


def after(*steps: tuple[list[pa.Table], list[Marker], int]) -> tuple[ChunkState, Release | None]:
    state, release = UNREAD, None
    for changes, markers, watermark in steps:
        assert release is None
        state, release = step(state, changes, markers, watermark, TABLE)
        state = ChunkState.from_bytes(state.to_bytes(), SINGLE.key_arrow)
    return state, release


@pytest.mark.parametrize("kind", ["c", "u", "d"])
def test_any_change_marks_its_key_before_and_after_the_read(kind: str) -> None:
    state, _ = after(([batch(3, kind=kind), batch(1)], [], 0), ([batch(2)], [MARK], 0))
    assert (state.phase, seen(state), state.marker) == (Phase.BUFFERED, [1, 2, 3], MARK)


def test_release_excludes_also_the_keys_of_its_own_epoch() -> None:
    state, release = after(([batch(1)], [MARK], 0), ([batch(9)], [], 111))
    assert release == Release(MARK, KeySet.of(batch(1, 9), SINGLE.key_arrow))
    assert state == ChunkState(KeySet.empty(SINGLE.key_arrow), Phase.RELEASED)
    assert state.to_bytes() == b"r"


@pytest.mark.parametrize(("watermark", "released"), [(0, False), (110, False), (111, True)])
def test_release_needs_a_watermark_above_high_ts_plus_t(watermark: int, released: bool) -> None:
    _, release = after(([], [MARK], 0), ([], [], watermark))
    assert (release is not None) == released


def test_no_release_in_the_epoch_of_the_marker() -> None:
    state, release = after(([], [MARK], 1_000))
    assert (state.phase, release) == (Phase.BUFFERED, None)
    assert step(state, [], [], 1_000, TABLE)[1] is not None


def test_first_read_counts() -> None:
    again = Marker("db.t", 0, "f0", 9, 90, "00", 200)
    state, _ = after(([], [MARK], 0), ([], [again], 0))
    assert state.marker == MARK
    twice, _ = after(([], [MARK, again], 0))
    assert twice.marker == again, "within an epoch the first by file name"
    released, _ = after(([], [MARK], 0), ([], [], 500))
    assert step(released, [], [again], 500, TABLE) == (released, None)


def test_released_chunk_forgets_all() -> None:
    released, _ = after(([batch(1)], [MARK], 0), ([], [], 500))
    assert step(released, [batch(1, 2)], [], 900, TABLE) == (released, None)


def test_a_nan_of_other_bits_is_a_seen_key() -> None:
    """Such a row of a chunk would come again, beside the newer one of its key."""
    key = Column("x", pa.float64(), nullable=False)
    table = LoadingTable(rel("db.t"), TableSchema((key,), ("x",)), delay_ms=10)
    usual, other, zero = np.array([0x7FF8 << 48, 0xFFF8 << 48 | 1, 0], np.uint64).view(np.float64)
    changes = pa.table({"__op": ["u", "u"], "x": [usual, zero]})
    state = step(ChunkState(KeySet.empty(table.schema.key_arrow)), [changes], [MARK], 0, table)[0]
    release = step(state, [], [], 500, table)[1]
    assert release is not None
    read = pa.table({"x": [other, -zero, 1.0]})
    assert release.excluded.contains(read, table.schema.key_arrow).tolist() == [True, True, False]


def test_changes_from_before_the_begin_are_no_news() -> None:
    state, _ = after(([batch(1, position=5), batch(2, position=6)], [], 0))
    assert seen(state) == [2]
    truncated, _ = after(([batch(0, kind="truncate", position=5)], [], 0))
    assert not truncated.emptied


def test_changes_without_position_are_news() -> None:
    rows = batch(1).set_column(1, "__position", pa.array([""]))
    state, _ = after(([rows.cast(batch_schema(SINGLE))], [], 0))
    assert seen(state) == [1]


@pytest.mark.parametrize("first", ["marker", "truncate", "together"])
def test_truncate_empties_the_chunk_whenever_it_was_read(first: str) -> None:
    truncate = batch(0, kind="truncate")
    steps = {
        "marker": [([], [MARK], 0), ([batch(1), truncate], [], 0)],
        "truncate": [([batch(1), truncate], [], 0), ([batch(2)], [MARK], 0)],
        "together": [([batch(1), truncate], [MARK], 0)],
    }[first]
    _, release = after(*steps, ([], [], 500))
    assert release is not None
    assert (release.marker.file, release.marker.rows, len(release.excluded)) == ("", 0, 0)
    assert release.marker.chunk == 0


def test_marker_after_the_end_is_refused() -> None:
    with pytest.raises(UserError, match="closed before all chunks were read"):
        after(([], [MARK], END_OF_TIME))


def test_release_body_keeps_wide_keys() -> None:
    event = [(Event("u", 0, ("r", 1), ("r", 1, 2, "x"), 6, "p"), 0)]
    keys = KeySet.of(change_batch(COMPOSITE, event), COMPOSITE.key_arrow)
    assert Release.from_body(Release(MARK, keys).to_body()) == Release(MARK, keys)


#: Of a group that needs none.
NO_STATE = cast(Any, None)


def test_a_chunk_of_a_table_that_is_not_loaded_is_refused() -> None:
    """Its rows would be nobody's; changes pass."""
    change = {"kind": "changes", "body": b""}
    assert _merge_group(("db.t", 0), [change], NO_STATE, None) == [change]
    with pytest.raises(CorruptionError, match=r"db\.t was read, which is not being loaded"):
        _merge_group(("db.t", 0), [change, {"kind": "marker", "body": b""}], NO_STATE, None)
