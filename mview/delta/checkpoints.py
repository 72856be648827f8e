"""Checkpoints of a Delta log, held against a seal of our own.

deltalake makes them, as Parquet files without checksums: one flipped bit may be another file, or
one less. So beside each that we have made stands a seal, the digest of what the table is at its
version. One that somebody else has made has none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from mview.delta.actions import NO_TABLE, TableVersion, apply, check_paths
from mview.delta.parquet import mended_by
from mview.errors import CorruptionError
from mview.files.durable import force, put

#: Names of checkpoints, and of their seals: readers of Delta pass over what begins with `_`.
CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint\.parquet$")
SEAL = re.compile(r"^_mview\.(\d{20})\.seal$")

#: The file that names the newest one.
_LAST = "_last_checkpoint"

_COLUMNS = ["add", "txn", "metaData", "protocol"]


def write_checkpoint(folder: Path, state: TableVersion) -> None:
    """Make a sealed checkpoint of the table in `folder`, on disk and read back when it returns.

    The log before it may go then.

    Args:
        folder: the table's.
        state: what the table is, as its commits tell.

    Raises:
        CorruptionError: what was written cannot be read, or is not what its seal is of.
    """
    # First: with it the checkpoint counts, whoever makes it.
    put(_seal(folder, state.version), _digest_of(state).encode())
    file = _file(folder, state.version)
    # A hint. After a power cut it may name one that is not there, which readers would not forgive.
    file.with_name(_LAST).unlink(missing_ok=True)
    DeltaTable(folder, version=state.version).create_checkpoint()
    for made in (file, file.with_name(_LAST), file.parent):
        force(made)
    read_checkpoint(folder, state.version, lambda path: state.files[path].rows)


def is_whole(folder: Path, version: int, count: Callable[[str], int]) -> bool:
    """Whether a checkpoint reads back under its seal; see `read_checkpoint`."""
    try:
        read_checkpoint(folder, version, count)
    except CorruptionError:
        return False
    return True


def remove_checkpoint(folder: Path, version: int) -> None:
    """Remove a checkpoint that is not whole, so that nobody begins there."""
    _file(folder, version).unlink(missing_ok=True)


def is_sealed(folder: Path, version: int) -> bool:
    """Whether a checkpoint is one of ours."""
    return _seal(folder, version).exists()


def read_checkpoint(folder: Path, version: int, count: Callable[[str], int]) -> TableVersion:
    """The table at a checkpoint.

    Args:
        folder: the table's.
        version: that of the checkpoint.
        count: the rows of a file of which nobody has said it.

    Raises:
        CorruptionError: it cannot be read, or is not what its seal is of.
    """
    file, seal = _file(folder, version), _seal(folder, version)
    actions = checkpoint_actions(folder, version)
    try:
        state = apply(TableVersion(NO_TABLE), version, actions, count)
        if seal.exists() and seal.read_bytes() != _digest_of(state).encode():
            raise ValueError(f"it is not what {seal.name} is of")
        return state
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise damaged(version, file, error) from None


def checkpoint_actions(folder: Path, version: int) -> list[dict[str, Any]]:
    """What a checkpoint says, unchecked.

    Raises:
        CorruptionError: it cannot be read, or names a file elsewhere.
    """
    file = _file(folder, version)
    try:
        return actions_in(file)
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise damaged(version, file, error) from None


def actions_in(file: Path | pa.NativeFile, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The actions that a checkpoint has; of `more` kinds than make a table, where it has them.

    Raises:
        ValueError: it names a file elsewhere. Arrow's errors, where it cannot be read.
    """
    with pq.ParquetFile(file) as parquet:
        names = [*_COLUMNS, *(name for name in more if name in parquet.schema_arrow.names)]
        rows = parquet.read(names).to_pylist(maps_as_pydicts="strict")
    actions = [{name: row[name]} for row in rows for name in names if row[name] is not None]
    check_paths(actions)
    return actions


def damaged(version: int, file: Path, error: Exception) -> CorruptionError:
    """The error of a file of a log."""
    return CorruptionError(
        f"version {version} of a Delta table cannot be read",
        where=str(file),
        got=str(error),
        safe="nothing of it was used; what was published before the damage is right",
        hint=f"{mended_by(str(file))}, and run again: it is built, or loaded, anew",
    )


def _digest_of(state: TableVersion) -> str:
    """Of all that decides on rows, whoever wrote it down, and how."""
    digest = hashlib.sha256()
    for part in _parts(state):
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _parts(state: TableVersion) -> Iterator[Any]:
    metadata = state.metadata
    yield [metadata.get("id"), *state.definition, metadata.get("configuration") or {}]
    yield sorted(state.transactions.items())
    for path in sorted(state.files):
        file = state.files[path]
        if not isinstance(file.stats, str):
            raise TypeError(f"the statistics of {path} are no text")
        yield [path, file.size, json.loads(file.stats), file.deleted and file.deleted.action()]


def _file(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.checkpoint.parquet"


def _seal(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"_mview.{version:020d}.seal"
