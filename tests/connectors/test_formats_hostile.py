"""Any bytes are events, or an error with the place: what nobody in their right mind would send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mview.changelog import ChangeEvent
from mview.clock import SourceMs
from mview.connector import AHEAD_MS, Format, Message, events_of, load
from mview.errors import DecodeError, MviewError
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec
from mview.schema import Column, TableSchema, parse_type
from tests.connectors.test_formats import AT, BODIES, FORMATS, with_row
from tests.relations import rel

PLACE = "topic/0, offset 12"
TYPES = ("string", "int", "decimal(38,4)", "double", "float", "date", "timestamp", "timestamp_ntz",
         "binary", "boolean", "array<bigint>")  # fmt: skip
TABLE = TableSpec(
    rel("shop.t"),
    TableSchema(
        (
            Column("id", parse_type("bigint"), nullable=False),
            *(Column(f"c{number}", parse_type(kind)) for number, kind in enumerate(TYPES)),
        ),
        ("id",),
    ),
    Path("base"),
    "stage",
    None,
)
NOW = SourceMs(1_800_000_000_000)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["1e999999999", "9" * 5000, "NaN", "\x1b[2J", "insert", "٣", "t", "0x1"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {"id": st.integers(0, 9) | anything},
    optional={f"c{number}": anything for number in range(len(TYPES))},
)


def field_values(field: str) -> st.SearchStrategy[Any]:
    """What may stand in a field of a hostile message."""
    if field in ("before", "after", "key"):
        return rows
    if field in ("data", "old"):
        return rows | st.lists(rows, max_size=3) | anything
    if field == "_tidb":
        return st.fixed_dictionaries({"commitTs": st.integers(1, 2**62) | anything}) | anything
    return anything


@st.composite
def bodies(draw: st.DrawFn, name: str) -> Any:
    """A right message, some fields of which are something else."""
    body = dict(draw(st.sampled_from(list(BODIES[name].values()))))
    fields = [*body, "op", "before", "after", "source", "key", "ts", "position", "transaction",
              "payload", "schema", "ddl", "tableChanges", "ts_ms", "type", "data", "old", "es",
              "isDdl", "_tidb", "database", "table", "xid", "sql"]  # fmt: skip
    for field in draw(st.lists(st.sampled_from(fields), max_size=2)):
        body[field] = draw(field_values(field))
    if type(body.get("source")) is dict and body["source"] and draw(st.booleans()):
        field = draw(st.sampled_from(list(body["source"])))
        body["source"] = {**body["source"], field: draw(anything)}
    if draw(st.integers(0, 5)) == 0:
        body = {"schema": None, "payload": draw(st.just(body) | anything)}
    return body


def message(value: bytes | None, key: bytes | None = None) -> Message:
    return Message("topic/0", 12, key, value)


def check(decoder: Format, one: Message) -> list[ChangeEvent]:
    """The events, which can be taken or are refused with the place; none for an error."""
    events, error = attempt(lambda: list(decoder.decode(one)))
    if events is None:
        assert error.where == PLACE
        assert "same command" not in str(error)
        return []
    for event in events:
        assert type(event.table) is str
        assert event.transaction is None or type(event.transaction) is str
        assert all(type(part) is int and 0 <= part < 10**20 for part in event.position)
        assert event.source_ms is None or 0 <= event.source_ms < 2**48
        assert {type(row) for row in (event.key, event.before, event.after)} <= {dict, type(None)}
    rows, error = attempt(lambda: decode_split([one], decoder, {"t": TABLE}, NOW))
    if rows is None:
        assert PLACE in error.where
        assert "same command" not in str(error)
    return events


def attempt(work: Callable[[], Any]) -> tuple[Any, Any]:
    """The result, or the error of a message; any other error fails the test."""
    try:
        return work(), None
    except DecodeError as error:
        return None, error


@pytest.mark.parametrize("name", FORMATS)
class TestAnyBytes:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_bytes(self, name: str, data: st.DataObject) -> None:
        check(load("formats", name)({}), message(data.draw(st.binary()), data.draw(st.binary())))

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_bodies(self, name: str, data: st.DataObject) -> None:
        value = json.dumps(data.draw(bodies(name))).encode()
        key = json.dumps(data.draw(st.none() | rows | anything)).encode()
        check(load("formats", name)({}), message(value, key))

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_right_messages_with_other_bytes(self, name: str, data: st.DataObject) -> None:
        body = data.draw(st.sampled_from(list(BODIES[name].values())))
        value = bytearray(json.dumps(body).encode())
        for _ in range(data.draw(st.integers(1, 3))):
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
        check(load("formats", name)({}), message(bytes(value)))

    @pytest.mark.parametrize("depth", [100, 500, 900, 1020, 5000, 100_000])
    @pytest.mark.parametrize("number", ["1", "1.5"])
    def test_deep_nesting(self, name: str, depth: int, number: str) -> None:
        body = json.dumps(with_row(name, {"id": 1, "x": "DEEP"}))
        for deep in ("[" * depth + number + "]" * depth, '{"a":' * depth + number + "}" * depth):
            check(load("formats", name)({}), message(body.replace('"DEEP"', deep).encode()))
            check(load("formats", name)({}), message(body.replace('{"id": 1', deep[:-1]).encode()))

    def test_a_field_that_is_there_twice(self, name: str) -> None:
        decoder = load("formats", name)({})
        for text in (
            '{"id": 1, "id": 2}',
            '{"id" : 1,"b":"\\":", "id":2}',
            '{"i\\u0064":1,"id":"\\u003a"}',
        ):
            value = json.dumps(with_row(name, "ROW")).replace('"ROW"', text)
            with pytest.raises(DecodeError, match="'id' twice") as caught:
                list(decoder.decode(message(value.encode())))
            assert caught.value.where == PLACE
        once = {"id": 1, 'b":': '": "', "c": {"id": "x : y"}, " d ": "\\u0022:"}
        for indent in (None, 2):
            value = json.dumps(with_row(name, once), indent=indent).encode()
            (event,) = decoder.decode(message(value))
            assert event.after == once

    def test_a_time_to_come_is_refused(self, name: str) -> None:
        decoder, latest = load("formats", name)({}), SourceMs(AT.get(name, 5))
        for kind in {"c", "heartbeat"} & BODIES[name].keys():
            one = message(json.dumps(BODIES[name][kind]).encode())
            assert events_of(decoder, one, latest)
            with pytest.raises(DecodeError, match="a time to come") as caught:
                decode_split([one], decoder, {"t": TABLE}, SourceMs(latest - 1))
            assert caught.value.where == PLACE
        assert AHEAD_MS < 15 * 60_000, "the smallest mistake of a time zone"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("unified", {"table": "t", "op": ["insert"], "after": {"id": 1}}),
        ("unified", {"table": ["t"], "op": "insert", "after": {"id": 1}}),
        ("unified", {"table": "t", "op": "insert", "after": {"id": 1}, "position": "9" * 5000}),
        ("unified", {"table": "t", "op": "insert", "after": {"id": 1}, "transaction": [1]}),
        ("unified", {"op": "heartbeat", "ts": 1_700_000_000_000_000}),
        ("unified", {"op": "heartbeat", "ts": 2**64 - 1}),
        ("unified", {"op": "heartbeat", "ts": -1}),
        ("debezium", {"schema": None, "payload": "x"}),
        ("debezium", {"op": {"c": 1}, "after": {}, "source": {"table": "t"}}),
        ("debezium", {"op": "c", "after": {}, "source": {"table": 7}}),
        ("debezium", {"ts_ms": 1_700_000_000_000_000}),
        ("debezium", {"ts_ms": "now"}),
        ("debezium", {"ddl": "drop table t", "tableChanges": [7]}),
        ("debezium", {**BODIES["debezium"]["c"], "transaction": "x"}),
        ("debezium", {**BODIES["debezium"]["c"], "before": "x"}),
        ("debezium", {**BODIES["debezium"]["c"], "source":
            {**BODIES["debezium"]["c"]["source"], "pos": -4}}),
    ],
)  # fmt: skip
def test_it_halts_with_the_place(name: str, body: Any) -> None:
    with pytest.raises(DecodeError) as caught:
        list(load("formats", name)({}).decode(message(json.dumps(body).encode())))
    assert caught.value.where == PLACE
    assert "mview drop" in str(caught.value.hint)


def test_a_format_that_fails_is_told_with_the_place() -> None:
    class Broken:
        in_band_heartbeats = True

        def decode(self, message: Message) -> list[ChangeEvent]:
            raise KeyError("after")

    with pytest.raises(DecodeError, match="KeyError") as caught:
        events_of(Broken(), message(b"{}"))
    assert caught.value.where == PLACE


def test_a_value_does_not_forge_the_block_of_an_error() -> None:
    value = "x\n  next:    rm -rf /\r\x1b[2K\x1b[1Aok\u202e\x9b"
    for error in (MviewError("bad", got=value, hint="fix it"), MviewError(f"bad {value}")):
        text = error.render()
        assert not [line for line in text.splitlines() if line.startswith("  next:    rm")]
        assert not set(text) & set("\r\x1b\u202e\x9b")
    assert "\\x1b[2K" in text
    shown = MviewError("bad", hint="one\ntwo").render()
    assert shown == "bad\n  next:    one\n" + " " * 11 + "two\n  code:    MV9000"
