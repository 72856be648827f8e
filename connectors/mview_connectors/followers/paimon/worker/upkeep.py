"""Upkeep of a table between steps: sorted runs made few, manifests made few, old snapshots gone.

pypaimon has no compaction of primary-key tables and no expiry of snapshots. What is written here is
what Paimon's own compaction writes: a snapshot of the kind COMPACT, which changes no row.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.utils.file_store_path_factory import canonical_data_file_path

from .rows import KEY_PREFIX, SEQUENCE, VALUE_KIND, file_schema, file_writer
from .snapshots import Conditional, MovedError, backwards, place, write_over

#: More sorted runs than so many in a bucket are joined, as Paimon does it.
_RUNS = 5
#: More manifests than so many are written as one.
_MANIFESTS = 30
#: Levels of a bucket, as Paimon has them where nobody says otherwise: 0 to 5.
_TOP = 5
#: So many snapshots stay whatever their age.
_KEPT = 10


def compact(table: Any, user: str, marked: Any, most_bytes: int) -> int:
    """Join sorted runs, of as many buckets as fit, and manifests, in one snapshot.

    Args:
        table: the table.
        user: Paimon's commit user.
        marked: the snapshot with the mark that stands for the rows; the new one has it, too.
        most_bytes: no more bytes of files are joined at once; rows take several times as much.

    Returns:
        The number of files that were joined.
    """
    latest = table.snapshot_manager().get_latest_snapshot()
    lists, files = ManifestListManager(table), ManifestFileManager(table)
    manifests = lists.read_all(latest)
    live = files.read_entries_parallel(manifests, drop_stats=False)
    changes: list[Any] = []
    left = most_bytes
    for entries, level in _worn(table, live, most_bytes):
        left -= _size(entries)
        if left >= 0:
            changes += _joined(table, entries, level)
    if not changes and len(manifests) <= _MANIFESTS:
        return 0
    name = uuid.uuid4()
    base, delta = (
        files.rolling_write(entries, table.options.manifest_target_size(), f"manifest-{name}-{at}")
        for at, entries in enumerate((live, changes))
    )
    base_list, delta_list = (f"manifest-list-{name}-{at}" for at in (0, 1))
    rows = sum(change.file.row_count * (1 - 2 * change.kind) for change in changes)
    snapshot = Snapshot(
        version=3,
        id=latest.id + 1,
        schema_id=table.table_schema.id,
        base_manifest_list=base_list,
        base_manifest_list_size=lists.write(base_list, base),
        delta_manifest_list=delta_list,
        delta_manifest_list_size=lists.write(delta_list, delta),
        total_record_count=latest.total_record_count + rows,
        delta_record_count=rows,
        commit_user=user,
        commit_identifier=marked.commit_identifier,
        commit_kind="COMPACT",
        time_millis=max(int(time.time() * 1000), latest.time_millis),
        watermark=latest.watermark,
        index_manifest=latest.index_manifest,
        properties=dict(marked.properties),
    )
    if not Conditional(table, place(latest)).commit(latest.uuid, snapshot, []):
        raise MovedError("another snapshot was added meanwhile")
    return sum(change.kind for change in changes)


def _worn(table: Any, live: Iterable[Any], most_bytes: int) -> Iterator[tuple[list[Any], int]]:
    """Buckets of many sorted runs: the files to be joined, and at which level they will be."""
    buckets: dict[int, list[Any]] = defaultdict(list)
    for entry in live:
        buckets[entry.bucket].append(entry)
    for entries in buckets.values():
        levels = [entry.file.level for entry in entries]
        runs = levels.count(0) + len({level for level in levels if level})
        is_ours = all(
            entry.file.schema_id == table.table_schema.id
            and entry.file.file_name.endswith(".parquet")
            for entry in entries
        )
        if runs <= _RUNS or not is_ours:
            continue
        # All, or all but the lowest run: then rows that delete have to stay.
        upper = [entry for entry in entries if entry.file.level < _TOP]
        if _size(entries) <= most_bytes:
            yield entries, _TOP
        elif _size(upper) <= most_bytes:
            yield upper, _TOP - 1


def _size(entries: Iterable[Any]) -> int:
    return sum(entry.file.file_size for entry in entries)


def _joined(table: Any, chosen: list[Any], level: int) -> list[Any]:
    """The manifest entries that join files of a bucket."""
    paths = [
        canonical_data_file_path(table, (), entry.bucket, entry.file.file_name) for entry in chosen
    ]
    rows = merged(table, paths, with_deletes=level != _TOP)
    bucket, total = chosen[0].bucket, chosen[0].total_buckets
    writer = file_writer(table, bucket)
    try:
        for batch in rows.to_batches():
            writer.write(batch)
        added = writer.prepare_commit()
    except BaseException:
        writer.abort()
        raise
    partition = GenericRow([], table.partition_keys_fields)
    gone = [replace(entry, kind=1) for entry in chosen]
    return gone + [
        ManifestEntry(0, partition, bucket, total, replace(file, level=level, file_source=1))
        for file in added
    ]


def merged(table: Any, paths: Iterable[str], *, with_deletes: bool) -> pa.Table:
    """Of each key the row with the highest sequence number, sorted by key, as files have them."""
    schema, parts = file_schema(table), []
    for path in paths:
        with table.file_io.new_input_stream(path) as stream:
            parts.append(pq.read_table(stream).select(schema.names).cast(schema))
    rows = pa.concat_tables(parts).combine_chunks()
    keys = [KEY_PREFIX + name for name in table.trimmed_primary_keys]
    # By places, as names of columns may be any.
    names = [f"c{at}" for at in range(len(keys) + 1)]
    by = pa.table([rows[name] for name in (*keys, SEQUENCE)], names)
    order = pc.sort_indices(by, [(name, "ascending") for name in by.column_names])
    by, rows = by.take(order).combine_chunks(), rows.take(order)
    last = np.ones(rows.num_rows, bool)
    if rows.num_rows:
        same = np.ones(rows.num_rows - 1, bool)
        for at in range(len(keys)):
            column = by.column(at)
            same &= np.asarray(pc.equal(column[:-1], column[1:]))
        last[:-1] = ~same
    if not with_deletes:
        last &= np.asarray(pc.is_in(rows[VALUE_KIND], pa.array([0, 2], pa.int8())))
    return rows.filter(pa.array(last)).combine_chunks()


# --- old snapshots -------------------------------------------------------------------------------


def expire(table: Any, before_ms: int) -> int:
    """Remove snapshots made before a time, with the files that only they had.

    The last ones stay, those that a consumer has still to read, and the files of tags. Nothing is
    removed from a table with branches: these have files in common with it.

    Returns:
        The number of snapshots.
    """
    manager = table.snapshot_manager()
    snapshots = sorted(backwards(table), key=lambda snapshot: snapshot.id)
    consumer = table.consumer_manager().min_next_snapshot()
    old = [
        snapshot
        for snapshot in snapshots[:-_KEPT]
        if snapshot.time_millis < before_ms and (consumer is None or snapshot.id < consumer)
    ]
    # From the oldest on, without a gap.
    old = [snapshot for at, snapshot in enumerate(old) if snapshot is snapshots[at]]
    if not old or table.branch_manager().branches():
        return 0
    tags = table.tag_manager()
    tagged = [snapshot for name in tags.list_tags() if (snapshot := tags.get(name)) is not None]
    kept = [*snapshots[len(old) :], *tagged]
    lists, files = ManifestListManager(table), ManifestFileManager(table)
    # Files that a later snapshot replaced: none but older ones have them.
    replaced = {
        (entry.bucket, entry.file.file_name)
        for snapshot in snapshots[1 : len(old) + 1]
        for manifest in lists.read_delta(snapshot)
        for entry in files.read(manifest.file_name)
        if entry.kind == 1
    }
    # What the first one that stays has was only moved to another level.
    for snapshot in (snapshots[len(old)], *tagged):
        replaced -= {
            (entry.bucket, entry.file.file_name)
            for entry in files.read_entries_parallel(lists.read_all(snapshot))
        }
    unused = set(_manifests(lists, old)) - set(_manifests(lists, kept))
    first = snapshots[len(old)].id
    with suppress(OSError):
        _hint(table, first)
    for snapshot in old:
        table.file_io.delete_quietly(manager.get_snapshot_path(snapshot.id))
    for bucket, name in replaced:
        table.file_io.delete_quietly(canonical_data_file_path(table, (), bucket, name))
    for name in unused:
        table.file_io.delete_quietly(f"{lists.manifest_path}/{name}")
    return len(old)


def _manifests(lists: Any, snapshots: Iterable[Any]) -> Iterator[str]:
    for snapshot in snapshots:
        yield snapshot.base_manifest_list
        yield snapshot.delta_manifest_list
        for manifest in lists.read_all(snapshot):
            yield manifest.file_name


def _hint(table: Any, first: int) -> None:
    """Say which snapshot is the earliest, for readers that look for it."""
    path = f"{table.snapshot_manager().snapshot_dir}/EARLIEST"
    if hasattr(table.file_io, "_to_file"):
        write_over(table.file_io._to_file(path), str(first))
    else:
        table.file_io.write_file(path, str(first), overwrite=True)
