"""`mview run`: load, go live, stay live."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from mview.cli.display.progress import Display, LogFormat, QuietDisplay, display_for, heard
from mview.cli.display.tee import TeeDisplay
from mview.cli.interrupt import Drainable, run_until_interrupted
from mview.cli.options import App, config_option, env_option, select_option, views_argument
from mview.cli.output import Output
from mview.cli.watch.command import Listening, WatchedDisplay, listen_options
from mview.errors import ExitCode


@click.command()
@views_argument
@config_option
@env_option
@click.option("--once", is_flag=True, help="Take what is there now, go live, finish.")
@click.option("-v", "--verbose", is_flag=True, help="A line for each epoch.")
@click.option("-q", "--quiet", is_flag=True, help="Say only what is wrong.")
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    help="Lines, also on a terminal: text with times, or JSON for programs.",
)
@listen_options(None)
@select_option
@click.pass_obj
def run(
    app: App,
    files: tuple[str, ...],
    config_path: str,
    once: bool,
    verbose: bool,
    quiet: bool,
    log_format: LogFormat | None,
    listen: str | None,
    remote: tuple[str, ...],
    token: str,
    selectors: tuple[str, ...],
) -> None:
    """Load the tables the views read, then keep the views fresh.

    Runs until Ctrl-C, which finishes the running epoch first; a second Ctrl-C ends at once.
    Either way the same command continues later where it was.

    With --env the views are of an environment: beside production's, over the tables that production
    has loaded, and published nowhere else. Production's run goes on as it does.
    """
    if app.environment and listen is not None:
        raise click.UsageError("--listen shows production: it is not for --env")
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose: ask for one of them")
    from mview.memory import give_back_what_is_freed, use_the_systems_allocator

    use_the_systems_allocator()
    from mview.catalog.selecting import chosen
    from mview.plan.definition import load_views

    config = app.config(config_path, begins=True)
    give_back_what_is_freed(config.engine.memory)
    views = chosen(config, load_views(files), selectors)
    # Only now, because it brings Spark in: a wrong file or setting is told at once.
    from mview.admin.explore.took import TookLog
    from mview.clock import SystemClock
    from mview.run.pipeline import Pipeline
    from mview.store.layout import Store

    display: Display = (
        QuietDisplay(app.output)
        if quiet
        else display_for(app.output, log_format=log_format, verbose=verbose)
    )
    if listen is not None:
        listening = Listening(listen, remote, token)
        display = WatchedDisplay(display, app.output, config_path, listening)
    elif remote or token:
        raise click.UsageError("--remote and --token are for --listen")
    if config.openlineage is not None:
        from mview.cli.watch.lineage import LineageDisplay, LineageEvents

        told = config, config.openlineage, once, app.output.mask
        display = LineageDisplay(display, LineageEvents(*told, display.on_message))
    # Of a selection only its own files: `mview plan` and `apply` without files take no others.
    given = [view.file for view in views] if selectors else files
    read_from = [str(Path(name).resolve()) for name in given]
    listener = TeeDisplay(display, TookLog(Store(config.store, any_format=True), SystemClock()))
    pipeline = Pipeline(config, views, listener=listener, files=read_from)
    if drive(pipeline, display, app.output, once=once):
        sys.exit(ExitCode.INTERRUPTED)


def drive(pipeline: Drainable, display: Display, output: Output, *, once: bool) -> bool:
    """Run a pipeline with its display until it is finished or interrupted.

    Returns:
        Whether it was interrupted.
    """

    def say_draining() -> None:
        output.needs_no_readers()
        display.on_message("finishing the running epoch; Ctrl-C again ends at once")

    with heard(), output.beside(), display:
        return run_until_interrupted(pipeline, once=once, on_drain=say_draining)
