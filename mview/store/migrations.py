"""Stores of older versions become stores of this one, a step per format.

A step may be killed anywhere: the mark says the new format last, and the same step is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mview.clock import Clock
from mview.codes import code_of
from mview.errors import CorruptionError, MviewError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.store.history import ManifestLog
from mview.store.identity import FORMAT, check_format, format_of, put_format
from mview.store.layout import Store
from mview.store.lease import Lease


@dataclass(frozen=True)
class Migration:
    """A step from one format to the next.

    Attributes:
        to: the format after it.
        what: what it changes, for people.
        apply: does it; again, if it has been done already.
    """

    to: int
    what: str
    apply: Callable[[Store], None]


def _failures_with_codes(store: Store) -> None:
    """The errors that ended runs have codes."""
    for file in store.failures.glob("*.json"):
        with suppress(CorruptionError):  # it only tells of the past
            body = read_checked(file, dict, "", "")
            put(file, checked({"code": code_of(MviewError.kind, ""), **body}))


#: In their order, each to the next number.
MIGRATIONS: Sequence[Migration] = (
    Migration(2, "the errors that ended runs have codes", _failures_with_codes),
)


def migrate(store: Store, clock: Clock) -> list[Migration]:
    """Bring a store to the format of this version.

    Args:
        store: one of any format.
        clock: wall time.

    Returns:
        What was done; empty: it is of this format, or there is no store.

    Raises:
        ConfigError: a newer version has made it.
        AlreadyRunningError: somebody runs on it.
        CorruptionError: its mark cannot be read.
    """
    kept = format_of(store.root)
    if kept is None or kept == FORMAT:
        return []
    if kept > FORMAT:
        check_format(store.root)
    with Lease(store.lease, clock, above=ManifestLog(store.manifests).token()) as lease:
        steps = [step for step in MIGRATIONS if step.to > (format_of(store.root) or FORMAT)]
        for step in steps:
            step.apply(store)
            lease.check()
            put_format(store.root, step.to)
        return steps
