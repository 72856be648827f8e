"""What tables and the targets of sinks are called by OpenLineage's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from mview.catalog.followers import table_in_sink
from mview.config import Config
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId

#: Whose names have the port of their server.
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "kafka": 9092}
#: How they begin.
_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql"}

#: What a dataset is called: namespace and name.
DatasetName = tuple[str, str]


def table_dataset(config: Config, table: RelationId) -> DatasetName:
    """A table of a connection, by its server, database, schema and name."""
    connection = config.connections[table.connection]
    schema, own = table.table_name
    schema = schema or connection.own_schema or ""
    dialect = connection.drivername.partition("+")[0]
    server = connection.host, connection.port
    return _in_database(dialect, server, connection.database, schema, own)


def sink_dataset(config: Config, view: ViewDefinition, sink: str) -> DatasetName | None:
    """What follows a view in one of its sinks; None: its options do not tell where that is."""
    options = {**config.sinks.get(sink, {}), **view.sinks[sink]}
    table, kind = table_in_sink(config, view, sink), str(options.get("type"))
    try:
        match kind:
            case "sqlite" | "postgresql" | "mysql" | "mariadb":
                url = sa.make_url(str(options["url"]))
                default = "public" if kind == "postgresql" else ""
                schema = str(options.get("namespace") or default)
                return _in_database(kind, (url.host, url.port), url.database, schema, table)
            case "clickhouse" | "starrocks":
                server = _first(options["url"])
                return f"{kind}://{server}", f"{options.get('database', 'default')}.{table}"
            case "kafka":
                server = _first(options["bootstrap_servers"])
                port = "" if ":" in server else f":{_PORTS['kafka']}"
                return f"kafka://{server}{port}", table
            case "delta" | "hudi" | "files":
                return _in_folder(str(options["path"]), table)
            case "iceberg" | "paimon":
                return _in_catalog(kind, options, table)
    except (KeyError, ValueError, sa.exc.ArgumentError):
        pass  # what is wrong with it is told by the sink
    return None


def _in_database(
    dialect: str,
    server: tuple[str | None, int | str | None],
    database: str | None,
    schema: str,
    table: str,
) -> DatasetName:
    if dialect == "sqlite":
        return "file", f"{database}.{table}"
    host, port = server[0] or "localhost", server[1] or _PORTS.get(dialect, "")
    space = f"{_SCHEMES.get(dialect, dialect)}://{host}:{port}".rstrip(":")
    # A schema of MySQL is a database.
    mysql = dialect in ("mysql", "mariadb")
    parts = [schema or database] if mysql else [database, schema]
    return space, ".".join([*filter(None, parts), table])


def _in_catalog(kind: str, options: Mapping[str, Any], table: str) -> DatasetName | None:
    space = str(options.get("namespace" if kind == "iceberg" else "database", "default"))
    catalog = options.get("catalog", {})
    if uri := catalog.get("uri"):
        return f"{kind}://{_first(uri)}", f"{space}.{table}"
    if warehouse := options.get("warehouse") or catalog.get("warehouse"):
        return _in_folder(str(warehouse), f"{space}.{table}")
    return None


def _in_folder(path: str, table: str) -> DatasetName:
    parts = urlsplit(path)
    if parts.scheme and parts.netloc:
        return f"{parts.scheme}://{_server(parts.netloc)}", f"{parts.path.strip('/')}/{table}"
    return "file", str(Path(path).expanduser().absolute() / table)


def _first(servers: Any) -> str:
    """Host and port of the first of several servers, without who logs in.

    Raises:
        ValueError: there is none.
    """
    first = str(servers).split(",")[0].strip()
    server = _server(urlsplit(first).netloc if "://" in first else first)
    if not server or "$" in server:
        raise ValueError("no server")
    return server


def _server(place: str) -> str:
    return place.rpartition("@")[2]
