"""`%%mview NAME` and `%mview COMMAND` in a notebook."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mview.errors import MviewError, UserError
from mview.notebook.declaring import declare
from mview.notebook.project import Project, connected

#: Commands that go on until they are interrupted: not in a cell.
_ENDLESS = ("ui", "demo")


class _Options(argparse.ArgumentParser):
    """Says what is wrong as an error of ours, and does not end the kernel."""

    def error(self, message: str) -> NoReturn:
        """See `ArgumentParser`."""
        raise UserError(
            f"{self.prog}: {message}", allowed=self.format_usage().removeprefix("usage: ").strip()
        )


def _cell_options() -> _Options:
    options = _Options(prog="%%mview", add_help=False)
    options.add_argument("name")
    options.add_argument("--config")
    options.add_argument("--folder", type=Path)
    options.add_argument("--replace", action="store_true")
    options.add_argument("--dry", action="store_true")
    return options


def mview(line: str, cell: str | None = None) -> Any:
    """A view in a cell, or a command of `mview` in a line.

    %%mview NAME [--dry] [--replace] [--folder FOLDER] [--config FILE]
    SELECT …

    checks the view, shows how it is kept and some of its rows, writes it to a file, and has the run
    take it up. --dry: nothing is written.

    %mview                    the store
    %mview run FILE…          begins a run in a process of its own; %mview stop ends it
    %mview COMMAND …          any other command: status, check, explain, plan, lineage, verify, …
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UserError(f"the line cannot be read: {error}", got=line) from None
    if cell is None:
        return _command(words)
    given = _cell_options().parse_args(words)
    return declare(
        _project(given.config).config,
        given.name,
        cell,
        folder=given.folder,
        replace=given.replace,
        dry=given.dry,
        say=print,
    )


def _project(config: str | None) -> Project:
    """The project of a configuration; of none that is given, the one that was connected last."""
    if config is None and (last := connected()) is not None:
        return last
    from mview import connect

    return connect(config)


def _command(words: Sequence[str]) -> Any:
    if not words:
        return _project(None)
    command, *rest = words
    if command == "run":
        options = _Options(prog="%mview run", add_help=False)
        options.add_argument("files", nargs="+")
        options.add_argument("--once", action="store_true")
        options.add_argument("-c", "--config")
        given = options.parse_args(rest)
        return _project(given.config).run(*given.files, once=given.once)
    if command == "stop":
        return _project(None).stop()
    return _by_click(command, rest)


def _by_click(command: str, rest: Sequence[str]) -> None:
    """Run a command as the terminal does; what it prints is the cell's output."""
    from mview.cli import main

    if command in _ENDLESS:
        raise UserError(
            f"mview {command} goes on until it is interrupted",
            hint=f"in a terminal: mview {command}",
        )
    known = main.commands.get(command)
    has_config = known is not None and any(p.name == "config_path" for p in known.params)
    own = [] if any(word.split("=")[0] in ("-c", "--config") for word in rest) else _config_words()
    try:
        main.main([command, *rest, *(own if has_config else [])], prog_name="mview")
    except SystemExit as end:
        if end.code:
            sys.stdout.flush()
            raise CommandFailedError(command, end.code) from None


def _config_words() -> list[str]:
    last = connected()
    return [] if last is None else ["--config", str(last.config.path)]


class CommandFailedError(MviewError):
    """A command in a cell has failed, and has said why: the cells below are not run."""

    def __init__(self, command: str, code: object) -> None:
        super().__init__(f"mview {command} ended with {code}; what it said is above")


def load(ipython: Any) -> None:
    """Make the magics known to an IPython."""
    ipython.register_magic_function(mview, "line_cell", "mview")


def unload(ipython: Any) -> None:
    """Take them back."""
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("mview", None)
