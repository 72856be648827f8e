"""Settings: one YAML file, checked at once, secrets resolved late and never printed.

`${env:NAME}` and `${file:PATH}` stay unresolved in the models, in plans and in files; only a
connector that opens a connection calls `reveal`.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mview.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?)\s*$")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def parse_duration(text: str | int | float) -> int:
    """A duration such as `10 seconds`, `500ms`, `2 min` in milliseconds; a bare number is seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    if isinstance(text, int | float):
        return int(text * 1000)
    match = _DURATION.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a duration; write e.g. '10 seconds', '500ms', '2 min'")
    unit = match.group(2)
    return int(float(match.group(1)) * _UNITS["ms" if unit == "ms" else unit[0]])


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


def references(text: str) -> list[str]:
    """The `${env:…}` and `${file:…}` in a text, e.g. to hide what they stand for."""
    return [match.group(0) for match in _REFERENCE.finditer(text)]


class Settings(BaseModel):
    """Base of all settings: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConnectionSettings(Settings):
    """A source database, as the parts of an SQLAlchemy URL. Any text may hold `${env:…}`."""

    name: str = ""
    drivername: str
    host: str | None = None
    port: int | str | None = None
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    database: str | None = None
    #: PostgreSQL: the schema that table names are looked up in.
    namespace: str | None = Field(default=None, alias="schema")
    query: dict[str, str] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("password")
    @classmethod
    def _no_plain_password(cls, value: str | None) -> str | None:
        if value and not _REFERENCE.search(value):
            raise ValueError("write ${env:NAME} or ${file:PATH}, not the password itself")
        return value


class ChangesSettings(Settings):
    """The changelog of one connection."""

    connection: str = ""
    source: Literal["kafka", "files"]
    format: str
    #: T: covers clock skew plus the time from commit to the changelog; see README.
    delay: int = Field(default=10_000, alias="T")
    #: files: the folder of change files.
    path: Path | None = None
    #: kafka: bootstrap servers, topic pattern with {table}, and the connector's heartbeat topic.
    bootstrap_servers: str | None = None
    topic: str | None = None
    heartbeat_topic: str | None = None
    #: More client settings, e.g. security.protocol; values may hold `${env:…}`.
    options: dict[str, str] = Field(default={}, repr=False)

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("delay", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> int:
        return parse_duration(value)

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
    max_drift: int = 60_000
    #: Which executor maintains views: `auto`, or forced for tests.
    executor: Literal["auto", "spark", "local"] = "auto"
    #: Memory for mirrors held in process (bytes).
    memory: int = 4 << 30
    #: Epochs that stay readable (`as_of`); what only older ones need is deleted.
    history: int = Field(default=200, gt=1)

    @field_validator("max_drift", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> int:
        return parse_duration(value)


class SparkSettings(Settings):
    """Spark session: master URL and extra configuration."""

    master: str = "local[*]"
    conf: dict[str, str] = {}


class Config(Settings):
    """The whole `mview.yml`."""

    path: Path
    store: Path
    connections: dict[str, ConnectionSettings] = {}
    changes: dict[str, ChangesSettings] = {}
    sinks: dict[str, dict[str, Any]] = {}
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
    "engine": EngineSettings,
    "spark": SparkSettings,
}


def _fields(section: str) -> list[str]:
    model = _SECTIONS.get(section, Config)
    return [field.alias or name for name, field in model.model_fields.items()]


def _explain(error: ValidationError, path: Path) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
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
    base = file.resolve().parent
    raw["path"] = file.resolve()
    store = reveal(str(raw.get("store", "mview-data")), f"{file}: store")
    raw["store"] = (base / store).resolve()
    for name, section in (raw.get("connections") or {}).items():
        if isinstance(section, dict):
            section["name"] = name
            if str(section.get("drivername", "")).startswith("sqlite") and section.get("database"):
                section["database"] = str((base / section["database"]).resolve())
    for name, section in (raw.get("changes") or {}).items():
        if isinstance(section, dict):
            section["connection"] = name
            if section.get("path"):
                section["path"] = (base / section["path"]).resolve()
    try:
        return Config(**raw)
    except ValidationError as error:
        raise _explain(error, file) from None
