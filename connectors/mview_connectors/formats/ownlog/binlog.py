"""Rows of MySQL's and MariaDB's binary log, as the server writes them in row format.

A message is a block (see `blocks`). Its rows are the log's own bytes; in front of them stand, in
each message, the table's number, the row's place in its transaction (bytes from the begin on), and
the length. A table's message says how each column is written (`TABLE_MAP_EVENT`) and, as the log
does not tell, its name, its type and its character set (information_schema).

The position of a change is the place of its transaction's begin, and its own place in there.

Values are what the server's text protocol prints, or numbers and bytes: so a table's changes and
its rows, which are read by that protocol, become the same. Nothing is made NULL: a zero date stays
one, and halts as it does in a load.

Source: MySQL's internals manual, "Binary Log"; MariaDB's knowledge base, "Replication Protocol".
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from mview.changelog import ChangeEvent
from mview.connector import Message
from mview.schema import Column
from mview_connectors.databases.values import from_text, naive_instants
from mview_connectors.formats import mysql_values as m
from mview_connectors.formats.messages import format_options, undecodable
from mview_connectors.formats.ownlog.blocks import NUMBER_SIZE, Begin

#: How columns are written: the numbers of TABLE_MAP_EVENT.
_TINY, _SHORT, _LONG, _FLOAT, _DOUBLE, _LONGLONG, _INT24 = 1, 2, 3, 4, 5, 8, 9
_DATE, _YEAR, _NEWDATE, _VARCHAR, _BIT, _TIMESTAMP, _DATETIME, _TIME = (
    10,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
)
_DECIMAL, _ENUM, _SET, _BLOB, _VAR_STRING, _STRING = 246, 247, 248, 252, 253, 254
_BLOBS = (245, 249, 250, 251, _BLOB, 255)

_FIXED = {
    _TINY: 1, _SHORT: 2, _INT24: 3, _LONG: 4, _LONGLONG: 8, _FLOAT: 4, _DOUBLE: 8, _YEAR: 1,
    _DATE: 3, _NEWDATE: 3, 6: 0,
}  # fmt: skip
_MOMENTS = {_TIME: 3, _TIMESTAMP: 4, _DATETIME: 5}
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")

#: Which of them a type of information_schema may be; what is not here cannot be read.
_WRITTEN: dict[str, tuple[int, ...]] = {
    "tinyint": (_TINY,), "smallint": (_SHORT,), "mediumint": (_INT24,), "int": (_LONG,),
    "bigint": (_LONGLONG,), "year": (_YEAR,), "float": (_FLOAT,), "double": (_DOUBLE,),
    "decimal": (_DECIMAL,), "bit": (_BIT,), "date": (_DATE, _NEWDATE), "time": (_TIME,),
    "datetime": (_DATETIME,), "timestamp": (_TIMESTAMP,), "enum": (_ENUM,), "set": (_SET,),
    "char": (_STRING,), "varchar": (_VARCHAR, _VAR_STRING), "binary": (_STRING,),
    "varbinary": (_VARCHAR, _VAR_STRING),
    "uuid": (_STRING,), "inet6": (_STRING,), "inet4": (_STRING,),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), _BLOBS),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), _BLOBS),
}  # fmt: skip

#: Bytes of so many decimal digits.
_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

#: Character sets whose texts Python reads as the server does.
CHARSETS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "latin1": "latin1", "binary": "utf-8",
}  # fmt: skip

#: MySQL's latin1 is Windows-1252, and has the control characters where that has nothing.
_LATIN1 = "".join(bytes([n]).decode("cp1252", "replace").replace("�", chr(n)) for n in range(256))

_INSERT, _UPDATE, _DELETE, _STATEMENT, _BEGIN, _COMMIT, _RELATION = b"iudtBCR"
_KINDS = {_INSERT: "c", _UPDATE: "u", _DELETE: "d"}

_change = struct.Struct(">xIQI")
_u32 = struct.Struct(">I")
_BEGIN_SIZE, _COMMIT_SIZE = 21, 18

_EPOCH = dt.datetime(1970, 1, 1)


class LogColumn(NamedTuple):
    """A column as the log and information_schema describe it.

    Attributes:
        name: its name.
        written: the log's number of how it is written.
        meta: two bytes of that.
        source_type: COLUMN_TYPE, e.g. `int(11) unsigned`; empty: it is not read.
        charset: of its texts; None: it has none.
    """

    name: str
    written: int
    meta: tuple[int, int]
    source_type: str
    charset: str | None


class LogTable:
    """How rows of a table are read.

    Args:
        schema: the database.
        name: the table.
        columns: all that the log has.

    Raises:
        ValueError: a column is not written as its type is.
    """

    def __init__(self, schema: str, name: str, columns: Sequence[LogColumn]) -> None:
        self.schema, self.name, self.columns = schema, name, tuple(columns)
        self._nulls = (len(self.columns) + 7) // 8
        self._widths = [_width(column) for column in self.columns]
        self._written = [_written(column) for column in self.columns]
        #: By the bits of what is NULL: a table has few of them.
        self._layout = lru_cache(maxsize=256)(self._laid_out)

    def message(self, number: int) -> bytes:
        """Its message, by a number."""
        body = orjson.dumps([tuple(column) for column in self.columns])
        names = f"{self.schema}\0{self.name}\0".encode()
        return b"R" + _u32.pack(number) + names + _u32.pack(len(body)) + body

    def row_end(self, body: bytes, at: int) -> int:
        """Where a row ends that begins at a place."""
        nulls = int.from_bytes(body[at : at + self._nulls], "little")
        at += self._nulls
        for number, width in enumerate(self._widths):
            if nulls >> number & 1:
                continue
            if width < 0:
                at += int.from_bytes(body[at : at - width], "little") - width
            else:
                at += width
        if at > len(body):
            raise ValueError("a row is longer than its event")
        return at

    def row(self, body: bytes, at: int = 0) -> tuple[dict[str, Any], int]:
        """The values of a row that begins at a place, by column, and where it ends.

        Raises:
            ValueError, struct.error: it ends before its values do, or one cannot be read.
        """
        start = at
        at += self._nulls
        layout = self._layout(body[start:at])
        values: list[Any] = []
        for run in layout.runs:
            part = list(run.unpack(body, at))
            at += run.size
            for place, read in run.readers:
                part[place] = read(part[place])
            if run.is_open:
                end = at + part.pop()
                if run.last is not None:
                    part.append(run.last(body[at:end]))
                at = end
            values += part
        if at > len(body):
            raise ValueError("a row is longer than its event")
        return {**dict(zip(layout.names, values, strict=True)), **layout.absent}, at

    def _laid_out(self, bits: bytes) -> _Layout:
        """How a row is read of which some columns are NULL, each a bit from the lowest up."""
        nulls = int.from_bytes(bits, "little")
        runs, run = [], _Columns()
        names: list[str] = []
        absent: dict[str, None] = {}
        for number, (column, written) in enumerate(zip(self.columns, self._written, strict=True)):
            if nulls >> number & 1:
                if written.is_read:
                    absent[column.name] = None
                continue
            if written.is_read:
                names.append(column.name)
            if run.add(written):
                runs.append(run.done(written.reader, is_open=True))
                run = _Columns()
        runs.append(run.done(None, is_open=False))
        return _Layout(tuple(runs), tuple(names), absent)


class _Written(NamedTuple):
    """How a column is written.

    Attributes:
        code: of `struct`, for its value, or, where `is_open`, for the length in front of it.
        reader: makes the value of what that gives; None: it is the value.
        is_open: the length stands in front of the value.
        is_read: else it is passed over.
    """

    code: str
    reader: Reader | None
    is_open: bool
    is_read: bool


class _Run(NamedTuple):
    """Values that stand side by side, read at once: each of a fixed width, and one that is not.

    Attributes:
        unpack: reads those, and the length of the last.
        size: bytes of that.
        readers: what makes a value of what was read, by its place.
        is_open: there is a last one, whose length was read.
        last: reads it; None: it is passed over.
    """

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    size: int
    readers: tuple[tuple[int, Reader], ...]
    is_open: bool
    last: Reader | None


class _Layout(NamedTuple):
    """A row as it is read: its runs, the columns that these give, and those that are NULL."""

    runs: tuple[_Run, ...]
    names: tuple[str, ...]
    absent: Mapping[str, None]


class _Columns:
    """Gathers the columns of a run."""

    def __init__(self) -> None:
        self._codes, self._readers, self._place = ["<"], list[tuple[int, Reader]](), 0

    def add(self, written: _Written) -> bool:
        """Take a column; whether it ends the run."""
        self._codes.append(written.code)
        if written.is_open and written.code == "3s":
            self._readers.append((self._place, _unsigned))
        elif not written.is_open and written.reader is not None:
            self._readers.append((self._place, written.reader))
        self._place += written.is_read
        return written.is_open

    def done(self, last: Reader | None, *, is_open: bool) -> _Run:
        """The run; the last column as `_Run` has it."""
        packed = struct.Struct("".join(self._codes))
        return _Run(packed.unpack_from, packed.size, tuple(self._readers), is_open, last)


@lru_cache(maxsize=256)
def _table(message: bytes) -> LogTable:
    schema, name, body = message[5:].split(b"\0", 2)
    columns = [LogColumn(n, w, tuple(meta), s, c) for n, w, meta, s, c in orjson.loads(body[4:])]
    return LogTable(str(schema, "utf-8"), str(name, "utf-8"), columns)


def change_message(kind: str, table: int, number: int, body: bytes) -> bytes:
    """A change: `i`, `u` (the row before, then after), `d`, or `t` (a statement, as JSON).

    Args:
        kind: the letter.
        table: the table's number.
        number: the change's place in its transaction.
        body: what it is.
    """
    return kind.encode() + _change.pack(table, number, len(body))[1:] + body


def begin_message(begin: Begin, transaction: str) -> bytes:
    """The begin of a transaction, with its name (GTID)."""
    name = transaction.encode()[:255]
    return begin.message() + bytes([len(name)]) + name


class BinlogFormat:
    """Decodes blocks of the binary log; see the module."""

    in_band_heartbeats = True

    def __init__(self, options: Mapping[str, str]) -> None:
        format_options(options, {})

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The changes of a block, in order."""
        key, value = message.key, message.value
        if key is None or value is None or len(key) < NUMBER_SIZE:
            raise undecodable(message, "a block of changes has no beginning")
        block = _LogBlock(message)
        for _ in block.changes(key, NUMBER_SIZE):
            raise undecodable(message, "a block of changes begins with changes")
        return block.changes(value, 0)

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type."""
        kind = column.type
        if pa.types.is_decimal(kind):
            texts = [value if value is None else str(value) for value in values]
            return from_text(kind)(pa.array(texts, pa.string()))
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return naive_instants(pa.array(values, pa.string()))
        if pa.types.is_temporal(kind):
            return from_text(kind)(pa.array(values, pa.string()))
        if pa.types.is_binary(kind):
            return m.binaries(values, column, bytes)
        return pa.array(values, kind)


class _LogBlock:
    """What is known while a block is read."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._tables: dict[int, LogTable] = {}
        self._begin: Begin | None = None
        self._name = ""

    def changes(self, body: bytes, at: int) -> Iterator[ChangeEvent]:
        """The changes from a place on."""
        try:
            while at < len(body):
                kind = body[at]
                if kind in _KINDS or kind == _STATEMENT:
                    number, place, size = _change.unpack_from(body, at)
                    at += _change.size
                    part = body[at : at + size]
                    at += size
                    if len(part) != size:
                        raise ValueError("a change is longer than its block")
                    yield self._event(kind, self._tables[number], place, part)
                elif kind == _BEGIN:
                    self._begin = Begin.of(body, at)
                    at += _BEGIN_SIZE
                    end = at + 1 + body[at]
                    self._name, at = str(body[at + 1 : end], "utf-8"), end
                elif kind == _COMMIT:
                    at += _COMMIT_SIZE
                elif kind == _RELATION:
                    at = self._relation(body, at)
                else:
                    raise ValueError(f"a message of an unknown kind: {chr(kind)!r}")
        except (ValueError, LookupError, struct.error) as error:
            raise undecodable(
                self._message, f"the server's binary log cannot be read: {error}"
            ) from error

    def _relation(self, body: bytes, at: int) -> int:
        names = body.index(0, body.index(0, at + 5) + 1) + 1
        end: int = names + 4 + _u32.unpack_from(body, names)[0]
        self._tables[_u32.unpack_from(body, at + 1)[0]] = _table(body[at:end])
        return end

    def _event(self, kind: int, table: LogTable, place: int, body: bytes) -> ChangeEvent:
        if self._begin is None:
            raise ValueError("a change outside of a transaction")
        before = after = detail = None
        if kind == _STATEMENT:
            word, detail = orjson.loads(body)
        else:
            word = _KINDS[kind]
            middle = 0
            try:
                if kind != _INSERT:
                    before, middle = table.row(body)
                if kind != _DELETE:
                    after, _ = table.row(body, middle)
            except (ValueError, LookupError, OverflowError, struct.error) as error:
                # Where the next change begins is known: this one is wrong with its table only.
                word, detail, before, after = "unreadable", str(error), None, None
        commit, ms, _ = self._begin
        return ChangeEvent(
            table.name,
            word,
            None,
            before,
            after,
            (commit, place),
            ms,
            self._message.partition,
            commit,
            self._name or None,
            detail,
            table.schema,
        )


# --- how columns are written ---------------------------------------------------------------------


def _width(column: LogColumn) -> int:
    """Bytes of a value; below 0: so many bytes of a length stand in front of it."""
    written, (first, second) = column.written, column.meta
    if written in _FIXED:
        return _FIXED[written]
    if written in _MOMENTS:
        return _MOMENTS[written] + (first + 1) // 2
    if written == _DECIMAL:
        whole = first - second
        size = whole // 9 * 4 + _DIGITS[whole % 9]
        return size + second // 9 * 4 + _DIGITS[second % 9]
    if written in (_VARCHAR, _VAR_STRING):
        return -1 if first + (second << 8) < 256 else -2
    if written in _BLOBS and 1 <= first <= 4:
        return -first
    if written == _BIT:
        return second + (first > 0)
    if written in (_ENUM, _SET):
        return second
    if written == _STRING:
        return -1 if _length(first, second) < 256 else -2
    raise ValueError(
        f"column {column.name!r} is written in a way that is not known ({written}): "
        "ALTER TABLE … FORCE writes old ones anew"
    )


#: Codes of `struct` for integers of so many bytes, and for lengths.
_WHOLE = {1: "b", 2: "h", 4: "i", 8: "q"}
_LENGTHS = {1: "B", 2: "H", 3: "3s", 4: "I"}


def _written(column: LogColumn) -> _Written:
    """How a column is written and read."""
    width, is_read = _width(column), bool(column.source_type)
    reader = _reader(column) if is_read else None
    if width < 0:
        return _Written(_LENGTHS[-width], reader, True, is_read)
    if not is_read:
        return _Written(f"{width}x", None, False, False)
    kind = m.mysql_type(column.source_type).name
    if kind in _INTEGERS and width in _WHOLE:
        code = _WHOLE[width]
        return _Written(code.upper() if reader is _unsigned else code, None, False, True)
    return _Written(f"{width}s", reader, False, True)


def _length(first: int, second: int) -> int:
    """Bytes of a CHAR: two bits of them are in the type, upside down."""
    return second | ((first & 0x30) ^ 0x30) << 4


def written_as(written: int, meta: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """What a type is that is written as a CHAR, as ENUM and SET are."""
    if written == _STRING and meta[0] in (_ENUM, _SET):
        return meta[0], meta
    return written, meta


Reader = Callable[[bytes], Any]


def _reader(column: LogColumn) -> Reader:
    """From the bytes of a value to what the text protocol prints, or a number, or bytes."""
    kind = m.mysql_type(column.source_type)
    if column.written not in _WRITTEN.get(kind.name, ()):
        raise ValueError(f"column {column.name!r} is no {column.source_type} in the log")
    digits = column.meta[0]
    if kind.name in _INTEGERS:
        return _unsigned if "unsigned" in column.source_type.lower() else _signed
    readers: dict[str, Reader] = {
        "year": lambda body: 1900 + body[0] if body[0] else 0,
        "float": lambda body: _float(body)[0],
        "double": lambda body: _double(body)[0],
        "date": _date,
        "time": lambda body: _clock(body, digits),
        "timestamp": lambda body: _instant(body, digits),
        "enum": lambda body: m.label_of(_unsigned(body), kind),
        "set": lambda body: m.labels_of(_unsigned(body), kind),
        "uuid": _uuid,
        "inet6": _inet6,
        "inet4": lambda body: ".".join(map(str, body.ljust(4, b"\0"))),
    }
    if kind.name == "decimal":
        return _decimal(*column.meta)
    if kind.name == "datetime":
        return _local(digits)
    if kind.name == "bit":
        return (lambda body: body != b"\0") if kind.size in (0, 1) else bytes
    if kind.name in readers:
        return readers[kind.name]
    if column.charset is None:
        return bytes
    codec = CHARSETS.get(column.charset)
    if codec is None:
        raise ValueError(f"column {column.name!r} is in the character set {column.charset}")
    if codec == "latin1":
        return lambda body: "".join([_LATIN1[byte] for byte in body])
    return lambda body: str(body, codec)


def _signed(body: bytes) -> int:
    return int.from_bytes(body, "little", signed=True)


def _unsigned(body: bytes) -> int:
    return int.from_bytes(body, "little")


_float = struct.Struct("<f").unpack
_double = struct.Struct("<d").unpack


@lru_cache(maxsize=8192)
def _date(body: bytes) -> str:
    packed = int.from_bytes(body, "little")
    return f"{packed >> 9:04d}-{packed >> 5 & 15:02d}-{packed & 31:02d}"


@lru_cache(maxsize=8192)
def _day(packed: int) -> str:
    """The day of a DATETIME: 13 times the year with the month, then five bits."""
    year, month = divmod(packed >> 5, 13)
    return f"{year:04d}-{month:02d}-{packed & 31:02d}"


#: Two digits of numbers of six bits, and ` 12:34:` of those of five and six bits.
_TWO = [f"{number:02d}" for number in range(64)]
_MINUTES = [f" {number >> 6:02d}:{number & 63:02d}:" for number in range(1 << 11)]


def _fraction(part: int, digits: int) -> str:
    """`.123` of the last bytes of a time, which hold two digits each."""
    return f".{part:0{(digits + 1) // 2 * 2}d}"[: digits + 1] if digits else ""


def _clock(body: bytes, digits: int) -> str:
    """`-12:34:56.78`, without zeros at its end, as a load has it."""
    bits = 8 * (len(body) - 3)
    packed = int.from_bytes(body, "big") - (0x800000 << bits)
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    whole = packed >> bits
    text = f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
    fraction = _fraction(packed & ((1 << bits) - 1), digits).rstrip("0")
    return text + fraction if len(fraction) > 1 else text


def _local(digits: int) -> Reader:
    """DATETIME with so many decimal places: `2024-02-29 23:59:59.123`."""
    bits = 8 * ((digits + 1) // 2)
    rest, form, length = (1 << bits) - 1, f".%0{(digits + 1) // 2 * 2}d", digits + 1

    def read(body: bytes) -> str:
        packed = int.from_bytes(body, "big")
        whole = (packed >> bits) - 0x8000000000
        text = _day(whole >> 17) + _MINUTES[whole >> 6 & 2047] + _TWO[whole & 63]
        return text + (form % (packed & rest))[:length] if digits else text

    return read


def _instant(body: bytes, digits: int) -> str:
    seconds, part = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:], "big")
    if not seconds and not part:
        return "0000-00-00 00:00:00"
    return f"{_EPOCH + dt.timedelta(seconds=seconds)}{_fraction(part, digits)}"


def _uuid(body: bytes) -> str:
    """`6ccd780c-baba-1026-9564-5b8c656024db`; the log leaves zeros at the end out."""
    text = body.ljust(16, b"\0").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _inet6(body: bytes) -> str:
    """As MariaDB prints it: `::` for the first longest run of zeros, of a single one, too."""
    body = body.ljust(16, b"\0")
    words = struct.unpack(">8H", body)
    first, length, start = -1, 0, 0
    for number, word in enumerate(words):
        if word:
            start = number + 1
        elif number + 1 - start > length:
            first, length = start, number + 1 - start
    head = ":".join(f"{word:x}" for word in words[: max(first, 0)])
    if not length:
        return ":".join(f"{word:x}" for word in words)
    tail = [f"{word:x}" for word in words[first + length :]]
    if not first and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        tail[-2:] = [".".join(map(str, body[12:]))]
    return f"{head}::{':'.join(tail)}"


def _decimal(precision: int, scale: int) -> Reader:
    """Nine digits in four bytes, the rest in fewer; below 0 all bits are turned."""
    whole = precision - scale
    pieces = [whole % 9, *[9] * (whole // 9)], [9] * (scale // 9) + [scale % 9] * (scale % 9 > 0)
    bits = 8 * sum(_DIGITS[digits] for part in pieces for digits in part)
    sign = 1 << (bits - 1) if bits else 0
    flip = (1 << bits) - 1
    # By piece, how far it is from the end, in bits, and its bits.
    places: list[tuple[int, int]] = []
    for digits in pieces[0] + pieces[1]:
        bits -= 8 * _DIGITS[digits]
        places.append((bits, (1 << 8 * _DIGITS[digits]) - 1))
    before, after = places[: len(pieces[0])], places[len(pieces[0]) :]
    form = "." + "".join(f"%0{digits}d" for digits in pieces[1]) if scale else ""

    def read(body: bytes) -> str:
        packed = int.from_bytes(body, "big")
        is_negative = not packed & sign
        packed ^= flip ^ sign if is_negative else sign
        number = 0
        for shift, mask in before:
            number = number * 1_000_000_000 + (packed >> shift & mask)
        text = f"-{number}" if is_negative else f"{number}"
        if form:
            text += form % tuple([packed >> shift & mask for shift, mask in after])
        return text

    return read
