"""Lineage as OpenLineage has it: a JobEvent per view, with its inputs, its output and its columns.

Names of datasets are those of OpenLineage's conventions, so that what other programs say of the
same tables meets what is said here. A password is never a part of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mview.admin.content import sink_path
from mview.cli.checking import Checked
from mview.clock import utc_text
from mview.config import Config
from mview.ivm.made_of import made_of
from mview.relation import RelationId
from mview.schema import TableSchema, type_name
from mview.store.layout import Store

_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/JobEvent"

#: Whose names have the port of their server.
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433}
#: How they begin.
_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql"}

#: What a dataset is called: namespace and name.
DatasetName = tuple[str, str]


def job_events(
    config: Config,
    checked: Sequence[Checked],
    schemas: Mapping[RelationId, TableSchema],
    now_ms: int,
) -> Iterator[dict[str, Any]]:
    """The events of views that were checked and are sound.

    Args:
        config: has the connections and the store.
        checked: the views.
        schemas: of the tables that they read, as far as they are known.
        now_ms: wall milliseconds.
    """
    producer = f"urn:mview-engine:{version('mview-engine')}"
    paths = {view.definition.relation: _view_name(config, view) for view in checked}

    def name(relation: RelationId) -> DatasetName:
        if relation.is_table:
            return _table_name(config, relation)
        known = paths.get(relation)
        # One that the store has, and that was not asked for.
        return known or ("file", str(Store(config.store).view_target(relation.name)))

    def facet(what: str, edition: str, **fields: Any) -> dict[str, Any]:
        url = f"{_SPEC}/facets/{edition}/{what}.json#/$defs/{what}"
        return {"_producer": producer, "_schemaURL": url, **fields}

    def dataset(relation: RelationId, facets: dict[str, Any]) -> dict[str, Any]:
        namespace, text = name(relation)
        return {"namespace": namespace, "name": text, "facets": facets}

    def columns(schema: TableSchema | None) -> dict[str, Any]:
        if schema is None:
            return {}
        fields = [{"name": c.name, "type": type_name(c.type)} for c in schema.columns]
        return {"schema": facet("SchemaDatasetFacet", "1-1-1", fields=fields)}

    for view in checked:
        definition = view.definition
        facets: dict[str, Any] = {}
        made = made_of(view.plan) if view.plan else None
        if made is not None:
            fields = {
                column: {
                    "inputFields": [
                        dict(
                            zip(("namespace", "name"), name(source.relation), strict=True),
                            field=source.column,
                        )
                        for source in sorted(sources)
                    ]
                }
                for column, sources in made.items()
            }
            facets["columnLineage"] = facet("ColumnLineageDatasetFacet", "1-1-0", fields=fields)
        read: Iterable[RelationId] = sorted(set(definition.table_names))
        yield {
            "eventTime": utc_text(now_ms).replace(" ", "T") + "Z",
            "producer": producer,
            "schemaURL": _EVENT,
            "job": {
                "namespace": f"mview:{Path(config.store)}",
                "name": definition.name,
                "facets": {"sql": facet("SQLJobFacet", "1-0-1", query=definition.sql)},
            },
            "inputs": [dataset(each, columns(schemas.get(each))) for each in read],
            "outputs": [dataset(definition.relation, facets)],
        }


def _view_name(config: Config, view: Checked) -> DatasetName:
    return "file", sink_path(config, Store(config.store), view.definition)


def _table_name(config: Config, table: RelationId) -> DatasetName:
    """A table by its server, database, schema and name."""
    connection = config.connections[table.connection]
    dialect = connection.drivername.partition("+")[0]
    schema, own = table.table_name
    if dialect == "sqlite":
        return "file", f"{connection.database}.{own}"
    server = connection.host or "localhost"
    port = connection.port or _PORTS.get(dialect, "")
    space = f"{_SCHEMES.get(dialect, dialect)}://{server}:{port}".rstrip(":")
    schema = schema or connection.own_schema or ""
    parts = [schema] if dialect in ("mysql", "mariadb") else [connection.database or "", schema]
    return space, ".".join([*filter(None, parts), own])
