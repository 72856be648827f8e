"""Changes of a table that were put aside, as they cannot be taken: durable with their epoch.

A file lists them, another one per epoch has the messages that it put aside. Both are written before
the manifest that names the list, and never changed: another epoch writes another list.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from mview.changelog import from_ipc
from mview.connector import TableHalt
from mview.errors import CorruptionError
from mview.files.durable import is_aside, put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import fields, plain
from mview.relation import RelationId
from mview.store.manifest import QuarantineState
from mview.store.requests.log import RequestLog

#: Whether newer changes have overtaken the rows that a change is of. Partly: a newer change has
#: left cells as they were before it, which is what the one in quarantine would have told.
Overtaken = Literal["no", "partly", "wholly"]

#: Its files: epoch and token of their writer, so that no two runners write one.
FILE = re.compile(r"\d{12,}-\d{6,}\.(?:list|messages)\.json")

#: Why a change that was asked for was neither taken nor left out by the request. Overtaken: newer
#: changes of all its rows count. Gone: another request has had it before.
Idle = Literal["overtaken", "gone"]

#: What the answer to a request ends with, beside the request.
_IDLE = ".idle"

_HINT = "restore the file from a copy of the store; or `mview drop` the table and run again"


@dataclass(frozen=True)
class Quarantined:
    """A change that was put aside.

    Attributes:
        id: `<epoch>.<number>`, of the table.
        epoch: the epoch that put it aside.
        at_ms: wall time of that.
        needed_ms: the same; or when, later, a change of its rows came that does not make them right
            by itself. What was read anew since makes them so.
        partition: where its message stands, …
        offset: … and at which offset.
        event: which event of the message; None: the message itself cannot be read.
        position: see `mview.ingest.mending`; empty: unknown.
        keys: the keys of its rows, as Arrow IPC in base64; empty: unknown.
        overtaken: of each of these rows; of unknown ones, all together.
        why: the newest error.
        bytes: of its message.
        messages: the file that has it.
        number: its place in that.
        tried_ms: wall time when it was last tried again; 0: never.
    """

    id: str
    epoch: int
    at_ms: int
    needed_ms: int
    partition: str
    offset: int
    event: int | None
    position: str
    keys: str
    overtaken: tuple[Overtaken, ...]
    why: TableHalt
    bytes: int
    messages: str
    number: int
    tried_ms: int = 0

    @cached_property
    def rows(self) -> pa.Table | None:
        """The keys of its rows; None: unknown."""
        return from_ipc(b64decode(self.keys)) if self.keys else None

    @property
    def is_overtaken(self) -> bool:
        """Whether newer changes have made all its rows right."""
        return bool(self.overtaken) and set(self.overtaken) == {"wholly"}

    @property
    def needs_reread(self) -> bool:
        """Whether it cannot be taken any more: its table must be read anew."""
        return not self.is_overtaken and (not self.keys or "partly" in self.overtaken)


def kept_keys(keys: bytes) -> str:
    """Arrow IPC of keys as `Quarantined` has it."""
    return b64encode(keys).decode()


def size_of(changes: Iterable[Quarantined]) -> int:
    """The bytes of the messages of changes; of which several may be in one."""
    return sum({(change.messages, change.number): change.bytes for change in changes}.values())


class Quarantine:
    """What of one table is in quarantine.

    Its files never change, so the newest list is kept: each epoch of the table looks through it.

    Args:
        folder: the table's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: A list, by the name of its file.
        self._kept: tuple[str, tuple[Quarantined, ...]] = "", ()
        #: By file; read once, however many changes of it are asked for.
        self._messages: dict[str, list[dict[str, Any]]] = {}

    def read(self, state: QuarantineState | None) -> list[Quarantined]:
        """What is in it, the oldest first.

        Raises:
            CorruptionError: the file is damaged.
        """
        if state is None:
            return []
        if self._kept[0] != state.list:
            changes = read_checked(
                self._folder / state.list,
                lambda data: tuple(fields(data, {"changes": list[Quarantined]})["changes"]),
                "the list of changes in quarantine cannot be read",
                _HINT,
            )
            self._kept = state.list, changes
        return [*self._kept[1]]

    def write(
        self, epoch: int, token: int, changes: Sequence[Quarantined]
    ) -> QuarantineState | None:
        """Write the list of an epoch; no manifest names it yet."""
        if not changes:
            return None
        name = f"{epoch:012d}-{token:06d}.list.json"
        self._put(name, {"changes": [plain(change) for change in changes]})
        self._kept = name, tuple(changes)
        return QuarantineState(name, len(changes), size_of(changes))

    @staticmethod
    def messages_name(epoch: int, token: int) -> str:
        """The file with the messages that an epoch puts aside."""
        return f"{epoch:012d}-{token:06d}.messages.json"

    def put_messages(self, epoch: int, token: int, messages: Sequence[dict[str, Any]]) -> None:
        """Write the messages that an epoch puts aside."""
        self._put(self.messages_name(epoch, token), {"messages": list(messages)})

    def message(self, change: Quarantined) -> dict[str, Any]:
        """The form of the message that a change came in.

        Raises:
            CorruptionError: the file is damaged.
        """
        name = change.messages
        if name not in self._messages:
            self._messages[name] = read_checked(
                self._folder / name,
                lambda data: list(fields(data, {"messages": list[dict[str, Any]]})["messages"]),
                "a message in quarantine cannot be read",
                "restore the file from a copy of the store; or discard the change, and `mview "
                "backfill` its table",
            )
        return self._messages[name][change.number]

    def sweep(
        self,
        state: QuarantineState | None,
        before: QuarantineState | None,
        check: Callable[[], None],
    ) -> None:
        """Delete what is not of a published state, and forget messages; between two epochs.

        Args:
            state: the newest one.
            before: that of the epoch before: should the newest manifest be damaged, the store goes
                back to it.
            check: called when it is known what would be deleted; what it raises is raised. So what
                a successor makes is never among it, however long a pause before.
        """
        files = [*self._folder.iterdir()] if self._folder.is_dir() else []
        named: set[str] = set()
        if before is not None:
            with suppress(CorruptionError):  # that it is gone matters to nobody yet
                named |= {before.list, *(change.messages for change in self.read(before))}
        if state is not None:
            try:
                named |= {state.list, *(change.messages for change in self.read(state))}
            except CorruptionError:
                return  # nobody knows what it names: its table halts with its next change
        ours = [f for f in files if FILE.fullmatch(f.name) or is_aside(f.name)]
        check()
        self._messages.clear()
        for file in ours:
            if file.name not in named:
                file.unlink(missing_ok=True)

    def _put(self, name: str, body: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        put(self._folder / name, checked(body))


# --- what is asked for ---------------------------------------------------------------------------


@dataclass(frozen=True)
class MendRequest:
    """What is asked for of changes in quarantine.

    Attributes:
        table: their table.
        action: `retry`: try to take them again; `discard`: leave them; `reread`: those that are
            needed since before `before_ms` only are right, as their table was read anew.
        ids: of the changes, but for `reread`.
        before_ms: wall time of the runner, when it began to read the table anew.
        file: the request's, where it was read from one.
    """

    table: RelationId
    action: Literal["retry", "discard", "reread"]
    ids: tuple[str, ...] = ()
    before_ms: int = 0
    file: Path | None = field(default=None, compare=False)


class MendLog(RequestLog[MendRequest]):
    """The requests about what is in quarantine.

    Args:
        folder: where they are.
    """

    kind = MendRequest
    damaged = (
        "a request about changes in quarantine cannot be read",
        "remove the file, and ask again: mview quarantine",
    )

    def of(self, tables: Collection[RelationId]) -> dict[Path, MendRequest]:
        """The requests of tables that are followed; those of others are forgotten.

        A table that has halted is loaded anew, without what was in quarantine.
        """
        requests = self.waiting()
        for file in [file for file, request in requests.items() if request.table not in tables]:
            file.unlink(missing_ok=True)
            del requests[file]
        return {file: replace(request, file=file) for file, request in requests.items()}

    def note_idle(self, file: Path, ids: Mapping[str, Idle]) -> None:
        """Note on which changes a request has had no effect, and why, by their ids.

        It is known when the request is done, and before that may change with each try.
        """
        self.forget_old(_IDLE)
        put(file.with_suffix(_IDLE), checked({"ids": dict(ids)}))

    @staticmethod
    def idle(file: Path) -> dict[str, Idle]:
        """On which changes a request that is done has had no effect, and why; told once."""
        answer = file.with_suffix(_IDLE)
        if not answer.exists():
            return {}
        ids = read_checked(
            answer,
            lambda data: dict(fields(data, {"ids": dict[str, Idle]})["ids"]),
            "an answer cannot be read",
            "mview quarantine list",
        )
        answer.unlink(missing_ok=True)
        return ids
