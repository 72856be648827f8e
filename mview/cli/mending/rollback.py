"""`mview rollback`: a view as it was declared before it was changed last."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mview.cli.completing import names
from mview.cli.options import App, config_option, json_option
from mview.errors import ExitCode, UserError, typed

if TYPE_CHECKING:
    from mview.plan.definition import ViewDefinition


@click.command()
@click.argument("view", shell_complete=names(views=True))
@click.option("--plan", "plan_only", is_flag=True, help="Show what it would do, and do nothing.")
@config_option
@json_option
@click.pass_obj
def rollback(app: App, view: str, plan_only: bool, config_path: str) -> None:
    """Have the run that goes on take up the text that a view had before its last change.

    It is built beside the one that is shown, takes its place in one epoch, and its sinks get the
    difference. A second rollback goes back to the newer text. Ends with 1 when it is refused, or
    the view is not built.
    """
    from mview.admin.apply import apply_views, check_running
    from mview.admin.content import published
    from mview.catalog.definitions import load_former
    from mview.cli.checking import Checker
    from mview.cli.planning import plan_run
    from mview.cli.render import applied_text, planned_text
    from mview.cli.results import RolledBack
    from mview.store.layout import Store

    config = app.config(config_path)
    former = load_former(Store(config.store), published(config), view)
    again = f"mview rollback {typed(view)}"
    if not plan_only:
        try:
            check_running(config, again)
        except UserError as error:  # a run alone takes the newer text of the files
            error.hint = (
                f"{error.hint}; or put the text that `{again} --plan` prints into the view's file, "
                "and run that"
            )
            raise
    checker = Checker(config, False, app.output.note)
    planned = plan_run(config, checker.check([former]), checker.manifest, checker.schemas)
    planned = replace(planned, not_given=())  # no files are given
    if not plan_only and planned.refuses:
        app.output.line(planned_text(planned), fold=True)
        raise UserError(
            f"the former text of view {view} is refused",
            safe="nothing was changed; the run goes on as it was",
            hint=f"mview rollback {typed(view)} --plan",
        )
    app.output.line(f"{planned_text(planned)}\n", fold=True)
    if plan_only:
        app.output.result(RolledBack(former.sql, planned, None), former.sql.strip())
        return
    app.output.line(former.sql.strip())
    answer = apply_views(config, [former], (), app.output.note, then=again)
    app.output.result(RolledBack(former.sql, planned, answer), applied_text(answer), fold=True)
    if former.file and not is_in_its_file(former):
        app.output.note(
            f"{former.file} is as it was written: put this text into it, or the next run or apply "
            "of the file changes the view again"
        )
    if answer.state != "done" or answer.halted:
        sys.exit(ExitCode.CHECK_FAILED)


def is_in_its_file(view: ViewDefinition) -> bool:
    """Whether the file of a view has this text of it."""
    from mview.catalog.definitions import digest_of
    from mview.plan.definition import read_views

    with suppress(UserError):
        given, _ = read_views([view.file])
        return any(v.name == view.name and digest_of(v) == digest_of(view) for v in given)
    return False
