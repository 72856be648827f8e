"""`mview pause`, `mview resume` and `mview backfill`: reading tables, while a run goes on."""

from __future__ import annotations

import sys

import click

from mview.cli.completing import names as names_of
from mview.cli.options import App, config_option, json_option
from mview.errors import ExitCode, counted, one_line

_tables = click.argument(
    "names", nargs=-1, required=True, metavar="TABLE…", shell_complete=names_of(tables=True)
)


@click.command()
@_tables
@config_option
@json_option
@click.pass_obj
def pause(app: App, names: tuple[str, ...], config_path: str) -> None:
    """Read no more rows of tables that are being loaded, until `mview resume`.

    A run takes it up at once, with --once, too. Changes are followed on; it stays over restarts.
    """
    from mview.admin.pauses import pause_loads

    told = pause_loads(app.config(config_path), names, app.output.note)
    lines = [f"{name}: {'paused' if new else 'was paused'}" for name, new in told.items()]
    app.output.result(told, "\n".join(lines))


@click.command()
@_tables
@config_option
@json_option
@click.pass_obj
def resume(app: App, names: tuple[str, ...], config_path: str) -> None:
    """Go on with loads that `mview pause` has paused."""
    from mview.admin.pauses import resume_loads

    told = resume_loads(app.config(config_path), names)
    app.output.result(
        told,
        "\n".join(
            f"{name}: {'goes on' if was else 'was not paused'}" for name, was in told.items()
        ),
    )


@click.command()
@_tables
@click.option("--no-wait", is_flag=True, help="Ask for it, and do not wait until it is done.")
@config_option
@json_option
@click.pass_obj
def backfill(app: App, names: tuple[str, ...], no_wait: bool, config_path: str) -> None:
    """Have the run read loaded tables anew; what differs comes into the views as changes.

    For rows that were changed past the log: restored, loaded in bulk, lost by a connector. Views go
    on meanwhile, and rows that are right change nothing. Ends with 1 when it failed.
    """
    from mview.admin.mending.backfill import backfill as read_anew

    told = read_anew(app.config(config_path), names, app.output.note, wait=not no_wait)
    lines = []
    for table in told:
        done = f"as its database has it, {counted(table.rows, 'row')} at epoch {table.epoch:,}"
        said = f"{table.state}, {table.why}" if table.why else done
        lines.append(one_line(f"{table.table}: {said}"))
        lines += [f"  next: {one_line(table.next)}"] if table.next else []
    app.output.result(told, "\n".join(lines), fold=True)
    if any(table.state == "failed" for table in told):
        sys.exit(ExitCode.CHECK_FAILED)
