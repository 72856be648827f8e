"""Compaction of Iceberg tables: small files joined, gone rows left out, manifests made few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

from mview.schema import TableSchema
from mview_connectors.followers.iceberg.files import gone_positions, live_rows, write_deletes
from mview_connectors.followers.iceberg.index import Numbers
from mview_connectors.followers.iceberg.rows import RowsWriter
from mview_connectors.followers.iceberg.snapshots import (
    Commit,
    SnapshotChange,
    current,
    entries,
    prepare,
)

#: A data file below this size is small. More small ones than so many in a partition are joined; so
#: many files of deletes or manifests are made few.
_SMALL_BYTES, _MANY = 16 << 20, 8
#: A data file of whose rows so many are gone is written anew.
_GONE_SHARE = 0.2
#: Files of about so many bytes are written anew in one commit: in few seconds, so that it fits
#: between two commits of a runner.
_BITE_BYTES = 128 << 20


class Compaction(NamedTuple):
    """What shows the same rows in fewer files.

    Attributes:
        commit: shows it.
        replaced: data files that go.
        written: data files that come.
        is_last: whether there are few files after it.
    """

    commit: Commit
    replaced: int
    written: int
    is_last: bool


def compacted(
    table: Any, schema: TableSchema, summary: dict[str, str], file_bytes: int
) -> Compaction | None:
    """What shows the same rows in fewer files, a bite of it; None: there are few.

    Args:
        table: the Iceberg table.
        schema: its columns.
        summary: further entries of the snapshot's summary.
        file_bytes: rows of one file take about so much memory.
    """
    data, deletes = entries(table)
    gone = gone_positions(table, (entry.data_file for entry in deletes))
    all_worn = _worn(data, gone)
    worn = _bite(data, all_worn)
    manifests = current(table).manifests(table.io)
    if not worn and len(deletes) <= _MANY and len(manifests) <= _MANY:
        return None
    writer = RowsWriter(table, schema, file_bytes, 0)
    change = SnapshotChange("replace", summary, removed=list(deletes))
    places = []
    for entry in data:
        file = entry.data_file
        positions = gone.get(file.file_path)
        if file.file_path not in worn:
            change.kept.append(entry)
            if positions is not None:
                places.append((file, positions))
            continue
        change.removed.append(entry)
        for _, rows in live_rows(table, file, schema.names, positions):
            for batch in rows.to_batches():
                writer.add(batch)
    writer.flush()
    change.data, change.deletes = writer.files, write_deletes(table, places)
    is_last = len(worn) == len(all_worn)
    return Compaction(prepare(table, change), len(worn), len(change.data), is_last)


def _bite(data: Iterable[Any], worn: set[str]) -> set[str]:
    """Of worn files: as many as are written anew at once, those of a partition together."""
    files = [entry.data_file for entry in data if entry.data_file.file_path in worn]
    files.sort(key=lambda file: (file.spec_id, repr(file.partition)))
    before = accumulate((file.file_size_in_bytes for file in files), initial=0)
    return {file.file_path for file, size in zip(files, before, strict=False) if size < _BITE_BYTES}


def _worn(data: Iterable[Any], gone: dict[str, Numbers]) -> set[str]:
    """The data files that are to be written anew."""
    worn, small = set(), defaultdict(list)
    for entry in data:
        file = entry.data_file
        if len(gone.get(file.file_path, ())) > _GONE_SHARE * file.record_count:
            worn.add(file.file_path)
        elif file.file_size_in_bytes < _SMALL_BYTES:
            small[file.spec_id, file.partition].append(file.file_path)
    for paths in small.values():
        if len(paths) > _MANY:
            worn.update(paths)
    return worn
