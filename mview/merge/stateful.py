"""The merge rules as a Spark streaming operator, grouped by (table, chunk).

Everything is decided in rules.py. This module decodes a group's rows, keeps the chunk's state as
one binary column, and sets the timeout that wakes a buffered chunk when the watermark has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from mview.changelog import STREAM_DDL, from_ipc
from mview.errors import CorruptionError
from mview.merge.rules import ChunkState, LoadingTable, Release, release_ms, step
from mview.rows.key_sets import KeySet
from mview.session.worker import settle_worker
from mview.snapshot import Marker

_COLUMNS = ["kind", "table", "chunk", "rows", "event_time", "body"]


def merge_stream(stream: DataFrame, tables: Sequence[LoadingTable]) -> DataFrame:
    """Merge the snapshot chunks of `tables` with their changes.

    Args:
        stream: rows of STREAM_DDL: markers, changes, and heartbeats, which alone have an event
            time. A truncate comes once in every chunk of its table.
        tables: the tables that are being loaded; rows of other tables pass.

    Returns:
        Rows of STREAM_DDL: every `changes`, `halt` and `reject` row as it came, and one `release`
        row per chunk (body: `rules.Release`), in the epoch in which the chunk's file begins to
        count.
    """
    by_name = {str(table.table): table for table in tables}

    def merge(
        key: tuple[str, int], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        rows: list[dict[str, Any]] = []
        for frame in frames:
            rows += [dict(zip(_COLUMNS, row, strict=True)) for row in frame.itertuples(index=False)]
        yield _frame(_merge_group(key, rows, state, by_name.get(key[0])))
        settle_worker()

    # The condition must name the event time: Spark pushes any other one below the watermark, which
    # then never sees a heartbeat.
    data = stream.withWatermark("event_time", "0 seconds").where(F.col("event_time").isNull())
    return data.groupBy("table", "chunk").applyInPandasWithState(
        merge,
        outputStructType=STREAM_DDL,
        stateStructType="state binary",
        outputMode="append",
        timeoutConf=GroupStateTimeout.EventTimeTimeout,
    )


def _merge_group(
    key: tuple[str, int], rows: list[dict[str, Any]], state: GroupState, table: LoadingTable | None
) -> list[dict[str, Any]]:
    """One epoch of one chunk: its rows of the micro-batch, or none when its time has come."""
    changes = [row for row in rows if row["kind"] == "changes"]
    halts = [row for row in rows if row["kind"] in ("halt", "reject")]
    if table is None:
        if len(changes) + len(halts) < len(rows):
            raise CorruptionError(f"a chunk of {key[0]} was read, which is not being loaded")
        return changes + halts
    schema = table.schema.key_arrow
    stored = state.getOption
    old = ChunkState.from_bytes(stored[0], schema) if stored else ChunkState(KeySet.empty(schema))
    markers = [Marker.from_json(orjson.loads(r["body"])) for r in rows if r["kind"] == "marker"]
    batches = [from_ipc(row["body"]) for row in changes]
    watermark = state.getCurrentWatermarkMs()
    new, release = step(old, batches, markers, watermark, table)
    if new != old or not stored:
        state.update((new.to_bytes(),))
    if new.marker is not None:
        # Every call clears the timeout. It may not lie before the watermark; the one that is passed
        # already wakes the chunk up as soon as the watermark moves again.
        state.setTimeoutTimestamp(max(release_ms(new.marker, table), watermark))
    changes += halts
    return changes if release is None else [*changes, _release_row(key, release)]


def _release_row(key: tuple[str, int], release: Release) -> dict[str, Any]:
    return {
        "kind": "release",
        "table": key[0],
        "chunk": key[1],
        "rows": release.marker.rows,
        "event_time": None,
        "body": release.to_body(),
    }


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    types = {"chunk": "int32", "rows": "int64", "event_time": "datetime64[ns]"}
    frame: pd.DataFrame = pd.DataFrame(rows, columns=_COLUMNS).astype(types)
    return frame
