"""What `mview init` writes: a configuration, settings of Debezium, a first view."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import orjson
import yaml
from sqlalchemy.engine import URL

from mview.errors import UserError
from mview.plan.definition import parse_view
from mview.relation import RelationId, TableName
from mview.schema import quoted

#: What the name of a topic cannot have, and Debezium writes otherwise.
_NO_LETTER = re.compile(r"[^A-Za-z0-9._-]")
#: Databases whose log is followed without Kafka; SQLite's is written by triggers.
OWN_LOGS = ("postgresql", "mysql", "mariadb", "sqlite")


#: Connectors of Debezium, by database: of those that it can follow beside, or instead of us.
_MAKERS = {
    "mariadb": "mariadb.MariaDbConnector",
    "mysql": "mysql.MySqlConnector",
    "mssql": "sqlserver.SqlServerConnector",
}
#: Databases whose changes TiCDC sends.
BY_TICDC = ("tidb",)
#: Where it is told how such a connector is begun.
_CONNECTOR = "docs/sources.md, a connector of Debezium"
#: Databases for which Debezium's settings are written.
BY_DEBEZIUM = tuple(_MAKERS)


def configuration(
    name: str, settings: dict[str, object], dialect: str, needs: Mapping[str, str]
) -> str:
    """The configuration of one database, by its own log, by triggers, or by Debezium and Kafka.

    Args:
        name: of the connection.
        settings: of the connection.
        dialect: of its database.
        needs: settings that tables need to be read, by table; a comment, for people to judge.
    """
    changes: dict[str, object] = {"source": "files", "format": "unified", "path": "changes"}
    if dialect in OWN_LOGS:
        changes = {"source": dialect, "T": "1 second"}
    elif dialect in BY_DEBEZIUM:
        changes = _by_debezium(name, settings, dialect)
    elif dialect in BY_TICDC:
        changes = _by_ticdc(name)
    body: dict[str, object] = {
        "store": "store",
        "connections": {name: settings},
        "changes": {name: changes},
    }
    text = _yaml({part: body[part] for part in ("store", "connections")})
    if needs:
        lines = [
            "What tells the rows of these tables apart? No two may have the same in all columns of",
            "a key. Take out the # and the columns that are not needed:",
            "tables:",
            *(
                f"  {json.dumps(t, ensure_ascii=False)}: {{{needed}}}"
                for t, needed in needs.items()
            ),
        ]
        text += "".join(f"    # {line}\n" for line in lines)
    text += _yaml({"changes": body["changes"]})
    if dialect in OWN_LOGS and dialect in BY_DEBEZIUM:
        other: dict[str, object] = {"changes": {name: _by_debezium(name, settings, dialect)}}
        lines = _yaml(other).splitlines()
        told = [
            f"Or by Debezium and Kafka, with the connector of debezium-{name}.json ({_CONNECTOR}),",
            "whose user needs the right RELOAD, too:",
        ]
        text += "".join(f"# {line}\n" for line in [*told, *lines])
    elif dialect in BY_DEBEZIUM:
        text += f"# The connector that sends the changes: debezium-{name}.json ({_CONNECTOR})\n"
    elif dialect in BY_TICDC:
        text += (
            "# The changefeed that sends the changes (docs/formats/ticdc.md; format.time.zone is "
            f"TiCDC's --tz):\n# cdc cli changefeed create --sink-uri='kafka://localhost:9092/{name}"
            "?protocol=canal-json&enable-tidb-extension=true&partition-num=3'\n"
        )
    return f"# Made by `mview init`. All settings: conf/mview.yml of mview's own project.\n{text}"


def _yaml(settings: dict[str, object]) -> str:
    return str(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _safe(name: str) -> str:
    # Java counts a letter beyond the first 65,536 as two.
    return _NO_LETTER.sub(lambda letter: "_" * (1 + (letter[0] > "\uffff")), name)


def _by_ticdc(name: str) -> dict[str, object]:
    """Changes that come by a changefeed, all in one topic."""
    return {
        "source": "kafka",
        "format": "ticdc",
        "bootstrap_servers": "localhost:9092",
        "topic": name,
        "T": "10 seconds",
        "options": {"format.time.zone": "UTC"},
    }


def _by_debezium(name: str, settings: dict[str, object], dialect: str) -> dict[str, object]:
    """Changes that come by the connector of `debezium`."""
    options, tables, delay = {"format.skipped.operations": "none"}, "{table}", "10 seconds"
    if dialect == "mssql":
        # Its tables are in schemas; a job brings its changes every five seconds.
        options |= {"format.time.precision.mode": "adaptive"}
        tables, delay = "{schema}.{table}", "30 seconds"
    return {
        "source": "kafka",
        "format": "debezium",
        "bootstrap_servers": "localhost:9092",
        "topic": f"{name}.{_safe(str(settings['database']))}.{tables}",
        "heartbeat_topic": f"__debezium-heartbeat.{name}",
        # A connector that begins has none but that of its heartbeats.
        "missing_topics": "wait",
        "T": delay,
        "options": {**options, "format.replace.null.with.default": "false"},
    }


def debezium(name: str, url: URL) -> str:
    """Debezium's settings, with what mview needs: TRUNCATE, NULL, heartbeats, schemas, no rows."""
    dialect = url.get_backend_name()
    if dialect == "mssql":
        port, what = 1433, {"database.names": url.database or ""}
    else:
        port, what = (
            3306,
            {
                "database.server.id": "5701",
                "database.include.list": url.database or "",
                # A server where nothing changes gives a sign of itself every 0.8 of it, and only
                # then comes a heartbeat. By default that is every 48 seconds.
                "connect.keep.alive.interval.ms": "5000",
                # By default the upper half of BIGINT UNSIGNED comes as numbers below zero.
                "bigint.unsigned.handling.mode": "precise",
            },
        )
    converter = "org.apache.kafka.connect.json.JsonConverter"
    settings = {
        "connector.class": f"io.debezium.connector.{_MAKERS[dialect]}",
        "topic.prefix": name,
        "database.hostname": url.host or "localhost",
        "database.port": str(url.port or port),
        "database.user": url.username or "debezium",
        "database.password": f"${{env:{name.upper()}_PASSWORD}}",
        **what,
        "schema.history.internal.kafka.bootstrap.servers": "localhost:9092",
        "schema.history.internal.kafka.topic": f"{name}.schema-history",
        "snapshot.mode": "no_data",
        "skipped.operations": "none",
        "heartbeat.interval.ms": "1000",
        # As the brokers have them: many make no topic for who writes to one that is not there.
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.default.partitions": "-1",
        "key.converter": converter,
        "value.converter": converter,
        "value.converter.schemas.enable": "true",
        "value.converter.replace.null.with.default": "false",
    }
    return orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode() + "\n"


def first_view(connection: str, table: str, columns: Sequence[str] = (), lacks: str = "") -> str:
    """All rows of a table; its name is quoted where it must be.

    Args:
        connection: the name of the connection.
        table: the table.
        columns: those that are listed; none: all.
        lacks: why these are not all; a comment.
    """
    told = f"-- Not all columns: {' '.join(lacks.split())}\n" if lacks else ""
    listed = ", ".join(map(quoted, columns)) or "*"
    plain = f"{told}SELECT {listed}\nFROM {connection}.{table}\n"
    try:
        if parse_view(plain, "v").table_names == (RelationId("table", table, connection),):
            return plain
    except UserError:
        pass
    parts = [quoted(part) for part in TableName.of(table) if part]
    return f"{told}SELECT {listed}\nFROM {connection}.{'.'.join(parts)}\n"
