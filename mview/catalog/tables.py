"""Which tables the views read, and their columns: from the store, else from the databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from difflib import get_close_matches

from mview.catalog.followers import follower_cautions
from mview.config import Config
from mview.connector import Database
from mview.errors import ConfigError, UserError
from mview.ingest.spec import open_changelog, open_database
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId, by_connection
from mview.schema import TableSchema, check_free


def source_tables(views: Iterable[ViewDefinition]) -> list[str]:
    """`<connection>.<table>` of every source table the views read, in a stable order."""
    names = {use.name for view in views for use in view.tables if RelationId.of(use.name).is_table}
    return sorted(names)


def describe_tables(
    config: Config, views: Sequence[ViewDefinition], known: Mapping[str, TableSchema]
) -> dict[str, TableSchema]:
    """Schemas of all source tables of the views.

    Args:
        config: the configuration with the connections.
        known: schemas frozen in the store; they are taken as they are.

    Raises:
        UserError: unknown connection or table, no primary key; with the place in the view's file.
        RetryableError: a database cannot be reached.
    """
    schemas: dict[str, TableSchema] = {}
    databases: dict[str, Database] = {}
    try:
        for name in source_tables(views):
            if name in known:
                schemas[name] = known[name]
                continue
            table = RelationId.of(name)
            _check_connection(config, views, name, table.connection)
            if table.connection not in databases:
                databases[table.connection] = open_database(config, table.connection)
            try:
                schemas[name] = databases[table.connection].describe(table.name)
                check_free(schemas[name].names)
            except ConfigError:
                raise  # about the configuration, not about the view's text
            except UserError as error:
                raise _at(views, name, error) from None
    finally:
        for database in databases.values():
            database.close()
    return schemas


def check_changelogs(config: Config, views: Iterable[ViewDefinition]) -> None:
    """Make sure that the changelogs of all source tables of the views can be followed.

    Raises:
        ConfigError: a topic, folder or heartbeat is missing.
        RetryableError: a broker cannot be reached.
    """
    for connection, tables in by_connection(source_tables(views)).items():
        with closing(open_changelog(config, connection, tables)) as changelog:
            changelog.check()


def cautions(config: Config, views: Sequence[ViewDefinition]) -> list[str]:
    """Warnings of the connections of all source tables of the views, and of their sinks."""
    said = []
    for connection in by_connection(source_tables(views)):
        with (
            closing(open_database(config, connection)) as database,
            closing(open_changelog(config, connection, [])) as changelog,
        ):
            said += [database.caution(), changelog.caution()]
    said += follower_cautions(config, views)
    return [text for text in said if text is not None]


def _check_connection(
    config: Config, views: Sequence[ViewDefinition], name: str, connection: str
) -> None:
    if connection not in config.connections:
        close = get_close_matches(connection, config.connections, n=1)
        raise _at(
            views,
            name,
            UserError(
                f"there is no connection {connection!r}",
                allowed=", ".join(config.connections) or "none is configured",
                hint=f"did you mean {close[0]!r}?" if close else f"add it to {config.path}",
            ),
        )
    if connection not in config.changes:
        raise ConfigError(
            f"connection {connection!r} has no changelog",
            where=str(config.path),
            hint=f"add a section changes.{connection} (source: kafka or files)",
        )


def _at(views: Sequence[ViewDefinition], name: str, error: UserError) -> UserError:
    """The error with a caret under the table in the view that reads it."""
    for view in views:
        for use in view.tables:
            if use.name == name:
                return view.text.error(
                    error.what,
                    (use.start, use.end),
                    got=error.got,
                    allowed=error.allowed,
                    hint=error.hint,
                )
    return error
