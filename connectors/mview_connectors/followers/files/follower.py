"""Folders of files as sinks, committed by numbered manifests that are made only where none is.

    <path>/<table>/manifests/00000000000000000007.json    what is there since the seventh commit
    <path>/<table>/data/<step>-0000.parquet               files of rows, never changed

A step writes files that nothing names, and commits by the next manifest: of two who try, one has
its number. A manifest of mode `upsert` names all files of the content, one of mode `changelog`
those that its step has added. A row lies in the file of its *bucket*, a hash of its key: a step
writes the buckets anew that it changes. Files that no manifest names any more are deleted by age.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from mview.changelog import KIND
from mview.clock import steady_clock
from mview.config import Duration
from mview.errors import ConfigError, RetryableError, TargetError, UserError, of_the_system
from mview.files.durable import force, is_aside, put_if_absent
from mview.files.modes import make_shared_folder, readers_of, share
from mview.follower import (
    DAY,
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    batches,
    check_owner,
    mark_of,
    refuse_types,
)
from mview.rows.match import row_codes
from mview.schema import type_name
from mview_connectors.followers.files.formats import FORMATS, Writer
from mview_connectors.followers.folders import Place, check_folder, folder_of
from mview_connectors.formats.written import json_keys

#: The epoch of a change, beside KIND, in the files of mode changelog.
EPOCH = "__epoch"

_MANIFESTS, _DATA = "manifests", "data"

#: Files are looked through at most so many times while one becomes old enough to be deleted.
_LOOKS = 10


class FilesSettings(FollowerSettings):
    """A folder of files as a sink; `table` is the folder in `path`."""

    #: A folder on a disk of this machine, or one that is mounted.
    path: Place
    #: Of the files.
    format: Literal["parquet", "csv", "jsonl"] = "parquet"
    #: mode upsert: files of the content; a step writes those anew that it changes, each in memory.
    buckets: Annotated[int, Field(strict=True, gt=0, le=1024)] = 1
    #: How long files stay that a newer commit has replaced: what a query may take that reads them.
    keep: Duration = DAY
    #: mode changelog: how long changes stay; always, where no time is given.
    keep_changes: Duration | None = None


@dataclass(frozen=True)
class RowsFile:
    """A file of rows.

    Attributes:
        path: from the table's folder.
        rows: their number.
        bytes: its size.
        bucket: of mode upsert.
    """

    path: str
    rows: int
    bytes: int
    bucket: int = 0


@dataclass(frozen=True)
class FolderManifest:
    """What a commit has made of a table.

    Attributes:
        mark: its epoch is -1 where the table is not filled.
        made_ms: wall milliseconds.
        content: what the files are made of; another text means a fill.
        begins: mode changelog: the number of the manifest that changes count from.
        files: mode upsert: all; mode changelog: those that it adds.
    """

    mark: Mark
    made_ms: int
    content: dict[str, Any]
    begins: int
    files: tuple[RowsFile, ...]

    def to_bytes(self) -> bytes:
        """One JSON object."""
        mark = asdict(self.mark)
        files = [asdict(file) for file in self.files]
        body = {**mark, "made_ms": self.made_ms, **self.content, "begins": self.begins}
        return orjson.dumps({**body, "files": files}, option=orjson.OPT_INDENT_2)

    @classmethod
    def from_file(cls, file: Path) -> FolderManifest:
        """What a file says.

        Raises:
            TargetError: nothing that can be read.
        """
        try:
            body = orjson.loads(file.read_bytes())
            mark = Mark(*(body.pop(name) for name in ("owner", "fence", "epoch", "step")))
            files = tuple(RowsFile(**file) for file in body.pop("files"))
            return cls(
                mark, body.pop("made_ms"), files=files, begins=body.pop("begins"), content=body
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TargetError(
                "a manifest of a folder of files cannot be read",
                where=str(file),
                got=str(error),
                safe="nothing was written",
                hint="restore it from a copy, or move the folder away: it is filled anew",
            ) from None


class FilesFollower:
    """A folder that follows a view.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = FilesSettings
    # Of changes some may have been deleted by age.
    capabilities: Capabilities = Capabilities(
        modes=frozenset({"upsert", "changelog"}),
        durable_prepare=True,
        null_keys=True,
    )

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: FilesSettings = target.settings
        self._is_log = self._settings.mode == "changelog"
        if self._is_log:
            self.capabilities = replace(type(self).capabilities, reads=False)
        self.folder = (folder_of(self._settings.path) or Path()) / target.table
        self._format = FORMATS[self._settings.format]
        self._now: Callable[[], int] = steady_clock().now
        self._number = 0
        # When somebody has last added a manifest or taken one away, as far as was looked; and
        # whether the newest was put far beyond the others.
        self._listed: int | None = None
        self._is_beyond = False
        #: The files of manifests, by number and time: a copy that is put back may have others of
        #: the same numbers.
        self._named: dict[tuple[int, int], frozenset[str]] = {}
        self._looked: int | None = None

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse names that are no folder in `path`, and types that the format cannot hold."""
        name, schema = self.target.table, self.target.schema
        if "/" in name or "\0" in name or name in (".", "..") or name.startswith(("_", ".")):
            raise UserError(
                f"sink {self.target.sink} cannot have a folder of this name",
                where=f"view {self.target.view}",
                got=name,
                allowed="no '/', and no '_' or '.' at the beginning: readers pass those over",
                hint="give the folder another name: table: …",
            )
        self._check_path()
        if self._settings.format == "csv" and len(schema.columns) == 1 and not self._is_log:
            raise UserError(
                f"view {self.target.view} has one column, which CSV cannot hold",
                got="a row of NULL would be an empty line, which readers pass over",
                allowed="format: parquet or jsonl",
            )
        refused = {c.name: self._format.refuses(c.type) for c in schema.columns}
        refuse_types(self.target, {name: why for name, why in refused.items() if why})
        lists = [n for n in schema.key if pa.types.is_nested(schema.column(n).type)]
        refuse_types(self.target, dict.fromkeys(lists, "no lists in a key"))

    def _check_path(self) -> None:
        if folder_of(self._settings.path) is None:
            raise ConfigError(
                f"sink {self.target.sink} is no folder",
                where=f"sinks.{self.target.sink}.path",
                got=self._settings.path,
                allowed="a folder of this machine, or one that is mounted",
                hint="Iceberg and Delta go to object storage",
            )

    def caution(self) -> str | None:
        """Nothing is sent."""
        return None

    def probe(self) -> None:
        """Look whether the folder can be written, and is free or ours; makes nothing."""
        self._check_path()
        check_folder(self.target, self.folder)
        newest = self._newest()
        if newest is not None:
            check_owner(self.target, replace(newest.mark, fence=0))
        elif self.folder.is_dir():
            self._check_empty()

    def create(self) -> None:
        """Make the folder, and put the fence's token in, as a manifest of the same content."""
        self.check()
        check_folder(self.target, self.folder)
        make_shared_folder(self.folder)
        if self._newest() is None:
            self._check_empty()
        for name in (_MANIFESTS, _DATA):
            make_shared_folder(self.folder / name)
        while True:
            newest = self._newest()
            if newest is None:
                mark = Mark(self.target.owner, self.target.fence, -1)
                claim = FolderManifest(mark, self._now(), self._content(), 1, ())
            else:
                check_owner(self.target, newest.mark)
                if newest.mark.fence == self.target.fence:
                    return
                mark = replace(newest.mark, fence=self.target.fence)
                if self._is_beyond:
                    mark = replace(mark, epoch=-1, step="")
                files = () if self._is_log else newest.files
                claim = replace(newest, mark=mark, made_ms=self._now(), files=files)
            if self._put(claim):
                return

    def position(self) -> Mark | None:
        """The newest manifest's mark; None: the table was never filled as it is to be."""
        newest = self._newest()
        # Of changes some may have been deleted by age.
        files = () if newest is None or self._is_log else newest.files
        is_whole = all((self.folder / file.path).exists() for file in files)
        return self._standing(newest) if is_whole else None

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write the files that the changes make."""
        newest = self._admitted(step)
        if self._is_log:
            return self._log(step, newest, delta)
        changes = delta.read_all()
        if not changes.num_rows:
            return self._token(step, newest, newest.files, ())
        buckets = self._buckets(changes)
        schema, key = self._schema(), list(self.target.schema.key)
        plus = pc.starts_with(changes[KIND], "+").to_numpy()
        columns = changes.drop_columns([KIND])
        old_files = {file.bucket: file for file in newest.files}
        written: list[RowsFile] = []
        for bucket in sorted(set(buckets.tolist())):
            here = buckets == bucket
            touched = columns.filter(pa.array(here))
            new = columns.filter(pa.array(here & plus))
            kept = schema.empty_table()
            if bucket in old_files:
                kept = self._rows(old_files[bucket])
                there, gone = row_codes([kept.select(key), touched.select(key)])
                kept = kept.filter(pa.array(~np.isin(there, gone)))
            with self._writing(step, [bucket]) as files:
                for table in (kept, new):
                    for batch in table.to_batches():
                        files.write(bucket, batch)
            written += files.made
        names = {file.bucket for file in written}
        stays = [file for file in newest.files if file.bucket not in names]
        return self._token(step, newest, (*stays, *written), written)

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Write files of all rows."""
        newest = self._admitted(step)
        if self._is_log:
            schema = pa.schema([pa.field(KIND, pa.string(), False), *rows.schema])
            inserts = (
                pa.record_batch([pa.repeat("+I", batch.num_rows), *batch.columns], schema=schema)
                for batch in batches(rows)
            )
            reader = pa.RecordBatchReader.from_batches(schema, inserts)
            return self._log(step, newest, reader)
        # There is always a file: most readers take no list of none.
        with self._writing(step, [0]) as files:
            for batch in batches(rows):
                buckets = self._buckets(pa.Table.from_batches([batch]))
                for bucket in sorted(set(buckets.tolist())):
                    files.write(bucket, batch.filter(pa.array(buckets == bucket)))
        return self._token(step, newest, files.made, files.made)

    def commit(self, token: Token) -> Facts:
        """Make the next manifest."""
        step = Step(token["id"], token["epoch"], token["after"])
        facts = {"epoch": step.epoch, "files": len(token["new"])}
        while True:
            newest = self._there()
            if newest.mark.step == step.id:
                return facts
            self._admit(newest, step)
            if not self._is_prepared(newest, token):
                raise RetryableError(
                    "what was staged is gone, or was made of another content",
                    where=str(self.folder),
                    safe="nothing of it is shown; it is staged again",
                )
            begins = self._number + 1 if step.is_fill else newest.begins
            files = tuple(RowsFile(**file) for file in token["files"])
            mark = mark_of(self.target, step)
            if self._put(FolderManifest(mark, self._now(), self._content(), begins, files)):
                break
        with suppress(OSError):  # tried again after the next commit
            self._prune()
        return facts

    def state(self, step: Step, token: Token | None) -> State:
        """What the newest manifest and the files say."""
        newest = self._newest()
        if newest is None:
            return State.UNKNOWN
        if newest.mark.step == step.id:
            return State.COMMITTED
        if token is None:
            return State.INITIALIZED if any(self._files_of(step.id)) else State.UNKNOWN
        return State.PREPARED if self._is_prepared(newest, token) else State.UNKNOWN

    def abort(self, step: Step, token: Token | None) -> None:
        """Delete the step's files."""
        for file in self._files_of(step.id):
            file.unlink(missing_ok=True)

    def read(self) -> pa.RecordBatchReader:
        """The rows of the newest manifest's files."""
        newest = self._newest()
        files = () if newest is None else newest.files
        parts = (batch for file in files for batch in self._rows(file).to_batches())
        return pa.RecordBatchReader.from_batches(self._schema(), parts)

    def maintain(self, *, thorough: bool) -> Facts:
        """Delete manifests and files that are old enough."""
        self._looked = None
        removed = self._prune()
        return {"files_removed": removed} if removed else {}

    def close(self) -> None:
        """Nothing is open."""
        return

    # --- manifests -------------------------------------------------------------------------------

    def _manifest(self, number: int) -> Path:
        return self.folder / _MANIFESTS / f"{number:020}.json"

    def _newest(self) -> FolderManifest | None:
        """The manifest with the highest number, which is noted."""
        changed = self._changed()
        if changed != self._listed or not self._manifest(self._number).exists():
            numbers = set(self._numbers())
            self._listed, self._number = changed, max(numbers, default=0)
            self._is_beyond = len(numbers) > 1 and self._number - 1 not in numbers
            if not self._number:
                return None
        while self._manifest(self._number + 1).exists():
            self._number += 1
        return FolderManifest.from_file(self._manifest(self._number))

    def _changed(self) -> int | None:
        """When the folder of manifests was changed; None: it is not there."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self.folder / _MANIFESTS).stat().st_mtime_ns
        return None

    def _numbers(self) -> list[int]:
        with suppress(FileNotFoundError, NotADirectoryError):
            files = (self.folder / _MANIFESTS).iterdir()
            return [int(f.stem) for f in files if f.suffix == ".json" and f.stem.isdecimal()]
        return []

    def _put(self, manifest: FolderManifest) -> bool:
        """Make the next manifest, unless somebody else has made one of its number."""
        file, is_listed = self._manifest(self._number + 1), self._changed() == self._listed
        if not put_if_absent(file, manifest.to_bytes(), readers=readers_of(self.folder)):
            return False
        self._number, self._is_beyond = self._number + 1, False
        if is_listed:  # this change is ours: to list thousands of names takes long
            self._listed = self._changed()
        return True

    def _check_empty(self) -> None:
        """Refuse a folder without manifests that has files: nothing says that they are ours."""
        ours = (_MANIFESTS, _DATA)
        theirs = [p.name for p in self.folder.iterdir() if p.name not in ours]
        for name in ours:
            if (self.folder / name).is_dir():
                inside = (p.name for p in (self.folder / name).iterdir())
                theirs += [f"{name}/{file}" for file in inside if not is_aside(file)]
        if theirs:
            raise TargetError(
                f"the folder of sink {self.target.sink} has files that mview has not written",
                where=str(self.folder),
                got=", ".join(sorted(theirs)[:5]),
                safe="nothing was written there",
                hint="give the view another one: table: …, or move these away",
            )

    def _content(self) -> dict[str, Any]:
        """What the files are made of, for readers, too."""
        schema = self.target.schema
        columns = [{"name": c.name, "type": type_name(c.type)} for c in schema.columns]
        how = {"mode": self._settings.mode, "format": self._settings.format}
        buckets = 1 if self._is_log else self._settings.buckets
        return {**how, "columns": columns, "key": list(schema.key), "buckets": buckets}

    def _standing(self, newest: FolderManifest | None) -> Mark | None:
        if newest is None or newest.mark.epoch < 0 or newest.content != self._content():
            return None
        if self._is_beyond:  # somebody's copy: of a changelog its changes would come twice
            return None
        return newest.mark

    def _admitted(self, step: Step) -> FolderManifest:
        newest = self._there()
        self._admit(newest, step)
        return newest

    def _there(self) -> FolderManifest:
        newest = self._newest()
        if newest is None:
            raise RetryableError(
                "the folder is gone, or has no manifest",
                where=str(self.folder),
                safe="nothing was written; it is made anew",
            )
        return newest

    def _admit(self, newest: FolderManifest, step: Step) -> None:
        check_owner(self.target, newest.mark)
        admit(self.target, self._standing(newest), step)

    # --- files -----------------------------------------------------------------------------------

    def _schema(self) -> pa.Schema:
        return pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])

    def _rows(self, file: RowsFile) -> pa.Table:
        """What is in a file that the newest manifest names."""
        place = self.folder / file.path
        try:
            # Else a step would lose the rows of lines that somebody has cut off.
            if (size := place.stat().st_size) != file.bytes:
                raise ValueError(f"{size:,} bytes, where its manifest says {file.bytes:,}")
            return self._format.read(place, self._schema())
        except FileNotFoundError:
            raise RetryableError(
                f"a file of the folder of sink {self.target.sink} is gone",
                where=str(place),
                safe="nothing was written; the folder is filled anew",
            ) from None
        except (ValueError, OSError) as error:
            if of_the_system(error) is not None:
                raise
            raise TargetError(
                f"a file of the folder of sink {self.target.sink} is not as it was written",
                where=str(place),
                got=str(error).splitlines()[0],
                safe="nothing was written",
                hint="delete that file: the folder is filled anew",
            ) from error

    def _buckets(self, rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The bucket of each row."""
        many, key = self._settings.buckets, self.target.schema.key
        if many == 1:
            return np.zeros(rows.num_rows, np.int64)
        texts = [text for batch in rows.to_batches() for text in json_keys(batch, key)]
        return np.array([zlib.crc32(text) % many for text in texts], np.int64)

    def _log(self, step: Step, newest: FolderManifest, delta: pa.RecordBatchReader) -> Token:
        """Write a file of changes; none where there are none."""
        schema = pa.schema([*delta.schema, pa.field(EPOCH, pa.int64(), False)])
        with self._writing(step, [], schema) as files:
            for batch in batches(delta):
                epochs = pa.repeat(pa.scalar(step.epoch, pa.int64()), batch.num_rows)
                files.write(0, pa.record_batch([*batch.columns, epochs], schema=schema))
        return self._token(step, newest, files.made, files.made)

    def _writing(
        self, step: Step, buckets: Sequence[int], schema: pa.Schema | None = None
    ) -> _Files:
        return _Files(self, step, buckets, schema or self._schema())

    def _token(
        self, step: Step, newest: FolderManifest, files: Sequence[RowsFile], new: Sequence[RowsFile]
    ) -> Token:
        return {
            "id": step.id,
            "epoch": step.epoch,
            "after": step.after,
            "base": newest.mark.step,
            "files": [asdict(file) for file in files],
            "new": [file.path for file in new],
        }

    def _is_prepared(self, newest: FolderManifest, token: Token) -> bool:
        """Whether a commit shows what was staged, all of it, on what it was made of."""
        stands = token["after"] is None or newest.mark.step == token["base"]
        files = (self.folder / file["path"] for file in token["files"])
        return stands and all(file.exists() for file in files)

    def _files_of(self, step: str) -> Iterator[Path]:
        return (self.folder / _DATA).glob(f"{step}-[0-9][0-9][0-9][0-9].*")

    # --- what is old -----------------------------------------------------------------------------

    def _prune(self) -> int:
        """Delete manifests that were replaced long ago, and files that none names any more; also
        what is left of manifests that got no name, as their writer was killed.

        Only what a runner lists that is the newest in the folder: what an older one has staged it
        cannot commit. And only what was written before the newest manifest: what is under way is
        written after it.

        Returns:
            The number of files, but for the manifests.
        """
        now, keep = self._now(), self._settings.keep
        if self._looked is not None and now - self._looked < keep // _LOOKS:
            return 0
        self._looked = now
        files = list((self.folder / _DATA).iterdir())
        newest = self._newest()
        if newest is None or newest.mark.fence != self.target.fence:
            return 0
        begun = _age(self._manifest(self._number), now)
        numbers = sorted(self._numbers())
        gone = set()
        for number, after in pairwise(numbers):
            wait = keep
            if self._is_log and number >= newest.begins:
                if self._settings.keep_changes is None:
                    break
                wait = self._settings.keep_changes
            if _age(self._manifest(after), now) <= wait:
                break  # those that come are newer
            gone.add(number)
            self._manifest(number).unlink(missing_ok=True)
        known, self._named = self._named, {}
        for manifest in (self._manifest(number) for number in numbers if number not in gone):
            seen = int(manifest.stem), manifest.stat().st_mtime_ns
            if seen not in known:
                paths = (file.path for file in FolderManifest.from_file(manifest).files)
                known[seen] = frozenset(paths)
            self._named[seen] = known[seen]
        named = frozenset().union(*self._named.values())
        old = [file for file in files if f"{_DATA}/{file.name}" not in named]
        old += [file for file in (self.folder / _MANIFESTS).iterdir() if is_aside(file.name)]
        old = [file for file in old if _age(file, now) > max(keep, begun)]
        for file in old:
            file.unlink(missing_ok=True)
        return len(old)


def _age(file: Path, now: int) -> int:
    """Milliseconds since a file was written; of one that is gone, none."""
    with suppress(FileNotFoundError):
        return now - file.stat().st_mtime_ns // 1_000_000
    return 0


class _Files:
    """The files that a step writes, one per bucket, on disk at the end of the block.

    Attributes:
        made: them, after the block.
    """

    def __init__(
        self, follower: FilesFollower, step: Step, buckets: Sequence[int], schema: pa.Schema
    ) -> None:
        self._follower, self._step, self._schema = follower, step, schema
        self._always = buckets
        self._open: dict[int, tuple[Path, Writer]] = {}
        self._rows: dict[int, int] = {}
        self._stack = ExitStack()
        self.made: tuple[RowsFile, ...] = ()

    def __enter__(self) -> _Files:
        for bucket in self._always:
            self._writer(bucket)
        return self

    def write(self, bucket: int, batch: pa.RecordBatch) -> None:
        """Add rows to the file of a bucket."""
        self._writer(bucket).write(batch)
        self._rows[bucket] += batch.num_rows

    def _writer(self, bucket: int) -> Writer:
        if bucket not in self._open:
            settings: FilesSettings = self._follower.target.settings
            name = f"{self._step.id}-{bucket:04}.{settings.format}"
            file = self._follower.folder / _DATA / name
            form = FORMATS[settings.format]
            self._open[bucket] = file, self._stack.enter_context(form.writing(file, self._schema))
            self._rows[bucket] = 0
        return self._open[bucket][1]

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        files = [(bucket, file) for bucket, (file, _) in self._open.items()]
        if error[0] is not None:
            for _, file in files:
                file.unlink(missing_ok=True)
            return
        readers = readers_of(self._follower.folder)
        for _, file in files:
            share(file, readers)
            force(file)
        if files:
            force(self._follower.folder / _DATA)
        self.made = tuple(
            RowsFile(f"{_DATA}/{file.name}", self._rows[bucket], file.stat().st_size, bucket)
            for bucket, file in files
        )
