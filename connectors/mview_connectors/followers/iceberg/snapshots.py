"""Snapshots of Iceberg tables: their manifests, and what a catalog is told to show them.

pyiceberg itself repeats a commit that met another one, and has no manifests of delete files. Here
a commit is made of updates and requirements that are known before, and is tried once.

Only what uses a sink imports this module: it needs pyiceberg.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import TypeAdapter
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import TableProperties
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.properties import property_as_bool

_UPDATES = TypeAdapter(tuple[TableUpdate, ...])
_REQUIREMENTS = TypeAdapter(tuple[TableRequirement, ...])


class _DeletesWriter(ManifestWriterV2):  # type: ignore[misc]  # untyped where it is not installed
    """A manifest of delete files; pyiceberg writes those of data files only."""

    def content(self) -> Any:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@dataclass
class SnapshotChange:
    """What one snapshot does.

    Attributes:
        operation: append, overwrite, replace, as Iceberg names them.
        summary: further entries of the snapshot's summary.
        properties: properties of the table that are set with it.
        data: new data files.
        deletes: new position-delete files.
        removed: entries of files, of data and of deletes, that are no longer of the table.
        kept: entries that stay. Where something is removed or kept, all entries are named; else
            those that were there stay.
    """

    operation: str
    summary: dict[str, str]
    properties: dict[str, str] = field(default_factory=dict)
    data: list[Any] = field(default_factory=list)
    deletes: list[Any] = field(default_factory=list)
    removed: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Commit:
    """What makes a change visible; JSON-able by `to_json`.

    Attributes:
        base: the snapshot that has to be the current one.
        snapshot: the one that will be.
        manifest_list: the file that names the files of the snapshot; empty: there is no new one.
        updates, requirements: of Iceberg's catalogs.
        files: all other files that were written for it.
    """

    base: int | None
    snapshot: int
    manifest_list: str
    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON form; see `from_json`."""
        return {
            "base": self.base,
            "snapshot": self.snapshot,
            "manifest_list": self.manifest_list,
            "updates": [_json(update) for update in self.updates],
            "requirements": [_json(requirement) for requirement in self.requirements],
            "files": list(self.files),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Commit:
        """The commit of a JSON form."""
        return cls(
            data["base"],
            data["snapshot"],
            data["manifest_list"],
            _UPDATES.validate_python(data["updates"]),
            _REQUIREMENTS.validate_python(data["requirements"]),
            tuple(data["files"]),
        )

    def fits(self, table: Any) -> bool:
        """Whether the table would still take it.

        Its snapshot has to be newer than all that there are: others may have added some to a
        branch of theirs, or changed a property by a clock that is ahead.
        """
        now, metadata = current(table), table.metadata
        added = [update.snapshot for update in self.updates if update.action == "add-snapshot"]
        return (None if now is None else now.snapshot_id) == self.base and all(
            snapshot.sequence_number > metadata.last_sequence_number
            and snapshot.timestamp_ms >= metadata.last_updated_ms
            for snapshot in added
        )

    def run(self, table: Any) -> Any:
        """Commit, tried once; the table has what it led to."""
        response = table.catalog.commit_table(table, self.requirements, self.updates)
        before = {entry.metadata_file for entry in table.metadata.metadata_log}
        table.metadata = response.metadata
        table.metadata_location = response.metadata_location
        name = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED
        if property_as_bool(table.metadata.properties, name, False):
            after = {entry.metadata_file for entry in table.metadata.metadata_log}
            remove(table, before - after)
        return table


def _json(model: Any) -> Any:
    return orjson.loads(model.model_dump_json(by_alias=True))


def prepare(table: Any, change: SnapshotChange) -> Commit:
    """Write the manifests of a change, and say what commits it."""
    return _Producer(table, change).commit()


class _Producer:
    """Writes the manifests and the manifest list of one snapshot."""

    def __init__(self, table: Any, change: SnapshotChange) -> None:
        self._table, self._change, self._metadata = table, change, table.metadata
        self._parent = current(table)
        self._id = self._metadata.new_snapshot_id()
        self._uuid = uuid.uuid4()
        self._codec = self._metadata.properties.get(
            TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
        )
        self._written: list[str] = []

    def commit(self) -> Commit:
        change, parent = self._change, self._parent
        manifests = [*self._new(), *self._existing()]
        number = self._metadata.next_sequence_number()
        path = self._location(f"snap-{self._id}-0-{self._uuid}.avro")
        before = None if parent is None else parent.snapshot_id
        with write_manifest_list(
            self._metadata.format_version,
            self._table.io.new_output(path),
            self._id,
            before,
            number,
            self._codec,
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=self._id,
            parent_snapshot_id=before,
            manifest_list=path,
            sequence_number=number,
            summary=self._summary(),
            schema_id=self._metadata.current_schema_id,
            # Iceberg refuses a snapshot that is older than the last one: clocks differ.
            timestamp_ms=max(int(time.time() * 1000), self._metadata.last_updated_ms),
        )
        updates = [
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=self._id
            ),
        ]
        if change.properties:
            updates.append(SetPropertiesUpdate(updates=change.properties))
        requirements = (
            AssertTableUUID(uuid=self._metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=before),
        )
        files = [file.file_path for file in (*change.data, *change.deletes)]
        all_files = (*files, *self._written)
        return Commit(before, self._id, path, tuple(updates), requirements, all_files)

    def _new(self) -> Iterator[Any]:
        change = self._change
        groups: dict[tuple[int, bool], list[tuple[str, Any]]] = defaultdict(list)
        for file in (*change.data, *change.deletes):
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            groups[file.spec_id, is_data(file)].append(("add_entry", entry))
        for entry in change.kept:
            groups[entry.data_file.spec_id, is_data(entry.data_file)].append(("existing", entry))
        for entry in change.removed:
            groups[entry.data_file.spec_id, is_data(entry.data_file)].append(("delete", entry))
        for number, ((spec_id, of_data), entries) in enumerate(groups.items()):
            path = self._location(f"{self._uuid}-m{number}.avro")
            self._written.append(path)
            spec, output = self._metadata.specs()[spec_id], self._table.io.new_output(path)
            schema = self._metadata.schema()
            if of_data:
                writer = write_manifest(2, spec, schema, output, self._id, self._codec)
            else:
                writer = _DeletesWriter(spec, schema, output, self._id, self._codec)
            with writer:
                for add, entry in entries:
                    getattr(writer, add)(entry)
            yield writer.to_manifest_file()

    def _existing(self) -> list[Any]:
        """The manifests that stay as they are; where files go, all are written anew."""
        if self._change.removed or self._change.kept or self._parent is None:
            return []
        manifests = self._parent.manifests(self._table.io)
        return [
            manifest
            for manifest in manifests
            if manifest.has_added_files() or manifest.has_existing_files()
        ]

    def _summary(self) -> Any:
        change, schema = self._change, self._metadata.schema()
        collector = SnapshotSummaryCollector()
        specs = self._metadata.specs()
        for file in (*change.data, *change.deletes):
            collector.add_file(file, schema, specs[file.spec_id])
        for entry in change.removed:
            file = entry.data_file
            collector.remove_file(file, schema, specs[file.spec_id])
        before = None if self._parent is None else self._parent.summary
        # pyiceberg adds up the totals of these two only.
        is_append = change.operation == "append"
        summary = update_snapshot_summaries(
            Summary(
                operation=Operation.APPEND if is_append else Operation.OVERWRITE,
                **collector.build(),
                **change.summary,
            ),
            before,
        )
        return Summary(operation=Operation(change.operation), **summary.additional_properties)

    def _location(self, name: str) -> str:
        return str(self._table.location_provider().new_metadata_location(name))


def current(table: Any) -> Any:
    """The current snapshot of the main branch; None: there is none."""
    return table.metadata.snapshot_by_name(MAIN_BRANCH)


def is_data(file: Any) -> bool:
    """Whether a file has rows, not deletes."""
    return bool(file.content == DataFileContent.DATA)


def entries(table: Any) -> tuple[list[Any], list[Any]]:
    """The manifest entries of the current snapshot that are live: of data, of deletes."""
    snapshot = current(table)
    data: list[Any] = []
    deletes: list[Any] = []
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            (data if is_data(entry.data_file) else deletes).append(entry)
    return data, deletes


def remove(table: Any, paths: Iterable[str]) -> None:
    """Delete files that nothing refers to; what is not there or cannot be deleted stays."""
    for path in paths:
        with suppress(Exception):
            table.io.delete(path)


def expire(table: Any, before_ms: int) -> int:
    """Remove snapshots made before a time, and the files that only they had.

    The current one, and those that branches and tags point to, stay.

    Returns:
        The number of snapshots.
    """
    metadata = table.metadata
    refs = {ref.snapshot_id for ref in metadata.refs.values()}
    old = [
        snapshot
        for snapshot in metadata.snapshots
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in refs
    ]
    if not old:
        return 0
    gone = {snapshot.snapshot_id for snapshot in old}
    kept = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone]
    unused = _files(table, old) - _files(table, kept)
    now = current(table)
    commit = Commit(
        now.snapshot_id,
        now.snapshot_id,
        "",
        (RemoveSnapshotsUpdate(snapshot_ids=sorted(gone)),),
        (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=now.snapshot_id),
        ),
        (),
    )
    commit.run(table)
    remove(table, unused)
    return len(old)


def _files(table: Any, snapshots: Iterable[Any]) -> set[str]:
    """All files that snapshots need."""
    paths: set[str] = set()
    manifests = {}
    for snapshot in snapshots:
        paths.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            manifests[manifest.manifest_path] = manifest
    for path, manifest in manifests.items():
        paths.add(path)
        paths.update(
            entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, True)
        )
    return paths
