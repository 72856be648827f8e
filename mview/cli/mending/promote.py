"""`mview promote`: production takes the views of an environment."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from mview.cli.completing import names
from mview.cli.options import App, config_option, env_option, json_option
from mview.errors import ExitCode, UserError, one_line, typed


@click.command()
@click.argument("views", nargs=-1, metavar="[VIEW…]", shell_complete=names(views=True))
@click.option("--plan", "plan_only", is_flag=True, help="Show what it would do, and do nothing.")
@config_option
@env_option
@json_option
@click.pass_obj
def promote(app: App, views: tuple[str, ...], plan_only: bool, config_path: str) -> None:
    """Have production's run take views of an environment, by their names.

    With --plan and no name, all are shown that production does not have, or has otherwise: also
    where it has a newer text by now. It is done as mview apply does it: they are built beside
    what is shown, replace it in one epoch, and sinks get the difference. The plan is shown first.
    The environment stays. Ends with 1 when it is refused, or a view is not built.
    """
    name, app.environment = app.environment, ""
    if not name:
        raise click.UsageError("name the environment: --env NAME")
    from mview.admin.apply import apply_views, check_running
    from mview.admin.mending.environments import check_named, light_views, promotable
    from mview.cli.checking import Checker
    from mview.cli.planning import plan_run
    from mview.cli.render import applied_text, planned_text
    from mview.cli.results import Promoted

    config = app.config(config_path)
    again = f"mview promote --env {typed(name, *views)}"
    given = promotable(config, name, views)
    if given and not plan_only:
        check_named(name, views, given)
        check_running(config, again)
    checker = Checker(config, False, app.output.note)
    planned = plan_run(config, checker.check(given), checker.manifest, checker.schemas)
    planned = replace(planned, not_given=())  # no files are given
    text = planned_text(planned) if given else f"production has all of environment {name} already"
    if plan_only or not given:
        light = () if views else tuple(light_views(config, name))
        left = [
            f"left out  view {one_line(view)}: it is in light mode, which a run takes at its start "
            "only; end production's run, and begin it with the view's file"
            for view in light
        ]
        if left and not given:
            text = f"production has all others of environment {name} already"
        app.output.result(Promoted(name, planned, None, light), "\n".join([text, *left]), fold=True)
        return
    app.output.line(text, fold=True)
    if planned.refuses:
        raise UserError(
            "production would refuse a view",
            safe="nothing was changed; its run goes on as it was",
            hint=f"mview promote --env {typed(name)} --plan",
        )
    answer = apply_views(config, given, (), app.output.note, then=again)
    app.output.result(Promoted(name, planned, answer), applied_text(answer), fold=True)
    app.output.note(
        "production has the views by these texts: a run or apply of files with other ones changes "
        "them again"
    )
    if answer.state != "done" or answer.halted:
        sys.exit(ExitCode.CHECK_FAILED)
