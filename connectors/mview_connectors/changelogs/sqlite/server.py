"""A SQLite database whose changes triggers note: what is made in it, looked at, read and pruned."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import orjson

from mview.clock import SourceMs
from mview.config import ConnectionSettings
from mview.errors import AwayError, ConfigError, UserError, counted
from mview.relation import TableName
from mview_connectors.changelogs.sqlite.triggers import (
    OURS,
    TABLES,
    KeyPart,
    WatchedTable,
    cells,
    identifier,
    names_of,
    triggers_of,
)
from mview_connectors.databases.sqlite import SqliteDatabase

#: Rows of one DELETE: writers wait for it, some milliseconds.
_PRUNED = 5_000


class Layout(NamedTuple):
    """What the columns of noted changes are.

    Attributes:
        number: by which changes name it.
        table: whose changes they are.
        made: names the moment since which no change of the table was missed.
        columns: the names of c1, c2, …
        key: those of them that are the key.
    """

    number: int
    table: str
    made: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


class NotedChange(NamedTuple):
    """A place among the changes: its id and time; the bytes of its values, and its layout."""

    id: int
    ms: SourceMs
    size: int = 0
    layout: int = 0


class Extent(NamedTuple):
    """Of changes: how many, bytes of them, the newest time, and the last id (0 of none)."""

    changes: int
    size: int
    newest: SourceMs
    last: int


#: More than SQLite counts is no limit.
_ALL = (1 << 63) - 1


class SqliteServer(SqliteDatabase):
    """A SQLite file that is written to, too; each method is one transaction."""

    mode: ClassVar[str] = "rw"

    # --- what triggers need ----------------------------------------------------------------------

    def install(self, tables: Sequence[str]) -> list[str]:
        """Make the tables and triggers that are missing; the names of the tables it made them for.

        Tables that triggers cannot follow are left out: `check_tables` says why.
        """
        made = []
        with self._writing("installing triggers") as cursor:
            for statement in TABLES:
                cursor.execute(statement)
            if not cursor.execute(f"SELECT 1 FROM {OURS}database").fetchall():
                cursor.execute(f"INSERT INTO {OURS}database VALUES (?)", (uuid.uuid4().hex,))
            for name in tables:
                with suppress(UserError):
                    if self._install(cursor, self._watched(cursor, name)):
                        made.append(name)
        return made

    def _install(self, cursor: Any, table: WatchedTable) -> bool:
        layout = _layouts(cursor).get(table.name)
        going = layout is not None and self._in_place(cursor, table, layout)
        if going and layout is not None and layout.columns == table.columns:
            return False
        # Triggers that were in place all the time missed nothing: the table has only got columns.
        made = layout.made if going and layout is not None else uuid.uuid4().hex
        for trigger in names_of(table.name):
            cursor.execute(f"DROP TRIGGER IF EXISTS {identifier(trigger)}")
        for ours in (f"{OURS}changes", f"{OURS}replaced"):
            there = {name for (name,) in _columns(cursor, ours)}
            for cell in cells(len(table.columns)):
                if cell not in there:
                    cursor.execute(f"ALTER TABLE {ours} ADD COLUMN {cell}")
        columns, keys = (
            orjson.dumps(names).decode()
            for names in (table.columns, [part.name for part in table.key])
        )
        cursor.execute(
            f"INSERT INTO {OURS}layouts (name, made, columns, keys) VALUES (?, ?, ?, ?)",
            (table.name, made, columns, keys),
        )
        for statement in triggers_of(table, cursor.lastrowid).values():
            cursor.execute(statement)
        return True

    def _watched(self, cursor: Any, table: str) -> WatchedTable:
        name_there = TableName.of(table).table
        columns = tuple(
            name
            for (name,) in cursor.execute(
                "SELECT name FROM pragma_table_xinfo(?) WHERE hidden != 1", (name_there,)
            )
        )
        keyed = cursor.execute(
            "SELECT name FROM pragma_table_xinfo(?) WHERE pk ORDER BY pk", (name_there,)
        ).fetchall()
        key = tuple(KeyPart(name, "BINARY") for (name,) in keyed)
        if columns and not key:
            raise UserError(
                f"triggers cannot follow {self.place(table)}: it has no primary key",
                where=self._server(),
                safe="nothing was made",
                hint="give the table a PRIMARY KEY, or write its changes into files",
            )
        uniques = []
        indexes = cursor.execute(
            'SELECT name, origin, partial FROM pragma_index_list(?) WHERE "unique" ORDER BY name',
            (name_there,),
        ).fetchall()
        for index, origin, partial in indexes:
            parts = tuple(
                KeyPart(name, collation)
                for name, collation in cursor.execute(
                    "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno",
                    (index,),
                )
            )
            if partial or any(part.name is None for part in parts):
                raise UserError(
                    f"unique index {index} of {self.place(table)} has a condition or an expression",
                    where=self._server(),
                    safe="nothing was made",
                    hint="REPLACE may delete rows by it that no trigger sees: drop the index, or "
                    "make one of plain columns",
                )
            if origin == "pk":
                key = parts
            else:
                uniques.append(parts)
        return WatchedTable(name_there, columns, key, tuple(uniques))

    def _in_place(self, cursor: Any, table: WatchedTable, layout: Layout) -> bool:
        """Whether the triggers are those that note all changes of a layout's columns."""
        if not {*layout.columns} <= {*table.columns}:
            return False
        expected = triggers_of(table._replace(columns=layout.columns), layout.number)
        marks = ", ".join("?" * len(names := names_of(table.name)))
        there = cursor.execute(
            f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name IN ({marks})",
            names,
        )
        return dict(there.fetchall()) == expected

    # --- what must be as it was ------------------------------------------------------------------

    def facts(self, tables: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Of the tables whose triggers are in place: since when, and the declared columns."""
        with self._reading("looking at the triggers") as cursor:
            return self._facts(cursor, tables)

    def _facts(self, cursor: Any, tables: Sequence[str]) -> dict[str, dict[str, Any]]:
        facts = {}
        layouts = _layouts(cursor)
        for name in tables:
            table = self._watched(cursor, name)
            layout = layouts.get(table.name)
            if layout is None or not self._in_place(cursor, table, layout):
                continue
            declared = dict(
                cursor.execute(
                    "SELECT name, type FROM pragma_table_xinfo(?)", (table.name,)
                ).fetchall()
            )
            columns = {column: declared[column] for column in layout.columns}
            facts[name] = {"made": layout.made, "columns": columns}
        return facts

    def begin(
        self, reader: str, tables: Sequence[str]
    ) -> tuple[str, NotedChange, dict[str, dict[str, Any]]]:
        """Note a reader; the database's identity, the newest change, and the facts of the tables.

        What is committed later has larger ids: see `LogLook`.
        """
        with self._writing("beginning to read changes") as cursor:
            look = _look(cursor, 0)
            cursor.execute(
                f"INSERT INTO {OURS}readers VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (reader, look.newest.id, look.newest.ms),
            )
            return look.database, look.newest, self._facts(cursor, tables)

    def look(self, place: int) -> LogLook:
        """The clock, and then the log."""
        with self._reading("looking for changes") as cursor:
            return _look(cursor, place)

    # --- changes ---------------------------------------------------------------------------------

    def changes(self, after: int, to: int, tables: Sequence[str], most: int) -> list[NotedChange]:
        """The next changes of tables after an id, up to another, with their sizes."""
        with self._reading("looking for changes") as cursor:
            rows = cursor.execute(_changes(cursor, tables), (after, to, min(most, _ALL)))
            return [NotedChange(*row) for row in rows.fetchall()]

    def extent(self, after: int, to: int, tables: Sequence[str], most: int) -> Extent:
        """How much the changes of tables are after an id, up to another; the first of them only."""
        with self._reading("looking for changes") as cursor:
            rows = cursor.execute(
                "SELECT count(*), coalesce(sum(size), 0), coalesce(max(at_ms), 0), "
                f"coalesce(max(id), 0) FROM ({_changes(cursor, tables)})",
                (after, to, min(most, _ALL)),
            )
            return Extent(*rows.fetchall()[0])

    def change(self, number: int) -> NotedChange:
        """The change of an id, which is there."""
        with self._reading("looking for changes") as cursor:
            rows = cursor.execute(
                f"SELECT id, at_ms FROM {OURS}changes WHERE id = ?", (number,)
            ).fetchall()
            return NotedChange(*rows[0])

    def count(self, after: int, to: int, tables: Sequence[str]) -> int:
        """How many changes of tables there are after an id, up to another."""
        with self._reading("looking for changes") as cursor:
            wanted = _wanted(cursor, tables)
            rows = cursor.execute(
                f"SELECT count(*) FROM {OURS}changes WHERE id > ? AND id <= ? "
                f"AND layout IN ({wanted})",
                (after, to),
            )
            return int(rows.fetchall()[0][0])

    def rows(
        self, after: int, to: int, tables: Sequence[str]
    ) -> Iterator[tuple[int, int, str, Layout, tuple[Any, ...]]]:
        """Id, time, op, layout and values of changes; all are read at once: a split is small."""
        with self._reading("reading changes") as cursor:
            layouts = {layout.number: layout for layout in _all_layouts(cursor)}
            columns = [name for (name,) in _columns(cursor, f"{OURS}changes") if name[0] == "c"]
            names = ", ".join(["id", "at_ms", "op", "layout", *columns])
            rows = cursor.execute(
                f"SELECT {names} FROM {OURS}changes WHERE id > ? AND id <= ? "
                f"AND layout IN ({_wanted(cursor, tables)}) ORDER BY id",
                (after, to),
            ).fetchall()
        for number, ms, op, layout, *values in rows:
            yield number, ms, op, layouts[layout], tuple(values)

    def confirm(self, reader: str, place: int, ms: int) -> None:
        """Note how far a reader has published, and delete what none needs any more.

        It may wait for another time: who writes now goes first.
        """
        with suppress(AwayError), self._writing("pruning changes", patience_ms=50) as cursor:
            cursor.execute(
                f"INSERT INTO {OURS}readers VALUES (?, ?, ?) ON CONFLICT (reader) DO UPDATE "
                "SET id = excluded.id, at_ms = excluded.at_ms",
                (reader, place, ms),
            )
            cursor.execute(
                f"DELETE FROM {OURS}changes WHERE id IN (SELECT id FROM {OURS}changes WHERE id < "
                f"(SELECT min(id) FROM {OURS}readers) ORDER BY id LIMIT {_PRUNED})"
            )

    def leave(self, reader: str) -> None:
        """Forget a reader, if it is known: what it alone has needed goes with the next pruning.

        After the last one nobody prunes: what is there goes at once. The triggers note on.
        """
        with self._writing("ending a reader of changes") as cursor:
            if not _columns(cursor, f"{OURS}readers"):
                return
            cursor.execute(f"DELETE FROM {OURS}readers WHERE reader = ?", (reader,))
            if not cursor.execute(f"SELECT 1 FROM {OURS}readers LIMIT 1").fetchall():
                cursor.execute(f"DELETE FROM {OURS}changes")

    def kept(self) -> str:
        """How many changes are kept, and for whom, for people."""
        with self._reading("looking for readers") as cursor:
            if not _columns(cursor, f"{OURS}readers"):
                return "no changes are kept yet"
            ((changes,),) = cursor.execute(f"SELECT count(*) FROM {OURS}changes").fetchall()
            readers = cursor.execute(
                f"SELECT reader FROM {OURS}readers ORDER BY id, reader"
            ).fetchall()
        first = f", {readers[0][0]} is the furthest behind" if readers else ""
        return f"{counted(changes, 'change')} kept for {counted(len(readers), 'reader')}{first}"

    # --- transactions ----------------------------------------------------------------------------

    @contextmanager
    def _reading(self, task: str) -> Iterator[Any]:
        with self._transaction("BEGIN", task, 5_000) as cursor:
            yield cursor

    @contextmanager
    def _writing(self, task: str, patience_ms: int = 10_000) -> Iterator[Any]:
        with self._transaction("BEGIN IMMEDIATE", task, patience_ms) as cursor:
            yield cursor

    @contextmanager
    def _transaction(self, begin: str, task: str, patience_ms: int) -> Iterator[Any]:
        with self._connection(task) as connection:
            cursor = connection.cursor()
            try:
                cursor.execute(f"PRAGMA busy_timeout = {patience_ms}")
                cursor.execute(begin)
                yield cursor
                cursor.execute("COMMIT")
            finally:
                cursor.close()

    # --- errors ----------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        """Where it is, for messages."""
        return self._server()

    @property
    def command(self) -> str:
        """What installs the triggers."""
        path = Path(self._server()).expanduser().absolute()
        return f"`mview init 'sqlite:///{path}' --triggers`"

    def check_tables(self, tables: Sequence[str], read: Mapping[str, Collection[str]]) -> None:
        """Make sure that the triggers of tables are in place, and note what is read.

        Args:
            tables: their names.
            read: the columns that are read, by table; of other tables: all.

        Raises:
            ConfigError: with the command that installs them.
        """
        ready = self.facts(tables)
        for name in tables:
            columns = ready.get(name, {"columns": {}})["columns"]
            settings, there = self._settings.table(name), self._read_columns(name)
            needed = read.get(name, there)
            lacking = [c for c in there if c in needed and settings.reads(c) and c not in columns]
            if lacking:
                what = f"do not note {', '.join(lacking)}" if columns else "are not installed"
                raise ConfigError(
                    f"the triggers of {self.place(name)} {what}",
                    where=self.server,
                    safe="nothing was made",
                    hint=f"{self.command} installs them",
                )


class LogLook(NamedTuple):
    """The log at a moment.

    SQLite has one writer at a time, and gives ids while it writes: so the order of the ids is that
    of the commits, and whatever is committed after this moment has larger ones.

    Attributes:
        clock: before the moment: every change that was committed up to it is there.
        database: the identity of the database; empty: no triggers were ever installed.
        newest: the newest change; its time is 0 where it is there no more.
        at: the time of the change at the place that was asked for; None: it is not there.
        schema: another number where anything was made, altered or dropped.
    """

    clock: SourceMs
    database: str
    newest: NotedChange
    at: SourceMs | None
    schema: int


def _look(cursor: Any, place: int) -> LogLook:
    clock = SourceMs(time.time_ns() // 1_000_000 - 1)  # in this millisecond more may be committed
    ((schema,),) = cursor.execute("PRAGMA schema_version").fetchall()
    if not _columns(cursor, f"{OURS}database"):
        return LogLook(clock, "", NotedChange(0, SourceMs(0)), None, schema)
    ids = [row[0] for row in cursor.execute(f"SELECT id FROM {OURS}database").fetchall()]
    numbers = cursor.execute(
        "SELECT seq FROM sqlite_sequence WHERE name = ?", (f"{OURS}changes",)
    ).fetchall()
    newest = numbers[0][0] if numbers else 0
    times = dict(
        cursor.execute(
            f"SELECT id, at_ms FROM {OURS}changes WHERE id IN (?, ?)", (place, newest)
        ).fetchall()
    )
    at = NotedChange(newest, SourceMs(times.get(newest, 0)))
    return LogLook(clock, ids[0] if ids else "", at, times.get(place), schema)


def _columns(cursor: Any, table: str) -> list[tuple[str]]:
    return list(cursor.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall())


def _all_layouts(cursor: Any) -> list[Layout]:
    if not _columns(cursor, f"{OURS}layouts"):
        return []
    rows = cursor.execute(
        f"SELECT id, name, made, columns, keys FROM {OURS}layouts ORDER BY id"
    ).fetchall()
    return [
        Layout(number, name, made, tuple(orjson.loads(columns)), tuple(orjson.loads(keys)))
        for number, name, made, columns, keys in rows
    ]


def _layouts(cursor: Any) -> Mapping[str, Layout]:
    """The newest layout of each table."""
    return {layout.table: layout for layout in _all_layouts(cursor)}


def _changes(cursor: Any, tables: Sequence[str]) -> str:
    """SQL of the changes of tables after an id, up to another, and so many at the most."""
    names = [name for (name,) in _columns(cursor, f"{OURS}changes") if name[0] == "c"]
    size = " + ".join(f"coalesce(length(CAST({n} AS BLOB)), 0)" for n in names) or "0"
    return (
        f"SELECT id, at_ms, 50 + {size} AS size, layout FROM {OURS}changes WHERE id > ? "
        f"AND id <= ? AND layout IN ({_wanted(cursor, tables)}) ORDER BY id LIMIT ?"
    )


def _wanted(cursor: Any, tables: Sequence[str]) -> str:
    """The numbers of the layouts of tables, in SQL."""
    names = {TableName.of(table).table for table in tables}
    return ", ".join(str(known.number) for known in _all_layouts(cursor) if known.table in names)


def server_of(database: ConnectionSettings) -> SqliteServer:
    """The database of a connection.

    Raises:
        ConfigError: it is none of SQLite.
    """
    if database.drivername.partition("+")[0] != "sqlite":
        raise ConfigError(
            "source 'sqlite' follows SQLite databases only",
            where=f"connections.{database.name}.drivername",
            got=database.drivername,
            hint="choose the source of that database: see docs/sources.md",
        )
    return SqliteServer(database)
