"""`mview why`: the rows behind a row of a view, and what last touched it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mview.cli.completing import names
from mview.cli.options import App, config_option, env_option, json_option
from mview.clock import utc_text
from mview.errors import ExitCode, counted, one_line

if TYPE_CHECKING:
    from mview.admin.why.explaining import SourceChange, Touched, Why


@click.command()
@click.argument("view", shell_complete=names(views=True))
@click.option(
    "-k",
    "--key",
    "given",
    multiple=True,
    metavar="[COLUMN=]VALUE",
    help="What tells the row, again for each column; without COLUMN: of the view's only key.",
)
@click.option(
    "--null", "nulls", multiple=True, metavar="COLUMN", help="A column that is NULL in the row."
)
@click.option(
    "-n",
    "--rows",
    "most",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="So many rows of each table are shown.",
)
@config_option
@env_option
@json_option
@click.pass_obj
def why(
    app: App,
    view: str,
    given: tuple[str, ...],
    nulls: tuple[str, ...],
    most: int,
    config_path: str,
) -> None:
    """Show the rows that a row of a view is made of, and the changes that last touched it.

    Of the store alone: no database is asked. Ends with 1 when there is no such row now.
    """
    from mview.admin.why.explaining import why as explain_row

    told = explain_row(app.config(config_path), view, _key(given, nulls), most)
    app.output.result(told, why_text(told), fold=True)
    if told.row is None:
        sys.exit(ExitCode.CHECK_FAILED)


def _key(given: tuple[str, ...], nulls: tuple[str, ...]) -> Mapping[str, str | None]:
    if not given and not nulls:
        raise click.UsageError("tell the row: --key [COLUMN=]VALUE, or --null COLUMN")
    key: dict[str, str | None] = dict.fromkeys(nulls)
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            name, value = "", text
        if name in key:
            raise click.UsageError(
                f"column {name!r} is given twice"
                if name
                else "of several values each needs its column: --key COLUMN=VALUE"
            )
        key[name] = value
    return key


def why_text(told: Why) -> str:
    """The answer for people: the row, what it is made of, what last touched it."""
    lines = [f"view {one_line(told.view)} at epoch {told.epoch:,}, {told.strategy}"]
    if told.row is None:
        lines.append("there is no such row")
    else:
        times = f", {told.times:,} times" if told.times > 1 else ""
        lines.append(f"row      {_row_text(told.row)}{times}")
        lines += _behind_lines(told)
    lines += _since_lines(told)
    return "\n".join(lines)


def _behind_lines(told: Why) -> Iterator[str]:
    if told.unknown:
        yield f"made of  not known: {one_line(told.unknown)}"
        return
    counts = [f"{counted(rows.count, 'row')} of {rows.table}" for rows in told.behind if rows.count]
    yield f"made of  {one_line(', '.join(counts)) or 'no row'}; the query over these gives this row"
    for rows in told.behind:
        for row in rows.rows:
            yield f"  {one_line(rows.table)}  {_row_text(row)}"
        if rows.count > len(rows.rows):
            yield f"  {one_line(rows.table)}  and {rows.count - len(rows.rows):,} more"
    if not told.complete:
        yield "  there was no time to try each of these: fewer may do"


def _since_lines(told: Why) -> Iterator[str]:
    at = f"epoch {told.since:,}, {utc_text(told.since_ms)} UTC"
    if told.touched is None:
        yield f"so since {at}, or longer: {one_line(told.older)}"
        return
    touched = told.touched
    between = ""
    if touched.epoch > touched.after + 1:
        between = f"; after epoch {touched.after:,}, those between are not kept"
    yield f"touched  {at}{between}"
    yield f"  before   {_or_none(touched.before)}"
    yield f"  after    {_or_none(touched.row)}"
    yield from _change_lines(touched)


def _change_lines(touched: Touched) -> Iterator[str]:
    if touched.unknown:
        yield f"  by       not known: {one_line(touched.unknown)}"
    elif not touched.changes:
        yield "  by       no change of a table: the time moved"
    for change in touched.changes:
        yield f"  by       {_change_text(change)}"


def _change_text(change: SourceChange) -> str:
    table = one_line(change.table)
    if change.before is None:
        return f"{table} insert  {_or_none(change.after)}"
    if change.after is None:
        return f"{table} delete  {_or_none(change.before)}"
    moved = {
        name: f"{_shown(value)} -> {_shown(change.after[name])}"
        if value != change.after[name]
        else _shown(value)
        for name, value in change.before.items()
    }
    return f"{table} update  {_joined(moved)}"


def _or_none(row: Mapping[str, Any] | None) -> str:
    return "no row" if row is None else _row_text(row)


def _row_text(row: Mapping[str, Any]) -> str:
    return _joined({name: _shown(value) for name, value in row.items()})


def _joined(texts: Mapping[str, str]) -> str:
    return one_line(", ".join(f"{name}={text}" for name, text in texts.items()))


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)
