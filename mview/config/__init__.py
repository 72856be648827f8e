"""Settings and what they may be; secrets in them stay unresolved (mview/secrets.py)."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from mview.clock import DAY_MS, DURATION_EXAMPLES, parse_duration
from mview.config.meaning import check_meaning
from mview.config.window import DailyWindow, parse_window
from mview.errors import UserError
from mview.files.yamlfile import shown
from mview.relation import TableName
from mview.rows.where import columns_of, parse_where
from mview.schema import parse_type, type_name
from mview.secrets import REFERENCE, is_secret, is_telling, reveal, secrets_of

#: The longest duration of a setting: what is longer was meant otherwise.
_LONGEST_MS = 366 * DAY_MS


def _duration(value: object) -> int:
    """Milliseconds of a setting; a bare number is seconds."""
    duration: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        duration = value * 1000
    elif isinstance(value, str):
        duration = parse_duration(value)
    if duration is None:
        raise ValueError(f"must be a duration; write {DURATION_EXAMPLES}")
    if not 0 <= duration <= _LONGEST_MS:  # NaN is not
        raise ValueError("must be a duration from 0 to 366 days")
    return int(duration)


def _port(value: object) -> object:
    """A port as a number, or a reference to one."""
    if isinstance(value, str) and REFERENCE.search(value):
        return value
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 65_536:
        raise ValueError("must be a port, 1 to 65535")
    return number


def is_url(text: str) -> bool:
    """Whether a text looks like a URL, or like what stands before its host.

    >>> is_url("pg://db"), is_url("u:pw@db"), is_url("db:5432"), is_url("${env:DB_USER}@tenant")
    (True, True, False, False)
    """
    plain = REFERENCE.sub("", text)
    return "://" in plain or _USERINFO.search(plain) is not None


def _no_url(value: str) -> str:
    """A part of a URL; in a whole one there may be a password, so the message has no value."""
    if is_url(value):
        raise ValueError("must not be a URL with a user in it: write its parts one by one")
    return value


def _no_list(value: object) -> object:
    """What a sink may be given; a list or nothing would be taken for text."""
    for option in value.values() if isinstance(value, dict) else ():
        if option is None or isinstance(option, list):
            raise ValueError("its options must be text, numbers, true or false")
        _no_list(option)
    return value


def broker_list(value: str) -> str:
    """Brokers as the Kafka client takes them; the message has no value, as there may be a password.

    >>> broker_list("k1:9092, k2:9092")
    'k1:9092, k2:9092'
    """
    plain = REFERENCE.sub("", value)
    if (protocol := _PROTOCOL.search(plain)) and not _USERINFO.search(plain):
        raise ValueError(
            f"must be host:port, several with commas, without {protocol[0].upper()}; the protocol "
            f"is an option: write options: {{security.protocol: {protocol[1].upper()}}}"
        )
    return _no_url(value)


def _http_url(value: str) -> str:
    """The URL of an HTTP server, without a user."""
    if not value.startswith(("http://", "https://")) or "@" in value:
        raise ValueError("must be a URL such as http://connect.example.org:8083, without a user")
    return value


def _url_of_events(value: str) -> str:
    """The URL of a catalogue: messages show it, so nothing in it may be a secret."""
    if any(part in value for part in ("?", "#", "${")):
        raise ValueError(
            "must have no '?', '#' or '${', as messages show it: write a key as api_key, such as "
            "${env:NAME}"
        )
    return _http_url(value)


#: What brokers are announced with, and some write before their addresses.
_PROTOCOL = re.compile(r"\b(plaintext|ssl|sasl_plaintext|sasl_ssl)://", re.IGNORECASE)

#: `user:password@` before a host.
_USERINFO = re.compile(r"[^\s/@:]*:[^\s/@]*@")

#: Milliseconds; written as a duration.
Duration = Annotated[int, BeforeValidator(_duration)]

#: How long a log that is behind may hold the others: not at all, as long as it takes, or so long.
_PATIENCE = {"fresh": 0, "wait": _LONGEST_MS}


def _alignment(value: object) -> int:
    if isinstance(value, str) and value in _PATIENCE:
        return _PATIENCE[value]
    try:
        return _duration(value)
    except ValueError:
        raise ValueError(f"must be fresh, wait or a duration: {DURATION_EXAMPLES}") from None


Part = Annotated[str, AfterValidator(_no_url)]
Filled = Annotated[str, Field(min_length=1)]
#: A whole number above 0; what is larger was meant otherwise.
Count = Annotated[int, Field(strict=True, gt=0, lt=1 << 53)]
#: A part of each day.
Window = Annotated[DailyWindow, BeforeValidator(parse_window)]


_BY_REFERENCE = "write ${env:NAME} or ${file:PATH}, not the password itself"


def by_reference(value: dict[str, str]) -> dict[str, str]:
    """Options of a client, none of which is a secret in plain text."""
    for name, text in value.items():
        if is_secret(name, text):
            raise ValueError(f"{shown(name)}: {_BY_REFERENCE}")
    return value


class Settings(BaseModel):
    """Base of all settings: unknown keys are errors."""

    #: Fields that may hold secrets. Hosts, users and topics are none: messages need them.
    hidden: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(extra="forbid", frozen=True)


class LoadSettings(Settings):
    """How gently chunks are read, of a table or of all tables of a connection."""

    #: Rows that are read per second, in the mean; None: as fast as it goes.
    rows_per_second: Count | None = None
    #: When chunks are read; None: at any time.
    window: Window | None = None


class TableLoadSettings(LoadSettings):
    """The same for a table; what is said of its connection holds as well."""

    #: Of the tables that may be read, those of the highest come first.
    priority: int = Field(default=0, strict=True, ge=-1000, le=1000)


class ConnectionLoadSettings(LoadSettings):
    """The same for all tables of a connection together."""

    #: Tables that are read side by side; None: all.
    tables_at_once: Count | None = None


def _condition(value: str) -> str:
    """A condition on rows, written in one way."""
    return str(parse_where(value))


class TableSettings(Settings):
    """What is read of a table of a connection, how, and what tells its rows apart."""

    #: The columns that are read; None: those that views use. `all`: also those that none uses.
    columns: Literal["all"] | Annotated[list[Filled], Field(min_length=1)] | None = None
    #: Columns that are not read, whatever views use.
    exclude: list[Filled] = []
    #: The rows that are read, by a condition on each alone; None: all.
    where: Annotated[Filled, AfterValidator(_condition)] | None = None
    #: Columns that tell rows apart, where it is not the primary key or a unique index that does.
    key: Annotated[list[Filled], Field(min_length=1)] | None = None
    #: How gently it is read.
    load: TableLoadSettings = TableLoadSettings()
    #: Types of columns whose own has no equal, or a wider one: `string`, `decimal(12,2)`.
    types: dict[Filled, str] = {}

    def reads(self, column: str) -> bool:
        """Whether a column may be read."""
        return column not in self.exclude and (self.listed is None or column in self.listed)

    @property
    def listed(self) -> list[str] | None:
        """The columns that are listed; None: no list is given."""
        return None if self.columns == "all" else self.columns

    @property
    def asked(self) -> frozenset[str]:
        """The columns that `where` needs."""
        return frozenset() if self.where is None else columns_of(parse_where(self.where))

    @property
    def named(self) -> list[str]:
        """All columns that are named."""
        return [
            *(self.listed or ()),
            *self.exclude,
            *(self.key or ()),
            *self.types,
            *sorted(self.asked),
        ]

    @field_validator("types")
    @classmethod
    def _are_types(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            try:
                kind = type_name(parse_type(text))
            except (UserError, ValueError):
                kind = ""
            if not kind.startswith(("string", "decimal")):
                raise ValueError(
                    f"{shown(name)}: a column can be read as string or as decimal(p,s)"
                )
        return value

    @model_validator(mode="after")
    def _key_is_read(self) -> TableSettings:
        if self.listed is not None and self.exclude:
            raise ValueError("give 'columns' or 'exclude', not both")
        if left := [name for name in self.key or () if not self.reads(name)]:
            raise ValueError(f"column {shown(left[0])} is of the key, and must be read")
        if left := [name for name in sorted(self.asked) if not self.reads(name)]:
            raise ValueError(f"column {shown(left[0])} stands in 'where', and must be read")
        return self


#: What names the schema of tables that are named without one, and what it is if nothing does.
_SCHEMA_PARTS = {
    "mysql": "database",
    "mariadb": "database",
    "postgresql": "namespace",
    "mssql": "namespace",
}
_OWN_SCHEMAS = {"postgresql": "public", "mssql": "dbo"}

#: Of a table that the settings do not name.
_ALL_OF_IT = TableSettings()


class ConnectionSettings(Settings):
    """A source database, as the parts of an SQLAlchemy URL. Any text may hold `${env:…}`."""

    hidden = ("username", "password", "query")

    name: str = ""
    #: SQLAlchemy's name of the database and driver: `sqlite`, `postgresql+psycopg`,
    #: `mysql+pymysql`, `mariadb+pymysql`, `mssql+pyodbc`.
    drivername: str = Field(pattern=r"^[a-z0-9_]+(\+[a-z0-9_]+)?$")
    #: The server.
    host: Part | None = None
    #: The server's; the database's usual one where none is given.
    port: Annotated[int | str, BeforeValidator(_port)] | None = None
    #: Who reads.
    username: Part | None = None
    #: A reference to it, never itself.
    password: str | None = Field(default=None, repr=False)
    #: Its name; SQLite: the path of the file.
    database: Part | None = None
    #: PostgreSQL, SQL Server: the schema of tables that are named without one.
    namespace: str | None = Field(default=None, alias="schema")
    #: Further parameters of the URL, e.g. of TLS.
    query: dict[str, str] = Field(default={}, repr=False)
    #: By name, those of which not all is read, or that have no primary key.
    tables: dict[str, TableSettings] = {}
    #: How gently its tables are read.
    load: ConnectionLoadSettings = ConnectionLoadSettings()
    #: PostgreSQL, MySQL, MariaDB: how long the server may give no sign of itself while it is asked
    #: or read. Beyond, it counts as away: it is waited for, and asked anew.
    timeout: Duration = 600_000

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def table(self, name: str) -> TableSettings:
        """What is said of a table."""
        return self.tables.get(name, _ALL_OF_IT)

    @property
    def own_schema(self) -> str | None:
        """The schema of tables that are named without one; None: there are no schemas.

        For MySQL and MariaDB, whose databases are beside each other, the database.
        """
        dialect = self.drivername.partition("+")[0]
        part = _SCHEMA_PARTS.get(dialect)
        text = None if part is None else getattr(self, part)
        if text is not None:
            return reveal(text, f"connections.{self.name}.{part}")
        return _OWN_SCHEMAS.get(dialect)

    @field_validator("tables")
    @classmethod
    def _by_one_name(cls, value: dict[str, TableSettings]) -> dict[str, TableSettings]:
        return {str(TableName.of(name)): settings for name, settings in value.items()}

    @model_validator(mode="after")
    def _no_second_name(self) -> ConnectionSettings:
        dialect = self.drivername.partition("+")[0]
        part = _SCHEMA_PARTS.get(dialect, "")
        own = getattr(self, part, None) or _OWN_SCHEMAS.get(dialect)
        for name in self.tables:
            schema, table = TableName.of(name)
            if schema and schema == own:
                raise ValueError(
                    f"tables: {shown(schema)} is the connection's own schema: write {shown(table)}"
                )
        return self

    @field_validator("password")
    @classmethod
    def _no_plain_password(cls, value: str | None) -> str | None:
        if value and not REFERENCE.search(value):
            raise ValueError(_BY_REFERENCE)
        return value

    @field_validator("query")
    @classmethod
    def _no_plain_secret(cls, value: dict[str, str]) -> dict[str, str]:
        return by_reference(value)


#: What a database's own log is written in.
_OWN_FORMATS = {
    "postgresql": "pgoutput",
    "mysql": "binlog",
    "mariadb": "binlog",
    "sqlite": "noted",
}

#: Whose log a source is, where the dialect of the connection is another one than its name.
_ALSO_OF = {"mysql": ("mariadb",), "mariadb": ("mysql",)}


def follows(source: str, drivername: str) -> bool:
    """Whether a source of changes goes with a database; one that is no own log goes with any."""
    dialect = drivername.partition("+")[0]
    return source not in _OWN_FORMATS or dialect in (source, *_ALSO_OF.get(source, ()))


class ChangesSettings(Settings):
    """The changelog of one connection."""

    hidden = ("options",)

    connection: str = ""
    #: The connector: `kafka`, `files`, `postgresql`, `mysql`, `mariadb`, `sqlite`, or the name of
    #: another entry point.
    source: str
    #: What messages look like: `debezium`, `ticdc`, …; not given with a database's own log.
    format: Filled
    #: The most that passes from a commit to the moment the change stands in the changelog, plus the
    #: difference of the clocks; see docs/sources.md.
    delay: Duration = Field(default=10_000, alias="T")
    #: files: the folder of change files.
    path: Path | None = None
    #: kafka: the brokers as `host:port`, several with commas.
    bootstrap_servers: Annotated[Filled, AfterValidator(broker_list)] | None = None
    #: kafka: the topic, or the topics by {table} and {schema}.
    topic: Filled | None = None
    #: The topics of some tables, by name; * stands for any letters, in tables and in topics.
    topics: dict[str, Filled | Annotated[list[Filled], Field(min_length=1)]] = {}
    #: What a topic is that is not there: a mistake, or that of a table which had no change yet.
    missing_topics: Literal["error", "wait"] = "error"
    #: kafka: where the connector says how far an idle log is.
    heartbeat_topic: Filled | None = None
    #: kafka: where Debezium tells the ends of transactions (provide.transaction.metadata).
    transaction_topic: Filled | None = None
    #: kafka: URL of Kafka Connect's REST interface, to look up what the connector does not send.
    connect: Annotated[Filled, AfterValidator(_http_url)] | None = None
    #: A change that cannot be taken: its table halts, or the change is put into quarantine.
    on_error: Literal["halt", "quarantine"] = "halt"
    #: The most changes that are in quarantine at once, of all tables of the connection, …
    quarantine_changes: Count = 1_000
    #: … and the most bytes of their messages.
    quarantine_bytes: Count = 16 << 20
    #: kafka: settings of its client, e.g. security.protocol. Those of formats and of own logs are
    #: below. Values may hold `${env:…}`.
    options: dict[str, str] = Field(default={}, repr=False)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    #: The connection's; see `of_schema`.
    _own_schema: str | None = PrivateAttr(None)

    @property
    def section(self) -> str:
        """Its place in the configuration, for messages."""
        return f"changes.{self.connection}"

    @property
    def is_own_log(self) -> bool:
        """Whether it is the database's own: its messages are blocks of many changes."""
        return self.source in _OWN_FORMATS

    @property
    def own_schema(self) -> str | None:
        """The schema of tables that are named without one; None: there are no schemas."""
        return self._own_schema

    def of_schema(self, own: str | None) -> ChangesSettings:
        """The same, with the connection's `own_schema`."""
        copy = self.model_copy()
        copy._own_schema = own
        return copy

    @field_validator("options")
    @classmethod
    def _no_plain_secret(cls, value: dict[str, str]) -> dict[str, str]:
        return by_reference(value)

    @field_validator("source")
    @classmethod
    def _is_there(cls, value: str) -> str:
        known = sorted(entry.name for entry in entry_points(group="mview.changelogs"))
        if value not in known:
            raise ValueError(f"there is no source {value!r}; there are {', '.join(known)}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _with_format(cls, given: Any) -> Any:
        """A database's own log has one format."""
        if isinstance(given, dict) and (own := _OWN_FORMATS.get(str(given.get("source")))):
            if given.get("format", own) != own:
                raise ValueError(
                    f"source '{given['source']}' has one format: leave out 'format', which is for "
                    "what a program such as Debezium writes"
                )
            return {**given, "format": own}
        return given

    @model_validator(mode="after")
    def _complete(self) -> ChangesSettings:
        # What another one needs it says in its `check`.
        needed = {"files": ("path",), "kafka": ("bootstrap_servers",)}
        for name in needed.get(self.source, ()):
            if getattr(self, name) is None:
                raise ValueError(f"source '{self.source}' needs '{name}'")
        if self.source == "kafka" and self.topic is None and not self.topics:
            raise ValueError("source 'kafka' needs 'topic', e.g. 'pg.shop.{table}', or 'topics'")
        return self


class EngineSettings(Settings):
    """Sizes and limits of the engine; the defaults suit a laptop."""

    #: Rows of a chunk at the most, …
    chunk_rows: Count = 200_000
    #: … and its bytes, and a 64th of `memory`.
    chunk_bytes: Count = 64 << 20
    #: Chunks read per micro-batch; 0: twice the number of cores.
    chunks_per_epoch: int = Field(default=0, ge=0, lt=1 << 31, strict=True)
    #: Changes taken per epoch at the most, but for a transaction of more for which there is room.
    max_changes: Count = 50_000
    #: Bytes of these as they are read at the most, and a 64th of `memory`.
    max_bytes: Count = 64 << 20
    #: Tables are held back when they are ahead of the slowest by more than this.
    max_drift: Duration = 60_000
    #: Whether one that has no message left, and may be silent or behind, holds the others back:
    #: `fresh` (no), `wait` (as long as it takes), or how long.
    alignment: Annotated[int, BeforeValidator(_alignment)] = 0
    #: Which executor maintains views: `auto`, or forced for tests.
    executor: Literal["auto", "spark", "local"] = "auto"
    #: How views follow an epoch: where it is cheaper (`auto`), or forced for tests.
    strategy: Literal["auto", "incremental", "full"] = "auto"
    #: Bytes of rows that the driver holds, in shares (docs/architecture.md).
    memory: Count = 4 << 30
    #: How often `now()` moves on in views; current_date moves at midnight (UTC) in any case.
    tick: Duration = 60_000
    #: How long epochs stay readable (`as_of`): all for ten minutes, then fewer (docs/reading.md).
    history: Duration = 7 * DAY_MS
    #: How long files stay that a newer epoch has replaced: what a query may take that reads them.
    keep_files: Duration = 2 * 3_600_000

    @field_validator("tick")
    @classmethod
    def _ends_with_the_day(cls, value: int) -> int:
        if value <= 0 or DAY_MS % value:
            raise ValueError("must divide a day, e.g. '10 seconds', '1 min', '15 min', '1 hour'")
        return value


class SparkSettings(Settings):
    """Spark session: master URL and extra configuration."""

    hidden = ("conf",)

    #: `local[*]`, or the URL of a cluster.
    master: Annotated[str, Field(min_length=1)] = "local[*]"
    #: Any setting of Spark that leaves queries their meaning; values may hold `${env:…}`.
    #: Unless it is set here, `spark.driver.memory` is `2g`.
    conf: dict[str, str] = Field(default={}, repr=False)

    @field_validator("conf")
    @classmethod
    def _none_on_command_lines(cls, value: dict[str, str]) -> dict[str, str]:
        # The driver's are handed over in a file, but Spark starts executors by itself.
        for name, text in value.items():
            java = name.startswith("spark.executor.") and name.endswith("JavaOptions")
            if java and (REFERENCE.search(text) or is_telling(text)):
                raise ValueError(
                    f"{name}: a secret would stand in the command line of executors; "
                    "give them a file that they can read"
                )
        return value

    @field_validator("conf")
    @classmethod
    def _leaves_the_meaning(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            check_meaning(name, text)
        return value


class FunctionSettings(Settings):
    """A Python function that SQL may call, by its name in SQL."""

    #: Where it is: `module:function`. The module is installed, or lies beside the configuration.
    python: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    #: The type of its result, as Spark SQL writes it.
    returns: str
    #: python: called with the values of one row; pandas: with a Series per argument.
    kind: Literal["python", "pandas"] = "python"
    #: Equal arguments always give an equal result: it must be so, and be said by `true`.
    deterministic: bool = Field(default=False, validate_default=True)

    @field_validator("returns")
    @classmethod
    def _is_a_type(cls, value: str) -> str:
        try:
            return type_name(parse_type(value))
        except (UserError, ValueError):
            raise ValueError(
                f"{value!r} is not a type; write one such as string, bigint, double, date, "
                "timestamp, decimal(10,2) or array<string>"
            ) from None

    @field_validator("deterministic")
    @classmethod
    def _is_deterministic(cls, value: bool) -> bool:
        if not value:
            raise ValueError(
                "write 'deterministic: true' if equal arguments always give an equal result; "
                "a view of another function cannot be kept right"
            )
        return value


class OpenLineageSettings(Settings):
    """Where a run tells what its views are made of, as events of OpenLineage."""

    hidden = ("api_key",)

    #: The URL that takes events, such as http://marquez.example.org:5000/api/v1/lineage; or …
    url: Annotated[Filled, AfterValidator(_url_of_events)] | None = None
    #: … the file to which each is added as a line.
    file: Path | None = None
    #: url: a reference to the key that is sent as a bearer token.
    api_key: str | None = Field(default=None, repr=False)
    #: What epochs do is told together, so often; 0: each epoch by itself.
    every: Duration = 60_000
    #: Of the views' jobs; without it: `mview:` and the path of the store.
    namespace: Filled | None = None

    @property
    def target(self) -> str:
        """Where events go, for messages."""
        return str(self.url if self.file is None else self.file)

    @field_validator("api_key")
    @classmethod
    def _no_plain_key(cls, value: str | None) -> str | None:
        if value and not REFERENCE.search(value):
            raise ValueError("write ${env:NAME} or ${file:PATH}, not the key itself")
        return value

    @model_validator(mode="after")
    def _goes_somewhere(self) -> OpenLineageSettings:
        if (self.url is None) == (self.file is None):
            raise ValueError("give 'url' or 'file', one of both")
        return self


class Config(Settings):
    """The whole `mview.yml`."""

    hidden = ("connections", "changes", "sinks", "spark", "openlineage")

    path: Path
    #: The folder of mirrors, manifests and views.
    store: Path
    #: The databases, by the names that stand before the dot in SQL.
    connections: dict[str, ConnectionSettings] = {}
    #: The changelog of each connection, by its name.
    changes: dict[str, ChangesSettings] = {}
    #: Sinks by their names; `delta` without a type: defaults of the views' own tables, `path` and
    #: `deletion_vectors`.
    sinks: dict[str, Annotated[dict[str, Any], AfterValidator(_no_list)]] = Field(
        default={}, repr=False
    )
    #: Python functions that views may call, by their names in SQL.
    functions: dict[str, FunctionSettings] = {}
    #: Sizes and limits of the engine.
    engine: EngineSettings = EngineSettings()
    #: Spark's session.
    spark: SparkSettings = SparkSettings()
    #: Where a run tells what its views are made of; without it: nowhere.
    openlineage: OpenLineageSettings | None = None

    #: See `read_by`.
    _read_by: dict[str, Any] = PrivateAttr({})
    #: See `of_environment`.
    _environment: str = PrivateAttr("")

    @property
    def read_by(self) -> dict[str, Any]:
        """What changes and chunks are read by, as its file said it: JSON-able, without secrets."""
        return self._read_by

    @property
    def environment(self) -> str:
        """The environment whose store this names; empty: it is production's."""
        return self._environment

    @property
    def option(self) -> str:
        """What follows the name of a command that is about the same views."""
        return f" --env {self._environment}" if self._environment else ""

    def of_environment(self, name: str, store: Path) -> Config:
        """The same for an environment: another store, views' tables nowhere but in it, no events.

        Args:
            name: the environment's.
            store: its store.
        """
        tables = {
            kind: section
            if "type" in section
            else {k: v for k, v in section.items() if k != "path"}
            for kind, section in self.sinks.items()
        }
        copy = self.model_copy(update={"store": store, "sinks": tables, "openlineage": None})
        copy._environment = name
        return copy

    def table_options(self, kind: str) -> dict[str, Any]:
        """What `sinks:` says of the views' own tables of a kind.

        A section with a type is of a sink that follows views, whatever it is called.
        """
        section = self.sinks.get(kind, {})
        return {} if "type" in section else section


def secret_values(settings: Settings) -> set[str]:
    """All values in settings that must not be seen, resolved where they can be.

    They are looked for in `Settings.hidden`; see `secrets_of`.
    """
    secrets = set()
    for name in settings.hidden:
        value = getattr(settings, name)
        parts = value.values() if isinstance(value, dict) else [value]
        for part in parts:
            if isinstance(part, Settings):
                secrets |= secret_values(part)
        secrets |= secrets_of(name, value)
    return secrets
