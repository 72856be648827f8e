"""The first files of a project, from what a database has: `mview init URL`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from mview.admin.init.files import (
    BY_DEBEZIUM,
    BY_TICDC,
    OWN_LOGS,
    configuration,
    debezium,
    first_view,
)
from mview.config import ChangesSettings, Config, ConnectionSettings
from mview.config.file import load_config
from mview.connector import Database, Examined, Installed, load
from mview.errors import (
    ConfigError,
    MistakesError,
    MviewError,
    NoKeyError,
    UserError,
)
from mview.ingest.spec import open_changelog, open_database

#: What may stand in the name of a connection, as SQL has it without quotes.
_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: URLs as they may be, for messages.
_URLS = (
    "postgresql://user@host:5432/database, mariadb://…, mysql://…, tidb://…, mssql://…, "
    "sqlite:///file.db"
)
#: Drivers that are installed with mview's extras, where the URL names none.
_DRIVERS = {
    "postgresql": "psycopg",
    "mysql": "pymysql",
    "mariadb": "pymysql",
    "mssql": "pyodbc",
}
#: Servers that speak another's protocol, by the word that their URL begins with.
_SPOKEN = {"tidb": "mysql"}
_OF_A_BROKER = (
    "give the URL of the database whose changes are in Kafka; how its topics are named in the file "
    "is in docs/sources.md"
)
#: Rows and bytes of a chunk that no table is larger than: a plan of one asks for the estimate only.
_ALL = 1 << 62


@dataclass(frozen=True)
class FoundTable:
    """A table of the database.

    Attributes:
        name: as the database has it.
        rows: about how many; None where it cannot be read.
        key: columns of its primary key.
        why: why it cannot be read or followed; empty: it can.
        partly: why a view cannot read all of its columns; empty: it can.
        columns: those that it can read, where these are not all.
        needs: the setting of the table in the configuration with which it may be read, where a
            setting is what it lacks.
    """

    name: str
    rows: int | None = None
    key: tuple[str, ...] = ()
    why: str = ""
    partly: str = ""
    columns: tuple[str, ...] = ()
    needs: str = ""


@dataclass(frozen=True)
class NewProject:
    """What was made.

    Attributes:
        connection: the name of the connection in SQL.
        tables: of the database.
        files: that were written; none where no table can be read, whatever is set.
        view: the file of the first view; empty: no table can be read, whatever is set.
        password: the variable of the environment that the password is read from; empty: none.
        triggers: tables for which triggers were made.
        missing: what must be set or granted before tables that can be read can be followed.
    """

    connection: str
    tables: tuple[FoundTable, ...]
    files: tuple[str, ...]
    view: str
    password: str
    triggers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def is_readable(self) -> bool:
        """Whether there is a table for a first view."""
        return any(not table.why for table in self.tables)


def init(url: str, folder: Path, name: str | None = None, *, triggers: bool = False) -> NewProject:
    """Look at a database, and write a configuration and a first view for it.

    Without `triggers` nothing is changed in the database; no file is written over another, and none
    where no table can be read: then the same call is made again when rights were given. Where all
    that can be read need a setting, it stands in the configuration, as a comment.

    Args:
        url: SQLAlchemy's URL, without a password: that is read from `<NAME>_PASSWORD`.
        folder: for the files.
        name: of the connection; the database's by default.
        triggers: make the triggers that note changes, in all tables that can be read; alone, where
            the configuration is there already.

    Raises:
        ConfigError: the URL or the name is wrong, or a file is there already.
        RetryableError: the database cannot be reached.
    """
    parsed = _parsed(url)
    name = name or _name_of(parsed)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a connection",
            allowed="small letters, digits and _, a letter first",
            hint="give another one with --name",
        )
    settings, password = _settings(parsed, name, folder)
    file, view, connector = folder / "mview.yml", folder / "sql", folder / f"debezium-{name}.json"
    dialect = make_url(url).get_backend_name()
    by_debezium = [connector] if dialect in BY_DEBEZIUM else []
    if triggers and dialect != "sqlite":
        raise ConfigError(
            "triggers are for SQLite: this database has a log of its own",
            safe="nothing was made",
            hint="leave --triggers out",
        )
    _there(parsed)
    only_triggers = triggers and file.exists()
    taken = [path for path in (file, view, *by_debezium) if path.exists()]
    if taken and not only_triggers:
        raise ConfigError(
            f"{taken[0]} is there already",
            safe="nothing was written",
            hint="move it away, or have the files made in another folder with --folder, and add "
            "what is in them to yours by hand",
        )
    config = Config(
        path=file.resolve(),
        store=(folder / "store").resolve(),
        connections={name: _connection(name, settings, folder)},
    )
    watched: tuple[str, ...] = ()
    with _before_files(parsed, name, password):
        tables = _tables(config, name)
        if triggers:
            watched, tables = _install(config, name, tables)
        if only_triggers:
            missing = _unfollowed(file, config.connections[name])
            return NewProject(name, tuple(tables), (), "", "", watched, missing)
        good = sorted(
            (t for t in tables if not t.why),
            key=lambda t: (bool(t.partly), -(t.rows or 0), t.name),
        )
        missing = _missing(config, name, dialect, [t.name for t in good])
    if missing and dialect == "sqlite":
        at = "" if folder == Path() else f" --folder {shlex.quote(str(folder))}"
        command = f"mview init {shlex.quote(url)} --triggers{at}"
        missing = (f"SQLite does not note its changes yet: `{command}` has it do so",)
    # Triggers follow no table without a primary key, whatever the configuration says of it.
    needy = [table for table in tables if table.needs] if dialect != "sqlite" else []
    if not good and not needy:
        return NewProject(name, tuple(tables), (), "", password, watched, missing)
    shown = _first(config, name, dialect, [t.name for t in good]) if good else needy[0].name
    called = re.sub(r"[^a-z0-9_]+", "_", shown.lower()).strip("_") or "rows"
    first = view / f"{called}.sql"
    there = next(table for table in tables if table.name == shown)
    made = {
        file: configuration(name, settings, dialect, {t.name: t.needs for t in needy}),
        **{path: debezium(name, parsed) for path in by_debezium},
        first: first_view(name, shown, there.columns, there.partly),
    }
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as output:
            output.write(text)
    files = tuple(map(str, made))
    return NewProject(name, tuple(tables), files, str(first), password, watched, missing)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError(
            "this is no URL of a database",
            allowed=_URLS,
        ) from None
    word = parsed.get_backend_name()
    if word == "kafka":
        raise ConfigError("a broker is no database", allowed=_URLS, hint=_OF_A_BROKER)
    parsed = parsed.set(drivername=_SPOKEN.get(word, parsed.drivername))
    try:
        load("databases", parsed.get_backend_name())
    except ConfigError as error:
        close = error.hint if error.hint and error.hint.startswith("did you mean") else None
        raise ConfigError(error.what, allowed=_URLS, hint=close) from None
    if parsed.password:
        raise ConfigError(
            "the URL has a password",
            safe="it was not used; it stands in your shell's history and was in the process list",
            hint="leave it out: it is read from the environment, see what `mview init` says then",
        )
    if parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            "the URL names no database",
            allowed=_URLS,
            hint="write it at the end of the URL, after a /",
        )
    driver = _DRIVERS.get(parsed.drivername)
    return parsed.set(drivername=f"{parsed.drivername}+{driver}") if driver else parsed


def _there(url: URL) -> None:
    """Refuse a file of SQLite that is not there: a server is asked, a path is written wrongly."""
    file = Path(url.database or "")
    if url.get_backend_name() != "sqlite" or file.exists():
        return
    raise ConfigError(
        f"there is no file {file}",
        where=str(file.absolute()),
        safe="nothing was made",
        hint="sqlite:///shop.db is a file of this folder; the path of one elsewhere begins after "
        "three slashes: sqlite:////srv/shop.db",
    )


def _name_of(url: URL) -> str:
    name = Path(url.database or "").stem.lower()
    return re.sub(r"[^a-z0-9_]+", "_", name).strip("_") or "db"


def _settings(url: URL, name: str, folder: Path) -> tuple[dict[str, object], str]:
    """The settings of the connection, as the file has them, and the password's variable."""
    parts = {
        "drivername": url.drivername,
        "host": url.host,
        "port": url.port,
        "username": url.username,
        "database": url.database,
        "query": dict(url.query) or None,
    }
    settings: dict[str, object] = {
        part: value for part, value in parts.items() if value is not None
    }
    if url.get_backend_name() == "sqlite":  # a path, which the file's folder is the base of
        settings["database"] = os.path.relpath(url.database or "", folder)
    if not url.host:
        return settings, ""
    variable = f"{name.upper()}_PASSWORD"
    return settings | {"password": f"${{env:{variable}}}"}, variable


def _connection(name: str, settings: dict[str, object], folder: Path) -> ConnectionSettings:
    """The same as who reads the file has it."""
    connection = ConnectionSettings.model_validate({"name": name, **settings})
    if connection.drivername != "sqlite":
        return connection
    return connection.model_copy(update={"database": str(folder / str(connection.database))})


@contextmanager
def _before_files(url: URL, name: str, password: str) -> Iterator[None]:
    """Tell an error of the database by what was given: there is no configuration yet."""
    connection = f"connections.{name}"
    try:
        yield
    except MviewError as error:
        if error.where is None or not error.where.startswith((connection, f"changes.{name}")):
            raise
        given = url.set(drivername=url.get_backend_name(), query={}).render_as_string()
        if password:
            given += f", with the password of {password}"
        parts = {**error.parts, "where": given, "safe": "no file was written"}
        raise type(error)(**parts) from None


def _tables(config: Config, connection: str) -> list[FoundTable]:
    tables = []
    with closing(open_database(config, connection)) as database:
        for table in database.tables():
            try:
                tables.append(_table(database, table))
            except UserError as error:
                tables.append(FoundTable(table, why=_why(error), needs=_needs(error)))
    return tables


def _needs(error: UserError) -> str:
    """The setting that mends what is so of a table; empty: none does."""
    if not isinstance(error, NoKeyError) or not error.columns:
        return ""
    return f"key: {json.dumps(error.columns, ensure_ascii=False)}"


def _table(database: Database, table: str) -> FoundTable:
    """A table, with the columns that a view can read.

    Raises:
        UserError: it has no key that can be read, or nobody may read it.
    """
    left, partly = set[str](), list[str]()

    def takes(name: str) -> bool:
        return name not in left

    while True:
        try:
            schema = database.describe(table, takes if left else None)
        except UserError as error:  # at most one of each reason: all of a reason come at once
            if isinstance(error, NoKeyError) or left.issuperset(error.columns):
                raise
            left.update(error.columns)
            partly.append(_partly(error))
        else:
            break
    columns = schema.names if left else ()
    if unsent := database.unsent(table):
        several = "columns" if len(unsent) > 1 else "column"
        partly.append(
            f"the database computes {several} {', '.join(unsent)}, which its log does not have: "
            "write the expression into the view"
        )
    rows = database.plan(table, schema, _ALL, _ALL).rows
    return FoundTable(table, rows, schema.key, "", "; ".join(partly), columns)


def _partly(error: UserError) -> str:
    """Why a view cannot read all columns."""
    said = f"{error.what}: {error.got}" if error.got else error.what
    return f"{said} ({error.where})" if error.where else said


def _install(
    config: Config, name: str, tables: list[FoundTable]
) -> tuple[tuple[str, ...], list[FoundTable]]:
    """Make the triggers of the tables that can be read; those made, and what is so of all tables.

    A table that triggers cannot follow has no view to begin with: `check` would refuse it.
    """
    readable = [table.name for table in tables if not table.why]
    following = _following(config, name, "sqlite")
    with closing(open_changelog(following, name, readable)) as changelog:
        assert isinstance(changelog, Installed)
        made = tuple(changelog.install())
    return made, [table if table.why else _followed(following, name, table) for table in tables]


def _followed(config: Config, name: str, table: FoundTable) -> FoundTable:
    with closing(open_changelog(config, name, [table.name])) as changelog:
        try:
            changelog.check()
        except UserError as error:
            return replace(table, why=_why(error))
    return table


def _unfollowed(file: Path, connection: ConnectionSettings) -> tuple[str, ...]:
    """Which connections of a configuration are of this file of SQLite, and do not read triggers."""
    try:
        config = load_config(file)
    except UserError:  # told, with all that is wrong in it, by whatever reads it next
        return ()
    database = Path(str(connection.database)).resolve()
    of_it = [
        name
        for name, there in config.connections.items()
        if there.drivername.startswith("sqlite") and Path(str(there.database)).resolve() == database
    ]
    if not of_it:
        given = os.path.relpath(database, file.resolve().parent)
        name = next(n for n in _free(connection.name) if n not in config.connections)
        return (
            f"{file} has no connection to this database, so nothing reads the triggers; write "
            f"there, under connections: {name}: {{drivername: sqlite, database: {json.dumps(given)}"
            f"}}; and under changes: {name}: {{source: sqlite, T: 1 second}}",
        )
    return tuple(
        f"{file} does not follow {name} by its triggers yet; write there, under changes: "
        f"{name}: {{source: sqlite, T: 1 second}}"
        for name in of_it
        if name not in config.changes or config.changes[name].source != "sqlite"
    )


def _free(name: str) -> Iterator[str]:
    """The name, and others like it."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _missing(config: Config, name: str, dialect: str, tables: list[str]) -> tuple[str, ...]:
    """What a log lacks: the database's own, or that which Debezium reads.

    Of a server also where no table can be read yet: who grants the one can grant the other.
    """
    if not tables and dialect == "sqlite":
        return ()
    if dialect in BY_TICDC:  # which sends what a foreign key changes, too
        return ()
    if dialect not in OWN_LOGS:
        return tuple(dict.fromkeys(_unsent(config, name, tables)))
    with closing(open_changelog(_following(config, name, dialect), name, tables)) as changelog:
        try:
            changelog.check()
        except MistakesError as error:
            return tuple(map(_why, error.errors))
        except UserError as error:
            return (_why(error),)
    return ()


def _following(config: Config, name: str, dialect: str) -> Config:
    changes = {name: ChangesSettings.model_validate({"connection": name, "source": dialect})}
    return config.model_copy(update={"changes": changes})


def _first(config: Config, name: str, dialect: str, tables: list[str]) -> str:
    """The first table whose changes can be followed: `check` would refuse another one's view.

    The first of all where there is none.
    """
    if dialect in BY_TICDC or dialect == "sqlite":
        return tables[0]
    if dialect not in OWN_LOGS:
        return next((t for t in tables if not [*_unsent(config, name, [t])]), tables[0])
    with closing(open_changelog(_following(config, name, dialect), name, [])) as changelog:
        assert isinstance(changelog, Examined)
        for look in changelog.looks(tables, None):
            try:
                if look.table:
                    look.ask()
                    return look.table
            except UserError:
                continue  # `_missing` has told it
    return tables[0]


def _unsent(config: Config, name: str, tables: list[str]) -> Iterator[str]:
    """Of tables whose changes others send, what the database says of them."""
    with closing(open_database(config, name)) as database:
        for table in tables:
            try:
                database.check_log(table)
            except UserError as error:
                yield _why(error)


def _why(error: UserError) -> str:
    return "; ".join(str(part) for part in (error.what, error.got, error.hint) if part)
