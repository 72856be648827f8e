"""Having the run that holds a store take views up, and hearing what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mview.clock import SystemClock
from mview.config import Config
from mview.errors import RetryableError, UserError, typed
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.requests.applies import ApplyAnswer, ApplyLog, ApplyRequest
from mview.store.requests.paused import paused_tables

#: Seconds between two looks for the answer.
_LOOK_S = 0.1


def check_running(config: Config, then: str = "") -> None:
    """Raise UserError unless a run has the store.

    Args:
        then: the command that asks a run for what its start does not do by its files; "": it does.
    """
    if Lease(Store(config.store).lease, SystemClock()).holder() is None:
        raise UserError(
            "nobody runs the store: there is no run to take views up",
            where=str(config.store),
            safe="nothing was changed",
            hint=f"mview run{config.option} FILE…, {_afterwards(then)}",
        )


def apply_views(
    config: Config,
    views: Sequence[ViewDefinition],
    remove: Sequence[str],
    say: Callable[[str], None],
    look: Callable[[float], None] = time.sleep,
    *,
    then: str = "",
) -> ApplyAnswer:
    """Ask the run for views, and wait until all of it is live, or refused.

    Args:
        views: to add or replace.
        remove: names of views that go, with their data.
        say: is told when the run has taken it up.
        look: waits between two looks.
        then: see `check_running`.

    Raises:
        UserError: nobody runs the store.
        RetryableError: the run has ended meanwhile.
    """
    check_running(config, then)
    store = Store(config.store)
    log, lease = ApplyLog(store.applies), Lease(store.lease, SystemClock())
    file = log.ask(ApplyRequest(tuple(views), tuple(remove)))
    taken, waits = False, frozenset[RelationId]()
    try:
        while True:
            is_running = lease.holder() is not None  # before: an answer may be the last thing
            answer = log.answer(file)
            if answer is not None and answer.state != "taken":
                log.forget(file)
                return answer
            if answer is not None and not taken:
                taken = True
                load = f"; first it loads {', '.join(answer.load)}" if answer.load else ""
                say(f"the run has taken it up{load}. To end this command does not stop it")
            if answer is not None:
                paused = paused_tables(store) & set(map(RelationId.of, answer.load))
                for table in sorted(paused - waits, key=str):
                    say(f"{table} is paused: its load waits for `mview resume {typed(table)}`")
                waits = paused
            if not is_running:
                raise _ended(config, log, file, taken, then)
            look(_LOOK_S)
    except KeyboardInterrupt:
        if not taken:
            log.done(file)
        raise


def _ended(config: Config, log: ApplyLog, file: Path, taken: bool, then: str) -> RetryableError:
    if taken:
        return RetryableError(
            "the run has ended before all of it was live",
            safe="what was published stays right; the next run of this store does the rest",
            hint=f"mview run{config.option} FILE…",
        )
    log.done(file)
    return RetryableError(
        "the run has ended before it looked at the request",
        safe="nothing was changed, and the request is taken back",
        hint=f"mview run{config.option} FILE…, {_afterwards(then)}",
    )


def _afterwards(then: str) -> str:
    """What becomes of a request that no run does now, when one has begun."""
    return f"and when it is live, {then}" if then else "which takes them up at its start"
