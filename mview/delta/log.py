"""The log of one Delta table: what is live at a version, and commits that cannot be overtaken.

deltalake makes the metadata and the checkpoints, see `mview.delta.checkpoints`. The log of a
running table is read and written here: a commit is one file, put if absent at exactly the next
version, so a foreign write in between is an error and never a retry; and it costs under 1 ms where
deltalake's takes 5 to 15 ms and grows with every version since the last checkpoint (measured).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa

from mview.clock import SystemClock
from mview.delta.actions import (
    NO_TABLE,
    Note,
    TableVersion,
    add_action,
    apply,
    check_paths,
    commit_info,
    is_below,
    remove_action,
)
from mview.delta.checkpoints import (
    CHECKPOINT,
    SEAL,
    checkpoint_actions,
    damaged,
    is_sealed,
    is_whole,
    read_checkpoint,
    remove_checkpoint,
    write_checkpoint,
)
from mview.delta.parquet import (
    DataFile,
    Ranges,
    column_ranges,
    described,
    read_footer,
    read_parquet,
    write_rows,
)
from mview.errors import CorruptionError, FencedError
from mview.failpoints import failpoint
from mview.files.durable import delete_named, put_if_absent, sweep
from mview.files.fence import UNFENCED, Fence
from mview.files.modes import readers_of, share
from mview.files.numbered import NUMBERED, numbered, numbers_if_any

#: Features of the protocol that others may switch on: they change nothing in what we do.
_READ = {"deletionVectors", "timestampNtz", "vacuumProtocolCheck", "variantType"}
_WRITTEN = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}

#: Commits between two checkpoints: a reader replays at most this many small files.
_CHECKPOINT_EVERY = 100

#: Cleanings between two looks at the disk for files that no log knows.
_LOOK_EVERY = 30

#: Versions whose file lists stay in memory: the published one, the head, and readers in between.
_REMEMBERED = 8

#: Application id under which a table's log keeps the token of the runner that writes to it.
_RUNNER = "mview-runner"

#: In the note of a commit: what tells whether its file is as it was written.
_DIGEST = "digest"

#: Names of files in the log of a table, whoever wrote them.
_OF_A_LOG = re.compile(
    rf"^\.?\d{{20}}\.[\w.-]+$|^\.?_last_checkpoint|^_[0-9a-f]{{32}}\.tmp$|{SEAL.pattern}"
)

#: Data files below a folder that is ours as a whole.
_ANY = re.compile(r".+\.parquet")


class DeltaLog:
    """The log of the Delta table in `folder`, for one writing process.

    `version` is the version this object knows; a commit goes to the one after it or fails. Safe for
    use by several threads.

    Args:
        folder: the table's folder.
        own: paths of data files that may be deleted although the log does not know them: the names
            that the writer gives. The log's own may be, in any case.
        fence: the runner's right to write; see `mview.files.fence`.
    """

    def __init__(
        self,
        folder: Path,
        own: re.Pattern[str] = _ANY,
        fence: Fence = UNFENCED,
    ) -> None:
        self.folder, self._commits = folder, folder / "_delta_log"
        self._own, self._fence = own, fence
        self._lock = threading.RLock()
        self._head: TableVersion | None = None
        self._known: dict[int, TableVersion] = {}
        self._pending: set[str] = set()
        #: Files that are in no newer version, by the version that ended them; None: not known yet.
        self._superseded: dict[str, int] | None = None
        self._kept: dict[int, frozenset[str]] = {}
        self._cleanings = 0
        #: Checkpoints that have been read back, and the log before them may be gone.
        self._whole: set[int] = set()

    # --- reading ---------------------------------------------------------------------------------

    @property
    def head(self) -> TableVersion:
        """The table as this object knows it; read from the log at first use."""
        with self._lock:
            return self._head if self._head is not None else self.refresh()

    def refresh(self) -> TableVersion:
        """The newest version on disk; NO_TABLE when there is none.

        Raises:
            CorruptionError: the version that is known is gone: one after it could not be read.
        """
        with self._lock:
            start = self._head
            if start is not None and start.version != NO_TABLE:
                known = self._commit_file(start.version)
                if not known.exists():
                    raise damaged(start.version, known, FileNotFoundError("somebody deleted it"))
            newest = start.version if start else self._newest()
            while self._commit_file(newest + 1).exists():
                newest += 1
            if start is not None and newest == start.version:
                return start
            self._head = TableVersion(NO_TABLE) if newest == NO_TABLE else self._read(newest)
            for version in range(start.version + 1 if start else newest + 1, newest + 1):
                self._end(version, self._actions(version))
            return self._head

    def at(self, version: int) -> TableVersion:
        """The table at a version.

        Raises:
            CorruptionError: the log does not reach to that version (any more).
        """
        with self._lock:
            return self._known.get(version) or self._read(version)

    def note(self, version: int) -> Note | None:
        """What mview wrote about the commit of a version; None for a foreign commit."""
        note = _note_of(self._actions(version))
        return None if note is None else {k: v for k, v in note.items() if k != _DIGEST}

    def is_kept(self, version: int) -> bool:
        """Whether the log still has the commit of a version."""
        return self._commit_file(version).exists()

    def changes_rows(self, version: int) -> str:
        """What a commit changes for who reads the table; empty: nothing (OPTIMIZE, properties).

        Rows, columns, or how files are to be read: a feature that this library does not know.
        """
        return change_for_readers(self._actions(version), self.at(version - 1))

    # --- writing ---------------------------------------------------------------------------------

    def new_file(self, prefix: str) -> str:
        """A new file name; what is written there is safe from `clean` until it is committed."""
        name = f"{prefix}-{uuid.uuid4().hex[:16]}.parquet"
        self.protect([name])
        return name

    @property
    def where(self) -> str:
        """The table's folder, for messages."""
        return str(self.folder)

    def read_file(
        self, path: str, schema: pa.Schema, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of a data file, without regard to deletion vectors; see `read_parquet`."""
        return read_parquet(self.folder / path, schema, columns)

    def ranges(self, file: DataFile, names: Sequence[str]) -> Ranges:
        """Bounds of columns, by the footer of a data file."""
        return column_ranges(read_footer(self.folder / file.path), names)

    def write_file(
        self, prefix: str, rows: pa.Table, names: Sequence[str], told: Sequence[str]
    ) -> tuple[DataFile, Ranges]:
        """Write rows as a new file; see `mview.delta.rewrite.Files`."""
        name = self.new_file(prefix)
        footer, size = write_rows(self.folder / name, rows)
        ranges = column_ranges(footer, names)
        return described(name, size, footer, {column: ranges[column] for column in told}), ranges

    def protect(self, paths: Iterable[str]) -> None:
        """Keep files that are not in the log from being cleaned away."""
        with self._lock:
            self._pending.update(paths)

    def discard(self, paths: Sequence[str]) -> None:
        """Delete files that were written for a commit that will not come."""
        self._fence.check()
        with self._lock:
            for path in paths:
                self._pending.discard(path)
                self._delete(path)

    def commit(
        self,
        adds: Sequence[DataFile],
        removes: Iterable[str],
        note: Note,
        *,
        transaction: tuple[str, int] | None = None,
        table: Sequence[dict[str, Any]] = (),
    ) -> int:
        """Write the version after the known one: all of it or nothing.

        Args:
            adds: files that exist below the folder.
            removes: paths of live files; one that is added, too, gets other deleted rows.
            note: kept with the commit; see `note`.
            transaction: application id and its version, as Delta keeps them.
            table: protocol and metadata actions, for a new table or new columns.

        Returns:
            The new version.

        Raises:
            FencedError: somebody else wrote that version, or a newer runner has taken the table
                over; nothing was written.
        """
        with self._lock:
            head = self.head
            version = head.version + 1
            if self._runner > self._fence.token:
                raise self._overtaken(head.version)
            if elsewhere := [file.path for file in adds if not is_below(file.path)]:
                raise CorruptionError(
                    "a commit names a data file that is not in the table's folder",
                    where=str(self.folder),
                    got=repr(elsewhere[0]),
                    safe="nothing of it was written",
                    hint="find out who writes into the store, and restore it from a copy",
                )
            now = SystemClock().now()
            live = head.files
            gone = dict.fromkeys(path for path in removes if path in live)
            actions: list[dict[str, Any]] = list(table)
            actions += [remove_action(live[path], now) for path in gone]
            actions += [add_action(file, now) for file in adds]
            transactions = [] if transaction is None else [transaction]
            if self._runner < self._fence.token:
                transactions.append((_RUNNER, self._fence.token))
            for app, number in transactions:
                actions.append({"txn": {"appId": app, "version": number, "lastUpdated": now}})
            lines = [orjson.dumps(action) for action in actions]
            info = commit_info(now, {**note, _DIGEST: _digest_of(lines)})
            self._put(version, [orjson.dumps(info), *lines], adds)
            failpoint("log-committed")
            left = {path: file for path, file in live.items() if path not in gone}
            after = TableVersion(
                version,
                {**left, **{file.path: file for file in adds}},
                {**head.transactions, **dict(transactions)},
                next((a["metaData"] for a in table if "metaData" in a), head.metadata),
            )
            self._head = self._remember(after)
            self._end(version, actions)
            self._pending.difference_update(file.path for file in adds)
            return version

    def revert(self, version: int, note: Note, transaction: tuple[str, int]) -> int:
        """Make the content that of an older version again, by a new commit where they differ.

        Whoever takes a table over makes one in any case: it keeps an older runner's out.

        Returns:
            The version that has the content now: the known one, or a new one.
        """
        with self._lock:
            if self._fence.takes_over:
                log = self._commits
                sweep(log, self._fence.check)
                for file in log.glob("*"):  # a checkpoint that was just made
                    share(file, readers_of(self.folder))
            now, then = self.head, self.at(version)
            removes = [path for path, file in now.files.items() if then.files.get(path) != file]
            adds = [file for path, file in then.files.items() if now.files.get(path) != file]
            table: list[dict[str, Any]] = []
            if then.definition != now.definition:
                table = [{"metaData": dict(then.metadata)}]
            fenced = not self._fence.takes_over or self._runner == self._fence.token
            if fenced and not removes and not adds and not table:
                return now.version
            return self.commit(adds, removes, note, transaction=transaction, table=table)

    def drop(self) -> None:
        """Delete the table: its log, and the data files that the log or our own names tell.

        What is damaged is deleted, too; a second time does nothing.
        """
        with self._lock:
            named = set(self._own_files())
            for version in self._numbers():
                with suppress(CorruptionError):
                    named |= _named(self._actions(version))
            for version in self._numbers(CHECKPOINT):
                with suppress(CorruptionError):
                    named |= _named(checkpoint_actions(self.folder, version))
            log = self._commits
            # From the newest on, so that a crash in between leaves an older version, not a hole.
            for file in sorted(log.glob("*"), reverse=True):
                if _OF_A_LOG.match(file.name):
                    delete_named(file, self._fence.check)
            with suppress(OSError):  # what is left in it is not ours
                log.rmdir()
            for path in named:
                self._delete(path)
            self._head, self._known = TableVersion(NO_TABLE), {}
            self._superseded, self._kept = None, {}

    def clean(
        self,
        oldest: int,
        keep: Collection[int] = (),
        spare: Callable[[str], bool] = lambda path: False,
    ) -> int:
        """Delete what nobody needs: data files, and the log of what cannot be read any more.

        Args:
            oldest: it stays readable, and all versions after it.
            keep: older versions that stay readable, too.
            spare: paths below the folder that stay, although the log does not know them.

        Returns:
            Number of data files deleted.
        """
        self._note_superseded()
        # A table that was dropped and made anew may not have had so old a version.
        oldest = max(oldest, min(self._numbers(), default=NO_TABLE))
        history = {version for version in keep if version < oldest} | {oldest}
        self._kept = {v: self._kept.get(v) or frozenset(self.at(v).files) for v in history}
        with self._lock:
            # Nothing that a newer runner needs was listed, if there is none now.
            self._fence.check()
            assert self._superseded is not None
            needed = self._pending.union(self.head.files, *self._kept.values())
            garbage = [
                path
                for path, version in self._superseded.items()
                if version <= oldest and path not in needed and not spare(path)
            ]
            for path in garbage:
                del self._superseded[path]
        failpoint("in-clean")
        for path in garbage:
            self._delete(path)
        self._trim(oldest, history)
        return len(garbage)

    def _note_superseded(self) -> None:
        """Know the files that are in no newer version, and when they left; most are known."""
        self._cleanings += 1
        if self._superseded is not None and self._cleanings % _LOOK_EVERY:
            return
        # The disk first, the log after: a file that is committed in between is seen as live.
        own = self._own_files()
        gone: dict[str, int] = {}
        commits = self._numbers() if self._superseded is None else []
        for version in commits:
            _follow(gone, version, self._actions(version))
        with self._lock:
            for version in range(
                max(commits, default=self.head.version) + 1, self.head.version + 1
            ):
                _follow(gone, version, self._actions(version))
            known = {**gone, **(self._superseded or {})}
            # What no log knows any more: left by a dead writer, or in old versions alone.
            for path in own:
                if path not in self._pending and path not in self.head.files:
                    known.setdefault(path, NO_TABLE)
            self._superseded = known

    # --- the files of the log --------------------------------------------------------------------

    def _commit_file(self, version: int) -> Path:
        return numbered(self._commits, version)

    def _numbers(self, names: re.Pattern[str] = NUMBERED) -> list[int]:
        return numbers_if_any(self._commits, names)

    def _newest(self) -> int:
        return max([*self._numbers(), *self._numbers(CHECKPOINT)], default=NO_TABLE)

    def _actions(self, version: int) -> list[dict[str, Any]]:
        try:
            lines = self._commit_file(version).read_bytes().splitlines()
            actions: list[dict[str, Any]] = [json.loads(line) for line in lines]
            if not actions:
                raise ValueError("it is empty")
            said = _note_of(actions)
            if said is not None and said.get(_DIGEST, digest := _digest_of(lines[1:])) != digest:
                raise ValueError("the digest does not fit the content")
            check_paths(actions)
            return actions
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged(version, self._commit_file(version), error) from None

    def _read(self, version: int) -> TableVersion:
        known = max((v for v in self._known if v <= version), default=NO_TABLE)
        start = self._start(self._known.get(known, TableVersion(NO_TABLE)), version)
        for number in range(start.version + 1, version + 1):
            start = apply(start, number, self._actions(number), self._count)
        return self._remember(start)

    def _count(self, path: str) -> int:
        """The rows of a data file; none of one that is gone: who reads it is told."""
        with suppress(CorruptionError):
            return int(read_footer(self.folder / path).num_rows)
        return 0

    def _start(self, known: TableVersion, version: int) -> TableVersion:
        """The nearest version that is whole, from which the log leads to `version`.

        A checkpoint of somebody else may be damaged unseen: it counts where nothing else leads on.
        """
        commits = set(self._numbers())
        within = [n for n in self._numbers(CHECKPOINT) if known.version < n <= version]
        last = version
        while last > known.version and last in commits:
            last -= 1
        ours = [n for n in within if is_sealed(self.folder, n)]
        first: CorruptionError | None = None
        for number in (*reversed(ours), *reversed([n for n in within if n not in ours])):
            if number not in ours and last <= known.version:
                break
            if number < last:
                continue
            try:
                return read_checkpoint(self.folder, number, self._count)
            except CorruptionError as error:
                first = first or error
        if first is not None and last > known.version:
            raise first
        return known

    def _end(self, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        if self._superseded is not None:
            _follow(self._superseded, version, actions)

    def _remember(self, state: TableVersion) -> TableVersion:
        self._known[state.version] = state
        while len(self._known) > _REMEMBERED:
            del self._known[min(self._known)]
        return state

    def _let_in(self, adds: Sequence[DataFile]) -> int:
        """Let those read new files who may list the table's folder; returns them."""
        log = self._commits
        if not log.exists():
            log.mkdir(parents=True)
            log.chmod(0o700 | self.folder.stat().st_mode & 0o077)
        readers = readers_of(self.folder)
        for file in adds if readers else ():
            share(self.folder / file.path, readers)
        return readers

    def _put(self, version: int, lines: Sequence[bytes], adds: Sequence[DataFile]) -> None:
        target = self._commit_file(version)
        readers = self._let_in(adds)
        content = b"".join([line + b"\n" for line in lines])
        if not put_if_absent(
            target, content, check=self._fence.check, at_once=False, readers=readers
        ):
            raise self._overtaken(version)

    @property
    def _runner(self) -> int:
        """The token of the newest runner that has written to the known version."""
        return self.head.transactions.get(_RUNNER, 0)

    def _overtaken(self, version: int) -> FencedError:
        return FencedError(
            f"somebody else wrote version {version} of a Delta table that mview keeps",
            where=str(self.folder),
            got=self.describe(version),
            safe="this runner has not changed the table",
            hint="end the other writer, and run again: what it has written is taken back",
        )

    def describe(self, version: int) -> str:
        """Who wrote a version, and how."""
        infos = [a["commitInfo"] for a in self._actions(version) if "commitInfo" in a]
        info: Note = infos[0] if infos else {}
        return (
            f"{info.get('operation', 'a write')} by {info.get('engineInfo', 'an unknown writer')}"
        )

    def _own_files(self) -> list[str]:
        """Data files on disk by our own names, below the folder."""
        paths = (
            file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*.parquet")
        )
        return [
            path
            for path in paths
            if self._own.fullmatch(path) and not path.startswith("_delta_log/")
        ]

    def _delete(self, path: str) -> None:
        """Delete a data file; a log that names one elsewhere does not make it ours."""
        file = self.folder / path
        if is_below(path):
            file.unlink(missing_ok=True)

    def _trim(self, oldest: int, history: Collection[int]) -> None:
        """Checkpoint the log now and then, and end it where only `history` is read."""
        done = {n for n in self._numbers(CHECKPOINT) if is_sealed(self.folder, n)}
        head = self.head.version
        if head - max(done, default=NO_TABLE) < _CHECKPOINT_EVERY:
            return
        # Old ones are read without the log before them. The newest one last: `_last_checkpoint`
        # names what readers start from.
        for version in dict.fromkeys((*sorted(history), head)):
            if version in self._whole:
                continue
            if version not in done or not is_whole(self.folder, version, self._count):
                state = self.at(version)  # from the log, which is still there
                if version in done:
                    remove_checkpoint(self.folder, version)
                write_checkpoint(self.folder, state)
            self._whole.add(version)
        self._whole &= {*history, head}
        listed = sorted(self._commits.iterdir())
        for file in listed:
            share(file, readers_of(self.folder))
        self._fence.check()
        for file in listed:
            if (commit := NUMBERED.match(file.name)) and int(commit.group(1)) < oldest:
                file.unlink()
            elif named := CHECKPOINT.match(file.name) or SEAL.match(file.name):
                number = int(named.group(1))
                if number < oldest and number not in history:
                    file.unlink()


def change_for_readers(actions: Iterable[Mapping[str, Any]], before: TableVersion) -> str:
    """What a commit changes for who reads the table; empty: nothing (OPTIMIZE, properties).

    Rows, columns, or how files are to be read: a feature that this library does not know.

    Args:
        actions: of the commit.
        before: the table before it.
    """
    for action in actions:
        if (action.get("add") or action.get("remove") or {}).get("dataChange"):
            return "rows"
        changed = action.get("metaData")
        if changed and (changed["schemaString"], changed["id"]) != (
            before.metadata.get("schemaString"),
            before.id,
        ):
            return "the columns"
        protocol = action.get("protocol", {})
        unknown = set(protocol.get("readerFeatures") or ()) - _READ
        unknown |= set(protocol.get("writerFeatures") or ()) - _READ - _WRITTEN
        if unknown or protocol.get("minReaderVersion", 1) == 2:
            return f"the protocol ({', '.join(sorted(unknown)) or 'columnMapping'})"
    return ""


def _note_of(actions: Iterable[Mapping[str, Any]]) -> Note | None:
    """What mview wrote about a commit; None for a foreign commit."""
    for action in actions:
        if text := action.get("commitInfo", {}).get("userMetadata"):
            try:
                note = json.loads(text)
            except ValueError:
                return None
            return note if isinstance(note, dict) and "mview" in note else None
    return None


def _digest_of(lines: Iterable[bytes]) -> str:
    """Of all lines but the first, which has the note."""
    return hashlib.sha256(b"".join(lines)).hexdigest()[:16]


def _follow(gone: dict[str, int], version: int, actions: Iterable[Mapping[str, Any]]) -> None:
    """Note which files a version ends, and which it has again."""
    actions = list(actions)
    for action in actions:
        if remove := action.get("remove"):
            gone[unquote(remove["path"])] = version
    for action in actions:
        if add := action.get("add"):
            gone.pop(unquote(add["path"]), None)


def _named(actions: Iterable[Mapping[str, Any]]) -> set[str]:
    """The data files that actions add or remove."""
    parts = (a.get("add") or a.get("remove") for a in actions)
    return {unquote(part["path"]) for part in parts if part}
