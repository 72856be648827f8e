"""A value is the same by SQL and by the changelog: real databases, real Debezium, every type."""

from __future__ import annotations

import json

import pytest
from mview_connectors.formats.debezium import DebeziumFormat

from mview.config import TableSettings
from mview.connector import Message
from tests.connectors.databases_contract import Source, server_source

# Every day `test_databases_types.py` compares the paths, with what a connector has sent once.
pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.long]

#: What a connector has by default.
_MODES = {"format.time.precision.mode": "adaptive", "format.binary.handling.mode": "bytes"}

_POSTGRESQL = [
    ("smallint", "-32768"),
    ("bigint", "9223372036854775807"),
    ("real", "0.1"),
    ("double precision", "1e-300"),
    ("double precision", "'NaN'"),
    ("double precision", "'-Infinity'"),
    ("numeric(12,2)", "-1010.25"),
    ("numeric(10,0)", "-120000"),
    ("numeric(38,10)", "9999999999999999999999999999.9999999999"),
    ("numeric", "0.000000000000000001"),
    ("numeric", "-120"),
    ("boolean", "true"),
    ("text", "''"),
    ("text", "'é😀'"),
    ("varchar(9)", "'a b '"),
    ("char(5)", "'ab'"),
    ("uuid", "'ABCDEF00-E89B-12D3-A456-426614174000'"),
    ("json", """'{"b": 1,  "a":[1, 2.50]}'"""),
    ("jsonb", """'{"b": 1,  "a":[1, 2.50]}'"""),
    ("xml", "'<a>1</a>'"),
    ("inet", "'10.1.2.3/8'"),
    ("cidr", "'10.0.0.0/8'"),
    ("macaddr", "'08:00:2B:01:02:03'"),
    ("date", "'0001-01-01'"),
    ("date", "'9999-12-31'"),
    ("time", "'12:34:56.789012'"),
    ("time(0)", "'12:34:56'"),
    ("time(3)", "'12:34:56.780'"),
    ("time(4)", "'12:34:56.789'"),
    ("time", "'24:00'"),
    ("timestamp", "'2024-02-29 23:59:59.123456'"),
    ("timestamp", "'1582-10-04 00:00:00'"),
    ("timestamp", "'0001-01-01 00:00:00'"),
    ("timestamp", "'9999-12-31 23:59:59.999999'"),
    ("timestamp(0)", "'2024-02-29 23:59:59'"),
    ("timestamp(3)", "'2024-02-29 23:59:59.123'"),
    ("timestamp(4)", "'1969-12-31 23:59:59.9999'"),
    ("timestamptz", "'2024-02-29 23:59:59.1+05:30'"),
    ("timestamptz", "'0001-01-01 00:00:00+00'"),
    ("timestamptz(0)", "'2024-02-29 23:59:59+00'"),
    ("bytea", r"'\x00ff10'"),
    ("bytea", "''"),
    ("bit(1)", "B'1'"),
    ("bit(3)", "B'100'"),
    ("bit(12)", "B'000000000101'"),
    ("bit(16)", "B'1000000000000001'"),
    ("integer[]", "'{1,NULL,3}'"),
    ("integer[]", "'{}'"),
    ("text[]", """'{a,NULL,"b c"}'"""),
    ("uuid[]", "'{abcdef00-e89b-12d3-a456-426614174000}'"),
    ("date[]", "'{2024-02-29}'"),
    ("numeric(12,2)[]", "'{-10.25,NULL}'"),
    ("timestamp[]", "'{\"2024-02-29 23:59:59.123456\"}'"),
    ("timestamp(3)[]", "'{\"2024-02-29 23:59:59.123\"}'"),
    ("timestamptz[]", "'{\"2024-02-29 23:59:59.123456+00\"}'"),
    ("boolean[]", "'{t,f}'"),
    ("double precision[]", "'{0.1}'"),
]

_MARIADB = [
    ("TINYINT(1)", "1"),
    ("TINYINT UNSIGNED", "255"),
    ("MEDIUMINT UNSIGNED", "16777215"),
    ("INT UNSIGNED", "4294967295"),
    ("BIGINT", "-9223372036854775808"),
    ("BIGINT UNSIGNED", "9223372036854775807"),
    ("YEAR", "2024"),
    ("YEAR", "0000"),
    ("FLOAT", "0.1"),
    ("DOUBLE", "1e-300"),
    ("DECIMAL(12,2)", "-1010.25"),
    ("DECIMAL(10,0)", "-120000"),
    ("DECIMAL(38,10)", "9999999999999999999999999999.9999999999"),
    ("VARCHAR(9)", "'a b '"),
    ("CHAR(5)", "'ab'"),
    ("TEXT", "'é😀'"),
    ("LONGTEXT", """'{"b": 1,  "a":[1]}'"""),
    ("ENUM('a','b')", "'b'"),
    ("SET('a','b','c')", "'a,c'"),
    ("DATE", "'1000-01-01'"),
    ("TIME", "'12:34:56'"),
    ("TIME", "'-838:59:59'"),
    ("TIME(2)", "'12:34:56.78'"),
    ("TIME(3)", "'12:34:56.780'"),
    ("TIME(6)", "'00:00:00.000001'"),
    ("DATETIME", "'2024-02-29 23:59:59'"),
    ("DATETIME(3)", "'2024-02-29 23:59:59.123'"),
    ("DATETIME(4)", "'1969-12-31 23:59:59.9999'"),
    ("DATETIME(6)", "'9999-12-31 23:59:59.999999'"),
    ("DATETIME(6)", "'1000-01-01 00:00:00.000001'"),
    ("TIMESTAMP NULL", "'2024-02-29 23:59:59'"),
    ("TIMESTAMP(6) NULL", "'2024-02-29 23:59:59.123456'"),
    ("BINARY(4)", "X'00FF'"),
    ("VARBINARY(9)", "X'00FF10'"),
    ("BLOB", "X''"),
    ("BIT(1)", "b'1'"),
    ("BIT(3)", "b'100'"),
    ("BIT(12)", "b'101'"),
    ("BIT(16)", "b'1000000000000001'"),
]


#: Read as a setting says: type, what it is read as, values; those that Debezium sends alike, first.
AS_SAID = [
    ("money", "decimal(19,2)", ["-1234567.89", "0.05", "0", "-0.5"]),
    ("numeric", "decimal(38,4)", ["-1010.2500", "0", "1e20", "0.0001"]),
    ("interval", "string", [
        "1 year -2 mons 3 days -04:05:06.7", "0", "100:00:00", "-0.5 seconds", "1 mon", "-13 mons",
        "00:00:00.000001", "25 hours 61 minutes", "-1 day +02:00", "1.10 seconds",
    ]),
    ("timetz", "string", ["00:30:00.12+02", "23:59:59.999999-15:59", "12:00+00", "04:05:06+05:30"]),
    ("timetz(3)", "string", ["00:30:00.120+02"]),
    ("int4range", "string", ["[1,5]", "empty", "(,3)"]),
    ("int8range", "string", ["[-9223372036854775808,5)"]),
    ("numrange", "string", ["(,1.50]", "[1,1]"]),
    ("daterange", "string", ["[2024-02-29,infinity)"]),
    ("tsrange", "string", ["[2024-02-29 23:59:59.5,)"]),
]  # fmt: skip
ONLY_PRINTED = [
    ("tstzrange", "string", ["[2024-02-29 23:59:59.5+05:30,)"]),
    ("inet[]", "string", ["{10.0.0.1/8,NULL}", "{}"]),
    ("integer[]", "string", ["{{1,2},{3,NULL}}", "[2:3]={5,6}"]),
    ("text[]", "string", [r'{"a,b",NULL,"NULL","\"","\\"}']),
    ("varbit", "string", ["0101", ""]),
    ("point", "string", ["(0.1,-1e300)"]),
    ("bytea", "string", [r"\x00ff"]),
    ("char(4)", "string", ["ab"]),
    ("double precision", "string", ["0.1", "NaN", "-Infinity", "5e-324"]),
    ("timestamp", "string", ["infinity", "2024-02-29 12:00:00.5"]),
    ("tsvector", "string", ["'fat':2 'rat':3"]),
    ("xml", "string", ["<a>1</a>"]),
    ("money", "string", ["-1234567.89"]),
]


def as_said(source: Source, given: list[tuple[str, str, list[str]]]) -> tuple[Source, list[str]]:
    """A source of a table `t` with a column for each, and the rows to insert."""
    columns = ", ".join(f"c{n} {declared}" for n, (declared, *_) in enumerate(given))
    source.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    types = {f"c{n}": said for n, (_, said, _) in enumerate(given)}
    settings = source.settings.model_copy(update={"tables": {"t": TableSettings(types=types)}})
    rows = []
    for number in range(1 + max(len(values) for *_, values in given)):
        literals = [
            "NULL" if number >= len(values) else "'" + values[number].replace("'", "''") + "'"
            for *_, values in given
        ]
        rows.append(f"({number}, {', '.join(literals)})")
    changed = Source(
        "postgresql", settings.model_dump(by_alias=True, exclude={"name"}), source._execute
    )
    return changed, rows


def test_what_settings_say_is_the_same_by_both_paths(postgresql, kafka, debezium):
    with server_source("postgresql", postgresql) as plain:
        source, rows = as_said(plain, AS_SAID)
        database = source.settings.database
        connector = postgresql.connector(database, "t") | {"interval.handling.mode": "string"}
        with debezium.connector(connector) as prefix:
            source.execute(f"INSERT INTO t VALUES {', '.join(rows)}")
            debezium.wait_for(f"{prefix}.public.t", len(rows))
            sent = kafka.messages(f"{prefix}.public.t")
        decoder = DebeziumFormat(_MODES)
        schema = source.database.describe("t")
        events = [e for key, value in sent for e in decoder.decode(Message("t/0", 0, key, value))]
        got = [
            {c.name: decoder.convert([e.after[c.name]], c)[0].as_py() for c in schema.columns}
            for e in events
        ]
        assert got == source.read("t")
        source.database.close()


@pytest.mark.parametrize(
    ("kind", "schema", "cases"),
    [("postgresql", "public", _POSTGRESQL), ("mariadb", None, _MARIADB)],
)
def test_every_type_is_the_same_by_both_paths(kind, schema, cases, request, kafka, debezium):
    server = request.getfixturevalue(kind)
    with server_source(kind, server) as source:
        columns = ", ".join(f"c{n} {declared}" for n, (declared, _) in enumerate(cases))
        source.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        database = source.settings.database
        with debezium.connector(server.connector(database, "t")) as prefix:
            zone = "SET time_zone = '+00:00'; " if kind == "mariadb" else ""
            literals = ", ".join(literal for _, literal in cases)
            nulls = ", ".join("NULL" for _ in cases)
            source.execute(f"{zone}INSERT INTO t VALUES (1, {literals}), (2, {nulls})")
            topic = f"{prefix}.{schema or database}.t"
            debezium.wait_for(topic, 2)
            sent = kafka.messages(topic)
        _compare(source, sent, cases)


def _compare(source: Source, sent, cases) -> None:
    decoder = DebeziumFormat(_MODES)
    events = [
        event
        for offset, (key, value) in enumerate(sent)
        for event in decoder.decode(Message("t/0", offset, key, value))
    ]
    read = {row["id"]: row for row in source.read("t")}
    columns = source.database.describe("t")
    differences = []
    for event in events:
        row = read[event.after["id"]]
        for number, (declared, literal) in enumerate(cases):
            column, raw = columns.column(f"c{number}"), event.after[f"c{number}"]
            try:
                got = decoder.convert([raw], column)[0].as_py()
            except ValueError as error:
                got = f"ValueError: {error}"
            wanted = row[column.name]
            if repr(got) != repr(wanted):  # repr: NaN equals itself
                differences.append((declared, literal, raw, got, wanted))
    assert {event.after["id"] for event in events} == {1, 2}
    assert not differences, "\n".join(map(str, differences))


def test_mariadb_uuids_that_end_in_zero_cannot_be_told_from_others(mariadb, kafka, debezium):
    """Debezium 3.5 pads a UUID, cut by the binlog at its last zero bytes, on the wrong side."""
    ends_in_zero = "abcdef00-e89b-12d3-a456-426614174000"
    another = "00abcdef-00e8-9b12-d3a4-564266141740"
    with server_source("mariadb", mariadb) as source:
        source.execute("CREATE TABLE t (id INT PRIMARY KEY, x UUID)")
        database = source.settings.database
        with debezium.connector(mariadb.connector(database, "t")) as prefix:
            source.execute(f"INSERT INTO t VALUES (1, '{ends_in_zero}'), (2, '{another}')")
            topic = f"{prefix}.{database}.t"
            debezium.wait_for(topic, 2)
            sent = [json.loads(value)["after"]["x"] for _, value in kafka.messages(topic)]
    # When this fails, Debezium was mended: look at `NOT_BY_DEBEZIUM`.
    assert sent == [another, another]
