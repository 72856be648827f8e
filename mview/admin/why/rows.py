"""A view's row, found by values of its columns: now, and at the epochs that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.admin.content import sink_path
from mview.admin.why.sources import UntellableError, told_rows
from mview.catalog.definitions import load_definition
from mview.config import Config
from mview.delta.log import DeltaLog
from mview.delta.parquet import read_live
from mview.errors import CorruptionError, RetryableError, UserError
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.rows.match import first_rows, match, row_codes
from mview.schema import TableSchema, type_name
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest

#: Rows of a view that are told where several have the values that were given.
_TOLD = 5


def typed_key(schema: TableSchema, given: Mapping[str, str | None]) -> pa.Table:
    """One row: values of some columns of a view, as it has them.

    Args:
        schema: of the view.
        given: texts by the name of their column, in whatever case; None is NULL.

    Raises:
        UserError: there is no such column, or a text is no value of its type.
    """
    known = {name.lower(): name for name in schema.names}
    columns = {}
    for name, text in given.items():
        if name.lower() not in known:
            raise UserError(
                f"the view has no column {name!r}",
                allowed=", ".join(schema.names),
                hint=did_you_mean(name, schema.names),
            )
        column = schema.column(known[name.lower()])
        columns[column.name] = pa.array([_value(text, column.type, name)], column.type)
    return pa.table(columns)


def _value(text: str | None, kind: pa.DataType, name: str) -> Any:
    if text is None or pa.types.is_string(kind):
        return text
    try:
        if pa.types.is_timestamp(kind) and kind.tz:
            # As everywhere here: UTC, unless the text says otherwise.
            with suppress(pa.ArrowInvalid):
                return pa.scalar(text).cast(pa.timestamp("us")).cast(kind).as_py()
        return pa.scalar(text).cast(kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(
            f"{text!r} is no value of column {name}", allowed=f"a {type_name(kind)}"
        ) from None


@dataclass(frozen=True)
class KeptRow:
    """A row of a view over a span of epochs in which it stayed as it was.

    Attributes:
        manifest: the oldest kept epoch of the span.
        row: the row, as often as it was there; no row: it was not.
        before: the newest kept epoch before, at which it was otherwise; None: not told by what is
            kept.
        older: the row at that epoch.
        why_not: why nothing older is told, where it is not.
    """

    manifest: Manifest
    row: pa.Table
    before: Manifest | None
    older: pa.Table
    why_not: str


class RowHistory:
    """Rows of a view at the epochs that are kept.

    Only files that came or went from one epoch to the next are read again.

    Args:
        config: has the store.
        manifest: the newest epoch; the view is there.
        view: its name.
    """

    def __init__(self, config: Config, manifest: Manifest, view: str) -> None:
        self._store, self._newest, self._view = Store(config.store), manifest, view
        self._log = ManifestLog(self._store.manifests)
        self.definition = load_definition(self._store, manifest, view)
        self.schema = manifest.views[view].schema
        self._shape = pa.schema([f.with_nullable(True) for f in self.schema.arrow])
        self._delta = DeltaLog(_folder(config, self._store, self.definition))
        self._read: dict[tuple[str, int], pa.Table] = {}

    def rows(self, manifest: Manifest, key: pa.Table) -> pa.Table:
        """The rows with the values of a key, at an epoch.

        Raises:
            MviewError, OSError: the view's table cannot be read as it was then.
        """
        files = self._delta.at(int(manifest.views[self._view].sink["version"])).files
        parts, read = [self._shape.empty_table()], {}
        for file in files.values():
            name = file.path, file.rows - file.live
            if name not in self._read:
                rows = read_live(self._delta.folder, file, self._shape)
                hit, _ = match(rows.select(key.column_names), key)
                self._read[name] = rows.take(pa.array(hit))
            read[name] = self._read[name]
            parts.append(read[name])
        self._read = read
        return pa.concat_tables(parts)

    def single(self, manifest: Manifest, key: pa.Table) -> pa.Table:
        """The same, where all are alike.

        Raises:
            UserError: several rows have these values.
        """
        rows = self.rows(manifest, key)
        if len(told_rows(rows)) > 1:
            few = rows.slice(0, _TOLD).to_pylist()
            raise UserError(
                f"{rows.num_rows:,} rows of view {self._view} have these values",
                where=f"epoch {manifest.epoch:,}",
                got="; ".join(", ".join(f"{n}={v}" for n, v in row.items()) for row in few),
                hint="name more columns: --key COLUMN=VALUE",
            )
        return rows

    def last_change(self, key: pa.Table) -> KeptRow:
        """Since when the rows with a key are as they are."""
        row = self.single(self._newest, key)
        if row.num_rows:
            # By what tells the row apart, whatever of it was given.
            key = once(row.select(list(self.schema.key) or row.column_names))
        span, told = self._newest, told_rows(row)
        none = row.slice(0, 0)
        for older in self._older():
            state, now = older.views.get(self._view), self._newest.views[self._view]
            if state is None or (state.definition, state.built_epoch) != (
                now.definition,
                now.built_epoch,
            ):
                why = f"the view was built at epoch {now.built_epoch:,}"
                return KeptRow(span, row, None, none, why)
            if state.sink.get("version") == span.views[self._view].sink.get("version"):
                span = older
                continue
            try:
                rows = self.single(older, key)
            except (OSError, RetryableError, CorruptionError):
                why = f"the view as of epoch {older.epoch:,} cannot be read any more"
                return KeptRow(span, row, None, none, why)
            if told_rows(rows) != told:
                return KeptRow(span, row, older, rows, "")
            span = older
        return KeptRow(span, row, None, none, "older epochs are not kept")

    def _older(self) -> Iterator[Manifest]:
        """The kept epochs before the newest, the last one first; halted ones are left out."""
        for epoch in reversed(self._log.epochs()):
            if epoch < self._newest.epoch:
                try:
                    manifest = self._log.read(epoch)
                except UserError:
                    return  # a runner prunes beside us
                state = manifest.views.get(self._view)
                if state is None or not state.stale:
                    yield manifest


def _folder(config: Config, store: Store, definition: ViewDefinition) -> Path:
    if definition.sink != "delta":
        raise UntellableError(f"sink {definition.sink} keeps no versions that could be read")
    return Path(sink_path(config, store, definition))


def once(rows: pa.Table) -> pa.Table:
    """Each row once."""
    places, _ = first_rows(row_codes([rows])[0])
    return rows.take(pa.array(places)) if rows.num_rows else rows


def as_dicts(rows: pa.Table, names: Sequence[str] | None = None) -> tuple[Mapping[str, Any], ...]:
    """Rows as values by column."""
    return tuple(rows.select(list(names) if names else rows.column_names).to_pylist())
