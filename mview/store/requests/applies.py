"""What a run is asked for while it goes on: views to add or replace, views to take away.

A request stands until it is answered; see `mview.store.requests.log`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import plain, record
from mview.plan.definition import ViewDefinition
from mview.store.requests.log import RequestLog

#: Seconds after which an answer is not looked for any more.
_FORGOTTEN_S = 86_400


@dataclass(frozen=True)
class ApplyRequest:
    """What a run is asked for.

    Attributes:
        views: to add or replace.
        remove: names of views that go, with their data.
    """

    views: tuple[ViewDefinition, ...]
    remove: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApplyAnswer:
    """What became of a request.

    Attributes:
        state: `taken`: tables are being loaded, views built; `done`: all that could be is live;
            `refused`: nothing was changed; `failed`: the run has ended by it.
        views: what was done with each view that was built or has gone, for people.
        load: tables that are loaded for it.
        halted: views that could not be built, and why.
        error: why it was refused or has failed; empty: it was not.
        epoch: the newest epoch then.
    """

    state: Literal["taken", "done", "refused", "failed"]
    views: Mapping[str, str] = field(default_factory=dict)
    load: tuple[str, ...] = ()
    halted: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    epoch: int = 0


class ApplyLog(RequestLog[ApplyRequest]):
    """The requests to the runs of a store, and their answers.

    Args:
        folder: where they are.
    """

    kind = ApplyRequest
    damaged = ("a request to take views up cannot be read", "ask again: mview apply")

    def ask(self, request: ApplyRequest) -> Path:
        """Note a request, for the run that has the store; returns its file."""
        for answer in self._folder.glob("*.answer"):
            if time.time() - answer.stat().st_mtime > _FORGOTTEN_S:
                answer.unlink(missing_ok=True)
        # What functions it calls is known where it is taken up, by the configuration of that run.
        views = tuple(replace(view, functions=()) for view in request.views)
        return super().ask(replace(request, views=views))

    def note(self, file: Path, answer: ApplyAnswer) -> None:
        """Tell how far a request is."""
        put(_answer_of(file), checked(plain(answer)))

    def done(self, file: Path) -> None:
        """Take a request away: it was answered, or who asked does not want it any more."""
        file.unlink(missing_ok=True)

    def answer(self, file: Path) -> ApplyAnswer | None:
        """How far a request is; None: nobody has taken it up."""
        answer = _answer_of(file)
        if not answer.exists():
            return None
        return read_checked(
            answer,
            partial(record, ApplyAnswer),
            "the answer of a run cannot be read",
            "mview status shows what the store has",
        )

    def forget(self, file: Path) -> None:
        """Take away an answer that was heard."""
        _answer_of(file).unlink(missing_ok=True)


def _answer_of(file: Path) -> Path:
    return file.with_suffix(".answer")
