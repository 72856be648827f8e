"""Look-ups by key, or by a range, in base files that are not held in the driver's memory.

A Parquet file must be decoded wherever a key may be in it, which for keys from all over a table is
everywhere. So an executor that looks into a file first makes a copy of it on its local disk: the
rows as plain Arrow, mapped into memory, and the sorted hashes of the columns asked for. From then
on a key costs a few pages. A base file never changes, so a copy is right as long as it is there;
it goes when its file has gone, and with the executor: Spark deletes the folder.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import sys
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mview.delta.parquet import read_parquet
from mview.execute.scan import scan_files
from mview.files.modes import PRIVATE
from mview.rows.equality import same_rows
from mview.rows.hashing import Hashes, hash_rows
from mview.rows.lookup_keys import typed_keys
from mview.rows.ranges import Range
from mview.rows.sorted_index import SortedIndex

#: Copies that one worker holds open; each has a file descriptor.
_MOST_OPEN = 256

_ROWS, _SOURCE = "rows.arrow", "source"


def look_up_files(
    files: Sequence[str], schema: pa.Schema, table: pa.Schema, keys: pa.Table, null_safe: bool
) -> pa.Table:
    """The rows of Parquet files whose key columns are among `keys`.

    Args:
        files: absolute paths of files that never change.
        schema: columns and types to return.
        table: all columns of the files.
        keys: distinct key rows, columns named as in the files.
        null_safe: NULL matches NULL.
    """
    typed = typed_keys(table, keys.column_names, keys, null_safe)
    if typed is None:  # values that are not compared by hash
        return scan_files(files, schema, keys, null_safe)
    needles = Needles.of(typed)
    parts = _rows_of(
        files,
        table,
        lambda copy: copy.look_up(needles, schema.names),
        lambda file: scan_files([file], schema, keys, null_safe),
    )
    return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


def look_up_range(
    files: Sequence[str], schema: pa.Schema, table: pa.Schema, wanted: Range, most: int
) -> pa.Table:
    """The rows of Parquet files with a column in a range.

    Args:
        files: absolute paths of files that never change.
        schema: columns and types to return, that of the range among them.
        table: all columns of the files.
        wanted: the range.
        most: of more rows, only so many come.
    """
    parts = _rows_of(
        files,
        table,
        lambda copy: copy.within(wanted, schema.names, most),
        lambda file: wanted.rows_of(scan_files([file], schema, None, False)),
    )
    rows = schema.empty_table()
    for part in parts:
        rows = pa.concat_tables([rows, part.cast(schema)]).slice(0, most)
        if rows.num_rows == most:
            break
    return rows


def _rows_of(
    files: Sequence[str],
    table: pa.Schema,
    look: Callable[[FileCopy], pa.Table],
    scan: Callable[[str], pa.Table],
) -> Iterator[pa.Table]:
    """What is found in each file: in its copy, or in itself where there is no room for one."""
    for file in files:
        try:
            copy = _opened(file, table)
            rows = look(copy)
            copy.let_go()
        except OSError as error:
            print(f"no local copy of {file}, it is read whole: {error}", file=sys.stderr)
            rows = scan(file)
        if rows.num_rows:
            yield rows


def make_copies(files: Sequence[str], table: pa.Schema, columns: Sequence[tuple[str, ...]]) -> None:
    """Make the copies and their indexes before they are asked for, as far as the disk allows."""
    for file in files:
        try:
            copy = _opened(file, table)
            for names in columns:
                copy.index(tuple(name for name in table.names if name in names))
            copy.let_go()
        except OSError:  # the look-up says so
            return


class Needles:
    """Typed keys with their hashes in order."""

    def __init__(self, keys: pa.Table, hashes: Hashes) -> None:
        self.keys, self.hashes = keys, hashes
        self.names = tuple(keys.column_names)

    @classmethod
    def of(cls, keys: pa.Table) -> Needles:
        """The needles of some keys."""
        hashes = hash_rows(keys.columns)
        order = np.argsort(hashes)
        return cls(keys.take(pa.array(order)).combine_chunks(), hashes[order])


class FileCopy:
    """A file's rows on the local disk, mapped into memory, and the indexes over them.

    Args:
        folder: where the copy is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with (folder / _ROWS).open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._rows = pa.ipc.open_file(pa.py_buffer(mapping)).read_all()
        self._mappings = [mapping]
        self._indexes: dict[tuple[str, ...], SortedIndex] = {}

    def look_up(self, needles: Needles, select: Sequence[str]) -> pa.Table:
        """The rows that equal a needle, each once."""
        index = self.index(needles.names)
        if not len(index.hashes):
            return self._rows.select(select)
        # Files cover ranges of the primary key: most needles are below or above.
        low = np.searchsorted(needles.hashes, index.hashes[0], side="left")
        high = np.searchsorted(needles.hashes, index.hashes[-1], side="right")
        numbers, rows = index.find(needles.hashes[low:high])
        if len(rows):
            there = self._rows.select(needles.names).take(pa.array(rows))
            wanted = needles.keys.take(pa.array(numbers + low))
            rows = np.unique(rows[same_rows(there.columns, wanted.columns)])
        return self._rows.select(select).take(pa.array(rows))

    def within(self, wanted: Range, select: Sequence[str], most: int) -> pa.Table:
        """Rows with a column in a range, at most so many; rows with NULL there may come, too."""
        rows = self.index((wanted.column,)).between(*wanted.hashes)[:most]
        return self._rows.select(select).take(pa.array(rows))

    def let_go(self) -> None:
        """Give the pages that were looked at back: they stay in the system's cache.

        Mapped, they count as memory of every worker that has the file, more with each look-up.
        """
        for mapping in self._mappings:
            mapping.madvise(mmap.MADV_DONTNEED)

    def index(self, names: tuple[str, ...]) -> SortedIndex:
        """The index over some columns, in the order of the table; made on first use."""
        known = self._indexes.get(names)
        if known is None:
            known = self._indexes[names] = self._read(names) or self._build(names)
        return known

    def _read(self, names: tuple[str, ...]) -> SortedIndex | None:
        places = self._file(names, "rows")
        if not places.exists():
            return None
        rows, hashes = self._mapped(places), self._mapped(self._file(names, "hashes"))
        return SortedIndex(hashes, rows if len(rows) else None)

    def _mapped(self, file: Path) -> NDArray[np.int64]:
        values = np.load(file, mmap_mode="r")
        self._mappings.append(values.base)
        return np.asarray(values)

    def _build(self, names: tuple[str, ...]) -> SortedIndex:
        index = SortedIndex.build(hash_rows(self._rows.select(names).columns))
        rows = np.empty(0, np.int32) if index.rows is None else index.rows
        # The rows last: where they are, the hashes are.
        _write(self._file(names, "hashes"), lambda file: np.save(file, index.hashes))
        _write(self._file(names, "rows"), lambda file: np.save(file, rows))
        mapped = self._read(names)
        assert mapped is not None
        return mapped

    def _file(self, names: tuple[str, ...], what: str) -> Path:
        numbers = "-".join(str(self._rows.schema.get_field_index(name)) for name in names)
        return self._folder / f"{numbers}-{what}.npy"


def _write(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file as a whole or not at all; another task may write the same one."""
    fresh = file.with_name(f"{uuid.uuid4().hex}-{file.name}")
    try:
        write(fresh)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def _opened(file: str, table: pa.Schema) -> FileCopy:
    """The copy of a file, made if it is not there yet."""
    # A store that was dropped and made again may have another file of that name.
    about = Path(file).stat()
    name = f"{zlib.crc32(file.encode()):08x}-{about.st_ino}-{about.st_size}-{about.st_mtime_ns}"
    folder = _root() / name
    if not (folder / _SOURCE).exists():
        _forget_gone_files()
        _copy(file, table, folder)
    return _open(folder)


@lru_cache(_MOST_OPEN)
def _open(folder: Path) -> FileCopy:
    return FileCopy(folder)


def _copy(file: str, table: pa.Schema, folder: Path) -> None:
    rows = read_parquet(Path(file), table).combine_chunks()
    folder.mkdir(mode=0o700, exist_ok=True)

    def write(fresh: Path) -> None:
        with pa.OSFile(str(fresh), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)

    _write(folder / _ROWS, write)
    _write(folder / _SOURCE, lambda fresh: fresh.write_text(file, encoding="utf-8"))


def _forget_gone_files() -> None:
    """Delete the copies of files that compaction has replaced."""
    for source in _root().glob(f"*/{_SOURCE}"):
        if not Path(source.read_text(encoding="utf-8")).exists():
            shutil.rmtree(source.parent, ignore_errors=True)


def _root() -> Path:
    """A folder that all workers of an executor share and Spark deletes with it."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    root = Path(folders[0] or tempfile.gettempdir()) / "mview-copies"
    with suppress(FileExistsError):
        root.mkdir(mode=0o700, parents=True)
    about = root.lstat()
    if about.st_uid != os.getuid() or about.st_mode & PRIVATE or not stat.S_ISDIR(about.st_mode):
        raise PermissionError(errno.EACCES, "others may read or write what is kept here", str(root))
    return root
