"""After a crash: forward what had an intent, back what had none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace

from mview.clock import Clock
from mview.connector import Sink
from mview.runtime.engine import commit_sinks, empty_manifest
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Manifest
from mview.store.mirror import Mirror


def recover(
    store: Store, lease: Lease, clock: Clock, open_sinks: Callable[[Manifest], Mapping[str, Sink]]
) -> Manifest:
    """Bring sinks and mirrors to one published epoch.

    An intent on disk means that every delta was durable before the crash: the sinks commit again
    (a token committed twice counts once) and the epoch is published. Without one, nothing of the
    epoch was shown: sinks and mirrors go back to the manifest.

    Args:
        store: the store.
        lease: held by this runner.
        clock: wall time.
        open_sinks: the sinks of the views of a manifest.

    Returns:
        The newest published manifest.

    Raises:
        FencedError: another runner took over meanwhile.
    """
    manifests, intents = ManifestLog(store.manifests), IntentLog(store.intent)
    published = manifests.latest() or empty_manifest()
    intent = intents.read()
    if intent is not None:
        pending, tokens = intent
        if pending.epoch == published.epoch + 1:
            renewed = replace(pending, token=lease.token, created_ms=clock.now())
            published = commit_sinks(renewed, tokens, open_sinks(renewed))
            lease.check()
            manifests.publish(published)
        intents.clear()
    for name, sink in open_sinks(published).items():
        sink.rollback(None, published.views[name].sink)
    for name, table in published.tables.items():
        Mirror(store.mirror(name), table.schema).restore(table)
    return published


def forget_folders(store: Store, manifest: Manifest) -> None:
    """Remove mirrors, views and checkpoints that no manifest names any more."""
    named = {store.checkpoint(manifest.generation)}
    named |= {store.mirror(name) for name in manifest.tables}
    named |= {store.view(name) for name in manifest.views}
    for parent in ("tables", "views", "checkpoints"):
        folders = store.root / parent
        for folder in folders.iterdir() if folders.is_dir() else ():
            if folder not in named:
                shutil.rmtree(folder)
