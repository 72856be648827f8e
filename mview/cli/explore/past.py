"""`mview history` and `mview lag`: what epochs did and when, and how late views are and were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

from mview.cli.completing import names
from mview.cli.display.progress import duration_text
from mview.cli.options import App, config_option, env_option, json_option
from mview.cli.render import aligned, sink_lines
from mview.clock import DURATION_EXAMPLES, MOMENT_EXAMPLES, parse_duration, utc_text
from mview.errors import counted, one_line

if TYPE_CHECKING:
    from mview.admin.explore.epochs import PastEpoch, ViewPoint
    from mview.admin.explore.lag import Lag, ViewLag


@click.command()
@click.argument("views", nargs=-1, metavar="[VIEW…]", shell_complete=names(views=True))
@click.option("--since", metavar="TIME", help=f"From this time on: {MOMENT_EXAMPLES}.")
@click.option("--until", metavar="TIME", help="Up to this time, written alike.")
@click.option(
    "-n",
    "--epochs",
    "most",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The newest so many of them.",
)
@click.option("--all", "quiet_too", is_flag=True, help="Also epochs that changed no view.")
@config_option
@env_option
@json_option
@click.pass_obj
def history(
    app: App,
    views: tuple[str, ...],
    since: str | None,
    until: str | None,
    most: int,
    quiet_too: bool,
    config_path: str,
) -> None:
    """Show when epochs were published, and what they did to views.

    Of those that are kept: all of the last ten minutes, then fewer.
    """
    from mview.admin.explore.epochs import history as past

    told = past(app.config(config_path), views, since, until, most, quiet_too=quiet_too)
    app.output.result(told, history_text(told), fold=True)


def history_text(epochs: Sequence[PastEpoch]) -> str:
    """An epoch in a line, and one below it per view that it changed."""
    if not epochs:
        return "no epoch that is kept and asked for changed a view; --all shows the others, too"
    heads = aligned([_epoch_cells(epoch) for epoch in epochs], indent=0)
    changed = [(name, change) for epoch in epochs for name, change in epoch.views.items()]
    below = iter(aligned([(name, *_change_cells(change)) for name, change in changed]))
    return "\n".join(
        line
        for head, epoch in zip(heads, epochs, strict=True)
        for line in (head, *islice(below, len(epoch.views)))
    )


def _epoch_cells(epoch: PastEpoch) -> tuple[str, str, str]:
    at = f"{utc_text(epoch.published_ms)} UTC"
    return f"epoch {epoch.epoch:,}", at, f"lag {duration_text(epoch.lag_ms)}{_took(epoch)}"


def _took(epoch: PastEpoch) -> str:
    return "" if epoch.took_ms is None else f", took {epoch.took_ms / 1000:.2f} s"


def _change_cells(change: ViewPoint) -> tuple[str, str, str]:
    took = "built" if change.seconds is None else f"{change.seconds:.2f} s"
    counts = f"+{change.inserted:,} ~{change.updated:,} -{change.deleted:,}"
    return counts, counted(change.rows, "row"), f"{took} {change.executor}".rstrip()


@click.command()
@click.option(
    "--over",
    default="10 min",
    show_default=True,
    metavar="TIME",
    help="So far back epochs are counted.",
)
@config_option
@env_option
@json_option
@click.pass_obj
def lag(app: App, over: str, config_path: str) -> None:
    """Show how late views are now, and were when their changes were published."""
    from mview.admin.explore.lag import lag as lateness

    over_ms = parse_duration(over)
    if over_ms is None:
        raise click.UsageError(f"--over {over!r} is no duration; allowed: {DURATION_EXAMPLES}")
    told = lateness(app.config(config_path), over_ms)
    app.output.result(told, lag_text(told), fold=True)


def lag_text(told: Lag) -> str:
    """Connections, then views with their sinks below."""
    lines = [told.running or "nobody runs the store"]
    if told.sources:
        sources = [
            (source.name, "no time known")
            if source.lag_ms is None
            else (source.name, f"read up to {duration_text(source.lag_ms)} ago")
            for source in told.sources
        ]
        lines += ["", "sources", *aligned(sources)]
    if told.views:
        lines += ["", f"views, and their changes over {duration_text(told.over_ms)}"]
        cells = [_view_cells(view) for view in told.views]
        for line, view in zip(aligned(cells), told.views, strict=True):
            lines += [line, *_below(view)]
    return "\n".join(lines)


def _view_cells(view: ViewLag) -> tuple[str, str, str]:
    promised = "" if view.freshness_ms is None else f" of {duration_text(view.freshness_ms)}"
    missed = ", MISSED" if view.cause else ""
    seen = "no epoch changed it"
    if view.epochs:
        times = (
            f"{what} {duration_text(ms)}"
            for what, ms in (
                ("half up to", view.median_ms),
                ("95 % up to", view.most_ms),
                ("worst", view.worst_ms),
            )
        )
        seen = f"{counted(view.epochs, 'epoch')}: {', '.join(times)}"
    return view.view, f"lag {duration_text(view.lag_ms)}{promised}{missed}", seen


def _below(view: ViewLag) -> Iterator[str]:
    if view.cause:
        yield f"    {one_line(view.cause)}"
    yield from sink_lines(view.sinks)
