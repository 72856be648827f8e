"""The commands beside `run` and `demo`: each computes, and leaves the printing to Output."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from mview.cli.options import App, config_option, json_option, views_argument
from mview.errors import ExitCode, FreshnessError, several

if TYPE_CHECKING:
    from mview.cli.checking import Checked, Checker

offline_option = click.option(
    "--offline", is_flag=True, help="Do not connect: take the columns that the store has kept."
)


@click.command()
@views_argument
@config_option
@offline_option
@json_option
@click.pass_obj
def check(app: App, files: tuple[str, ...], config_path: str, offline: bool) -> None:
    """Find what is wrong in views and configuration, without Spark."""
    from mview.cli.render import checked_json, checked_text

    _, views = _check(app, files, config_path, offline)
    app.output.result([checked_json(view) for view in views], checked_text(views))
    if any(view.error for view in views):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@views_argument
@config_option
@offline_option
@json_option
@click.pass_obj
def explain(app: App, files: tuple[str, ...], config_path: str, offline: bool) -> None:
    """Print how each view is kept up: its plan as a tree, and the reason of every FULL."""
    from mview.cli.costs import cost_lines, plan_cost
    from mview.cli.render import explained_json
    from mview.ivm.explain import explain as explain_plan

    checker, views = _check(app, files, config_path, offline)
    if wrong := [view.error for view in views if view.error]:
        raise several(wrong)
    plans = [view.plan for view in views if view.plan]
    costs = partial(plan_cost, manifest=checker.manifest)
    text = "\n\n".join(explain_plan(plan, lambda part: cost_lines(costs(part))) for plan in plans)
    app.output.result([explained_json(plan, costs) for plan in plans], text)


def _check(
    app: App, files: tuple[str, ...], config_path: str, offline: bool
) -> tuple[Checker, list[Checked]]:
    from mview.cli.checking import Checker
    from mview.plan.definition import read_views

    config = app.config(config_path)
    views, unread = read_views(files)
    checker = Checker(config, offline, app.output.note)
    return checker, checker.check(views, unread)


@click.command()
@config_option
@json_option
@click.option(
    "--check-freshness",
    is_flag=True,
    help=f"End with {ExitCode.FRESHNESS_MISSED} when a view is older than its freshness.",
)
@click.option(
    "--history",
    "epochs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Show the strategies of each view in its newest N epochs, and what they took.",
)
@click.pass_obj
def status(app: App, config_path: str, check_freshness: bool, epochs: int) -> None:
    """Show what the store has: tables, views, epoch, lag, and whether it is running."""
    from mview.admin.status import status as store_status
    from mview.cli.render import status_text

    told = store_status(app.config(config_path), epochs=epochs)
    app.output.result(told, status_text(told))
    missed = [view.name for view in told.views if view.missed]
    if check_freshness and missed:
        raise FreshnessError(
            f"older than promised: {', '.join(missed)}",
            where=told.store,
            hint=None if told.running else "nobody runs the store: mview run FILE…",
        )


@click.command()
@views_argument
@config_option
@json_option
@click.pass_obj
def verify(app: App, files: tuple[str, ...], config_path: str) -> None:
    """Recompute views as a batch over the published epoch, and compare with their sinks."""
    from mview.cli.render import verified_text
    from mview.plan.definition import load_views

    config = app.config(config_path)
    views = load_views(files)
    from mview.admin.verify import verify as verify_views

    results = verify_views(config, views)
    app.output.result(results, verified_text(results))
    if not all(result.equal for result in results):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument("names", nargs=-1, metavar="[VIEW…]")
@config_option
@json_option
@click.pass_obj
def maintain(app: App, names: tuple[str, ...], config_path: str) -> None:
    """Compact the tables of views in their sinks, and remove what no reader needs any more.

    All views, or those that are named. What is read stays as it is. It may run beside `mview run`.
    """
    from mview.admin.maintain import maintain as maintain_views
    from mview.cli.render import maintained_text

    results = []
    for result in maintain_views(app.config(config_path), names):
        results.append(result)
        app.output.line(maintained_text(result))
    if app.output.as_json or not results:
        app.output.result(results, "no view has a sink that follows it")
    if any(result.error for result in results):
        sys.exit(ExitCode.CHECK_FAILED)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@config_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def drop(app: App, names: tuple[str, ...], config_path: str, yes: bool) -> None:
    """Remove views with their data. The databases are not touched."""
    from mview.admin.drop import drop as drop_views
    from mview.admin.drop import left_in_sinks

    config = app.config(config_path)
    left = left_in_sinks(config, names)
    if not yes:
        click.confirm(f"Drop {', '.join(names)} with all data?", abort=True)
    unread = drop_views(config, names)
    app.output.line(f"dropped: {', '.join(names)}")
    for table in left:
        app.output.line(f"the table in sink {table} stays, and is not kept fresh any more")
    for name in unread:
        app.output.line(f"{name}: its definition was damaged: a table at a path of its own stays")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="VIEW…")
@config_option
@click.pass_obj
def repair(app: App, names: tuple[str, ...], config_path: str) -> None:
    """Take back what others have written to the tables of views."""
    from mview.admin.repair import repair as repair_views

    built = repair_views(app.config(config_path), names)
    for name in names:
        left = "; the next mview run builds it anew, the others go on" if name in built else ""
        app.output.line(f"{name}: its table is as mview left it{left}")
