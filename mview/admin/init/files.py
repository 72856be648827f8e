"""What `mview init` writes: a configuration, settings of Debezium, a first view."""

from __future__ import annotations

import orjson
import yaml
from sqlalchemy.engine import URL

from mview.errors import UserError
from mview.plan.definition import parse_view
from mview.relation import RelationId, TableName
from mview.schema import quoted

#: Databases whose log is followed without Kafka; SQLite's is written by triggers.
OWN_LOGS = ("postgresql", "mysql", "mariadb", "sqlite")


def configuration(name: str, settings: dict[str, object], dialect: str) -> str:
    """The configuration of one database, whose changes come from its own log or from triggers."""
    changes: dict[str, object] = {"source": "files", "format": "unified", "path": "changes"}
    if dialect in OWN_LOGS:
        changes = {"source": dialect, "T": "1 second"}
    body = {
        "store": "store",
        "connections": {name: settings},
        "changes": {name: changes},
    }
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
    if dialect in ("mysql", "mariadb"):
        text += _by_debezium(name, settings)
    return f"# Made by `mview init`. All settings: conf/mview.yml of mview's own project.\n{text}"


def _by_debezium(name: str, settings: dict[str, object]) -> str:
    """The other way to the changes, as a comment."""
    changes = {
        "source": "kafka",
        "format": "debezium",
        "bootstrap_servers": "localhost:9092",
        "topic": f"{name}.{settings['database']}.{{table}}",
        "heartbeat_topic": f"__debezium-heartbeat.{name}",
        "T": "10 seconds",
        "options": {
            "format.skipped.operations": "none",
            "format.replace.null.with.default": "false",
        },
    }
    text = yaml.safe_dump({"changes": {name: changes}}, sort_keys=False, allow_unicode=True)
    told = f"Or by Debezium and Kafka, with the connector of debezium-{name}.json:"
    return "".join(f"# {line}\n" for line in [told, *text.splitlines()])


def debezium(name: str, url: URL) -> str:
    """Debezium's settings, with what mview needs: TRUNCATE, NULL, heartbeats, schemas, no rows."""
    makes = {"mariadb": "mariadb.MariaDbConnector", "mysql": "mysql.MySqlConnector"}
    converter = "org.apache.kafka.connect.json.JsonConverter"
    settings = {
        "connector.class": f"io.debezium.connector.{makes[url.get_backend_name()]}",
        "topic.prefix": name,
        "database.hostname": url.host or "localhost",
        "database.port": str(url.port or 3306),
        "database.user": url.username or "debezium",
        "database.password": f"${{env:{name.upper()}_PASSWORD}}",
        "database.server.id": "5701",
        "database.include.list": url.database or "",
        "schema.history.internal.kafka.bootstrap.servers": "localhost:9092",
        "schema.history.internal.kafka.topic": f"{name}.schema-history",
        "snapshot.mode": "no_data",
        "skipped.operations": "none",
        "heartbeat.interval.ms": "1000",
        "key.converter": converter,
        "value.converter": converter,
        "value.converter.schemas.enable": "true",
        "value.converter.replace.null.with.default": "false",
    }
    return orjson.dumps(settings, option=orjson.OPT_INDENT_2).decode() + "\n"


def first_view(connection: str, table: str) -> str:
    """All rows of a table; its name is quoted where it must be."""
    plain = f"SELECT *\nFROM {connection}.{table}\n"
    try:
        if parse_view(plain, "v").table_names == (RelationId("table", table, connection),):
            return plain
    except UserError:
        pass
    parts = [quoted(part) for part in TableName.of(table) if part]
    return f"SELECT *\nFROM {connection}.{'.'.join(parts)}\n"
