"""Which tables the views read, and their columns: from the store, else from the databases."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from difflib import get_close_matches

from mview.catalog.followers import follower_cautions
from mview.catalog.unsent import check_defaults, unsent_cautions
from mview.config import Config
from mview.connector import Database
from mview.errors import AwayError, ConfigError, MviewError, UserError, typed
from mview.ingest.spec import open_changelog, open_database
from mview.plan.definition import ViewDefinition
from mview.plan.uses import uses_of
from mview.relation import RelationId, by_connection
from mview.schema import TableSchema, check_free, parse_type

#: How an error begins of a column that is not there.
_COLUMN = re.compile(r"unknown column '([^']*)'")

#: Formats of programs that read the database's own log.
_OF_THE_LOG = ("debezium", "canal", "maxwell")


def source_tables(views: Iterable[ViewDefinition]) -> list[RelationId]:
    """Every source table the views read, in a stable order."""
    names = {use.name for view in views for use in view.tables if use.name.is_table}
    return sorted(names)


def connections_of(view: str, views: Mapping[str, ViewDefinition]) -> frozenset[str] | None:
    """The connections that a view reads, also by way of other views.

    Args:
        view: its name.
        views: the views of a store, by name.

    Returns:
        None: it reads a view that is none of them, or is none itself.
    """
    read, waiting = {view}, [view]
    while waiting:
        definition = views.get(waiting.pop())
        if definition is None:
            return None
        waiting += [name for name in definition.read_views if name not in read]
        read.update(definition.read_views)
    return frozenset(table.connection for table in source_tables(views[name] for name in read))


def describe_tables(
    config: Config,
    views: Sequence[ViewDefinition],
    known: Mapping[RelationId, TableSchema],
    gone: dict[RelationId, UserError] | None = None,
    must: Collection[RelationId] = (),
) -> dict[RelationId, TableSchema]:
    """Schemas of all source tables of the views, with the columns that these use.

    Args:
        config: the configuration with the connections.
        known: schemas frozen in the store; they are taken as they are. See `lacking`.
        gone: takes the tables that cannot be read, and why. None: that is an error.
        must: tables of which it is one in any case.

    Raises:
        UserError: unknown connection or table, no primary key; with the place in the view's file.
        RetryableError: a database cannot be reached.
    """
    schemas: dict[RelationId, TableSchema] = {}
    databases: dict[str, Database] = {}
    try:
        for table in source_tables(views):
            connection = table.connection
            _check_connection(config, views, table)
            if table in known:
                _check_loaded(config, table, known[table])
                schemas[table] = known[table]
                continue
            if connection not in databases:
                databases[connection] = open_database(config, connection)
            try:
                schemas[table] = described(config, databases[connection], table, views)
            except ConfigError:
                raise  # about the configuration, not about the view's text
            except UserError as error:
                told = _at(views, table, error)
                if gone is None or table in must:
                    raise told from None
                gone[table] = told
    finally:
        for database in databases.values():
            database.close()
    return schemas


def described(
    config: Config, database: Database, table: RelationId, views: Sequence[ViewDefinition]
) -> TableSchema:
    """The schema of a table of the database, whose log has all its changes, for views.

    Raises:
        UserError: it cannot be read, or not be followed.
    """
    schema = database.describe(table.name, uses_of(views, table))
    if has_own_log(config, table.connection):
        database.check_log(table.name, schema.columns)
        check_defaults(config.changes[table.connection], table, schema, database)
    check_free(schema.names)
    return schema


def lacking(
    config: Config, views: Sequence[ViewDefinition], loaded: Mapping[RelationId, TableSchema]
) -> dict[RelationId, str]:
    """The loaded tables of which views use columns that are not read, and why, for people.

    Such a table must be loaded anew: nobody has the rows' values, and no change tells them.

    Args:
        config: what settings leave out is for no view.
        views: all that the tables are read for.
        loaded: what is read of the tables.
    """
    told = {}
    for table, schema in loaded.items():
        settings = config.connections.get(table.connection)
        if settings is None or not schema.unread:
            continue
        may_be_read = [name for name in schema.unread if settings.table(table.name).reads(name)]
        for view in views:
            if names := list(filter(uses_of([view], table), may_be_read)):
                some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
                told[table] = f"view {view.name} uses {some}, not kept so far"
                break
    return told


def as_they_are(
    config: Config, views: Sequence[ViewDefinition], loaded: Mapping[RelationId, TableSchema]
) -> dict[RelationId, TableSchema]:
    """The loaded tables that views read, with the names of the columns that they have by now.

    A table that cannot be asked is not there: it goes on as it was loaded.
    """
    tables = {}
    for name in source_tables(views):
        if name in loaded and name.connection in config.connections:
            with closing(open_database(config, name.connection)) as database, suppress(MviewError):
                now = database.describe(name.name, lambda _: False)
                tables[name] = of_now(loaded[name], now)
    return tables


def of_now(loaded: TableSchema, now: TableSchema) -> TableSchema:
    """A table as it was loaded, with the names of the other columns that it has now."""
    every = (*now.names, *now.unread)
    return replace(loaded, unread=tuple(name for name in every if name not in loaded.names))


def has_own_log(config: Config, connection: str) -> bool:
    """Whether the changes come of a program that reads the log of the database."""
    changes = config.changes.get(connection)
    return changes is not None and changes.format in _OF_THE_LOG


def _check_loaded(config: Config, table: RelationId, schema: TableSchema) -> None:
    """Refuse settings of a table by which it would have been loaded otherwise."""
    settings = config.connections[table.connection].table(table.name)
    every = {*schema.names, *schema.unread}
    wanted = set(settings.listed or (every if settings.columns else schema.names))
    wanted -= set(settings.exclude)
    key = set(settings.key or schema.key)
    types = {column.name: column.type for column in schema.columns if column.read_as[1]}
    said = {name: parse_type(text) for name, text in settings.types.items() if name in schema.names}
    if (
        wanted != set(schema.names)
        or key != set(schema.key)
        or types != said
        or (settings.where or "") != schema.where
    ):
        raise ConfigError(
            f"table {table} was loaded with other columns, types, another key or another condition "
            "than its settings name",
            where=f"connections.{table.connection}.tables.{table.name}",
            got=f"loaded: {', '.join(schema.names)}; key {', '.join(schema.key)}"
            + (f"; where {schema.where}" if schema.where else ""),
            safe="nothing was changed",
            hint=f"`mview drop {typed(table)}` and run again: it is loaded anew; or take the "
            "setting back",
        )


def left_out(config: Config, definition: ViewDefinition, error: UserError) -> UserError:
    """The error; where it names a column that settings leave out, with the setting.

    Args:
        config: the configuration.
        definition: the view whose error it is.
        error: of its text.
    """
    for table in source_tables([definition]):
        connection = config.connections.get(table.connection)
        settings = connection.tables.get(table.name) if connection else None
        named = _COLUMN.match(error.what)
        if settings is not None and named and not settings.reads(named[1]):
            place = f"connections.{table.connection}.tables.{table.name}"
            hint = f"is it left out by {place}? Name it there, and `mview drop {typed(table)}`"
            return UserError(**{**error.parts, "hint": hint})
    return error


def check_changelogs(
    config: Config,
    views: Iterable[ViewDefinition],
    schemas: Mapping[RelationId, TableSchema],
    loaded: Collection[RelationId] = (),
) -> None:
    """Make sure that the changelogs of all source tables of the views can be followed.

    Args:
        config: the configuration.
        views: the views.
        schemas: what is read of the tables.
        loaded: those that are followed already. One that cannot be followed any more halts when its
            log is opened, and no other table waits for it; so it is not looked at here, where the
            log does so (it has a method `only`). A connection that has no others may be away, where
            another one is not: the run goes on without it.

    Raises:
        ConfigError: a topic, folder or heartbeat is missing.
        RetryableError: a broker cannot be reached.
    """
    away: list[AwayError] = []
    read = by_connection(source_tables(views))
    for connection, tables in read.items():
        relations = {table: RelationId("table", table, connection) for table in tables}
        columns = {t: schemas[name].names for t, name in relations.items() if name in schemas}
        new = [table for table, name in relations.items() if name not in loaded]
        try:
            _check_changelog(config, connection, tables, new, columns)
        except AwayError as error:
            away.append(error)
            if new or len(away) == len(read):
                raise


def _check_changelog(
    config: Config,
    connection: str,
    tables: list[str],
    new: list[str],
    columns: Mapping[str, Collection[str]],
) -> None:
    with closing(open_changelog(config, connection, tables, columns)) as changelog:
        if not hasattr(changelog, "only"):
            changelog.check()
            return
    with closing(open_changelog(config, connection, new, columns)) as changelog:
        changelog.check()


def cautions(
    config: Config, views: Sequence[ViewDefinition], schemas: Mapping[RelationId, TableSchema]
) -> list[str]:
    """Warnings of the connections of all source tables of the views, and of their sinks.

    Args:
        config: the configuration.
        views: the views.
        schemas: of their tables.
    """
    tables = by_connection(source_tables(views))
    said: list[str | None] = list(unsent_cautions(config, tables, schemas))
    for connection in tables:
        with (
            closing(open_database(config, connection)) as database,
            closing(open_changelog(config, connection, [])) as changelog,
        ):
            said += [database.caution(), changelog.caution()]
    said += follower_cautions(config, views)
    return [text for text in said if text is not None]


def _check_connection(config: Config, views: Sequence[ViewDefinition], table: RelationId) -> None:
    connection = table.connection
    if connection not in config.connections:
        by_fold = {name.casefold(): name for name in config.connections}
        close = get_close_matches(connection.casefold(), by_fold, n=1)
        raise _at(
            views,
            table,
            UserError(
                f"there is no connection {connection!r}",
                allowed=", ".join(config.connections) or "none is configured",
                hint=f"did you mean {by_fold[close[0]]!r}?"
                if close
                else f"add it to {config.path}",
            ),
        )
    if connection not in config.changes:
        raise ConfigError(
            f"connection {connection!r} has no changelog",
            where=str(config.path),
            hint=f"add a section changes.{connection} (source: kafka, files, postgresql or mysql)",
        )


def _at(views: Sequence[ViewDefinition], table: RelationId, error: UserError) -> UserError:
    """The error with a caret under the table in the view that reads it."""
    for view in views:
        for use in view.tables:
            if use.name == table:
                return view.text.error(
                    error.what,
                    (use.start, use.end),
                    got=error.got,
                    allowed=error.allowed,
                    hint=error.hint,
                )
    return error
