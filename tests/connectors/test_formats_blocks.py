"""Many messages at once are what they are one by one: the same changes, errors, and rejects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mview.changelog import ChangeEvent
from mview.connector import Format, Message, TableHalt, block_of, load
from mview.errors import DecodeError
from mview.ingest.decode import split
from mview.ingest.decode.split import decode_split
from mview.ingest.mending.reject import Reject, Rejects
from mview.ingest.spec import BoundedFormat, ScopedFormat, TableSpec
from mview.relation import RelationId
from mview.schema import Column, TableSchema, parse_type
from mview.snapshot import ChunkPlan
from mview.testing.formats import in_block
from tests.connectors.test_formats_hostile import NOW, TYPES, anything, bodies
from tests.relations import rel
from tests.seeds import SEED, daily

COLUMNS = (
    Column("id", parse_type("bigint"), nullable=False),
    *(Column(f"c{number}", parse_type(kind)) for number, kind in enumerate(TYPES)),
)
PLAIN = TableSpec(rel("shop.t"), TableSchema(COLUMNS, ("id",)), None, "stage", None)  # type: ignore[arg-type]
SHORT = replace(PLAIN, schema=TableSchema((COLUMNS[0], COLUMNS[1]), ("id",)))
TABLES = {
    "all columns": PLAIN,
    "few columns": SHORT,
    "two keys": replace(PLAIN, schema=TableSchema(COLUMNS[:4], ("id", "c1"))),
    "not null": replace(
        SHORT, schema=TableSchema((COLUMNS[0], Column("c0", pa.string(), False)), ("id",))
    ),
    "where": replace(SHORT, schema=replace(SHORT.schema, where="id > 3")),
    "since": replace(SHORT, since={"topic/0": 4}),
    "loading": replace(SHORT, plan=ChunkPlan("shop.t", ("id",), ((3,), (6,)), (9,), 10)),
}
#: Values of the columns, as a writer that means well has them.
VALUES: Sequence[Sequence[Any]] = (
    ("", "a:b", "é😀"), (7, -1), ("1.5", "-0.05", 3, 0.25), (0.5, 1, "NaN"), (0.5,),
    ("2024-02-29",), ("2024-02-29T23:59:59.5Z",), ("2024-02-29T23:59:59",), ("AAE=",), (True, 0),
    ([1, 2], []),
)  # fmt: skip


class OneByOne:
    """A format without blocks."""

    def __init__(self, decoder: Format) -> None:
        self._decoder = decoder
        self.in_band_heartbeats, self.convert = decoder.in_band_heartbeats, decoder.convert

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        return self._decoder.decode(message)


@st.composite
def usual_rows(draw: st.DrawFn) -> dict[str, Any]:
    row: dict[str, Any] = {"id": draw(st.integers(0, 9))}
    for number, values in enumerate(VALUES):
        row[f"c{number}"] = draw(st.sampled_from(values) | st.none())
    return row


@st.composite
def usual(draw: st.DrawFn) -> dict[str, Any]:
    """What is decoded in blocks."""
    op = draw(st.sampled_from(["insert", "u", "update", "d", "delete", "heartbeat"]))
    body: dict[str, Any] = {"op": op, "ts": draw(st.sampled_from([1, 5, 10**12]))}
    if op == "heartbeat":
        return body
    body["table"] = draw(st.sampled_from(["t", "t", "t", "other"]))
    body["position"] = draw(st.integers(0, 2**63))
    row = draw(usual_rows())
    if op in ("insert", "u", "update"):
        body["after"] = row
        if op != "insert" and draw(st.booleans()):
            body["before"] = {**draw(usual_rows()), "id": row["id"], "c1": row["c1"]}
    elif draw(st.booleans()):
        body["before"] = row
    else:
        body["key"] = {"id": row["id"]}
    if draw(st.booleans()):
        body["transaction"] = draw(st.sampled_from(["a", 7, None]))
    if draw(st.integers(0, 9)) == 0:
        body["schema"] = draw(st.sampled_from(["own", "far", None]))
    return body


def _without_first(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "after": dict([*body["after"].items()][1:])}


#: From a change that is usual to one that is not: each alone must be seen among usual ones.
DEVIATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another key": lambda body: {**body, "op": "u", "before": {"id": 11, "c1": 11}},
    "part of another key": lambda body: {**body, "op": "u", "before": {"id": 11}},
    "no column": _without_first,
    "no after": lambda body: {**body, "op": "u", "after": None},
    "delete without a key": lambda body: {**body, "op": "d", "before": {"c0": "a"}},
    "delete of nothing": lambda body: {"op": "d", "table": "t"},
    "delete of nothing of another table": lambda body: {"op": "d", "table": "other"},
    "delete by an empty row": lambda body: {
        "op": "d", "table": "t", "before": {}, "key": {"id": 1}},
    "key of more columns": lambda body: {**body, "key": {"id": 1, "c0": "a"}},
    "null key": lambda body: {**body, "after": {**body["after"], "id": None}},
    "null": lambda body: {**body, "after": {**body["after"], "c0": None}},
    "a value that does not fit": lambda body: {**body, "after": {**body["after"], "c0": 3}},
    "digits": lambda body: b'{"op":"c","table":"t","after":%s}' % json.dumps(body["after"]).replace(
        '"c2": ', '"c2": 1.0000000000000000000001, "c3x": ').encode(),
    "minus zero": lambda body: json.dumps(body).replace('"c3": ', '"c3": -0, "c3x": ').encode(),
    "a field twice": lambda body: json.dumps(body).replace('"id": ', '"id": 1, "id": ').encode(),
    "a field twice, hidden": lambda body: json.dumps(
        {**body, "after": {**body["after"], "c0": "?"}}).replace(
        '"?"', '"\\u003a"').replace('"c1": ', '"c1": 1, "c1": ').encode(),
    "an unknown field": lambda body: {**body, "extra": 1},
    "no op": lambda body: {**body, "op": None},
    "an unknown op": lambda body: {**body, "op": "i"},
    "truncate": lambda body: {"op": "truncate", "table": "t"},
    "no table": lambda body: {**body, "table": None},
    "an empty table": lambda body: {**body, "table": ""},
    "an empty schema": lambda body: {**body, "schema": ""},
    "a number as schema": lambda body: {**body, "schema": 5},
    "a time to come": lambda body: {**body, "ts": NOW + 1},
    "no time": lambda body: {**body, "ts": -1},
    "seconds": lambda body: {**body, "ts": 1.5},
    "heartbeat without a time": lambda body: {"op": "heartbeat"},
    "heartbeat of a table": lambda body: {"op": "heartbeat", "ts": 5, "table": "t"},
    "position of parts": lambda body: {**body, "position": [3, 4]},
    "position as text": lambda body: {**body, "position": "12"},
    "position below zero": lambda body: {**body, "position": -1},
    "a large position": lambda body: {**body, "position": 10**19},
    "true as position": lambda body: {**body, "position": True},
    "transaction of parts": lambda body: {**body, "transaction": [1]},
    "a row that is none": lambda body: {**body, "before": [1]},
    "a list": lambda body: [body],
    "no message": lambda body: None,
    "torn": lambda body: json.dumps(body).encode()[:-2],
    "two": lambda body: json.dumps(body).encode() * 2,
    "not utf-8": lambda body: b'{"op":"c","table":"t","after":{"id":1,"c0":"\xff"}}',
    "half a pair": lambda body: json.dumps(body).replace(
        '"c0": ', '"c0": "\\ud800", "y": ').encode(),
    "deep": lambda body: {**body, "after": {**body["after"], "y": _deep(300)}},
    "large": lambda body: {**body, "after": {**body["after"], "y": "x" * 70_000}},
    "none": lambda body: body,
}  # fmt: skip


def _deep(levels: int) -> Any:
    return [] if levels == 0 else [_deep(levels - 1)]


@st.composite
def unusual(draw: st.DrawFn) -> bytes | None:
    """Anything."""
    body = {**draw(usual() | bodies("unified"))}
    body[draw(st.sampled_from(["ts", "position", "table", "key", "op"]))] = draw(anything)
    text = json.dumps(body).encode()
    return draw(st.sampled_from([text, text[: draw(st.integers(0, len(text)))]]))


@st.composite
def logs(draw: st.DrawFn) -> list[Message]:
    """Usual messages and one that is not, of two partitions."""
    texts: list[bytes | None] = [
        json.dumps(message).encode() for message in draw(st.lists(usual(), max_size=12))
    ]
    texts.insert(draw(st.integers(0, len(texts))), draw(unusual()))
    places = [draw(st.sampled_from(["topic/0", "topic/0", "topic/1"])) for _ in texts]
    return [
        Message(place, offset, None, text)
        for offset, (place, text) in enumerate(zip(places, texts, strict=True))
    ]


def outcome(log: list[Message], decoder: Format, table: TableSpec, mode: str) -> Any:
    """All that there is to know of a decoding, to be compared."""
    halts: dict[RelationId, TableHalt] | None = None if mode == "raise" else {}
    rejects = Rejects(lambda _: [table]) if mode == "reject" else None
    try:
        rows = decode_split(log, decoder, {"t": table}, NOW, halts, rejects)
    except DecodeError as error:
        return str(error)
    found: dict[Any, list[str]] = {}
    for row in rows:
        found.setdefault((row.table, row.chunk), []).extend(map(repr, row.changes.to_pylist()))
    taken: list[Reject] = [] if rejects is None else rejects.taken
    return found, halts, taken


UNIFIED = load("formats", "unified")({})


def check(log: list[Message], table: TableSpec, mode: str, inner: Format = UNIFIED) -> None:
    """One by one is what blocks give."""
    scoped = (ScopedFormat(inner, "own"), ScopedFormat(OneByOne(inner), "own"))
    told, alone = (outcome(log, BoundedFormat(one, 1 << 20), table, mode) for one in scoped)
    assert told == alone


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("mode", ["raise", "halt", "reject"])
def test_one_that_is_unusual_is_seen(table: str, mode: str) -> None:
    random = Random(daily())
    for name, change in DEVIATIONS.items():
        log = []
        place = random.randrange(8)
        for number in range(8):
            row = {"id": number, **{f"c{n}": random.choice(v) for n, v in enumerate(VALUES)}}
            body = {"op": "c", "table": "t", "after": row, "ts": 5, "position": number + 1}
            made = change(body) if number == place else body
            text = json.dumps(made).encode() if isinstance(made, dict | list) else made
            log.append(Message("topic/0", number, None, text))
        try:
            check(log, TABLES[table], mode)
        except AssertionError:
            pytest.fail(f"{name} at {place}, MVIEW_SEED={SEED}")


@pytest.mark.parametrize("size", [3, 1024])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    log=logs(), mode=st.sampled_from(["raise", "halt", "reject"]), table=st.sampled_from([*TABLES])
)
def test_blocks_are_what_messages_are(size: int, log: list[Message], mode: str, table: str) -> None:
    before, split._BLOCK = split._BLOCK, size
    try:
        check(log, TABLES[table], mode)
    finally:
        split._BLOCK = before


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=st.lists(usual(), min_size=1, max_size=30))
def test_what_is_usual_goes_in_blocks(messages: list[dict[str, Any]]) -> None:
    texts = [json.dumps(message).encode() for message in messages]
    log = [Message("topic/0", offset, None, text) for offset, text in enumerate(texts)]
    decoder = load("formats", "unified")({})
    block = block_of(decoder, log)
    if block is None:  # a text with a colon that is written as a number is looked at alone
        assert any(b"\\u003" in text for text in texts)
        return
    events = [event for message in log for event in decoder.decode(message)]
    for place, event in enumerate(events):
        assert block.at([place]) == in_block(event)


def test_one_that_is_unusual_is_found_among_many() -> None:
    """Where it stands is told, and what others say is taken: in the blocks before and after it."""
    rows = [
        {"op": "insert", "table": "t", "after": {"id": n, "c0": "a"}, "position": n}
        for n in range(5000)
    ]
    rows[3000]["after"] = {"id": "much", "c0": "a"}
    log = [Message("t/0", n, None, json.dumps(row).encode()) for n, row in enumerate(rows)]
    decoder, rejects = load("formats", "unified")({}), Rejects(lambda _: [SHORT])
    with pytest.raises(DecodeError, match="offset 3000"):
        decode_split(log, decoder, {"t": SHORT})
    taken = decode_split(log, decoder, {"t": SHORT}, halts={}, rejects=rejects)
    assert [reject.message.offset for reject in rejects.taken] == [3000]
    ids = [n for one in taken for n in one.changes["id"].to_pylist()]
    assert ids == [n for n in range(5000) if n != 3000]
    # A table that halts gives nothing, also not what was right before.
    halts: dict[RelationId, TableHalt] = {}
    assert decode_split(log, decoder, {"t": SHORT}, halts=halts) == []
    assert [*halts] == [SHORT.name]
