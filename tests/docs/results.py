"""docs/json.md, made of the types of what commands print with --json: every field there is.

What a field means stands under `Attributes:` of its type.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from mview.admin.against_source import TableVerified
from mview.admin.doctor import Finding
from mview.admin.explore.epochs import PastEpoch
from mview.admin.explore.lag import Lag
from mview.admin.init import NewProject
from mview.admin.mending.backfill import Backfilled
from mview.admin.mending.maintain import SinkMaintained
from mview.admin.mending.quarantine import QuarantineAnswer, QuarantinedChange
from mview.admin.migrate import Migrated
from mview.admin.status import StoreStatus
from mview.admin.verify import VerifyResult
from mview.admin.why.explaining import Why
from mview.cli import costs, planning, results
from mview.cli.explore.bundle import Bundle
from mview.cli.explore.lineage import ViewLineage
from mview.cli.planning import Planned
from mview.epoch.report import BuildReport, EpochReport, LoadReport
from mview.errors import MviewError
from mview.store.requests import applies
from mview.trial import trying
from mview.trial.preview import Preview

PAGE = Path(__file__).parents[2] / "docs" / "json.md"

_HEAD = """# What commands print with --json

Written by `python -m tests.docs`, from the types in the code; none of it by hand.

One document on standard output; errors and remarks go to standard error, and exit codes are those
of [commands.md](commands.md#exit-codes). Secrets are starred out. Numbers, `true`, `false` and
`null` are JSON's; every other value of a row (a decimal, a time, bytes) is a text. Milliseconds of
wall time count from 1970 in UTC. Fields may be added; what is here keeps its name and meaning
within a major version. Epoch, chunk, T, watermark and other words: [concepts.md](concepts.md).
"""

#: What each command prints; `init` and those that read files print one document each.
RESULTS: Mapping[str, Any] = {
    "init": NewProject,
    "doctor": list[Finding],
    "check": list[results.CheckedJson],
    "explain": list[results.ExplainedJson],
    "preview": Preview,
    "test": list[trying.TrialOutcome],
    "test --random": results.ByChanceJson,
    "plan": Planned,
    "lineage": list[ViewLineage],
    "apply": results.Applied,
    "promote": results.Promoted,
    "rollback": results.RolledBack,
    "status": StoreStatus,
    "lag": Lag,
    "history": list[PastEpoch],
    "why": Why,
    "pause": Mapping[str, bool],
    "resume": Mapping[str, bool],
    "backfill": list[Backfilled],
    "quarantine list": list[QuarantinedChange],
    "quarantine retry": list[QuarantineAnswer],
    "quarantine discard": list[QuarantineAnswer],
    "verify": list[VerifyResult],
    "verify --source": results.Verified,
    "maintain": list[SinkMaintained],
    "repair": list[results.Repaired],
    "drop": results.Dropped,
    "migrate": Migrated,
    "support-bundle": Bundle,
}

#: Events of `mview run --log-format json` that are a report each.
EVENTS: Mapping[str, type] = {"load": LoadReport, "build": BuildReport, "epoch": EpochReport}

_EVENTS = """
`mview run --log-format json` prints a line per event, as it happens: `time` (in UTC), `event`, and
what it tells.

| event | what it tells |
|---|---|
"""
#: Those that are none.
_MORE_EVENTS = """| `halt` | `view`; `error`, a text; its `code` |
| `message` | `text` |"""

#: What `pause` and `resume` print has no fields.
_SAID = {
    "pause": "By table, whether it was not paused before.",
    "resume": "By table, whether it was paused.",
}

#: Commands that print no result: they go on, talk to people, or print a text for a shell.
WITHOUT = {"run", "ui", "demo", "completion"}

#: Where names are that modules import for the type checker alone.
_NAMES = {
    **vars(costs),
    **vars(planning),
    **vars(applies),
    **vars(trying),
    "TableVerified": TableVerified,
    "VerifyResult": VerifyResult,
}


def hints(kind: type) -> dict[str, Any]:
    """The types of its fields."""
    from mview.admin.drop import Going

    module = sys.modules[kind.__module__]
    return get_type_hints(kind, None, {**_NAMES, "Going": Going, **vars(module)})


def is_form(kind: Any) -> bool:
    """Whether it is a type with fields."""
    return is_typeddict(kind) or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def meanings(kind: type) -> dict[str, str]:
    """What each field means, by the docstring of its type."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    told: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", textwrap.dedent(text)):
        names, colon, meaning = block.partition(":")
        if colon:
            for name in names.split(","):
                told[name.strip()] = " ".join(meaning.split())
    return told


def fields(kind: type) -> list[str]:
    """The names of its fields, in order."""
    if is_typeddict(kind):
        return list(hints(kind))
    return [field.name for field in dataclasses.fields(kind)]


def parts(kind: Any) -> Iterator[Any]:
    """The types that a type is made of; names of an object are texts, whatever made them."""
    yield kind
    origin, arguments = get_origin(kind), get_args(kind)
    named = isinstance(origin, type) and issubclass(origin, Mapping)
    for part in arguments[1:] if named else arguments:
        yield from parts(part)


def forms(kinds: Sequence[Any]) -> list[type]:
    """All types with fields, those below them too, each once."""
    seen: dict[type, None] = {}
    waiting = [part for kind in kinds for part in parts(kind) if is_form(part)]
    while waiting:
        kind = waiting.pop(0)
        if kind not in seen:
            seen[kind] = None
            waiting += [p for hint in hints(kind).values() for p in parts(hint) if is_form(p)]
    return list(seen)


_PLAIN: dict[Any, str] = {str: "text", int: "number", float: "number", bool: "true or false"}
_PLAIN |= {Any: "any value", object: "any value", MviewError: "text"}


def told_type(kind: Any) -> str:
    """What JSON has for a type."""
    if is_form(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is type(None):
        return "null"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(map(told_type, arguments))
    if origin is not None and issubclass(origin, Mapping):
        return f"object: {told_type(arguments[1])} by name"
    if origin is tuple and Ellipsis not in arguments:
        return f"list: {', '.join(map(told_type, arguments))}"
    if origin is not None and issubclass(origin, Sequence):
        return f"list of {told_type(arguments[0])}"
    if (plain := getattr(kind, "__supertype__", None)) is not None:
        return told_type(plain)
    raise TypeError(f"nobody knows what JSON has for {kind}")


def _table(kind: type) -> list[str]:
    told, given = meanings(kind), hints(kind)
    lines = ["| field | what it is | meaning |", "|---|---|---|"]
    for name in fields(kind):
        what = told_type(given[name]).replace("|", "\\|")
        lines.append(f"| `{name}` | {what} | {_in_json(told[name]).replace('|', chr(92) + '|')} |")
    return lines


def _in_json(text: str) -> str:
    """What a docstring says of values of Python, said of those of JSON."""
    for here, there in (("None", "null"), ("True", "true"), ("False", "false")):
        text = re.sub(rf"\b{here}\b", f"`{there}`", text)
    return text


def page() -> str:
    """The text of docs/json.md."""
    lines = [_HEAD.rstrip(), "", "| command | what it prints |", "|---|---|"]
    for command, kind in RESULTS.items():
        said = f" {_SAID[command]}" if command in _SAID else ""
        shown = command.replace("--random", "--random N")
        lines.append(f"| `mview {shown}` | {told_type(kind)}{'.' if said else ''}{said} |")
    told = [f"| `{event}` | the fields of {told_type(kind)} |" for event, kind in EVENTS.items()]
    lines += [_EVENTS.rstrip(), *told, _MORE_EVENTS]
    for kind in forms([*RESULTS.values(), *EVENTS.values()]):
        first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
        lines += ["", f"## {kind.__name__}", "", " ".join(first.split()), "", *_table(kind)]
    return "\n".join([*lines, ""])
