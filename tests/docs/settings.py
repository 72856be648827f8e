"""docs/settings.md, made of the models that read the configuration: every setting there is.

What a setting means is the comment `#:` above it in the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from mview import config
from mview.config import Settings
from mview.connector import load
from mview.errors import ConfigError
from mview.follower import FollowerSettings, Mode

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

_HEAD = """# Every setting

Written by `python -m tests.docs`, from the models that read the configuration; none of it by hand.

[configuration.md](configuration.md) shows a whole file. A setting that is not listed here is an
error, and `mview check` names the closest one. A duration is written as `10 seconds`, `1 min`,
`2 hours` or `7 days`; a bare number is seconds. Paths are relative to the file. A secret is written
as `${env:NAME}` or `${file:PATH}`.
"""

#: The sections of the file, by what stands above their settings.
SECTIONS: Mapping[str, type[Settings]] = {
    "The file": config.Config,
    "connections.NAME": config.ConnectionSettings,
    "connections.NAME.load": config.ConnectionLoadSettings,
    "connections.NAME.tables.TABLE": config.TableSettings,
    "connections.NAME.tables.TABLE.load": config.TableLoadSettings,
    "changes.NAME": config.ChangesSettings,
    "functions.NAME": config.FunctionSettings,
    "engine": config.EngineSettings,
    "spark": config.SparkSettings,
    "openlineage": config.OpenLineageSettings,
    "sinks.NAME, of every type": FollowerSettings,
}

#: Fields that are not written by people: they are told where the section stands.
_GIVEN = {(config.Config, "path"), (config.ConnectionSettings, "name")}
_GIVEN |= {(config.ChangesSettings, "connection")}

#: How types are called.
_TYPES = {
    "Duration": "duration",
    "Count": "number above 0",
    "Window": "hours of a day: `22:00-06:00`",
    "Path": "path",
    "str": "text",
    "Part": "text",
    "Filled": "text",
    "bool": "`true` or `false`",
    "int": "number",
    "int | str": "number",
    "Mode": ", ".join(f"`{mode}`" for mode in get_args(Mode)),
}

#: Whose own log is read by another one's module.
_LOGS = {"mariadb": "mysql"}

_MEGABYTE = 1 << 20
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("min", 60_000), ("second", 1000))


def followers() -> dict[str, type[FollowerSettings]]:
    """The settings of each sink that is registered here, by its type."""
    names = sorted(entry.name for entry in entry_points(group="mview.followers"))
    return {name: load("followers", name).settings for name in names}


def meanings(model: type[Settings]) -> dict[str, str]:
    """What the fields of a model mean, of its own and of its bases."""
    told: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Settings) and kind is not Settings:
            for name, text in _comments(kind):
                told[name] = f"{told[name]} {text}" if name in told else text
    return {name: text.replace("None: ", "without it: ") for name, text in told.items()}


def _comments(kind: type[Settings]) -> Iterator[tuple[str, str]]:
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = node.lineno - 2
            told: list[str] = []
            while lines[above].strip().startswith("#:"):
                told.insert(0, lines[above].strip()[2:].strip())
                above -= 1
            if told:
                yield node.target.id, " ".join(told)


def _annotations(kind: type[Settings]) -> dict[str, str]:
    """The types of fields, as they are written."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= inspect.get_annotations(base)
    return texts


def _type(field: FieldInfo, text: str) -> str:
    if words := re.search(r"Literal\[(.*?)\]", text):
        told = ", ".join(f"`{word.strip()[1:-1]}`" for word in words[1].split(","))
        return f"{told}, or a list of texts" if "list[" in text else told
    if "_alignment" in text:
        return "`fresh`, `wait`, or a duration"
    plain = re.sub(r" \| None$", "", text)
    plain = re.sub(r"^Annotated\[([\w\[\], |]+?), .*$", r"\1", plain)
    if plain in _TYPES:
        return _TYPES[plain]
    if plain.startswith("list"):
        return "list of texts"
    if plain.startswith("dict"):
        return "names with values"
    return "section" if plain.endswith("Settings") else "text"


def _default(field: FieldInfo, text: str) -> str:
    if field.is_required():
        return "*needed*"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, Settings) or value in ("", {}, []):
        return ""
    if "_alignment" in text:
        return "`fresh`"
    if text.startswith("Duration") and isinstance(value, int):
        return _duration(value)
    if isinstance(value, int) and value >= _MEGABYTE and value % _MEGABYTE == 0:
        return f"`{value}` ({_size(value // _MEGABYTE)})"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _size(megabytes: int) -> str:
    return f"{megabytes} MB" if megabytes % 1024 else f"{megabytes // 1024} GB"


def _duration(ms: int) -> str:
    unit, size = next(unit for unit in _UNITS if (ms and ms % unit[1] == 0) or unit is _UNITS[-1])
    count = ms // size
    return f"`{count} {unit}{'' if count == 1 or unit == 'min' else 's'}`"


def rows(model: type[Settings], without: type[Settings] = Settings) -> Iterator[str]:
    """A line per setting.

    Args:
        model: of the section.
        without: what is told elsewhere, unless it is another one here.
    """
    told, texts = meanings(model), _annotations(model)
    for name, field in model.model_fields.items():
        inherited = without.model_fields.get(name)
        if (model, name) in _GIVEN or _same(field, inherited):
            continue
        shown = field.alias or name
        default = _default(field, texts[name])
        yield f"| `{shown}` | {_type(field, texts[name])} | {default} | {_cell(told[name])} |"


def _same(field: FieldInfo, inherited: FieldInfo | None) -> bool:
    return inherited is not None and field.default == inherited.default


def _cell(text: str) -> str:
    linked = re.sub(r"docs/(\w+\.md)", r"[\1](\1)", text)
    return linked.replace("|", r"\|")


def _format_options(name: str) -> list[str]:
    """The options of a format, as it lists them when it is given another one."""
    made: Any = load("formats", name)
    try:
        made({"format.": "nothing"})
    except ConfigError as error:
        listed = (error.allowed or "none").split(", ")
        return [] if listed == ["none"] else listed
    raise AssertionError(f"format {name} takes an option that is none")


def _log_options(name: str) -> tuple[str, ...]:
    """The options of a database's own log."""
    module = import_module(f"mview_connectors.changelogs.{name}.changelog")
    options: tuple[str, ...] = module._OPTIONS
    return options


def page() -> str:
    """The whole page."""
    lines = [_HEAD.rstrip("\n")]
    for title, model in SECTIONS.items():
        lines += ["", f"## {title}", "", *_table(model)]
    by_model: dict[type[FollowerSettings], list[str]] = defaultdict(list)
    for name, model in followers().items():
        by_model[model].append(f"`{name}`")
    for model, names in by_model.items():
        lines += ["", f"## sinks.NAME, type {', '.join(names)}", ""]
        lines += _table(model, FollowerSettings)
    lines += ["", "## Options of formats", "", "They stand under `changes.NAME.options`.", ""]
    lines += ["| format | options |", "|---|---|"]
    for entry in sorted(entry.name for entry in entry_points(group="mview.formats")):
        options = ", ".join(f"`{option}`" for option in _format_options(entry))
        lines.append(f"| `{entry}` | {options or 'none'} |")
    lines += ["", "## Options of databases' own logs", ""]
    lines += ["They stand under `changes.NAME.options`; see [sources.md](sources.md).", ""]
    lines += ["| source | options |", "|---|---|"]
    for source in ("postgresql", "mysql", "mariadb"):
        options = ", ".join(f"`{option}`" for option in _log_options(_LOGS.get(source, source)))
        lines.append(f"| `{source}` | {options} |")
    return "\n".join(lines) + "\n"


def _table(model: type[Settings], without: type[Settings] = Settings) -> list[str]:
    return ["| setting | value | default | meaning |", "|---|---|---|---|", *rows(model, without)]
