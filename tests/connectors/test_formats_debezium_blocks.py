"""Many of Debezium's messages at once are what they are one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mview.connector import Message, block_of, load
from mview.ingest.decode import split
from mview.schema import Column, TableSchema, parse_type
from mview.testing.formats import in_block
from tests.connectors.test_formats_blocks import TABLES, check, usual_rows
from tests.connectors.test_formats_hostile import NOW, anything, bodies
from tests.seeds import SEED, daily

DECODER = load("formats", "debezium")(
    {"format.decimal.handling.mode": "string", "format.binary.handling.mode": "base64"}
)

#: By connector, the place in its log of change `n`.
PLACES: dict[str, Callable[[int], dict[str, Any]]] = {
    "mariadb": lambda n: {"db": "own", "file": "bin.000007", "pos": n, "row": n % 3},
    "postgresql": lambda n: {"db": "d", "schema": "own", "sequence": f'["{n}","{n + 1}"]'},
    "sqlserver": lambda n: {
        "db": "d", "schema": "own", "commit_lsn": f"0:{n:x}:3", "change_lsn": "0:1:2",
        "event_serial_no": n % 2 or None},
    "oracle": lambda n: {"db": "d", "schema": "own"},
}  # fmt: skip

#: What the schema says of columns: the others' own names are not needed.
_COLUMNS = [
    {"field": "id", "type": "int64"},
    {"field": "c0", "type": "string", "optional": True},
    {"field": "c2", "type": "string", "optional": True},
    {"field": "c6", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
    {"field": "c7", "type": "int64", "name": "io.debezium.time.Timestamp", "optional": True},
    {"field": "c8", "type": "bytes", "optional": True},
]


def packed(body: Any, *, schema: str = "", key: bool = False) -> bytes:
    """JSON as the converter writes it, with the schema in front where it has a name."""
    if schema:
        rows = [{"type": "struct", "fields": _COLUMNS, "field": n} for n in ("before", "after")]
        fields = _COLUMNS[:1] if key else [*rows, {"field": "op", "type": "string"}]
        body = {"schema": {"type": "struct", "name": schema, "fields": fields}, "payload": body}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


@st.composite
def changes(draw: st.DrawFn, schema: bool) -> tuple[bytes | None, bytes | None]:
    """The key and the value of a message that is decoded in blocks."""
    if draw(st.integers(0, 6)) == 0:
        return packed({"id": draw(st.integers(0, 9))}, schema="k" * schema, key=True), None
    op, row = draw(st.sampled_from("cuud")), draw(usual_rows())
    if schema and draw(st.booleans()):
        row["c7"] = draw(st.sampled_from([1_700_000_000_000, None]))
    before = {**draw(usual_rows()), "id": row["id"], "c1": row["c1"]}
    connector = draw(st.sampled_from([*PLACES]))
    source = {
        "connector": connector, "ts_ms": draw(st.sampled_from([1, 5, 10**12, None])),
        "snapshot": draw(st.sampled_from(["false", False, None])),
        "table": draw(st.sampled_from(["t", "t", "t", "other"])),
        **PLACES[connector](draw(st.integers(0, 2**40))),
    }  # fmt: skip
    if draw(st.integers(0, 9)) == 0:
        source["schema"] = draw(st.sampled_from(["own", "far", None, ""]))
    old = {"c": None, "u": draw(st.sampled_from([None, before])), "d": row}[op]
    body = {"before": old, "after": None if op == "d" else row, "source": source, "op": op}
    if draw(st.booleans()):
        body |= {"ts_ms": 7, "transaction": draw(st.sampled_from([None, {"id": "9:1"}, {}]))}
    name = f"s{draw(st.integers(1, 2))}" if schema else ""
    key = None if draw(st.integers(0, 9)) == 0 else {"id": row["id"]}
    return key and packed(key, schema="k" * schema, key=True), packed(body, schema=name)


def messages(texts: list[tuple[bytes | None, bytes | None]], place: str) -> list[Message]:
    return [Message(place, offset, key, text) for offset, (key, text) in enumerate(texts)]


@st.composite
def logs(draw: st.DrawFn) -> list[Message]:
    """Usual messages, and anything among them."""
    usual = changes(draw(st.booleans()))
    texts = draw(st.lists(usual, max_size=12))
    for _ in range(draw(st.integers(0, 1))):
        body = draw(bodies("debezium"))
        if type(body) is dict and draw(st.booleans()):
            body[draw(st.sampled_from(["op", "before", "after", "source"]))] = draw(anything)
        text = packed(body, schema=draw(st.sampled_from(["", "", "s1"])))
        text = draw(st.sampled_from([text, text[: draw(st.integers(0, len(text)))]]))
        key = draw(st.none() | anything.map(packed) | st.binary(max_size=9))
        texts.insert(draw(st.integers(0, len(texts))), (key, text))
    return messages(texts, draw(st.sampled_from(["topic/0", "topic/0", "topic/1"])))


@pytest.mark.parametrize("size", [3, 1024])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    log=logs(), mode=st.sampled_from(["raise", "halt", "reject"]), table=st.sampled_from([*TABLES])
)
def test_blocks_are_what_messages_are(size: int, log: list[Message], mode: str, table: str) -> None:
    before, split._BLOCK = split._BLOCK, size
    try:
        check(log, TABLES[table], mode, DECODER)
    finally:
        split._BLOCK = before


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.booleans().flatmap(lambda schema: st.lists(changes(schema), min_size=1, max_size=30)))
def test_what_is_usual_goes_in_blocks(texts: list[tuple[bytes | None, bytes | None]]) -> None:
    log = messages(texts, "topic/0")
    block = block_of(DECODER, log)
    if block is None:
        # A message that has no table of its own, or only tombstones: nothing tells how to read it.
        assert all(text is None for _, text in texts)
        return
    for place, message in enumerate(log):
        events = [*DECODER.decode(message)]
        if not events:
            assert block.at([place]) == ([""], [""], [None], [None], [None], [()], [None], [None])
            continue
        (event,) = events
        assert block.at([place]) == in_block(event)


Body = dict[str, Any]


def _of(body: Body, **fields: Any) -> Body:
    return {**body, **fields}


def _from(body: Body, **fields: Any) -> Body:
    return {**body, "source": {**body["source"], **fields}}


def _row(body: Body, **cells: Any) -> Body:
    return {**body, "after": {**body["after"], **cells}}


#: From a change that is usual to a message that is not: each alone must be seen among usual ones.
#: A function gives a body, the bytes of one, or a key and a body.
DEVIATIONS: dict[str, Callable[[Body], Any]] = {
    "a heartbeat": lambda body: {"ts_ms": 5},
    "a marker": lambda body: {
        "status": "END", "id": "1", "event_count": 1, "data_collections": None},
    "a statement": lambda body: {"ddl": "alter table t", "source": body["source"]},
    "a logical message": lambda body: _of(body, op="m"),
    "a truncate": lambda body: _of(body, op="t", before=None, after=None),
    "a row of a snapshot": lambda body: _of(body, op="r"),
    "a create in a snapshot": lambda body: _from(body, snapshot="true"),
    "the last of a snapshot": lambda body: _from(body, snapshot="last"),
    "an unknown op": lambda body: _of(body, op="x"),
    "a list as op": lambda body: _of(body, op=["c"]),
    "no op": lambda body: _of(body, op=None),
    "flattened": lambda body: body["after"],
    "no source": lambda body: _of(body, source=None),
    "a text as source": lambda body: _of(body, source="t"),
    "no table": lambda body: _from(body, table=None),
    "an empty table": lambda body: _from(body, table=""),
    "a number as table": lambda body: _from(body, table=7),
    "a number as schema": lambda body: _from(body, schema=7),
    "a time to come": lambda body: _from(body, ts_ms=NOW + 1),
    "a time before all": lambda body: _from(body, ts_ms=-1),
    "half a millisecond": lambda body: _from(body, ts_ms=1.5),
    "true as time": lambda body: _from(body, ts_ms=True),
    "no place": lambda body: _from(body, pos=None),
    "a place below zero": lambda body: _from(body, pos=-1),
    "a large place": lambda body: _from(body, pos=10**20),
    "true as place": lambda body: _from(body, row=True),
    "no file": lambda body: _from(body, file="bin"),
    "no after": lambda body: _of(body, after=None),
    "a list as after": lambda body: _of(body, after=[1]),
    "zero as after": lambda body: _of(body, after=0),
    "an empty text as before": lambda body: _of(body, op="u", before=""),
    "a delete of nothing": lambda body: (None, _of(body, op="d", before=None, after=None)),
    "a delete by its key": lambda body: _of(body, op="d", before=None, after=None),
    "another key": lambda body: _of(body, op="u", before={**body["after"], "id": 77}),
    "not sent": lambda body: _row(body, c0="__debezium_unavailable_value"),
    "not sent, as base64": lambda body: _row(
        body, c8="X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    "a value that does not fit": lambda body: _row(body, c1="much"),
    "no column": lambda body: _of(body, after={"id": body["after"]["id"]}),
    "digits": lambda body: packed(_row(body, c2="@")).replace(b'"@"', b"1.00000000000000000000001"),
    "minus zero": lambda body: packed(_row(body, c3="@")).replace(b'"@"', b"-0"),
    "a transaction of parts": lambda body: _of(body, transaction=[1]),
    "a list as transaction's id": lambda body: _of(body, transaction={"id": [1]}),
    "a number as transaction's id": lambda body: _of(body, transaction={"id": 7}),
    "no transaction": lambda body: _of(body, transaction=0),
    "null": lambda body: b"null",
    "empty": lambda body: b"",
    "a list": lambda body: packed([body]),
    "torn": lambda body: packed(body)[:-2],
    "two": lambda body: packed(body) * 2,
    "a field twice": lambda body: packed(body).replace(b'"op":', b'"op":"c","op":'),
    "a column twice": lambda body: packed(body).replace(b'"id":', b'"id":1,"id":', 1),
    "an envelope": lambda body: packed(body, schema="s1"),
    "an envelope with blanks": lambda body: json.dumps(json.loads(packed(body, schema="s1"))),
    "an envelope without a schema": lambda body: {"schema": None, "payload": body},
    "an envelope of null": lambda body: packed(None, schema="s1"),
    "an envelope of an envelope": lambda body: packed(
        {"schema": {"type": "struct"}, "payload": body}, schema="s1"),
    "an envelope with a field twice": lambda body: packed(body, schema="s1").replace(
        b'"op":', b'"op":"c","op":'),
    "a field of the table called payload": lambda body: _of(body, payload=1),
    "no key": lambda body: (None, body),
    "a key that is none": lambda body: (b"\0\0\0\0\1a", body),
    "a key as text": lambda body: (b'"a"', body),
    "a key as list": lambda body: (b"[1]", body),
    "a column of the key twice": lambda body: (b'{"id":1,"id":2}', body),
    "a double as key": lambda body: (b'{"id":1.00000000000000000000001}', body),
    "minus zero as key": lambda body: (b'{"id":-0}', body),
    "an envelope around the key": lambda body: (packed({"id": 3}, schema="k", key=True), body),
    "a key of more columns": lambda body: (b'{"id":1,"c0":"a"}', body),
    "a key of another column": lambda body: (b'{"c0":"a"}', body),
    "none": lambda body: body,
}  # fmt: skip


@pytest.mark.parametrize("mode", ["raise", "halt", "reject"])
@pytest.mark.parametrize("schema", ["", "s1"])
@pytest.mark.parametrize("partition", ["topic/0", "topic/1"])
def test_one_that_is_unusual_is_seen(partition: str, schema: str, mode: str) -> None:
    random = Random(daily())
    tables = ["all columns", random.choice([*TABLES])]
    for (name, change), table in product(DEVIATIONS.items(), tables):
        texts: list[tuple[bytes | None, bytes | None]] = []
        place = random.randrange(8)
        for number in range(8):
            row = {"id": number, "c0": "a:b", "c1": 7, "c2": "1.5", "c3": 0.5, "c4": 0.5,
                   "c5": "2024-02-29", "c6": "2024-02-29T23:59:59Z", "c7": "2024-02-29T23:59:59",
                   "c8": "AAE=", "c9": True, "c10": [1]}  # fmt: skip
            source = {"connector": "mysql", "table": "t", "ts_ms": 5, **PLACES["mariadb"](number)}
            body = {"op": "c", "before": None, "after": row, "source": source}
            key: bytes | None = packed({"id": number}, schema="k" * bool(schema), key=True)
            made = change(body) if number == place else body
            if isinstance(made, tuple):
                key, made = made
            if isinstance(made, str):
                made = made.encode()
            texts.append((key, made if isinstance(made, bytes) else packed(made, schema=schema)))
        try:
            check(messages(texts, partition), TABLES[table], mode, DECODER)
        except AssertionError:
            pytest.fail(f"{name} at {place} into {table}, MVIEW_SEED={SEED}")


@pytest.mark.parametrize("number", [b"12345678901234567890.5", b"-0", b"0.5"])
@pytest.mark.parametrize("kind", ["decimal(38,4)", "double"])
def test_digits_of_a_key_are_kept(kind: str, number: bytes) -> None:
    schema = TableSchema((Column("c2", parse_type(kind), nullable=False),), ("c2",))
    source = {"connector": "mysql", "table": "t", "ts_ms": 5, **PLACES["mariadb"](1)}
    body = packed({"op": "d", "before": None, "after": None, "source": source})
    log = messages([(b'{"c2":%s}' % number, body)] * 3, "topic/0")
    check(log, replace(TABLES["all columns"], schema=schema), "raise", DECODER)
