"""Environments: stores in a store, whose tables are those of the store around them.

What an environment has of a table are links to production's files as they were at one epoch, and
what it has taken since from production's changelogs. Its manifests say up to which epoch of
production that is: as the positions of its tables, one source partition each, which is named by
production's mirror. A table that production loads anew has another mirror, and so another name.
"""

from __future__ import annotations

import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mview.clock import Clock
from mview.errors import MviewError, UserError, typed
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest

#: Also the name of a folder, on any file system.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

#: What the folder of an environment that goes is called: no name of one.
_GONE = "_gone-"

#: Positions are compared as text.
_DIGITS = 20


def check_name(name: str) -> None:
    """Raise UserError unless an environment may have the name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be the name of an environment",
            allowed="small letters, digits, '-' and '_', at most 63, e.g. dev",
            safe="nothing was changed",
        )


def names_of(store: Store) -> list[str]:
    """The environments of a store, in the order of their names."""
    folders = store.environments.iterdir() if store.environments.is_dir() else ()
    return sorted(f.name for f in folders if _NAME.fullmatch(f.name) and not f.is_symlink())


def check_there(store: Store, name: str) -> None:
    """Raise UserError unless the store has the environment."""
    check_name(name)
    if name not in (names := names_of(store)):
        raise UserError(
            f"there is no environment {name}",
            where=str(store.root),
            allowed=", ".join(names) or "none is there",
            safe="nothing was changed",
            hint=did_you_mean(name, names) or f"begin one: mview run --env {typed(name)} FILE…",
        )


def production_of(environment: Store) -> Path:
    """The folder of the store that an environment is in."""
    return environment.root.parent.parent


@dataclass(frozen=True)
class Followed:
    """How far an environment has followed production.

    Attributes:
        epoch: production's epoch.
        published_ms: when production published it, wall milliseconds.
        mirrors: ids of production's mirrors, by table.
    """

    epoch: int
    published_ms: int
    mirrors: dict[RelationId, str]

    @property
    def positions(self) -> dict[RelationId, dict[str, str]]:
        """The same as a manifest keeps it: see `Manifest.positions`."""
        return {table: {id_: f"{self.epoch:0{_DIGITS}d}"} for table, id_ in self.mirrors.items()}

    @property
    def newest(self) -> dict[RelationId, dict[str, int]]:
        """The same as a manifest keeps it: see `Manifest.newest`."""
        return {table: {id_: self.published_ms} for table, id_ in self.mirrors.items()}


def followed(manifest: Manifest) -> Followed | None:
    """How far the environment of a manifest has followed production; None: it has no table yet."""
    mirrors, epochs, times = dict[RelationId, str](), set[int](), set[int]()
    for table in manifest.source_tables:
        ((mirrors[table], position),) = manifest.positions[table].items()
        epochs.add(int(position))
        times.add(manifest.newest[table][mirrors[table]])
    if not mirrors:
        return None
    # All tables of an epoch are of one cut.
    (epoch,), (published_ms,) = epochs, times
    return Followed(epoch, published_ms, mirrors)


def followed_by_environments(store: Store) -> set[int]:
    """The epochs up to which environments have followed production, whether they run or not.

    By its manifest an environment tells whether production is still what it has followed.
    """
    epochs = set()
    for name in names_of(store):
        with suppress(MviewError, OSError):
            newest = ManifestLog(Store(store.environment(name)).manifests).latest()
            if newest is not None and (at := followed(newest)) is not None:
                epochs.add(at.epoch)
    return epochs


def needed_by_environments(store: Store, before_ms: int, clock: Clock) -> int | None:
    """The epoch after which environments that run still read changes; None: none does.

    One that has ended needs none: what is gone when it begins again it links anew. So a dead one
    keeps nothing longer than its lease, and one that waits keeps nothing for ever. One that has
    linked nothing yet needs all: it may be about to, at an epoch that it alone knows.

    Args:
        before_ms: who has published nothing since then needs none, wall milliseconds; nor does who
            has begun before, and has linked nothing.
    """
    epochs = []
    for name in names_of(store):
        with suppress(MviewError, OSError):
            own = Store(store.environment(name))
            if (holder := Lease(own.lease, clock).holder()) is None:
                continue
            newest = ManifestLog(own.manifests).latest()
            at = None if newest is None else followed(newest)
            if newest is None or at is None:
                since_ms, epoch = holder.since_ms, 0
            else:
                since_ms, epoch = newest.created_ms, at.epoch
            if since_ms >= before_ms:
                epochs.append(epoch)
    return min(epochs, default=None)


def remove(store: Store, name: str, clock: Clock) -> None:
    """Remove an environment that nobody runs.

    Raises:
        AlreadyRunningError: it runs.
    """
    own = Store(store.environment(name), any_format=True)
    with Lease(own.lease, clock) as lease:
        # Whole and at once, so that no half of it is there. Who was paused finds its place gone.
        lease.check()
        own.root.rename(store.environments / f"{_GONE}{uuid.uuid4().hex}")
    _delete_gone(store)


def _delete_gone(store: Store) -> None:
    """Delete what is left of environments that were removed, also by who was killed meanwhile."""
    for gone in store.environments.glob(f"{_GONE}*"):
        shutil.rmtree(gone, ignore_errors=True)


def remove_dead(store: Store, before_ms: int, clock: Clock) -> list[str]:
    """Remove the environments that nobody runs, and in which nothing was published for long.

    Args:
        before_ms: nothing was since then, wall milliseconds.

    Returns:
        Their names.
    """
    _delete_gone(store)
    removed = []
    for name in names_of(store):
        with suppress(MviewError, OSError):
            own = Store(store.environment(name))
            newest = ManifestLog(own.manifests).latest()
            if newest is not None and newest.created_ms < before_ms:
                remove(store, name, clock)
                removed.append(name)
    return removed
