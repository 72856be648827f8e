"""The Delta sink: a view as a Delta table that anybody can read, upserted exactly once.

`stage` does the work: it writes the files that make the delta true, which no reader sees. The
token lists them, and `commit` is one file in the Delta log, put at exactly the version after the
published one. So a commit takes milliseconds, does the same in another process after a crash, and
fails where somebody else has written.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mview.connector import WEIGHT, SinkTarget, check_options
from mview.delta.actions import NO_TABLE, TableVersion, table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import DataFile, check_columns, describe, read_live
from mview.delta.rewrite import Rewrite, Rewriter
from mview.errors import ConfigError, CorruptionError, FencedError, TargetError, UserError, typed
from mview.files.durable import later
from mview.files.marks import put_mark, read_mark, without_mark
from mview.files.modes import make_shared_folder, readers_of, share
from mview.files.records import fields
from mview.rows.equality import as_shown
from mview.rows.match import first_rows, key_codes, row_codes
from mview.schema import as_schema

#: Transaction version after a roll-back; see `DeltaLog.revert`.
_NO_EPOCH = -1

#: What may be set for it.
_OPTIONS = ("path", "deletion_vectors")

#: Bytes of a table's data files from which on `auto` marks rows as deleted. Measured by
#: tests/bench/write_amplification.py: below, a commit that writes its files anew is as cheap, and
#: readers that know no deletion vectors read the table.
_LARGE = 1 << 20

#: Commits that are tried while others write to the table.
_TRIES = 10

#: Below the table's folder; hidden for readers that list folders.
_STAGING = "_staging"

#: What our data files are called: the epoch leads.
_DATA_FILE = re.compile(r"\d{12}-[0-9a-f]{16}\.parquet")
#: Folders of staged files: the runner's token leads, then the epoch.
_STAGED = re.compile(r"(\d{6,})-\d{12}")

#: The file that makes the folder ours, hidden for readers; the table says the same in properties.
_MARK = "_mview.json"
_STORE, _VIEW = "mview.store", "mview.view"


#: What the manifest keeps of a commit, and the intent of what was staged.
_FACTS = {"version": int, "epoch": int, "rows": int, "table": str}
_TOKEN = {
    "id": str,
    "epoch": int,
    "writer": str,
    "expected_version": int,
    "rows": int,
    "adds": list[DataFile],
    "removes": list[str],
    "table": list[dict[str, Any]],
    "id_of_table": str,
}


class DeltaSink:
    """One view in one Delta table; see `mview.connector.Sink`.

    Args:
        target: the view; `options["path"]` is the table's folder, absolute;
            `options["deletion_vectors"]`: `true`: commits cost in proportion to the change and
            not to the files it touches, for readers that know deletion vectors; `false`: none;
            `auto`, the default: from the size on where they pay. A table that has them keeps them.
    """

    def __init__(self, target: SinkTarget) -> None:
        check_options(target, _OPTIONS)
        path = target.options.get("path")
        if not path or not Path(path).is_absolute():
            raise ConfigError(
                f"view {target.view}: the delta sink needs the absolute path of a folder", got=path
            )
        if "%" in path:
            raise ConfigError(
                f"view {target.view}: '%' in the path of a Delta table is decoded by some readers",
                got=path,
                safe="nothing was written",
                hint="give the view a folder without it, `WITH (path = '…')`; or move the store",
            )
        self.target = target
        self.folder = Path(path)
        self._log = DeltaLog(self.folder, own=_DATA_FILE, fence=target.fence)
        self._mark = {"store": target.store, "view": target.view}
        self._claimed = False
        #: Up to here all versions are ours, or change no rows.
        self._known = NO_TABLE
        self._schema = pa.schema([field.with_nullable(True) for field in target.schema.arrow])
        #: Whether rows are marked as deleted; None: where it pays.
        self._vectors = _choice(target, "deletion_vectors")
        self._definitions: dict[bool, list[dict[str, Any]]] = {}
        self._rewriter = Rewriter(
            self._log,
            self._schema,
            target.schema.key,
            f"view {target.view}",
        )

    # --- whose it is -----------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a folder with anything else in it than this view's table; writes nothing.

        Raises:
            UserError: what is there.
        """
        what = f"view {self.target.view}: the folder of its table"
        safe = "nothing was written there, and nothing deleted"
        self._check_original()
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise UserError(
                f"{what} is {'a file' if self.folder.exists() else 'a link to nothing'}",
                where=str(self.folder),
                safe=safe,
                hint="move it away and run again, or give the view another path",
            )
        if (owner := self._owner()) is not None:
            if owner != self._mark:
                other = "another store" if owner["store"] != self.target.store else "another view"
                raise UserError(
                    f"{what} belongs to {other}",
                    where=str(self.folder),
                    got=f"view {owner['view']}, store {owner['store']}",
                    safe=safe,
                    hint="give the view another path, or `mview drop` the other one where it was "
                    "made",
                )
        elif theirs := without_mark(self.folder, _MARK):
            raise UserError(
                f"{what} is not empty, and mview did not make it",
                where=str(self.folder),
                got=", ".join(theirs[:5]),
                allowed="an empty folder, or one that does not exist",
                safe=safe,
                hint="give the view another path",
            )

    def _owner(self) -> dict[str, str] | None:
        """Who made what is in the folder; None: nobody says so."""
        said = self._log.head.metadata.get("configuration", {})
        table = {"store": said.get(_STORE), "view": said.get(_VIEW)}
        try:
            mark = read_mark(self.folder / _MARK, "store", "view")
        except CorruptionError:
            if table != self._mark:
                raise
            return self._mark
        if mark not in (None, self._mark) or not any(v is not None for v in table.values()):
            return mark
        return {key: "?" if value is None else value for key, value in table.items()}

    def _claim(self) -> None:
        """Make the folder ours before the first file is written into it."""
        if not self._claimed:
            self.check()
            if self.target.private:
                self.folder.mkdir(parents=True, exist_ok=True)
            else:
                make_shared_folder(self.folder)
            try:
                read_mark(self.folder / _MARK, "store", "view")
            except CorruptionError:  # the table says whose it is, or `check` had refused
                self._unmark()
            put_mark(self.folder / _MARK, self._mark)
            share(self.folder / _MARK, readers_of(self.folder))
            self.check()  # of two who put it at once, one did
            self._claimed = True

    def _check_original(self) -> None:
        """Refuse to write, from a copy of a store, to the table of the one that was copied."""
        if self.target.copied_from:
            raise UserError(
                f"view {self.target.view}: the folder of its table belongs to the store that this "
                "one is a copy of",
                where=str(self.folder),
                got=f"store {self.target.copied_from}, which is still there",
                safe="nothing was written there, and nothing deleted",
                hint="run that store, or remove it; or leave out the view's path here: then its "
                "table is in this store",
            )

    def caution(self) -> str | None:
        """What readers of the table must know; None: any that reads Delta reads it."""
        if self._vectors is False or self.target.private:
            return None
        size = "" if self._vectors else f" when it has more than {_LARGE >> 20} MB"
        return (
            f"note: the table of {self.target.view} has deletion vectors{size}; for readers that "
            "cannot read them, set sink.deletion_vectors='false'"
        )

    # --- staging ---------------------------------------------------------------------------------

    def stage(self, epoch: int, delta: pa.Table) -> dict[str, Any]:
        """Write the files that an epoch's delta leads to; nothing of it is visible.

        Raises:
            UserError: the view's key is not unique, or the folder is not this view's.
            CorruptionError: the table lacks a row that the delta removes.
        """
        self._claim()
        self._take_in()
        head = self._log.head
        if not delta.num_rows and head.version != NO_TABLE:
            return self._token(epoch, [], [])
        rewrite = self._rewrite(epoch, delta)
        return self._token(epoch, rewrite.adds, rewrite.removes)

    def _rewrite(self, epoch: int, delta: pa.Table) -> Rewrite:
        rows, weight = as_schema(delta, self._schema), delta[WEIGHT].to_numpy()
        key, same = self.target.schema.key, delta.schema.field
        # Who counted the changes has asked the same of the delta.
        known = all(same(name).type == self._schema.field(name).type for name in key)
        coded = key_codes(delta if known else rows, key)
        upsert, live = self._rewriter.weighted(rows, weight, coded), self._log.head.files
        return self._rewriter.plan(
            f"{epoch:012d}", upsert, live, vectors=self._marks(live.values())
        )

    def _marks(self, files: Iterable[DataFile]) -> bool:
        """Whether the rows of these files that go are marked as deleted."""
        if self._vectors is not None:
            return self._vectors
        return self._log.head.has_deletion_vectors or sum(f.size for f in files) >= _LARGE

    def staging(self, epoch: int) -> Path:
        """A folder in which an executor may write the files of `stage_full`."""
        self._claim()
        folder = self.folder / _STAGING / f"{self.target.fence.token:06d}-{epoch:012d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def stage_full(self, epoch: int, files: Sequence[Path]) -> dict[str, Any]:
        """Take files as the whole new content; they are moved, not copied.

        Raises:
            UserError: a file has other columns than the view.
            UserError: the folder is not this view's.
        """
        self._claim()
        self._take_in()
        adds = []
        for file in files:
            check_columns(file, self._schema)
            name = self._log.new_file(f"{epoch:012d}")
            file.replace(self.folder / name)
            later(self.folder / name)
            written = describe(self.folder, name, self.target.schema.key)
            if written.rows:
                adds.append(written)
            else:
                self._log.discard([name])
        self._sweep_staging()
        return self._token(epoch, adds, list(self._log.head.files))

    def _sweep_staging(self) -> None:
        """Delete the folders of `staging`, but none of a newer runner."""
        staging = self.folder / _STAGING
        for folder in staging.iterdir() if staging.is_dir() else ():
            staged = _STAGED.fullmatch(folder.name)
            if staged and int(staged.group(1)) <= self.target.fence.token:
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            staging.rmdir()

    def _token(
        self, epoch: int, adds: Sequence[DataFile], removes: Iterable[str]
    ) -> dict[str, Any]:
        head = self._log.head
        gone = set(removes)
        left = (file for path, file in head.files.items() if path not in gone)
        table = self._table_change([*left, *adds])
        rows = head.rows + sum(f.live for f in adds) - sum(head.files[p].live for p in removes)
        return {
            "id": uuid.uuid4().hex,
            "epoch": epoch,
            "writer": self.target.writer,
            "expected_version": head.version,
            "rows": rows,
            "adds": [file.to_json() for file in adds],
            "removes": list(removes),
            "table": table,
            "id_of_table": head.id or next(a["metaData"]["id"] for a in table if "metaData" in a),
        }

    def _table_change(self, files: Sequence[DataFile]) -> list[dict[str, Any]]:
        """Actions for a new table, or for columns, comment and features that have changed.

        Args:
            files: those of the table when they are committed.
        """
        head = self._log.head
        vectors = self._marks(files) or head.has_deletion_vectors
        definition = self._definition(vectors or any(file.deleted for file in files))
        metadata = next(a["metaData"] for a in definition if "metaData" in a)
        settings: dict[str, str] = metadata["configuration"]
        before = head.metadata.get("configuration", {})
        known = (metadata["schemaString"], metadata["description"]) == head.definition
        if known and settings.items() <= before.items():
            return []
        if head.version == NO_TABLE:
            return definition
        # What others have set stays set.
        change = {"metaData": {**metadata, "id": head.id, "configuration": {**before, **settings}}}
        return [change if "metaData" in action else action for action in definition]

    def _definition(self, vectors: bool) -> list[dict[str, Any]]:
        """The actions of the table as a new one, with deletion vectors or without."""
        if vectors not in self._definitions:
            self._definitions[vectors] = self._defined(vectors)
        return self._definitions[vectors]

    def _defined(self, vectors: bool) -> list[dict[str, Any]]:
        kept = f"interval {self.target.history_ms // 1000} seconds"
        return table_actions(
            self._schema,
            comment=self.target.comment,
            properties={
                _STORE: self.target.store,
                _VIEW: self.target.view,
                # For a VACUUM of others: it must leave what the history reads.
                "delta.deletedFileRetentionDuration": kept,
                "delta.logRetentionDuration": kept,
            },
            deletion_vectors=vectors,
        )

    # --- committing ------------------------------------------------------------------------------

    def commit(self, token: dict[str, Any]) -> dict[str, Any]:
        """Show a staged epoch, in one commit; a second time is the same as once.

        Returns:
            {"version", "epoch", "rows", "table": its id}.

        Raises:
            TargetError: somebody else changed rows of the table.
            FencedError: another runner wrote to it.
        """
        self._check_original()
        token = self._said(token, _TOKEN)
        note = {**self._note(), "epoch": token["epoch"], "token": token["id"]}
        nothing = not (token["adds"] or token["removes"] or token["table"])
        for _ in range(_TRIES):
            head, right = self._log.refresh().version, token["expected_version"]
            for version in range(right + 1, head + 1):
                if self._log.note(version) == note:
                    return self._facts(token, version)
                if self._takes_back(version):
                    right = version  # whatever others wrote before has gone again
            for version in range(right + 1, head + 1):
                self._refuse_foreign(version)
            if nothing:
                return self._facts(token, head)
            try:
                # All before it was looked at just now, or when the epoch was staged.
                version = self._known = self._commit(token, note)
            except FencedError:
                if self._log.refresh().version == head:
                    raise
            else:
                return self._facts(token, version)
        raise self._changed(head, "it again and again")

    def _commit(self, token: dict[str, Any], note: dict[str, Any]) -> int:
        adds, removes = token["adds"], token["removes"]
        head, staged = self._log.head, self._log.at(token["expected_version"])
        if head is not staged and any(
            head.files.get(path) != staged.files[path] for path in removes
        ):
            # Others have written the same rows into other files since.
            rewrite = self._rewrite(token["epoch"], self._delta(token))
            adds, removes = rewrite.adds, rewrite.removes
        transaction = (token["writer"], token["epoch"])
        table = token["table"]
        if head.version != staged.version:
            left = [file for path, file in head.files.items() if path not in set(removes)]
            table = self._table_change([*left, *adds])
        return self._log.commit(adds, removes, note, transaction=transaction, table=table)

    def _delta(self, token: dict[str, Any]) -> pa.Table:
        """What a token changes, from its files."""
        staged = self._log.at(token["expected_version"]).files
        gone = [read_live(self.folder, staged[path], self._schema) for path in token["removes"]]
        come = [read_live(self.folder, file, self._schema) for file in token["adds"]]
        rows = pa.concat_tables([self._schema.empty_table(), *gone, *come])
        weights = np.repeat([-1, 1], [sum(part.num_rows for part in side) for side in (gone, come)])
        first, group = first_rows(row_codes([as_shown(rows)])[0])
        sums = np.bincount(group, weights=weights, minlength=len(first)).astype(np.int64)
        delta = rows.take(first).append_column(WEIGHT, pa.array(sums))
        return delta.filter(pa.array(sums != 0))

    def _facts(self, token: dict[str, Any], version: int) -> dict[str, Any]:
        facts = {"version": version, "epoch": token["epoch"], "rows": token["rows"]}
        return {**facts, "table": token["id_of_table"]}

    # --- what others write -----------------------------------------------------------------------

    def _take_in(self) -> None:
        """Go on over commits of others that change no rows, e.g. OPTIMIZE.

        Raises:
            TargetError: one changes rows.
        """
        head = self._log.refresh().version
        version = head
        while version > self._known and not self._is_ours(version):
            self._refuse_foreign(version)
            version -= 1
        self._known = head

    def _refuse_foreign(self, version: int) -> None:
        """Refuse a version that is another runner's, or that somebody else changed rows in."""
        if self._is_ours(version):
            raise self._fenced(version)
        if what := self._log.changes_rows(version):
            raise self._changed(version, what)

    def _takes_back(self, version: int) -> bool:
        """Whether a version has the rows of the published epoch again."""
        note = self._log.note(version) or {}
        return self._is_ours(version) and not {"repair", "rollback"}.isdisjoint(note)

    def _same_rows(self, version: int) -> int:
        """The last version after one that has the same rows, by commits of others."""
        after = version + 1
        while self._log.is_kept(after) and not self._is_ours(after):
            if self._log.changes_rows(after):
                break
            version, after = after, after + 1
        return version

    def repair(self, published: dict[str, Any]) -> bool:
        """Make the table what it was at a published epoch, whatever others have written since.

        Returns:
            Whether it is; False: files of it are gone, and the view must be built anew.

        Raises:
            UserError: the folder is not this view's.
        """
        published = self._said(published, _FACTS)
        self._claim()
        head = self._log.refresh()
        whole = False
        with suppress(CorruptionError):
            self.rows(published)
            whole = True
        note = {**self._note(), "repair": published["version"]}
        transaction = (self.target.writer, _NO_EPOCH)
        if not whole and head.version != NO_TABLE:
            self._log.commit([], [], note, transaction=transaction)
        elif whole and not self._goes_on(published["version"]):
            self._log.revert(published["version"], note, transaction)
            if self._log.head.version == head.version:
                self._log.commit([], [], note, transaction=transaction)
        return whole

    def _goes_on(self, version: int) -> bool:
        """Whether the next commit may follow: its rows are the newest, and its note can be read."""
        return self._is_ours(version) and self._same_rows(version) == self._log.head.version

    def rollback(self, token: dict[str, Any] | None, published: dict[str, Any] | None) -> None:
        """Undo what came after `published`; None: there was nothing.

        Raises:
            TargetError: somebody else changed rows.
            FencedError: nothing was published, and not all of it was ours.
        """
        self._check_original()
        published = None if published is None else self._said(published, _FACTS)
        version = NO_TABLE if published is None else published["version"]
        head = self._log.refresh().version
        while head > version and not self._is_ours(head):
            if what := self._log.changes_rows(head):
                raise self._changed(head, what)
            head -= 1
        if published is None:
            if head != self._log.head.version:
                raise self._fenced(head + 1)
            self._log.drop()
        else:
            version = self._same_rows(version)
            note = {**self._note(), "rollback": version}
            self._log.revert(version, note, (self.target.writer, _NO_EPOCH))
        self._sweep_staging()
        epoch = 0 if published is None else published["epoch"]
        self._discard_after(epoch)

    def _said(self, told: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
        """What the store has kept for us."""
        try:
            return fields(told, types)
        except ValueError as error:
            raise CorruptionError(
                f"view {self.target.view}: what its store says of its table has another form",
                where=str(self.folder),
                got=f"{error}; perhaps another version of mview wrote it",
                safe="the table was not changed",
                hint=f"`mview run` builds the view anew; or `mview drop {typed(self.target.view)}`",
            ) from None

    def _note(self) -> dict[str, Any]:
        return {"mview": self.target.view, "store": self.target.store}

    def _is_ours(self, version: int) -> bool:
        note = self._log.note(version)
        return note is not None and self._note().items() <= note.items()

    def _discard_after(self, epoch: int) -> None:
        """Delete files of epochs that were not published; the number leads the name."""
        live = self._log.head.files
        late = [
            file.name
            for file in self.folder.glob("*.parquet")
            if _DATA_FILE.fullmatch(file.name)
            and file.name not in live
            and int(file.name[:12]) > epoch
        ]
        self._log.discard(late)

    # --- reading and upkeep ----------------------------------------------------------------------

    def rows(self, published: dict[str, Any]) -> pa.Table:
        """The content at a published epoch; see `parts`."""
        return pa.concat_tables([self._schema.empty_table(), *self.parts(published)])

    def parts(self, published: dict[str, Any]) -> Iterator[pa.Table]:
        """The same, a file at a time.

        Raises:
            CorruptionError: it cannot be read (any more).
        """
        for file in self._content(published).files.values():
            yield read_live(self.folder, file, self._schema)

    def apart(self, new: dict[str, Any], old: dict[str, Any]) -> tuple[pa.Table, pa.Table]:
        """The rows of files that one of two epochs has, and the other has not."""
        files = [self._content(published).files for published in (new, old)]
        sides = []
        for ours, theirs in (files, reversed(files)):
            apart = [file for path, file in ours.items() if theirs.get(path) != file]
            parts = [read_live(self.folder, file, self._schema) for file in apart]
            sides.append(pa.concat_tables([self._schema.empty_table(), *parts]))
        return sides[0], sides[1]

    def _content(self, published: dict[str, Any]) -> TableVersion:
        """The table at a published epoch."""
        published = self._said(published, _FACTS)
        # The rows are the same in files that others made of them, and these stay longer.
        table = self._log.at(self._same_rows(published["version"]))
        if table.id != published["table"]:
            raise CorruptionError(
                f"view {self.target.view}: its table was made anew after the epoch",
                where=str(self.folder),
                safe="the newest epoch is not touched",
                hint="read a newer epoch",
            )
        return table

    def maintain(self, oldest: Mapping[str, Any] | None, keep: Sequence[Mapping[str, Any]]) -> int:
        """Delete what nobody reads any more, and checkpoint the log now and then.

        Args:
            oldest: facts of an epoch that stays readable, as all after it; None: there was none.
            keep: facts of older epochs that stay readable, too.

        Returns:
            Number of data files deleted.
        """
        self._check_original()
        # Not refreshed: this runs beside epochs, and what others write is looked at before it
        # counts, by `_take_in` and `commit`.
        if self._log.head.version == NO_TABLE:
            return 0

        def version(told: Mapping[str, Any]) -> int:
            facts = self._said(told, _FACTS)
            # Before a drop there was another table.
            return int(facts["version"]) if facts["table"] == self._log.head.id else NO_TABLE

        kept = {version(facts) for facts in keep} - {NO_TABLE}
        first = NO_TABLE if oldest is None else version(oldest)
        return self._log.clean(first, kept, lambda path: path.startswith(f"{_STAGING}/"))

    def drop(self) -> None:
        """Delete what the log or our own names tell; the folder only when it is empty then.

        Raises:
            UserError: the folder is not this view's.
        """
        if not self.folder.exists():
            return
        with suppress(CorruptionError):  # a damaged table is dropped by its mark
            self.check()
        try:
            if read_mark(self.folder / _MARK, "store", "view") not in (None, self._mark):
                return
        except CorruptionError:
            self._owner()  # or the table says whose it is
        self._log.drop()
        self._sweep_staging()
        self.target.fence.check()
        self._unmark()
        with suppress(OSError):
            self.folder.rmdir()
        self._claimed = False

    def _unmark(self) -> None:
        mark = self.folder / _MARK
        if mark.is_dir():
            mark.rmdir()
        else:
            mark.unlink(missing_ok=True)

    def _changed(self, version: int, what: str) -> TargetError:
        name = self.target.view
        return TargetError(
            f"view {name}: somebody else changed {what} of its Delta table",
            where=f"{self.folder}, version {version}",
            got=self._log.describe(version),
            safe="the last good epoch is kept; the other views go on",
            hint=f"end the other writer; `mview repair {typed(name)}` takes back what it wrote",
        )

    def _fenced(self, version: int) -> FencedError:
        return FencedError(
            f"view {self.target.view}: version {version} of its Delta table is somebody else's",
            where=str(self.folder),
            safe="the table was not changed",
            hint="end the other writer; then `mview drop` the view, or give it another path",
        )


def _choice(target: SinkTarget, name: str) -> bool | None:
    """An option that is true, false or `auto`, which is None."""
    given = str(target.options.get(name, "auto")).lower()
    if given not in ("true", "false", "auto"):
        raise ConfigError(
            f"view {target.view}: sink option {name!r} is neither true, false nor auto", got=given
        )
    return None if given == "auto" else given == "true"
