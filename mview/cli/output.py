"""The one place that prints: results as text or JSON, errors as one block, secrets never."""

from __future__ import annotations

import dataclasses
import errno
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mview.cli.display.aside import AsideWriter
from mview.cli.display.folding import columns, folded
from mview.errors import ExitCode, known_error, printable

if TYPE_CHECKING:
    from mview.secrets import Mask


class Output:
    """Prints what commands computed.

    Args:
        as_json: results as one JSON document instead of text.
        debug: errors with their traceback.

    Attributes:
        advised: what is said, with the options that the commands need that it advises. Errors and
            notes are said so; who prints other advice asks for it.
    """

    advised: Callable[[str], str]

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self.advised = str
        self._masks: list[Mask] = []
        self._needs_readers = True
        self._writer: AsideWriter | None = None

    def needs_no_readers(self) -> None:
        """From now on what nobody reads is left out: Ctrl-C ends those who read us, too."""
        self._needs_readers = False
        if self._writer is not None:
            self._writer.hurry()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Within it nothing that is printed waits for who reads it; all is written at its end.

        Raises:
            Exception: why something could not be written; what is printed next raises it, or the
                end.
        """
        self._writer = writer = AsideWriter(self._write)
        try:
            yield
        except BaseException as error:
            self._writer = None
            writer.close(known_error(error).exit_code)  # what ends the run counts
            raise
        self._writer = None
        if unwritten := writer.close(ExitCode.INTERRUPTED):
            raise unwritten

    def hide(self, mask: Mask) -> None:
        """Mask everything that is printed from now on."""
        self._masks.append(mask)

    def mask(self, text: str) -> str:
        """The text without secrets."""
        for mask in self._masks:
            text = mask(text)
        return text

    def result(self, data: Any, text: str, *, fold: bool = False) -> None:
        """Print a command's result: `data` in JSON mode, else `text`.

        Args:
            data: what was computed.
            text: the same for people.
            fold: lines that are wider than the screen go on below.
        """
        if self.as_json:
            # Before it is JSON: a secret of digits would be starred out of numbers, too.
            self._echo(json.dumps(without_secrets(data, self.mask), indent=2))
        else:
            self.line(text, fold=fold)

    def json_line(self, data: Any) -> None:
        """Print an event as a line of JSON."""
        self._echo(json.dumps(without_secrets(data, self.mask)))

    def line(self, text: str = "", *, fold: bool = False) -> None:
        """Print a line for people, or several; nothing in JSON mode."""
        if not self.as_json:
            # Masked first: a secret that is folded would be none of those that are known.
            self._print(folded(self.mask(text), columns()) if fold else text)

    def note(self, text: str) -> None:
        """Print a remark on stderr."""
        self._print(self.advised(text), err=True)

    def _print(self, text: str, *, err: bool = False) -> None:
        self._echo(printable(self.mask(text)), err=err)

    def _echo(self, text: str, *, err: bool = False) -> None:
        if self._writer is not None:
            self._writer.put(text, err)
        else:
            self._write(text, err)

    def _write(self, text: str, err: bool) -> None:
        try:
            click.echo(text, err=err)
        except BrokenPipeError:
            if self._needs_readers:
                raise
        except OSError as error:
            # The terminal is gone, and the signal that says so is on its way: it ends a run in
            # order.
            if error.errno != errno.EIO:
                raise

    def error(self, error: BaseException) -> ExitCode:
        """Print an error as one block on stderr.

        Returns:
            The exit code that the process should end with.
        """
        if self.debug:
            text = "".join(traceback.format_exception(error))
            self._print(text.rstrip(), err=True)
        known = known_error(error)
        self._print(f"Error: {self.advised(known.render())}", err=True)
        return known.exit_code

    @property
    def is_terminal(self) -> bool:
        """Whether a person watches standard output."""
        return sys.stdout.isatty() and not self.as_json


def without_secrets(data: Any, mask: Callable[[str], str]) -> Any:
    """The data as what JSON can hold, without secrets."""
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {
            f.name: without_secrets(getattr(data, f.name), mask) for f in dataclasses.fields(data)
        }
    if isinstance(data, dict):
        return {mask(str(key)): without_secrets(value, mask) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [without_secrets(item, mask) for item in data]
    if data is None or isinstance(data, bool | int | float):
        return data
    return mask(str(data) if not isinstance(data, Path) else data.as_posix())
