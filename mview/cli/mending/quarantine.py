"""`mview quarantine`: changes that could not be taken."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, cast

import click

from mview.cli.completing import names
from mview.cli.options import App, config_option, json_option
from mview.errors import ExitCode, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mview.admin.mending.quarantine import QuarantineAnswer, QuarantinedChange


@click.command()
@click.argument("action", type=click.Choice(["list", "retry", "discard"]))
@click.argument("table", required=False, shell_complete=names(tables=True))
@click.argument("ids", nargs=-1, metavar="[ID…]")
@click.option("--messages", is_flag=True, help="With list: show what the changes came in, too.")
@click.option("--no-wait", is_flag=True, help="Ask for it, and do not wait until it is done.")
@config_option
@json_option
@click.pass_obj
def quarantine(
    app: App,
    action: str,
    table: str | None,
    ids: tuple[str, ...],
    messages: bool,
    no_wait: bool,
    config_path: str,
) -> None:
    """Changes that could not be taken, where a connection says `on_error: quarantine`.

    `retry` has the run take changes of a table again, once what was wrong is mended: newer changes
    of the same key win, and it is told where these leave nothing to do. `discard` leaves them out
    for good. Without IDs: all of the table. Ends with 1 when a change stays in quarantine.
    """
    from mview.admin.mending.quarantine import mend, quarantined

    config = app.config(config_path)
    if action == "list":
        names = [table, *ids] if table else []
        changes = quarantined(config, names, with_messages=messages)
        app.output.result(changes, _list_text(changes), fold=True)
        return
    if table is None:
        raise click.UsageError(f"name the table: mview quarantine {action} TABLE [ID…]")
    wanted = cast(Literal["retry", "discard"], action)
    answers = mend(config, wanted, table, ids, app.output.note, wait=not no_wait)
    app.output.result(answers, _answers_text(table, answers), fold=True)
    if any(answer.state == "stays" for answer in answers):
        sys.exit(ExitCode.CHECK_FAILED)


def _list_text(changes: Sequence[QuarantinedChange]) -> str:
    from mview.clock import utc_text
    from mview.errors import one_line

    if not changes:
        return "nothing is in quarantine"
    ways = {
        "retry": "`mview quarantine retry {table} {id}`",
        "backfill": "`mview backfill {table}`",
        "newer": "a newer change has overtaken it: `mview quarantine discard {table} {id}`",
    }
    lines = []
    for change in changes:
        keys = "; ".join(
            ", ".join(f"{name}={value}" for name, value in key.items()) for key in change.keys
        )
        row = f"{change.table} {change.id}: {keys or 'key unknown'}"
        lines.append(f"{one_line(row)}, since {utc_text(change.since_ms)} UTC")
        lines.append(f"  {one_line(change.what)}")
        lines += [f"  got: {one_line(change.got)}"] if change.got else []
        lines.append(f"  where: {one_line(change.where)}, {change.bytes:,} bytes")
        lines += [f"  message: {one_line(change.message)}"] if change.message is not None else []
        lines.append(f"  next: {ways[change.way].format(table=typed(change.table), id=change.id)}")
    return "\n".join(lines)


def _answers_text(table: str, answers: Sequence[QuarantineAnswer]) -> str:
    from mview.errors import one_line

    if not answers:
        return f"nothing of {table} is in quarantine"
    return "\n".join(
        one_line(f"{a.table} {a.id}: {a.state}{f', {a.why}' if a.why else ''}") for a in answers
    )
