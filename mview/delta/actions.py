"""The actions of a Delta log: what they say and what a table is after them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable

from mview.delta.deletion import Deleted
from mview.delta.parquet import DataFile
from mview.files.numbered import numbered

#: What mview writes about its own commits, in the standard field `userMetadata`.
Note = dict[str, Any]

#: Version of a table that does not exist.
NO_TABLE = -1

_UNUSED = "variantType"

#: A step out of a folder, however it is separated; and what ends a name early.
_UP = re.compile(r"(^|[/\\])\.\.([/\\]|$)|\0")

#: Table property: its files may have deletion vectors.
DELETION_VECTORS = "delta.enableDeletionVectors"


@dataclass(frozen=True)
class TableVersion:
    """A Delta table at one version. `files` and `transactions` must not be changed."""

    version: int
    files: Mapping[str, DataFile] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the table; empty for none."""
        return str(self.metadata.get("id", ""))

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.live for file in self.files.values())

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether readers expect deletion vectors."""
        settings: Mapping[str, str] = self.metadata.get("configuration", {})
        return settings.get(DELETION_VECTORS) == "true"

    @property
    def definition(self) -> tuple[str | None, str | None]:
        """The columns, as the log has them, and the description."""
        return self.metadata.get("schemaString"), self.metadata.get("description")


def table_actions(
    schema: pa.Schema,
    *,
    comment: str | None = None,
    properties: Mapping[str, str] | None = None,
    deletion_vectors: bool = False,
) -> list[dict[str, Any]]:
    """The protocol and metadata actions of a new table with these columns, all of them nullable.

    Args:
        schema: the columns.
        comment: the table's description.
        properties: more table properties.
        deletion_vectors: readers must know deletion vectors.
    """
    nullable = pa.schema([field.with_nullable(True).remove_metadata() for field in schema])
    # Log files go by the manifests' history (`DeltaLog.clean`), never by age.
    settings = {"delta.enableExpiredLogCleanup": "false"}
    if deletion_vectors:
        settings[DELETION_VECTORS] = "true"
    with tempfile.TemporaryDirectory() as folder:
        DeltaTable.create(folder, nullable, description=comment, configuration=settings)
        lines = numbered(Path(folder) / "_delta_log", 0).read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    kept = [action for action in actions if "protocol" in action or "metaData" in action]
    for action in kept:
        if "metaData" in action:
            action["metaData"]["configuration"] |= properties or {}
        for features in ("readerFeatures", "writerFeatures"):
            # deltalake names it for every table with features; readers without it would refuse.
            if _UNUSED in action.get("protocol", {}).get(features, ()):
                action["protocol"][features].remove(_UNUSED)
    return kept


def check_paths(actions: Sequence[Mapping[str, Any]]) -> None:
    """Refuse actions that name files elsewhere: a table is its folder, whatever its log says.

    Raises:
        ValueError: the path.
    """
    for action in actions:
        part = action.get("add") or action.get("remove")
        if part and not is_below(unquote(part["path"])):
            raise ValueError(f"a data file is not in the table's folder: {part['path']!r}")


def is_below(path: str) -> bool:
    """Whether a path from a log or a marker stays below the folder that it is relative to."""
    return bool(path) and not path.startswith("/") and ":/" not in path and not _UP.search(path)


def apply(
    start: TableVersion,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    count: Callable[[str], int],
) -> TableVersion:
    """The table after the actions of `version`.

    Args:
        start: the table before them.
        version: their version.
        actions: as the log has them.
        count: the rows of a file of which the log does not tell them: others may leave that out.
    """
    files, transactions = dict(start.files), dict(start.transactions)
    metadata = start.metadata
    # A file that gets other deleted rows is removed and added in one commit, in any order.
    for action in actions:
        if remove := action.get("remove"):
            files.pop(unquote(remove["path"]), None)
    for action in actions:
        if add := action.get("add"):
            path = unquote(add["path"])
            stats = add.get("stats") or "{}"
            told: dict[str, Any] = json.loads(stats)
            if "numRecords" not in told:
                told["numRecords"] = count(path)
                stats = json.dumps(told)
            deleted = Deleted.of_action(add.get("deletionVector"))
            files[path] = DataFile(path, add["size"], told["numRecords"], stats, deleted)
        elif txn := action.get("txn"):
            transactions[txn["appId"]] = txn["version"]
        elif changed := action.get("metaData"):
            metadata = changed
    return replace(
        start, version=version, files=files, transactions=transactions, metadata=metadata
    )


def commit_info(now: int, note: Note) -> dict[str, Any]:
    """The action that says who commits what, for `DESCRIBE HISTORY` and for ourselves."""
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "engineInfo": "mview",
            "userMetadata": json.dumps(note),
        }
    }


def add_action(file: DataFile, now: int) -> dict[str, Any]:
    """The action that makes a file live."""
    return {
        "add": {
            "path": quote(file.path),
            "partitionValues": {},
            "size": file.size,
            "modificationTime": now,
            "dataChange": True,
            "stats": file.stats,
            **_deleted(file),
        }
    }


def remove_action(file: DataFile, now: int) -> dict[str, Any]:
    """The action that ends a file's life; older versions still need it."""
    return {
        "remove": {
            "path": quote(file.path),
            "deletionTimestamp": now,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
            **_deleted(file),
        }
    }


def _deleted(file: DataFile) -> dict[str, Any]:
    return {} if file.deleted is None else {"deletionVector": file.deleted.action()}
