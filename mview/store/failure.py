"""Why the last run ended, kept in the store until an epoch is published after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial

from mview.clock import Clock, WallMs
from mview.errors import PARTS, CorruptionError, MistakesError, MviewError, known_error, subject_of
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.numbered import numbered
from mview.files.records import record
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.identity import STORE_MARK
from mview.store.layout import Store


@dataclass(frozen=True)
class Failure:
    """An error that ended a run.

    Attributes:
        at_ms: wall time.
        epoch: the newest epoch at that time; 0: none.
        subject: the table or view that was worked on; None: none in particular.
        code: of the error.
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
    code: str
    what: str
    where: str | None = None
    got: str | None = None
    allowed: str | None = None
    safe: str | None = None
    hint: str | None = None

    @property
    def error(self) -> MviewError:
        """The error again, to print it."""
        return MviewError(**{name: getattr(self, name) for name in PARTS})


def last_failure(store: Store, epoch: int) -> Failure | None:
    """The error that ended the last run; None once an epoch after it is published.

    Args:
        epoch: its newest epoch; 0: none.
    """
    kept = []
    for file in store.failures.glob("*.json"):
        # It only tells of the past: one that is damaged or just deleted hides nothing else.
        with suppress(CorruptionError):
            kept.append(read_checked(file, partial(record, Failure), "", ""))
    last = max(kept, key=lambda failure: failure.at_ms, default=None)
    return last if last is not None and last.epoch >= epoch else None


@contextmanager
def failure_kept(store: Store, token: int, clock: Clock, mask: Mask) -> Iterator[None]:
    """Keep what ends the block by an error; an end without one clears what was kept.

    Each runner has its own file: one that was replaced says so beside what its successor says.

    Args:
        token: of the runner's lease.
    """
    file = numbered(store.failures, token)
    try:
        yield
    except Exception as error:
        # What went wrong first is what counts, also where it cannot be written down (a full disk).
        with suppress(OSError):
            failure = asdict(_failure(store, clock, error))
            masked = {k: mask(v) if isinstance(v, str) else v for k, v in failure.items()}
            # Where the store was taken away, this would stand in the way of putting it back.
            if (store.root / STORE_MARK).exists():
                put(file, checked(masked))
        raise
    for older in store.failures.glob("*.json"):
        if older.name <= file.name:
            older.unlink(missing_ok=True)


def _failure(store: Store, clock: Clock, error: Exception) -> Failure:
    known = known_error(error)
    epochs = ManifestLog(store.manifests).epochs()
    parts = {**known.parts, "got": None if known.got is None else str(known.got)}
    if isinstance(known, MistakesError):
        parts["what"] = known.render()
    return Failure(clock.now(), epochs[-1] if epochs else 0, subject_of(error), **parts)
