"""What a connector is: four small protocols, found by name through entry points.

Databases are read once in chunks, changelogs are read for ever, formats turn messages into change
events, sinks take view deltas in transactions. The engine imports no connector: it asks `load`.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from mview.changelog import ChangeEvent
from mview.clock import DAY_MS, SourceMs
from mview.connector.halts import TableHalt as TableHalt
from mview.connector.messages import AHEAD_MS as AHEAD_MS
from mview.connector.messages import PLACE_HEADER as PLACE_HEADER
from mview.connector.messages import Message as Message
from mview.connector.messages import block_of as block_of
from mview.connector.messages import events_of as events_of
from mview.connector.messages import passed_by as passed_by
from mview.connector.messages import place_of as place_of
from mview.connector.messages import reload_hint as reload_hint
from mview.errors import ConfigError, CorruptionError, shown
from mview.files.fence import UNFENCED, Fence
from mview.schema import Column, TableSchema
from mview.snapshot import Chunk, ChunkPlan

Group = Literal["databases", "formats", "changelogs", "sinks", "followers"]


@lru_cache
def load(group: Group, name: str) -> Any:
    """The connector factory registered as `name` in the entry-point group `mview.<group>`.

    Remembered: to list all packages takes milliseconds, and every task of an epoch asks.

    Raises:
        ConfigError: no such connector; the message lists those there are.
    """
    entries = {entry.name: entry for entry in entry_points(group=f"mview.{group}")}
    if name not in entries:
        close = get_close_matches(name, entries, n=1)
        raise ConfigError(
            f"no connector named {name!r} among {group}",
            allowed=", ".join(sorted(entries)),
            hint=f"did you mean {close[0]!r}?" if close else "check conf/mview.yml",
        )
    return entries[name].load()


class Look(NamedTuple):
    """A question of `mview doctor`: `ask` says what is right, or raises what is not.

    Attributes:
        table: the one whose changes it asks for; empty: it is of more than that.
    """

    about: str
    ask: Callable[[], str]
    table: str = ""


@runtime_checkable
class Examined(Protocol):
    """A database or changelog that can be asked one thing after the other, and not only at all."""

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """The questions. `load_ms`: about what a load takes; None: no program reads its log."""
        ...


# --- databases -----------------------------------------------------------------------------------


class Database(Protocol):
    """One source database, read through SQLAlchemy. Used on the driver and on executors.

    Made by `factory(settings)` where settings is `ConnectionSettings`; must be picklable before
    first use (open connections lazily). Outside failures raise RetryableError.
    """

    def clock(self) -> SourceMs:
        """The database's own clock."""
        ...

    def tables(self) -> Sequence[str]:
        """Table names that can be read, for messages."""
        ...

    def describe(self, table: str, uses: Callable[[str], bool] | None = None) -> TableSchema:
        """The columns that are read, and the primary key.

        Args:
            uses: whether a column is used; None: all are. Others are only named, but for the key's.

        Raises:
            UserError: unknown table ("did you mean"), no primary key, a type that has no equal.
        """
        ...

    def unsent(self, table: str) -> Sequence[str]:
        """The columns that the database computes, and that no log of it has: they are not read."""
        ...

    def keys(self, table: str) -> Sequence[Collection[str]]:
        """The sets of columns that tell a table's rows apart by now, whether they are read or not.

        Raises:
            UserError: there is no such table, or it may not be looked at.
        """
        ...

    def check_log(self, table: str, read: Sequence[Column] = ()) -> None:
        """Make sure that the database's own log has all changes of a table, under its name.

        Asked where a program such as Debezium reads the log: what it is not given it cannot send.

        Args:
            table: the table.
            read: its columns that are read.

        Raises:
            UserError: what is left out, and the statement that mends it.
        """
        ...

    def defaults(self, table: str) -> Sequence[str]:
        """The columns that may be NULL and have another default.

        Asked where Debezium reads the log: its converters may send that in place of NULL.
        """
        ...

    def plan(self, table: str, schema: TableSchema, rows: int, size: int) -> ChunkPlan:
        """Split the table into chunks of at most about `rows` rows and `size` bytes."""
        ...

    def read(
        self, table: str, schema: TableSchema, plan: ChunkPlan, chunk: Chunk
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one chunk, in batches of `schema.arrow`, from one consistent read."""
        ...

    def caution(self) -> str | None:
        """A warning where the server is not proven to be the right one; connects to nothing."""
        ...

    def close(self) -> None:
        """Free connections; may be called more than once."""
        ...


# --- formats -------------------------------------------------------------------------------------


def unknown_offsets(offsets: Offsets) -> CorruptionError:
    """The error of a changelog about offsets that are none of its own."""
    return CorruptionError(
        "the place up to which a changelog was read has another form",
        got=shown(offsets),
        safe="nothing was read, and nothing changed",
        hint="restore the newest manifest of the store from a copy; or `mview drop` the tables of "
        "the connection and run again: they are loaded anew",
    )


class Format(Protocol):
    """Decodes messages. Stateless; made by `factory(options)`.

    A format may also have `decode_block(messages) -> EventBlock | None`: what `decode` gives of
    these messages, at most one of each, in a third of the time. None, or any exception: they are to
    be decoded one by one.

    Attributes:
        in_band_heartbeats: heartbeats come in the change partitions themselves, so that Kafka needs
            no heartbeat topic.
    """

    in_band_heartbeats: bool

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The events of a message; none for a tombstone or a transaction marker.

        Raises:
            DecodeError: with partition and offset; never guesses, never skips.
            AwayError: a server that it needs does not answer; it is waited for.
        """
        ...

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """Raw values of one column (as `decode` left them) as an Arrow array of `column.type`.

        Raises:
            ValueError: a value does not fit; the message names it. The caller adds the place.
        """
        ...


# --- changelogs ----------------------------------------------------------------------------------

#: Bytes of a batch that is not limited.
NO_LIMIT = sys.maxsize


@dataclass(frozen=True)
class Align:
    """How much newer than others the changes may be that a log gives, and what stays together.

    Attributes:
        max_drift: milliseconds that a partition may be ahead of one that has more to be read.
        until: no change may be newer; None: no other log has more to be read.
        whole_changes: a transaction of so many is not cut, whatever else limits the batch; …
        whole_bytes: … and of so many bytes. A larger one may come in parts.
    """

    max_drift: int
    until: SourceMs | None = None
    whole_changes: int = NO_LIMIT
    whole_bytes: int = NO_LIMIT


#: Nothing waits for anything.
ALL = Align(sys.maxsize)

#: Offsets of one changelog: partition name -> JSON-able offset.
Offsets = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far a batch may read, decided on the driver and stored in the stream's offset.

    Attributes:
        offsets: read up to here (exclusive).
        watermark: every change with source time <= watermark is before `offsets`; None: unknown.
        backlog: messages known to exist after `offsets`.
        whole: whether `offsets` are between two transactions of the source; None: nobody can tell.
        halts: by name, tables of which no change after `offsets` can be taken; those before it are
            not counted on, either. It may be said again and again.
    """

    offsets: Offsets
    watermark: SourceMs | None
    backlog: int = 0
    whole: bool | None = None
    halts: Mapping[str, TableHalt] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """A piece of work for one executor task: [start, end) of one partition.

    Attributes:
        messages: about how many, to decide on how many tasks they are worth.
    """

    partition: str
    start: Any
    end: Any
    messages: int


@dataclass(frozen=True)
class LogReader:
    """Who follows a database's own log: each has a place of its own there, and names to be told by.

    Attributes:
        store: the folder of the store; of one that was moved, where it was made.
        light: `<view>/<sink>` of a sink of a view in light mode, which reads for itself; empty: the
            epochs of the store.
    """

    store: Path
    light: str = ""

    @property
    def number(self) -> int:
        """32 bits that tell it from the others, those of other stores too."""
        if not self.light:
            return zlib.crc32(str(self.store).encode())
        said = f"{self.store}\0{self.light}".encode()
        return int.from_bytes(hashlib.sha256(said).digest()[:4], "big")


class Changelog(Protocol):
    """A log of changes: Kafka topics, a folder, a database's own log.

    Made by `factory(settings, format, tables)`; by `factory.of_database(settings, database, format,
    tables, reader)` where it is the log of the connection's database itself: with the settings of
    the connection and who reads. Of these one object at a time may follow a log for a reader:
    `advance` for what begins at the end of a batch says that the batch before it is published.

    Picklable before first use. The driver calls all but `read`, which executors call, or other
    objects in the driver. It may have an attribute `reads_ahead`, true: then `read` is asked of the
    object that has planned, where the driver reads, as that has read some of it already.
    """

    def check(self) -> None:
        """Raise ConfigError / RetryableError when topics, heartbeats or folders are not usable."""
        ...

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The log's end now: every change committed later is at or after these offsets.

        Args:
            known: offsets up to which the same log was read, if it is being read: the end is
                counted as they are.
        """
        ...

    def has(self, name: str) -> bool:
        """Whether an entry of offsets is of a partition, or topic, of these tables."""
        ...

    def first(self, offsets: Offsets) -> dict[str, int]:
        """By partition, the offset that the first message from there on has, or one before it."""
        ...

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """By partition, the position of the table's last change before these offsets.

        A partition is left out where none is found, or where positions are not sent.
        """
        ...

    def advance(
        self,
        start: Offsets,
        max_rows: int,
        wait_ms: int,
        max_bytes: int = NO_LIMIT,
        align: Align = ALL,
    ) -> Progress:
        """How far the next batch reads; `start` when nothing is new after `wait_ms`.

        Args:
            start: where it begins.
            max_rows: messages that it may have, about.
            wait_ms: how long to wait for something new.
            max_bytes: bytes that these may have; a message that is larger comes alone.
            align: how far ahead of the slowest partition, and of other logs, it may read.

        Raises:
            DataLostError: `start` is gone (retention).
        """
        ...

    def finish(self) -> None:
        """From now on behave as if nothing is written after this moment (bounded run)."""
        ...

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """The work between two offsets."""
        ...

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The messages of splits, in order within each."""
        ...

    def caution(self) -> str | None:
        """A warning where the server is not proven to be the right one; connects to nothing."""
        ...

    def close(self) -> None:
        """Free connections; may be called more than once."""
        ...


@runtime_checkable
class Retaining(Protocol):
    """A changelog whose server keeps its log for each reader, until one is no more."""

    def room(self, readers: Mapping[LogReader, Offsets | None]) -> str:
        """Whether the server has room for readers, for people; a caution begins with WARNING.

        Args:
            readers: with offsets up to which they have read; None: they are yet to begin.

        Raises:
            ConfigError: it has none for those that are not there yet.
        """
        ...

    def leave(self, known: Offsets | None) -> None:
        """Have the server keep nothing for this reader any more; no harm where it keeps nothing.

        Args:
            known: offsets up to which it has read; None: these are not known.
        """
        ...


@runtime_checkable
class Installed(Protocol):
    """A changelog that needs something of its own in the database: `mview init --triggers`."""

    def install(self) -> Sequence[str]:
        """Make what is missing; the tables for which something was made.

        Tables whose changes cannot be noted are left out: `check` says why.
        """
        ...


# --- sinks ---------------------------------------------------------------------------------------

#: Column of a view delta that holds the Z-set weight (bigint).
WEIGHT = "__weight"


@dataclass(frozen=True)
class SinkTarget:
    """What a sink writes: one view.

    Attributes:
        view: view name.
        schema: the view's columns; `key` empty for a view with multiset semantics.
        writer: writer id (view and state generation): epochs of another writer are not ours.
        options: the view's WITH properties and the sink's section in the config.
        comment: the view's COMMENT.
        store: id of the store: a target that another one has made is not ours. Empty: `check` asks
            before there is a store.
        copied_from: where the store is that this one is a copy of: the target is that one's. Empty:
            it is no copy.
        private: only who runs mview may read it; else it is for others, as the user's umask has it.
        fence: the runner's right to write; a target keeps its token and refuses older ones.
    """

    view: str
    schema: TableSchema
    writer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    comment: str | None = None
    store: str = ""
    history_ms: int = 7 * DAY_MS
    copied_from: str = ""
    private: bool = False
    fence: Fence = UNFENCED


def check_options(target: SinkTarget, known: Sequence[str]) -> None:
    """For a sink's constructor: refuse options that it does not know.

    Raises:
        ConfigError: with the closest one that it knows.
    """
    for name in target.options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise ConfigError(
                f"view {target.view}: its sink has no option {name!r}",
                allowed=", ".join(known),
                hint=f"did you mean {close[0]!r}?" if close else None,
            )


@runtime_checkable
class Cautious(Protocol):
    """A sink whose readers must know something; `mview check` asks it where options are given."""

    def caution(self) -> str | None:
        """A line for the user, with what to set instead; None: nothing."""
        ...


class Sink(Protocol):
    """A place that holds one view. Made by `factory(target)`; every call is idempotent.

    The factory checks the options, and opens nothing: `mview check` calls it, and `check`, too.
    What a sink deletes is what it has made for this view and this store, and nothing else.

    Order per epoch: stage (or stage_full) -> [intent on disk] -> commit | rollback. `stage` makes
    the delta durable without showing it; its token is JSON and is all that `commit` needs, also in
    another process after a crash. Committing a token twice is the same as once. Sinks of several
    views stage at the same time, each in some thread.
    """

    def check(self) -> None:
        """Refuse a target that somebody else has made, or that is no empty place; writes nothing.

        Raises:
            UserError: what is there instead.
        """
        ...

    def stage(self, epoch: int, delta: pa.Table) -> dict[str, Any]:
        """Make an epoch's delta durable: the view's columns plus WEIGHT, consolidated."""
        ...

    def stage_full(self, epoch: int, files: Sequence[Path]) -> dict[str, Any]:
        """The same for a whole new content, given as Parquet files below `staging()`."""
        ...

    def staging(self, epoch: int) -> Path:
        """A folder in which an executor may write the Parquet files of `stage_full`."""
        ...

    def commit(self, token: dict[str, Any]) -> dict[str, Any]:
        """Show the staged epoch. Returns facts for the manifest, e.g. {"version": 7}.

        Raises:
            TargetError: somebody else changed what is in the target.
            FencedError: another runner wrote to it since the last published epoch.
        """
        ...

    def rollback(self, token: dict[str, Any] | None, published: dict[str, Any] | None) -> None:
        """Undo what was staged or committed after `published` (the facts in the last manifest).

        Where the runner takes over, an older runner's commits must fail before anything is undone.
        """
        ...

    def repair(self, published: dict[str, Any]) -> bool:
        """Make the target what it was at a published epoch, whatever others have written since.

        Returns:
            Whether it is; False: it cannot be any more, and the view must be built anew.
        """
        ...

    def rows(self, published: dict[str, Any]) -> pa.Table:
        """The content at the published epoch."""
        ...

    def parts(self, published: dict[str, Any]) -> Iterator[pa.Table]:
        """The same in parts of bounded size, for comparisons."""
        ...

    def apart(self, new: dict[str, Any], old: dict[str, Any]) -> tuple[pa.Table, pa.Table]:
        """Rows of two published epochs, in which these differ; what both have may be left out."""
        ...

    def maintain(self, oldest: Mapping[str, Any] | None, keep: Sequence[Mapping[str, Any]]) -> int:
        """Remove what nobody reads any more; off the hot path.

        Args:
            oldest: facts of an epoch that stays readable, as all after it do; None: there was none.
            keep: facts of older epochs that stay readable, too.

        Returns:
            Number of files removed.
        """
        ...

    def drop(self) -> None:
        """Remove what the sink has made, also where it is damaged; a second time does nothing."""
        ...
