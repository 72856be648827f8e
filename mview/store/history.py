"""Manifests and the intent on disk: atomic, checked, and refused to a runner that was replaced."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from mview.errors import CorruptionError, FencedError
from mview.lake.durable import force, settle
from mview.store.invariants import check
from mview.store.manifest import Manifest

_FILE = re.compile(r"^(\d{20})\.json$")


class ManifestLog:
    """The manifests of a store, one file per epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def epochs(self) -> list[int]:
        """The epochs that are kept, ascending."""
        names = [file.name for file in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(match.group(1)) for name in names if (match := _FILE.match(name)))

    def latest(self) -> Manifest | None:
        """The newest manifest; None in a new store.

        Raises:
            CorruptionError: the newest file cannot be read; the message has the way out.
        """
        epochs = self.epochs()
        return self.read(epochs[-1]) if epochs else None

    def read(self, epoch: int) -> Manifest:
        """The manifest of an epoch.

        Raises:
            CorruptionError: the file is unreadable, or the epoch is not kept (any more).
        """
        file = self._file(epoch)
        return Manifest.from_json(
            _read(
                file,
                f"the manifest of epoch {epoch} cannot be read",
                f"move {file.name} away: the next run goes on from epoch {epoch - 1} and does "
                "the epoch again",
            )
        )

    def publish(self, manifest: Manifest) -> None:
        """Make an epoch visible: all of it, once, and only if nobody else did.

        Raises:
            CorruptionError: an invariant is broken.
            FencedError: the epoch is published already, by another runner.
        """
        file = self._file(manifest.epoch)
        before = self.latest()
        if before and before.epoch >= manifest.epoch:
            raise _overtaken(manifest, file)
        check(before, manifest)
        settle()
        staged = _write_beside(file, manifest.to_json())
        try:
            # A link is put-if-absent and all-or-nothing: a reader never sees half a manifest.
            os.link(staged, file)
        except FileExistsError:
            raise _overtaken(manifest, file) from None
        finally:
            staged.unlink()
        force(self.folder)

    def prune(self, keep: int) -> int:
        """Delete all but the newest `keep` manifests; returns the oldest epoch that is kept."""
        epochs = self.epochs()
        for epoch in epochs[:-keep]:
            self._file(epoch).unlink(missing_ok=True)
        for staged in self.folder.glob("*.tmp"):
            staged.unlink(missing_ok=True)
        return epochs[-keep:][0]

    def _file(self, epoch: int) -> Path:
        return self.folder / f"{epoch:020d}.json"


class IntentLog:
    """The epoch that is being committed: written before the first sink commits.

    While it is there, the epoch will be published: after a crash all sinks commit again.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, manifest: Manifest, tokens: Mapping[str, Any]) -> None:
        """Store the manifest-to-be and each view's sink token.

        Raises:
            FencedError: a runner with a newer lease has an intent here.
        """
        if (old := self.read()) and old[0].token > manifest.token:
            raise _overtaken(manifest, self.file)
        settle()
        body = {"manifest": manifest.to_json(), "tokens": dict(tokens)}
        _write_beside(self.file, body).replace(self.file)
        force(self.file.parent)

    def read(self) -> tuple[Manifest, dict[str, Any]] | None:
        """The stored intent; None when no epoch is being committed.

        Raises:
            CorruptionError: the file cannot be read.
        """
        if not self.file.exists():
            return None
        body = _read(
            self.file,
            "the intent of an epoch cannot be read",
            f"restore {self.file.name} from a copy of the store, or drop the views and build "
            "them again: some sinks may have committed the epoch, others not",
        )
        return Manifest.from_json(body["manifest"]), body["tokens"]

    def clear(self) -> None:
        """Forget the intent: its epoch is published. Should it come back, the epoch tells."""
        self.file.unlink(missing_ok=True)


def _write_beside(file: Path, body: Mapping[str, Any]) -> Path:
    """Write a checked JSON file under a temporary name, durable; returns that name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_name(f"{file.name}.{uuid.uuid4().hex}.tmp")
    content = orjson.dumps(body)
    with staged.open("wb") as out:
        # The first line tells a torn or edited file from a whole one.
        out.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content + b"\n")
        out.flush()
        os.fsync(out.fileno())
    return staged


def _read(file: Path, what: str, hint: str) -> dict[str, Any]:
    try:
        checksum, _, content = file.read_bytes().partition(b"\n")
        content = content.removesuffix(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            raise ValueError("the checksum does not fit the content")
        body: dict[str, Any] = orjson.loads(content)
    except (OSError, ValueError) as error:
        raise CorruptionError(
            what, where=str(file), got=str(error), safe="nothing was changed", hint=hint
        ) from None
    return body


def _overtaken(manifest: Manifest, file: Path) -> FencedError:
    return FencedError(
        f"another runner has written epoch {manifest.epoch}",
        where=str(file),
        safe="nothing of this runner's epoch is visible",
        hint="stop this runner; `mview status` shows the other one",
    )
