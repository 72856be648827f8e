"""`mview pause` and `mview resume`: loads of tables, while a run goes on."""

from __future__ import annotations

import click

from mview.cli.options import App, config_option, json_option

_tables = click.argument("names", nargs=-1, required=True, metavar="TABLE…")


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
