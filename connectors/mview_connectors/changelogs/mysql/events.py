"""Events of the binary log, one by one, as messages of blocks.

A place in the log is one number: that of the file, and 32 bits for the byte in it.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

import orjson

from mview.clock import SourceMs
from mview.errors import UserError, shown
from mview_connectors.changelogs.mysql.layouts import (
    AlteredError,
    Facts,
    Layout,
    after,
    altered_table,
    tokens_of,
)
from mview_connectors.changelogs.ownlog.runs import Runs
from mview_connectors.formats.ownlog.binlog import (
    LogColumn,
    LogTable,
    begin_message,
    change_message,
    written_as,
)
from mview_connectors.formats.ownlog.blocks import Begin, commit_message

_QUERY, _ROTATE, _FORMAT, _XID, _TABLE_MAP, _INCIDENT = 2, 4, 15, 16, 19, 26
_GTID, _ANONYMOUS_GTID, _XA_PREPARE, _MARIADB_GTID = 33, 34, 38, 162
#: Rows, by kind: of MariaDB, and of MySQL 5.6 and newer.
_ROWS = {23: "i", 24: "u", 25: "d", 30: "i", 31: "u", 32: "d"}
_SECOND_VERSION = (30, 31, 32)
#: What a server writes by settings that are refused: parts of JSON, and what is compressed.
_REFUSED = {
    39: "SET GLOBAL binlog_row_value_options = ''",
    40: "SET GLOBAL binlog_transaction_compression = OFF",
    **dict.fromkeys(range(165, 172), "SET GLOBAL log_bin_compress = OFF"),
}
#: Of what a server may add to TABLE_MAP_EVENT: the columns' names.
_COLUMN_NAMES = 4
#: Said of a file that is not the one that was read.
OTHER = "another one: the log was begun anew (RESET MASTER), or it is another server"
#: Said where the server has lost events itself.
INCIDENT = "the server notes that events are lost (INCIDENT_EVENT)"
#: Of MariaDB's GTID: no COMMIT follows.
_STANDALONE = 1

_header = struct.Struct("<IBIIIH").unpack_from
_HEADER, _CHECKSUM = 19, 4
_query = struct.Struct("<8xB2xH").unpack_from
_QUERY_HEAD = 13

#: Types whose column has two bytes of meta data, and one; else none.
_TWO = frozenset((15, 16, 246, 247, 248, 253, 254))
_ONE = frozenset((4, 5, 17, 18, 19, 245, 249, 250, 251, 252, 255))

_TRUNCATE = re.compile(r"truncate\b", re.IGNORECASE)
_TEMPORARY = re.compile(r"(drop|create) temporary\b", re.IGNORECASE)
_DROP_DATABASE = re.compile(r"(drop|create or replace) (database|schema)\b", re.IGNORECASE)
#: Statements that change rows, where rows should be.
_WRITES = re.compile(r"(insert|update|delete|replace|load|with|merge|call)\b", re.IGNORECASE)


class Gtid(NamedTuple):
    """What MariaDB calls a transaction, at all servers that have it: `0-1-42`."""

    domain: int
    server: int
    number: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.number}"


def gtids_of(text: str) -> list[Gtid]:
    """The transactions of a list, as the server writes it: `0-1-42,1-7-9`."""
    parts = [part.strip().split("-") for part in text.split(",") if part.strip()]
    return [Gtid(int(domain), int(server), int(number)) for domain, server, number in parts]


def gtid_text(gtids: Iterable[Gtid]) -> str:
    """The list that `gtids_of` reads."""
    return ",".join(map(str, gtids))


def newest_of(gtids: Iterable[Gtid]) -> dict[int, Gtid]:
    """By domain, the transaction that stands last in a list."""
    return {gtid.domain: gtid for gtid in gtids}


def passed(before: Iterable[Gtid], gtids: Iterable[Gtid]) -> list[Gtid]:
    """The newest transaction of each domain and server after some more; of a domain's, the newest
    of all stands last.
    """
    known = {(gtid.domain, gtid.server): gtid for gtid in before}
    for gtid in gtids:
        known.pop((gtid.domain, gtid.server), None)
        known[gtid.domain, gtid.server] = gtid
    return [*known.values()]


def first_disordered(before: Iterable[Gtid], gtids: Iterable[Gtid]) -> Gtid | None:
    """The first transaction that has no higher number than one of its domain that came earlier.

    >>> print(first_disordered(gtids_of("0-1-7,3-1-9"), gtids_of("3-2-10,0-1-8,0-2-8")))
    0-2-8
    >>> first_disordered(gtids_of("0-1-7"), gtids_of("3-1-1,0-2-9"))
    """
    numbers: dict[int, int] = {}
    for gtid in before:
        numbers[gtid.domain] = max(gtid.number, numbers.get(gtid.domain, 0))
    for gtid in gtids:
        if gtid.number <= numbers.get(gtid.domain, -1):
            return gtid
        numbers[gtid.domain] = gtid.number
    return None


def rotated_to(event: bytes) -> tuple[str, int]:
    """The file in which the log goes on, and the byte in it; of an event without a checksum."""
    place = event[_HEADER : _HEADER + 8]
    return str(event[_HEADER + 8 :], "utf-8"), int.from_bytes(place, "little")


def names_of(sql: str) -> list[tuple[str | None, str]]:
    """The words of a statement that may be tables, quoted or not, each with its database.

    >>> names_of("DROP TABLE `a b`, c.`d``e` /* f */")
    [(None, 'DROP'), (None, 'TABLE'), (None, 'a b'), ('c', 'd`e')]
    """
    names: list[tuple[str | None, str]] = []
    is_part = False
    for token in tokens_of(sql):
        if token.kind in ("tick", "double", "word"):
            if is_part:
                names[-1] = names[-1][1], token.name
            else:
                names.append((None, token.name))
        is_part = token.word == "." and bool(names)
    return names


class BinlogEvents:
    """Takes events and makes runs of them.

    Args:
        runs: gets the messages.
        file: the number of the first event's file.
        checksum: whether events end with one.
        names: of the tables, as we call them: their databases, and their names there.
        tables: by name, what they are at the first event: `columns`, in order (see `Facts`),
            `since`, the place from which on they are followed, and `key`, the index that tells
            rows apart and its columns; None: there is none.
        is_used: whether a column of a table is read.
        folds: whether names differ by their letters' case only for people.
        born: when the first file was begun, in seconds; None: nobody knows, as it is of another
            server than was read before.
        shift: by how much the numbers of files are higher in places than at the server.
        had: by domain, the newest of MariaDB's transactions that were read of another server. Older
            ones may stand behind a place, where there are several domains.

    Attributes:
        births: by file, when it was begun, in seconds.
        ends: of MariaDB's transactions, in order: where each ends, and its name.
        layouts: the columns of the tables at the newest event; one that was altered has none.
        moved: where the columns of a table have become others: after which place, and which.
    """

    def __init__(
        self,
        runs: Runs,
        file: int,
        checksum: bool,
        names: Mapping[str, tuple[str, str]],
        tables: Mapping[str, Mapping[str, Any]],
        is_used: Callable[[str, str], bool],
        folds: bool,
        born: int | None,
        shift: int,
        had: Mapping[int, Gtid],
    ) -> None:
        self._runs, self._file, self._checksum, self._shift = runs, file, checksum, shift
        self._fold = str.casefold if folds else str
        self._facts, self._is_used, self._names = tables, is_used, names
        self.layouts: dict[str, Layout] = {
            table: tuple(Facts(*column) for column in facts["columns"])
            for table, facts in tables.items()
        }
        self.moved: list[tuple[int, str, Layout]] = []
        #: By database and name, as they are compared, the numbers and our names of the tables.
        self._numbers = {
            (self._fold(names[table][0]), self._fold(names[table][1])): (number, table)
            for number, table in enumerate(tables)
        }
        self._shapes: dict[int, tuple[int, LogTable]] = {}
        self._known: dict[int, bytes] = {}
        #: Of the transaction: where it began; whether a COMMIT follows; whether we took rows.
        self._begin: int | None = None
        self._is_group = self._has_rows = False
        self._born = born
        self.births: dict[int, int] = {}
        self.ends: list[tuple[int, Gtid]] = []
        self._gtid: Gtid | None = None
        self._had, self._was_had = had, False

    def take(self, event: bytes) -> None:
        """Take one event.

        Raises:
            ValueError: it is none, or stands where none may.
            UserError: changes are not in it as rows.
        """
        seconds, kind, server, size, end, _ = _header(event)
        if kind == _FORMAT:
            self._checksum = event[-_CHECKSUM - 1] == 1
            if not self.births and self._born not in (None, seconds):
                raise ValueError(f"file {self._file} of the log is {OTHER}")
            self.births[self._file] = seconds
        elif self._checksum:
            (sum_,) = struct.unpack_from("<I", event, len(event) - _CHECKSUM)
            if zlib.crc32(event[:-_CHECKSUM]) != sum_:
                raise ValueError("an event has not the bytes that its checksum is of")
            event = event[:-_CHECKSUM]
        if kind == _ROTATE:
            self._rotate(event)
            return
        start, end = (self._file << 32) + end - size, (self._file << 32) + end
        if kind in _ROWS:
            self._rows(kind, event, start)
        elif kind == _TABLE_MAP:
            self._table_map(event, start)
        elif kind == _MARIADB_GTID:
            number, domain, flags = struct.unpack_from("<QIB", event, _HEADER)
            gtid = Gtid(domain, server, number)
            self._open(start, seconds, str(gtid))
            self._was_had = domain in self._had and number <= self._had[domain].number
            self._gtid = None if self._was_had else gtid
            self._is_group = not flags & _STANDALONE
        elif kind in (_GTID, _ANONYMOUS_GTID):
            source, number = event[_HEADER + 1 : _HEADER + 17].hex(), event[_HEADER + 17 :]
            name = f"{source}:{int.from_bytes(number[:8], 'little')}"
            self._open(start, seconds, name if kind == _GTID else "")
        elif kind == _QUERY:
            self._query(event, start, end, seconds)
        elif kind == _XID:
            self._commit(end)
        elif kind == _XA_PREPARE:
            if self._has_rows:
                self._refuse("a transaction is prepared (XA): it may be rolled back later", "XA")
            self._commit(end)
        elif kind == _INCIDENT:
            raise ValueError(INCIDENT)
        elif kind in _REFUSED:
            self._refuse("changes are compressed, or parts of values", _REFUSED[kind])
        elif self._begin is None and end & 0xFFFFFFFF:
            self._runs.pass_to(end)

    # --- transactions ----------------------------------------------------------------------------

    def _rotate(self, event: bytes) -> None:
        name, place = rotated_to(event)
        if self._begin is not None:
            raise ValueError("a file of the log ends inside of a transaction")
        self._file = file_number(name) + self._shift
        self._runs.pass_to((self._file << 32) + place)

    def _open(self, start: int, seconds: int, name: str) -> None:
        if self._begin is not None:
            raise ValueError("a transaction begins inside of another one")
        self._begin, self._is_group, self._has_rows = start, False, False
        self._gtid, self._was_had = None, False
        self._runs.add(begin_message(Begin(start, SourceMs(seconds * 1000), 0), name))

    def _commit(self, end: int) -> None:
        if self._begin is None:
            raise ValueError("a transaction ends that has not begun")
        self._begin = None
        if self._gtid is not None:
            self.ends.append((end, self._gtid))
        self._runs.add(commit_message(end))

    def _query(self, event: bytes, start: int, end: int, seconds: int) -> None:
        schema_size, status_size = _query(event, _HEADER)
        at = _HEADER + _QUERY_HEAD + status_size
        schema = str(event[at : at + schema_size], "utf-8")
        sql = str(event[at + schema_size + 1 :], "utf-8", "replace")
        word = sql[:12].lstrip().partition(" ")[0].upper().rstrip(";")
        if self._begin is None:
            self._open(start, seconds, "")
        if word == "BEGIN":
            self._is_group = True
        elif word in ("COMMIT", "ROLLBACK"):
            if word == "ROLLBACK" and self._has_rows:
                self._refuse("a transaction is rolled back, in part or as a whole", shown(sql, 80))
            if " TO " not in sql.upper():
                self._commit(end)
        else:
            if word not in ("XA", "SAVEPOINT", "RELEASE"):
                self._statement(schema, sql, start)
            if not self._is_group:
                self._commit(end)

    # --- statements ------------------------------------------------------------------------------

    def _statement(self, schema: str, sql: str, start: int) -> None:
        """A statement that may concern our tables: the engine halts where it moves rows."""
        begins = " ".join(token.text for token in tokens_of(sql)[:4])
        if _TEMPORARY.match(begins):
            return
        schema, is_drop = self._fold(schema), _DROP_DATABASE.match(begins) is not None
        pairs = [(x if x is None else self._fold(x), self._fold(name)) for x, name in names_of(sql)]
        named = {(schema if part is None else part, name) for part, name in pairs}
        place = start - (self._begin or 0) + 1
        for key, (number, table) in self._numbers.items():
            is_named = key in named or (is_drop and (None, key[0]) in pairs)
            if is_named and self._is_followed(table):
                if _WRITES.match(begins):
                    self._refuse(f"changes of {table} are a statement, not rows", shown(sql, 200))
                word = "truncate" if _TRUNCATE.match(begins) else "ddl"
                self._tell(number, table, place, word, sql)
                self._alter(key, number, table, place, schema, sql)

    def _tell(self, number: int, table: str, place: int, word: str, text: str) -> None:
        """A message that is no row: what has happened to a table."""
        if number not in self._known:  # a message must have described it
            self._describe(number, LogTable(*self._names[table], ()))
        body = orjson.dumps([word, text])
        self._runs.add(change_message("t", number, place, body))

    def _alter(
        self, key: tuple[str, str], number: int, table: str, place: int, schema: str, sql: str
    ) -> None:
        """Have the columns of a table be those after a statement."""
        before = self.layouts.get(table)
        if before is None or (target := altered_table(sql)) is None:
            return
        part, name = target
        if (schema if part is None else self._fold(part), self._fold(name)) != key:
            return
        try:
            index: str | None = (self._facts[table].get("key") or [None])[0]
            layout = after(sql, before, partial(self._is_used, table), index)
        except AlteredError as why:
            self._lose(number, table, place + 1, f"{why}: {shown(sql, 200)}")
            return
        if layout != before:
            self._become(table, layout)

    def _become(self, table: str, layout: Layout) -> None:
        """Other columns of a table, from the newest event on."""
        self.layouts[table] = layout
        self.moved.append((self._begin or 0, table, layout))

    def _lose(self, number: int, table: str, place: int, why: str) -> None:
        """No row of a table can be read from here on."""
        del self.layouts[table]
        where = f"byte {(self._begin or 0) & 0xFFFFFFFF} of file {self._file} of the binary log"
        self._tell(number, table, place, "altered", f"{why} ({where})")

    def _is_followed(self, name: str) -> bool:
        since: int = self._facts[name]["since"]
        return (self._begin or 0) >= since and not self._was_had

    # --- rows ------------------------------------------------------------------------------------

    def _describe(self, number: int, table: LogTable) -> None:
        message = table.message(number)
        if self._known.get(number) != message:
            self._known[number] = message
            self._runs.add(message)

    def _table_map(self, event: bytes, start: int) -> None:
        (table_id,) = struct.unpack_from("<Q", event[_HEADER : _HEADER + 6] + b"\0\0")
        at = _HEADER + 8
        schema = str(event[at + 1 : at + 1 + event[at]], "utf-8")
        at += 2 + event[at]
        name = str(event[at + 1 : at + 1 + event[at]], "utf-8")
        at += 2 + event[at]
        self._shapes.pop(table_id, None)
        ours = self._numbers.get((self._fold(schema), self._fold(name)))
        if ours is None or not self._is_followed(ours[1]):
            return
        number, table = ours
        if (layout := self.layouts.get(table)) is None:
            return  # it was altered, which was told
        count, at = _packed(event, at)
        kinds = event[at : at + count]
        length, at = _packed(event, at + count)
        place, end = start - (self._begin or 0) + 1, at + length
        metas: list[tuple[int, tuple[int, int]]] = []
        for kind in kinds:
            size = 2 if kind in _TWO else 1 if kind in _ONE else 0
            meta = event[at], event[at + 1] if size > 1 else 0
            at += size
            metas.append(written_as(kind, meta if size else (0, 0)))
        try:
            layout = self._named(table, layout, _told(event[end + (count + 7) // 8 :]))
            if count != len(layout):
                raise AlteredError(f"has {count} columns in the log, where {len(layout)} are known")
            shape = []
            for facts, (written, meta) in zip(layout, metas, strict=True):
                is_read = self._is_used(table, facts.name)
                read = (facts.type, facts.charset) if is_read else ("", None)
                shape.append(LogColumn(facts.name, written, meta, *read))
            described = LogTable(*self._names[table], shape)
        except (AlteredError, ValueError) as why:
            self._lose(number, table, place, str(why))
            return
        self._shapes[table_id] = number, described
        self._describe(number, described)

    def _named(self, table: str, layout: Layout, told: Mapping[int, bytes]) -> Layout:
        """The columns as the log itself names them (binlog_row_metadata = FULL), if it does."""
        if (names := told.get(_COLUMN_NAMES)) is None:
            return layout
        listed = [str(name, "utf-8") for name in _strings(names)]
        if listed != [facts.name for facts in layout]:
            known = {facts.name: facts for facts in layout}
            for name in known.keys() - set(listed):
                if self._is_used(table, name):
                    raise AlteredError(f"has column {name!r} no more")
            layout = tuple(known.get(name, Facts(name, "", None)) for name in listed)
            self._become(table, layout)
        return layout

    def _rows(self, kind: int, event: bytes, start: int) -> None:
        (table_id,) = struct.unpack_from("<Q", event[_HEADER : _HEADER + 6] + b"\0\0")
        if table_id not in self._shapes:
            return
        number, table = self._shapes[table_id]
        self._has_rows, begin = True, self._begin
        if begin is None:
            raise ValueError("a row outside of a transaction")
        at = _HEADER + 8
        if kind in _SECOND_VERSION:
            at += struct.unpack_from("<H", event, at)[0]
        count, at = _packed(event, at)
        letter = _ROWS[kind]
        for _ in range(2 if letter == "u" else 1):
            bits = int.from_bytes(event[at : at + (count + 7) // 8], "little")
            if bits & ((1 << count) - 1) != (1 << count) - 1:
                self._refuse(
                    f"changes of {table.name} have not all columns",
                    "SET GLOBAL binlog_row_image = 'FULL'",
                )
            at += (count + 7) // 8
        base, add = start - begin, self._runs.add
        while at < len(event):
            end = table.row_end(event, at)
            if letter == "u":
                end = table.row_end(event, end)
            add(change_message(letter, number, base + end, event[at:end]))
            at = end

    # --- what is refused -------------------------------------------------------------------------

    def _refuse(self, what: str, got: str) -> NoReturn:
        raise UserError(
            f"the binary log cannot be followed: {what}",
            where=f"transaction at byte {(self._begin or 0) & 0xFFFFFFFF} of file {self._file}",
            got=got,
            allowed="rows with all columns: binlog_format = ROW, binlog_row_image = FULL, nothing "
            "compressed, no XA PREPARE, in every session",
            safe="nothing after it was taken; published epochs are untouched",
            hint="set the server so, and `mview drop` the tables; then run again: they are loaded "
            "anew, from after it",
        )


def file_number(name: str) -> int:
    """The number of a file of the log, e.g. 12 of `mysql-bin.000012`.

    Raises:
        ValueError: it is no such file.
    """
    number = name.rpartition(".")[2]
    if not number.isdecimal():
        raise ValueError(f"{name!r} is no file of a binary log")
    return int(number)


def _packed(event: bytes, at: int) -> tuple[int, int]:
    """A number of one byte, or of 2, 3, 8 after a mark; and where it ends."""
    first = event[at]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(event[at + 1 : at + 1 + size], "little"), at + 1 + size


def _told(metadata: bytes) -> dict[int, bytes]:
    """What a server adds to how the columns of a table are written, by kind.

    Source: MySQL's internals, `Table_map_event`, "optional metadata".
    """
    told, at = {}, 0
    while at < len(metadata):
        kind = metadata[at]
        size, at = _packed(metadata, at + 1)
        told[kind] = metadata[at : at + size]
        at += size
    return told


def _strings(body: bytes) -> list[bytes]:
    """Texts that stand one after the other, each after its length."""
    listed, at = [], 0
    while at < len(body):
        size, at = _packed(body, at)
        listed.append(body[at : at + size])
        at += size
    return listed
