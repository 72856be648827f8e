"""Debezium, against messages that real connectors wrote (tests/data/debezium.jsonl)."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from mview_connectors.formats.debezium import DebeziumFormat

from mview.changelog import UNCHANGED, encode_position
from mview.connector import Message
from mview.errors import DecodeError
from mview.schema import Column, parse_type

_FILE = Path(__file__).parents[1] / "data" / "debezium.jsonl"


def _raw(part, separators=(",", ":")):
    """As JsonConverter writes: without spaces, which others may have."""
    if part is None:
        return None
    return json.dumps(part, ensure_ascii=False, separators=separators).encode()


def _load():
    topics = defaultdict(list)
    for line in _FILE.read_text().splitlines():
        one = json.loads(line)
        headers = tuple((name, value.encode()) for name, value in one["headers"])
        topics[one["topic"]].append(
            Message(
                f"{one['topic']}/0", one["offset"], _raw(one["key"]), _raw(one["value"]), headers
            )
        )
    return topics


TOPICS = _load()


def decoded(topic, **options):
    decoder = DebeziumFormat({f"format.{k.replace('_', '.')}": v for k, v in options.items()})
    return [event for message in TOPICS[topic] for event in decoder.decode(message)]


def change(after=None, *, op="c", before=None, key=None, **source):
    base = {"connector": "postgresql", "table": "t", "ts_ms": 7, "sequence": '["5","6"]'}
    body = {"op": op, "before": before, "after": after, "source": {**base, **source}}
    return Message("t/0", 0, _raw(key), _raw(body))


def value(raw, kind, source_type, **options):
    options.setdefault("time_precision_mode", "adaptive")
    decoder = DebeziumFormat({f"format.{k.replace('_', '.')}": v for k, v in options.items()})
    return decoder.convert([raw], Column("x", parse_type(kind), True, source_type))[0].as_py()


# --- decode --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "kinds"),
    [
        ("maria.shop.orders", {"r": 12, "u": 12, "c": 17, "d": 12}),
        ("maria.shop.items", {"r": 12, "u": 6, "c": 3, "d": 2, "truncate": 1}),
        ("maria.shop.nopk", {"c": 1, "u": 1, "d": 1}),
        ("pg.shop.orders", {"r": 12, "u": 13, "c": 14, "d": 12}),
        ("pg.shop.full_ident", {"r": 12, "u": 12, "d": 11, "truncate": 1}),
        ("pg.shop.nopk", {"c": 1}),
        ("mariaschema.shop.items", {"r": 1, "u": 1, "c": 1, "d": 1, "truncate": 1}),
        ("__debezium-heartbeat.maria", {"heartbeat": 1}),
        ("__debezium-heartbeat.mariaschema", {"heartbeat": 1}),
        ("__debezium-heartbeat.pg", {"heartbeat": 1}),
        ("maria.transaction", {}),
        ("pg.transaction", {}),
        ("mariaschema.transaction", {}),
        ("maria", {"ddl": 3}),
    ],
)
def test_kinds_of_real_messages(topic, kinds):
    assert Counter(event.kind for event in decoded(topic)) == kinds
    assert {event.table for event in decoded(topic)} <= {topic.rpartition(".")[2], "", "orders"}


@pytest.mark.parametrize("topic", [t for t in TOPICS if ".shop." in t])
def test_positions_grow_and_change_only_at_the_key_change_stay_apart(topic):
    streamed = [event for event in decoded(topic) if event.position]
    assert streamed
    # Text order is what the engine compares by.
    texts = [encode_position(event.position) for event in streamed]
    assert texts == sorted(set(texts))


@pytest.mark.parametrize("topic", ["maria.shop.orders", "pg.shop.orders"])
def test_a_key_change_is_a_delete_and_a_create_at_one_place(topic):
    events = decoded(topic)
    new = next(n for n, event in enumerate(events) if event.key == {"id": 1101})
    old, create = events[new - 1 : new + 1]
    assert (old.kind, old.key, create.kind) == ("d", {"id": 101}, "c")
    assert old.position[:-1] == create.position[:-1]
    assert (old.position[-1], create.position[-1]) == (0, 1)


def test_snapshot_rows_have_neither_position_nor_time():
    rows = [e for e in decoded("pg.shop.orders") if e.offset < 12]
    assert [(e.kind, e.position, e.source_ms) for e in rows] == [("r", (), None)] * 12


def test_first_change_after_the_snapshot_is_before_all_others():
    first, second = decoded("pg.shop.orders")[12:14]
    assert first.position == (23115424, 23115424, 1)
    assert second.position == (23115768, 23115768, 1)


def test_rows_of_one_copy_share_a_position():
    # Seen on PostgreSQL 15: COPY writes many rows at one LSN. Nothing else tells them apart.
    decoder = DebeziumFormat({})
    copied = [
        event.position
        for row in (1, 2)
        for event in decoder.decode(change({"id": row}, sequence='["900","1000"]'))
    ]
    assert copied == [(900, 1000, 1)] * 2


def test_sql_server_positions():
    source = {
        "connector": "sqlserver",
        "commit_lsn": "00000027:00000ac0:0002",
        "change_lsn": "00000027:00000758:0005",
        "event_serial_no": 2,
    }
    (event,) = DebeziumFormat({}).decode(change({"id": 1}, **source))
    assert event.position == (0x27, 0xAC0, 2, 0x27, 0x758, 5, 2, 1)


def test_a_truncate_ignores_the_row_number_left_from_the_event_before():
    (plain,) = (e for e in decoded("maria.shop.items") if e.kind == "truncate")
    (other,) = (e for e in decoded("mariaschema.shop.items") if e.kind == "truncate")
    assert plain.position == other.position == (1, 92994, 0, 1)


@pytest.mark.parametrize(
    "source",
    [
        {"sequence": None},
        {"sequence": "[null,null]"},
        {"connector": "mysql"},
        {"connector": "sqlserver"},
        {"connector": "mysql", "file": "", "pos": 1, "row": 0},
    ],
)
def test_a_known_connector_without_position_halts(source):
    with pytest.raises(DecodeError, match="position"):
        list(DebeziumFormat({}).decode(change({"id": 1}, **source)))


def test_an_unknown_connector_has_no_position():
    (event,) = DebeziumFormat({}).decode(change({"id": 1}, connector="oracle"))
    assert (event.position, event.source_ms) == ((), 7)


def test_images_by_replica_identity():
    update = next(e for e in decoded("pg.shop.orders") if e.offset == 24)
    delete = next(e for e in decoded("pg.shop.orders") if e.kind == "d")
    full = next(e for e in decoded("pg.shop.full_ident") if e.kind == "d")
    assert update.before is None
    assert delete.before["id"] == 101
    assert set(delete.before.values()) == {101, None}
    assert None not in full.before.values()


def test_with_and_without_schema_envelope_are_the_same():
    plain = {e.offset: e for e in decoded("maria.shop.items")}
    for event in decoded("mariaschema.shop.items"):
        twin = plain[event.offset]
        assert (event.kind, event.key, event.position) == (twin.kind, twin.key, twin.position)
        for image, other in ((event.before, twin.before), (event.after, twin.after)):
            if image is None:
                assert other is None
                continue
            price = image["price"], other["price"]
            kind = ("decimal(10,4)", "decimal(10,4)")
            assert value(price[0], *kind) == value(price[1], *kind)
            assert {**image, "price": 0} == {**other, "price": 0}


def test_a_table_whose_columns_are_schema_and_payload():
    (event,) = DebeziumFormat({}).decode(
        change({"schema": 1, "payload": 2}, key={"schema": 1, "payload": 2})
    )
    assert event.key == {"schema": 1, "payload": 2}


def test_a_key_of_another_converter_is_no_key():
    message = change({"id": 1})
    message = Message("t/0", 0, b"Struct{id=1}", message.value)
    (event,) = DebeziumFormat({}).decode(message)
    assert event.key is None


def test_ddl_has_its_statement():
    events = decoded("maria")
    assert [e.table for e in events] == ["", "orders", "orders"]
    assert events[-1].detail.startswith("alter table orders add column extra")


def test_events_name_the_schema_or_the_database():
    """Each table of the samples is in `shop`."""
    for topic in ("pg.shop.orders", "maria.shop.orders", "mariaschema.shop.items"):
        assert {event.namespace for event in decoded(topic)} == {"shop"}, topic
    (event,) = DebeziumFormat({}).decode(change({"id": 1}, db="d", schema="s"))
    assert event.namespace == "s"
    (event,) = DebeziumFormat({}).decode(change({"id": 1}))
    assert event.namespace is None
    with pytest.raises(DecodeError, match=r"source\.schema"):
        DebeziumFormat({}).decode(change({"id": 1}, schema=7))
    ids = ['"shop"."t"', '"d"."dbo"."t"', '"t"']
    body = {"ddl": "drop", "tableChanges": [{"id": one} for one in ids]}
    found = [
        (event.namespace, event.table)
        for event in DebeziumFormat({}).decode(Message("t/0", 0, None, _raw(body)))
    ]
    assert found == [("shop", "t"), ("dbo", "t"), (None, "t")]


def test_logical_messages_are_no_change():
    assert list(DebeziumFormat({}).decode(change(op="m"))) == []


def test_a_flattened_topic_is_recognised():
    with pytest.raises(DecodeError, match="ExtractNewRecordState"):
        list(DebeziumFormat({}).decode(Message("t/0", 0, None, b'{"id":1,"name":"a"}')))


@pytest.mark.parametrize(
    "row",
    [
        {"id": 1, "status": "new"},
        {"id": 2, "status": "BEGIN", "ts_ms": 5},
        {"status": "END", "id": "3", "event_count": 1},
        {"id": 1, "status": "x", "event_count": 1, "data_collections": None, "total": 2},
    ],
)
def test_a_flattened_row_is_no_marker_of_a_transaction(row):
    with pytest.raises(DecodeError, match="ExtractNewRecordState"):
        list(DebeziumFormat({}).decode(Message("t/0", 0, _raw({"id": 1}), _raw(row))))


def test_a_flattened_row_is_no_heartbeat():
    beat = _raw({"ts_ms": 1795188534697})
    with pytest.raises(DecodeError, match="ExtractNewRecordState"):
        list(DebeziumFormat({}).decode(Message("t/0", 0, beat, beat)))


@pytest.mark.parametrize("prefix", ["maria", "mariaschema", "pg"])
def test_events_name_what_sent_them(prefix):
    (beat,) = decoded(f"__debezium-heartbeat.{prefix}")
    topic = next(t for t in TOPICS if t.startswith(f"{prefix}.shop."))
    assert {beat.origin} == {event.origin for event in decoded(topic)} == {prefix}


# --- the schema envelope -------------------------------------------------------------------------


def enveloped(fields, row):
    """A create with the schema envelope; fields: name -> schema."""
    image = {"type": "struct", "fields": [{"field": n, **s} for n, s in fields.items()]}
    plain = json.loads(change(row).value)
    schema = {
        "type": "struct",
        "fields": [{**image, "field": part} for part in ("before", "after")],
    }
    return Message("t/0", 0, None, _raw({"schema": schema, "payload": plain}))


_MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}
_MICROS = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
_NANOS = {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}
_CUT = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}
_TIME = {"type": "int32", "name": "org.apache.kafka.connect.data.Time"}
_NUMBER = {
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "0"},
}
_LOCAL = ("timestamp_ntz", "timestamp without time zone")


@pytest.mark.parametrize(
    ("schema", "raw", "kind", "expected"),
    [
        (_MILLIS, 1709251199123, _LOCAL, dt.datetime(2024, 2, 29, 23, 59, 59, 123000)),
        (_MICROS, 1709251199123456, _LOCAL, dt.datetime(2024, 2, 29, 23, 59, 59, 123456)),
        (_MICROS, 1709251199123000, ("timestamp_ntz", "datetime(3)"),
            dt.datetime(2024, 2, 29, 23, 59, 59, 123000)),
        (_NANOS, 1709251199123456000, _LOCAL, dt.datetime(2024, 2, 29, 23, 59, 59, 123456)),
        (_CUT, 1709251199123, ("timestamp_ntz", "datetime(3)"),
            dt.datetime(2024, 2, 29, 23, 59, 59, 123000)),
        (_TIME, 45296780, ("string", "time(3)"), "12:34:56.78"),
        ({"type": "bytes"}, "deadbeef", ("binary", "bytea"), base64.b64decode("deadbeef")),
        (_NUMBER, "1234", ("decimal(10,0)", "decimal(10,0)"), Decimal(0xD76DF8 - (1 << 24))),
        ({"type": "string"}, "1234", ("decimal(10,0)", "decimal(10,0)"), Decimal(1234)),
        ({"type": "string"}, "1234", ("string", "text"), "1234"),
        ({"type": "array", "items": _MICROS}, [1709251199123456, None],
            ("array<timestamp_ntz>", "timestamp without time zone[]"),
            [dt.datetime(2024, 2, 29, 23, 59, 59, 123456), None]),
    ],
)  # fmt: skip
def test_the_envelope_tells_the_form_whatever_the_modes(schema, raw, kind, expected):
    arrow, source_type = kind
    (event,) = DebeziumFormat({}).decode(enveloped({"x": schema}, {"x": raw}))
    for mode in ("adaptive", "nanoseconds"):
        assert value(event.after["x"], arrow, source_type, time_precision_mode=mode) == expected


def test_milliseconds_of_a_finer_column_are_refused_by_the_envelope():
    (event,) = DebeziumFormat({}).decode(enveloped({"x": _CUT}, {"x": 1709251199123}))
    with pytest.raises(ValueError, match="connect sends 3"):
        value(event.after["x"], *_LOCAL)


def test_null_is_null_where_the_envelope_says_that_nothing_was_lost():
    clock = ("string", "time(3)")
    micros = {"type": "int64", "name": "io.debezium.time.MicroTime"}
    (event,) = DebeziumFormat({}).decode(enveloped({"x": micros}, {"x": None}))
    decoder = DebeziumFormat({})
    column = Column("x", parse_type(clock[0]), True, clock[1])
    assert decoder.convert([event.after["x"]], column).to_pylist() == [None]
    for lost in (_TIME, {"type": "string", "name": "io.debezium.time.IsoTime"}):
        (event,) = decoder.decode(enveloped({"x": lost}, {"x": None}))
        with pytest.raises(ValueError, match="more than a day"):
            decoder.convert([event.after["x"]], column)
        # PostgreSQL's are within a day.
        local = Column("x", parse_type("string"), True, "time(3) without time zone")
        assert decoder.convert([event.after["x"]], local).to_pylist() == [None]


def test_a_column_of_two_forms_at_once():
    decoder = DebeziumFormat({"format.time.precision.mode": "adaptive"})
    row = [
        next(iter(decoder.decode(enveloped({"x": schema}, {"x": raw})))).after["x"]
        for schema, raw in ((_MILLIS, 1000), (_MICROS, 1_000_000), (_NANOS, None))
    ]
    column = Column("x", parse_type("timestamp_ntz"), True, "datetime(6)")
    at = dt.datetime(1970, 1, 1, 0, 0, 1)
    assert decoder.convert([*row, 1_000_000], column).to_pylist() == [at, at, None, at]


def test_a_value_that_was_not_sent_stays_so_in_an_envelope():
    (event,) = DebeziumFormat({}).decode(enveloped({"x": {"type": "string"}}, {"x": _PLACEHOLDER}))
    assert event.after == {"x": UNCHANGED}


def test_the_key_is_read_by_its_own_envelope():
    schema = {"type": "struct", "fields": [{"field": "id", **_MICROS}]}
    message = change(op="d", before={"id": 5}, key={"schema": schema, "payload": {"id": 7}})
    (event,) = DebeziumFormat({}).decode(message)
    assert value(event.key["id"], *_LOCAL) == dt.datetime(1970, 1, 1, 0, 0, 0, 7)


def test_an_envelope_that_is_written_otherwise_says_the_same():
    """Those with spaces are read whole, each; of the others the schema is read once."""
    spaced = (", ", ": ")
    for topic in ("mariaschema.shop.items", "__debezium-heartbeat.mariaschema"):
        for message in TOPICS[topic]:
            key, text = (
                None if part is None else _raw(json.loads(part), spaced)
                for part in (message.key, message.value)
            )
            other = message._replace(key=key, value=text)
            assert list(DebeziumFormat({}).decode(other)) == list(
                DebeziumFormat({}).decode(message)
            )


def test_tables_of_one_topic_are_read_by_their_own_envelopes():
    """Also where names differ only, and where a later message has another schema."""
    decoder = DebeziumFormat({})
    for _ in range(2):
        for unit, form in (("MicroTimestamp", "us"), ("Timestamp", "ms"), ("NanoTimestamp", "ns")):
            field = {"type": "int64", "name": f"io.debezium.time.{unit}"}
            (event,) = decoder.decode(enveloped({"x": field}, {"x": 5}))
            assert event.after == {"x": (form, 5)}


@pytest.mark.parametrize(
    ("change_text", "message"),
    [
        (lambda text: text[:-1], "not JSON"),
        (lambda text: text + b"}", "not JSON"),
        (lambda text: text[:-1] + b",}", "not JSON"),
        (lambda text: text[:-1] + b',"payload":null}', "'payload' twice"),
        (lambda text: text[:-1] + b',"schema":null}', "'schema' twice"),
        (
            lambda text: text.replace(b'{"schema":', b'{"schema":null,"schema":', 1),
            "'schema' twice",
        ),
        (lambda text: text.replace(b'"x":5', b'"x":5,"x":6'), "'x' twice"),
        (lambda text: text.replace(b'"optional":true', b'"optional":1,"optional":true'), "twice"),
        (lambda text: text.replace(b'"payload":', b'"payload":7,"other":'), "'op'"),
    ],
)
def test_a_message_is_read_to_its_end_though_its_schema_is_known(change_text, message):
    decoder = DebeziumFormat({})
    good = enveloped({"x": {"type": "int64", "optional": True}}, {"x": 5})
    assert next(iter(decoder.decode(good))).after == {"x": 5}
    for _ in range(2):
        with pytest.raises(DecodeError, match=message):
            list(decoder.decode(good._replace(value=change_text(good.value))))
    assert next(iter(decoder.decode(good))).after == {"x": 5}


def test_numbers_behind_a_known_schema_keep_their_digits():
    decoder = DebeziumFormat({})
    for text, number in ((b"1.10000000000000000001", Decimal("1.10000000000000000001")), (b"5", 5)):
        message = enveloped({"x": {"type": "double"}}, {"x": 7})
        value = message.value.replace(b'"x":7', b'"x":' + text)
        (event,) = decoder.decode(message._replace(value=value))
        assert event.after == {"x": number}


# --- values that the source did not send ---------------------------------------------------------

_PLACEHOLDER = "__debezium_unavailable_value"


def test_unchanged_toast_of_a_real_update():
    events = [e for e in decoded("pg.shop.orders") if e.after and e.after["big"] is UNCHANGED]
    assert [(e.kind, e.offset) for e in events] == [("u", 36)]


@pytest.mark.parametrize(
    "raw",
    [
        _PLACEHOLDER,
        base64.b64encode(_PLACEHOLDER.encode()).decode(),
        _PLACEHOLDER.encode().hex(),
        [_PLACEHOLDER],
        list(_PLACEHOLDER.encode()),
        {_PLACEHOLDER: _PLACEHOLDER},
    ],
)
def test_unchanged_in_the_form_of_any_type(raw):
    body = change({"id": 1, "big": raw, "other": None})
    compact = Message(
        "t/0", 0, None, json.dumps(json.loads(body.value), separators=(",", ":")).encode()
    )
    (event,) = DebeziumFormat({}).decode(compact)
    assert event.after == {"id": 1, "big": UNCHANGED, "other": None}
    assert event.after["big"] is UNCHANGED


def test_another_placeholder_can_be_configured():
    decoder = DebeziumFormat({"format.unavailable.value.placeholder": "?none?"})
    (event,) = decoder.decode(change({"a": "?none?", "b": _PLACEHOLDER}))
    assert event.after == {"a": UNCHANGED, "b": _PLACEHOLDER}


def test_a_text_that_holds_the_placeholder_is_a_text():
    (event,) = DebeziumFormat({}).decode(change({"a": f"see {_PLACEHOLDER}"}))
    assert event.after == {"a": f"see {_PLACEHOLDER}"}


# --- values --------------------------------------------------------------------------------------

_UTC = dt.timezone.utc
_PG_ROW = {
    "id": ("bigint", "bigint", 101),
    "customer": ("string", "text", "c2"),
    "amount": ("decimal(12,2)", "numeric(12,2)", Decimal("1010.25")),
    "anynum": ("decimal(38,18)", "numeric", Decimal("1010.25")),
    "tags": ("array<string>", "text[]", ["a", "b"]),
    "doc": ("string", "jsonb", '{"x": [1, 2]}'),
    "u": ("string", "uuid", "123e4567-e89b-12d3-a456-426614174000"),
    "d": ("date", "date", dt.date(2024, 2, 29)),
    "t": ("string", "time without time zone", "12:34:56.789012"),
    "ts": (
        "timestamp_ntz",
        "timestamp without time zone",
        dt.datetime(2024, 2, 29, 23, 59, 59, 123456),
    ),
    "tz": (
        "timestamp",
        "timestamp with time zone",
        dt.datetime(2024, 2, 29, 21, 59, 59, 123456, _UTC),
    ),
    "b": ("binary", "bytea", b"\x00\xff"),
    "ok": ("boolean", "boolean", True),
    "big": ("string", "text", "s"),
}
_MARIA_ROW = {
    "id": ("decimal(20,0)", "bigint(20) unsigned", Decimal(101)),
    "customer": ("string", "varchar(50)", "c2"),
    "amount": ("decimal(12,2)", "decimal(12,2)", Decimal("1010.25")),
    "qty": ("int", "int(11)", 101),
    "paid": ("tinyint", "tinyint(1)", 1),
    "flags": ("binary", "bit(3)", b"\x05"),
    "kind": ("string", "enum('a','b')", "b"),
    "doc": ("string", "longtext", '{"x": [1,2]}'),
    "note": ("string", "text", "émoji 😀"),
    "raw": ("binary", "varbinary(16)", b"\x00\xff\x10"),
    "d": ("date", "date", dt.date(2024, 2, 29)),
    "t": ("string", "time(3)", "12:34:56.789"),
    "dt": ("timestamp_ntz", "datetime(6)", dt.datetime(2024, 2, 29, 23, 59, 59, 123456)),
    "ts": ("timestamp", "timestamp(6)", dt.datetime(2024, 3, 1, 0, 0, 0, 654321, _UTC)),
    "f": ("double", "double", 0.1),
    "y": ("int", "year(4)", 2024),
}


@pytest.mark.parametrize(
    ("topic", "row"), [("pg.shop.orders", _PG_ROW), ("maria.shop.orders", _MARIA_ROW)]
)
def test_every_column_of_a_real_insert(topic, row):
    event = next(e for e in decoded(topic) if e.kind == "c")
    found = {
        name: value(event.after[name], kind, source_type)
        for name, (kind, source_type, _) in row.items()
    }
    assert found == {name: expected for name, (_, _, expected) in row.items()}
    assert set(event.after) - set(row) <= {"iv"}


@pytest.mark.parametrize(
    ("raw", "kind", "source_type", "expected"),
    [
        (1709251199123, "timestamp_ntz", "datetime(3)", "2024-02-29 23:59:59.123000"),
        (1709251199000, "timestamp_ntz", "datetime", "2024-02-29 23:59:59"),
        (1709251199123456, "timestamp_ntz", "datetime(4)", "2024-02-29 23:59:59.123456"),
        (1709164800000, "timestamp_ntz", "timestamp(3) without time zone", "2024-02-29 00:00:00"),
        (1709251199123456000, "timestamp_ntz", "datetime2(7)", "2024-02-29 23:59:59.123456"),
        (-1, "timestamp_ntz", "datetime(6)", "1969-12-31 23:59:59.999999"),
        (-719162, "date", "date", "0001-01-01"),
        ("2024-02-29Z", "date", "date", "2024-02-29"),
        (0, "string", "time", "00:00:00"),
        (-3020399000000, "string", "time", "-838:59:59"),
        (45296789, "string", "time(3) without time zone", "12:34:56.789"),
        (45296500000, "string", "time(6) without time zone", "12:34:56.5"),
        ("12:34:56", "string", "time(0)", "12:34:56"),
        ("ABCDEF00-E89B", "string", "uuid", "abcdef00-e89b"),
        (True, "boolean", "bit(1)", "True"),
    ],
)  # fmt: skip
def test_declared_precision_decides(raw, kind, source_type, expected):
    assert str(value(raw, kind, source_type)) == expected


def test_time_precision_connect_is_taken_where_milliseconds_hold_all():
    ms = {"time_precision_mode": "connect"}
    at = dt.datetime(2024, 2, 29, 23, 59, 59, 123000)
    assert value(1709251199123, "timestamp_ntz", "datetime(3)", **ms) == at
    assert value(45296780, "string", "time(3)", **ms) == "12:34:56.78"
    for kind, source_type in (
        ("timestamp_ntz", "datetime(6)"),
        ("timestamp", "timestamp with time zone"),
        ("string", "time(6)"),
        ("string", "time without time zone"),
    ):
        with pytest.raises(ValueError, match=r"6 decimal places of a second.*connect sends 3"):
            value(1709251199123, kind, source_type, **ms)


@pytest.mark.parametrize(
    ("mode", "raw", "source_type"),
    [
        ("microseconds", 1709251199123000, "datetime(3)"),
        ("nanoseconds", 1709251199123000000, "datetime(3)"),
        ("adaptive_time_microseconds", 1709251199123, "timestamp(3) without time zone"),
    ],
)
def test_other_modes_of_time(mode, raw, source_type):
    options = {"time_precision_mode": mode}
    at = dt.datetime(2024, 2, 29, 23, 59, 59, 123000)
    assert value(raw, "timestamp_ntz", source_type, **options) == at
    clock = {"nanoseconds": 45296780000000}.get(mode, 45296780000)
    kind = ("string", "time(3) without time zone")
    assert value(clock, *kind, **options) == "12:34:56.78"


@pytest.mark.parametrize("mode", [None, "isostring"])
def test_the_unit_of_a_time_is_never_guessed(mode):
    # 1970-01-20 in microseconds, 2024-02-29 in milliseconds.
    options = {} if mode is None else {"format.time.precision.mode": mode}
    decoder = DebeziumFormat(options)
    for kind, source_type in (
        ("timestamp_ntz", "datetime(6)"),
        ("timestamp_ntz", "datetime"),
        ("string", "time(3)"),
    ):
        column = Column("x", parse_type(kind), True, source_type)
        with pytest.raises(ValueError, match=r"state .* format\.time\.precision\.mode"):
            decoder.convert([1709251199123], column)
        if kind != "string":
            assert decoder.convert([None], column).null_count == 1
            continue
        # NULL is what some modes make of times that are none of a day.
        with pytest.raises(ValueError, match="more than a day"):
            decoder.convert([None], column)
    # A day has one form only.
    date = Column("x", parse_type("date"), True, "date")
    assert decoder.convert([19782], date)[0].as_py() == dt.date(2024, 2, 29)


def test_times_of_isostring_are_as_databases_print_them():
    iso = {"time_precision_mode": "isostring"}
    for raw, expected in (
        ("12:34:56.780Z", "12:34:56.78"),
        ("12:34:56.789012Z", "12:34:56.789012"),
        ("12:34:50Z", "12:34:50"),
        ("12:34:56.000", "12:34:56"),
    ):
        assert value(raw, "string", "time(3) without time zone", **iso) == expected


def test_nanoseconds_are_not_cut():
    with pytest.raises(ValueError, match="nanoseconds"):
        value(1709251199123456789, "timestamp_ntz", "datetime2(7)")


@pytest.mark.parametrize("infinity", [9223372036825200000, -9223372036832400000])
def test_infinite_timestamps_raise(infinity):
    with pytest.raises(ValueError, match="years 1 to 9999"):
        value(infinity, "timestamp_ntz", "timestamp without time zone")


def test_bits_are_highest_first_as_databases_print_them():
    assert value("AQI=", "binary", "bit(16)") == b"\x02\x01"
    assert value("AQ==", "binary", "bit(16)") == b"\x00\x01"
    with pytest.raises(ValueError, match="bit varying"):
        value("AQ==", "binary", "bit varying(16)")


def test_other_encodings_of_bytes():
    assert value("00ff", "binary", "bytea", binary_handling_mode="hex") == b"\x00\xff"
    assert value("_-8=", "binary", "bytea", binary_handling_mode="base64-url-safe") == b"\xff\xef"
    with pytest.raises(ValueError, match="hexadecimal"):
        value("AP8=", "binary", "bytea", binary_handling_mode="hex")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("AP8=", b"\x00\xff"),
        ("-_8=", b"\xfb\xff"),
        ("+/8=", b"\xfb\xff"),
        ("00ff10", b"\x00\xff\x10"),
        ("", b""),
    ],
)
def test_bytes_of_one_possible_form_need_no_mode(raw, expected):
    assert value(raw, "binary", "bytea") == expected


def test_bytes_that_may_be_of_two_forms_are_never_guessed():
    with pytest.raises(ValueError, match=r"state .* format\.binary\.handling\.mode"):
        value("deadbeef", "binary", "bytea")
    assert value("deadbeef", "binary", "bytea", binary_handling_mode="hex").hex() == "deadbeef"
    stated = value("deadbeef", "binary", "bytea", binary_handling_mode="bytes")
    assert stated == base64.b64decode("deadbeef")


def test_year_0000_of_mariadb_is_no_year_1900():
    # The connector adds 1900 to what the log has, and that is 0.
    assert value(1900, "int", "year(4)") == 0
    assert value(2155, "int", "year(4)") == 2155
    assert value(1900, "int", "int(11)") == 1900


def _base64_of(number, size):
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


@pytest.mark.parametrize("number", [0, 1, -1, 127, -129, 10**12 - 1, 1 - 10**12])
def test_precise_decimals(number):
    size = (number.bit_length() + 8) // 8
    expected = Decimal(number).scaleb(-2)
    assert value(_base64_of(number, size), "decimal(12,2)", "decimal(12,2)") == expected


def test_a_decimal_of_38_digits_in_every_form():
    number = 10**38 - 1
    expected = Decimal(f"{number // 10**10}.{number % 10**10:010d}")
    kind = ("decimal(38,10)", "numeric(38,10)")
    for raw in (_base64_of(number, 16), str(expected)):
        assert value(raw, *kind) == expected
    with pytest.raises(ValueError, match="does not fit"):
        value(_base64_of(number + 1, 16), *kind)


def test_numeric_without_precision():
    kind = ("decimal(38,18)", "numeric")
    assert value({"scale": 0, "value": "BQ=="}, *kind) == 5
    assert value({"scale": 3, "value": "BQ=="}, *kind) == Decimal("0.005")
    assert value("1234", *kind) == 1234
    with pytest.raises(ValueError, match="18 decimal places"):
        value({"scale": 19, "value": "BQ=="}, *kind)
    with pytest.raises(ValueError, match="not a decimal"):
        value("NaN", *kind)


def test_digits_that_are_also_base64_are_never_guessed():
    assert value("123", "decimal(10,0)", "decimal(10,0)") == 123
    with pytest.raises(ValueError, match=r"format\.decimal\.handling\.mode"):
        value("1234", "decimal(10,0)", "decimal(10,0)")
    text = value("1234", "decimal(10,0)", "decimal(10,0)", decimal_handling_mode="string")
    raw = value("1234", "decimal(10,0)", "decimal(10,0)", decimal_handling_mode="precise")
    assert (text, raw) == (1234, int.from_bytes(base64.b64decode("1234"), "big", signed=True))


def test_an_unsigned_number_that_overflowed_raises():
    assert value(2**63, "decimal(20,0)", "bigint(20) unsigned") == 2**63
    with pytest.raises(ValueError, match=r"bigint\.unsigned\.handling\.mode"):
        value(-1, "decimal(20,0)", "bigint(20) unsigned")


def test_arrays_have_the_encodings_of_their_elements():
    assert value([19782, None], "array<date>", "date[]") == [dt.date(2024, 2, 29), None]
    assert value(["BAE="], "array<decimal(12,2)>", "numeric(12,2)[]") == [Decimal("10.25")]


def test_changes_without_a_key_may_be_in_the_first_partition_only():
    source = {"connector": "postgresql", "table": "t", "ts_ms": 1, "sequence": '["1","1"]'}
    body = _raw({"op": "c", "before": None, "after": {"id": 1}, "source": source})
    decoder = DebeziumFormat({})
    assert len(list(decoder.decode(Message("pg.t/0", 5, None, body)))) == 1
    assert len(list(decoder.decode(Message("pg.t/12", 5, b'{"id":1}', body)))) == 1
    with pytest.raises(DecodeError, match="without a key in a topic of several") as caught:
        list(decoder.decode(Message("pg.t/12", 5, None, body)))
    assert "message.key.columns" in str(caught.value.hint)
    assert caught.value.table == (None, "t")


def test_a_truncate_without_a_key_may_be_in_any_partition():
    source = {"connector": "postgresql", "table": "t", "schema": "s", "ts_ms": 1}
    body = {"op": "t", "before": None, "after": None, "source": {**source, "sequence": '["1","1"]'}}
    (event,) = DebeziumFormat({}).decode(Message("pg.t/3", 5, None, _raw(body)))
    assert (event.kind, event.namespace, event.table) == ("truncate", "s", "t")


@pytest.mark.parametrize(
    ("source_type", "raw", "expected"),
    [
        ("interval as string", "P1Y-2M3DT-4H-5M-6.70S", "P1Y-2M3DT-4H-5M-6.7S"),
        ("interval as string", "P0Y0M0DT0H0M0.0S", "PT0S"),
        ("interval as string", "P0Y0M0DT0H0M-0.5S", "PT-0.5S"),
        ("interval as string", "P0Y1M0DT0H0M0S", "P1M"),
        ("interval as string", 3_600_000_000, ValueError),
        ("interval as string", "P1M", ValueError),
        ("time with time zone as string", "22:30:00.120Z", "22:30:00.12Z"),
        ("time with time zone as string", "24:00:00Z", ValueError),
        ("timestamp with time zone as string", "2024-02-29T00:00:00Z", ValueError),
        ("int4range as string", "[1,6)", "[1,6)"),
        ("tstzrange as string", '["2024-02-29 00:00:00+00",)', ValueError),
        ("inet[] as string", ["10.0.0.1"], ValueError),
        ("point as string", {"x": 0.1}, ValueError),
    ],
)
def test_texts_that_a_setting_says(source_type, raw, expected):
    if expected is ValueError:
        with pytest.raises(ValueError, match=r"."):
            value(raw, "string", source_type)
    else:
        assert value(raw, "string", source_type) == expected


def test_decimals_that_a_setting_says():
    sent = {
        "scale": 2,
        "value": base64.b64encode((-101_025).to_bytes(3, "big", signed=True)).decode(),
    }
    said = "numeric as decimal(38,4)"
    assert value(sent, "decimal(38,4)", said) == Decimal("-1010.25")
    assert value("12345678", "decimal(38,4)", said, decimal_handling_mode="string") == 12_345_678
    with pytest.raises(ValueError, match="decimal places"):
        value(sent, "decimal(38,1)", "numeric as decimal(38,1)")
    money = base64.b64encode((-5).to_bytes(1, "big", signed=True)).decode()
    assert value(money, "decimal(19,2)", "money as decimal(19,2)") == Decimal("-0.05")
