"""One tree of errors, split by what the reader must do: fix the input, retry, or restore.

Every message says what failed, where, whether the data is safe, and the next command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of the `mview` command."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    DATA_LOST = 3
    ALREADY_RUNNING = 4
    FRESHNESS_MISSED = 5
    INTERRUPTED = 130


class MviewError(Exception):
    """Base of all errors that mview raises on purpose.

    Args:
        what: what failed, in one sentence.
        where: place of the failure (file:line:column, topic/partition/offset, table.column).
        got: the value that was found.
        allowed: the values that are accepted.
        safe: what happened to the data; None where no data is involved.
        hint: the next command or edit.
    """

    exit_code: ExitCode = ExitCode.CHECK_FAILED

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: object = None,
        allowed: str | None = None,
        safe: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what, self.where, self.got = what, where, got
        self.allowed, self.safe, self.hint = allowed, safe, hint
        super().__init__(self.render())

    def render(self) -> str:
        """The message as a block of short lines, most important first."""
        lines = [self.what]
        if subject := subject_of(self):
            lines.append(f"  in:      {subject}")
        if self.where:
            lines.append(f"  where:   {self.where}")
        if self.got is not None:
            lines.append(f"  got:     {self.got}")
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.safe:
            lines.append(f"  data:    {self.safe}")
        if self.hint:
            lines.append(f"  next:    {self.hint}")
        return "\n".join(lines)

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


def subject_of(error: BaseException) -> str | None:
    """What `concerning` noted."""
    return getattr(error, _SUBJECT, None)


def unexpected(error: BaseException) -> MviewError:
    """An error that nobody foresaw, as a block."""
    message = str(error).strip().split("\n")[0]
    block = MviewError(
        f"unexpected {type(error).__name__}: {message}",
        safe="every published epoch stays; the same command continues from the last one",
        hint="run again with --debug for the traceback, and report it",
    )
    setattr(block, _SUBJECT, subject_of(error))
    return block


class UserError(MviewError):
    """The input is wrong: SQL, table, column, row content. Fix it and run again."""


class ConfigError(UserError):
    """The configuration or command line is wrong."""

    exit_code = ExitCode.USAGE


class DecodeError(UserError):
    """A message of the changelog cannot be read without guessing; the pipeline halts before it."""


class RetryableError(MviewError):
    """The outside failed (database down, broker away); the same command may succeed later."""


class AlreadyRunningError(MviewError):
    """Another runner holds the lease of this store."""

    exit_code = ExitCode.ALREADY_RUNNING


class FencedError(MviewError):
    """Another runner took the lease over; this one must stop without writing."""

    exit_code = ExitCode.ALREADY_RUNNING


class DataLostError(MviewError):
    """Changes that were not read yet are gone at the source (retention, purged log)."""

    exit_code = ExitCode.DATA_LOST


class CorruptionError(MviewError):
    """What is on disk breaks an invariant; restore from the named state."""

    exit_code = ExitCode.DATA_LOST


class FreshnessError(MviewError):
    """A view is older than its declared freshness."""

    exit_code = ExitCode.FRESHNESS_MISSED
