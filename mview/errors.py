"""One tree of errors, split by what the reader must do: fix the input, retry, or restore.

Every message says what failed, where, whether the data is safe, and the next command.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import math
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from enum import IntEnum
from typing import Any, ClassVar

from mview.codes import code_of


class ExitCode(IntEnum):
    """Process exit codes of the `mview` command."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    DATA_LOST = 3
    ALREADY_RUNNING = 4
    FRESHNESS_MISSED = 5
    REBUILDS = 6
    INTERRUPTED = 130


#: In front of the second and later lines of a field.
_MARGIN = " " * 11

#: Where a line of the text before the fields would look like a field.
_FORGED = re.compile(r"(?<=\n)(?= {0,2}(?:in|where|got|allowed|data|next|code):)")

#: Characters that move the cursor, hide text or turn its direction: all controls but the line
#: break, line separators, and marks of direction.
_UNPRINTABLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """A text that may be shown on a terminal, whatever value it quotes; line breaks stay."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """A name or value from outside as a part of a line: it cannot begin another one."""
    return printable(text).replace("\n", "\\n")


def typed(*names: object) -> str:
    """Names as words of a command, as they are typed."""
    return shlex.join(one_line(str(name)) for name in names)


def counted(number: int, noun: str) -> str:
    """So many of something, for people: `1 row`, `1,200 epochs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def literal(value: object) -> str:
    """A value of a row as SQL writes it, for messages.

    >>> print(literal(None), literal("it's"), literal(Decimal("1E+3")), literal([True, b"\\x0a"]))
    NULL 'it''s' 1000 array(TRUE, X'0A')
    >>> literal(dt.date(2026, 1, 31))
    "DATE '2026-01-31'"
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"double('{value}')"
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
        return f"{kind} '{value}'"
    if isinstance(value, dt.date):
        return f"DATE '{value}'"
    if isinstance(value, list | tuple):
        return f"array({', '.join(map(literal, value))})"
    return repr(value)


def row_text(row: Mapping[str, Any]) -> str:
    """A row, or its key, in one line, for messages.

    >>> row_text({"id": 7, "paid": Decimal("1.50"), "day": None})
    'id=7, paid=1.50, day=NULL'
    """
    return one_line(", ".join(f"{name}={literal(value)}" for name, value in row.items()))


def rows_text(rows: Iterable[Mapping[str, Any]], size: int = 600) -> str:
    """Some rows, for `got`."""
    text = "; ".join(map(row_text, rows))
    return text if len(text) <= size else text[: size - 1] + "…"


def shown(value: object, size: int = 200) -> str:
    """A value of a message as a short text in one line; of any type, nested however deep.

    >>> print(shown("it"), shown(None), shown([Decimal("1.50"), {"a": True}]))
    'it' null [1.50, {"a": true}]
    """
    try:
        text = repr(value) if isinstance(value, str) else _json(value)
    except (RecursionError, ValueError):  # the latter: an integer of thousands of digits
        text = f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= size else text[: size - 3] + "..."


def _json(value: object) -> str:
    """A value as JSON writes it, which may hold what JSON has not."""
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_json, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_json(name)}: {_json(cell)}' for name, cell in value.items())}}}"
    return str(value) if isinstance(value, Decimal) else repr(value)


#: Files of which IPython says that a cell is in them.
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|^<ipython-input-")

#: What IPython makes of a line with a magic: its words say nothing of the place.
_MAGIC = "get_ipython()."

#: What an error is made with.
PARTS = ("what", "where", "got", "allowed", "safe", "hint", "code")


class MviewError(Exception):
    """Base of all errors that mview raises on purpose.

    Args:
        what: what failed, in one sentence.
        where: place of the failure (file:line:column, topic/partition/offset, table.column).
        got: the value that was found.
        allowed: the values that are accepted.
        safe: what happened to the data; None where no data is involved.
        hint: the next command or edit.
        code: see `mview.codes`; only for one that is made of another error.
    """

    exit_code: ExitCode = ExitCode.CHECK_FAILED
    #: The first two digits of the code.
    kind: ClassVar[int] = 90

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: object = None,
        allowed: str | None = None,
        safe: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        self.what, self.where, self.got = what, where, got
        self.allowed, self.safe, self.hint = allowed, safe, hint
        self.code = code or code_of(self.kind, self._maker())
        super().__init__(self.render())

    def _maker(self) -> str:
        """The module that makes it: of the first caller that is no constructor of this error."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_locals.get("self") is self:
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", ""))

    @property
    def parts(self) -> dict[str, Any]:
        """What it was made with, by name: another error may be made of some of it."""
        return {name: getattr(self, name) for name in PARTS}

    def render(self) -> str:
        """The message as a block of short lines, most important first."""
        fields = {
            "in": subject_of(self),
            "where": self.where,
            "got": self.got,
            "allowed": self.allowed,
            "data": self.safe,
            "next": self.hint,
            "code": self.code,
        }
        lines = [_FORGED.sub(_MARGIN, printable(self.what))]
        for label, value in fields.items():
            if value is not None and value != "":
                text = printable(str(value)).replace("\n" + _MARGIN, "\n")
                lines.append(f"  {label + ':':<9}" + text.replace("\n", "\n" + _MARGIN))
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in the place of a traceback: the block, and the line of the cell."""
        lines = f"Error: {self.render()}".split("\n")
        for frame in reversed(traceback.extract_tb(self.__traceback__)):
            if _CELL.search(frame.filename):
                if not frame.line or frame.line.startswith(_MAGIC):
                    break
                return [*lines, f"  {'cell:':<9}line {frame.lineno}: {printable(frame.line)}"]
        return lines

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark Python workers): keep the parts, not only the text.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(cls: type[MviewError], state: dict[str, object]) -> MviewError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, error.render())
    return error


_SUBJECT = "mview_subject"


@contextmanager
def concerning(subject: str) -> Iterator[None]:
    """Note on an error which table or view was worked on; the innermost note counts."""
    try:
        yield
    except Exception as error:
        if subject_of(error) is None:
            setattr(error, _SUBJECT, subject)
        raise


def without_secrets_in(error: MviewError, mask: Callable[[str], str]) -> MviewError:
    """The error itself, when secrets were taken out of all that it says."""
    for each in error.errors if isinstance(error, MistakesError) else ():
        without_secrets_in(each, mask)
    for name, part in error.parts.items():
        if part is not None and not isinstance(part, bool | int | float):
            setattr(error, name, mask(str(part)))
    if isinstance(error, DecodeError) and error.mends is not None:
        error.mends = mask(error.mends)
    error.args = (error.render(),)
    return error


def about(error: MviewError, subject: str) -> MviewError:
    """The error, with what was worked on; see `concerning`."""
    setattr(error, _SUBJECT, subject)
    return error


def subject_of(error: BaseException) -> str | None:
    """What `concerning` noted."""
    return getattr(error, _SUBJECT, None)


def known_error(error: BaseException) -> MviewError:
    """The error; one that nobody foresaw as a block."""
    if isinstance(error, MviewError):
        return error
    block: MviewError | None = of_the_system(error)
    if block is None:
        message = str(error).strip().split("\n")[0]
        block = MviewError(
            f"unexpected {type(error).__name__}: {message}",
            safe="every published epoch stays; the same command continues from the last one",
            hint="run again with --debug for the traceback, and report it",
        )
    setattr(block, _SUBJECT, subject_of(error))
    return block


#: What a file system refuses, by what people can do about it; other processes give the text alone.
_REFUSALS: dict[tuple[int, ...], tuple[str, str]] = {
    (errno.ENOSPC,): ("the disk is full", "make room on it"),
    (errno.EDQUOT,): ("the quota of the disk is used up", "make room, or have it raised"),
    (errno.EROFS,): ("the file system is read-only", "mount it writable, or name another folder"),
    (errno.EACCES, errno.EPERM): (
        "the permission to read or write a file is missing",
        "give it to the user that runs mview, or name another folder",
    ),
    (errno.EIO,): ("the disk fails", "look at the disk and at the system's log"),
    (errno.ENAMETOOLONG,): ("the name of a file is too long", "name a shorter one"),
    (errno.EMFILE, errno.ENFILE): ("too many files are open", "raise the limit: ulimit -n"),
    (errno.EISDIR,): ("a folder is in the place of a file", "move it away"),
    (errno.ENOTDIR,): (
        "a file is in the place of a folder",
        "see which part of the path is a file, and move it away",
    ),
}


#: What to do, in the end, about what is refused here.
AGAIN = "run the same command again"

#: How Python and Java say which file it was, around the words of the system.
_PLACES = ("{}: '(/[^']+)'", r"(/[^\s:]+) \({}\)")


def of_the_system(
    error: BaseException | None, where: str | None = None, then: str = AGAIN
) -> RetryableError | None:
    """An error of the file system, or one that it caused, as a block; None: it is none.

    Args:
        error: what was raised, here or in another process.
        where: the place, unless the error names one.
        then: what to do when the machine has what it refused.
    """
    seen: set[int] = set()  # whoever raises an error from one that it caused makes a ring
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for numbers, (what, hint) in _REFUSALS.items():
            line = _line_with([os.strerror(number) for number in numbers], str(error))
            if (isinstance(error, OSError) and error.errno in numbers) or line is not None:
                # Of two names the second is the one that a file was to get.
                names = (getattr(error, name, None) for name in ("filename2", "filename"))
                place = next(filter(None, names), None) or _place_in(line)
                return RetryableError(
                    what,
                    where=where if place is None else str(place),
                    got=(line or str(error).strip())[:300],
                    safe="every published epoch stays; the same command continues from the last "
                    "one",
                    hint=f"{hint}; then {then}",
                )
        error = error.__cause__ or error.__context__
    return None


def _line_with(words: Sequence[str], text: str) -> str | None:
    lines = text.splitlines()
    return next((line.strip() for line in lines if any(word in line for word in words)), None)


def _place_in(line: str | None) -> str | None:
    """The file that a message of the system names."""
    words = [os.strerror(number) for numbers in _REFUSALS for number in numbers]
    for form in (form.format(re.escape(word)) for word in words for form in _PLACES):
        if line is not None and (match := re.search(form, line)):
            return match[1]
    return None


class UserError(MviewError):
    """The input is wrong: SQL, table, column, row content. Fix it and run again.

    Attributes:
        columns: of a table that may be read without them.
    """

    kind = 10
    columns: tuple[str, ...] = ()


class MistakesError(UserError):
    """Several errors of the input, told at once.

    Args:
        errors: two or more.
        kind: what they are.
    """

    def __init__(self, errors: Sequence[UserError], kind: str) -> None:
        self.errors = tuple(errors)
        super().__init__(f"{len(self.errors)} {kind}", code=self.errors[0].code)
        self.exit_code = max(error.exit_code for error in self.errors)

    def render(self) -> str:
        """One block after another."""
        return "\n\n".join([self.what + ":", *(error.render() for error in self.errors)])


def ask_all(questions: Iterable[Callable[[], object]]) -> None:
    """Ask all of them, whatever one of them raises.

    Raises:
        UserError: all that they have raised, as one.
    """
    errors: list[UserError] = []
    for question in questions:
        try:
            question()
        except UserError as error:
            errors += error.errors if isinstance(error, MistakesError) else [error]
    if errors:
        raise several(errors)


def several(errors: Sequence[UserError], kind: str = "mistakes") -> UserError:
    """One error for one or more."""
    return errors[0] if len(errors) == 1 else MistakesError(errors, kind)


class OtherLogError(UserError):
    """The changes of a connection come from another log: its tables must be loaded anew."""

    kind = 14


class NoKeyError(UserError):
    """A table has no key: nobody can tell which row a change belongs to.

    Attributes:
        columns: those that may be declared to be one, as they are NOT NULL.
    """

    kind = 15


class DataError(UserError):
    """The query of a view fails on its data, as its batch query would: an overflow, say."""

    kind = 11


class TargetError(UserError):
    """The target of a view refuses: somebody else wrote to it, or it is damaged."""

    kind = 12


class ElsewhereError(TargetError):
    """The target does not stand where the step begins: nothing of it is written, now or later."""

    kind = 16


class ConfigError(UserError):
    """The configuration or command line is wrong."""

    kind = 20
    exit_code = ExitCode.USAGE


class DecodeError(UserError):
    """A message of the changelog cannot be read without guessing; the pipeline halts before it.

    Attributes:
        table: where the message says of which table it is, its schema or database, and its name.
        mends: what is to be mended, where the hint goes on with what gets past the message.
    """

    kind = 13
    table: tuple[str | None, str] | None = None
    mends: str | None = None


class RetryableError(MviewError):
    """The outside failed (database down, broker away); the same command may succeed later."""

    kind = 30


class AwayError(RetryableError):
    """A server that a source needs does not answer: it is waited for, within bounds."""

    kind = 31


class AlreadyRunningError(MviewError):
    """Another runner holds the lease of this store."""

    kind = 40
    exit_code = ExitCode.ALREADY_RUNNING


class FencedError(MviewError):
    """Another runner took the lease over; this one must stop without writing."""

    kind = 41
    exit_code = ExitCode.ALREADY_RUNNING


class LostStoreError(FencedError):
    """The store is not where it was, or is another one; this runner must stop without writing."""

    kind = 42
    exit_code = ExitCode.CHECK_FAILED


class DataLostError(MviewError):
    """Changes that were not read yet are gone at the source (retention, purged log)."""

    kind = 50
    exit_code = ExitCode.DATA_LOST


class CorruptionError(MviewError):
    """What is on disk breaks an invariant; restore from the named state."""

    kind = 51
    exit_code = ExitCode.DATA_LOST


class FreshnessError(MviewError):
    """A view is older than its declared freshness."""

    kind = 60
    exit_code = ExitCode.FRESHNESS_MISSED
