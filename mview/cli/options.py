"""What all commands share: the output, the configuration, and the options for them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mview.cli.completing import files, names
from mview.cli.output import Output

if TYPE_CHECKING:
    from mview.config import Config

F = TypeVar("F", bound=Callable[..., Any])


def default_config() -> str:
    """The configuration of this folder: conf/mview.yml, or mview.yml where that alone is there."""
    nested, beside = "conf/mview.yml", "mview.yml"
    return beside if Path(beside).exists() and not Path(nested).exists() else nested


@dataclass
class App:
    """What all commands share: where to print, and how to read the configuration.

    Attributes:
        output: prints.
        environment: whose views the command is about; empty: production's.
        options: without which other commands would be about another project; mostly empty.
        about: what names the environment to other commands that are to be about it.
    """

    output: Output = field(default_factory=Output)
    environment: str = ""
    options: str = ""
    about: str = ""

    def config(self, path: str, *, begins: bool = False) -> Config:
        """Read the configuration; from then on its secrets are hidden in all output.

        Args:
            path: of its file.
            begins: an environment that is named need not be there yet.
        """
        from mview.config import secret_values
        from mview.config.file import load_config
        from mview.secrets import Mask

        if path != default_config():
            self.options = shlex.join(("--config", path))
        config = load_config(path)
        self.output.hide(Mask(secret_values(config)))
        if not self.environment:
            return config
        from mview.catalog.environments import in_environment
        from mview.store.environments import check_there
        from mview.store.layout import Store

        if not begins:
            check_there(Store(config.store), self.environment)
        configured = in_environment(config, self.environment)
        self.about = configured.option.strip()
        return configured


def _output_option(name: str, attribute: str, told: str) -> Callable[[F], F]:
    def turn_on(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.ensure_object(App).output, attribute, True)

    return click.option(name, is_flag=True, expose_value=False, callback=turn_on, help=told)


debug_option = _output_option("--debug", "debug", "Show the traceback of an error.")
json_option = _output_option("--json", "as_json", "Print the result as JSON.")


def _set_environment(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value == "":  # as of a shell's variable that is not set: production is not meant
        raise click.UsageError("--env has no name; production's views are those without --env")
    if value is not None:
        ctx.ensure_object(App).environment = value


#: `--env`: the views of an environment.
env_option = click.option(
    "--env",
    metavar="NAME",
    expose_value=False,
    callback=_set_environment,
    help="Of the views of this environment, beside production's.",
)

#: FILE…: view files and folders.
views_argument = click.argument(
    "files", nargs=-1, required=True, metavar="FILE|FOLDER…", shell_complete=files
)

#: `--select`: some of the views of these files.
select_option = click.option(
    "-s",
    "--select",
    "selectors",
    multiple=True,
    metavar="VIEW|tag:NAME|changed",
    shell_complete=names(views=True),
    help="Only these views; again for more. '+VIEW': with the views that it reads; "
    "'VIEW+': with those that read it; changed: those that the store does not have so.",
)


def config_option(command: F) -> F:
    """Add `--config` and `--debug`, which every command but `demo` has."""
    return click.option(
        "-c",
        "--config",
        "config_path",
        default=default_config,
        show_default="conf/mview.yml, else mview.yml",
        metavar="FILE",
        shell_complete=files,
        help="Configuration file.",
    )(debug_option(command))
