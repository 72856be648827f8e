"""The start of a runner: the right to write, then forward what was decided, back what was not.

0. go back   where the newest manifest is older than what other files of the store know: whoever
             has restored the manifests, or moved newer ones away, begins another history
1. decide    the next epoch: what an intent says of it, or that this runner takes over
2. publish   it, with this runner's token: an older one, which may only be paused, can neither
             decide nor publish an epoch any more
3. fence     every log that will be written to: the token goes in, with the commit that takes back
             what no manifest names
4. clean     only now anything is deleted

An older runner may wake between any two of these steps: its own put-if-absent fails, or it comes
first and is seen.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mview.catalog.definitions import load_definitions
from mview.clock import Clock
from mview.connector import Sink
from mview.epoch.engine import Staged, commit_sinks, empty_manifest
from mview.epoch.halts import halted, halting, of_its_target
from mview.errors import CorruptionError, FencedError, MviewError, TargetError
from mview.failpoints import failpoint
from mview.files.durable import force, is_aside, sweep, take_away
from mview.files.numbered import numbers_if_any
from mview.follow.cursor import Cursor, CursorLog
from mview.relation import RelationId
from mview.secrets import Mask
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease, insist
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror
from mview.store.quarantine import FILE as QUARANTINE_FILE

#: The sinks of the views of a manifest.
OpenSinks = Callable[[Manifest], Mapping[str, Sink]]


#: Names of checkpoints; of what is in the folder of a mirror or a view, also half of it.
_OF_A_FOLDER = re.compile(r"\d{6}-\d{6}|base|changelog|data|definition-[0-9a-f]{16}\.json")


class Recovered(NamedTuple):
    """What a runner begins with.

    Attributes:
        manifest: the newest published one; what it says of refused views, the next one will.
        refused: views whose target cannot be brought to it, and why: they halt, and are not built
            over what stands there. What is damaged of a view, it is built over.
    """

    manifest: Manifest
    refused: dict[str, MviewError]


#: Names of what is built beside the epochs: the runner's token leads.
_OF_A_BUILD = re.compile(r"\d{6,}-\d{12,}")


def recover(
    store: Store,
    lease: Lease,
    clock: Clock,
    open_sinks: OpenSinks,
    mask: Mask,
    leaving: Collection[str] = (),
) -> Recovered:
    """Bring sinks and mirrors to one published epoch, which no older runner can change any more.

    An intent on disk means that every delta was durable: the sinks commit again (a token committed
    twice counts once) and the epoch is published. Without one, nothing of the epoch was shown:
    sinks and mirrors go back to the manifest. A take-over is an epoch of its own, without a change.

    Args:
        lease: held by this runner.
        open_sinks: the sinks of the views of a manifest.
        leaving: views and tables that are to be dropped: they may be damaged.

    Raises:
        FencedError: another runner took over meanwhile.
    """
    _go_back(store, lease)
    published = _decided(store, lease, clock, open_sinks, mask)
    failpoint("recover-published")
    sinks = open_sinks(published)
    kept = {name: sink for name, sink in sinks.items() if name not in leaving}
    wrong: dict[str, MviewError] = {}
    wrong.update(load_definitions(store, published, but=leaving).damaged)
    wrong |= _roll_back(kept, published, store, lease)
    damaged = _restore(published, store, lease, leaving)
    wrong |= {relation.view: error for relation, error in damaged.items()}
    _adopt_query(store, published.generation, lease.token)
    failpoint("recover-fenced")
    for folder in (store.manifests, store.intents):
        sweep(folder, lease.check)
    IntentLog(store.intents, lease).clear_up_to(published.epoch)
    lease.check()
    lease.all_fenced()
    states = {
        name: halted(published.views[name], error, mask)
        for name, error in wrong.items()
        if name in published.views and not published.views[name].stale
    }
    if states or damaged:
        published = ManifestLog(store.manifests, lease).publish_after(
            published,
            clock.now(),
            tables={n: state for n, state in published.tables.items() if n not in damaged},
            views={**published.views, **states},
        )
    # What is damaged is built anew, and the target itself says what is not to be built over.
    known = (CorruptionError, TargetError)
    refused = {name: error for name, error in wrong.items() if not isinstance(error, known)}
    return Recovered(published, refused)


def _go_back(store: Store, lease: Lease) -> None:
    """Forget what is known of epochs after the newest one: others will have their numbers.

    Before anything is published, as nobody can tell afterwards. Read before the manifest is: what
    an older runner publishes meanwhile is not taken for lost.
    """
    logs = [CursorLog(folder, lease) for folder in sorted(store.views.glob("*/sinks/*"))]
    cursors: list[tuple[CursorLog, Cursor]] = []
    for log in logs:
        with suppress(CorruptionError):  # its sink says so
            cursors.append((log, log.latest()))
    intents = numbers_if_any(store.intents)
    newest = ManifestLog(store.manifests).latest() or empty_manifest()
    for log, cursor in cursors:
        log.go_back(cursor, newest.epoch)
    for number in intents:
        if number > newest.epoch + 1:
            IntentLog(store.intents, lease).forget(number)


def _roll_back(
    sinks: Mapping[str, Sink], published: Manifest, store: Store, lease: Lease
) -> dict[str, MviewError]:
    """Bring targets to the published epoch; returns why some cannot be."""
    wrong: dict[str, MviewError] = {}
    for name, sink in sinks.items():
        facts = published.views[name].sink
        if not facts:
            continue
        try:
            insist(lease, partial(sink.rollback, None, facts))
        except (CorruptionError, TargetError) as error:
            wrong[name] = error
        except FencedError as error:
            lease.check()
            wrong[name] = of_its_target(error)
        except Exception as error:
            lease.check()
            wrong[name] = halting(error, name, store)
        failpoint("recover-sink")
    return wrong


def _restore(
    published: Manifest, store: Store, lease: Lease, leaving: Collection[str]
) -> dict[RelationId, CorruptionError]:
    """Bring mirrors to the published epoch; returns what is damaged beside the sinks of views.

    Raises:
        CorruptionError: a table is damaged: it would have to be loaded anew.
    """
    damaged: dict[RelationId, CorruptionError] = {}
    for name, table in published.tables.items():
        if str(name) in leaving:
            continue
        mirror = Mirror(store.mirror(name), table.schema, fence=lease)
        try:
            insist(lease, partial(mirror.restore, table))
        except CorruptionError as error:
            if name.is_table:
                raise
            damaged[name] = error
        failpoint("recover-mirror")
    return damaged


def _decided(
    store: Store, lease: Lease, clock: Clock, open_sinks: OpenSinks, mask: Mask
) -> Manifest:
    """The newest epoch: published under this runner's token, if anybody else may still publish."""
    manifests, intents = ManifestLog(store.manifests, lease), IntentLog(store.intents, lease)

    def decide() -> Manifest:
        before = manifests.latest() or empty_manifest()
        epoch = before.epoch + 1
        intent = intents.read(epoch)
        if intent is None:
            if not lease.takes_over:
                return before
            failpoint("recover-begin")
            intents.write(replace(before, epoch=epoch, token=lease.token), {})
            intent = before, {}
        failpoint("recover-decided")
        manifest, tokens = intent
        mine = replace(manifest, epoch=epoch, token=lease.token, created_ms=clock.now())
        sinks = open_sinks(mine) if tokens else {}
        unread = load_definitions(store, mine, but=sinks).damaged if tokens else {}
        states = {n: halted(before.views.get(n, mine.views[n]), e, mask) for n, e in unread.items()}
        mine = replace(mine, views={**mine.views, **states})
        tokens = {name: token for name, token in tokens.items() if name in sinks}
        staged = Staged(mine, tokens)
        mine = commit_sinks(staged, sinks, before.views, store, lease, mask).manifest
        failpoint("recover-committed")
        manifests.publish(mine)
        return mine

    return insist(lease, decide)


def _adopt_query(store: Store, generation: int, token: int) -> None:
    """Make the folder of the running query this runner's: the old name is gone."""
    older = store.checkpoints_of(generation, token)
    if older:
        older[-1].rename(store.checkpoint(generation, token))
        force(store.checkpoints)


def _is_ours(folder: Path) -> bool:
    """Whether mview has made a folder of the store: by its name, or by what is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    held = [entry.name for entry in folder.iterdir()]
    return not held or any(
        _OF_A_FOLDER.fullmatch(name) or is_aside(name) or QUARANTINE_FILE.fullmatch(name)
        for name in (folder.name, *held)
    )


def forget_folders(
    store: Store, manifest: Manifest, lease: Lease, spared: Collection[Path] = ()
) -> None:
    """Remove mirrors, views and checkpoints that no manifest names any more; not what is spared."""
    named = {*spared, store.checkpoint(manifest.generation, lease.token)}
    named |= {store.mirror(name) for name in manifest.tables}
    named |= {store.view(name) for name in manifest.views}
    named |= {store.quarantined(n) for n, s in manifest.source_tables.items() if s.quarantine}
    parents = (store.mirrors, store.beside_views, store.views, store.checkpoints, store.quarantine)
    ours = [f for parent in parents if parent.is_dir() for f in parent.iterdir() if _is_ours(f)]
    store.trash.mkdir(exist_ok=True)
    # Whole and at once: half of a folder under its name would be taken for the whole.
    for folder in (folder for folder in ours if folder not in named):
        take_away(folder, store.trash / uuid.uuid4().hex, lease.check)
        failpoint("forget-folder")
    # What this runner builds has its token.
    dead = [f for f in _builds(store) if int(f.name.partition("-")[0]) < lease.token]
    for folder in dead:
        take_away(folder, store.trash / uuid.uuid4().hex, lease.check)
        failpoint("forget-folder")
    shutil.rmtree(store.trash, ignore_errors=True)


def _builds(store: Store) -> list[Path]:
    """The folders of what was built beside epochs."""
    folders = store.building.iterdir() if store.building.is_dir() else ()
    return [f for f in folders if _OF_A_BUILD.fullmatch(f.name) and not f.is_symlink()]
