"""`mview preview`: what a query gives now, before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mview.cli.completing import files
from mview.cli.display.cells import cell
from mview.cli.options import App, config_option, json_option
from mview.cli.render import aligned
from mview.errors import counted, one_line

if TYPE_CHECKING:
    from mview.trial.preview import Preview, PreviewedTable

#: Characters of a value that are shown.
_CHARACTERS = 40


@click.command()
@click.argument("what", metavar="FILE|VIEW|SQL", shell_complete=files)
@click.option(
    "--with",
    "beside",
    multiple=True,
    metavar="FILE|FOLDER",
    help="Views that it reads, where the store does not have them.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=1, max=1_000_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="So many rows of each table are read.",
)
@click.option(
    "-n",
    "--rows",
    "most",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="So many rows of the result are shown.",
)
@config_option
@json_option
@click.pass_obj
def preview(
    app: App, what: str, beside: tuple[str, ...], sample: int, most: int, config_path: str
) -> None:
    """Show what a query gives of the databases as they are now, without a store.

    Of a table with more rows than --sample the first ones are read: the result says so.
    """
    from mview.trial.preview import preview as previewed

    told = previewed(app.config(config_path), what, beside, sample, most, app.output.note)
    app.output.result(told, preview_text(told))


def preview_text(told: Preview) -> str:
    """What was read, and the first rows of the result."""
    lines = [one_line(_table_text(table)) for table in told.tables]
    names = [name for name, _ in told.columns]
    rows = [names, *([_cell(row[name]) for name in names] for row in told.rows)]
    lines += ["", *aligned(rows, indent=0)]
    if (left := told.count - len(told.rows)) > 0:
        lines.append(f"and {left:,} more")
    sample = ", OF A SAMPLE: sums are too small, joins may lack rows" if told.sampled else ""
    lines += ["", f"{counted(told.count, 'row')} in {told.seconds:.1f} s{sample}"]
    return "\n".join(lines)


def _table_text(table: PreviewedTable) -> str:
    if table.sampled:
        about = f" of about {table.about:,}" if table.about > table.rows else ", it has more"
        return f"{table.table}: the first {counted(table.rows, 'row')}{about}"
    return f"{table.table}: all {counted(table.rows, 'row')}"


def _cell(value: Any) -> str:
    text = cell(value)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
