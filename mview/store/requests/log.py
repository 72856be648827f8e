"""What the run of a store is asked for while it goes on, by any process.

A request is a file, and stands until it is done: a run that was killed before that leaves it to the
next one. To do it once more changes nothing.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import plain, record

R = TypeVar("R")

#: What the answer to a request ends with that cannot be done, beside the request.
_REFUSED = ".refused"


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
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        put(file, checked(plain(request)))
        return file

    def refuse(self, file: Path, why: str) -> None:
        """Take a request back that cannot be done; who asked for it finds why.

        The answer is there before the request goes: nobody takes what was refused for done.
        """
        put(file.with_suffix(_REFUSED), checked({"why": why}))
        file.unlink(missing_ok=True)

    @staticmethod
    def why_refused(file: Path) -> str:
        """Why a request was refused, told once; empty: it was not."""
        answer = file.with_suffix(_REFUSED)
        if not answer.exists():
            return ""
        why: str = read_checked(
            answer, lambda parts: parts["why"], "an answer cannot be read", "ask again"
        )
        answer.unlink(missing_ok=True)
        return why

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
