"""A sink: one Arrow file per view, with the mark in its schema; a new file takes its place."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from mview.errors import TargetError
from mview.follower import (
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    batches,
    check_mode,
    check_owner,
    gone_keys,
    mark_of,
    new_rows,
    state_by_mark,
)

_MARK = b"mview.mark"


class ArrowFileSettings(FollowerSettings):
    """A section of `sinks:` with `type: arrow_file`."""

    #: The folder; the file is `<table>.arrow`.
    folder: Path


class ArrowFile:
    """All rows in one file, written anew in each step: the rename is the atomic step."""

    settings: ClassVar = ArrowFileSettings
    capabilities: ClassVar = Capabilities(modes=frozenset({"upsert"}), null_keys=True)

    def __init__(self, target: FollowerTarget) -> None:
        self._target = target
        self._file = Path(target.settings.folder) / f"{target.table}.arrow"
        self._staged: tuple[Step, list[pa.RecordBatch]] | None = None

    def check(self) -> None:
        """Arrow holds every type exactly."""
        check_mode(self._target, self.capabilities)

    def caution(self) -> str | None:
        """A folder is what it is."""
        return None

    def create(self) -> None:
        """Put our token into the mark: an older runner that wakes up finds it there."""
        with self._locked():
            rows, mark = self._read()
            if mark is not None:
                check_owner(self._target, mark)
                same = rows.schema.remove_metadata() == self._target.schema.arrow
                self._write(rows, replace(mark, fence=self._target.fence) if same else None)

    def position(self) -> Mark | None:
        """The mark of the file that is there."""
        return self._read()[1]

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Held until `commit`: what a process that ends has staged is gone."""
        self._staged = step, [*batches(delta)]
        return {}

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """The same."""
        return self.stage(step, rows)

    def commit(self, token: Token) -> Facts:
        """Write the new file beside the old one, and put it in its place."""
        assert self._staged is not None
        step, staged = self._staged
        with self._locked():
            before, mark = self._read()
            admit(self._target, mark, step)
            if step.is_fill:
                rows = pa.Table.from_batches(staged, self._target.schema.arrow)
            else:
                rows = self._changed(before, staged)
            self._write(rows, mark_of(self._target, step))
        return {"rows": rows.num_rows}

    def state(self, step: Step, token: Token | None) -> State:
        """The mark says what is committed; what is staged, this process alone knows."""
        if state_by_mark(self.position(), step) is State.COMMITTED:
            return State.COMMITTED
        is_staged = self._staged is not None and self._staged[0] == step
        return State.PREPARED if is_staged else State.UNKNOWN

    def abort(self, step: Step, token: Token | None) -> None:
        """Forget what was staged."""
        self._staged = None

    def read(self) -> pa.RecordBatchReader:
        """The rows."""
        return self._read()[0].to_reader()

    def maintain(self, *, thorough: bool) -> Facts:
        """There is one file."""
        return {}

    def close(self) -> None:
        """Nothing is open."""

    def _changed(self, before: pa.Table, staged: list[pa.RecordBatch]) -> pa.Table:
        key = self._target.schema.key
        rows = {_values(row, key): row for row in before.to_pylist()}
        for batch in staged:
            for gone in gone_keys(batch, key).to_pylist():
                del rows[_values(gone, key)]
            rows.update((_values(row, key), row) for row in new_rows(batch).to_pylist())
        return pa.Table.from_pylist([*rows.values()], self._target.schema.arrow)

    def _read(self) -> tuple[pa.Table, Mark | None]:
        try:
            with pa.ipc.open_file(self._file) as reader:
                rows = reader.read_all()
        except FileNotFoundError:
            return self._target.schema.arrow.empty_table(), None
        except pa.ArrowInvalid:
            raise _not_ours(self._file) from None
        text = (rows.schema.metadata or {}).get(_MARK)
        if text is None:
            raise _not_ours(self._file)
        return rows, Mark.from_text(text.decode())

    def _write(self, rows: pa.Table, mark: Mark | None) -> None:
        if mark is None:
            self._file.unlink()
            return
        rows = rows.replace_schema_metadata({_MARK: mark.to_text().encode()})
        new = self._file.with_suffix(".new")
        with pa.ipc.new_file(new, rows.schema) as writer:
            writer.write_table(rows)
        new.replace(self._file)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, whatever process it is in."""
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _not_ours(file: Path) -> TargetError:
    return TargetError(
        f"{file} is not ours", safe="it is left alone", hint="give the view another table"
    )


def _values(row: dict[str, Any], key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in key)
