"""What a Debezium connector may not send, and nobody would notice: told before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mview.config import ChangesSettings, Config
from mview.connector import Database
from mview.errors import ConfigError
from mview.relation import RelationId
from mview.schema import TableSchema

_DECIMALS = "format.decimal.handling.mode"

#: JsonConverter's property, which is true unless it is set.
_DEFAULTS = "replace.null.with.default"


def check_defaults(
    settings: ChangesSettings, table: RelationId, schema: TableSchema, database: Database
) -> None:
    """Refuse a table of which a default may come in place of NULL, unless it is stated otherwise.

    Kafka Connect's converters do that by default, and no message tells it.

    Raises:
        ConfigError: with the columns, and what to set.
    """
    if settings.format != "debezium" or f"format.{_DEFAULTS}" in settings.options:
        return
    if columns := [name for name in database.defaults(table.name) if name in schema.names]:
        raise ConfigError(
            f"table {table} has columns that may be NULL and have another default: the connector's "
            "converter sends the default in place of NULL, unless it is told not to",
            where=f"{settings.section}.options",
            got=", ".join(columns),
            safe="nothing was read",
            hint=f"set value.converter.{_DEFAULTS}=false in the connector (JsonConverter; of "
            "Confluent's for Avro value.converter.ignore.default.for.nullables=true), then state "
            f'format.{_DEFAULTS}: "false" under options; or leave these columns out: connections.'
            f"{settings.connection}.tables.{table.name}.exclude",
        )


def unsent_cautions(
    config: Config, tables: Mapping[str, Sequence[str]], schemas: Mapping[RelationId, TableSchema]
) -> Iterator[str]:
    """Warnings of what is neither stated nor can be looked up.

    Args:
        config: the configuration.
        tables: names in their databases, by connection.
        schemas: of the tables that are known.
    """
    for connection, names in tables.items():
        settings = config.changes[connection]
        if settings.format != "debezium":
            continue
        if settings.connect is None and "format.skipped.operations" not in settings.options:
            yield (
                f"WARNING: {settings.section}: a TRUNCATE may not be sent: Debezium leaves it out "
                "by default, and views keep the rows. Set skipped.operations: none in the "
                "connector and format.skipped.operations: none under options; or name Kafka "
                "Connect's URL under connect, to have it looked up"
            )
        drivername = config.connections[connection].drivername
        known = [RelationId("table", name, connection) for name in names]
        if drivername.startswith(("mysql", "mariadb")) and (columns := _moments(known, schemas)):
            yield (
                f"WARNING: {', '.join(columns)}: Debezium sends a zero date (0000-00-00) as NULL, "
                "or as 1970-01-01 where the column is NOT NULL, and a year before 100 as one of "
                "1970 to 2069 unless enable.time.adjuster is false: views would show these. "
                "Have the server refuse zero dates (sql_mode with NO_ZERO_DATE and "
                "STRICT_TRANS_TABLES), or follow its own log (source: mysql), which halts by them"
            )
        if not drivername.startswith("postgresql"):
            continue
        if columns := _numeric(settings, names, schemas):
            yield (
                f"WARNING: {', '.join(columns)}: NaN comes as NULL, or as 0 where the column is "
                "NOT NULL, unless the connector has decimal.handling.mode: string and "
                f"{_DECIMALS}: string is under {settings.section}.options: then it halts"
            )


def _moments(tables: Sequence[RelationId], schemas: Mapping[RelationId, TableSchema]) -> list[str]:
    """The columns in which a zero date would be lost."""
    return [
        f"{table}.{column.name}"
        for table in tables
        if table in schemas
        for column in schemas[table].columns
        if column.source_type.lower().startswith(("date", "timestamp"))
    ]


def _numeric(
    settings: ChangesSettings, names: Sequence[str], schemas: Mapping[RelationId, TableSchema]
) -> list[str]:
    """The columns in which NaN would be lost."""
    if settings.options.get(_DECIMALS) in ("string", "double"):
        return []
    tables = [RelationId("table", name, settings.connection) for name in names]
    return [
        f"{table}.{column.name}"
        for table in tables
        if table in schemas
        for column in schemas[table].columns
        if column.source_type.startswith("numeric")
    ]
