"""A source: a log in SQLite, `CREATE TABLE log (id INTEGER PRIMARY KEY, line TEXT)`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence

from mview.clock import END_OF_TIME
from mview.config import ChangesSettings
from mview.connector import (
    ALL,
    NO_LIMIT,
    Align,
    Format,
    Message,
    Offsets,
    Progress,
    Split,
    events_of,
)
from mview.errors import ConfigError, DataLostError, RetryableError

#: The log has one partition; its offset is the next id to be read.
_LOG = "log"


class SqliteLog:
    """Reads the rows of the log by their ids, which have no gaps.

    Args:
        settings: the connection's `changes` section; `path` is the database's file.
        format: decodes lines.
        tables: not needed: the log holds all tables.
    """

    def __init__(self, settings: ChangesSettings, format: Format, tables: Sequence[str]) -> None:
        self._path, self._format = settings.path, format
        self._end: int | None = None

    def check(self) -> None:
        """Raise ConfigError unless there is a log."""
        if self._path is None or not self._path.is_file():
            raise ConfigError("there is no log", got=str(self._path), hint="correct changes.*.path")

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The log's end now."""
        return {_LOG: self._query("SELECT coalesce(max(id), 0) + 1 FROM log")[0][0]}

    def has(self, name: str) -> bool:
        """Whether an entry of offsets is of this log."""
        return name == _LOG

    def first(self, offsets: Offsets) -> dict[str, int]:
        """Messages have their ids as offsets."""
        return dict(offsets)

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """The position of the table's last change before these offsets."""
        for number, line in self._query("SELECT * FROM log WHERE id < ? ORDER BY id DESC", before):
            for event in events_of(self._format, _message(number, line)):
                if event.table == table:
                    return {_LOG: event.position}
        return {}

    def advance(
        self,
        start: Offsets,
        max_rows: int,
        wait_ms: int,
        max_bytes: int = NO_LIMIT,
        align: Align = ALL,
    ) -> Progress:
        """How far the next batch reads. Lines have no times: only the end of all is certain."""
        ((first,),) = self._query("SELECT coalesce(min(id), 1) FROM log")
        if first > start[_LOG]:
            raise DataLostError(f"the log begins at {first}", got=f"{start[_LOG]} is to be read")
        end = self._end or self.begin()[_LOG]
        if end == start[_LOG] and self._end is None:
            time.sleep(wait_ms / 1000)
            end = self.begin()[_LOG]
        sizes = self._query("SELECT length(line) FROM log WHERE id >= ? ORDER BY id", start)
        stop = size = 0
        for (nbytes,) in sizes[: min(max_rows, end - start[_LOG])]:
            if stop and size + nbytes > max_bytes:
                break
            stop, size = stop + 1, size + nbytes
        reached = start[_LOG] + stop
        watermark = END_OF_TIME if reached == self._end else None
        return Progress({_LOG: reached}, watermark, end - reached)

    def finish(self) -> None:
        """What is written from now on is not read any more."""
        self._end = self.begin()[_LOG]

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """One piece of work."""
        return [Split(_LOG, start[_LOG], end[_LOG], end[_LOG] - start[_LOG])]

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The messages, in order."""
        for split in splits:
            rows = self._query("SELECT * FROM log WHERE id >= ? ORDER BY id", {_LOG: split.start})
            yield from (_message(*row) for row in rows if row[0] < split.end)

    def caution(self) -> str | None:
        """A file is what it is."""
        return None

    def close(self) -> None:
        """Nothing stays open."""

    def _query(self, sql: str, at: Offsets | None = None) -> list[tuple[int, ...]]:
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
        try:
            return connection.execute(sql, () if at is None else (at[_LOG],)).fetchall()
        except sqlite3.Error as error:
            raise RetryableError("the log cannot be read", got=str(error)) from error
        finally:
            connection.close()


def _message(number: int, line: object) -> Message:
    return Message(_LOG, number, None, str(line).encode())
