"""How far a sink has followed its view: one small file per change, put if absent, in the store.

A cursor is what the runner intends and believes; the truth about the target is in the target. The
files are numbered: whoever makes the next number has decided it, so a runner that was paused finds
its next number taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from mview.errors import CorruptionError, FencedError, UserError
from mview.files.durable import put_if_absent
from mview.files.fence import UNFENCED, Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.lines import append_line
from mview.files.numbered import numbered, numbers_if_any
from mview.files.records import plain, record
from mview.follower import Mark, Step, Token

#: Files that are kept, for people who look for what happened.
_KEPT = 3

#: The ids of the steps that were committed, a line each; those of before the last such file.
_STEPS, _OLDER_STEPS = "steps", "steps.older"

#: Bytes of one of these files: the steps of some hours at one a second.
_STEPS_BYTES = 1 << 20


#: How a step brings a target on: by the changes since its mark, by the difference of what it has
#: and what the view is, or by all rows; "lost": to an epoch that the store has gone back from, so
#: that it is not to be committed any more.
Way = Literal["changes", "difference", "fill", "lost"]


@dataclass(frozen=True)
class Intent:
    """A step that may come to be committed.

    Attributes:
        step: the step.
        token: what `stage` has said; None: it has not, so nobody has called `commit`.
        way: how the step was made.
        began_ms: wall time at which it was begun.
    """

    step: Step
    token: Token | None = None
    way: Way = "changes"
    began_ms: int = 0


@dataclass(frozen=True)
class Cursor:
    """Where a sink stands.

    Attributes:
        epoch: the target is the view at this epoch; None: it is to be filled.
        step: the id of the step that brought it there.
        tried: how many steps were begun, for their ids.
        committed_ms: wall time of the last commit; 0: none.
        rows: rows that were brought in all.
        intent: what is under way.
    """

    epoch: int | None = None
    step: str = ""
    tried: int = 0
    committed_ms: int = 0
    rows: int = 0
    intent: Intent | None = None


class CursorLog:
    """The cursor of one sink of one view.

    Args:
        folder: where its files are.
    """

    def __init__(self, folder: Path, fence: Fence = UNFENCED) -> None:
        self.folder, self._fence = folder, fence
        self._newest: int | None = None

    def numbers(self) -> list[int]:
        """The numbers of the files, ascending."""
        return numbers_if_any(self.folder)

    def latest(self) -> Cursor:
        """The newest cursor; a file that a crash has torn counts for nothing.

        Raises:
            CorruptionError: none of the files can be read.
        """
        before: list[int] | None = None
        while (numbers := self.numbers()) != before:
            before = numbers
            self._newest = numbers[-1] if numbers else 0
            for number in reversed(numbers):
                with suppress(CorruptionError):
                    return read_checked(self._file(number), partial(record, Cursor), "", "")
            # Of a run beside us: they have gone since, and newer ones are there.
        if numbers:
            raise CorruptionError(
                "no cursor of a sink can be read",
                where=str(self.folder),
                safe="the target is not touched",
                hint="remove the folder: the target says how far it is, or is filled anew",
            )
        return Cursor()

    def write(self, cursor: Cursor) -> None:
        """Decide the next cursor.

        Raises:
            FencedError: another runner has.
        """
        if self._newest is None:
            self.latest()
        assert self._newest is not None
        number = self._newest + 1
        content = checked(plain(cursor))
        # Older files go when newer ones are there, so a low number may be free again.
        made = put_if_absent(self._file(number), content, check=self._fence.check)
        numbers = self.numbers()
        if not made or numbers[-1] != number:
            raise FencedError(
                "another runner has moved the cursor of a sink",
                where=str(self._file(number)),
                safe="this one brings nothing more to the sink",
                hint="stop this runner; `mview status` shows the other one",
            )
        self._newest = number
        for old in numbers[:-_KEPT]:
            self._file(old).unlink(missing_ok=True)

    def note(self, step: str) -> None:
        """Note that a step was committed; what is lost in a power cut is compared, see `noted`."""
        file = self.folder / _STEPS
        append_line(file, step.encode())
        if file.stat().st_size > _STEPS_BYTES:
            file.replace(self.folder / _OLDER_STEPS)

    def noted(self) -> Iterator[str]:
        """The ids of the last steps, in the history that this store knows.

        After a restore of the store's folder it is that of the backup. A target with the mark of
        another step has rows of a time that is gone.
        """
        for name in (_STEPS, _OLDER_STEPS):
            with suppress(FileNotFoundError):
                yield from (self.folder / name).read_text(errors="replace").splitlines()

    def go_back(self, cursor: Cursor, newest: int) -> None:
        """Forget what a cursor says of epochs after the store's newest one.

        The store has gone back since: other epochs come under their numbers, and the sink would
        never be given these.

        Raises:
            FencedError: another runner has decided the next cursor.
        """
        intent, gone = cursor.intent, cursor
        if intent is not None and intent.step.epoch > newest:
            gone = replace(gone, intent=replace(intent, way="lost"))
        if cursor.epoch is not None and cursor.epoch > newest:
            gone = replace(gone, epoch=None, step="")
            for name in (_STEPS, _OLDER_STEPS):
                (self.folder / name).unlink(missing_ok=True)
        if gone != cursor:
            self.write(gone)

    def _file(self, number: int) -> Path:
        return numbered(self.folder, number)


def check_not_back(view: str, sink: str, mark: Mark | None, noted: int | None) -> None:
    """Refuse to compare a sink that is the view of an epoch that it was once brought beyond.

    Args:
        view: the view that it follows.
        sink: its name.
        mark: of the target, read after the cursor.
        noted: the epoch of the cursor.

    Raises:
        UserError: somebody has put an older copy there.
    """
    if mark is not None and mark.epoch < (noted or 0):
        raise UserError(
            f"sink {sink} of view {view} has gone back: somebody has put an older copy there",
            got=f"it stands at epoch {mark.epoch}; epoch {noted} was committed",
            safe="the view is right",
            hint="the next change of the view brings it right, and so does the start of a run",
        )
