"""The offsets of a micro-batch, read from the streaming checkpoint's own log.

`foreachBatch` is not told its offsets. Spark writes them to `<checkpoint>/offsets/<batch>` before
the batch runs: two header lines (version, metadata), then one JSON line per source.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mview.errors import CorruptionError


@dataclass(frozen=True)
class BatchOffsets:
    """Where a batch ends.

    Attributes:
        connections: offsets by connection.
        watermark: source milliseconds, -1 unknown.
        chunks: snapshot chunks handed out so far, by table; none in the live query.
        pinned_ms: what `now()` is in the batch's epoch; 0: no view asks.
    """

    connections: dict[str, dict[str, Any]]
    watermark: int
    chunks: dict[str, int]
    pinned_ms: int = 0


def batch_offsets(checkpoint: Path, batch: int) -> BatchOffsets:
    """The end offsets of a batch.

    Raises:
        CorruptionError: the log entry is missing or has another form.
    """
    file = checkpoint / "offsets" / str(batch)
    try:
        lines = file.read_text().splitlines()
        sources = [orjson.loads(line) for line in lines[2:] if line != "-"]
    except (OSError, ValueError) as error:
        raise CorruptionError(
            f"offsets of batch {batch} cannot be read: {error}",
            where=str(file),
            safe="published epochs are untouched",
            hint="run again; if it stays, remove the checkpoint folder: loading starts over",
        ) from error
    chunks: dict[str, int] = next(
        (source["chunks"] for source in sources if "chunks" in source), {}
    )
    changes = next((source for source in sources if "connections" in source), None)
    if changes is None:
        raise CorruptionError("the batch has no changelog offsets", where=str(file))
    return BatchOffsets(changes["connections"], changes["watermark"], chunks, changes["pinned_ms"])
