"""Maintenance of Delta tables in object stores: compaction, old versions and files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mview.clock import steady_clock
from mview.delta.actions import TableVersion, add_action, remove_action
from mview.delta.checkpoints import CHECKPOINT, actions_in
from mview.delta.parquet import DataFile
from mview.delta.tiers import LARGE, is_small
from mview.errors import RetryableError
from mview.follower import DAY, Facts, FollowerTarget, Mark, check_owner
from mview_connectors.followers.delta.log import (
    LOG,
    OWN_FILE,
    TableLog,
    checkpoint_path,
    commit_path,
)
from mview_connectors.followers.delta.settings import OWNER

#: A file of whose rows so many are gone is written anew.
_GONE_SHARE = 0.2
#: Small files that are left alone.
_FEW = 4
#: The object of a commit.
_COMMIT = re.compile(rf"{LOG}/\d{{20}}\.json")
#: So often a bite begins again in a row because a step came between.
_TRIES = 20


@dataclass(frozen=True)
class DeltaUpkeep:
    """One call of `maintain`.

    Attributes:
        log: the table, as it stands.
        schema: its columns.
        target: the view and the sink.
        write: makes files of rows.
        checkpoint: writes a checkpoint, so many versions after the last one.
    """

    log: TableLog
    schema: pa.Schema
    target: FollowerTarget
    write: Callable[[TableLog, Iterator[pa.Table]], Iterator[DataFile]]
    checkpoint: Callable[[TableLog, int], bool]

    def run(self, *, thorough: bool) -> Facts:
        """Do it; numbers by what they count."""
        replaced = written = tried = 0
        while bite := self._bite(self.log.head):
            made = self._compact(bite)
            if made is None:
                tried += 1
                if tried == _TRIES:
                    raise RetryableError(
                        f"steps come between whenever table {self.target.table} is compacted",
                        where=self.log.where,
                        safe="nothing was changed",
                        hint="try again when there are fewer; every: makes commits more seldom",
                    )
                continue
            tried, replaced, written = 0, replaced + len(bite), written + made
            if not thorough:
                break
        if replaced:
            self.checkpoint(self.log, 1)
        removed = self._vacuum(steady_clock().now())
        done = {"files_replaced": replaced, "files_written": written, "files_removed": removed}
        return {name: number for name, number in done.items() if number}

    # --- compaction ------------------------------------------------------------------------------

    def _bite(self, table: TableVersion) -> list[DataFile]:
        """The files that are to be written anew, as many as take some seconds."""
        files = list(table.files.values())
        worn = [file for file in files if file.rows - file.live > _GONE_SHARE * file.rows]
        small = [file for file in files if is_small(file) and file not in worn]
        if len(small) > _FEW:
            worn += sorted(small, key=lambda file: file.size)
        bite: list[DataFile] = []
        for file in worn:
            if bite and sum(other.size for other in bite) + file.size > LARGE.nbytes // 4:
                break
            bite.append(file)
        return bite if any(f.rows != f.live for f in bite) or len(bite) > 1 else []

    def _compact(self, bite: list[DataFile]) -> int | None:
        """Show the same rows in fewer files; returns how many, None: a step came between."""
        log, key = self.log, list(self.target.schema.key)
        base, identity = log.head.version, log.identity
        parts = [log.live_rows(file, self.schema) for file in bite]
        rows = pa.concat_tables(parts)
        if key:
            rows = rows.sort_by([(name, "ascending") for name in key])
        made = list(self.write(log, iter([rows])))
        now = int(time.time() * 1000)
        actions = [remove_action(file, now) for file in bite]
        actions += [add_action(file, now) for file in made]
        for action in actions:
            next(iter(action.values()))["dataChange"] = False
        if log.commit(base, identity, [*actions, *log.marking(self.target.fence)], now):
            return len(made)
        # An earlier try of these bytes may land yet: `_vacuum` takes what nobody names in a day.
        log.refresh()
        check_owner(self.target, Mark(log.setting(OWNER) or "", log.fence, -1))
        return None

    # --- what is old -----------------------------------------------------------------------------

    def _vacuum(self, now: int) -> int:
        """Remove files and versions that are older than `history`; returns how many files.

        What no commit names may be staged by a runner: it stays for a day, and in any case until
        something was committed after it, as it cannot be committed then. Which is later, tells the
        store: this machine's clock may be days ahead.
        """
        log, before = self.log, now - self.target.settings.history
        entries = list(log.objects.list())
        commits = [entry for entry in entries if _COMMIT.fullmatch(entry.path)]
        newest = max(commits, key=lambda entry: entry.path).modified_ms if commits else 0
        unnamed = min(before, now - DAY, newest)
        gone = self._gone()
        log.refresh()
        garbage = []
        for entry in entries:
            if not OWN_FILE.fullmatch(entry.path) or entry.path in log.head.files:
                continue
            if entry.path in gone:
                is_old = gone[entry.path] <= before
            else:
                is_old = entry.modified_ms < unnamed
            if is_old:
                garbage.append(entry.path)
        log.objects.delete(garbage)
        self._trim([entry for entry in entries if entry.path.startswith(LOG)], before)
        return len(garbage)

    def _gone(self) -> dict[str, int]:
        """Files that left the table, and when: as far as the newest checkpoint knows, and since."""
        log, gone = self.log, dict[str, int]()
        begin = max(log.checkpoint, 0)
        lists: list[list[dict[str, Any]]] = []
        if log.checkpoint >= 0:
            with log.objects.open(checkpoint_path(log.checkpoint)) as file:
                lists.append(actions_in(file, ["remove"]))
        for version in range(begin, log.head.version + 1):
            content = log.objects.get(commit_path(version))
            lists.append([json.loads(line) for line in (content or b"").splitlines()])
        for actions in lists:
            for action in actions:
                if remove := action.get("remove"):
                    gone[remove["path"]] = remove.get("deletionTimestamp") or 0
        return gone

    def _trim(self, entries: list[Any], before: int) -> None:
        """End the log at the newest checkpoint that is old enough: versions since stay readable."""
        names = {entry.path.rpartition("/")[2]: entry for entry in entries}
        old = [
            int(match[1])
            for name, entry in names.items()
            if (match := CHECKPOINT.match(name)) and entry.modified_ms <= before
        ]
        begin = max(old, default=0)
        self.log.objects.delete(
            entry.path
            for name, entry in names.items()
            if name[:20].isdecimal() and int(name[:20]) < begin
        )
