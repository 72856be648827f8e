"""PostgreSQL's own log of changes, as its plug-in `pgoutput` (protocol version 1) writes it.

A message is a block: as many of pgoutput's messages as were received, one after the other. Its key
is what must be known before the first of them: the number of changes of its transaction that stand
in earlier blocks (8 bytes), the relations, and, inside of a transaction, its `Begin`.

The position of a change is the place of its commit in the log, and its number in the transaction:
transactions are sent in the order of their commits, each as a whole.

Source: PostgreSQL's manual, "Logical Replication Message Formats". Values are texts, as the types'
output functions print them: what SELECT prints, but for bytes and arrays.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from mview.changelog import UNCHANGED, ChangeEvent, Kind
from mview.connector import Message
from mview.schema import Column
from mview_connectors.databases.postgresql_types import read_as
from mview_connectors.databases.values import (
    Convert,
    bits_from_text,
    booleans,
    from_hex,
    from_text,
    list_of,
)
from mview_connectors.formats.messages import format_options, undecodable
from mview_connectors.formats.ownlog.blocks import NUMBER_SIZE, Begin, number_of, truncated

_BEGIN, _COMMIT, _RELATION, _TYPE, _ORIGIN, _OTHER = b"BCRYO-"
_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_TEXT, _NULL, _TOAST = b"tnu"
_NEW, _KEY = b"NK"

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from


class PgRelation(NamedTuple):
    """A table, as the log describes it before its first change.

    Attributes:
        number: by which changes name it.
        schema: where its name is.
        name: its name.
        columns: their names, in order.
        key: those of which the row before a change has values, where it has not all.
        identity: which those are, as pg_class.relreplident says it: `d`, those of the primary key.
    """

    number: int
    schema: str
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    identity: str

    @classmethod
    def of(cls, body: bytes, at: int = 0) -> tuple[PgRelation, int]:
        """The parts of a message, and where it ends."""
        (number,) = _u32(body, at + 1)
        schema, at = _name(body, at + 5)
        name, at = _name(body, at)
        identity = chr(body[at])
        (count,) = _u16(body, at + 1)
        at += 3
        columns, key = [], []
        for _ in range(count):
            is_key = body[at] & 1
            column, at = _name(body, at + 1)
            at += 8  # its type, and that type's modifier
            columns.append(column)
            if is_key:
                key.append(column)
        return cls(number, schema, name, tuple(columns), tuple(key), identity), at


class PgoutputFormat:
    """Decodes blocks of pgoutput's messages; see the module."""

    in_band_heartbeats = True

    def __init__(self, options: Mapping[str, str]) -> None:
        format_options(options, {})

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The changes of a block, in order."""
        key, value = message.key, message.value
        if key is None or value is None or len(key) < NUMBER_SIZE:
            raise undecodable(message, "a block of changes has no beginning")
        block = _Block(message)
        for _ in block.changes(key, NUMBER_SIZE):
            raise undecodable(message, "a block of changes begins with changes")
        block.number = number_of(key)
        return block.changes(value, 0)

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        if UNCHANGED in values:
            values = [None if value is UNCHANGED else value for value in values]
        own, said = column.read_as
        convert = read_as(own, column.type) if said else _converter(column.type, own)
        return convert(pa.array(values, pa.string()))


class _Block:
    """What is known while a block is read."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._relations: dict[int, PgRelation] = {}
        self._begin: Begin | None = None
        #: Changes of the transaction so far.
        self.number = 0

    def changes(self, body: bytes, at: int) -> Iterator[ChangeEvent]:
        """The changes from a place on."""
        end = len(body)
        try:
            while at < end:
                kind = body[at]
                if kind in (_INSERT, _UPDATE, _DELETE):
                    event, at = self._row(kind, body, at)
                    yield event
                elif kind == _BEGIN:
                    self._begin, self.number = Begin.of(body, at), 0
                    at += 21
                elif kind == _COMMIT:
                    at += 26
                elif kind == _RELATION:
                    relation, at = PgRelation.of(body, at)
                    self._relations[relation.number] = relation
                elif kind == _TRUNCATE:
                    numbers, at = truncated(body, at)
                    self.number += 1
                    for number in numbers:
                        if number in self._relations:
                            yield self._event(self._relations[number], "truncate", None, None, None)
                elif kind == _OTHER:
                    self.number += 1
                    at += 1
                elif kind in (_TYPE, _ORIGIN):
                    at = self._passed(kind, body, at)
                else:
                    raise ValueError(f"a message of an unknown kind: {chr(kind)!r}")
        except (ValueError, LookupError, struct.error) as error:
            raise undecodable(
                self._message, f"the server's log breaks the protocol of pgoutput: {error}"
            ) from error

    def _row(self, kind: int, body: bytes, at: int) -> tuple[ChangeEvent, int]:
        relation = self._relations[_u32(body, at + 1)[0]]
        at += 5
        self.number += 1
        before: dict[str, Any] | None = None
        mark = body[at]
        if mark != _NEW:
            old, at = _tuple(body, at + 1)
            before = dict(zip(relation.columns, old, strict=True))
            if mark == _KEY:
                # The others are sent as NULL, whatever they are.
                before = {name: before[name] for name in relation.key}
        if kind == _DELETE:
            return self._event(relation, "d", None, before, None), at
        if body[at] != _NEW:
            raise ValueError("a change without a row")
        new, at = _tuple(body, at + 1)
        after = dict(zip(relation.columns, new, strict=True))
        if UNCHANGED in new and before is not None and mark != _KEY:
            # The row before is whole: what did not change stands there.
            after = {n: before[n] if v is UNCHANGED else v for n, v in after.items()}
        word: Kind = "c" if kind == _INSERT else "u"
        return self._event(relation, word, None, before, after), at

    def _event(
        self,
        table: PgRelation,
        kind: Kind,
        key: dict[str, Any] | None,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> ChangeEvent:
        if self._begin is None:
            raise ValueError("a change outside of a transaction")
        commit, ms, transaction = self._begin
        return ChangeEvent(
            table.name,
            kind,
            key,
            before,
            after,
            (commit, self.number),
            ms,
            self._message.partition,
            commit,
            str(transaction),
            namespace=table.schema,
        )

    def _passed(self, kind: int, body: bytes, at: int) -> int:
        """Where a message ends that says nothing of rows: a type's name, or where it is from."""
        if kind == _ORIGIN:
            return _name(body, at + 9)[1]
        return _name(body, _name(body, at + 5)[1])[1]


def _name(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(0, at)
    return str(body[at:end], "utf-8"), end + 1


def _tuple(body: bytes, at: int) -> tuple[list[Any], int]:
    """The values of a row, and where it ends."""
    (count,) = _u16(body, at)
    at += 2
    values: list[Any] = []
    for _ in range(count):
        kind = body[at]
        if kind == _TEXT:
            begin = at + 5
            at = begin + _u32(body, at + 1)[0]
            if at > len(body):
                raise ValueError("a value is longer than its block")
            values.append(str(body[begin:at], "utf-8"))
        elif kind == _NULL:
            values.append(None)
            at += 1
        elif kind == _TOAST:
            values.append(UNCHANGED)
            at += 1
        else:
            raise ValueError(f"a value of an unknown kind: {chr(kind)!r}")
    return values, at


# --- values --------------------------------------------------------------------------------------


def _converter(arrow: pa.DataType, source_type: str) -> Convert:
    """From texts, as the log has them, to a type; by the rules of a snapshot's texts."""
    if pa.types.is_list(arrow):
        element = _converter(arrow.value_type, source_type.removesuffix("[]"))
        return lambda texts: list_of([_items(text) for text in texts.to_pylist()], element)
    if pa.types.is_boolean(arrow):
        return booleans
    if pa.types.is_binary(arrow):
        return bits_from_text if source_type.startswith("bit") else _bytes
    return from_text(arrow)


def _bytes(texts: pa.Array) -> pa.Array:
    r"""`\x0aff` as bytes."""
    values = texts.to_pylist()
    if any(value is not None and not value.startswith("\\x") for value in values):
        raise ValueError("bytes are not sent as \\x and hexadecimal digits")
    return from_hex(pa.array([None if v is None else v[2:] for v in values], pa.string()))


#: `[2:3]=` in front of an array whose first index is not 1.
_BOUNDS = re.compile(r"(\[-?\d+:-?\d+\])+=")

#: An element of an array: quoted, with backslashes, or as it is.
_ITEM = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([^",{}\\]+))(?:,(?!$)|$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _items(text: str | None) -> list[str | None] | None:
    """The elements of an array of one dimension.

    >>> _items('{a,"b,c",NULL,"NULL"}')
    ['a', 'b,c', None, 'NULL']
    """
    if text is None:
        return None
    body = _BOUNDS.sub("", text, count=1)
    if not (body.startswith("{") and body.endswith("}")):
        raise ValueError("not an array")
    inner, at = body[1:-1], 0
    items: list[str | None] = []
    while at < len(inner):
        match = _ITEM.match(inner, at)
        if match is None:
            raise ValueError("an array of several dimensions, or none at all")
        quoted, plain = match.groups()
        if quoted is not None:
            items.append(_ESCAPED.sub(r"\1", quoted))
        else:
            items.append(None if plain == "NULL" else plain)
        at = match.end()
    return items
