"""`mview run`: load, go live, stay live."""

from __future__ import annotations

import sys

import click

from mview.cli.interrupt import Drainable, run_until_interrupted
from mview.cli.options import App, config_option, views_argument
from mview.cli.progress import Display, display_for
from mview.errors import ExitCode


@click.command()
@views_argument
@config_option
@click.option("--once", is_flag=True, help="Take what is there now, go live, finish.")
@click.pass_obj
def run(app: App, files: tuple[str, ...], config_path: str, once: bool) -> None:
    """Load the tables the views read, then keep the views fresh.

    Runs until Ctrl-C, which finishes the running epoch first; a second Ctrl-C ends at once.
    Either way the same command continues later where it was.
    """
    from mview.memory import give_back_what_is_freed, use_the_systems_allocator

    use_the_systems_allocator()
    from mview.plan.definition import load_views

    config = app.config(config_path)
    give_back_what_is_freed(config.engine.memory)
    views = load_views(files)
    # Only now, because it brings Spark in: a wrong file or setting is told at once.
    from mview.run.pipeline import Pipeline

    display = display_for(app.output)
    if drive(Pipeline(config, views, listener=display), display, once=once):
        sys.exit(ExitCode.INTERRUPTED)


def drive(pipeline: Drainable, display: Display, *, once: bool) -> bool:
    """Run a pipeline with its display until it is finished or interrupted.

    Returns:
        Whether it was interrupted.
    """

    def say_draining() -> None:
        display.on_message("finishing the running epoch; Ctrl-C again ends at once")

    with display:
        return run_until_interrupted(pipeline, once=once, on_drain=say_draining)
