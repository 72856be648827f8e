"""Debezium in Avro with a schema registry: values, schemas that come and change, what is odd."""

from __future__ import annotations

import base64
import datetime as dt
import json
import pickle
import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from mview_connectors import registry
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.formats.debezium import DebeziumFormat
from mview_connectors.formats.debezium import avro as debezium_avro

from mview.changelog import UNCHANGED
from mview.config import ChangesSettings
from mview.connector import Message, events_of
from mview.errors import AwayError, ConfigError, DecodeError, MviewError
from mview.schema import Column, parse_type
from tests.connectors.avro import Registry, as_avro, avro_options, avro_schema, packed
from tests.connectors.test_formats_modes import MESSAGES, ROWS

PLACE = "t/0, offset 7"


@pytest.fixture
def server() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.stop()  # a second time does nothing


def message(value: bytes | None, key: bytes | None = None) -> Message:
    return Message("t/0", 7, key, value)


def change(schema: Any, value: Any, **source: Any) -> dict[str, Any]:
    """A create as JsonConverter writes it, of a row of one schema."""
    row = {"type": "struct", "name": "p.s.t.Value", "fields": schema, "optional": True}
    place = {"connector": "postgresql", "table": "t", "sequence": '["5","6"]', **source}
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {
            "type": "struct",
            "name": "source",
            "fields": [{"field": name, "type": "string"} for name in place],
            "field": "source",
        },
        {"field": "op", "type": "string"},
    ]
    envelope = {"type": "struct", "name": "p.s.t.Envelope", "fields": fields}
    payload = {"before": None, "after": value, "source": place, "op": "c"}
    return {"schema": envelope, "payload": payload}


ROW = [{"field": "id", "type": "int64"}]


def told(decoder: DebeziumFormat, value: bytes | None, key: bytes | None = None) -> MviewError:
    with pytest.raises(MviewError) as caught:
        events_of(decoder, message(value, key))
    return caught.value


def whole(one: Any) -> Any:
    """A message with the schemas of all its fields, of which the file has those of the rows."""
    schema, payload = one["value"]["schema"], one["value"]["payload"]
    source = [
        {"field": name, "type": "string" if type(value) is str else "int64", "optional": True}
        for name, value in payload["source"].items()
    ]
    transaction = [{"field": "id", "type": "string"}]
    more = [
        {"field": "transaction", "type": "struct", "name": "block", "fields": transaction},
        {"field": "source", "type": "struct", "name": "Source", "fields": source},
        {"field": "op", "type": "string"},
    ]
    rows = [field for field in schema["fields"] if field["field"] in ("before", "after")]
    schema = {"type": "struct", "name": "Envelope", "fields": [*rows, *more]}
    return {**one, "value": {"schema": schema, "payload": payload}}


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", MESSAGES)
def test_real_messages_are_read_as_by_their_envelope(case: str, server: Registry) -> None:
    """What real connectors wrote by each mode, written again as Avro, without any option."""
    one = whole(MESSAGES[case])
    key, value = as_avro(server, one["key"]), as_avro(server, one["value"])
    plain = json.dumps(one["key"]).encode(), json.dumps(one["value"]).encode()
    decoder, by_json = DebeziumFormat(avro_options(server)), DebeziumFormat({})
    (event,) = decoder.decode(message(value, key))
    (wanted,) = by_json.decode(message(plain[1], plain[0]))
    assert event._replace(before=None, after=None) == wanted._replace(before=None, after=None)
    assert event.after is not None
    assert wanted.after is not None
    for name, (arrow, source_type, sql) in ROWS[case.split("_")[0]].items():
        column = Column(name, parse_type(arrow), True, source_type)
        try:
            expected = by_json.convert([wanted.after[name]], column)
        except ValueError:
            expected = None  # JSON cannot tell it
        try:
            assert decoder.convert([event.after[name]], column)[0].as_py() == sql
        except ValueError:
            assert expected is None


def test_bytes_are_bytes_whatever_their_text_would_be(server: Registry) -> None:
    schema = [*ROW, {"field": "b", "type": "bytes"}]
    value = change(schema, {"id": 1, "b": base64.b64encode(b"00ff00ff").decode()})
    decoder = DebeziumFormat(avro_options(server))
    (event,) = decoder.decode(message(as_avro(server, value)))
    column = Column("b", parse_type("binary"), True, "bytea")
    assert decoder.convert([event.after["b"]], column).to_pylist() == [b"00ff00ff"]


def test_schemas_without_connects_own_words(server: Registry) -> None:
    """A converter may leave them out: Avro's logical types say the same of some types."""
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {
                "name": "n",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "d", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
            {"name": "u", "type": "long"},
        ],
    }
    schema = {
        "type": "record",
        "name": "Envelope",
        "namespace": "a.b",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"]},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "fields": [{"name": "table", "type": "string"}],
                },
            },
            {"name": "op", "type": {"type": "enum", "name": "Op", "symbols": ["c", "d"]}},
        ],
    }
    after = {"n": b"\x04\xd2", "d": 3, "at": 1500, "u": 1_500_000}
    value = {"before": None, "after": after, "source": {"table": "t"}, "op": "c"}
    decoder = DebeziumFormat(avro_options(server))
    (event,) = decoder.decode(message(packed(server, schema, value)))

    def read(name: str, arrow: str, source_type: str) -> Any:
        column = Column(name, parse_type(arrow), True, source_type)
        return decoder.convert([event.after[name]], column)[0].as_py()

    assert read("n", "decimal(9,2)", "numeric(9,2)") == Decimal("12.34")
    assert read("d", "date", "date") == dt.date(1970, 1, 4)
    moment = dt.datetime(1970, 1, 1, 0, 0, 1, 500000)
    assert read("at", "timestamp_ntz", "timestamp(3) without time zone") == moment
    with pytest.raises(ValueError, match=r"connect sends 3"):
        read("at", "timestamp_ntz", "timestamp(6) without time zone")
    with pytest.raises(ValueError, match=r"state the connector's time\.precision\.mode"):
        read("u", "timestamp_ntz", "timestamp(6) without time zone")


@pytest.mark.parametrize("placeholder", [None, "größer: ein Wert, der fehlt"])
def test_what_was_not_sent_is_unchanged(server: Registry, placeholder: str | None) -> None:
    text = placeholder or "__debezium_unavailable_value"
    numbers = {"type": "array", "items": {"type": "int32"}, "optional": True}
    schema = [
        *ROW,
        {"field": "s", "type": "string"},
        {"field": "b", "type": "bytes"},
        {"field": "n", **numbers},
    ]
    raw = base64.b64encode(text.encode()).decode()
    more = {} if placeholder is None else {"format.unavailable.value.placeholder": placeholder}
    decoder = DebeziumFormat(avro_options(server, **more))
    for cells in ({"s": text}, {"b": raw}, {"n": list(text.encode())}):
        row = {"id": 1, "s": "", "b": "", "n": None, **cells}
        (event,) = decoder.decode(message(as_avro(server, change(schema, row))))
        (name,) = cells
        assert [n for n, v in event.after.items() if v is UNCHANGED] == [name]


# --- keys and other messages ---------------------------------------------------------------------


def test_keys_are_avro_or_json_each_as_its_converter(server: Registry) -> None:
    value = as_avro(server, change(ROW, {"id": 5}))
    schema = {"type": "struct", "name": "p.s.t.Key", "fields": ROW}
    key = {"schema": schema, "payload": {"id": 5}}
    decoder = DebeziumFormat(avro_options(server))
    for written in (as_avro(server, key), json.dumps(key).encode(), b'{"id":5}'):
        (event,) = decoder.decode(message(value, written))
        assert event.key == {"id": 5}
    for other in (b"5", b"Struct{id=5}", packed(server, "string", "5"), None):
        (event,) = decoder.decode(message(value, other))
        assert event.key is None


def test_heartbeats_markers_and_tombstones(server: Registry) -> None:
    def struct(name: str, **fields: str) -> Any:
        listed = [{"field": field, "type": kind} for field, kind in fields.items()]
        return {"type": "struct", "name": name, "fields": listed}

    beat = {"schema": struct("Heartbeat", ts_ms="int64"), "payload": {"ts_ms": 1234}}
    sender = {"schema": struct("K", serverName="string"), "payload": {"serverName": "pg"}}
    decoder = DebeziumFormat(avro_options(server))
    (event,) = decoder.decode(message(as_avro(server, beat), as_avro(server, sender)))
    assert (event.kind, event.source_ms, event.origin) == ("heartbeat", 1234, "pg")
    fields = {"status": "string", "id": "string", "event_count": "int64"}
    lists = {"field": "data_collections", "type": "array", "items": {"type": "string"}}
    schema = struct("Tx", **fields)
    schema["fields"].append(lists)
    ended = {"status": "END", "id": "7", "event_count": 1, "data_collections": []}
    marker = {"schema": schema, "payload": ended}
    assert list(decoder.decode(message(as_avro(server, marker)))) == []
    assert list(decoder.decode(message(None))) == []


# --- schemas -------------------------------------------------------------------------------------


def test_a_schema_is_asked_for_once_and_one_that_changed_midway_is_another(
    server: Registry,
) -> None:
    wider = [*ROW, {"field": "more", "type": "string", "optional": True}]
    old, new = change(ROW, {"id": 1}), change(wider, {"id": 2, "more": "x"})
    values = [as_avro(server, one) for one in (old, new, old, new)]
    rows = []
    for value in values:
        decoder = pickle.loads(pickle.dumps(DebeziumFormat(avro_options(server))))
        (event,) = decoder.decode(message(value))
        rows.append(event.after)
    assert rows == [{"id": 1}, {"id": 2, "more": "x"}] * 2
    assert [path for path, _ in server.asked] == ["/schemas/ids/1", "/schemas/ids/2"]


def test_a_schema_may_refer_to_others(server: Registry) -> None:
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "common",
        "fields": [{"name": "table", "type": "string"}, {"name": "name", "type": "common.Name"}],
    }
    name = {"type": "enum", "name": "Name", "namespace": "common", "symbols": ["shop"]}
    inner = server.refer("name/1", name)
    reference = server.refer("source", source, references=[inner])
    schema = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "op", "type": "string"},
            {"name": "source", "type": "common.Source"},
            {"name": "after", "type": {"type": "map", "values": "long"}},
        ],
    }
    value = {"op": "c", "source": {"table": "t", "name": "shop"}, "after": {"id": 1}}
    whole = {**schema, "fields": [dict(field) for field in schema["fields"]]}
    whole["fields"][1]["type"] = {
        **source,
        "fields": [source["fields"][0], {**source["fields"][1]}],
    }
    whole["fields"][1]["type"]["fields"][1]["type"] = name
    written = packed(server, whole, value)
    number = server.register(schema, references=[reference, inner])
    decoder = DebeziumFormat(avro_options(server))
    (event,) = decoder.decode(message(b"\0" + number.to_bytes(4, "big") + written[5:]))
    assert (event.table, event.after, event.origin) == ("t", {"id": 1}, "shop")


def test_an_unknown_id_halts_with_its_place_also_after_a_moment(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SETTLE_S", 0.3)
    error = told(DebeziumFormat(avro_options(server)), b"\0\0\0\0\x63\0\0")
    assert isinstance(error, DecodeError)
    assert PLACE in str(error.where)
    assert "no schema 99 in the registry" in error.what
    assert "Schema not found" in error.what
    hint = str(error.hint)
    assert hint.index("and run again: reading goes on") < hint.index("mview drop"), "no need to"
    assert server.asked.count(("/schemas/ids/99", None)) > 1


def test_an_id_that_comes_a_moment_later_is_taken(server: Registry) -> None:
    value = as_avro(server, change(ROW, {"id": 1}))
    asked = iter([(404, b'{"error_code":40403,"message":"not yet"}')])
    server.answer = lambda path: next(asked, None)
    assert events_of(DebeziumFormat(avro_options(server)), message(value))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "is not Avro with the id"),
        (b"\0\0\0", "is not Avro with the id"),
        (b"\1\0\0\0\1abc", "is not Avro with the id"),
        (b'{"op":"c"}', "if the connector has JsonConverter, remove format.encoding"),
        (b"\0\0\0\0\1", "is not of the schema that it names"),
        (b"\0\0\0\0\1\xff\xff\xff", "is not of the schema that it names"),
        (b"\0\0\0\0\2\2\2", "1 bytes after its record"),
        (b"\0\0\0\0\2\2", "is no record of Avro"),
        (b"\0\0\0\0\3\2", "is none of Avro"),
        (b"\0\0\0\0\4\2", "cannot be read: UnknownType"),
        (b"\0\0\0\0\5\2", "cannot be read: JSONDecodeError"),
    ],
)
def test_what_is_no_message_halts_with_its_place(
    server: Registry, value: bytes, words: str
) -> None:
    server.register(avro_schema(change(ROW, {"id": 1})["schema"]), 1)
    server.register("long", 2)
    server.register("message X {}", 3, schemaType="PROTOBUF")
    server.register({"type": "no such"}, 4)
    server.answer = lambda path: (200, b'{"schema":"{"}') if path.endswith("/5") else None
    error = told(DebeziumFormat(avro_options(server)), value)
    assert isinstance(error, DecodeError)
    assert error.where == PLACE
    assert words in f"{error.what} {error.hint}"
    assert error.safe


def test_avro_that_is_taken_for_json_says_the_setting() -> None:
    error = told(DebeziumFormat({}), b"\0\0\0\0\1\2\2")
    assert "set format.encoding: avro and format.registry.url" in str(error.hint)


# --- the registry --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_registry_that_cannot_answer_is_waited_for(server: Registry, status: int) -> None:
    value = as_avro(server, change(ROW, {"id": 1}))
    decoder = DebeziumFormat(avro_options(server))
    server.answer = lambda path: (status, b"<html>later</html>")
    error = told(decoder, value)
    assert isinstance(error, AwayError)
    assert error.where == PLACE
    assert str(status) in str(error.got)
    server.answer = lambda path: None
    assert events_of(decoder, message(value))


def test_nobody_answers_and_one_of_two_does(server: Registry) -> None:
    value = as_avro(server, change(ROW, {"id": 1}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    options = {"format.encoding": "avro", "format.registry.url": dead}
    error = told(DebeziumFormat(options), value)
    assert isinstance(error, AwayError)
    assert "refused" in str(error.got)
    both = options | {"format.registry.url": f"{dead}, {server.url}/"}
    assert events_of(DebeziumFormat(both), message(value))


def test_an_answer_that_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PATIENCE", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"format.encoding": "avro", "format.registry.url": url}
        assert isinstance(told(DebeziumFormat(options), b"\0\0\0\0\1a"), AwayError)


def test_an_answer_that_is_cut_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends within the body."""
    with socket.socket() as cut:
        cut.bind(("127.0.0.1", 0))
        cut.listen()

        def answer() -> None:
            connection, _ = cut.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"schema":')

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{cut.getsockname()[1]}"
        options = {"format.encoding": "avro", "format.registry.url": url}
        assert isinstance(told(DebeziumFormat(options), b"\0\0\0\0\1a"), AwayError)


@pytest.mark.parametrize("status", [401, 403])
def test_a_registry_that_does_not_let_us_in_is_not_waited_for(
    server: Registry, status: int
) -> None:
    server.answer = lambda path: (status, b'{"error_code":%d,"message":"no"}' % status)
    error = told(DebeziumFormat(avro_options(server)), b"\0\0\0\0\1a")
    assert isinstance(error, ConfigError)
    assert "does not let us in" in error.what
    assert error.where == PLACE


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html></html>"),
        (200, b"{}"),
        (200, b'{"schema":"{}","references":[1]}'),
        (200, b"[]"),
        (404, b"<html>not found</html>"),
        (404, b"[]"),
    ],
)
def test_what_is_no_registry_is_told(server: Registry, answer: tuple[int, bytes]) -> None:
    server.answer = lambda path: answer
    error = told(DebeziumFormat(avro_options(server)), b"\0\0\0\0\1a")
    assert isinstance(error, ConfigError)
    assert "is no schema registry" in error.what


def test_the_login_is_sent_and_never_shown(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_SECRET", "s3cret-word")
    login = {
        "format.registry.username": "mview",
        "format.registry.password": "${env:REGISTRY_SECRET}",
    }
    value = as_avro(server, change(ROW, {"id": 1}))
    decoder = DebeziumFormat(avro_options(server, **login))
    assert events_of(decoder, message(value))
    sent = base64.b64encode(b"mview:s3cret-word").decode()
    assert server.asked == [("/schemas/ids/1", f"Basic {sent}")]
    server.answer = lambda path: (403, b"no")
    assert "s3cret" not in str(told(decoder, b"\0\0\0\0\x09a"))
    monkeypatch.delenv("REGISTRY_SECRET")
    assert "REGISTRY_SECRET is not set" in told(decoder, b"\0\0\0\0\x09a").what


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoding": "avro"}, "need their schemas"),
        ({"encoding": "protobuf"}, "unknown value"),
        ({"registry.url": "http://r"}, "is for messages in Avro"),
        ({"encoding": "json", "registry.username": "x"}, "is for messages in Avro"),
        ({"encoding": "avro", "registry.url": "r:8081"}, "must be http"),
        ({"encoding": "avro", "registry.url": "http://u:secret@r"}, "must have no user"),
        ({"encoding": "avro", "registry.uri": "http://r"}, "did you mean 'format.registry.url'"),
    ],
)
def test_settings_that_have_no_sense(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DebeziumFormat({f"format.{name}": text for name, text in options.items()})
    assert words in f"{caught.value.what} {caught.value.hint}"
    assert "secret" not in str(caught.value)


def test_the_address_may_be_a_reference(server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    value = as_avro(server, change(ROW, {"id": 1}))
    options = avro_options(server) | {"format.registry.url": "${env:REGISTRY}"}
    decoder = DebeziumFormat(options)
    for wrong, words in ((None, "is not set"), ("http://u:secret@r", "must have no user")):
        if wrong is not None:
            monkeypatch.setenv("REGISTRY", wrong)
        error = told(decoder, value)
        assert isinstance(error, ConfigError)
        assert words in error.what
        assert "secret" not in str(error)
    monkeypatch.setenv("REGISTRY", server.url)
    assert events_of(decoder, message(value))


def test_an_authority_that_cannot_be_read(server: Registry) -> None:
    options = avro_options(server, **{"format.registry.ca": "/no/such.pem"})
    error = told(DebeziumFormat(options), b"\0\0\0\0\1a")
    assert isinstance(error, ConfigError)
    assert "/no/such.pem" in str(error.got)


def section(**options: str) -> ChangesSettings:
    return ChangesSettings(
        connection="shop",
        source="kafka",
        format="debezium",
        bootstrap_servers="127.0.0.1:9",
        topic="pg.public.{table}",
        options={f"format.{name}": text for name, text in options.items()},
    )


def test_a_password_in_plain_text_is_refused() -> None:
    with pytest.raises(ValueError, match="not the password itself"):
        section(**{"registry.password": "plain"})


def test_the_registry_is_asked_before_a_run(server: Registry) -> None:
    settings = section(**{"encoding": "avro", "registry.url": server.url})
    log = KafkaChangelog(settings, DebeziumFormat({}), [])
    (ask,) = [look.ask for look in log.looks([], None) if "registry" in look.about]
    assert ask() == f"{server.url} answers"
    for answer in ((200, b'["PROTOBUF"]'), (404, b'{"error_code":404}'), (401, b"{}")):
        server.answer = lambda path, answer=answer: answer
        with pytest.raises(ConfigError) as caught:
            ask()
        assert caught.value.where == "options.format.registry.url"
    server.stop()
    with pytest.raises(AwayError):
        ask()
    log.close()


def test_a_registry_beyond_this_machine_without_tls_is_warned_of() -> None:
    decoder = DebeziumFormat({})

    def said(url: str) -> str | None:
        settings = section(**{"encoding": "avro", "registry.url": url})
        return KafkaChangelog(settings, decoder, ["t"]).caution()

    assert said("http://127.0.0.1:8081") is None
    assert said("https://registry.example.org") is None
    warned = said("https://a.example.org,http://b.example.org")
    assert warned is not None
    assert "changes.shop.options.format.registry.url" in warned


def test_without_the_library_the_command_is_told(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(ConfigError) as caught:
        debezium_avro.check_avro()
    assert caught.value.hint.startswith("pip install 'mview-engine[avro]' --find-links")
