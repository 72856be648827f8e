"""A changelog in files: a folder of *.jsonl, one log in the byte order of the file names.

The writer appends lines to the last file, or begins a file with a later name; it never writes to an
earlier one again. Files may be deleted when a later one has been begun and they have been read.

An offset is `{"log": [file, byte, before], "mark": digest}`: `before` is the number of bytes of the
log in front of the file, counted from the oldest file there was when reading began. So
`before + byte` grows over the whole log, stays the same when old files are deleted, and betrays
lines that were slipped in.
The mark is a digest of what stands at the beginning of the file and before the byte: a file that
was replaced, or written anew, has another, also when it is longer than the old one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, NoReturn

from mview.clock import END_OF_TIME, SourceMs
from mview.config import ChangesSettings
from mview.connector import (
    ALL,
    NO_LIMIT,
    PLACE_HEADER,
    Align,
    Format,
    Message,
    Offsets,
    Progress,
    Split,
    unknown_offsets,
)
from mview.errors import AwayError, ConfigError, DataLostError, DecodeError, UserError
from mview_connectors.changelogs import lines
from mview_connectors.changelogs.times import last_position, lower_bound

#: The one partition of a folder.
_LOG = "log"

#: Name of the mark beside it.
_MARK = "mark"

#: Bytes of a usual line.
_LINE_BYTES = 200

#: How often an idle log is looked at: a listing of a few files takes some 20 microseconds.
_LOOK_S = 0.02

#: Lines looked at to find a table's last change.
_LOOK_BACK = 10_000

_SAFE = "what is published stays as it is; nothing after this place was taken"


class _At(NamedTuple):
    """A place in the log: file, byte in it, bytes of the log before it."""

    file: str
    byte: int
    before: int


def _place(offsets: Offsets) -> _At:
    match offsets.get(_LOG):
        case [str(file), int(byte), int(before)]:
            return _At(file, byte, before)
    raise unknown_offsets(offsets)


class _Size(NamedTuple):
    """A file and how many of its bytes belong to the log."""

    file: str
    size: int


class FilesChangelog:
    """Reads a folder of change files; see the module.

    Args:
        settings: the connection's `changes` section.
        format: decodes lines, to know their times.
        tables: not needed: a log holds all tables.
    """

    def __init__(self, settings: ChangesSettings, format: Format, tables: Sequence[str]) -> None:
        assert settings.path is not None
        self._folder: Path = settings.path
        self._format = format
        self._end: _At | None = None
        self._closed: dict[str, int] = {}
        self._watermark: SourceMs | None = None
        self._marked: _At | None = None

    # --- Changelog -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ConfigError unless the folder can be listed."""
        if not self._folder.is_dir():
            raise ConfigError(
                f"the folder of change files {self._folder} is not there",
                hint="correct 'path' under 'changes', or let the writer make the folder",
            )
        if not os.access(self._folder, os.R_OK | os.X_OK):
            raise ConfigError(f"the folder of change files {self._folder} cannot be read")
        others = [p.name for p in self._folder.iterdir() if p.suffix in (".json", ".ndjson")]
        if others and not self._list():
            raise ConfigError(
                f"{self._folder} has no *.jsonl file",
                got=", ".join(sorted(others)[:5]),
                hint="name change files *.jsonl: one JSON object per line",
            )

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The log's end now, after the bytes that `known` counts."""
        last = self._last()
        at = None if known is None else _place(known)
        if at is not None and at.file and last.file:
            later = [size for file, size in self._from(at) if _order(file) < _order(last.file)]
            last = last._replace(before=at.before + sum(later))
        return self._offsets(last)

    def has(self, name: str) -> bool:
        """Always: one log has all tables."""
        return True

    def first(self, offsets: Offsets) -> dict[str, int]:
        """The number of bytes before a place."""
        at = _place(offsets)
        return {_LOG: at.before + at.byte}

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """The position of the table's last change, if it is among the lines just before."""
        texts = islice(self._backwards(_place(before)), _LOOK_BACK)
        for text in texts:
            position = last_position(self._format, Message(_LOG, 0, None, text), table)
            if position is not None:
                return {_LOG: position}
        return {}

    def advance(
        self,
        start: Offsets,
        max_rows: int,
        wait_ms: int,
        max_bytes: int = NO_LIMIT,
        align: Align = ALL,
    ) -> Progress:
        """Up to `max_rows` complete lines of `max_bytes` on from `start`; one line in any case.

        Raises:
            DataLostError: a file vanished or shrank before it was read.
            UserError: something was written before the place that was already read.
        """
        at = _place(start)
        self._from(at)
        if start.get(_MARK, "") not in ("", self._mark(at)):
            self._lost(at.file, "it was replaced: its lines are not those that were read")
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            end, backlog = self._reach(at, max_rows, max_bytes)
            if align.until is not None and end != at:
                end = self._until(at, end, align.until)
            held = align.until is not None
            if end != at or held or self._end is not None or time.monotonic() >= deadline:
                return Progress(self._offsets(end), self._watermark_at(end), backlog)
            time.sleep(_LOOK_S)

    def finish(self) -> None:
        """Stop at what is there now; then every later question "is it read?" is yes.

        A last line without a line break counts when it can be decoded: else it is being written.
        """
        end = self._last()
        if end.file:
            path = self._folder / end.file
            size = path.stat().st_size
            if size > end.byte and self._decodes(path, end, size):
                end = end._replace(byte=size)
        self._end = end

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """One split per file piece."""
        first, last = _place(start), _place(end)
        if first == last:
            return []
        pieces, before = [], first.before
        for file, size in self._from(first):
            if _order(file) > _order(last.file):
                break
            byte = first.byte if file == first.file else 0
            stop = last.byte if file == last.file else size
            if stop > byte:
                lines_about = (stop - byte) // _LINE_BYTES
                pieces.append(Split(_LOG, [file, byte, before], [file, stop, before], lines_about))
            before += 0 if file == last.file else size
        if before != last.before:
            self._written_behind(f"up to {last.file}", last.before, before)
        return pieces

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The lines of file pieces, in order."""
        return chain.from_iterable(map(self._lines, splits))

    def _lines(self, split: Split) -> Iterator[Message]:
        start, end = _At(*split.start), _At(*split.end)
        try:
            for byte, text in lines.between(self._folder / start.file, start.byte, end.byte):
                place = ((PLACE_HEADER, f"{self._folder / start.file}, byte {byte}".encode()),)
                yield Message(_LOG, start.before + byte, None, text, place)
        except (EOFError, FileNotFoundError, IsADirectoryError):
            self._lost(start.file, f"it ended before byte {end.byte}, up to which it was planned")

    def caution(self) -> str | None:
        """None: files are read where they are."""
        return None

    def close(self) -> None:
        """Nothing to free: files are opened per read."""

    # --- the folder ------------------------------------------------------------------------------

    def _offsets(self, at: _At) -> Offsets:
        return {_LOG: list(at), _MARK: self._mark(at)}

    def _mark(self, at: _At) -> str:
        """What tells a file up to a place from another one of its name."""
        if not at.byte:
            return ""
        try:
            return lines.mark(self._folder / at.file, at.byte)
        except FileNotFoundError:
            self._lost(at.file, "it is gone")

    def _list(self) -> list[_Size]:
        try:
            with os.scandir(self._folder) as entries:
                listed = [e for e in entries if e.name.endswith(".jsonl")]
        except OSError as error:
            raise AwayError(
                "the folder of change files cannot be listed",
                where=str(self._folder),
                got=error.strerror,
                safe=_SAFE,
                hint="put it back, or mount its disk; then run the same command again",
            ) from error
        sizes = []
        for entry in listed:
            self._check_entry(entry)
            # Sizes after names: when a later file is listed, the writer has left the one before it.
            with suppress(FileNotFoundError):  # it was read, and is deleted just now
                sizes.append(_Size(entry.name, (self._folder / entry.name).stat().st_size))
        return sorted(sizes, key=lambda entry: _order(entry.file))

    def _check_entry(self, entry: os.DirEntry[str]) -> None:
        """Raise where the lines of a change file would be passed over, or its name not noted."""
        what = ""
        if not entry.is_file() and (entry.is_symlink() or os.path.lexists(entry.path)):
            what = "is no file that can be read: a folder, a pipe, or a link to nothing"
        elif os.fsencode(entry.name) != entry.name.encode("utf-8", "replace"):
            what = "has a name that is not UTF-8"
        if what:
            raise UserError(
                f"a change file {what}",
                where=entry.path,
                safe=_SAFE,
                hint="put the file there that is meant, or give what is there another name; then "
                "run the same command again",
            )

    def _last(self) -> _At:
        """The end of the last complete line."""
        files = self._list()
        if not files:
            return _At("", 0, 0)
        before = sum(size for _, size in files[:-1])
        name, size = files[-1]
        return _At(name, lines.complete(self._folder / name, size), before)

    def _from(self, at: _At) -> list[_Size]:
        """The files from `at` on, after checking that nothing before it was written or lost."""
        files = self._list()
        if not at.file:
            return files
        older = {file: size for file, size in files if _order(file) < _order(at.file)}
        rest = files[len(older) :]
        if not rest or rest[0].file != at.file:
            self._lost(at.file, "it is gone")
        if rest[0].size < at.byte:
            self._lost(at.file, f"it has {rest[0].size} bytes, {at.byte} were read before")
        if sum(older.values()) > at.before:
            self._written_behind(f"before {at.file}", at.before, sum(older.values()))
        for file, size in older.items():
            # Known only within one run; the sums above hold over restarts, until files are deleted.
            if self._closed.setdefault(file, size) != size:
                self._written_behind(file, self._closed[file], size)
        return rest

    def _reach(self, at: _At, max_rows: int, max_bytes: int) -> tuple[_At, int]:
        """The end of the next lines, and about how many lines stand after it."""
        files = self._until_end(self._from(at))
        if not files:
            return at, 0
        if not at.file:
            at = _At(files[0].file, 0, 0)
        start, taken, full = at.before + at.byte, 0, False
        for number, (file, size) in enumerate(files):
            byte = at.byte if number == 0 else 0
            left = 0 if full else max_rows - taken
            room = max_bytes - (at.before + byte - start)
            try:
                end, rows, full = lines.reach(self._folder / file, byte, size, left, room)
            except FileNotFoundError:
                self._lost(file, "it is gone")
            closed = number < len(files) - 1 or self._end is not None
            if closed and end < size and not full:
                # The writer has left this file: its last line needs no line break.
                end, rows = size, rows + 1
            at, taken = _At(file, end, at.before), taken + rows
            if end < size or number == len(files) - 1:
                break
            self._closed[file] = size
            at = _At(files[number + 1].file, 0, at.before + size)
        rest = sum(size for file, size in files if _order(file) >= _order(at.file)) - at.byte
        read = at.before + at.byte - start
        return at, rest * taken // read if read else 0

    def _until(self, at: _At, end: _At, until: SourceMs) -> _At:
        """The first line between two places that is newer; else the end."""
        for split in self.splits({_LOG: at}, {_LOG: end}):
            file, first, before = split.start
            for byte, text in lines.between(self._folder / file, first, split.end[1]):
                time_ms = lower_bound(self._format, Message(_LOG, before + byte, None, text))
                if time_ms is not None and time_ms > until:
                    return _At(file, byte, before)
        return end

    def _until_end(self, files: list[_Size]) -> list[_Size]:
        if self._end is None:
            return files
        last = self._end
        known = [entry for entry in files if _order(entry.file) <= _order(last.file)]
        return [_Size(f, last.byte if f == last.file else size) for f, size in known]

    # --- times -----------------------------------------------------------------------------------

    def _watermark_at(self, end: _At) -> SourceMs | None:
        """The newest time that the log up to `end` vouches for; one log is ordered by commit."""
        if self._end is not None and (end.before, end.byte) >= (self._end.before, self._end.byte):
            return END_OF_TIME
        if self._marked is not None and (end.before, end.byte) < (
            self._marked.before,
            self._marked.byte,
        ):
            self._watermark = None  # the lines up to there were not taken
        if end != self._marked:
            newest = self._newest(end)
            if newest is not None:
                self._watermark = max(newest, self._watermark or newest)
            self._marked = end
        return self._watermark

    def _newest(self, end: _At) -> SourceMs | None:
        """The time of the last line before `end` that has one."""
        for text in self._backwards(end):
            bound = lower_bound(self._format, Message(_LOG, 0, None, text))
            if bound is not None:
                return bound
        return None

    def _backwards(self, end: _At) -> Iterator[bytes]:
        """The lines before `end`, last first, of its file and the one before that."""
        earlier = [entry for entry in self._list() if _order(entry.file) < _order(end.file)]
        for file, byte in [(end.file, end.byte), *earlier[:-2:-1]]:
            if byte:
                with suppress(FileNotFoundError):  # it was read, and is deleted just now
                    yield from lines.backwards(self._folder / file, byte)

    def _decodes(self, path: Path, end: _At, size: int) -> bool:
        text = b"".join(text for _, text in lines.between(path, end.byte, size))
        try:
            list(self._format.decode(Message(_LOG, end.before + end.byte, None, text)))
        except DecodeError:
            return False
        return True

    # --- errors ----------------------------------------------------------------------------------

    def _lost(self, file: str, how: str) -> NoReturn:
        raise DataLostError(
            f"change file {file} was not read to its end, and {how}",
            where=str(self._folder / file),
            safe=_SAFE,
            hint="put the file back; or `mview drop` all tables of the connection and run again: "
            "they are loaded anew",
        )

    def _written_behind(self, where: str, expected: int, size: int) -> NoReturn:
        raise UserError(
            "change files changed behind the place that was already read",
            where=f"{self._folder}, {where}",
            got=f"{size} bytes",
            allowed=f"{expected} bytes: lines are appended to the last file, or to a later new one",
            safe=_SAFE,
            hint="move those lines into a new file with a later name, and restore the others",
        )


def _order(file: str) -> bytes:
    return os.fsencode(file)
