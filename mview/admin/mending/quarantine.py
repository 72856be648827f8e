"""Changes that were put into quarantine: what they are, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from mview.admin.content import published
from mview.admin.mending.awaiting import is_run, wait_for_run, why_ended
from mview.clock import SystemClock
from mview.config import Config
from mview.errors import CorruptionError, UserError, counted, typed
from mview.ingest.mending.reject import message_of
from mview.plan.definition import ViewDefinition
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest, QuarantineState
from mview.store.quarantine import Idle, MendLog, MendRequest, Quarantine, Quarantined

T = TypeVar("T")

#: What is said of a change on which the request had no effect.
_IDLE: dict[Idle, str] = {
    "overtaken": "newer changes of its rows count, so it had no effect",
    "gone": "it was not in quarantine any more: another command has taken or discarded it",
}

#: Reads of a list that a runner replaces at the same time.
_TRIES = 5


@dataclass(frozen=True)
class QuarantinedChange:
    """A change that is in quarantine.

    Attributes:
        table: its table.
        id: of the table's changes in quarantine.
        since_ms: wall time when it was put there.
        where: where its message stands in the changelog.
        what: why it cannot be taken.
        got: the value that was there; empty: nothing is told.
        keys: the keys of its rows; empty: unknown.
        way: what brings its rows right: `retry`: to take it again, once what was wrong is mended;
            `backfill`: to read its table anew, as its key is unknown, or a later change has left
            out cells that it would have told; `newer`: nothing, newer changes have overtaken it.
        tried_ms: wall time when it was last tried again; 0: never.
        bytes: of its message.
        message: what it came in, as text; None: it was not asked for.
    """

    table: str
    id: str
    since_ms: int
    where: str
    what: str
    got: str
    keys: Sequence[Mapping[str, str]]
    way: Literal["retry", "backfill", "newer"]
    tried_ms: int
    bytes: int
    message: str | None = None


@dataclass(frozen=True)
class QuarantineAnswer:
    """What became of a change in quarantine.

    Attributes:
        table: its table.
        id: of the table's changes in quarantine.
        state: `taken`: it counts, for rows of which no newer change does; `overtaken`: newer
            changes of all its rows count, so it had no effect, and is gone; `discarded`: it is
            gone; `gone`: another command had taken or discarded it before; `stays`: it still cannot
            be taken, see `why`; `asked`: the next run does it, which tells whether it was
            overtaken.
        why: why it is still there, had no effect, or is gone though that was not asked for; else
            empty.
    """

    table: str
    id: str
    state: Literal["taken", "overtaken", "discarded", "gone", "stays", "asked"]
    why: str = ""


def quarantined(
    config: Config, names: Sequence[str] = (), *, with_messages: bool = False
) -> list[QuarantinedChange]:
    """What is in quarantine, by table, the oldest first.

    Args:
        names: of the tables; none: all.
        with_messages: tell what the changes came in, too.

    Raises:
        UserError: nothing was published, or there is no such table.
    """
    manifest = published(config)
    tables = [_known(manifest, name) for name in names] or [*manifest.source_tables]
    return [change for table in tables for change in _listed(config, table, with_messages)]


def _listed(config: Config, table: RelationId, with_messages: bool) -> list[QuarantinedChange]:
    def told(files: Quarantine, state: QuarantineState | None) -> list[QuarantinedChange]:
        changes = files.read(state)
        return [_told(table, c, _text(files, c) if with_messages else None) for c in changes]

    return _read(config, table, told)


def _text(files: Quarantine, change: Quarantined) -> str:
    value = message_of(files.message(change)).value
    return "" if value is None else value.decode(errors="backslashreplace")


def mend(
    config: Config,
    action: Literal["retry", "discard"],
    name: str,
    ids: Sequence[str],
    say: Callable[[str], None],
    *,
    wait: bool = True,
) -> list[QuarantineAnswer]:
    """Have the run that follows the changes take changes out of quarantine.

    Args:
        action: `retry`: take them, as they were written; `discard`: leave them out for good.
        name: the table.
        ids: of the changes; none: all.
        say: is told what is waited for.
        wait: until it is done, as long as somebody runs the store.

    Raises:
        UserError: there is no such table or change, a change that was named cannot be taken again,
            or one that was not named has more to it; nothing was asked for.
    """
    manifest = published(config)
    table = _known(manifest, name)
    there = {change.id: change for change in _read(config, table, Quarantine.read)}
    for id_ in ids:
        if id_ not in there:
            raise UserError(
                f"no change {id_} of {table} is in quarantine",
                allowed=", ".join([*there][:10]) or None,
                safe="nothing was changed",
                hint="mview quarantine list",
            )
        if action == "retry" and there[id_].needs_reread:
            raise _needs_reread(table, there[id_])
    wanted = [*dict.fromkeys(ids)] or [*there]
    if not wanted:
        return []
    if action == "discard" and not ids:
        _check_alone(table, there)
    asked_ms, store = SystemClock().now(), Store(config.store)
    file = MendLog(store.mends).ask(MendRequest(table, action, tuple(wanted)))
    if wait and is_run(store):
        say(f"waiting for the run to {action}: {', '.join(wanted[:10])} of {table}")
    return _awaited(config, table, file, wanted, asked_ms, manifest.epoch, action, wait=wait)


def _check_alone(table: RelationId, changes: Mapping[str, Quarantined]) -> None:
    """Raise where a later change builds on one in quarantine: it would be lost with it."""
    builds = [id_ for id_, change in changes.items() if "partly" in change.overtaken]
    if builds:
        raise UserError(
            f"later changes of {table} build on changes in quarantine: what they left out is lost "
            "where these are discarded",
            got=", ".join(builds[:10]),
            safe="nothing was changed",
            hint=f"mview backfill {typed(table)}: it reads the table anew; or discard them by "
            "their ids",
        )


def _awaited(
    config: Config,
    table: RelationId,
    file: Path,
    ids: Sequence[str],
    asked_ms: int,
    asked_at: int,
    action: Literal["retry", "discard"],
    *,
    wait: bool,
) -> list[QuarantineAnswer]:
    store = Store(config.store)
    if wait:
        wait_for_run(store, file)
    if file.exists():
        why = "nobody runs the store: the next run does it" if wait else "the run does it"
        why = why_ended(store, published(config).epoch, asked_ms) or why
        return [QuarantineAnswer(str(table), id_, "asked", why) for id_ in ids]
    left = {change.id: change for change in _read(config, table, Quarantine.read)}
    done: Literal["taken", "discarded"] = "taken" if action == "retry" else "discarded"
    why = ""
    if action == "retry" and _has_halted(store, table, asked_at):
        done, why = "discarded", "its table has halted: it is loaded anew, with all rows"
    idle = {} if why else MendLog.idle(file)

    def answer(id_: str) -> QuarantineAnswer:
        if id_ in left:
            return QuarantineAnswer(str(table), id_, "stays", _stays(table, left[id_]))
        if id_ in idle:
            return QuarantineAnswer(str(table), id_, idle[id_], _IDLE[idle[id_]])
        return QuarantineAnswer(str(table), id_, done, why)

    return [answer(id_) for id_ in ids]


def _has_halted(store: Store, table: RelationId, since: int) -> bool:
    """Whether a table has halted, or was dropped, in an epoch or later."""
    log = ManifestLog(store.manifests)
    for epoch in (epoch for epoch in log.epochs() if epoch >= since):
        with suppress(CorruptionError):  # deleted meanwhile, as it is old
            state = log.read(epoch).tables.get(table)
            if state is None or state.halted:
                return True
    return False


def aside_below(
    views: Mapping[str, ViewDefinition], manifest: Manifest
) -> dict[str, dict[str, int]]:
    """By view, how many changes of the tables that it shows are in quarantine, through views, too.

    Views that show no such table are left out.
    """
    states = manifest.source_tables
    aside = {n: s.quarantine.changes for n, s in states.items() if s.quarantine is not None}
    if not aside:
        return {}
    below: dict[str, dict[str, int]] = {}

    def of(name: str) -> dict[str, int]:
        if name not in below:
            below[name] = {}
            view = views.get(name)
            for table in () if view is None else view.table_names:
                below[name] |= of(table.view) if table.view else {}
                below[name] |= {str(table): aside[table]} if table in aside else {}
        return below[name]

    return {name: tables for name in views if (tables := of(name))}


def degraded_text(tables: Mapping[str, int]) -> str:
    """Why a view is degraded, in one line.

    >>> degraded_text({"shop.orders": 2})
    '2 changes of shop.orders are in quarantine'
    """
    parts = [f"{counted(n, 'change')} of {name}" for name, n in tables.items()]
    return f"{', '.join(parts)} {'is' if sum(tables.values()) == 1 else 'are'} in quarantine"


def _known(manifest: Manifest, name: str) -> RelationId:
    table, known = RelationId.of(name), manifest.source_tables
    if table not in known:
        hint = did_you_mean(name, [str(known_name) for known_name in known])
        raise UserError(f"the store has no table {name}", hint=hint)
    return table


def _read(
    config: Config, table: RelationId, what: Callable[[Quarantine, QuarantineState | None], T]
) -> T:
    """Something of a table's quarantine; a runner may replace its files at any time."""
    files = Quarantine(Store(config.store).quarantined(table))
    for tries in range(_TRIES):
        state = published(config).tables.get(table)
        kept: QuarantineState | None = None if state is None else state.quarantine
        try:
            return what(files, kept)
        except CorruptionError:
            after = published(config).tables.get(table)
            if tries == _TRIES - 1 or (after is not None and after.quarantine == kept):
                raise
    raise AssertionError("the last try returns or raises")


def _told(table: RelationId, change: Quarantined, message: str | None) -> QuarantinedChange:
    rows = [] if change.rows is None else change.rows.to_pylist()
    way: Literal["retry", "backfill", "newer"] = "retry"
    if change.is_overtaken:
        way = "newer"
    elif change.needs_reread:
        way = "backfill"
    return QuarantinedChange(
        str(table),
        change.id,
        change.at_ms,
        change.why.where or f"{change.partition}, offset {change.offset}",
        change.why.what,
        change.why.got,
        [{name: str(value) for name, value in row.items()} for row in rows],
        way,
        change.tried_ms,
        change.bytes,
        message,
    )


def _stays(table: RelationId, change: Quarantined) -> str:
    if change.needs_reread:
        return _needs_reread(table, change).what
    return change.why.what


def _needs_reread(table: RelationId, change: Quarantined) -> UserError:
    why = (
        "a later change has left out cells that it would have told"
        if change.keys
        else "its key is unknown, so nobody can tell which newer changes are of its row"
    )
    return UserError(
        f"change {change.id} of {table} cannot be taken again: {why}",
        where=change.why.where or None,
        got=change.why.what,
        safe="nothing was changed",
        hint=f"mview backfill {typed(table)}: it reads the table anew, and this change leaves "
        "quarantine",
    )
