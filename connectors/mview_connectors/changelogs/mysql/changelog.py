"""A changelog that MySQL or MariaDB sends itself: its binary log, as a replica is sent it.

Offsets are `{"binlog": [end, commit, number], "log": name, "born": seconds, "server": id,
"table/<name>": facts}`; see `ownlog`, which has all that is not MySQL's. The file of a place is
`<name>.<(end >> 32) - shift>`, and the byte in it the lower 32 bits; `born` is when that file was
begun. `gtids` and `shift` are there only where they say something.

Another server at the address, which was a replica of the one that was read (a failover), has other
files. MariaDB's GTIDs name a transaction at all servers: `gtids` are the newest before the place.
Where the other server has had these, its log is read on after them, and its files get numbers that
are higher than all before (`shift`): places go on growing. The place stays at the server before
until a transaction has come: up to then only GTIDs say where that is.
A changelog reads one server. It ends where another one answers, as a server does that is away:
what was read of tables, to be compared with this log, is of the one before. Who opens a new one
follows the other server.

The server keeps its log for a time that it is told, whoever reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mview.config import ChangesSettings, ConnectionSettings
from mview.connector import Format, LogReader, Look, Offsets, unknown_offsets
from mview.connector.halts import altered, lost_key
from mview.errors import MviewError, UserError
from mview_connectors.changelogs.mysql.events import (
    INCIDENT,
    OTHER,
    BinlogEvents,
    file_number,
    first_disordered,
    gtid_text,
    gtids_of,
    newest_of,
    passed,
)
from mview_connectors.changelogs.mysql.layouts import Facts
from mview_connectors.changelogs.mysql.server import MysqlServer, MysqlState, lost
from mview_connectors.changelogs.mysql.stream import BinlogStream
from mview_connectors.changelogs.ownlog.changelog import TABLE, OwnLog, text_of
from mview_connectors.changelogs.ownlog.runs import Place, Runs
from mview_connectors.changelogs.ownlog.stream import away
from mview_connectors.formats.mysql_values import mysql_type

_OPTIONS = ("server_id",)

#: Seconds after which a statement must stand in the log that has changed a table.
_LOGGED_S = 1.0

#: Seconds after which the server is asked by a new connection: behind a proxy, after a failover,
#: old ones may still be of the server before, where nothing happens any more.
_RENEWED_S = 30.0

#: Words of the server's errors about places that it has not, or has no more.
_GONE = (
    "purged",
    "Could not find first log file",
    "binary log index",
    "> file size",
    "impossible",
    INCIDENT,
    OTHER,
)


class MysqlChangelog(OwnLog):
    """Follows the binary log of a MySQL or MariaDB server; see the module.

    Args:
        settings: the connection's `changes` section.
        database: where the tables are.
        tables: their names.
        reader: who reads: each has a place of its own.
    """

    log: ClassVar[str] = "binlog"

    def __init__(
        self,
        settings: ChangesSettings,
        database: ConnectionSettings,
        tables: Sequence[str],
        reader: LogReader,
    ) -> None:
        super().__init__(settings, tables, _OPTIONS)
        self._reader = reader
        self._server = MysqlServer(database)
        # High and at random: numbers that people give to replicas are low. A server ends a replica
        # when another one comes with its number: one that is given is that of the store's epochs.
        mine = str(reader.number | 1 << 31)
        given = mine if reader.light else settings.options.get("server_id", mine)
        if not given.isdecimal() or not 0 < int(given) < 1 << 32:
            self._refuse("server_id", given, "a number that no replica of the server has")
        self._number = int(given)
        self._opened_here: BinlogStream | None = None
        #: The server that is read, how the numbers of its files are counted, and where its log
        #: ended when nothing later was wanted.
        self._reads: str | None = None
        self._shift = 0
        self._last: int | None = None
        #: Before the place that was opened; and after a failover where the new log begins, with
        #: what is to be noted of it.
        self._gtids = ""
        self._first: Place | None = None
        self._followed: Offsets = {}
        #: Tables that are not as the log tells: since when, and where it ended at a later look.
        self._doubts: dict[str, tuple[float, int | None]] = {}
        self._renewed = time.monotonic()

    @classmethod
    def of_database(
        cls,
        settings: ChangesSettings,
        database: ConnectionSettings,
        format: Format,
        tables: Sequence[str],
        reader: LogReader,
    ) -> MysqlChangelog:
        """See `mview.ingest.spec.open_changelog`."""
        return cls(settings, database, tables, reader)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self._settings, self._server._settings, self._tables, self._reader
        return type(self), parts

    # --- OwnLog ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a server or tables whose changes cannot be followed; makes nothing."""
        self._check_new(self._tables)

    def _check_new(self, tables: Sequence[str]) -> None:
        self._server.check_server(self._tables)
        self._server.check_tables(tables, self._is_used)

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """The server, each table, and for how long the log is kept."""
        server, section = self._server, self._settings.section

        def may_send() -> str:
            server.check_server(tables)
            return "binlog_format is ROW, binlog_row_image is FULL, and this user may read the log"

        def followed(table: str) -> str:
            server.check_tables([table], self._is_used)
            return "the log has all its changes"

        def kept() -> str:
            return server.log_is_kept(0 if load_ms is None else load_ms())

        return [
            Look(f"{section}: server", may_send),
            *(Look(f"{server.place(t)}: log", partial(followed, t), t) for t in tables),
            Look(f"{section}: binary log", kept),
        ]

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The log's end now, when what was written before it can be seen."""
        new = self._new(known)
        self._check_new(new)
        if known is not None:
            self._shift = _shift_of(known)
        state = self._state(self._tables)
        if known is not None and state.server != text_of(known, "server"):
            raise UserError(
                f"{self._server.server} is another server than was read so far: no table can be "
                "added before its log is followed",
                where=self._settings.section,
                got=f"its identifier is {state.server}",
                safe="nothing is lost; no table was read",
                hint="run the views that were there alone until they go on, then add the others",
            )
        there = self._there(state.end)
        born = self._server.birth(state._replace(end=there))
        self._server.wait_for_writers()
        facts = {
            f"{TABLE}{name}": {
                "columns": columns,
                "since": state.end,
                "key": self._server.key(name, state.keys.get(name, {})),
            }
            for name, columns in state.tables.items()
            if name in new
        }
        return {
            self.log: list(Place(state.end)),
            "log": state.log,
            "born": born,
            "server": state.server,
            **_told(self._shift, self._server.gtids_at(state.log, there)),
            **facts,
        }

    def _disconnect(self) -> None:
        self._server.close()

    def _there(self, end: int) -> int:
        """A place, with its file's number at the server."""
        return end - (self._shift << 32)

    def _state(self, tables: Sequence[str]) -> MysqlState:
        """The server's state, with its log's end as a place.

        Raises:
            AwayError: it is another server than has answered until now.
        """
        if time.monotonic() - self._renewed >= _RENEWED_S:
            self._server.close()
            self._renewed = time.monotonic()
        state = self._server.state(tables)
        if self._reads not in (None, state.server):
            raise self._server.another(state.server)
        self._reads = state.server
        return state._replace(end=state.end + (self._shift << 32))

    def _end(self) -> int:
        self._last = self._state(()).end - (self._shift << 32)
        return self._last + (self._shift << 32)

    def _count_as(self, shift: int) -> None:
        """Count the server's files so."""
        self._shift = shift
        if self._last is not None:
            self._bounded = self._last + (shift << 32)

    def _moved_to(self, end: Place, reached: Place) -> Place:
        stream = self._opened_here
        is_before = self._first is not None and end < self._first
        if is_before and (stream is None or not stream.has_ended_one(reached.end)):
            return end
        return super()._moved_to(end, reached)

    def _offsets(self, start: Offsets, end: Place) -> Offsets:
        offsets, stream = super()._offsets(start, end), self._opened_here
        if stream is None or (self._first is not None and end < self._first):
            return offsets
        known = gtids_of(_gtids_of(start) or self._gtids)
        came = stream.gtids(self._place(start).end, end.end)
        told = _told(self._shift, gtid_text(passed(known, came) if known else known))
        offsets |= {**self._followed, **told}
        if known and (odd := first_disordered(known, came)) is not None:
            offsets["disordered"] = str(odd)
        offsets["born"] = stream.births.get(end.end >> 32, start["born"])
        for place, name, layout in stream.moved:
            if place < end.end:
                columns = [list(facts) for facts in layout]
                offsets[TABLE + name] = {**offsets[TABLE + name], "columns": columns}
        return offsets

    def _opened(self, start: Offsets) -> BinlogStream:
        self._opened_here = self._first = None
        self._followed = {}
        self._doubts.clear()
        place, log = self._place(start), text_of(start, "log")
        server = self._server.server
        self._count_as(_shift_of(start))
        state = self._state(())
        file, byte = self._server.file(log, self._there(place.end)), place.end & 0xFFFFFFFF
        born: int | None = start["born"]
        if state.server != text_of(start, "server"):
            connection, place = self._after_failover(start, file, state)
            born = None
        elif state.log != log or state.end < place.end:
            raise lost(server, file, "the log was begun anew (RESET MASTER), or the server is new")
        else:
            self._gtids = _gtids_of(start) or self._server.gtids_at(log, self._there(place.end))
            connection = self._server.open_replication(state.server, file, byte, self._number)
        try:
            self._check_followed(
                start, lambda name: self._server.check_tables([name], self._is_used)
            )
            state = self._check(start)
        except BaseException:
            connection._force_close()
            raise
        facts = {
            name: start.get(f"{TABLE}{name}", {"columns": state.tables.get(name, []), "since": 0})
            for name in self._tables
        }

        def ended(text: str) -> MviewError:
            if any(word in text for word in _GONE):
                return lost(server, file, text)
            return away("MySQL", server, f"binary log {file}", text)

        def events(runs: Runs) -> BinlogEvents:
            checksum = self._server.variables["binlog_checksum"].upper() != "NONE"
            return BinlogEvents(
                runs,
                place.end >> 32,
                checksum,
                self._server.databases_of(facts),
                facts,
                self._is_used,
                self._server.folds,
                born,
                self._shift,
                newest_of(gtids_of(self._gtids)) if self._shift else {},
            )

        self._opened_here = BinlogStream(connection, place, events, _all, ended)
        return self._opened_here

    def _after_failover(self, start: Offsets, file: str, state: MysqlState) -> tuple[Any, Place]:
        """A connection by which another server's log comes after what was read, and its place.

        Raises:
            DataLostError: it has not all that was read, or nobody can tell.
        """
        self._gtids, place = _gtids_of(start), self._place(start)
        if self._loading:
            why = (
                f"rows of {', '.join(self._loading)} were read from the one before, and may be of "
                "transactions that this one does not have"
            )
        elif place.commit:
            why = "a transaction was read in part"
        elif "disordered" in start:
            why = (
                f"transaction {start['disordered']} stood behind newer ones in the log that was "
                "read (gtid_strict_mode was OFF), so its number says nothing of what is where"
            )
        else:
            why = self._server.differs(self._gtids)
        if why:
            what = f"it is another server (its identifier is {state.server}): {why}"
            raise lost(self._server.server, file, what)
        self._server.check_server(self._tables)
        connection, file = self._server.open_after(state.server, self._gtids, self._number)
        number = file_number(file)
        # Never 0: that there is one tells that this log is not read from its beginning.
        self._count_as((place.end >> 32) + 1 - number or 1)
        self._first = Place(number + self._shift << 32)
        self._followed = {"server": state.server, "log": file.rpartition(".")[0]}
        return connection, self._first

    def _check(self, start: Offsets) -> MysqlState:
        state = self._state(self._tables)
        for name in self._tables:
            if (facts := start.get(f"{TABLE}{name}")) is not None:
                now = state.tables.get(name)
                self._check_table(name, facts, now, state.keys.get(name, {}))
                self._check_places(name, facts["columns"], now or [], state.end)
        return state

    def _check_table(
        self,
        name: str,
        facts: Mapping[str, Any],
        now: list[list[Any]] | None,
        keys: Mapping[str, Sequence[str]],
    ) -> None:
        """Tell of a column that is read, or a key, and is another one by now."""
        what, then, key = "", facts["columns"], facts.get("key")
        if now is None:
            what = "was dropped or renamed"
        else:
            there = {str(column[0]): column for column in now}
            if key is not None and keys.get(key[0]) != key[1]:
                what = lost_key([key[0]])
            for column in filter(lambda column: self._is_used(name, str(column[0])), then):
                if (other := there.get(str(column[0]))) is None:
                    what = f"has column {column[0]!r} no more"
                elif other[:3] != column[:3] and not _has_more_labels(column, other):
                    what = f"has column {column[0]!r} with another type"
                elif Facts(*column).nullable and not Facts(*other).nullable and column[3:]:
                    what = f"has column {column[0]!r} NOT NULL, which could be NULL before"
        if what:
            self._halts[name] = altered(self._server.place(name), self._server.server, what)

    def _check_places(
        self, name: str, then: list[list[Any]], now: list[list[Any]], end: int
    ) -> None:
        """Tell of columns that have other places than by the statements in the log.

        A statement may stand behind what has come: only when all has come that was there some time
        after it was seen, it stands in no log (`sql_log_bin = 0`), and rows cannot be read.
        """
        stream = self._opened_here
        if stream is not None:
            layout = stream.layouts.get(name)
            if layout is None:
                return  # it was altered, which the log tells
            then = [[*facts] for facts in layout]
        if [column[0] for column in then] == [column[0] for column in now]:
            self._doubts.pop(name, None)
            return
        since, until = self._doubts.get(name, (time.monotonic(), None))
        if until is None and time.monotonic() - since >= _LOGGED_S:
            until = end
        self._doubts[name] = since, until
        if until is not None and stream is not None and stream.has_reached(until):
            what = "has columns at other places, by a statement that is not in the log"
            self._halts[name] = altered(self._server.place(name), self._server.server, what)


def _shift_of(offsets: Offsets) -> int:
    if not isinstance(shift := offsets.get("shift", 0), int):
        raise unknown_offsets(offsets)
    return shift


def _gtids_of(offsets: Offsets) -> str:
    return text_of(offsets, "gtids") if "gtids" in offsets else ""


def _told(shift: int, gtids: str) -> Offsets:
    """What offsets have of these, where they say something."""
    return {**({"shift": shift} if shift else {}), **({"gtids": gtids} if gtids else {})}


def _has_more_labels(then: list[Any], now: list[Any]) -> bool:
    """Whether a column is an ENUM or SET that has got labels, or has them in another order."""
    before, after = mysql_type(str(then[1])), mysql_type(str(now[1]))
    return (
        then[2] == now[2]
        and before.name == after.name
        and before.name in ("enum", "set")
        and set(before.labels) <= set(after.labels)
    )


def _all(message: bytes) -> bytes:
    """Only tables that are read are made messages."""
    return message
