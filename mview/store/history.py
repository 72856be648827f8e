"""Manifests and the intent on disk: atomic, checked, and refused to a runner that was replaced."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mview.clock import utc_text
from mview.errors import CorruptionError, FencedError, UserError
from mview.failpoints import failpoint
from mview.files.durable import delete_named, put_if_absent, settle
from mview.files.fence import UNFENCED, Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.numbered import numbered, numbers_if_any
from mview.files.records import fields
from mview.store.invariants import check
from mview.store.manifest import Manifest

#: Numbers beyond do not fit the names of files.
_EPOCHS = 10**20


class ManifestLog:
    """The manifests of a store, one file per epoch.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path, fence: Fence = UNFENCED) -> None:
        self.folder, self._fence = folder, fence
        self._newest: Manifest | None = None

    def epochs(self) -> list[int]:
        """The epochs that are kept, ascending."""
        return numbers_if_any(self.folder)

    def latest(self) -> Manifest | None:
        """The newest manifest; None in a new store.

        Raises:
            CorruptionError: the newest file cannot be read; the message has the way out.
        """
        epochs = self.epochs()
        self._newest = self.read(epochs[-1]) if epochs else None
        return self._newest

    def token(self) -> int:
        """The token of the runner that published the newest epoch; 0: none can be read."""
        with suppress(CorruptionError):
            newest = self.latest()
            return newest.token if newest else 0
        return 0

    def read(self, epoch: int) -> Manifest:
        """The manifest of an epoch.

        Raises:
            UserError: the epoch is not kept (any more).
            CorruptionError: the file is damaged; the message has the way out.
        """
        file = self._file(epoch)
        if not 0 <= epoch < _EPOCHS or not file.exists():
            raise self._not_kept(
                "an epoch so large" if epoch >= _EPOCHS else f"epoch {epoch}", epoch
            )
        try:
            return read_checked(
                file, Manifest.from_json, f"the manifest of epoch {epoch} is damaged", ""
            )
        except CorruptionError as error:
            safe, hint = self._way_out(epoch)
            raise CorruptionError(**{**error.parts, "safe": safe, "hint": hint}) from None

    def before(self, epoch: int) -> Manifest | None:
        """The newest kept manifest before an epoch that can be read; None: there is none."""
        for older in reversed(self.epochs()):
            if older < epoch:
                with suppress(CorruptionError):
                    return read_checked(self._file(older), Manifest.from_json, "", "")
        return None

    def at(self, ms: int) -> Manifest:
        """The newest kept epoch that was published up to a time.

        Args:
            ms: wall milliseconds.

        Raises:
            UserError: nothing that is kept is so old.
        """
        epochs = self.epochs()
        while True:
            try:
                number = bisect_right(epochs, ms, key=lambda epoch: self.read(epoch).created_ms)
                if not number:
                    raise self._not_kept(f"an epoch of {utc_text(ms)} UTC", 0)
                return self.read(epochs[number - 1])
            except UserError:
                before, epochs = epochs, self.epochs()
                if epochs == before:
                    raise  # else a runner has pruned beside us

    def up_to(self, until: int, after: int, newest: Manifest) -> Manifest:
        """The last kept epoch of those after one and up to another; at least the next one kept.

        Args:
            until: no epoch after it, if there is one before.
            after: an older epoch.
            newest: a manifest after that, of which the file need not be kept.
        """
        epochs = self.epochs()
        while True:
            kept = [epoch for epoch in epochs if after < epoch < newest.epoch]
            epoch = max((e for e in kept if e <= until), default=min(kept, default=newest.epoch))
            if epoch == newest.epoch or newest.epoch <= until:
                return newest
            try:
                return self.read(epoch)
            except UserError:
                before, epochs = epochs, self.epochs()
                if epochs == before:
                    raise  # else a runner has pruned beside us

    def _not_kept(self, what: str, epoch: int) -> UserError:
        epochs = self.epochs()
        if epochs and epoch > epochs[-1]:
            return UserError(
                f"{what} is not published yet",
                where=str(self.folder),
                allowed=f"up to epoch {epochs[-1]}, the newest",
            )
        allowed = None
        if epochs:
            ends = (
                f"epoch {number} ({utc_text(self.read(number).created_ms)} UTC)"
                for number in dict.fromkeys((epochs[0], epochs[-1]))
            )
            place = bisect_right(epochs, epoch)
            near = ", ".join(map(str, epochs[max(place - 1, 0) : place + 1]))
            allowed = f"{' to '.join(ends)}, not all between; the nearest: {near}"
        return UserError(
            f"{what} is not kept",
            where=str(self.folder),
            allowed=allowed,
            hint="all epochs of the last ten minutes are kept, then fewer: see engine.history",
        )

    def _way_out(self, epoch: int) -> tuple[str, str]:
        """What of the data is right when an epoch's file is damaged, and what to do."""
        epochs, name = self.epochs(), self._file(epoch).name
        if epoch != epochs[-1]:
            return (
                "the newest epoch and all others are not touched",
                f"only as_of() and changes() need it: remove {name}, or restore it from a copy",
            )
        if (older := self.before(epoch)) is not None:
            return (
                f"the data is right up to epoch {older.epoch}",
                f"restore {name} from a copy; or move away what is newer than epoch {older.epoch}: "
                f"the next run goes on from epoch {older.epoch} and does the rest again",
            )
        return "no epoch can be read", "restore the store from a copy, or begin a new one"

    def publish_after(self, manifest: Manifest, now_ms: int, **changes: Any) -> Manifest:
        """Publish as this runner's what follows a manifest beside the epochs of a run.

        Args:
            manifest: the published one.
            now_ms: wall milliseconds.
            changes: fields that change.

        Returns:
            What was published. Raises as `publish`.
        """
        own: dict[str, Any] = {
            "epoch": manifest.epoch + 1,
            "token": self._fence.token,
            "created_ms": now_ms,
        }
        after = replace(manifest, **own | changes)
        self.publish(after)
        return after

    def publish(self, manifest: Manifest) -> None:
        """Make an epoch visible: all of it, once, and only if nobody else did.

        Raises:
            CorruptionError: an invariant is broken.
            FencedError: the epoch is published already, by another runner.
        """
        file = self._file(manifest.epoch)
        # Not listed again: a runner that was overtaken finds the epoch taken.
        before = self._newest or self.latest()
        if before and before.epoch >= manifest.epoch:
            raise _overtaken(manifest, file)
        check(before, manifest)
        settle()
        if not put_if_absent(file, checked(manifest.to_json()), check=self._fence.check):
            raise _overtaken(manifest, file)
        failpoint("file-linked")
        self._newest = manifest

    def prune(self, epochs: Iterable[int]) -> None:
        """Delete the manifests of these epochs; never the newest."""
        self._fence.check()
        for epoch in epochs:
            self._file(epoch).unlink(missing_ok=True)

    def _file(self, epoch: int) -> Path:
        return numbered(self.folder, epoch)


class IntentLog:
    """Epochs that are being committed, one file per epoch: written before the first sink commits.

    Who writes the intent of an epoch decides what it is: it is put if absent. While it is there and
    the epoch is not published, whoever runs next commits the sinks again and publishes it.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path, fence: Fence = UNFENCED) -> None:
        self.folder, self._fence = folder, fence

    def write(self, manifest: Manifest, tokens: Mapping[str, Any]) -> None:
        """Store the manifest-to-be and each view's sink token.

        Raises:
            FencedError: another runner has decided the epoch, or has taken over.
        """
        settle()
        file = self._file(manifest.epoch)
        body = {"manifest": manifest.to_json(), "tokens": dict(tokens)}
        if not put_if_absent(file, checked(body), check=self._fence.check):
            raise _overtaken(manifest, file)
        failpoint("file-linked")

    def read(self, epoch: int) -> tuple[Manifest, dict[str, Any]] | None:
        """The intent of an epoch; None when it is not decided.

        Raises:
            CorruptionError: the file cannot be read.
        """
        file = self._file(epoch)
        if not file.exists():
            return None
        return read_checked(
            file,
            _intent_of,
            "the intent of an epoch cannot be read",
            f"restore {file.name} from a copy of the store, or drop the views and build "
            "them again: some sinks may have committed the epoch, others not",
        )

    def clear(self, epoch: int) -> None:
        """Forget the intent of an epoch that is published. Should it come back, the epoch tells."""
        self._file(epoch).unlink(missing_ok=True)

    def forget(self, epoch: int) -> None:
        """Delete an intent that was never published, and whose number another epoch will have."""
        delete_named(self._file(epoch), self._fence.check)

    def clear_up_to(self, epoch: int) -> None:
        """Forget what was left of epochs that are published."""
        for number in numbers_if_any(self.folder):
            if number <= epoch:
                self.clear(number)

    def _file(self, epoch: int) -> Path:
        return numbered(self.folder, epoch)


def _intent_of(data: object) -> tuple[Manifest, dict[str, Any]]:
    body = fields(data, {"manifest": Manifest, "tokens": dict[str, dict[str, Any]]})
    return body["manifest"], body["tokens"]


def _overtaken(manifest: Manifest, file: Path) -> FencedError:
    return FencedError(
        f"another runner has written epoch {manifest.epoch}",
        where=str(file),
        safe="nothing of this runner's epoch is visible",
        hint="stop this runner; `mview status` shows the other one",
    )
