"""Settings: one YAML file, checked at once, secrets resolved late and never printed.

`${env:NAME}` and `${file:PATH}` stay unresolved in the models, in plans and in files; only a
connector that opens a connection calls `reveal`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, quote_plus

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from mview.clock import DAY_MS, DURATION_EXAMPLES, parse_duration
from mview.errors import ConfigError, UserError
from mview.schema import parse_type, type_name

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def _duration(value: object) -> int:
    """Milliseconds of a setting; a bare number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return int(value * 1000)
    found = parse_duration(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is not a duration; write {DURATION_EXAMPLES}")
    return found


#: Milliseconds; written as a duration.
Duration = Annotated[int, BeforeValidator(_duration)]


def reveal(text: str, where: str) -> str:
    """The text with `${env:…}` and `${file:…}` replaced. The result must not be logged or stored.

    Raises:
        ConfigError: the variable or file is missing; the message has its name, never a value.
    """

    def resolve(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in os.environ:
                raise ConfigError(
                    f"environment variable {name} is not set",
                    where=where,
                    hint=f"export {name}=…",
                )
            return os.environ[name]
        try:
            return Path(name).expanduser().read_text().strip()
        except OSError as error:
            raise ConfigError(
                f"secret file {name} cannot be read: {error.strerror}", where=where
            ) from None

    return _REFERENCE.sub(resolve, text)


class Settings(BaseModel):
    """Base of all settings: unknown keys are errors."""

    #: Fields that may hold secrets. Hosts, users and topics are none: messages need them.
    hidden: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConnectionSettings(Settings):
    """A source database, as the parts of an SQLAlchemy URL. Any text may hold `${env:…}`."""

    hidden = ("username", "password", "query")

    name: str = ""
    drivername: str
    host: str | None = None
    port: int | str | None = None
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    database: str | None = None
    #: PostgreSQL: the schema that table names are looked up in.
    namespace: str | None = Field(default=None, alias="schema")
    query: dict[str, str] = Field(default={}, repr=False)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("password")
    @classmethod
    def _no_plain_password(cls, value: str | None) -> str | None:
        if value and not _REFERENCE.search(value):
            raise ValueError("write ${env:NAME} or ${file:PATH}, not the password itself")
        return value


class ChangesSettings(Settings):
    """The changelog of one connection."""

    hidden = ("options",)

    connection: str = ""
    source: Literal["kafka", "files"]
    format: str
    #: T: covers clock skew plus the time from commit to the changelog; see README.
    delay: Duration = Field(default=10_000, alias="T")
    #: files: the folder of change files.
    path: Path | None = None
    #: kafka: bootstrap servers, topic pattern with {table}, and the connector's heartbeat topic.
    bootstrap_servers: str | None = None
    topic: str | None = None
    heartbeat_topic: str | None = None
    #: More client settings, e.g. security.protocol; values may hold `${env:…}`.
    options: dict[str, str] = Field(default={}, repr=False)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _complete(self) -> ChangesSettings:
        needed = ("path",) if self.source == "files" else ("bootstrap_servers", "topic")
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"source '{self.source}' needs '{name}'")
        if self.topic is not None and "{table}" not in self.topic:
            raise ValueError("'topic' must contain {table}, e.g. 'pg.shop.{table}'")
        return self


class EngineSettings(Settings):
    """Sizes and limits of the engine; the defaults suit a laptop."""

    chunk_rows: int = Field(default=200_000, gt=0)
    chunk_bytes: int = Field(default=64 << 20, gt=0)
    #: Chunks read per micro-batch; 0: twice the number of cores.
    chunks_per_epoch: int = Field(default=0, ge=0)
    #: Changes taken per epoch at the most: what the driver holds in memory at once.
    max_changes: int = Field(default=50_000, gt=0)
    #: Tables are held back when they are ahead of the slowest by more than this.
    max_drift: Duration = 60_000
    #: Which executor maintains views: `auto`, or forced for tests.
    executor: Literal["auto", "spark", "local"] = "auto"
    #: How views follow an epoch: where it is cheaper (`auto`), or forced for tests.
    strategy: Literal["auto", "incremental", "full"] = "auto"
    #: Memory for mirrors held in process, and for a view that is computed as a whole (bytes).
    memory: int = 4 << 30
    #: How often `now()` moves on in views; current_date moves at midnight (UTC) in any case.
    tick: Duration = 60_000
    #: Epochs that stay readable (`as_of`); what only older ones need is deleted.
    history: int = Field(default=200, gt=1)

    @field_validator("tick")
    @classmethod
    def _ends_with_the_day(cls, value: int) -> int:
        if value <= 0 or DAY_MS % value:
            raise ValueError("must divide a day, e.g. '10 seconds', '1 min', '15 min', '1 hour'")
        return value


class SparkSettings(Settings):
    """Spark session: master URL and extra configuration."""

    hidden = ("conf",)

    master: str = "local[*]"
    conf: dict[str, str] = Field(default={}, repr=False)


class FunctionSettings(Settings):
    """A Python function that SQL may call, by its name in SQL."""

    #: Where it is; the module may be in the folder of the configuration file.
    python: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    #: The type of its result, as Spark SQL writes it.
    returns: str
    #: python: called with the values of one row; pandas: with a Series per argument.
    kind: Literal["python", "pandas"] = "python"
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


class Config(Settings):
    """The whole `mview.yml`."""

    hidden = ("connections", "changes", "sinks", "spark")

    path: Path
    store: Path
    connections: dict[str, ConnectionSettings] = {}
    changes: dict[str, ChangesSettings] = {}
    sinks: dict[str, dict[str, Any]] = Field(default={}, repr=False)
    functions: dict[str, FunctionSettings] = {}
    engine: EngineSettings = EngineSettings()
    spark: SparkSettings = SparkSettings()

    @model_validator(mode="after")
    def _changes_have_connections(self) -> Config:
        for name in self.changes:
            if name not in self.connections:
                raise ValueError(f"changes.{name}: there is no connection {name!r}")
        return self


_SECTIONS: dict[str, type[Settings]] = {
    "connections": ConnectionSettings,
    "changes": ChangesSettings,
    "functions": FunctionSettings,
    "engine": EngineSettings,
    "spark": SparkSettings,
}


#: The schema's own words, for people.
_MESSAGES = {
    "missing": "is missing",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "string_pattern_mismatch": "must look like my_package.my_module:my_function",
}


def _fields(section: str) -> list[str]:
    model = _SECTIONS.get(section, Config)
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(error: ValidationError, path: Path) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = _MESSAGES.get(first["type"], first["msg"].removeprefix("Value error, "))
    hint = None
    if first["type"] == "extra_forbidden":
        allowed = _fields(str(first["loc"][0]) if len(first["loc"]) > 1 else "")
        close = get_close_matches(str(first["loc"][-1]), allowed, n=1)
        message = "unknown property"
        hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(allowed)}"
    return ConfigError(f"{path}: {place or 'file'}: {message}", hint=hint)


def load_config(path: str | Path) -> Config:
    """Read and check a configuration file. Relative paths in it are relative to the file's folder.

    Raises:
        ConfigError: the file is missing, not YAML, or breaks the schema; with place and hint.
    """
    file = Path(path)
    try:
        raw = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError(
            f"configuration {file} cannot be read: {error.strerror}",
            hint="give the file with --config, or run where conf/mview.yml is",
        ) from None
    except yaml.YAMLError as error:
        # Not str(error): it quotes the file, and with it maybe a password.
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        problem = getattr(error, "problem", None) or "cannot be read"
        if isinstance(error, yaml.composer.ComposerError):
            problem = "unknown alias; put a value that begins with * in quotes"
        raise ConfigError(f"{file} is not valid YAML: {problem}", where=place) from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must be a mapping with connections, changes, store")
    try:
        return Config(**_resolved(raw, file))
    except ValidationError as error:
        raise _explain(error, file) from None


def _sections(raw: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sections of a kind; what is no mapping is left for the schema to refuse."""
    sections = raw.get(kind)
    if isinstance(sections, dict):
        for name, section in sections.items():
            if isinstance(section, dict):
                yield str(name), section


def _resolved(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """The settings with their names, and with paths that hold from anywhere."""
    base = file.resolve().parent
    store = reveal(str(raw.get("store", "mview-data")), f"{file}: store")
    for name, section in _sections(raw, "connections"):
        section["name"] = name
        if str(section.get("drivername", "")).startswith("sqlite") and section.get("database"):
            section["database"] = str((base / str(section["database"])).resolve())
    for name, section in _sections(raw, "changes"):
        section["connection"] = name
        if section.get("path"):
            section["path"] = (base / str(section["path"])).resolve()
    return {**raw, "path": file.resolve(), "store": (base / store).resolve()}


# --- secrets -------------------------------------------------------------------------------------

_MASK = "******"

#: Option names whose values are hidden even when the user wrote them down without `${…}`.
_TELLING = re.compile(
    r"passw|passphrase|\bpwd|secret|token|credential|api[._-]?key|account[._-]?key|private"
    r"|key[._-]?pem|\bjaas\b",
    re.IGNORECASE,
)


def secret_values(settings: Settings) -> set[str]:
    """All values in settings that must not be seen, resolved where they can be.

    Of `Settings.hidden` these are: what a `${env:…}` or `${file:…}` stands for, and the plain
    values of options with a telling name.
    """
    return {
        secret for name in settings.hidden for secret in _secrets_of(name, getattr(settings, name))
    }


def _secrets_of(name: str, value: object) -> set[str]:
    if isinstance(value, Settings):
        return secret_values(value)
    if isinstance(value, dict):
        return {secret for key, part in value.items() for secret in _secrets_of(str(key), part)}
    if isinstance(value, list):
        return {secret for part in value for secret in _secrets_of(name, part)}
    if not isinstance(value, str):
        return set()
    references = [match.group(0) for match in _REFERENCE.finditer(value)]
    if not references:
        return {value} if _TELLING.search(name) else set()
    found = set()
    for reference in references:
        try:
            found.add(reveal(reference, name))
        except ConfigError:
            continue  # not set: there is nothing to hide, and the command will say so
    return found


class Mask:
    """Puts stars in the place of secrets.

    Args:
        secrets: as `secret_values` finds them.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spelled = {form for secret in secrets if secret.strip() for form in _spellings(secret)}
        # The longest first: one secret may be a part of another.
        self._hidden = sorted(spelled, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._hidden:
            text = text.replace(secret, _MASK)
        return text


def _spellings(secret: str) -> Iterator[str]:
    """How a secret may stand in a message: as it is, URL-quoted, escaped by JSON or by repr."""
    yield from (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
    yield repr(secret)[1:-1]
