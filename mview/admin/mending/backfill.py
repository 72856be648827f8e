"""Tables read anew as a whole, while their changes are followed: what differs comes as changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mview.admin.content import published
from mview.admin.mending.awaiting import is_run, wait_for_run
from mview.config import Config
from mview.errors import UserError
from mview.ingest.mending.rereads import RereadLog, RereadRequest, not_followed
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.store.layout import Store


@dataclass(frozen=True)
class Backfilled:
    """A table that was to be read anew.

    Attributes:
        table: its name.
        state: `done`: it is as its database has it, and so are the views; `asked`: it will be, by
            the next run, or by the one that goes on; `failed`: it was not, see `why`.
        rows: rows of our copy now.
        epoch: the newest epoch now.
        why: why it is not done; empty: it is.
        next: what to do, where it failed; else empty.
    """

    table: str
    state: Literal["done", "asked", "failed"]
    rows: int
    epoch: int
    why: str = ""
    next: str = ""


def backfill(
    config: Config, names: Sequence[str], say: Callable[[str], None], *, wait: bool = True
) -> list[Backfilled]:
    """Have loaded tables be read anew by the run that follows their changes.

    Rows that are as our copy has them are no change; so views get the difference and nothing else.

    Args:
        names: the tables.
        say: is told what is waited for.
        wait: until it is done, as long as somebody runs the store.

    Raises:
        UserError: nothing was published, or a table is not loaded, or has halted; nothing was asked
            for.
    """
    store = Store(config.store)
    known = published(config).source_tables
    tables = [RelationId.of(name) for name in dict.fromkeys(names)]
    for table in tables:
        if table not in known:
            hint = did_you_mean(str(table), [str(name) for name in known])
            raise UserError(f"the store has no table {table}", where=str(config.store), hint=hint)
        if known[table].halted:
            raise UserError(
                f"{table} has halted: {known[table].halted.splitlines()[0]}",
                safe="nothing was changed",
                hint=f"`mview apply` or the next run loads {table} anew, where that can be done",
            )
        if table.connection not in config.changes:
            raise not_followed(table)
        if known[table].phase != "loaded":
            raise UserError(
                f"{table} is being loaded: it is read anyway",
                safe="nothing was changed",
                hint="mview status",
            )
    log = RereadLog(store.rereads)
    files = [(table, _asked(log, table)) for table in tables]
    if wait and is_run(store):
        loading = [str(name) for name, state in known.items() if state.phase == "loading"]
        first = f", once it has loaded {', '.join(sorted(loading))}" if loading else ""
        say(f"waiting for the run to read {', '.join(map(str, tables))} anew{first}")
    return [_awaited(config, table, file, wait=wait) for table, file in files]


def _asked(log: RereadLog, table: RelationId) -> Path:
    """The request for a whole table: one that waits already, or a new one."""
    for file, request in log.waiting().items():
        if request.table == table and request.plan is None:
            return file
    return log.ask(RereadRequest(table))


def _awaited(config: Config, table: RelationId, file: Path, *, wait: bool) -> Backfilled:
    store = Store(config.store)
    if wait:
        wait_for_run(store, file, lambda: _has_halted(config, table))
    manifest = published(config)
    state = manifest.tables.get(table)
    rows = 0 if state is None else state.rows
    told = Backfilled(str(table), "done", rows, manifest.epoch)
    if refused := RereadLog(store.rereads).why_refused(file):
        return replace(told, state="failed", why=refused.text, next=refused.hint)
    if wait and _has_halted(config, table):
        why = "its table has halted meanwhile, or was dropped"
        return replace(told, state="failed", why=why, next="mview status")
    if file.exists():
        why = "nobody runs the store: the next run reads it" if wait else "the run reads it"
        return replace(told, state="asked", why=why)
    return told


def _has_halted(config: Config, table: RelationId) -> bool:
    state = published(config).tables.get(table)
    return state is None or state.halted != ""
