"""What readers see of a store: its views' rows, now or at an older epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import index
from typing import SupportsIndex

import pyarrow as pa

from mview.catalog.definitions import digest_of, load_definition, load_lights
from mview.catalog.sinks import open_sink, sink_options
from mview.clock import MOMENT_EXAMPLES, SystemClock, moment_of, utc_text
from mview.config import Config
from mview.connector import Sink
from mview.epoch.halts import has_halted
from mview.errors import MviewError, RetryableError, UserError
from mview.execute.slices import difference
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.store.history import ManifestLog
from mview.store.identity import refusal
from mview.store.layout import Store
from mview.store.manifest import Manifest, ViewState
from mview.store.requests.asked import asked_views

#: Where the rows of views in light mode are.
_OF_LIGHT = "their rows are in their sinks: mview status, mview verify FILE"


def published(config: Config) -> Manifest:
    """The newest manifest.

    Raises:
        UserError: nothing was published yet, or views in light mode only, which have no epochs.
    """
    manifest = ManifestLog(Store(config.store).manifests).latest()
    if manifest is None:
        if error := refusal(config.store):
            raise error
        if load_lights(Store(config.store)):
            raise UserError(
                "the store has no epochs: all of its views are in light mode",
                where=str(config.store),
                hint=_OF_LIGHT,
            )
        raise UserError(
            "nothing was published yet",
            where=str(config.store),
            hint=f"run a view first: mview run{config.option} VIEW.sql",
        )
    return manifest


def check_views(config: Config, manifest: Manifest, names: Iterable[str]) -> None:
    """Make sure that these are views that were published.

    Raises:
        UserError: one is not.
    """
    for name in names:
        if name not in manifest.views:
            raise UserError(f"there is no view {name!r}", hint=_close_to(config, name, manifest))


#: An epoch, or a time: a text such as `2026-11-20 10:00`, in UTC unless it says otherwise. A time
#: of day alone, such as `10:00`, is the last one that has passed; `10 min` is so long ago.
When = int | SupportsIndex | str | dt.datetime


def manifest_at(config: Config, when: When) -> Manifest:
    """The manifest of an epoch, or the newest one up to a time.

    Raises:
        UserError: it is not kept, is yet to come, or is none.
    """
    log = ManifestLog(Store(config.store).manifests)
    if isinstance(when, SupportsIndex) and not isinstance(when, bool):
        return log.read(index(when))  # also a number of NumPy
    now = int(SystemClock().now())
    ms = moment_of(str(when), now)
    if ms is None:
        raise UserError(
            "neither an epoch nor a time", got=when, allowed=f"e.g. 41, {MOMENT_EXAMPLES}"
        )
    manifest = log.at(ms)
    # What is shown then may be another thing. The clock of who publishes may be ahead of ours.
    if ms > now and ms > published(config).created_ms:
        raise UserError(
            f"{utc_text(ms)} UTC is yet to come",
            where=str(config.store),
            allowed=f"times up to now, {utc_text(now)} UTC",
            hint=f"without a time the newest epoch is read, which is {manifest.epoch}",
        )
    return manifest


class EpochGoneError(RetryableError):
    """An epoch is kept no longer, while somebody reads it."""


@contextmanager
def of_kept_epochs(config: Config, *epochs: int) -> Iterator[None]:
    """Read what epochs name: files of it go when a run keeps one of them no longer.

    Raises:
        EpochGoneError: that happened meanwhile, whatever it looked like.
    """
    try:
        yield
    except EpochGoneError:
        raise
    except Exception as error:
        gone = {*epochs} - {*ManifestLog(Store(config.store).manifests).epochs()}
        if not gone:
            raise
        raise EpochGoneError(
            f"epoch {min(gone)} went while it was read: it is kept no longer",
            where=str(config.store),
            got=error.what if isinstance(error, MviewError) else str(error),
            safe="nothing was changed, and nothing is known to be wrong",
            hint="run the same command again; if that is so again and again, reading takes longer "
            "than files are kept: set engine.keep_files higher",
        ) from error


def sink_path(config: Config, store: Store, definition: ViewDefinition) -> str:
    """Where a view's sink writes."""
    return str(sink_options(config, store, definition)["path"])


class StoredView:
    """A published view, for reading: the newest epoch, or an older one that is kept."""

    def __init__(self, config: Config, name: str, at: Manifest | When | None = None) -> None:
        self._config, self.name = config, name
        if at is None:
            at = published(config)
        self._manifest = at if isinstance(at, Manifest) else manifest_at(config, at)
        if name in self._manifest.views and (why := self._manifest.views[name].halted):
            raise has_halted(name, self.epoch, why)
        if name not in self._manifest.views or self._manifest.views[name].stale:
            raise UserError(
                f"there is no view {name!r} at epoch {self._manifest.epoch}",
                where=str(config.store),
                hint=_built_later(config, name, self.epoch)
                or _close_to(config, name, self._manifest),
            )

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._manifest.epoch

    def arrow(self) -> pa.Table:
        """The rows."""
        with of_kept_epochs(self._config, self.epoch):
            return self._sink.rows(self._state.sink)

    def parts(self) -> Iterator[pa.Table]:
        """The rows, in parts."""
        with of_kept_epochs(self._config, self.epoch):
            yield from self._sink.parts(self._state.sink)

    def head(self, most: int) -> pa.Table:
        """The first rows, in no order: of the parts, as many are read as it takes."""
        rows = self.schema.empty_table()
        for part in self.parts():
            rows = pa.concat_tables([rows, part.slice(0, most - rows.num_rows)])
            if rows.num_rows >= most:
                break
        return rows

    @property
    def num_rows(self) -> int:
        """How many rows it has; nothing is read."""
        return self._state.rows

    @property
    def manifest(self) -> Manifest:
        """What publishes the epoch."""
        return self._manifest

    @property
    def facts(self) -> Mapping[str, object]:
        """What its sink said of the epoch."""
        return self._state.sink

    @property
    def definition(self) -> ViewDefinition:
        """The view as it was declared at that epoch."""
        return load_definition(Store(self._config.store), self._manifest, self.name)

    @property
    def path(self) -> str:
        """Where its sink is."""
        return sink_path(self._config, Store(self._config.store), self.definition)

    @property
    def schema(self) -> pa.Schema:
        """The columns, all nullable."""
        columns = self._state.schema.arrow
        return pa.schema([field.with_nullable(True) for field in columns])

    @property
    def _state(self) -> ViewState:
        return self._manifest.views[self.name]

    @property
    def _sink(self) -> Sink:
        store, definition = Store(self._config.store), self.definition
        schema, digest = self._state.schema, digest_of(definition)
        return open_sink(self._config, store, definition, schema, digest)

    def as_of(self, when: When) -> StoredView:
        """The view at an older epoch, or as it was at a time."""
        return StoredView(self._config, self.name, manifest_at(self._config, when))

    def changes(self, since: When) -> pa.Table:
        """What was added (+1) and removed (-1) since then: the columns and WEIGHT.

        Raises:
            UserError: the view had other columns then.
        """
        return self.changes_from(self.as_of(since))

    def changes_from(self, older: StoredView) -> pa.Table:
        """The same, since what was read of it; see `changes`."""
        if older.schema != self.schema:
            raise UserError(
                f"view {self.name} had other columns at epoch {older.epoch}",
                got=_columns(older.schema),
                allowed=_columns(self.schema),
                hint="ask for the changes since an epoch that has them",
            )
        with of_kept_epochs(self._config, self.epoch, older.epoch):
            return difference(*self._sink.apart(self._state.sink, older._state.sink))


def _built_later(config: Config, name: str, epoch: int) -> str | None:
    """Since when there is a view that was not there yet, for who looks back too far."""
    newest = published(config).views.get(name)
    if newest is None or newest.stale or newest.built_epoch <= epoch:
        return None
    return f"it was built in epoch {newest.built_epoch}: ask for that one, or for a later one"


def _close_to(config: Config, name: str, manifest: Manifest) -> str | None:
    if name in load_lights(Store(config.store)):
        return f"it is in light mode, and the store has no rows of such: {_OF_LIGHT}"
    if name in asked_views(Store(config.store)):
        return "the run has it, and it is not built yet: see mview status"
    if name in map(str, manifest.source_tables):
        return f"it is a table: table({name!r}) in Python"
    return did_you_mean(name, manifest.views)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
