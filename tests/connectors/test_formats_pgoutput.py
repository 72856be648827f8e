"""PostgreSQL's messages, as a server of version 15 has sent them."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from mview_connectors.changelogs.ownlog.runs import (
    Place,
    Runs,
    committed_before,
    head_of,
    tail_of,
    up_to,
)
from mview_connectors.formats.ownlog.blocks import Begin, block_key, relation_of
from mview_connectors.formats.ownlog.pgoutput import PgoutputFormat

from mview.changelog import UNCHANGED
from mview.clock import END_OF_TIME
from mview.connector import Message, events_of
from mview.errors import DecodeError
from mview.schema import Column

#: A transaction as it was received: an insert, a change of the key, a truncate.
BEGIN = b"B\x00\x00\x00\x00\x03\x8a\xe6\xa0\x00\x03\x03\xf5\x04\xec\xf8\x22\x00\x00\x02\xd6"
RELATION = (
    b"R\x00\x00@\x00public\x00t\x00d\x00\x04\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff\x00x\x00"
    b"\x00\x00\x00\x19\xff\xff\xff\xff\x00b\x00\x00\x00\x00\x11\xff\xff\xff\xff\x00a\x00\x00\x00"
    b"\x03\xf1\xff\xff\xff\xff"
)
INSERT = (
    b"I\x00\x00@\x00N\x00\x04t\x00\x00\x00\x011t\x00\x00\x00\x02x1t\x00\x00\x00\x04\\x01"
    b't\x00\x00\x00\x0e{a,"b,c",NULL}'
)
MOVE = (
    b"U\x00\x00@\x00K\x00\x04t\x00\x00\x00\x011nnnN\x00\x04t\x00\x00\x00\x02-1ut\x00\x00\x00"
    b"\x04\\x01n"
)
TRUNCATE = b"T\x00\x00\x00\x01\x00\x00\x00@\x00"
COMMIT = (
    b"C\x00\x00\x00\x00\x00\x03\x8a\xe6\xa0\x00\x00\x00\x00\x03\x8a\xe6\xd0\x00\x03\x03\xf5\x04"
    b"\xec\xf8\x22"
)
PLACE, END = 0x038AE6A0, 0x038AE6D0


def decoded(value, key=None):
    key = block_key(0, (RELATION, BEGIN)) if key is None else key
    return events_of(PgoutputFormat({}), Message("wal", PLACE, key, value))


def test_a_transaction():
    begin = Begin.of(BEGIN)
    assert (begin.commit, begin.transaction) == (PLACE, 0x2D6)
    insert, move, truncate = decoded(INSERT + MOVE + TRUNCATE + COMMIT)
    assert insert.after == {"id": "1", "x": "x1", "b": "\\x01", "a": '{a,"b,c",NULL}'}
    assert (insert.kind, insert.table, insert.before) == ("c", "t", None)
    assert (insert.position, insert.offset) == ((PLACE, 1), PLACE)
    assert insert.source_ms == begin.ms == 1_795_460_614_641
    assert move.before == {"id": "1"}
    assert move.after == {"id": "-1", "x": UNCHANGED, "b": "\\x01", "a": None}
    assert (truncate.kind, truncate.position) == ("truncate", (PLACE, 3))


def test_what_begins_inside_of_a_transaction():
    (event,) = decoded(INSERT, block_key(41, (RELATION, BEGIN)))
    assert event.position == (PLACE, 42)


@pytest.mark.parametrize(
    "value",
    [
        INSERT[:-3],
        INSERT[:9],
        b"?",
        b"I\x00\x00\x00\x01" + INSERT[5:],
        INSERT.replace(b"\x00\x04t", b"\x00\x03t", 1),
        INSERT.replace(b"t\x00\x00\x00\x02x1", b"t\x00\x00\x00\x02\xff\xff"),
        b"U\x00\x00@\x00K\x00\x01nX",
    ],
)
def test_what_breaks_the_protocol_is_told(value):
    with pytest.raises(DecodeError, match=r"(?s)protocol of pgoutput.*wal, offset"):
        decoded(value)


def test_a_change_needs_its_transaction():
    with pytest.raises(DecodeError, match="outside of a transaction"):
        decoded(INSERT, block_key(0, (RELATION,)))


@pytest.mark.parametrize(
    ("kind", "source", "texts", "values"),
    [
        (pa.binary(), "bytea", ["\\x00ff", "\\x", None], [b"\0\xff", b"", None]),
        (pa.binary(), "bit(9)", ["100000001"], [b"\x01\x01"]),
        (pa.bool_(), "boolean", ["t", "f", None], [True, False, None]),
        (pa.int32(), "integer", ["-1", UNCHANGED], [-1, None]),
        (
            pa.list_(pa.string()),
            "text[]",
            ['{a,"b,\\"c\\\\",NULL,"NULL",""}', "{}", None],
            [["a", 'b,"c\\', None, "NULL", ""], [], None],
        ),
        (pa.list_(pa.int32()), "integer[]", ["[2:3]={1,-2}"], [[1, -2]]),
    ],
)
def test_values(kind, source, texts, values):
    array = PgoutputFormat({}).convert(texts, Column("c", kind, True, source))
    assert array.to_pylist() == values
    assert array.type == kind


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        (pa.int32(), "integer", "3000000000"),
        (pa.decimal128(5, 2), "numeric(5,2)", "NaN"),
        (pa.date32(), "date", "infinity"),
        (pa.binary(), "bytea", "abc"),
        (pa.list_(pa.int32()), "integer[]", "{{1,2},{3,4}}"),
        (pa.list_(pa.int32()), "integer[]", "1,2"),
    ],
)
def test_what_does_not_fit_is_never_null(kind, source, text):
    with pytest.raises((ValueError, pa.ArrowException)):
        PgoutputFormat({}).convert([text], Column("c", kind, True, source))


class TestRuns:
    """Cut anywhere and put together again, the changes and their positions are the same."""

    def begun(self, number):
        place = 1000 * number
        return struct.pack(">BQqI", ord("B"), place, number, number)

    def ended(self, number):
        place = 1000 * number
        return struct.pack(">BBQQq", ord("C"), 0, place, place + 30, number)

    def runs(self, transactions, after=None):
        def wanted(description):
            return description if relation_of(description)[2] == "t" else None

        runs = Runs(Place(0), after or Place(0), wanted)
        runs.add(RELATION)
        for number, changes in transactions:
            for message in (self.begun(number), *[INSERT] * changes, self.ended(number)):
                runs.add(message)
        runs.close()
        return runs.closed

    def positions(self, runs):
        return [e.position for run in runs for e in decoded(run.value, run.key)]

    def test_cut_by_changes(self):
        (run,) = self.runs([(1, 3), (2, 1), (3, 4)])
        whole = self.positions([run])
        assert whole == [(1000, 1), (1000, 2), (1000, 3), (2000, 1)] + [
            (3000, n) for n in range(1, 5)
        ]
        for changes in range(1, 8):
            head = head_of(run, changes, 1 << 20, END_OF_TIME)
            rest = tail_of(run, head.end)
            assert (head.changes, rest.changes) == (changes, 8 - changes)
            assert self.positions([head, rest]) == whole
            assert self.positions([up_to(run, head.end)]) == whole[:changes]

    def test_a_server_sends_a_transaction_again_from_its_beginning(self):
        transactions = [(2, 1300), (3, 2)]
        whole = self.runs(transactions)
        for run in whole[:-1]:
            again = self.runs(transactions, run.end)
            assert self.positions([run, *again])[1:] == [
                p for p in self.positions(whole) if p >= (run.start.commit, run.start.number + 2)
            ]

    def test_by_time_and_by_place(self):
        (run,) = self.runs([(1, 1), (5000, 1)])
        begin = Begin.of(self.begun(1))
        assert head_of(run, 9, 1 << 20, begin.ms).changes == 1
        assert head_of(run, 9, 1 << 20, begin.ms - 1) is None
        assert [part.changes for part in committed_before([run], 5_000_000)] == [1]
        assert committed_before([run], 1000) == []
