"""The one place that prints: results as text or JSON, errors as one block, secrets never."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import click

from mview.errors import ExitCode, MviewError

if TYPE_CHECKING:
    from mview.config import Config

_MASK = "******"
#: Option names whose values are hidden even when the user wrote them down without `${…}`.
_TELLING = ("password", "secret", "token", "credential")


def secret_values(config: Config) -> set[str]:
    """All values of a configuration that must not be seen, resolved where they can be.

    Hidden are what a `${env:…}` or `${file:…}` stands for in passwords, options, URL queries, sinks
    and Spark settings, and the plain values of options with a telling name. Host and user names
    are shown: messages need them.
    """
    found: set[str] = set()
    for connection in config.connections.values():
        found |= _secrets_of("password", connection.password)
        found |= _secrets_of("", connection.query)
    for changes in config.changes.values():
        found |= _secrets_of("", changes.options)
    found |= _secrets_of("", config.sinks) | _secrets_of("", config.spark.conf)
    return found


def _secrets_of(name: str, value: object) -> set[str]:
    from mview.config import references, reveal
    from mview.errors import ConfigError

    if isinstance(value, dict):
        return {secret for key, part in value.items() for secret in _secrets_of(str(key), part)}
    if isinstance(value, list):
        return {secret for part in value for secret in _secrets_of(name, part)}
    if not isinstance(value, str):
        return set()
    if not (named := references(value)):
        return {value} if any(word in name.lower() for word in _TELLING) else set()
    found = set()
    for reference in named:
        try:
            found.add(reveal(reference, name))
        except ConfigError:
            continue  # not set: there is nothing to hide, and the command will say so
    return found


def _spellings(secret: str) -> Iterator[str]:
    """How a secret may stand in a message: as it is, URL-quoted, escaped by JSON or by repr."""
    yield from (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
    yield repr(secret)[1:-1]


class Output:
    """Prints what commands computed.

    Args:
        as_json: results as one JSON document instead of text.
        debug: errors with their traceback.
    """

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self._hidden: list[str] = []

    def hide(self, secrets: Iterable[str]) -> None:
        """Replace these values by stars in everything printed from now on."""
        spelled = {form for secret in secrets if secret.strip() for form in _spellings(secret)}
        # The longest first: one secret may be a part of another.
        self._hidden = sorted(spelled.union(self._hidden), key=len, reverse=True)

    def mask(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._hidden:
            text = text.replace(secret, _MASK)
        return text

    def result(self, data: Any, text: str) -> None:
        """Print a command's result: `data` in JSON mode, else `text`."""
        shown = json.dumps(_plain(data), indent=2) if self.as_json else text
        click.echo(self.mask(shown))

    def line(self, text: str = "") -> None:
        """Print a line for people; nothing in JSON mode."""
        if not self.as_json:
            click.echo(self.mask(text))

    def note(self, text: str) -> None:
        """Print a remark on stderr."""
        click.echo(self.mask(text), err=True)

    def error(self, error: BaseException) -> ExitCode:
        """Print an error as one block on stderr.

        Returns:
            The exit code that the process should end with.
        """
        if self.debug:
            text = "".join(traceback.format_exception(error))
            click.echo(self.mask(text.rstrip()), err=True)
        if isinstance(error, MviewError):
            block, code = f"Error: {error.render()}", error.exit_code
        else:
            block, code = _unexpected(error).render(), ExitCode.CHECK_FAILED
        click.echo(self.mask(block), err=True)
        return code

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches standard output."""
        return sys.stdout.isatty() and not self.as_json


def _unexpected(error: BaseException) -> MviewError:
    message = str(error).strip().split("\n")[0]
    return MviewError(
        f"Error: unexpected {type(error).__name__}: {message}",
        safe="every published epoch stays; the same command continues from the last one",
        hint="run again with --debug for the traceback, and report it",
    )


def _plain(data: Any) -> Any:
    """The data as what JSON can hold."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {f.name: _plain(getattr(data, f.name)) for f in dataclasses.fields(data)}
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [_plain(item) for item in data]
    if data is None or isinstance(data, bool | int | float):
        return data
    return str(data) if not isinstance(data, Path) else data.as_posix()
