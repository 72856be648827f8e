"""The configuration file: read once, with all its mistakes told at once, each with its line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from re import Match
from typing import Any

from pydantic import ValidationError

from mview.config import (
    ChangesSettings,
    Config,
    ConnectionSettings,
    EngineSettings,
    FunctionSettings,
    OpenLineageSettings,
    Settings,
    SparkSettings,
    follows,
    is_url,
)
from mview.errors import ConfigError, several
from mview.files.textfile import read_text
from mview.files.yamlfile import Document, Mistake, misfit, parse_yaml, paths, shown
from mview.secrets import REFERENCE, reveal

_SECTIONS: dict[str, type[Settings]] = {
    "connections": ConnectionSettings,
    "changes": ChangesSettings,
    "functions": FunctionSettings,
    "engine": EngineSettings,
    "spark": SparkSettings,
    "openlineage": OpenLineageSettings,
}


#: What changes and chunks are read by; see `Config.read_by`.
_READ_BY = ("store", "connections", "changes", "engine")

_PATTERNS = {
    "drivername": "must be the name of a dialect, such as postgresql+psycopg; no URL",
    "python": "must look like my_package.my_module:my_function",
}
#: Names in the models that come from elsewhere than the file's text.
_GIVEN = {"": "path", "connections": "name", "changes": "connection"}


def _fields(section: str) -> list[str]:
    model, given = _SECTIONS.get(section, Config), ("path", "name", "connection")
    return [
        field.alias or name
        for name, field in model.model_fields.items()
        if name not in given or (model is ChangesSettings and name == "path")
    ]


def load_config(path: str | Path) -> Config:
    """Read and check a configuration file. Relative paths in it are relative to the file's folder.

    Raises:
        ConfigError: the file is missing, not YAML, or breaks the schema: all mistakes in it, each
            with its line. No message has a value of the file.
    """
    file = Path(path)
    hint = (
        "give the file with --config, or run where conf/mview.yml or mview.yml is; "
        "`mview init URL` makes one"
    )
    text = read_text(file, "configuration", ConfigError, hint=hint)
    document = parse_yaml(text)
    mistakes = list(document.mistakes)
    if not mistakes and not isinstance(document.value, dict):
        what = "it is empty" if document.value is None else "it must be a mapping"
        mistakes.append(Mistake(what, 1, 1, "it has connections, changes and store"))
    config = None
    if isinstance(document.value, dict):
        mistakes += _own_mistakes(document, file.resolve().parent)
        try:
            config = config_of(document.value, file)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            mistakes += [_mistake(document, detail) for detail in details]
        mistakes += _strange_changes(document)
    if mistakes or config is None:
        order = sorted(dict.fromkeys(mistakes), key=lambda mistake: (mistake.line, mistake.column))
        raise several([_error(file, mistake) for mistake in order])
    return config


def config_of(said: dict[str, Any], file: Path) -> Config:
    """A configuration by what its file said, which may be edited at any time.

    Args:
        said: all of it, or `Config.read_by`.
        file: relative paths are relative to its folder.
    """
    config = Config(**_resolved(said, file))
    config._read_by = {name: said[name] for name in _READ_BY if name in said}
    return config


def _error(file: Path, mistake: Mistake) -> ConfigError:
    where = f"{file}:{mistake.line}:{mistake.column}"
    return ConfigError(mistake.what, where=where, hint=mistake.hint)


def _mistake(document: Document, detail: Any) -> Mistake:
    """What the schema found, in words for people; without the value."""
    loc = tuple(part for part in detail["loc"] if part != "[key]")
    message, hint = misfit(detail), None
    if detail["type"] == "string_pattern_mismatch":
        message = _PATTERNS[str(loc[-1])]
    if detail["type"] == "extra_forbidden":
        allowed = _fields(str(loc[0]) if len(loc) > 1 else "")
        close = get_close_matches(str(loc[-1]), allowed, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(allowed)}"
    place = ".".join(shown(part) for part in loc)
    return Mistake(f"{place}: {message}" if place else message, *document.place(loc), hint)


def _own_mistakes(document: Document, base: Path) -> list[Mistake]:
    """What the schema does not see: names that we set, an empty store, unknown references."""
    mistakes = []

    def add(path: tuple[str | int, ...], message: str, hint: str | None = None) -> None:
        place = ".".join(shown(part) for part in path)
        mistakes.append(Mistake(f"{place}: {message}", *document.place(path), hint))

    for path, value in paths(document.value):
        section = str(path[0]) if len(path) == 3 else ""
        if len(path) in (1, 3) and path[-1] == _GIVEN.get(section):
            add(path, "unknown property", f"one of {', '.join(_fields(section))}")
        if len(path) == 2 and path[1] == "":
            add(path, "a name is empty")
        refers = path[:1] in (("connections",), ("changes",)) and isinstance(value, str)
        if refers and "${" in REFERENCE.sub("", value):
            add(path, "an unknown reference ${…}", "write ${env:NAME} or ${file:PATH}")
    store = document.value.get("store", "mview-data")
    if not isinstance(store, str) or not store.strip():
        add(("store",), "must be the path of a folder", "remove the line for mview-data")
    elif is_url(store):
        add(("store",), "must be the path of a folder, not a URL")
    else:
        try:
            reveal(str(_anchored(store, base)), "store")
        except ConfigError as error:
            add(("store",), error.what, error.hint)
    return mistakes


def _strange_changes(document: Document) -> list[Mistake]:
    """Changelogs without a connection, and own logs of another kind of database."""
    connections, changes = (document.value.get(name) for name in ("connections", "changes"))
    if not isinstance(connections, dict) or not isinstance(changes, dict):
        return []
    mistakes = [
        Mistake(_stranger(name), *document.place(("changes", name)))
        for name in changes
        if name not in connections
    ]
    databases = dict(_sections(document.value, "connections"))
    for name, section in _sections(document.value, "changes"):
        source, driver = str(section.get("source")), databases.get(name, {}).get("drivername")
        if isinstance(driver, str) and not follows(source, driver):
            what = f"changes.{shown(name)}.source: this database has no such log"
            hint = "name the database's own kind, or kafka or files: see docs/sources.md"
            mistakes.append(Mistake(what, *document.place(("changes", name, "source")), hint))
    return mistakes


def _stranger(name: str) -> str:
    return f"changes.{shown(name)}: there is no connection {shown(name)!r}"


def _sections(raw: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sections of a kind; what is no mapping is left for the schema to refuse."""
    sections = raw.get(kind)
    if isinstance(sections, dict):
        for name, section in sections.items():
            if isinstance(section, dict):
                yield name, section


def _resolved(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """The settings with their names, and with paths that hold from anywhere."""
    base = file.resolve().parent
    raw = {name: _anchored(part, base) for name, part in raw.items()}
    store = raw.get("store", "mview-data")
    with suppress(ConfigError):  # told beside the other mistakes
        store = reveal(store, "store") if isinstance(store, str) else ""
    resolved = dict(raw)
    for kind, label in (("connections", "name"), ("changes", "connection")):
        if isinstance(raw.get(kind), dict):
            resolved[kind] = dict(raw[kind])
            for name, section in _sections(raw, kind):
                resolved[kind][name] = _absolute({**section, label: name}, base)
    told = raw.get("openlineage")
    if isinstance(told, dict) and isinstance(told.get("file"), str):
        resolved["openlineage"] = {**told, "file": (base / told["file"]).resolve()}
    return {**resolved, "path": file.resolve(), "store": (base / store).resolve()}


def _anchored(value: object, base: Path) -> object:
    """A setting, or what holds settings, whose `${file:…}` hold wherever they are read."""
    if isinstance(value, dict):
        return {name: _anchored(part, base) for name, part in value.items()}
    if isinstance(value, list):
        return [_anchored(part, base) for part in value]
    if not isinstance(value, str):
        return value

    def whole(match: Match[str]) -> str:
        kind, name = match.groups()
        # One of a home is anybody's who reads it; one of the root stays as it is.
        return f"${{file:{base / name}}}" if kind == "file" and name[0] != "~" else match[0]

    return REFERENCE.sub(whole, value)


def _absolute(section: dict[str, Any], base: Path) -> dict[str, Any]:
    """A section whose files are given from the root; a reference may stand for a whole path."""
    is_sqlite = str(section.get("drivername", "")).startswith("sqlite")
    for name in ("path", "database") if is_sqlite else ("path",):
        if isinstance(section.get(name), str):
            with suppress(ConfigError):  # told when it is opened
                section[name] = reveal(section[name], name)
    database, path = section.get("database"), section.get("path")
    if is_sqlite and isinstance(database, str) and database and "://" not in database:
        section["database"] = str((base / database).resolve())
    if isinstance(path, str):
        if not path.strip() or "://" in path:
            section["path"] = None  # told as missing; the message has no value
        else:
            section["path"] = (base / path).resolve()
    return section
