"""The places that sinks of light views have in databases' own logs: one each, beside all others.

A server that keeps its log for its readers keeps it for ever for one that is no more. So who reads
is noted in the sink's folder before anything is made for it, and noted as left before that goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from mview.config import Config
from mview.connector import LogReader, Offsets
from mview.errors import CorruptionError, MviewError
from mview.files.durable import put
from mview.files.fence import Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.follow.light.progress import LightProgress, ProgressLog
from mview.ingest.log_readers import LeftReader, end_left, note_left
from mview.ingest.spec import log_reader
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.store.layout import Store

_NOTE = "reader.json"


@dataclass(frozen=True)
class SinkReader:
    """Who reads a database's own log for a sink.

    Attributes:
        connection: whose log.
        light: see `LogReader`.
    """

    connection: str
    light: str


def reader_of(config: Config, view: ViewDefinition, sink: str) -> SinkReader | None:
    """Who reads for a sink of a view as it is now; None: its log is not a database's own."""
    connection = view.table_names[0].connection
    if not _is_own(config, connection):
        return None
    return SinkReader(connection, f"{view.name}/{sink}")


def note_reader(folder: Path, reader: SinkReader | None, fence: Fence) -> None:
    """Note in a sink's folder who reads for it, before anything is made for who does."""
    fence.check()
    if reader is None:
        (folder / _NOTE).unlink(missing_ok=True)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / _NOTE, checked(asdict(reader)))


def noted_reader(config: Config, folder: Path) -> SinkReader | None:
    """Who has read for a sink's folder until now; None: nobody, in a log that is a database's own.

    Raises:
        CorruptionError: the note cannot be read.
    """
    if (folder / _NOTE).exists():
        read: SinkReader = read_checked(
            folder / _NOTE,
            partial(record, SinkReader),
            "it cannot be read who reads a log for a sink",
            "`mview drop` the view, which ends its readers, and run it again: its tables in sinks "
            "are filled anew",
        )
        return read
    if (newest := _newest(folder)) is None:
        return None
    # Version 0.2 noted none: there the reader of the store's epochs read for the sink.
    table = RelationId.of(ProgressLog(folder).load(newest).plan.chunks.table)
    return SinkReader(table.connection, "") if _is_own(config, table.connection) else None


def left_by_sink(config: Config, folder: Path, kept: Collection[str]) -> list[LeftReader]:
    """Who has read for a sink, and is to be ended when its folder goes.

    Args:
        config: the configuration.
        folder: the sink's.
        kept: connections whose logs epochs read: their reader stays.

    Raises:
        CorruptionError: the folder cannot be read.
    """
    noted = noted_reader(config, folder)
    if noted is None or (not noted.light and noted.connection in kept):
        return []
    newest = _newest(folder)
    known = None if newest is None else newest.offsets
    return [LeftReader(noted.connection, noted.light, known)]


def left_by_view(
    config: Config, view: ViewDefinition, kept: Collection[str]
) -> tuple[list[LeftReader], list[str]]:
    """Who has read for the sinks of a view, and is to be ended when it goes; and for which that
    cannot be known, for people.

    Who reads for a sink that the view still has is known by name, whatever is damaged.

    Args:
        config: the configuration.
        view: as the store has it.
        kept: see `left_by_sink`.
    """
    store = Store(config.store)
    by_name = {
        store.follower(view.name, sink, light=True): reader_of(config, view, sink)
        for sink in view.sinks
    }
    left, told = [], []
    for folder in sorted((store.light(view.name) / "sinks").glob("*")):
        try:
            left += left_by_sink(config, folder, kept)
        except CorruptionError as error:
            if folder not in by_name:
                told.append(
                    f"{error.what}, {folder.name}, which view {view.name} had before: what a "
                    "database may keep for it stays there, see docs/light.md#readers"
                )
            elif (reader := by_name[folder]) is not None:
                left.append(LeftReader(reader.connection, reader.light, None))
    return left, told


def end_left_readers(config: Config, store: Store, kept: Collection[str]) -> list[str]:
    """End those who are noted to read no more, of epochs and of sinks; see `end_left`.

    Args:
        config: the configuration.
        store: the store.
        kept: see `left_by_sink`.
    """

    def is_used(left: LeftReader) -> bool:
        if not left.light:
            return left.connection in kept
        view, _, sink = left.light.partition("/")
        noted = noted_reader(config, store.follower(view, sink, light=True))
        return noted == SinkReader(left.connection, left.light)

    return end_left(config, store, is_used)


def end_other_readers(
    config: Config,
    store: Store,
    views: Mapping[str, ViewDefinition],
    kept: Collection[str],
    fence: Fence,
) -> list[str]:
    """End who has read for a sink for which another reads now, or nobody does; and who was left.

    The folder goes before its reader: a sink that comes again is filled anew. What is wrong with
    one is told, and holds up no other: it is tried again the next time.

    Args:
        config: the configuration.
        store: the store.
        views: its views in light mode, by name.
        kept: see `left_by_sink`.
        fence: the runner's right to write.

    Returns:
        What people must know.
    """
    wanted = {
        store.follower(view.name, sink, light=True): reader_of(config, view, sink)
        for view in views.values()
        for sink in view.sinks
    }
    told = []
    for folder in sorted(store.lights.glob("*/sinks/*")):
        try:
            if folder not in wanted or noted_reader(config, folder) not in (None, wanted[folder]):
                note_left(store, left_by_sink(config, folder, kept), fence)
                shutil.rmtree(folder)
        except MviewError as error:
            told.append(str(error.render()))
        except OSError as error:
            told.append(f"{folder} cannot be removed: {error}")
    return [*told, *end_left_readers(config, store, kept)]


def leave_sink(config: Config, folder: Path, fence: Fence) -> None:
    """Have a sink begin beside who has read for it, whose folder could not be removed before.

    That one is noted to be ended by the next start of a run.
    """
    note_left(Store(config.store), left_by_sink(config, folder, config.connections), fence)
    if (known := ProgressLog(folder).folder).exists():
        shutil.rmtree(known)


def log_readers(
    config: Config, connection: str, views: Iterable[ViewDefinition], kept: Mapping[str, Offsets]
) -> dict[LogReader, Offsets | None]:
    """Who follows the log of a connection, where it is a database's own.

    One for the epochs of the store, and one for each sink of a view in light mode. An environment
    has none: production reads for it.

    Args:
        config: the configuration.
        connection: whose log.
        views: all views.
        kept: how far the epochs of the store have read, by connection.

    Returns:
        By reader how far it has read; None: the next run begins that.
    """
    if config.environment or not _is_own(config, connection):
        return {}
    readers: dict[LogReader, Offsets | None] = {}
    for view in views:
        if not any(use.name.is_table and use.name.connection == connection for use in view.tables):
            continue
        if view.mode == "full":
            readers[log_reader(config)] = kept.get(connection)
            continue
        for sink in view.sinks:
            folder = Store(config.store).follower(view.name, sink, light=True)
            newest = None
            with suppress(CorruptionError):  # who reads by it says so
                if noted_reader(config, folder) == reader_of(config, view, sink):
                    newest = _newest(folder)
            known = None if newest is None else newest.offsets
            readers[log_reader(config, f"{view.name}/{sink}")] = known
    return readers


def _is_own(config: Config, connection: str) -> bool:
    changes = config.changes.get(connection)
    return changes is not None and changes.is_own_log


def _newest(folder: Path) -> LightProgress | None:
    steps = ProgressLog(folder).steps()
    return steps[max(steps)] if steps else None
