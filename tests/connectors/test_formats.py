"""What every change format must do, and the strict typing of values they share."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
from decimal import Decimal

import pyarrow as pa
import pytest

from mview.changelog import UNCHANGED
from mview.connector import Message, load
from mview.errors import ConfigError, DecodeError, shown
from mview.schema import Column, parse_type

FORMATS = ("canal", "debezium", "maxwell", "ticdc", "unified")

#: One change per kind, as each format writes it: (op, body).
_CANAL = {"database": "shop", "table": "t", "isDdl": False, "es": 5, "ts": 9, "old": None}
_TICDC = {**_CANAL, "_tidb": {"commitTs": (5 << 18) + 7}}
_MAXWELL = {"database": "shop", "table": "t", "ts": 0, "position": "b.000007:4"}
_SOURCE = {"connector": "mariadb", "table": "t", "file": "b.000007", "pos": 4, "row": 0, "ts_ms": 5}
BODIES = {
    "canal": {
        "c": {**_CANAL, "type": "INSERT", "data": [{"id": "1"}]},
        "u": {**_CANAL, "type": "UPDATE", "data": [{"id": "1"}], "old": [{}]},
        "d": {**_CANAL, "type": "DELETE", "data": [{"id": "1"}]},
        "truncate": {**_CANAL, "type": "TRUNCATE", "isDdl": True, "data": None, "sql": "…"},
    },
    "ticdc": {
        "c": {**_TICDC, "type": "INSERT", "data": [{"id": "1"}]},
        "u": {**_TICDC, "type": "UPDATE", "data": [{"id": "1"}], "old": [{"id": "1"}]},
        "d": {**_TICDC, "type": "DELETE", "data": [{"id": "1"}]},
        "truncate": {**_TICDC, "type": "TRUNCATE", "isDdl": True, "data": None, "sql": "…"},
        "heartbeat": {
            **_CANAL,
            **{"type": "TIDB_WATERMARK", "database": "", "table": "", "data": None},
            "_tidb": {"watermarkTs": (6 << 18) + 3},
        },
    },
    "maxwell": {
        "c": {**_MAXWELL, "type": "insert", "data": {"id": 1}},
        "u": {**_MAXWELL, "type": "update", "data": {"id": 1}, "old": {}},
        "d": {**_MAXWELL, "type": "delete", "data": {"id": 1}},
    },
    "debezium": {
        "c": {"op": "c", "before": None, "after": {"id": 1}, "source": _SOURCE},
        "u": {"op": "u", "before": {"id": 1}, "after": {"id": 1}, "source": _SOURCE},
        "d": {"op": "d", "before": {"id": 1}, "after": None, "source": _SOURCE},
        "truncate": {"op": "t", "before": None, "after": None, "source": _SOURCE},
        "heartbeat": {"ts_ms": 5},
    },
    "unified": {
        "c": {"table": "t", "op": "insert", "after": {"id": 1}, "ts": 5, "position": [7, 4]},
        "u": {"table": "t", "op": "u", "before": {"id": 1}, "after": {"id": 1}, "ts": 5},
        "d": {"table": "t", "op": "delete", "before": {"id": 1}, "ts": 5, "position": "74"},
        "truncate": {"table": "t", "op": "truncate", "ts": 5, "position": 74},
        "heartbeat": {"op": "heartbeat", "ts": 5},
    },
}


#: What is 1 in a row, and the time of BODIES.
ONE = {"canal": "1", "ticdc": "1"}
AT = {"maxwell": 0}


def with_row(name, row):
    """A create with another row."""
    whole = {"canal": ("data", [row]), "ticdc": ("data", [row]), "maxwell": ("data", row)}
    field, value = whole.get(name, ("after", row))
    return {**BODIES[name]["c"], field: value}


def make(name, **options):
    return load("formats", name)({f"format.{k.replace('_', '.')}": v for k, v in options.items()})


def message(body, **parts):
    value = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message("topic/0", 12, parts.get("key"), value, parts.get("headers", ()))


def column(kind, source_type=""):
    return Column("x", parse_type(kind), True, source_type)


def converted(name, values, kind, source_type="", **options):
    return make(name, **options).convert(values, column(kind, source_type)).to_pylist()


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, bodies in BODIES.items() for kind in bodies]
)
def test_kinds(name, kind):
    (event,) = make(name).decode(message(BODIES[name][kind]))
    row = {"id": ONE.get(name, 1)}
    assert (event.kind, event.partition, event.offset) == (kind, "topic/0", 12)
    assert event.table == ("" if kind == "heartbeat" else "t")
    assert event.source_ms == AT.get(name, 5)
    assert event.after == (row if kind in ("c", "u") else None)
    assert event.before == (row if kind in ("u", "d") else None)


@pytest.mark.parametrize("name", FORMATS)
class TestEveryFormat:
    def test_a_tombstone_is_no_event(self, name):
        assert list(make(name).decode(Message("topic/0", 1, b'{"id":1}', None))) == []

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"\x00\x00\x00\x00\x01abc",
            b"{}",
            b'{"op":"x"}',
            b'{"op":"c"}',
            b'{"op":"u","table":"t","source":{"table":"t"}}',
            b'{"op":"d","table":"t","source":{"table":"t"}}',
            b'{"op":"c","table":"t","source":{"table":"t"},"after":[1]}',
            b'{"id":1,"name":"flat"}',
            b'{"type":"INSERT","table":"t","data":[{"id":"1"}]}',
            b'{"type":"insert","table":"t","data":{"id":1}}',
        ],
    )
    def test_what_cannot_be_read_halts_with_its_place(self, name, body):
        with pytest.raises(DecodeError) as caught:
            list(make(name).decode(message(body)))
        assert caught.value.where == "topic/0, offset 12"
        assert caught.value.safe == "nothing after it was taken; published epochs are untouched"
        assert caught.value.hint

    def test_the_excerpt_is_short(self, name):
        with pytest.raises(DecodeError) as caught:
            list(make(name).decode(message(b"\xff" * 5000)))
        assert len(str(caught.value.got)) <= 200

    def test_a_line_of_a_file_is_named_by_file_and_byte(self, name):
        place = (("mview.place", b"/x/1.jsonl, byte 7"),)
        with pytest.raises(DecodeError) as caught:
            list(make(name).decode(message(b"{", headers=place)))
        assert caught.value.where == "/x/1.jsonl, byte 7"

    def test_unknown_options_are_errors_and_client_options_are_not(self, name):
        load("formats", name)({"security.protocol": "SSL"})
        with pytest.raises(ConfigError):
            make(name, decimal_handling="x")

    def test_it_can_be_pickled(self, name):
        pickle.loads(pickle.dumps(make(name))).decode(message(BODIES[name]["c"]))


@pytest.mark.parametrize("name", ["debezium", "unified"])
class TestTypedJson:
    @pytest.mark.parametrize(
        ("kind", "raw", "expected"),
        [
            ("boolean", [True, 0, 1, None], [True, False, True, None]),
            ("tinyint", [-128, 127, 1, None], [-128, 127, 1, None]),
            ("bigint", [2**53 + 1, -(2**63), 2**63 - 1], [2**53 + 1, -(2**63), 2**63 - 1]),
            ("double", [0.1, 3, "Infinity", None], [0.1, 3.0, math.inf, None]),
            ("float", [0.5, "-Infinity"], [0.5, -math.inf]),
            ("decimal(12,2)", ["1.50", "-0.01", 3], ["1.50", "-0.01", "3.00"]),
            ("decimal(38,0)", [2**64 - 1, None], [str(2**64 - 1), None]),
            ("string", ["", "é😀", "123", None], ["", "é😀", "123", None]),
            ("binary", ["AP8=", "", None], [b"\x00\xff", b"", None]),
            ("date", ["2024-02-29", "0001-01-01"], [dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
            ("array<int>", [[1, None], [], None], [[1, None], [], None]),
            ("array<string>", [["a"], None, ["b", "c"]], [["a"], None, ["b", "c"]]),
        ],
    )
    def test_values(self, name, kind, raw, expected):
        if kind.startswith("decimal"):
            expected = [None if text is None else Decimal(text) for text in expected]
        assert converted(name, raw, kind) == expected
        assert converted(name, [UNCHANGED, *raw], kind) == [None, *expected]
        assert make(name).convert([], column(kind)).type == parse_type(kind)

    def test_not_a_number_is_kept(self, name):
        assert math.isnan(converted(name, ["NaN"], "double")[0])

    def test_instants(self, name):
        raw = ["2024-03-01T00:00:00.654321Z", "2024-03-01T02:00:00+02:00", None]
        at = dt.datetime(2024, 3, 1, tzinfo=dt.timezone.utc)
        expected = [at.replace(microsecond=654321), at, None]
        assert converted(name, raw, "timestamp") == expected

    @pytest.mark.parametrize(
        ("kind", "bad"),
        [
            ("boolean", 2), ("boolean", "true"), ("boolean", 1.0),
            ("tinyint", 128), ("tinyint", True), ("int", 2**31), ("int", 1.0),
            ("bigint", 2**63), ("bigint", "1"),
            ("double", "x"), ("double", 2**53 + 1), ("float", 1e300), ("double", [1]),
            ("decimal(4,2)", "100.00"), ("decimal(4,2)", "1.005"), ("decimal(4,2)", "-NaN."),
            ("decimal(38,2)", 12345678901234567.89), ("decimal(4,2)", True),
            ("string", 5), ("string", {"a": 1}), ("string", True),
            ("binary", "AP8"), ("binary", "#"), ("binary", 5),
            ("date", "2024-02-30"), ("date", "10000-01-01"), ("date", 1.5), ("date", 10**9),
            ("timestamp", "2024-03-01T00:00:00"), ("timestamp", "+292278994-08-16T23:00:00Z"),
            ("timestamp_ntz", "nonsense"), ("array<int>", 5), ("array<int>", [[1], [2]]),
        ],
    )  # fmt: skip
    def test_what_does_not_fit_raises_and_names_the_value(self, name, kind, bad):
        good = {"array<int>": [1], "boolean": True, "string": "a"}.get(kind)
        with pytest.raises(ValueError, match=r".") as caught:
            converted(name, [good, bad, good], kind)
        value = bad[0] if isinstance(bad, list) and kind == "array<int>" else bad
        assert shown(value)[:30] in str(caught.value)


class TestUnified:
    @pytest.mark.parametrize(
        ("position", "expected"),
        [
            (5, (5,)),
            ([1, 2], (1, 2)),
            ("00012", (12,)),
            (2**64 - 1, (2**64 - 1,)),
            (str(2**64), (2**64,)),
            (None, ()),
        ],
    )
    def test_positions(self, position, expected):
        body = {**BODIES["unified"]["c"], "position": position}
        (event,) = make("unified").decode(message(body))
        assert event.position == expected

    @pytest.mark.parametrize("position", [-1, 1.5, "a", "", True, [], ["1"], 10**20, {"a": 1}])
    def test_bad_positions(self, position):
        body = {**BODIES["unified"]["c"], "position": position}
        with pytest.raises(DecodeError, match="position"):
            list(make("unified").decode(message(body)))

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"postion": 1}, "unknown field 'postion'"),
            ({"op": "insrt"}, "write 'insert', if that is meant"),
            ({"table": None}, "no 'table'"),
            ({"ts": "2024"}, "'ts'"),
            ({"ts": True}, "'ts'"),
            ({"after": None}, "no 'after'"),
            ({"op": "heartbeat", "ts": None}, "heartbeat has no 'ts'"),
            ({"op": "delete"}, "neither 'before' nor 'key'"),
        ],
    )
    def test_mistakes_are_named(self, change, said):
        body = {**BODIES["unified"]["c"], **change}
        with pytest.raises(DecodeError) as caught:
            list(make("unified").decode(message(body)))
        assert said in str(caught.value)

    def test_a_delete_by_key_only(self):
        body = {"table": "t", "op": "d", "key": {"id": 3}, "transaction": "9"}
        (event,) = make("unified").decode(message(body))
        assert (event.key, event.before, event.transaction) == ({"id": 3}, None, "9")

    def test_local_timestamps_have_no_zone(self):
        expected = [dt.datetime(2024, 3, 1, 1, 2, 3, 400000)]
        for text in ("2024-03-01T01:02:03.4", "2024-03-01 01:02:03.400000"):
            assert converted("unified", [text], "timestamp_ntz") == expected
        with pytest.raises(ValueError, match="no zone"):
            converted("unified", ["2024-03-01T01:02:03Z"], "timestamp_ntz")


def test_a_batch_of_wide_and_narrow_decimals():
    raw = ["123456789012345678901234567890.12", None, "-0.01"]
    array = make("unified").convert(raw, column("decimal(38,2)"))
    assert array.type == pa.decimal128(38, 2)
    array.validate(full=True)
    assert array.to_pylist() == [Decimal(raw[0]), None, Decimal("-0.01")]
