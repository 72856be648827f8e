"""From messages to change batches: decode, split key changes, type the columns, route to chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa

from mview.changelog import UNCHANGED, ChangeEvent, encode_position, to_ipc
from mview.clock import END_OF_TIME, SourceMs
from mview.connector import Format, Message, TableHalt, events_of
from mview.errors import DecodeError, shown
from mview.ingest.decode.block import decode_block
from mview.ingest.decode.statements import moves_rows
from mview.ingest.decode.typed import (
    Decoded,
    KeylessError,
    MisfitError,
    Untyped,
    converted,
    missing_value,
    routed,
    tells,
    typed,
)
from mview.ingest.mending.reject import Reject, Rejects
from mview.ingest.spec import TableSpec
from mview.relation import RelationId, TableName
from mview.rows.where import Condition, columns_of, holds
from mview.schema import type_name

_SAFE = "nothing after it was taken; published epochs are untouched"

#: Messages that are decoded together: enough that what is done once for them costs nothing, few
#: enough that one that must be looked at alone costs little.
_BLOCK = 1024


def decode_split(
    messages: Iterable[Message],
    decoder: Format,
    tables: Mapping[str, TableSpec],
    latest: SourceMs = END_OF_TIME,
    halts: dict[RelationId, TableHalt] | None = None,
    rejects: Rejects | None = None,
) -> list[Decoded]:
    """The change batches of one split, one per table and chunk.

    Args:
        messages: in log order.
        decoder: the connection's format.
        tables: the tables that are read, by their name in the database; others are passed over.
        latest: a message with a later time is refused.
        halts: takes the tables whose changes cannot be taken, and why: none of them are given then.
            None: that is an error.
        rejects: takes changes that cannot be taken, and the others of their tables are given.
            None: these are of a table that halts.

    Raises:
        DecodeError: with the place; a value that does not fit its column is never nulled. With
            `halts` only of messages of which nobody knows the table: they cannot be read at all.
    """
    gone: dict[RelationId, TableHalt] = {}
    rows: list[Decoded] = []
    for block in _blocks(messages):
        told = decode_block(block, decoder, tables, latest, strict=rejects is not None)
        if told is None:
            told = _one_by_one(block, decoder, tables, latest, gone, halts is None, rejects)
        rows += told
    if halts is not None:
        halts |= gone
    return [row for row in rows if row.table not in gone]


def _blocks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    rest = iter(messages)
    while block := list(islice(rest, _BLOCK)):
        yield block


def _one_by_one(
    messages: Sequence[Message],
    decoder: Format,
    tables: Mapping[str, TableSpec],
    latest: SourceMs,
    gone: dict[RelationId, TableHalt],
    must_fit: bool,
    rejects: Rejects | None,
) -> list[Decoded]:
    """As `decode_split`, whatever is in the messages.

    Args:
        gone: the tables that halt, and takes those that do here.
        must_fit: raise instead.
    """
    taken: dict[str, list[_Change]] = defaultdict(list)

    def halt(name: RelationId, error: DecodeError, *, altered: bool = False) -> None:
        if must_fit:
            raise error
        gone[name] = TableHalt.of(error, altered=altered)

    def put_aside(reject: Reject, rejects: Rejects) -> None:
        try:
            rejects.take(reject)
        except DecodeError as error:
            halt(reject.table, error)

    for message in messages:
        try:
            events = events_of(decoder, message, latest)
        except DecodeError as error:
            said = None if error.table is None else tables.get(error.table[1])
            if error.table is not None and said is None:
                continue  # nobody reads it
            if said is not None and message.offset < said.since.get(message.partition, 0):
                continue  # its rows were loaded after that
            if rejects is not None and rejects.suspects(message.partition):
                for meant in rejects.meant(message) if said is None else [said]:
                    if meant.name not in gone:
                        put_aside(Reject(meant.name, message, TableHalt.of(error)), rejects)
                continue
            if said is None:
                raise
            if said.name not in gone:
                halt(said.name, error)
            continue
        told = [(place, *of) for place, event in enumerate(events) for of in _of(event, tables)]
        for number, event, table in told:
            if event.offset < table.since.get(event.partition, 0) or table.name in gone:
                continue
            try:
                _check_order(event, table)
                if changed := _changes(event, table):
                    if rejects is not None:  # a message is kept as long as it may be needed
                        for change in changed:
                            change.origin = (message, number)
                    taken[event.table] += changed
            except DecodeError as error:
                if rejects is not None and _is_of_rows(event, table):
                    origin = (message, number)
                    put_aside(_rejected(event, origin, table, decoder, error), rejects)
                else:
                    halt(table.name, error, altered=event.kind in ("ddl", "altered"))
    rows: list[Decoded] = []
    for name, changes in taken.items():
        table = tables[name]
        if table.name in gone:
            continue
        try:
            rows += _rows(changes, table, decoder, rejects)
        except DecodeError as error:
            halt(table.name, error)
    return rows


def _of(event: ChangeEvent, tables: Mapping[str, TableSpec]) -> list[tuple[ChangeEvent, TableSpec]]:
    """An event for each table that is read and that it is of."""
    if (table := tables.get(event.table)) is not None:
        return [(event, table)]
    if event.kind != "ddl":
        return []
    # The tables of a schema, if it is named as one: with no table.
    return [
        (event._replace(table=name), table)
        for name, table in tables.items()
        if event.table == str(TableName(TableName.of(name).schema, ""))
    ]


class OneMessage:
    """A format that decodes one message, once: a block of a database's own log has many changes.

    Args:
        decoder: the format.
        message: the message.
    """

    def __init__(self, decoder: Format, message: Message) -> None:
        self.decoder, self.message = decoder, message

    @cached_property
    def events(self) -> Sequence[ChangeEvent]:
        """All events of the message."""
        return list(self.decoder.decode(self.message))


class _Only:
    """A format that has one event of a message.

    Args:
        decoded: the message.
        number: which one.
    """

    def __init__(self, decoded: OneMessage, number: int) -> None:
        self._decoded, self._number = decoded, number
        self.in_band_heartbeats = decoded.decoder.in_band_heartbeats
        self.convert = decoded.decoder.convert

    def decode(self, message: Message) -> Sequence[ChangeEvent]:
        """The event."""
        assert message is self._decoded.message, "it is a format of that message"
        return [self._decoded.events[self._number]]


def decode_again(
    decoded: OneMessage, number: int, table: TableSpec, latest: SourceMs
) -> list[pa.Table] | TableHalt:
    """The changes of what was rejected (`changelog.batch_schema`), or why it still cannot be taken.

    Args:
        decoded: the message that it came in.
        number: which event of the message it is.
        table: its table.
        latest: see `decode_split`.
    """
    only, again = _Only(decoded, number), Rejects(lambda _: [table])
    halts: dict[RelationId, TableHalt] = {}
    tables = {table.source_name: table}
    rows = decode_split([decoded.message], only, tables, latest, halts, again)
    for why in (*halts.values(), *(left.why for left in again.taken)):
        return why
    return [row.changes for row in rows]


class _Change:
    """A change of one key: kind, the cells of its row (all, or the key's), and its event."""

    __slots__ = ("cells", "event", "kind", "origin")

    def __init__(self, kind: str, cells: Mapping[str, Any], event: ChangeEvent) -> None:
        self.kind, self.cells, self.event = kind, cells, event
        #: Its message, and which event of it.
        self.origin: tuple[Message, int] | None = None


def _place(event: ChangeEvent) -> str:
    return f"{event.partition}, offset {event.offset}, table {event.table}"


def _key_of(
    event: ChangeEvent, image: Mapping[str, Any] | None, table: TableSpec
) -> tuple[Any, ...]:
    for source in (image, event.before, event.key):
        if source is not None and tells(source, table.schema.key):
            return tuple(source[name] for name in table.schema.key)
    raise _no_key(event, table)


def _check_order(event: ChangeEvent, table: TableSpec) -> None:
    """Raise where changes of a row are in several partitions, so that nobody knows their order.

    They are, where the message's key has a column that may change while ours does not.
    """
    if event.key is None or event.key.keys() <= table.key_names:
        return
    key = ", ".join(table.schema.key)
    raise DecodeError(
        f"the key of a message has other columns than the key of {table.name}: changes of a row "
        "may stand in several partitions, in no order",
        where=_place(event),
        got=", ".join(event.key),
        allowed=f"columns of ({key})",
        safe=_SAFE,
        hint=f"debezium: message.key.columns=<schema>.{table.name.sql_name}:"
        f"{','.join(table.schema.key)}; or declare the message's key under connections."
        f"{table.connection}.tables.{table.source_name}.key",
    )


def _no_key(event: ChangeEvent, table: TableSpec) -> DecodeError:
    return DecodeError(
        f"the message has no value for the key ({', '.join(table.schema.key)})",
        where=_place(event),
        safe=_SAFE,
        hint="the connector must send the key of the table, or whole rows as they were before "
        "(PostgreSQL: REPLICA IDENTITY FULL)",
    )


def _changes(event: ChangeEvent, table: TableSpec) -> list[_Change]:
    key_names = table.schema.key
    if event.kind == "ddl" and moves_rows(event.detail or "", *table.altered_as):
        raise _moved(event, table)
    if event.kind == "altered":
        raise _altered(event, table)
    if event.kind == "unreadable":
        raise _unreadable(event, table)
    if event.kind in ("ddl", "heartbeat"):
        return []  # no change of a row
    if event.kind == "r" and not table.rereads:
        raise _read_again(event, table)
    if event.kind == "truncate":
        return [_Change("truncate", {}, event)]
    if event.kind == "d":
        key = _key_of(event, event.before, table)
        return [_Change("d", dict(zip(key_names, key, strict=True)), event)]
    if event.kind not in ("c", "u", "r"):
        raise TypeError(f"nobody knows what an event {event.kind!r} changes")
    if event.after is None:
        raise DecodeError(
            "a create or update has no after-image",
            where=_place(event),
            safe=_SAFE,
            hint="correct what writes it",
        )
    if not event.after.keys() >= table.column_names:
        missing = [name for name in table.schema.names if name not in event.after]
        raise DecodeError(
            f"column {missing[0]!r} of {table.name} is not in the message",
            where=_place(event),
            got=f"columns {', '.join(event.after)}",
            safe=_SAFE,
            hint="if it was dropped or renamed, change the views that read it",
        )
    after = event.after
    if UNCHANGED in [after[name] for name in key_names]:
        # A long key that stays as it was: it is not sent in the new row, only as that of the old.
        after = {**after, **dict(zip(key_names, _key_of(event, after, table), strict=True))}
    change = _Change(event.kind, after, event)
    # An update that moves a row to another key is a delete and a create: each goes its own way.
    if event.kind == "u" and event.before is not None:
        old = [event.before.get(name) for name in key_names]
        is_told = tells(event.before, key_names)
        if is_told and old != [after[name] for name in key_names]:
            gone = dict(zip(key_names, old, strict=True))
            return [_Change("d", gone, event), _Change("c", after, event)]
    return [change]


def _moved(event: ChangeEvent, table: TableSpec) -> DecodeError:
    """The error of a statement after which nobody knows the table's rows."""
    error = DecodeError(
        f"rows of {table.name} go, come or change by a statement, and no message tells which",
        where=_place(event),
        got=shown(event.detail or "", 200),
        allowed="changes of rows, TRUNCATE TABLE, and statements that change columns",
        safe=_SAFE,
        hint="if the table is there no more, remove the views that read it",
    )
    error.mends = ""  # it is loaded anew as it is
    return error


def _altered(event: ChangeEvent, table: TableSpec) -> DecodeError:
    """The error of a table that has other columns from this change on."""
    return DecodeError(
        f"table {table.name} {event.detail}",
        where=_place(event),
        safe=_SAFE,
    )


def _unreadable(event: ChangeEvent, table: TableSpec) -> DecodeError:
    """The error of a change whose row cannot be read, though it is known of which table it is."""
    return DecodeError(
        f"a change of {table.name} cannot be read: {event.detail}",
        where=_place(event),
        safe=_SAFE,
        hint="correct the row at the source",
    )


def _read_again(event: ChangeEvent, table: TableSpec) -> DecodeError:
    """The error of a snapshot: a row that was deleted before it is in no message."""
    return DecodeError(
        f"the connector reads {table.name} anew, which is followed already: rows that were deleted "
        "while it did not follow would stay for ever",
        where=_place(event),
        got="a row of a snapshot (op r)",
        safe=_SAFE,
        hint="wait until the connector's snapshot is done",
    )


def _rows(
    changes: list[_Change], table: TableSpec, decoder: Format, rejects: Rejects | None
) -> list[Decoded]:
    if rejects is None:
        changes, batch = _batch(changes, table, decoder)
    else:
        changes, batch = _sound(changes, table, decoder, rejects)
    return routed(batch, [change.kind for change in changes], table)


def _batch(
    changes: list[_Change], table: TableSpec, decoder: Format
) -> tuple[list[_Change], pa.Table]:
    """Changes as the table has them, typed."""
    if table.condition is not None:
        changes = _within(changes, table.condition, table, decoder)
    return changes, _typed(changes, table, decoder)


# --- changes that are put into quarantine ---------------------------------------------------------


def _sound(
    changes: list[_Change], table: TableSpec, decoder: Format, rejects: Rejects
) -> tuple[list[_Change], pa.Table]:
    """As `_batch`, without the changes that cannot be taken: these are rejected.

    Raises:
        DecodeError: these are more than there is room for.
    """
    try:
        kept, batch = _batch(changes, table, decoder)
        _check_not_null(kept, batch, table)
        return kept, batch  # the rule
    except DecodeError:
        pass  # of some of them
    # An event is taken as a whole, or not at all.
    events: dict[int, list[_Change]] = defaultdict(list)
    for change in changes:
        events[id(change.event)].append(change)
    for some, error in _misfits([*events.values()], table, decoder, rejects.left):
        event, origin = some[0].event, some[0].origin
        assert origin is not None, "the change came in a message"
        rejects.take(_rejected(event, origin, table, decoder, error))
        del events[id(event)]
    return _batch([change for some in events.values() for change in some], table, decoder)


def _misfits(
    events: list[list[_Change]], table: TableSpec, decoder: Format, most: int
) -> list[tuple[list[_Change], DecodeError]]:
    """The events whose changes are none of the table's, and why; by halves, as most have none.

    Of more than `most` some are told only: they halt the table.
    """
    try:
        changes, batch = _batch([change for some in events for change in some], table, decoder)
        _check_not_null(changes, batch, table)
        return []
    except DecodeError as error:
        if len(events) == 1:
            return [(events[0], error)]
    half = len(events) // 2
    told = _misfits(events[:half], table, decoder, most)
    if len(told) <= most:
        told += _misfits(events[half:], table, decoder, most - len(told))
    return told


def _check_not_null(changes: list[_Change], batch: pa.Table, table: TableSpec) -> None:
    """Raise where a row has no value in a column that is NOT NULL; else its table would halt."""
    cells = [change.cells for change in changes]
    if told := missing_value([change.kind for change in changes], cells, batch, table):
        name, place = told
        raise DecodeError(
            f"column {table.name}.{name} is NOT NULL and a change brings NULL",
            where=_place(changes[place].event),
            safe=_SAFE,
            hint="correct what writes it, unless the column is nullable now",
        )


def _is_of_rows(event: ChangeEvent, table: TableSpec) -> bool:
    """Whether an event changes a row; else what is wrong with it is wrong with its table."""
    if event.key is not None and not event.key.keys() <= table.key_names:
        return False
    if event.after is not None and not event.after.keys() >= table.column_names:
        return False  # a column that is gone, it may be
    return event.kind in ("c", "u", "d") or (event.kind == "r" and table.rereads)


def _rejected(
    event: ChangeEvent,
    origin: tuple[Message, int],
    table: TableSpec,
    decoder: Format,
    error: DecodeError,
) -> Reject:
    message, number = origin
    return Reject(
        table.name,
        message,
        TableHalt.of(error),
        number,
        encode_position(event.position),
        event.source_ms,
        _keys_of(event, table, decoder),
    )


def _keys_of(event: ChangeEvent, table: TableSpec, decoder: Format) -> bytes:
    """The keys of the rows that an event changes, as Arrow IPC; empty: they cannot be told."""
    names = table.schema.key
    images = [event.before] if event.kind == "d" else [event.after]
    before = event.before or {}
    if event.kind == "u" and all(before.get(name) is not None for name in names):
        images.append(before)
    try:
        keys = dict.fromkeys(_key_of(event, image, table) for image in images)
        columns = [
            decoder.convert([key[place] for key in keys], table.schema.column(name))
            for place, name in enumerate(names)
        ]
    except Exception:
        return b""  # whatever is wrong with it: the key is not known
    if any(column.null_count for column in columns):
        return b""
    return to_ipc(pa.Table.from_arrays(columns, schema=table.schema.key_arrow))


def _within(
    changes: list[_Change], condition: Condition, table: TableSpec, decoder: Format
) -> list[_Change]:
    """The changes, where a row that does not fulfil the table's condition is deleted.

    So it goes where it was there, and nothing happens where it was not. Snapshot rows tell that the
    table is to be read anew, whatever they are.
    """
    asked = [change for change in changes if change.kind in ("c", "u")]
    if not asked:
        return changes
    cells = {}
    for name in sorted(columns_of(condition)):
        values = [change.cells[name] for change in asked]
        if UNCHANGED in values:
            raise _not_sent(asked[values.index(UNCHANGED)].event, name, table)
        try:
            cells[name] = converted(values, range(len(asked)), table, name, decoder)
        except MisfitError:
            raise _misfit(asked, values, table, name, decoder) from None
    outside = {
        id(change)
        for change, holds_ in zip(
            asked, holds(condition, cells, table.schema).to_pylist(), strict=True
        )
        if not holds_
    }
    return [
        _Change("d", {key: change.cells[key] for key in table.schema.key}, change.event)
        if id(change) in outside
        else change
        for change in changes
    ]


def _not_sent(event: ChangeEvent, name: str, table: TableSpec) -> DecodeError:
    """The error of a row of which nobody knows whether it fulfils the table's condition."""
    return DecodeError(
        f"column {name!r} of {table.name} stands in its 'where', and is not in the message",
        where=_place(event),
        allowed="messages with the whole row",
        safe=_SAFE,
        hint=f"PostgreSQL: ALTER TABLE {table.source_name} REPLICA IDENTITY FULL",
    )


def _typed(changes: list[_Change], table: TableSpec, decoder: Format) -> pa.Table:
    events = [change.event for change in changes]
    rows = Untyped(
        [change.kind for change in changes],
        [change.cells for change in changes],
        [encode_position(event.position) for event in events],
        [event.source_ms for event in events],
        [event.partition for event in events],
        [event.offset for event in events],
    )
    try:
        return typed(rows, table, decoder)
    except MisfitError as error:
        some = [changes[place] for place in error.places]
        raise _misfit(some, error.values, table, error.column, decoder) from None
    except KeylessError as error:
        raise _no_key(events[error.place], table) from None


def _misfit(
    changes: list[_Change], values: Sequence[Any], table: TableSpec, name: str, decoder: Format
) -> DecodeError:
    """The error of the first value that does not fit, found one by one off the fast path."""
    column = table.schema.column(name)
    for change, value in zip(changes, values, strict=True):
        try:
            decoder.convert([value], column)
        except Exception as error:
            return DecodeError(
                f"column {table.name}.{name} ({type_name(column.type)}) cannot hold the value: "
                f"{_reason(error, value)}",
                where=_place(change.event),
                got=shown(value),
                safe=_SAFE,
                hint="correct the row at the source, or change how the column is read (`types` of "
                "the table with PostgreSQL, `format.` options of a connector)",
            )
    return DecodeError(
        f"the values of column {table.name}.{name} cannot be read together",
        where=_place(changes[0].event),
        safe=_SAFE,
    )


def _reason(error: Exception, value: Any) -> str:
    # What a converter means is a ValueError itself. All others are of libraries, whose words are
    # about their own types and arguments.
    return str(error) if type(error) is ValueError else f"{shown(value, 80)} is no such value"
