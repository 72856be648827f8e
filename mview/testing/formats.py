"""What every format must do: one suite, run per format by a subclass.

    class TestMine(FormatContract):
        @pytest.fixture
        def harness(self): return MyHarness()

The harness writes changes as the format's own writer does; the suite decodes what it wrote, as a
run does: `decode_split`, then netting against a mirror.
"""

from __future__ import annotations

import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from mview.changelog import ChangeEvent, EventBlock, encode_position
from mview.clock import SourceMs
from mview.connector import WEIGHT, Format, Message, block_of, events_of
from mview.errors import DecodeError
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec
from mview.merge.net import net_changes, old_and_new
from mview.relation import RelationId
from mview.schema import Column, TableSchema, parse_type
from mview.testing.contract import seed

#: A row: by column, a value as Arrow's `to_pylist` gives it.
Row = dict[str, Any]

#: Key and value of a message.
Written = tuple[bytes | None, bytes | None]

_START_MS = 1_700_000_000_000
_TABLE = RelationId("table", "t", "s")


@dataclass(frozen=True)
class RowChange:
    """One change of a table, for a harness to write.

    Attributes:
        kind: insert, update, delete, or truncate.
        table: its table.
        before: the row before, None for an insert.
        after: the row after, None for a delete. An update may have another key.
        number: its place in the order of commits, from 1 on.
        at: its commit time in milliseconds.
    """

    kind: Literal["c", "u", "d", "truncate"]
    table: str
    before: Row | None
    after: Row | None
    number: int
    at: SourceMs


class FormatHarness(ABC):
    """The format under test, and a writer of it that is not its own code.

    Attributes:
        columns: name, type and source type of the columns; the first, `id`, is a bigint, the key.
        values: by column, values that are easily lost; NULL is added to all but the key.
        truncates: whether the format has messages of TRUNCATE.
        positions: whether it has positions: then what is sent again is told, and dropped.
    """

    columns: Sequence[tuple[str, str, str]] = (("id", "bigint", "bigint"), ("v", "string", "text"))
    values: Mapping[str, Sequence[Any]] = {"v": ("", " ", "a", "é😀", "NULL", '"\\\n')}
    truncates: bool = True
    positions: bool = True

    @abstractmethod
    def open(self) -> Format:
        """A new decoder."""

    @abstractmethod
    def write(self, change: RowChange) -> Iterable[Written]:
        """The messages of a change, also those that carry none, as tombstones."""

    def heartbeat(self, at: SourceMs) -> Written | None:
        """A message that says: all changes up to a time stand before it. None: there is none."""
        return None


@dataclass
class TableInMemory:
    """A table as its changelog makes it: messages are taken as an epoch takes them."""

    decoder: Format
    schema: TableSchema
    rows: dict[Any, Row] = field(default_factory=dict)
    _high: dict[str, str] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)

    def take(self, messages: Sequence[Message], name: str = "t") -> None:
        """One epoch of these messages, of a table that they name so."""
        spec = TableSpec(_TABLE, self.schema, Path(), "", None)
        batches = [d.changes for d in decode_split(messages, self.decoder, {name: spec})]
        if not batches:
            return
        netted = net_changes(batches, self.schema, self._high, self._newest)
        self._high |= netted.high_water
        self._newest |= netted.newest
        old = pa.Table.from_pylist(list(self.rows.values()), self.schema.loose)
        for row in old_and_new(netted, old, self.schema)[0].to_pylist():
            weight, key = row.pop(WEIGHT), row["id"]
            if weight < 0:
                assert self.rows.pop(key) == row, "a row goes that was not there"
            else:
                assert key not in self.rows, "a row comes twice"
                self.rows[key] = row

    @property
    def content(self) -> list[str]:
        """Its rows, to be compared."""
        return normal(self.rows, self.schema)


class FormatContract:
    """The suite; a subclass gives the fixture `harness`."""

    def test_a_history_gives_its_table(self, harness: FormatHarness) -> None:
        """Changes of keys, of single columns, truncates; some are sent again; any epochs."""
        for number in range(3):
            chance = random.Random(seed() * 10 + number)
            told = f"MVIEW_SEED={seed()}, history {number}"
            model: dict[int, Row] = {}
            table, log = TableInMemory(harness.open(), schema_of(harness)), MessageLog(harness)
            for change in history(harness, chance, 60):
                log.add(change)
                is_again = chance.random() < 0.1
                if is_again:
                    log.again(chance.randrange(1, 8))
                apply(model, change)
                if chance.random() < 0.3 or is_again:
                    table.take(log.next())
                    assert table.content == normal(model, table.schema), told
            table.take(log.next())
            assert table.content == normal(model, table.schema), told

    def test_values_are_exact(self, harness: FormatHarness) -> None:
        """Each value of each column, and NULL, reads as what was written."""
        model: dict[int, Row] = {}
        table, log = TableInMemory(harness.open(), schema_of(harness)), MessageLog(harness)
        for number, row in enumerate(_rows_of_all_values(harness), 1):
            change = RowChange("c", "t", None, row, number, SourceMs(_START_MS))
            log.add(change)
            apply(model, change)
        table.take(log.next())
        assert table.content == normal(model, table.schema)

    def test_bytes_that_are_no_message_halt_with_their_place(self, harness: FormatHarness) -> None:
        """Any bytes are events, or an error with the place; so are right ones that were cut."""
        chance = random.Random(seed())
        changes = history(harness, chance, 20)
        values = [value for change in changes for _, value in harness.write(change)]
        junk = [b"", b"{", b"[]", b"null", b"\x00\x01", b"\xff" * 5000]
        for value in [v for v in values if v]:
            for _ in range(10):
                broken = bytearray(value)
                broken[chance.randrange(len(broken))] = chance.randrange(256)
                junk.append(bytes(broken[: chance.choice((len(broken), len(broken) // 2))]))
        table = TableSpec(_TABLE, schema_of(harness), Path(), "", None)
        errors = []
        for value in junk:
            try:
                decode_split([Message("topic/0", 12, None, value)], harness.open(), {"t": table})
            except DecodeError as error:
                errors.append(error)
        assert errors, "nothing was refused"
        assert all("topic/0, offset 12" in str(halt.where) and halt.safe for halt in errors)

    def test_other_tables_are_passed_over(self, harness: FormatHarness) -> None:
        """A log may have tables that nobody reads, whatever is in them."""
        table, log = TableInMemory(harness.open(), schema_of(harness)), MessageLog(harness)
        row = _rows_of_all_values(harness)[0]
        log.add(RowChange("c", "other", None, row, 1, SourceMs(_START_MS)))
        table.take(log.next())
        assert table.rows == {}

    def test_places_times_and_order(self, harness: FormatHarness) -> None:
        """Events have the place of their message; positions and times do not go back."""
        chance, log = random.Random(seed()), MessageLog(harness)
        for change in history(harness, chance, 40):
            log.add(change)
        decoder, before, times = harness.open(), "", []
        for message in log.next():
            for event in events_of(decoder, message):
                assert (event.partition, event.offset) == (message.partition, message.offset)
                position = encode_position(event.position)
                assert bool(position) == harness.positions
                assert position >= before
                before = position
                times += [] if event.source_ms is None else [event.source_ms]
        assert times == sorted(times)
        assert all(at <= _START_MS + 10_000 for at in times)

    def test_blocks_are_what_messages_are(self, harness: FormatHarness) -> None:
        """Where it decodes many messages at once: the event of each, as `decode` gives it."""
        chance, log = random.Random(seed()), MessageLog(harness)
        for change in history(harness, chance, 60):
            log.add(change)
        messages, decoder = log.next(), harness.open()
        while messages:
            some, messages = messages[:7], messages[7:]
            if (block := block_of(decoder, some)) is None:
                continue
            for number, message in enumerate(some):
                events = events_of(decoder, message)
                if not events:
                    assert (block.tables[number], block.kinds[number]) == ("", "")
                    continue
                (event,) = events
                assert block.at([number]) == in_block(event)

    def test_a_heartbeat_is_no_change(self, harness: FormatHarness) -> None:
        """It has its time, and vouches for no more than it was told."""
        written = harness.heartbeat(SourceMs(_START_MS))
        if written is None:
            return
        (event,) = events_of(harness.open(), Message("topic/0", 1, *written))
        assert event.kind == "heartbeat"
        assert event.source_ms is not None
        assert event.source_ms <= _START_MS

    def test_it_goes_to_other_processes(self, harness: FormatHarness) -> None:
        """A decoder can be pickled before it is used."""
        decoder = pickle.loads(pickle.dumps(harness.open()))
        assert type(decoder.in_band_heartbeats) is bool
        for change in history(harness, random.Random(seed()), 5):
            for message in MessageLog(harness).messages(change):
                events_of(decoder, message)


def in_block(event: ChangeEvent) -> EventBlock:
    """The block of one event."""
    return EventBlock._make([getattr(event, name)] for name in _IN_EVENT)


#: The fields of a block, as an event calls them.
_IN_EVENT = ("table", "kind", "key", "before", "after", "position", "source_ms", "namespace")


def schema_of(harness: FormatHarness) -> TableSchema:
    """The table that a harness writes."""
    columns = [Column(name, parse_type(kind), name != "id", source) for name, kind, source
               in harness.columns]  # fmt: skip
    return TableSchema(tuple(columns), ("id",))


def history(harness: FormatHarness, chance: random.Random, length: int) -> list[RowChange]:
    """Random changes of one table, each possible after those before."""
    rows: dict[int, Row] = {}
    changes = []
    for number in range(1, length + 1):
        change = _next(harness, chance, rows, number)
        apply(rows, change)
        changes.append(change)
    return changes


def apply(rows: dict[int, Row], change: RowChange) -> None:
    """Make a change in a model of the table."""
    if change.kind == "truncate":
        rows.clear()
    if change.before is not None:
        del rows[change.before["id"]]
    if change.after is not None:
        rows[change.after["id"]] = change.after


def _next(
    harness: FormatHarness, chance: random.Random, rows: Mapping[int, Row], number: int
) -> RowChange:
    # Several changes of one millisecond, and of one second.
    at = SourceMs(_START_MS + number // 3 * 100)
    if harness.truncates and rows and chance.random() < 0.03:
        return RowChange("truncate", "t", None, None, number, at)
    free = [key for key in range(12) if key not in rows]
    kind = chance.choice("cuudk" if rows else "c")
    if kind == "c" and free:
        return RowChange("c", "t", None, _row(harness, chance, chance.choice(free)), number, at)
    before = chance.choice(list(rows.values()))
    if kind == "d":
        return RowChange("d", "t", before, None, number, at)
    key = chance.choice(free) if kind == "k" and free else before["id"]
    after = {**_row(harness, chance, key)}
    for name in before:
        if name != "id" and chance.random() < 0.5:
            after[name] = before[name]
    return RowChange("u", "t", before, after, number, at)


def _row(harness: FormatHarness, chance: random.Random, key: int) -> Row:
    return {
        name: key if name == "id" else chance.choice([None, *harness.values[name]])
        for name, _, _ in harness.columns
    }


def _rows_of_all_values(harness: FormatHarness) -> list[Row]:
    most = max(len(values) for values in harness.values.values())
    rows = []
    for number in range(most + 1):
        row: Row = {"id": number}
        for name, values in harness.values.items():
            row[name] = values[number] if number < len(values) else None
        rows.append(row)
    return rows


def normal(rows: Mapping[int, Row], schema: TableSchema) -> list[str]:
    """Rows to compare, by their texts: NaN equals itself, and -0.0 is not 0.0."""
    table = pa.Table.from_pylist(list(rows.values()), schema.loose)
    return sorted(map(repr, table.to_pylist()))


class MessageLog:
    """What a harness wrote, as messages of one partition; some of them sent again."""

    def __init__(self, harness: FormatHarness) -> None:
        self._harness = harness
        self._changes: list[RowChange] = []
        self._offset = 0
        self._waiting: list[Message] = []

    def add(self, change: RowChange) -> None:
        """Write a change."""
        self._changes.append(change)
        self._waiting += self.messages(change)

    def again(self, number: int) -> None:
        """The last changes once more, as after a restart of the writer."""
        for change in self._changes[-number:]:
            self._waiting += self.messages(change)

    def messages(self, change: RowChange) -> list[Message]:
        """A change at the next offsets."""
        made = []
        for key, value in self._harness.write(change):
            made.append(Message("topic/0", self._offset, key, value))
            self._offset += 1
        return made

    def next(self) -> list[Message]:
        """The messages since the last call."""
        waiting, self._waiting = self._waiting, []
        return waiting
