"""What the run of a store is asked for while it goes on, by any process.

A request is a file, and stands until it is done: a run that was killed before that leaves it to the
next one. To do it once more changes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from mview.connector import TableHalt
from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import fields, plain, record

R = TypeVar("R")

#: What the answer to a request ends with that cannot be done, beside the request.
_REFUSED = ".refused"

#: Seconds for which an answer is kept: who waits reads it at once, others by `mview status`.
_KEPT_S = 86_400


class RequestLog(Generic[R]):
    """The requests of one kind that are not done.

    Args:
        folder: where they are.
    """

    #: What a request is.
    kind: ClassVar[type[Any]]
    #: What is said of a file that is damaged, and what to do then.
    damaged: ClassVar[tuple[str, str]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ask(self, request: R) -> Path:
        """Note a request; its file goes when it is done."""
        return self._put(request)

    def _put(self, request: R, mark: str = "") -> Path:
        """Note a request.

        Args:
            mark: what the stem of its file's name ends with.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self.forget_refused()
        file = self._folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}{mark}.json"
        put(file, checked(plain(request)))
        return file

    def refuse(self, file: Path, why: TableHalt) -> None:
        """Take a request back that cannot be done; who asked for it finds why, and so do others.

        The answer is there before the request goes: nobody takes what was refused for done.
        """
        with suppress(CorruptionError):  # it is not there any more
            answer = {"why": plain(why), "of": plain(self.read(file))}
            put(file.with_suffix(_REFUSED), checked(answer))
        file.unlink(missing_ok=True)

    def why_refused(self, file: Path) -> TableHalt | None:
        """Why a request was refused; None: it was not, or that was long ago."""
        answer = file.with_suffix(_REFUSED)
        return self._answer(answer)[1] if answer.exists() else None

    def refused(self) -> list[tuple[R, TableHalt]]:
        """The requests that were refused not long ago, and why; the oldest first."""
        told = []
        for answer in sorted(self._folder.glob(f"*{_REFUSED}")):
            with suppress(CorruptionError):  # it only tells of the past, or has gone meanwhile
                told.append(self._answer(answer))
        return told

    def forget_refused(self, which: Callable[[R], bool] = lambda _: False) -> None:
        """Delete answers that are old, or that nobody needs any more.

        Args:
            which: of which requests nobody needs them.
        """
        self.forget_old(_REFUSED)
        for answer in self._folder.glob(f"*{_REFUSED}"):
            with suppress(CorruptionError):  # it goes when it is old
                if which(self._answer(answer)[0]):
                    answer.unlink(missing_ok=True)

    def forget_old(self, suffix: str) -> None:
        """Delete answers that nobody has read for a day, whoever has put them there."""
        for answer in self._folder.glob(f"*{suffix}"):
            with suppress(FileNotFoundError):
                if abs(time.time() - answer.stat().st_mtime) > _KEPT_S:
                    answer.unlink()

    def _answer(self, answer: Path) -> tuple[R, TableHalt]:
        def of(form: Any) -> tuple[R, TableHalt]:
            told = fields(form, {"why": TableHalt, "of": self.kind})
            return told["of"], told["why"]

        return read_checked(answer, of, "an answer cannot be read", "ask again")

    def files(self) -> list[Path]:
        """The files of the requests, the oldest first."""
        return sorted(self._folder.glob("*.json"))

    def read(self, file: Path) -> R:
        """A request.

        Raises:
            CorruptionError: it is not what was written.
        """
        request: R = read_checked(file, partial(record, self.kind), *self.damaged)
        return request

    def waiting(self) -> dict[Path, R]:
        """What is asked for, the oldest first; a run may take requests away meanwhile.

        Raises:
            CorruptionError: a file is damaged.
        """
        requests: dict[Path, R] = {}
        for file in self.files():
            try:
                requests[file] = self.read(file)
            except CorruptionError:
                if file.exists():
                    raise
        return requests
