"""The offsets of a micro-batch, read from the streaming checkpoint's own log.

`foreachBatch` is not told its offsets. Spark writes them to `<checkpoint>/offsets/<batch>` before
the batch runs: two header lines (version, metadata), then one JSON line per source.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mview.files.jsonfile import damage_told
from mview.files.records import fields


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


#: What the two sources of a load say, see `mview.ingest.sources`.
_CHANGES = {"connections": dict[str, dict[str, Any]], "watermark": int, "pinned_ms": int}
_CHUNKS = {"chunks": dict[str, int]}


def batch_offsets(checkpoint: Path, batch: int) -> BatchOffsets:
    """The end offsets of a batch.

    Raises:
        CorruptionError: the log entry is missing or has another form.
    """
    file = checkpoint / "offsets" / str(batch)
    with damage_told(
        file,
        f"offsets of batch {batch} cannot be read",
        "run again; if it stays, remove the checkpoint folder: loading starts over",
        "published epochs are untouched",
    ):
        lines = file.read_text().splitlines()
        sources = [orjson.loads(line) for line in lines[2:] if line != "-"]
        # In any order: Spark numbers sources by itself.
        sources.sort(key=lambda source: isinstance(source, dict) and "chunks" in source)
        if len(sources) != 2:
            raise ValueError(f"{len(sources)} sources instead of the chunks and the changelogs")
        changes, chunks = sources
        return BatchOffsets(**fields(changes, _CHANGES), **fields(chunks, _CHUNKS))
