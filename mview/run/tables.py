"""What a run reads of tables, which it loads anew, and which views wait for one of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from textwrap import dedent
from types import MappingProxyType
from typing import NamedTuple

from mview.catalog.definitions import is_another
from mview.catalog.tables import as_they_are, describe_tables, lacking
from mview.config import Config
from mview.epoch.halts import SAFE, ReadsHaltedError, needs_halted_table
from mview.errors import MviewError, UserError, typed
from mview.ingest.spec import open_changelog, open_database
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.schema import TableSchema
from mview.store.manifest import Manifest, schemas_of

#: How an error begins of a column that is not there.
_COLUMN = re.compile(r"unknown column '([^']*)'")


class RunTables(NamedTuple):
    """The tables of a run.

    Attributes:
        schemas: what is read of every table that is followed.
        anew: loaded ones, or halted ones, that are loaded anew, and why.
        refused: views that need a table that has halted and cannot be loaded anew, and why.
    """

    schemas: dict[RelationId, TableSchema]
    anew: dict[RelationId, str]
    refused: dict[str, MviewError]


def tables_of(
    config: Config,
    definitions: Sequence[ViewDefinition],
    manifest: Manifest,
    left: Collection[RelationId] = (),
    refusing: Mapping[RelationId, UserError] = MappingProxyType({}),
) -> RunTables:
    """The tables that views read.

    A table that is not there, or cannot be read any more, is no reason not to begin, where the
    store has had all views that read it: these wait.

    Args:
        config: the configuration.
        definitions: of all views that are to be kept.
        manifest: the newest one.
        left: halted tables that are left as they are.
        refusing: tables whose load their source has refused to begin, and why: the views that read
            them wait, new ones, too.

    Raises:
        UserError: a new or edited view reads a table that cannot be read.
        RetryableError: a database that must be asked cannot be reached.
    """
    anew = {
        name: why
        for name, why in tables_anew(config, definitions, manifest).items()
        if name not in left
    }
    known = {name: schema for name, schema in loaded_schemas(manifest).items() if name not in anew}
    gone: dict[RelationId, UserError] = {}
    unfollowed: set[RelationId] = set()
    new = [view for view in definitions if is_another(view, manifest)]
    must = {table for view in new for table in view.table_names}
    schemas = followed(config, manifest) | describe_tables(config, definitions, known, gone, must)
    for name in anew:
        if manifest.source_tables[name].halted and name not in must and name not in gone:
            try:  # of others a start asks with all that it reads
                columns = {name.name: manifest.source_tables[name].schema.names}
                log = open_changelog(config, name.connection, [name.name], columns)
                with closing(log) as changelog:
                    changelog.check()
            except UserError as error:
                gone[name] = error
                unfollowed.add(name)
                schemas[name] = manifest.source_tables[name].schema
    schemas = {name: schema for name, schema in schemas.items() if name not in refusing}
    refused: dict[str, MviewError] = {}
    for view in definitions:
        for table in view.table_names:
            state = manifest.source_tables.get(table)
            if table in refusing:
                refused[view.name] = _waits(view, table, refusing[table])
            elif table in unfollowed:
                refused[view.name] = _waits(view, table, gone[table])
            elif table in gone:
                refused[view.name] = _needs(view, table, gone[table])
            elif state is not None and state.halted and table not in anew:
                refused[view.name] = needs_halted_table(view.name, table, state.halted)
    # What had halted while it was loaded begins anew, when it does.
    half = {n for n, s in manifest.source_tables.items() if s.halted and s.phase == "loading"}
    anew = {n: why for n, why in anew.items() if n not in gone}
    schemas = {n: schema for n, schema in schemas.items() if n not in half - anew.keys()}
    return RunTables(schemas, anew, refused)


def _waits(view: ViewDefinition, table: RelationId, error: UserError) -> ReadsHaltedError:
    what, _, more = str(error.render()).partition("\n")
    return ReadsHaltedError(
        f"view {view.name} waits for table {table}, which its source refuses: {what}",
        got=dedent(more),
        safe=SAFE,
        hint=f"then run again, or `mview apply` a view that reads {table}",
    )


def _needs(view: ViewDefinition, table: RelationId, error: UserError) -> UserError:
    return UserError(
        f"view {view.name} needs table {table}, which cannot be read any more: {error.what}",
        where=view.file,
        got=error.got,
        allowed=error.allowed,
        safe=SAFE,
        hint=f"make {table} as it was and run again: it is loaded anew; or change the view, or "
        f"`mview drop {typed(view.name)}`",
    )


def tables_anew(
    config: Config, definitions: Sequence[ViewDefinition], manifest: Manifest
) -> dict[RelationId, str]:
    """The tables that are to be loaded anew, and why.

    Columns that a table has got since it was loaded are there for new and edited views, and for
    those that are built anew in any case.
    """
    loaded, states = loaded_schemas(manifest), manifest.views
    new = [v for v in definitions if is_another(v, manifest) or states[v.name].stale]
    now = as_they_are(config, new, loaded)
    halted = halted_tables(definitions, manifest)
    return lacking(config, new, now) | lacking(config, definitions, loaded) | halted


def halted_tables(
    definitions: Sequence[ViewDefinition], manifest: Manifest
) -> dict[RelationId, str]:
    """The tables that views read and that have halted, and so why they are loaded anew."""
    read = {table for view in definitions for table in view.table_names}
    return {
        name: "it had halted"
        for name, state in manifest.source_tables.items()
        if state.halted and name in read
    }


def loaded_schemas(manifest: Manifest) -> dict[RelationId, TableSchema]:
    """What is read of the tables that are in the store."""
    return schemas_of(manifest.source_tables)


def followed(config: Config, manifest: Manifest) -> dict[RelationId, TableSchema]:
    """Loaded tables; they go on without a view that reads them, to be right when one does again.

    Half loaded ones that no view reads, and those whose connection is gone, are left. Halted ones
    stay as they are.
    """
    return {
        name: state.schema
        for name, state in manifest.source_tables.items()
        if (state.phase == "loaded" or state.halted) and name.connection in config.changes
    }


def go_on(manifest: Manifest, anew: Collection[RelationId]) -> set[RelationId]:
    """Tables whose log is read on from where it was, as they are not loaded (anew)."""
    states = manifest.source_tables.items()
    return {n for n, s in states if s.phase == "loaded" and not s.halted and n not in anew}


def are_others(
    config: Config, tables: Collection[RelationId], loaded: Mapping[RelationId, TableSchema]
) -> set[RelationId]:
    """Those of some tables whose columns, as far as they are read, are others than when loaded.

    Raises:
        RetryableError: a database cannot be reached.
    """
    others = set()
    for name in tables:
        schema = loaded[name]
        with closing(open_database(config, name.connection)) as database:
            try:
                now = database.describe(name.name, set(schema.names).__contains__)
            except UserError:
                others.add(name)
                continue
        if (now.columns, now.key) != (schema.columns, schema.key):
            others.add(name)
    return others


def with_column_told(
    definitions: Sequence[ViewDefinition],
    refused: Mapping[str, MviewError],
    manifest: Manifest,
    before: Mapping[RelationId, TableSchema],
    now: Mapping[RelationId, TableSchema],
) -> dict[str, MviewError]:
    """Why views are refused; where a column that the store has had is gone, with its table.

    Args:
        definitions: of all views.
        refused: why some are.
        manifest: the newest one: the views that the store has had.
        before: the tables as they were loaded.
        now: as they are.
    """
    told = dict(refused)
    for view in definitions:
        error = refused.get(view.name)
        if error is None or is_another(view, manifest) or not (m := _COLUMN.match(error.what)):
            continue
        has = {table: now[table] for table in view.table_names if table in now}
        lost = [t for t in has if t in before and m[1] in (*before[t].names, *before[t].unread)]
        # In a later run nobody knows of which of its tables it was.
        tables = [t for t in lost or has if m[1] not in has[t].names]
        if tables:
            there = dict.fromkeys(n for t in tables for n in (*has[t].names, *has[t].unread))
            told[view.name] = UserError(
                f"view {view.name} needs column {m[1]!r} of table "
                f"{' or '.join(map(str, tables))}, which is gone: it was dropped or renamed, or "
                "the database computes it now, and its log does not have it",
                where=error.where,
                allowed=", ".join(there),
                safe=SAFE,
                hint="change the view, or give the table the column again; then run again, or "
                f"`mview apply` a view that reads {tables[0]}",
            )
    return told
