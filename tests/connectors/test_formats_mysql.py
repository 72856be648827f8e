"""Canal, TiCDC and Maxwell: messages as their projects document them, and what they write wrong."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mview.changelog import ChangeEvent
from mview.config import Config, ConnectionSettings
from mview.connector import Message, TableHalt, load
from mview.errors import ConfigError, DecodeError
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import ScopedFormat, TableSpec, open_format
from mview.relation import RelationId
from mview.schema import Column, TableSchema, parse_type
from tests.relations import rel

_UTC = dt.timezone.utc
FLAT = ("canal", "ticdc")


def decoded(name: str, body: Any, **options: str) -> list[ChangeEvent]:
    value = body if type(body) is bytes else json.dumps(body).encode()
    return list(made(name, **options).decode(Message("topic/0", 12, None, value)))


def made(name: str, **options: str) -> Any:
    return load("formats", name)({f"format.{k.replace('_', '.')}": v for k, v in options.items()})


def converted(name: str, raw: Any, kind: str, source_type: str, **options: str) -> Any:
    column = Column("x", parse_type(kind), True, source_type)
    return made(name, **options).convert([None, raw], column).to_pylist()[1]


# --- as documented -------------------------------------------------------------------------------

TICDC = {
    **{"id": 0, "database": "test", "table": "tp_int", "pkNames": ["id"], "isDdl": False},
    **{"type": "INSERT", "es": 1639633141221, "ts": 1639633142960, "sql": ""},
    **{"sqlType": {"c_int": 4, "id": 4}, "mysqlType": {"c_int": "int", "id": "int"}},
    **{"data": [{"c_int": "2147483647", "id": "2"}], "old": None},
    "_tidb": {"commitTs": 429918007904436226},
}
CANAL = {
    "data": [{"id": "111", "name": "scooter", "weight": "5.18"}],
    **{"database": "inventory", "es": 1589373560000, "id": 9, "isDdl": False},
    "mysqlType": {"id": "INTEGER", "name": "VARCHAR(255)", "weight": "FLOAT"},
    **{"old": [{"weight": "5.15"}], "pkNames": ["id"], "sql": ""},
    "sqlType": {"id": 4, "name": 12, "weight": 7},
    **{"table": "products", "ts": 1589373560798, "type": "UPDATE"},
}
MAXWELL = {
    **{"database": "test", "table": "e", "type": "update", "ts": 1477053234, "xid": 23396},
    **{"commit": True, "position": "master.000006:800911", "server_id": 23042, "thread_id": 108},
    "data": {"id": 1, "m": 5.444, "c": "2016-10-21 05:33:54.631000", "comment": "light"},
    "old": {"m": 4.2341, "c": "2016-10-21 05:33:37.523000"},
}


def test_a_change_of_ticdc() -> None:
    (event,) = decoded("ticdc", TICDC)
    assert event.after == {"c_int": "2147483647", "id": "2"}
    assert (event.kind, event.table, event.namespace) == ("c", "tp_int", "test")
    # The upper bits of a TSO are the milliseconds that the document prints beside it.
    assert (event.position, event.source_ms) == ((429918007904436226,), 1640007049196)


def test_a_watermark_vouches_for_whole_milliseconds_only() -> None:
    body = {**TICDC, "type": "TIDB_WATERMARK", "database": "", "table": "", "data": None}
    for low, at in ((0, 999), (1, 999), (2**18 - 1, 999), (2**18, 1000)):
        watermark = {**body, "_tidb": {"watermarkTs": (1000 << 18) + low}}
        (event,) = decoded("ticdc", watermark)
        assert (event.kind, event.source_ms) == ("heartbeat", at)


def test_ticdc_without_the_extension_is_stated() -> None:
    plain = {name: value for name, value in TICDC.items() if name != "_tidb"}
    with pytest.raises(DecodeError, match="no '_tidb'") as caught:
        decoded("ticdc", plain)
    assert "enable-tidb-extension=true" in str(caught.value.hint)
    (event,) = decoded("ticdc", plain, enable_tidb_extension="false")
    assert (event.position, event.source_ms) == ((), 1639633141221)
    with pytest.raises(DecodeError, match="has '_tidb'"):
        decoded("ticdc", TICDC, enable_tidb_extension="false")
    assert made("ticdc").in_band_heartbeats
    assert not made("ticdc", enable_tidb_extension="false").in_band_heartbeats


@pytest.mark.parametrize("extension", ["true", "false"])
@pytest.mark.parametrize(
    "body",
    [
        {"version": 1, "database": "d", "table": "t", "type": "INSERT", "commitTs": 1, "data": {}},
        {"version": 1, "type": "WATERMARK", "commitTs": 429918007904436226},
        {"payload": {"op": "m", "source": {"connector": "TiCDC"}}, "schema": {}},
    ],
)
def test_other_protocols_of_ticdc_are_told(body: Any, extension: str) -> None:
    with pytest.raises(DecodeError, match="is not of canal-json") as caught:
        decoded("ticdc", body, enable_tidb_extension=extension)
    assert "protocol=canal-json; no other one" in str(caught.value.hint)


@pytest.mark.parametrize("op", ["c", "d", "m", None])
def test_debezium_messages_of_ticdc_are_refused_by_either_way(op: str | None) -> None:
    row = {"id": 1}
    body = {"op": op, "before": row, "after": row, "ddl": "DROP TABLE t"}
    body["source"] = {"connector": "TiCDC", "db": "d", "table": "t", "ts_ms": 0}
    message = Message("t/0", 1, b'{"id": 1}', json.dumps(body).encode())
    decoder = made("debezium")
    for decode in (decoder.decode, lambda one: decoder.decode_block([one]) or decoder.decode(one)):
        with pytest.raises(DecodeError, match="of TiCDC, with protocol=debezium") as caught:
            list(decode(message))
        assert caught.value.where == "t/0, offset 1"


@pytest.mark.parametrize("more", [{"onlyHandleKey": True}, {"claimCheckLocation": "s3://b/1"}])
def test_ticdc_without_the_row_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match="without its row") as caught:
        decoded("ticdc", {**TICDC, "_tidb": {**TICDC["_tidb"], **more}})
    assert "max-message-bytes" in str(caught.value.hint)


@pytest.mark.parametrize("tso", [None, 0, -1, "429918007904436226", 1.5, True, 2**63])
def test_a_tso_is_a_number(tso: Any) -> None:
    with pytest.raises(DecodeError, match="is no TSO"):
        decoded("ticdc", {**TICDC, "_tidb": {"commitTs": tso}})


def test_a_change_of_canal() -> None:
    (event,) = decoded("canal", CANAL)
    assert event.before == {"id": "111", "name": "scooter", "weight": "5.15"}
    assert event.after == {"id": "111", "name": "scooter", "weight": "5.18"}
    assert (event.kind, event.position, event.source_ms) == ("u", (), 1589373560000)


def test_rows_of_one_statement_come_in_their_order() -> None:
    body = {**CANAL, "data": [{"id": "3"}, {"id": "2"}], "old": [{"id": "2"}, {"id": "1"}]}
    events = decoded("canal", body)
    assert [(event.before, event.after) for event in events] == [
        ({"id": "2"}, {"id": "3"}),
        ({"id": "1"}, {"id": "2"}),
    ]
    assert [event.offset for event in events] == [12, 12]


@pytest.mark.parametrize("name", FLAT)
def test_an_update_without_an_old_row_has_no_row_before(name: str) -> None:
    (event,) = decoded(name, {**TICDC, "type": "UPDATE"} if name == "ticdc" else
                       {**CANAL, "old": None})  # fmt: skip
    assert (event.kind, event.before) == ("u", None)


@pytest.mark.parametrize(
    "change",
    [
        {"data": None},
        {"data": []},
        {"data": {"id": "1"}},
        {"data": [None]},
        {"data": ["1"]},
        {"old": [{}, {}]},
        {"old": {}},
        {"isDdl": "false"},
        {"isDdl": None},
        {"type": "insert"},
        {"type": "XACOMMIT"},
        {"database": None},
        {"database": 1},
        {"table": ""},
        {"es": "now"},
        {"es": 1589373560000000},
    ],
)
def test_other_flat_messages_halt(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError) as caught:
        decoded("canal", {**CANAL, **change})
    assert caught.value.where == "topic/0, offset 12"


@pytest.mark.parametrize("name", FLAT)
def test_statements(name: str) -> None:
    body = {**TICDC, "isDdl": True, "data": None, "sql": "alter table tp_int add x int"}
    if name == "canal":
        del body["_tidb"]
    for word in ("QUERY", "ALTER", "CREATE", "ERASE", "RENAME", "CINDEX"):
        (event,) = decoded(name, {**body, "type": word})
        assert (event.kind, event.table, event.detail) == ("ddl", "tp_int", body["sql"])
    (event,) = decoded(name, {**body, "type": "TRUNCATE"})
    assert (event.kind, event.table, event.namespace) == ("truncate", "tp_int", "test")


def test_a_change_of_maxwell() -> None:
    (event,) = decoded("maxwell", MAXWELL)
    assert event.before == {**MAXWELL["data"], **MAXWELL["old"]}
    assert (event.kind, event.after, event.transaction) == ("u", MAXWELL["data"], "23396")
    assert (event.position, event.source_ms) == ((6, 800911), 1477053234000)
    (event,) = decoded("maxwell", {**MAXWELL, "position": None})
    assert event.position == ()


def test_a_bootstrap_has_neither_place_nor_time() -> None:
    for word in ("bootstrap-start", "bootstrap-complete"):
        assert decoded("maxwell", {**MAXWELL, "type": word, "data": {}}) == []
    (event,) = decoded("maxwell", {**MAXWELL, "type": "bootstrap-insert", "old": None})
    assert (event.kind, event.position, event.source_ms) == ("r", (), None)
    assert event.before is None


def test_statements_of_maxwell() -> None:
    body = {**MAXWELL, "type": "table-alter", "ts": 1477053308000, "old": {}, "sql": "alter …"}
    (event,) = decoded("maxwell", body)
    assert (event.kind, event.detail, event.source_ms) == ("ddl", "alter …", 1477053308000)


@pytest.mark.parametrize(
    "change",
    [
        {"ts": None},
        {"ts": 1477053234000},
        {"ts": 1.5},
        {"ts": True},
        {"position": "master:1"},
        {"position": "master.000006"},
        {"position": 5},
        {"position": "0-1-270"},
        {"data": None},
        {"data": [{}]},
        {"old": []},
        {"xid": {}},
        {"type": "table-rename"},
        {"type": ["insert"]},
        {"table": None},
        {"database": None},
    ],
)
def test_other_messages_of_maxwell_halt(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError) as caught:
        decoded("maxwell", {**MAXWELL, **change})
    assert caught.value.where == "topic/0, offset 12"


SPEC = TableSpec(
    rel("s.tp_int"),
    TableSchema((Column("id", parse_type("bigint"), False, "bigint"),), ("id",)),
    Path(),
    "",
    None,
)


@pytest.mark.parametrize(
    ("sql", "moves"),
    [
        ("drop table `tp_int`", True),
        ("DROP TABLE IF EXISTS `tp_int` /* generated by server */", True),
        ("/*!40000 DROP TABLE tp_int */", True),
        ("alter table tp_int truncate partition p0", True),
        ("alter table tp_int exchange partition p0 with table other", True),
        ("alter table tp_int drop\npartition p0", True),
        ("alter table tp_int discard tablespace", True),
        ("rename table tp_int to old", True),
        ("alter table tp_int rename old", True),
        ("alter table tp_int rename to old", True),
        ("create or replace table tp_int (id int)", True),
        ("drop database test", True),
        ("alter table tp_int add column x int comment 'drop table'", False),
        ("alter table tp_int drop column x, rename column a to b", False),
        ("alter table tp_int rename index a to b -- drop table", False),
        ("alter table tp_int add partition (partition p1 values less than (5))", False),
        ("create table tp_int (id int primary key, `drop table` int)", False),
        ("drop index a on tp_int", False),
        ("alter online table tp_int rename old", True),
        ("alter table tp_int convert partition p to table x", True),
        ("alter ignore table s.`tp_int` add unique (b)", True),
        ("alter table tp_int drop primary key, add primary key (a, b)", True),
        ("alter table tp_int add foreign key (b) references p (id) on delete cascade", True),
        ("alter table other add foreign key (b) references tp_int (id) on delete cascade", False),
        ("alter table tp_int modify c_int int not null", True),
        ("alter table tp_int modify `c_int` int as (`drop` * 2) comment 'x'", True),
        ("alter table tp_int add x int not null, modify c_int int, modify x int as (id)", False),
        ("alter table tp_int modify id int not null, comment 'modify c_int int not null'", False),
    ],
)
def test_statements_that_take_rows_halt(sql: str, moves: bool) -> None:
    body = {**TICDC, "isDdl": True, "type": "ALTER", "data": None, "sql": sql}
    message = Message("topic/0", 12, None, json.dumps(body).encode())
    decoder = made("ticdc")
    columns = (*SPEC.schema.columns, Column("c_int", parse_type("int"), True, "int"))
    spec = replace(SPEC, schema=TableSchema(columns, ("id",)))
    assert decode_split([message], decoder, {"other": spec}) == []
    if not moves:
        assert decode_split([message], decoder, {"tp_int": spec}) == []
        return
    with pytest.raises(DecodeError, match=r"rows of s\.tp_int go, come or change") as caught:
        decode_split([message], decoder, {"tp_int": spec})
    assert "topic/0, offset 12" in str(caught.value.where)


@pytest.mark.parametrize(
    ("name", "database", "table", "sql", "halted"),
    [
        # TiCDC and Canal tell the new name of a RENAME, and Canal that of its first table.
        ("ticdc", "test", "old", "RENAME TABLE `test`.`t` TO `test`.`old`", ["t"]),
        ("canal", "test", "_t_del", "rename table t to _t_del, _t_gho to t", ["t"]),
        ("canal", "test", "z", "rename table y to z, T to x", ["t"]),
        ("canal", "test", "old", "alter table t add column c int, rename to old", ["t"]),
        ("canal", "test", "a", "DROP TABLE `a`,`t`,`u` /* generated by server */", ["t", "u"]),
        ("canal", "test", "a", "drop tables a, u, t", ["t", "u"]),
        ("canal", "test", "", "drop table if exists a.t, t restrict", ["t"]),
        ("canal", "test", "a", "alter table a exchange partition p with table t", ["t"]),
        ("canal", "test", "", "alter table `t` modify `c` int not null", ["t"]),
        ("ticdc", "other", "t", "DROP TABLE other.t", ["other.t"]),
        ("ticdc", "other", "a", "RENAME TABLE test.t TO other.a", ["t"]),
        ("ticdc", "test", "", "DROP DATABASE IF EXISTS `test`", ["t", "u"]),
        ("maxwell", "other", "", "drop schema Other", ["other.t"]),
        ("maxwell", "test", "", "create or replace database test", ["t", "u"]),
        ("maxwell", "test", "a", "drop table a, other.u, b", []),
        ("maxwell", "test", "a", "create or replace table a (t int) select u from u", []),
        ("maxwell", "test", "a", "alter table a drop partition t, u", []),
        ("maxwell", "test", "a", "alter table a rename column t to u", []),
        ("maxwell", "test", "a", "alter table a comment 'rename table t to u'", []),
        ("maxwell", "new", "", "create database new /* drop database test */", []),
    ],
)
def test_statements_halt_all_tables_that_they_move(
    name: str, database: str, table: str, sql: str, halted: list[str]
) -> None:
    body = {"database": database, "table": table, "sql": sql}
    if name == "maxwell":
        body |= {"type": "table-alter" if table else "database-drop", "ts": 1477053308000}
    else:
        body |= {"isDdl": True, "type": "QUERY", "es": 1, "_tidb": TICDC["_tidb"]}
    message = Message("topic/0", 12, None, json.dumps(body).encode())
    columns = (*SPEC.schema.columns, Column("c", parse_type("int"), True, "int"))
    names = ("t", "u", "other.t")
    tables = {
        each: replace(SPEC, name=rel(f"s.{each}"), schema=TableSchema(columns, ("id",)))
        for each in names
    }
    halts: dict[RelationId, TableHalt] = {}
    decoder = ScopedFormat(made(name), "test", folds=True)
    assert decode_split([message], decoder, tables, halts=halts) == []
    assert sorted(each.name for each in halts) == sorted(halted)
    for each, halt in halts.items():
        assert halt.altered
        assert f"offset 12, table {each.name}" in halt.where
    later = {each: replace(spec, since={"topic/0": 13}) for each, spec in tables.items()}
    assert decode_split([message], decoder, later) == []


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize(
    ("kind", "source_type", "raw", "expected"),
    [
        ("tinyint", "tinyint(4)", "-128", -128),
        ("decimal(20,0)", "bigint(20) unsigned", "18446744073709551615", Decimal(2**64 - 1)),
        ("int", "year(4)", "0000", 0),
        ("boolean", "bit(1)", "1", True),
        ("binary", "bit(12)", "5", b"\x00\x05"),
        ("binary", "bit(64)", str(2**64 - 1), b"\xff" * 8),
        ("float", "float", "5.18", 5.179999828338623),
        ("float", "float", "3.4028235E38", 3.4028234663852886e38),
        ("double", "double", "1.0E-300", 1e-300),
        ("double", "double", "9007199254740993", 9007199254740992.0),
        ("decimal(38,10)", "decimal(38,10)", "-0.0000000001", Decimal("-1E-10")),
        ("decimal(4,2)", "decimal(4,2)", "7.50", Decimal("7.50")),
        ("string", "varchar(9)", "7", "7"),
        ("string", "varchar(9)", "", ""),
        ("string", "enum('a','it''s','x,y')", "2", "it's"),
        ("string", "enum('a','b')", "0", ""),
        ("string", "enum('a','b')", "b", "b"),
        ("string", "set('a','b','c')", "5", "a,c"),
        ("string", "set('a','b','c')", "0", ""),
        ("string", "set('a','b','c')", "a,c", "a,c"),
        ("string", "time(6)", "-838:59:59.000000", "-838:59:59"),
        ("string", "time(3)", "12:34:56.780", "12:34:56.78"),
        ("string", "time", "10:00:00", "10:00:00"),
        ("binary", "blob", "\x00\x7f\x80ÿ'\"\\\n", b"\x00\x7f\x80\xff'\"\\\n"),
        ("binary", "binary(4)", "\x00ÿ", b"\x00\xff\x00\x00"),
        ("binary", "varbinary(4)", "\x00", b"\x00"),
        ("date", "date", "2024-02-29", dt.date(2024, 2, 29)),
        (
            *("timestamp_ntz", "datetime(3)", "2024-02-29 23:59:59.120"),
            dt.datetime(2024, 2, 29, 23, 59, 59, 120000),
        ),
        ("timestamp_ntz", "datetime", "0001-01-01 00:00:00", dt.datetime(1, 1, 1)),
    ],
)
def test_texts(name: str, kind: str, source_type: str, raw: str, expected: Any) -> None:
    got = converted(name, raw, kind, source_type)
    assert (got, type(got)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "source_type", "raw"),
    [
        ("int", "int", 1),
        ("int", "int", "1_0"),
        ("int", "int", " 1"),
        ("int", "int", "٣"),
        ("int", "int", "+1"),
        ("int", "int", ""),
        ("int", "int", "2147483648"),
        ("boolean", "bit(1)", "2"),
        ("boolean", "bit(1)", "true"),
        ("binary", "bit(3)", "8"),
        ("binary", "bit(3)", "-1"),
        ("binary", "blob", "€"),
        ("binary", "blob", 5),
        ("double", "double", "Infinity"),
        ("double", "double", "1E+999"),
        ("double", "double", "0x1"),
        ("float", "float", "1E+39"),
        ("decimal(4,2)", "decimal(4,2)", "1.005"),
        ("decimal(4,2)", "decimal(4,2)", "NaN"),
        ("decimal(4,2)", "decimal(4,2)", "1_0"),
        ("bigint", "int(10) unsigned", "-1"),
        ("decimal(20,0)", "bigint(20) unsigned", "-1"),
        ("decimal(4,2)", "decimal(4,2) UNSIGNED", "-0.01"),
        ("string", "varchar(9)", 7),
        ("string", "enum('a','b')", "3"),
        ("string", "enum('a','b')", "c"),
        ("string", "enum('2','1')", "1"),
        ("string", "set('a','b')", "4"),
        ("string", "set('a','b')", "a,c"),
        ("string", "time", "12:34"),
        ("date", "date", "0000-00-00"),
        ("date", "date", "2024-00-10"),
        ("timestamp_ntz", "datetime", "0000-00-00 00:00:00"),
        ("timestamp_ntz", "datetime(6)", "2024-02-29 23:59:59"),
        ("timestamp_ntz", "datetime", "2024-02-29 23:59:59.1"),
        ("timestamp", "timestamp", "2024-02-29 23:59:59"),
        ("array<int>", "", [1]),
    ],
)
def test_texts_that_are_no_value_are_refused(kind: str, source_type: str, raw: Any) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        converted("canal", raw, kind, source_type)
    assert str(raw[0] if type(raw) is list else raw)[:20] in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "raw", "expected"), [("number", "1", "2"), ("label", "1", "1"), ("label", "2", "2")]
)
def test_labels_that_look_like_numbers(mode: str, raw: str, expected: str) -> None:
    assert converted("canal", raw, "string", "enum('2','1')", enum=mode) == expected


@pytest.mark.parametrize("name", [*FLAT, "maxwell"])
@pytest.mark.parametrize(
    ("zone", "text", "expected"),
    [
        ("UTC", "2024-07-01 12:00:00", dt.datetime(2024, 7, 1, 12, tzinfo=_UTC)),
        ("+08:00", "2024-07-01 12:00:00", dt.datetime(2024, 7, 1, 4, tzinfo=_UTC)),
        ("-03:30", "2024-07-01 12:00:00", dt.datetime(2024, 7, 1, 15, 30, tzinfo=_UTC)),
        ("Europe/Paris", "2024-07-01 12:00:00", dt.datetime(2024, 7, 1, 10, tzinfo=_UTC)),
        ("Europe/Paris", "2024-12-01 12:00:00", dt.datetime(2024, 12, 1, 11, tzinfo=_UTC)),
    ],
)
def test_a_timestamp_is_read_in_the_stated_zone(
    name: str, zone: str, text: str, expected: dt.datetime
) -> None:
    assert converted(name, text, "timestamp", "timestamp", time_zone=zone) == expected
    with pytest.raises(ValueError, match=r"set format\.time\.zone"):
        converted(name, text, "timestamp", "timestamp")


@pytest.mark.parametrize("text", ["2024-10-27 02:30:00", "2024-03-31 02:30:00"])
def test_a_time_that_is_twice_or_never_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="twice or never in Europe/Paris"):
        converted("canal", text, "timestamp", "timestamp", time_zone="Europe/Paris")


@pytest.mark.parametrize("zone", ["", "Mars", "+25:00", "../etc/passwd", "+8"])
def test_a_zone_that_is_none(zone: str) -> None:
    with pytest.raises(ConfigError, match="no time zone"):
        made("canal", time_zone=zone)


@pytest.mark.parametrize(
    ("kind", "source_type", "raw", "expected"),
    [
        ("boolean", "bit(1)", 1, True),
        ("int", "year(4)", 1900, 0),
        ("int", "year(4)", 1901, 1901),
        ("int", "int", 1900, 1900),
        ("binary", "bit(12)", 5, b"\x00\x05"),
        ("decimal(20,0)", "bigint(20) unsigned", 2**64 - 1, Decimal(2**64 - 1)),
        (
            *("decimal(38,10)", "decimal(38,10)", Decimal("9999999999999999999999999999.5")),
            Decimal("9999999999999999999999999999.5000000000"),
        ),
        ("string", "enum('a','1')", "1", "1"),
        ("string", "set('a','b')", ["a", "b"], "a,b"),
        ("string", "set('a','b')", [], ""),
        ("binary", "binary(3)", "AP8=", b"\x00\xff\x00"),
        ("binary", "blob", "AP8=", b"\x00\xff"),
        ("timestamp_ntz", "datetime", "2024-02-29 23:59:59", dt.datetime(2024, 2, 29, 23, 59, 59)),
    ],
)
def test_values_of_maxwell(kind: str, source_type: str, raw: Any, expected: Any) -> None:
    assert converted("maxwell", raw, kind, source_type) == expected


@pytest.mark.parametrize(
    ("kind", "source_type", "raw", "said"),
    [
        ("string", "time", "01:00:00", "may be a longer time"),
        ("string", "enum('a','it''s')", "it''s", "is not a label of its enum"),
        ("string", "set('a','b')", ["c"], "is not a label of its set"),
        ("binary", "bit(32)", 1, "more than 31 bits"),
        ("binary", "bit(3)", 8, "does not fit bit"),
        ("binary", "bit(3)", "1", "is not a number of bits"),
        ("string", "set('a','b')", "a,b", "is not a list of labels"),
        ("timestamp_ntz", "datetime(6)", "2024-02-29 23:59:59", "decimal places"),
        ("timestamp_ntz", "datetime", "0000-00-00 00:00:00", "does not fit timestamp_ntz"),
        ("string", "varchar(3)", 1, "is not a text"),
        ("bigint", "int(10) unsigned", -1, "-1 is negative, and the column is unsigned"),
        ("decimal(20,0)", "bigint(20) unsigned", -1, "-1 is negative, and the column is unsigned"),
    ],
)
def test_values_that_maxwell_may_write_wrong(
    kind: str, source_type: str, raw: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        converted("maxwell", raw, kind, source_type)


def test_times_of_day_of_maxwell_are_stated() -> None:
    assert converted("maxwell", "01:00:00.500", "string", "time(3)", time_of_day="true") == (
        "01:00:00.5"
    )


#: What Maxwell 1.22.6, its JVM in New York, wrote of MariaDB 10.11.
_MAXWELL = (Path(__file__).parents[1] / "data" / "maxwell.jsonl").read_bytes().splitlines()


def test_what_maxwell_wrote() -> None:
    events = [event for line in _MAXWELL for event in decoded("maxwell", line)]
    kinds = [(event.kind, event.table) for event in events]
    assert kinds[:7] == [*[("c", "t")] * 4, *[("u", "t")] * 2, ("d", "t")]
    assert {event.namespace for event in events} == {"mv"}
    positions = [event.position for event in events if event.kind != "ddl"]
    assert positions == sorted(positions)
    moved = events[5]
    assert (moved.before or {})["id"] == 2
    assert (moved.after or {})["id"] == 10
    # TRUNCATE was the statement before DROP: it is not sent.
    statements = [event.detail for event in events if event.kind == "ddl"]
    assert len(statements) == 2
    assert "ADD COLUMN" in str(statements[0])
    assert "DROP TABLE" in str(statements[1])


@pytest.mark.parametrize(
    ("line", "name", "kind", "source_type", "expected"),
    [
        (0, "bu", "decimal(20,0)", "bigint(20) unsigned", Decimal(2**64 - 1)),
        (0, "d", "decimal(38,10)", "decimal(38,10)", Decimal("9" * 28 + "." + "9" * 10)),
        (0, "d0", "decimal(12,2)", "decimal(12,2)", Decimal("12.50")),
        (0, "f", "float", "float", 0.10000000149011612),
        (0, "db", "double", "double", 1e-300),
        (0, "vc", "string", "varchar(20)", "é😀"),
        (0, "st", "string", "set('x','y','z')", "x,z"),
        (0, "b12", "binary", "bit(12)", b"\x00\x05"),
        (0, "bn", "binary", "binary(4)", b"\x00\xff\x00\x00"),
        (0, "vb", "binary", "varbinary(9)", b"\x00\xff\x10"),
        (0, "ts", "timestamp", "timestamp", dt.datetime(2024, 7, 1, 12, tzinfo=_UTC)),
        (3, "ts", "timestamp", "timestamp", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=_UTC)),
        (3, "dt", "date", "date", dt.date(999, 1, 1)),
        (2, "y", "int", "year(4)", 0),
        (2, "st", "string", "set('x','y','z')", ""),
        (0, "e", "string", "enum('a','it''s','1')", ValueError),
        (0, "b40", "binary", "bit(40)", ValueError),
        (0, "dtm3", "timestamp_ntz", "datetime(3)", ValueError),
        (0, "dtm6", "timestamp_ntz", "datetime(6)", ValueError),
        (0, "ts6", "timestamp", "timestamp(6)", ValueError),
        (0, "tm", "string", "time", ValueError),
        (2, "tm", "string", "time", ValueError),
        (2, "dt", "date", "date", ValueError),
        (2, "dtm", "timestamp_ntz", "datetime", ValueError),
        (2, "ts", "timestamp", "timestamp", ValueError),
    ],
)
def test_values_as_maxwell_wrote_them(
    line: int, name: str, kind: str, source_type: str, expected: Any
) -> None:
    (event,) = decoded("maxwell", _MAXWELL[line])
    raw = (event.after or {})[name]
    if expected is ValueError:
        with pytest.raises(ValueError, match=r"."):
            converted("maxwell", raw, kind, source_type, time_zone="UTC")
    else:
        assert converted("maxwell", raw, kind, source_type, time_zone="UTC") == expected


# --- databases -----------------------------------------------------------------------------------


def test_tables_of_other_databases_are_not_ours() -> None:
    decoder = ScopedFormat(made("canal"), "inventory", folds=True)
    tables = [
        event.table
        for database in ("inventory", "other")
        for event in decoder.decode(
            Message("t/0", 1, None, json.dumps({**CANAL, "database": database}).encode())
        )
    ]
    assert tables == ["products", "other.products"]
    with pytest.raises(DecodeError, match="differs in case") as caught:
        decoder.decode(Message("t/0", 1, None, json.dumps({**CANAL, "database": "Inventory"})
                               .encode()))  # fmt: skip
    assert caught.value.where == "t/0, offset 1"


def test_the_database_of_a_connection_is_that_of_its_tables(
    tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", "inventory")
    settings = ConnectionSettings(
        name="shop", drivername="mariadb+pymysql", database="${env:SHOP_DATABASE}"
    )
    changes = {"shop": {"source": "files", "path": tmp_path, "format": "canal"}}
    config = Config(path=tmp_path, store=tmp_path, connections={"shop": settings}, changes=changes)
    value = json.dumps({**CANAL, "database": "other"}).encode()
    (event,) = open_format(config, "shop").decode(Message("t/0", 1, None, value))
    assert event.table == "other.products"


def test_a_table_that_is_written_often_tells_the_time() -> None:
    for name in ("canal", "maxwell"):
        assert not made(name).in_band_heartbeats
        assert made(name, heartbeat_table="beats").in_band_heartbeats
