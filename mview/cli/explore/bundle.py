"""`mview support-bundle`: what somebody needs to help who cannot see the store; no secrets."""

from __future__ import annotations

import json
import os
import platform
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from mview.cli.options import App, config_option, json_option
from mview.cli.output import without_secrets
from mview.errors import UserError, counted, known_error, one_line
from mview.secrets import REFERENCE, is_telling, starred

if TYPE_CHECKING:
    from mview.config import Config

#: Whose versions are told.
_PACKAGES = (
    "mview-engine",
    "pyspark",
    "duckdb",
    "pyarrow",
    "numpy",
    "sqlglot",
    "sqlalchemy",
    "confluent-kafka",
    "pydantic",
)

#: Files of the store that are listed.
_MOST_FILES = 20_000

#: Epochs that are told.
_EPOCHS = 300

_README = """What mview tells of a store and of a run, for somebody who helps.

versions.json   of mview, Python, its packages and the machine
config.yml      the configuration, without its comments; secrets are starred out
status.json     what `mview status --json` prints
lag.json        what `mview lag --json` prints
history.json    the newest epochs, as `mview history --json` prints them
lineage.json    what views read
plans.txt       how each view is kept up, as `mview explain` prints it
views/          the SQL of the views
manifest.json   the newest manifest: columns, counts, places in the logs
files.txt       names and sizes of the store's files
*.error.txt     why a part could not be told

No rows of tables or views are in it. Errors are as `mview status` prints them: they may name the
values of a row that failed. Look through it before you send it.
"""


@dataclass(frozen=True)
class Bundle:
    """A bundle that was written.

    Attributes:
        file: where it is.
        parts: what is in it.
        size: its bytes.
    """

    file: str
    parts: tuple[str, ...]
    size: int


@click.command("support-bundle")
@click.option(
    "-o",
    "--output",
    default="mview-support.zip",
    show_default=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where it goes; a file that is there is not written over.",
)
@config_option
@json_option
@click.pass_obj
def support_bundle(app: App, output: Path, config_path: str) -> None:
    """Write what somebody needs who helps: versions, configuration, status, plans. No secrets.

    Asks no database, and has no rows of tables or views. Look through it before you send it.
    """
    config = app.config(config_path)
    told = write_bundle(config, output, app.output.mask)
    size = f"{told.size / 1024:,.0f} kB"
    files = counted(len(told.parts), "file")
    lines = [f"{one_line(told.file)}: {size}, {files}", *map(one_line, told.parts)]
    lines.append("Look through it before you send it: see README.txt in it.")
    app.output.result(told, "\n".join(lines))


def write_bundle(config: Config, output: Path, mask: Callable[[str], str]) -> Bundle:
    """Write a bundle.

    Args:
        config: has the store.
        output: the file; it must not be there.
        mask: hides secrets.

    Raises:
        UserError: the file is there, or its folder is not.
    """
    if not output.parent.exists():
        raise UserError(
            "there is no folder for the bundle",
            where=str(output.parent),
            safe="nothing was written",
            hint="make it, or name a file in another one: mview support-bundle --output OTHER.zip",
        )
    try:
        with output.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, make in _parts(config, mask):
                try:
                    text = _text(make(), mask)
                except Exception as error:
                    # What is broken is why somebody asks for help: the rest is told all the same.
                    name, text = f"{name}.error.txt", mask(known_error(error).render())
                packed.writestr(mask(name), text)
            parts = tuple(packed.namelist())
    except FileExistsError:
        raise UserError(
            "the file for the bundle is there already",
            where=str(output),
            safe="nothing was written over",
            hint="mview support-bundle --output OTHER.zip",
        ) from None
    return Bundle(str(output), parts, output.stat().st_size)


def _text(made: Any, mask: Callable[[str], str]) -> str:
    """Text, or data as JSON; both without secrets."""
    if isinstance(made, str):
        return mask(made)
    # Before it is JSON: a secret of digits would be starred out of numbers, too.
    return json.dumps(without_secrets(made, mask), indent=1)


def _parts(config: Config, mask: Callable[[str], str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is in a bundle, by name. Asked when it is written: each may fail by itself."""
    from mview.admin.explore.epochs import history
    from mview.admin.explore.lag import lag
    from mview.admin.status import status
    from mview.cli.watch.store import plans, view_texts
    from mview.store.history import ManifestLog
    from mview.store.layout import Store

    def manifest() -> Any:
        newest = ManifestLog(Store(config.store).manifests).latest()
        return None if newest is None else newest.to_json()

    def plan_texts() -> str:
        return "\n\n".join(f"{name}\n{text}" for name, text in plans(config).texts.items())

    yield "README.txt", lambda: _README
    yield "versions.json", _versions
    yield "config.yml", lambda: _settings(config, mask)
    yield "status.json", lambda: status(config, epochs=20)
    yield "lag.json", lambda: lag(config, 600_000)
    yield "history.json", lambda: history(config, (), None, None, _EPOCHS, quiet_too=True)
    yield "lineage.json", lambda: plans(config).lineage
    yield "plans.txt", plan_texts
    yield "manifest.json", manifest
    yield "files.txt", lambda: "\n".join(_files(config.store))
    try:
        views = view_texts(config)
    except Exception as error:
        told = known_error(error).render()
        yield "views.error.txt", lambda: told
        return
    for view in views:
        yield f"views/{view.name}.json", partial(asdict, view)


def _versions() -> dict[str, Any]:
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "packages": packages,
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }


def _settings(config: Config, mask: Callable[[str], str]) -> str:
    """The configuration as it is written, without comments and without plain secrets."""
    # Parsed once already: it is what the command was given.
    read = yaml.safe_load(config.path.read_text(encoding="utf-8"))
    # Before it is text: YAML writes some characters in another way.
    safe = without_secrets(_redacted("", read), mask)
    return yaml.safe_dump(safe, sort_keys=False, allow_unicode=True)


def _redacted(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _redacted(str(key), part) for key, part in value.items()}
    if isinstance(value, list):
        return [_redacted(name, part) for part in value]
    if value is None or isinstance(value, bool):
        return value
    if is_telling(name) and not REFERENCE.fullmatch(str(value)):
        return "******"
    return starred(name, value) if isinstance(value, str) else value


def _files(root: Path) -> Iterator[str]:
    """The files of a store, with their sizes."""
    count = 0
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            count += 1
            if count > _MOST_FILES:
                yield f"and more: {_MOST_FILES:,} are listed"
                return
            path = Path(folder, name)
            try:
                size = path.stat().st_size
            except OSError:
                continue  # a runner cleans beside us
            yield f"{size:>14,}  {path.relative_to(root)}"
