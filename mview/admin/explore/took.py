"""What epochs took, kept in the store's folder of logs: a line of JSON per epoch of a run.

For people who look later: nothing depends on it. So nothing is forced to the disk, and where it
cannot be written or read, that is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from mview.clock import Clock
from mview.epoch.report import EpochReport, Silence
from mview.files.lines import append_line
from mview.files.records import record
from mview.store.layout import Store

#: Bytes from which on another file is begun; the one before is kept. As many epochs as ten minutes
#: have, of which the store keeps every one.
_FULL = 2_000_000

#: Milliseconds after it was published in which an epoch is noted. What is older or younger is of
#: another one: the store was put back to an earlier state.
_NOTED_MS = 60_000


@dataclass(frozen=True)
class Took:
    """What an epoch took.

    Attributes:
        epoch: its number.
        noted_ms: wall time of the note, which comes after publishing.
        took_ms: from the batch's arrival to the manifest.
        stages: milliseconds of each stage.
        changes: rows changed per table.
    """

    epoch: int
    noted_ms: int
    took_ms: int
    stages: Mapping[str, float]
    changes: Mapping[str, int]


class TookLog(Silence):
    """Notes what the epochs of a run took.

    Args:
        clock: wall time.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def on_epoch(self, epoch: EpochReport) -> None:
        """Note it."""
        if not epoch.stages:  # a first build: no batch has brought it
            return
        took = Took(epoch.epoch, self._clock.now(), epoch.duration_ms, epoch.stages, epoch.changes)
        file, before = _files(self._store)
        with suppress(OSError):
            # Not with the folders above it: a store that was taken away is not made again.
            file.parent.mkdir(mode=0o700, exist_ok=True)
            if file.exists() and file.stat().st_size > _FULL:
                file.replace(before)
            append_line(file, orjson.dumps(asdict(took)))


class KeptTook:
    """What of that is kept.

    Args:
        newest: so many epochs are asked for, and no older ones; None: all.
    """

    def __init__(self, store: Store, newest: int | None = None) -> None:
        self._of: dict[int, list[Took]] = {}
        for file in reversed(_files(store)):
            lines = _lines(file)
            for line in lines if newest is None else lines[-newest:]:
                with suppress(ValueError):  # it was killed as it wrote, or the disk was full
                    took = record(Took, orjson.loads(line))
                    self._of.setdefault(took.epoch, []).append(took)

    def of(self, epoch: int, published_ms: int) -> Took | None:
        """What an epoch took; None: unknown."""
        noted = (
            took
            for took in self._of.get(epoch, ())
            if published_ms <= took.noted_ms <= published_ms + _NOTED_MS
        )
        return next(noted, None)


def _files(store: Store) -> tuple[Path, Path]:
    """The one that is written, and the one before."""
    return store.root / "logs" / "epochs.jsonl", store.root / "logs" / "epochs.before.jsonl"


def _lines(file: Path) -> list[bytes]:
    with suppress(OSError):
        return file.read_bytes().splitlines()
    return []
