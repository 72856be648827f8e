"""Why the last run ended, kept in the store until an epoch is published after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from mview.clock import Clock, WallMs
from mview.config import Mask
from mview.errors import AlreadyRunningError, FencedError, MviewError, subject_of, unexpected
from mview.lake.durable import force
from mview.store.history import ManifestLog
from mview.store.layout import Store


@dataclass(frozen=True)
class Failure:
    """An error that ended a run.

    Attributes:
        at_ms: wall time.
        epoch: the newest epoch at that time; 0: none.
        subject: the table or view that was worked on; None: none in particular.
        what: what failed; this and the next ones as in `MviewError`.
        where: the place.
        got: the value that was found.
        allowed: the values that are accepted.
        safe: what happened to the data.
        hint: the next command or edit.
    """

    at_ms: WallMs
    epoch: int
    subject: str | None
    what: str
    where: str | None = None
    got: str | None = None
    allowed: str | None = None
    safe: str | None = None
    hint: str | None = None

    @property
    def error(self) -> MviewError:
        """The error again, to print it."""
        return MviewError(
            self.what,
            where=self.where,
            got=self.got,
            allowed=self.allowed,
            safe=self.safe,
            hint=self.hint,
        )


def last_failure(store: Store, epoch: int) -> Failure | None:
    """The error that ended the last run; None once an epoch after it is published.

    Args:
        store: the store.
        epoch: its newest epoch; 0: none.
    """
    try:
        found = Failure(**orjson.loads(store.failure.read_bytes()))
    except FileNotFoundError:
        return None
    return found if found.epoch >= epoch else None


@contextmanager
def failure_kept(store: Store, clock: Clock, mask: Mask) -> Iterator[None]:
    """Keep what ends the block by an error; an end without one clears what was kept.

    The caller holds the lease. Losing it is no failure of the store: another runner has it.
    """
    try:
        yield
    except (AlreadyRunningError, FencedError):
        raise
    except Exception as error:
        # What went wrong first is what counts, also where it cannot be written down (a full disk).
        with suppress(OSError):
            _write(store.failure, _failure(store, clock, error), mask)
        raise
    store.failure.unlink(missing_ok=True)


def _failure(store: Store, clock: Clock, error: Exception) -> Failure:
    known = error if isinstance(error, MviewError) else unexpected(error)
    epochs = ManifestLog(store.manifests).epochs()
    return Failure(
        at_ms=clock.now(),
        epoch=epochs[-1] if epochs else 0,
        subject=subject_of(error),
        what=known.what,
        where=known.where,
        got=None if known.got is None else str(known.got),
        allowed=known.allowed,
        safe=known.safe,
        hint=known.hint,
    )


def _write(file: Path, failure: Failure, mask: Mask) -> None:
    masked = {k: mask(v) if isinstance(v, str) else v for k, v in asdict(failure).items()}
    staged = file.with_name(f"{file.name}.tmp")
    staged.write_bytes(orjson.dumps(masked))
    force(staged)
    staged.replace(file)
    force(file.parent)
