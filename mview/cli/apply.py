"""`mview apply`: views for the run that goes on."""

from __future__ import annotations

import shlex
import sys

import click

from mview.cli.completing import files as files_here
from mview.cli.options import App, config_option, env_option, json_option, select_option
from mview.errors import ExitCode, UserError


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER…]", shell_complete=files_here)
@config_option
@env_option
@json_option
@click.option(
    "--prune",
    is_flag=True,
    help="Remove the views of the store that the files do not have, with their data. Asks first.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@select_option
@click.pass_obj
def apply(
    app: App,
    files: tuple[str, ...],
    config_path: str,
    prune: bool,
    yes: bool,
    selectors: tuple[str, ...],
) -> None:
    """Have the run that goes on take added and edited views, without a stop.

    Without files: those that `mview run` was given, as they are now. It does what `mview plan` of
    them shows, and tells what was done, or why nothing was. Ends with 1 when it is refused, or a
    view is not built.
    """
    if prune and selectors:
        raise click.UsageError("--prune goes by all views of the files: without --select")
    from mview.admin.apply import apply_views, check_running
    from mview.catalog.selecting import chosen
    from mview.cli.checking import Checker, files_of_run
    from mview.cli.planning import plan_run
    from mview.cli.render import applied_text, planned_text
    from mview.cli.results import Applied
    from mview.plan.definition import read_views
    from mview.store.layout import Store
    from mview.store.requests.applies import ApplyLog
    from mview.store.requests.asked import asked_views

    config = app.config(config_path)
    # A start takes up what the files have, and removes nothing.
    again = f"mview apply{config.option} --prune {shlex.join(files)}".rstrip() if prune else ""
    check_running(config, again)
    named = files or files_of_run(config)
    checker = Checker(config, False, app.output.note)
    given, unread = read_views(named)
    given = chosen(config, given, selectors)
    checked = checker.check(given, unread)
    remove = []
    if prune:  # also what is being built, or waits to be: no manifest names it yet
        store = Store(config.store)
        shown = () if checker.manifest is None else checker.manifest.views
        requests = ApplyLog(store.applies).waiting().values()
        waiting = [view.name for request in requests for view in request.views]
        there = {*shown, *asked_views(store), *waiting}
        remove = sorted(there - {view.name for view in given})
    planned = plan_run(config, checked, checker.manifest, checker.schemas).without(remove)
    app.output.line(planned_text(planned), fold=True)
    if planned.refuses:
        raise UserError(
            "a view is refused",
            safe="nothing was changed; the run goes on as it was",
            hint=f"mview plan{config.option} {shlex.join(named)}",
        )
    if remove:
        app.output.note(f"to be removed, with their data: {', '.join(remove)}")
        if not yes:
            click.confirm("Remove them?", abort=True, err=True)
    answer = apply_views(config, given, remove, app.output.note, then=again)
    app.output.result(Applied(planned, answer), applied_text(answer), fold=True)
    if answer.state != "done" or answer.halted:
        sys.exit(ExitCode.CHECK_FAILED)
