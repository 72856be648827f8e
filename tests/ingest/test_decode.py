"""From messages to change batches: typing, routing, key changes, and what must halt."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from mview.changelog import UNCHANGED, ChangeEvent, StreamRow, from_ipc, stream_batch
from mview.connector import Message, TableHalt, load
from mview.errors import DecodeError
from mview.ingest.batches import halt_row, sorted_rows
from mview.ingest.decode.split import decode_split
from mview.ingest.mending.reject import QuarantineRoom, Rejects, to_bodies
from mview.ingest.spec import ScopedFormat, TableSpec
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan
from tests.relations import rel
from tests.seeds import daily

SCHEMA = TableSchema(
    (
        Column("id", pa.int64(), nullable=False),
        Column("name", pa.string()),
        Column("amount", pa.decimal128(10, 2)),
    ),
    ("id",),
)
LIVE = TableSpec(rel("shop.orders"), SCHEMA, Path("base"), "stage", None)
PLAN = ChunkPlan("shop.orders", ("id",), ((10,), (20,)), (29,), 30)
LOADING = TableSpec(rel("shop.orders"), SCHEMA, Path("base"), "stage", PLAN)


def message(offset: int, **body: Any) -> Message:
    return Message("log", offset, None, json.dumps({"ts": 1, "position": offset, **body}).encode())


def row(number: int, name: str | None = "a", amount: str | None = "1.50") -> dict[str, Any]:
    return {"id": number, "name": name, "amount": amount}


def decode(messages: list[Message], table: TableSpec = LIVE) -> dict[int, pa.Table]:
    decoder = load("formats", "unified")({})
    rows = decode_split(messages, decoder, {"orders": table})
    return {one.chunk: one.changes for one in rows}


def test_values_are_typed_by_the_table() -> None:
    batch = decode([message(1, table="orders", op="insert", after=row(7, None, "-0.05"))])[0]
    assert batch["id"].to_pylist() == [7]
    assert batch["name"].to_pylist() == [None]
    assert batch["amount"].to_pylist() == [Decimal("-0.05")]
    assert batch["__op"].to_pylist() == ["c"]
    assert batch["__offset"].to_pylist() == [1]


def test_changes_go_to_the_chunk_of_their_key() -> None:
    messages = [
        message(n, table="orders", op="insert", after=row(key))
        for n, key in enumerate([0, 9, 10, 19, 20, 29, 1000])
    ]
    found = {chunk: batch["id"].to_pylist() for chunk, batch in decode(messages, LOADING).items()}
    assert found == {0: [0, 9], 1: [10, 19], 2: [20, 29, 1000]}


def test_a_key_change_is_a_delete_and_a_create_each_in_its_chunk() -> None:
    change = message(5, table="orders", op="update", before=row(3), after=row(25))
    found = decode([change], LOADING)
    assert [(b["__op"].to_pylist(), b["id"].to_pylist()) for b in found.values()] == [
        (["d"], [3]),
        (["c"], [25]),
    ]


def test_a_truncate_reaches_every_chunk_in_order_with_the_rest() -> None:
    messages = [
        message(1, table="orders", op="truncate"),
        message(2, table="orders", op="insert", after=row(15)),
    ]
    found = {c: b["__op"].to_pylist() for c, b in decode(messages, LOADING).items()}
    assert found == {0: ["truncate"], 1: ["truncate", "c"], 2: ["truncate"]}


@pytest.mark.parametrize("mode", ["connect", "isostring", None])
def test_what_a_delete_does_not_tell_is_no_null_of_the_source(mode: str | None) -> None:
    """A TIME that is NULL halts in these modes, as it may be one that they do not send."""
    columns = (Column("id", pa.int64(), nullable=False), Column("at", pa.string(), True, "time(3)"))
    table = replace(LIVE, schema=TableSchema(columns, ("id",)))
    source = {"connector": "mariadb", "table": "orders", "file": "b.1", "pos": 1, "row": 0}

    def change(number: int, op: str, **images: Any) -> Message:
        body = {"op": op, "before": None, "after": None, "source": {**source, "ts_ms": 1}, **images}
        return Message("log", number, None, json.dumps(body).encode())

    decoder = load("formats", "debezium")({"format.time.precision.mode": mode} if mode else {})
    gone = [
        change(1, "d", before={"id": 1, "at": None}),
        change(2, "t"),
        change(3, "d", before={"id": 2, "at": "01:00:00Z"}),
    ]
    more = [change(4, "c", after={"id": 4, "at": "02:00:00Z"}), change(5, "d", before={"id": 4})]
    for messages, times in ((gone, [None] * 3), (gone + more, [None] * 3 + ["02:00:00", None])):
        (found,) = decode_split(messages, decoder, {"orders": table})
        assert found.changes["at"].to_pylist() == times
    lost = change(6, "c", after={"id": 6, "at": None})
    with pytest.raises(DecodeError, match="NULL may be a time") as caught:
        decode_split([*gone, *more, lost], decoder, {"orders": table})
    assert caught.value.where == "log, offset 6, table orders"


def test_other_tables_are_passed_over() -> None:
    assert decode([message(1, table="carts", op="insert", after={"id": 1})]) == {}


def test_a_value_that_does_not_fit_halts_with_its_place() -> None:
    good = message(1, table="orders", op="insert", after=row(1))
    bad = message(2, table="orders", op="insert", after=row(2, "x", "12.345"))
    with pytest.raises(DecodeError) as error:
        decode([good, bad])
    assert error.value.where == "log, offset 2, table orders"
    assert "shop.orders.amount" in error.value.what
    assert "12.345" in str(error.value.got)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (pa.ArrowInvalid("Could not convert 'x': tried to convert to int64"), None),
        (pa.ArrowTypeError("Expected bytes, got a 'int' object"), None),
        (OverflowError("int too big to convert"), None),
        (TypeError("'int' object is not iterable"), None),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), None),
        (KeyError("a"), None),
        (ValueError("'x' is not a text"), "'x' is not a text"),
    ],
)
def test_a_value_that_does_not_fit_is_told_in_our_words(
    raised: Exception, said: str | None
) -> None:
    class Raising:
        """A format whose columns take no value."""

        def __init__(self) -> None:
            self._unified = load("formats", "unified")({})

        def __getattr__(self, name: str) -> Any:
            if name == "decode_block":
                raise AttributeError
            return getattr(self._unified, name)

        def convert(self, values: list[Any], column: Column) -> pa.Array:
            if column.name == "name":
                raise raised
            return self._unified.convert(values, column)

    bad = message(2, table="orders", op="insert", after=row(2, "x" * 300))
    with pytest.raises(DecodeError) as error:
        decode_split([bad], Raising(), {"orders": LIVE})
    short = "'" + "x" * 76 + "..."
    assert error.value.what == (
        "column shop.orders.name (string) cannot hold the value: "
        + (said or f"{short} is no such value")
    )
    assert str(raised) == said or str(raised) not in str(error.value)
    assert "correct the row at the source" in str(error.value.hint)


def test_a_type_is_named_as_sql_names_it() -> None:
    schema = TableSchema((*SCHEMA.columns, Column("due", pa.date32())), ("id",))
    late = message(1, table="orders", op="insert", after={**row(1), "due": "infinity"})
    with pytest.raises(DecodeError, match=r"shop\.orders\.due \(date\) cannot hold the value"):
        decode([late], replace(LIVE, schema=schema))


@pytest.mark.parametrize("table", [LIVE, LOADING])
def test_rows_that_a_connector_reads_anew_halt_as_they_tell_of_no_deletes(table: TableSpec) -> None:
    def read(number: int, **source: Any) -> Message:
        place = {"connector": "postgresql", "table": "orders", "sequence": None, "ts_ms": 1}
        body = {"op": "r", "before": None, "after": row(number), "source": {**place, **source}}
        return Message("log", number, None, json.dumps(body).encode())

    decoder = load("formats", "debezium")({})
    for kind in ("true", "last", "incremental"):
        with pytest.raises(DecodeError, match=r"reads shop\.orders anew") as caught:
            decode_split([read(5, snapshot=kind)], decoder, {"orders": table})
        assert caught.value.where == "log, offset 5, table orders"
        assert caught.value.hint == "wait until the connector's snapshot is done"
        # What stands before the load's begin is in the chunks.
        begun = replace(table, since={"log": 6})
        assert decode_split([read(5, snapshot=kind)], decoder, {"orders": begun}) == []
        assert decode_split([read(5, snapshot=kind)], decoder, {"others": table}) == []
        # Who reads the table anew takes them.
        taken = decode_split(
            [read(5, snapshot=kind)], decoder, {"orders": replace(LIVE, rereads=True)}
        )
        assert [part.changes["__op"].to_pylist() for part in taken] == [["r"]]


def test_a_missing_column_halts() -> None:
    with pytest.raises(DecodeError, match=r"'amount' of .* is not in the message"):
        decode([message(1, table="orders", op="insert", after={"id": 1, "name": "a"})])


def test_a_delete_needs_its_key() -> None:
    with pytest.raises(DecodeError, match="no value for the key"):
        decode([message(1, table="orders", op="delete", before={"name": "a"})])


@pytest.mark.parametrize("op", ["insert", "update"])
@pytest.mark.parametrize("table", [LIVE, LOADING])
def test_a_row_needs_its_key(op: str, table: TableSpec) -> None:
    """SQLite lets a text be NULL in a primary key; such rows could not be told apart."""
    good = [
        message(1, table="orders", op="truncate"),
        message(2, table="orders", op="insert", after=row(1)),
    ]
    bad = message(3, table="orders", op=op, after={**row(1), "id": None}, key={"id": 1})
    with pytest.raises(DecodeError, match="no value for the key") as error:
        decode([*good, bad], table)
    assert error.value.where == "log, offset 3, table orders"
    assert decode(good, table)


def test_a_message_key_with_other_columns_than_the_key_is_refused() -> None:
    """Changes of a row would be in several partitions, in no order."""
    change = {"table": "orders", "op": "update", "after": row(1)}
    assert decode([message(1, **change, key={"id": 1})])
    with pytest.raises(DecodeError, match="key of a message has other columns") as caught:
        decode([message(1, **change, key={"id": 1, "name": "a"})])
    assert "message.key.columns=<schema>.orders:id" in str(caught.value.hint)


WHERE = replace(LIVE, schema=replace(SCHEMA, where="name = 'a'"))


def test_rows_that_do_not_fulfil_the_condition_are_deleted() -> None:
    messages = [
        message(1, table="orders", op="insert", after=row(1, "a")),
        message(2, table="orders", op="insert", after=row(2, "b", "no number at all")),
        message(3, table="orders", op="update", after=row(1, None, "7.00")),
        message(4, table="orders", op="update", after=row(2, "a", "8.00")),
        message(5, table="orders", op="update", before=row(2), after=row(3, "b")),
        message(6, table="orders", op="update", before=row(3), after=row(4, "a")),
        message(7, table="orders", op="truncate"),
        message(8, table="orders", op="delete", key={"id": 4}),
    ]
    batch = decode(messages, WHERE)[0]
    kinds = ["c", "d", "d", "u", "d", "d", "d", "c", "truncate", "d"]
    assert batch["__op"].to_pylist() == kinds
    assert batch["id"].to_pylist() == [1, 2, 1, 2, 2, 3, 3, 4, None, 4]
    assert batch["name"].to_pylist() == ["a", None, None, "a", None, None, None, "a", None, None]


def test_a_value_that_the_condition_needs_must_be_in_the_message() -> None:
    table = replace(LIVE, schema=replace(SCHEMA, where="amount > 1"))
    good = message(1, table="orders", op="insert", after=row(1, "a"))
    bad = message(2, table="orders", op="insert", after=row(2, "a", "x"))
    with pytest.raises(DecodeError, match=r"orders.amount .* cannot hold"):
        decode([good, bad], table)


def test_changes_lead_from_rows_within_to_rows_within() -> None:
    """Random changes: what is there in the end are the rows that fulfil the condition."""
    random = Random(daily())
    for _ in range(50):
        every: dict[int, dict[str, Any]] = {}
        within: dict[int, Any] = {}
        messages = []
        for number in range(random.randint(1, 40)):
            key, kind = random.randrange(5), random.random()
            if kind < 0.1:
                every = {}
                messages.append(message(number, table="orders", op="truncate"))
            elif kind < 0.3:
                every.pop(key, None)
                messages.append(message(number, table="orders", op="delete", key={"id": key}))
            else:
                after = row(key, random.choice(["a", "A", "b", None]), f"{number}.00")
                before = row(random.choice([key, *every]))
                every.pop(before["id"], None)
                every[key] = after
                changed = {"op": "update", "before": before, "after": after}
                messages.append(message(number, table="orders", **changed))
        for change in decode(messages, WHERE).get(0, LIVE.schema.arrow.empty_table()).to_pylist():
            if change["__op"] == "truncate":
                within = {}
            elif change["__op"] == "d":
                within.pop(change["id"], None)
            else:
                within[change["id"]] = change
        wanted = {key: cells["amount"] for key, cells in every.items() if cells["name"] == "a"}
        assert {key: str(cells["amount"]) for key, cells in within.items()} == wanted


def test_a_table_halts_alone_and_gives_nothing_of_what_was_read() -> None:
    bad = message(2, table="orders", op="insert", after={"id": 2, "name": "a", "amount": "much"})
    messages = [
        message(1, table="orders", op="insert", after=row(1)),
        message(1, table="others", op="insert", after=row(1)),
        bad,
        message(3, table="orders", op="insert", after={"id": 3}),
        message(4, table="others", op="insert", after=row(4)),
    ]
    others = replace(LIVE, name=rel("shop.others"))
    for listed, what in ((messages, "not in the message"), (messages[:3], "cannot hold")):
        halts: dict[RelationId, TableHalt] = {}
        decoder = load("formats", "unified")({})
        tables = {"orders": LIVE, "others": others}
        rows = decode_split(listed, decoder, tables, halts=halts)
        assert {one.table for one in rows} == {rel("shop.others")}
        (halt,) = halts.values()
        assert list(halts) == [rel("shop.orders")]
        assert what in halt.what
        assert "log, offset" in halt.where
        assert not halt.altered
        # It is told in one way, also from another process.
        told = pa.Table.from_batches([stream_batch([halt_row(rel("shop.orders"), halt)])])
        assert sorted_rows(told).halts == halts
        with pytest.raises(DecodeError) as caught:
            decode_split(listed, decoder, tables)
        assert (halt.what, halt.code) == (caught.value.what, caught.value.code)


def test_a_halted_table_is_not_to_be_dropped() -> None:
    """The message says which table it is of: the next load of that one begins after it."""
    body = {"op": "c", "after": None, "source": {"table": "orders", "ts_ms": 1}}
    listed = [Message("log/0", 1, b"{}", json.dumps(body).encode())]
    decoder = load("formats", "debezium")({"format.skipped.operations": "none"})
    halts: dict[RelationId, TableHalt] = {}
    decode_split(listed, decoder, {"orders": LIVE}, halts=halts)
    assert halts[rel("shop.orders")].hint == "correct what writes log"


def test_changes_that_cannot_be_taken_are_rejected_and_the_others_given() -> None:
    """Against all there is: what was rejected is what was made wrong, and nothing else."""
    random = Random(daily())
    messages, good, wrong = [], {}, {}
    for offset in range(200):
        body: dict[str, Any] = {"table": "orders", "op": "insert", "after": row(offset)}
        kind = random.choice(["good", "value", "key", "null", "torn"] if offset % 3 else ["good"])
        if kind == "value":
            body["after"]["amount"] = "much"
        elif kind == "key":
            del body["after"]["id"]
            body = {**body, "op": "delete", "before": {"name": "a"}, "after": None}
        elif kind == "null":
            body["after"]["name"] = None
        (good if kind == "good" else wrong)[offset] = kind
        text = message(offset, **{k: v for k, v in body.items() if v is not None})
        torn = text._replace(value=(text.value or b"")[:-3])
        messages.append(torn if kind == "torn" else text)
    schema = replace(
        SCHEMA,
        columns=(*SCHEMA.columns[:1], Column("name", pa.string(), False), *SCHEMA.columns[2:]),
    )
    table = replace(LIVE, schema=schema)
    rejects = Rejects(lambda partition: [table] if partition == "log" else [])
    halts: dict[RelationId, TableHalt] = {}
    decoder = load("formats", "unified")({})
    rows = decode_split(messages, decoder, {"orders": table}, halts=halts, rejects=rejects)
    assert halts == {}
    assert [n for one in rows for n in one.changes["id"].to_pylist()] == [*good]
    assert sorted(reject.message.offset for reject in rejects.taken) == [*wrong]
    for reject in rejects.taken:
        kind = wrong[reject.message.offset]
        assert (reject.event is None) == (kind == "torn")
        assert bool(reject.keys) == (kind in ("value", "null")), kind
        if reject.keys:
            assert from_ipc(reject.keys)["id"].to_pylist() == [reject.message.offset]
    # They are told in one way, also from another process.
    told = stream_batch(
        [StreamRow("reject", str(table), body=body) for table, body in to_bodies(rejects.taken)]
    )
    assert sorted_rows(pa.Table.from_batches([told])).rejects == rejects.taken
    # What nobody knows a table of is an error as before.
    with pytest.raises(DecodeError):
        decode_split(messages, decoder, {"orders": table}, halts={}, rejects=Rejects(lambda _: []))


def test_what_is_wrong_with_a_table_is_no_change_to_put_aside() -> None:
    gone = message(1, table="orders", op="insert", after={"id": 3})
    rejects, halts = Rejects(lambda _: [LIVE]), dict[RelationId, TableHalt]()
    decoder = load("formats", "unified")({})
    assert decode_split([gone], decoder, {"orders": LIVE}, halts=halts, rejects=rejects) == []
    assert (rejects.taken, [*halts]) == ([], [rel("shop.orders")])


class Blocks:
    """Messages of many rows: those of the database's own log. `bad` numbers are none."""

    in_band_heartbeats = True
    converted = 0

    def decode(self, message: Message) -> list[ChangeEvent]:
        rows = json.loads(message.value or b"")
        return [
            ChangeEvent("orders", "u", None, None, row, (message.offset, n), None, "log", 1)
            for n, row in enumerate(rows)
        ]

    def convert(self, values: Any, column: Column) -> pa.Array:
        self.converted += len(values)
        return load("formats", "unified")({}).convert(values, column)


def blocks(number: int, rows: int, bad: set[int] | range) -> list[Message]:
    return [
        Message(
            "log",
            block,
            None,
            json.dumps(
                [row(n, amount="much" if n in bad else "1.50") for n in range(first, first + rows)]
            ).encode(),
        )
        for block, first in enumerate(range(0, number * rows, rows), 1)
    ]


def test_a_message_of_many_changes_goes_through_tasks_once() -> None:
    rejects = Rejects(lambda _: [])
    messages = blocks(2, 100, range(150))
    decode_split(messages, Blocks(), {"orders": LIVE}, halts={}, rejects=rejects)
    assert len(rejects.taken) == 150
    bodies = [body for _, body in to_bodies(rejects.taken)]
    assert [body.count(b'"value":') for body in bodies] == [1, 1]
    told = stream_batch([StreamRow("reject", body=body) for body in bodies])
    assert sorted_rows(pa.Table.from_batches([told])).rejects == rejects.taken


@pytest.mark.parametrize("wrong", ["values", "keys", "messages"])
def test_a_table_halts_where_more_is_wrong_than_there_is_room_for(wrong: str) -> None:
    """Without keeping it, nor looking at each."""
    decoder, others = Blocks(), replace(LIVE, name=rel("shop.others"))
    messages = blocks(10, 1_000, range(20, 10_000) if wrong == "values" else {3})
    if wrong == "keys":
        no_key = json.dumps([{"name": "a", "amount": "1.00"}] * 30).encode()
        messages += [Message("log", 11, None, no_key)]
        decoder.decode = lambda m: [  # type: ignore[method-assign]
            replace_op(event) if m.offset == 11 else event for event in Blocks.decode(decoder, m)
        ]
    if wrong == "messages":
        messages += [Message("log", n, None, b"torn") for n in range(11, 41)]
    rejects = Rejects(lambda _: [LIVE, others], QuarantineRoom(20, 1 << 30))
    halts: dict[RelationId, TableHalt] = {}
    rows = decode_split(messages, decoder, {"orders": LIVE}, halts=halts, rejects=rejects)
    assert rows == []
    assert "the quarantine of connection shop is full" in halts[LIVE.name].what
    assert "21 changes of" in halts[LIVE.name].got
    assert not [reject for reject in rejects.taken if reject.table == LIVE.name]
    if wrong == "values":
        assert decoder.converted < 120_000  # where each is looked at by itself: more than 400,000


def replace_op(event: ChangeEvent) -> ChangeEvent:
    return event._replace(kind="d", before=event.after, after=None)


def test_bytes_of_a_message_count_once_for_its_table() -> None:
    messages = blocks(3, 100, range(300))
    size = sum(len(message.value or b"") for message in messages)
    for room, halted in [(size, False), (size - 1, True)]:
        rejects = Rejects(lambda _: [], QuarantineRoom(1_000, room))
        halts: dict[RelationId, TableHalt] = {}
        decode_split(messages, Blocks(), {"orders": LIVE}, halts=halts, rejects=rejects)
        assert (bool(halts), bool(rejects.taken)) == (halted, not halted)


@pytest.mark.parametrize("kind", ["altered", "ddl"])
def test_a_statement_halts_its_table_as_another_one(kind: str) -> None:
    class Statements:
        in_band_heartbeats = True

        def decode(self, message: Message) -> list[ChangeEvent]:
            said = ("orders", kind, None, None, None, (1,), None, "log", 1, None)
            return [ChangeEvent(*said, "DROP TABLE orders")]

        def convert(self, values: Any, column: Column) -> pa.Array:
            return pa.array(values, column.type)

    halts: dict[RelationId, TableHalt] = {}
    assert decode_split([message(1)], Statements(), {"orders": LIVE}, halts=halts) == []
    assert halts[rel("shop.orders")].altered


class Said:
    """A format whose messages are events, or errors."""

    in_band_heartbeats = True

    def __init__(self, *said: Any) -> None:
        self._said = said

    def decode(self, message: Message) -> list[ChangeEvent]:
        said = self._said[message.offset]
        if isinstance(said, DecodeError):
            raise said
        return [said]

    def convert(self, values: Any, column: Column) -> pa.Array:
        return pa.array([None if value is UNCHANGED else value for value in values], column.type)


def an_event(kind: str, after: Any, **images: Any) -> Any:
    said = (images.get("key"), images.get("before"), after, (1,), None, "log", 1)
    return ChangeEvent("orders", kind, *said, detail=images.get("detail"), namespace="own")


def test_a_message_that_cannot_be_read_halts_its_table_where_that_is_known() -> None:
    def unread(table: str) -> DecodeError:
        error = DecodeError("no change is this", hint="ask")
        error.table = ("own", table)
        return error

    others = replace(LIVE, name=rel("shop.others"))
    tables = {"orders": LIVE, "others": others}
    said = unread("others"), unread("nobody"), an_event("c", row(1, "a", None))
    decoder = ScopedFormat(Said(*said), "own")
    halts: dict[RelationId, TableHalt] = {}
    (taken,) = decode_split([message(n) for n in range(3)], decoder, tables, halts=halts)
    assert (taken.table, taken.changes["id"].to_pylist()) == (LIVE.name, [1])
    assert halts.keys() == {others.name}
    assert halts[others.name].hint == "ask"
    # What stands before a load is not looked at.
    halts.clear()
    later = {"orders": LIVE, "others": replace(others, since={"log": 1})}
    decode_split(
        [message(n) for n in range(3)], ScopedFormat(Said(*said), "own"), later, halts=halts
    )
    assert halts == {}
    rejects = Rejects(lambda _: [LIVE, others])
    decode_split([message(0)], ScopedFormat(Said(*said), "own"), later, rejects=rejects)
    assert rejects.taken == []
    with pytest.raises(DecodeError, match="no change is this"):
        decode_split([message(0)], ScopedFormat(Said(*said), "own"), tables)
    rejects = Rejects(lambda _: [LIVE, others])
    decode_split([message(0)], ScopedFormat(Said(*said), "own"), tables, rejects=rejects)
    assert [reject.table for reject in rejects.taken] == [others.name]


def test_a_change_that_cannot_be_read_halts_its_table() -> None:
    halts: dict[RelationId, TableHalt] = {}
    decoder = Said(an_event("unreadable", None, detail="no label is this"))
    assert decode_split([message(0)], decoder, {"orders": LIVE}, halts=halts) == []
    assert "no label is this" in halts[LIVE.name].what
    assert not halts[LIVE.name].altered


@pytest.mark.parametrize("image", ["before", "key"])
def test_a_long_key_that_is_left_alone_is_that_of_the_row_before(image: str) -> None:
    """PostgreSQL sends a value that is kept apart only where it changes, also of a key."""
    after = {**row(1, "a", None), "id": UNCHANGED}
    change = an_event("u", after, **{image: {"id": 7}})
    (taken,) = decode_split([message(0)], Said(change), {"orders": LIVE})
    assert taken.changes["id"].to_pylist() == [7]
    assert taken.changes["__op"].to_pylist() == ["u"]
    for other in (an_event("u", after), an_event("u", after, before={"id": UNCHANGED})):
        with pytest.raises(DecodeError, match="no value for the key"):
            decode_split([message(0)], Said(other), {"orders": LIVE})
