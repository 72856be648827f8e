"""Which epochs stay readable, by their age, and so what of the views' tables is still needed.

Every epoch of the last ten minutes stays, then the last one of each minute while replaced files are
kept anyway, then the last one of each hour. At five epochs a second that is some 3,300 manifests
for seven days, and 170 old contents of each table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from mview.config import EngineSettings
from mview.errors import CorruptionError
from mview.store.history import ManifestLog
from mview.store.manifest import Manifest

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS

#: As long as every epoch stays.
_DENSE_MS = 10 * _MINUTE_MS

#: Published manifests that are held until the next `prune`; where it hangs, older ones are read.
_NOTED = 1_000


def outdated(published: Mapping[int, int], now: int, files_ms: int, history_ms: int) -> set[int]:
    """The epochs that are not kept any more.

    Args:
        published: wall milliseconds of publishing, by epoch.
        now: wall milliseconds.
        files_ms: how long replaced files are kept.
        history_ms: how long epochs are; the one that was true then stays as well.
    """
    epochs = sorted(published, reverse=True)
    gone, seen = set(), set()
    for epoch in epochs[1:]:
        slot = _slot(published[epoch], now, files_ms, history_ms)
        if slot is None:
            continue
        if slot in seen:
            gone.add(epoch)
        seen.add(slot)
    return gone


def last_ended_ms(manifests: ManifestLog, token: int) -> int | None:
    """Wall milliseconds of the newest epoch of an earlier runner than that with the token."""
    for epoch in reversed(manifests.epochs()):
        with suppress(CorruptionError):
            manifest = manifests.read(epoch)
            if manifest.token < token:
                return manifest.created_ms
    return None


def _slot(ms: int, now: int, files_ms: int, history_ms: int) -> tuple[int, int] | None:
    """What an epoch is the last one of; None: it stays in any case."""
    age = now - ms
    if age > history_ms:
        return 0, 0
    if age <= _DENSE_MS:
        return None
    # A little longer, to have one that was true when the oldest file was replaced.
    width = _MINUTE_MS if age <= files_ms + 2 * _MINUTE_MS else _HOUR_MS
    return width, ms // width


@dataclass(frozen=True)
class _KeptEpoch:
    """What is needed of a manifest: its time, and what each view's sink said."""

    published_ms: int
    facts: Mapping[str, Mapping[str, Any]]


class Retention:
    """Thins the manifests out and knows what the kept ones need. `note` is for any thread."""

    def __init__(self, manifests: ManifestLog, settings: EngineSettings) -> None:
        self._manifests, self._settings = manifests, settings
        self._noted: deque[Manifest] = deque(maxlen=_NOTED)
        self._kept: dict[int, _KeptEpoch] = {}
        #: Most epochs change few views: equal facts are held once.
        self._shared: dict[tuple[str, bytes], Mapping[str, Any]] = {}

    def note(self, manifest: Manifest) -> None:
        """Take a manifest that was just published: it need not be read to know what it says."""
        self._noted.append(manifest)

    def prune(self, now: int, spared: Collection[int] = ()) -> Manifest:
        """Delete the manifests that are not kept any more.

        Args:
            now: wall milliseconds.
            spared: epochs that are kept however old.

        Returns:
            What was published when the oldest files that are kept were replaced.
        """
        epochs = self._manifests.epochs()
        noted: dict[int, Manifest] = {}
        while self._noted:
            manifest = self._noted.popleft()
            noted[manifest.epoch] = manifest
        for epoch in (epoch for epoch in epochs if epoch not in self._kept):
            # Who asks for it is told; the newest one can be read.
            with suppress(CorruptionError):
                self._kept[epoch] = self._of(noted.get(epoch) or self._manifests.read(epoch))
        published = {epoch: kept.published_ms for epoch, kept in self._kept.items()}
        gone = outdated(published, now, self._settings.keep_files, self._settings.history)
        gone.difference_update(spared)
        self._manifests.prune(gone)
        self._kept = {epoch: self._kept[epoch] for epoch in self._kept.keys() - gone}
        used = {id(facts) for kept in self._kept.values() for facts in kept.facts.values()}
        self._shared = {key: facts for key, facts in self._shared.items() if id(facts) in used}
        before = now - self._settings.keep_files
        old = [epoch for epoch, kept in self._kept.items() if kept.published_ms <= before]
        return self._manifests.read(max(old, default=min(self._kept)))

    def needed(self, view: str) -> list[Mapping[str, Any]]:
        """What a view's sink said at the epochs that are kept, each once."""
        facts = (kept.facts.get(view) for kept in self._kept.values())
        return list({id(fact): fact for fact in facts if fact is not None}.values())

    def _of(self, manifest: Manifest) -> _KeptEpoch:
        views: Iterable[tuple[str, Mapping[str, Any]]] = (
            (name, state.sink) for name, state in manifest.views.items() if state.sink
        )
        shared = {
            name: self._shared.setdefault((name, orjson.dumps(facts)), facts)
            for name, facts in views
        }
        return _KeptEpoch(manifest.created_ms, shared)
