"""Why a view is older than it promised: the stage that its changes wait in."""

from __future__ import annotations

from collections.abc import Mapping

from mview.epoch.views.cost import runs_of
from mview.store.manifest import Cut, Manifest


def cause_of_age(
    manifest: Manifest,
    cuts: Mapping[str, Cut],
    promised_ms: int,
    now_ms: int,
    *,
    is_running: bool,
) -> str:
    """The stage that makes a view older than it may be.

    The age of a view is the time since the newest epoch was published, and before that the time
    from the source's clock to the publishing: reading the sources, and the epoch itself.

    Args:
        manifest: the newest one.
        cuts: those of the connections that the view reads.
        promised_ms: how old the view may be.
        now_ms: wall milliseconds.
        is_running: whether somebody runs the store.
    """
    if not is_running:
        return "nobody runs the store"
    loading = [str(n) for n, state in manifest.source_tables.items() if state.phase == "loading"]
    since = now_ms - manifest.created_ms
    if since > promised_ms:
        why = f", {', '.join(loading)} being loaded" if loading else ""
        return (
            f"run: no epoch was published for {_seconds(since)}{why}: no change and no heartbeat "
            "came, or it stands still"
        )
    late = {
        name: manifest.created_ms - cut.until for name, cut in cuts.items() if cut.until is not None
    }
    unknown = sorted(name for name, cut in cuts.items() if cut.until is None)
    if unknown or not late:
        names = ", ".join(unknown) or "a connection"
        return f"source: how far {names} was read is not known: no change and no heartbeat came"
    name = max(late, key=lambda each: late[each])
    took = {
        view: ran.seconds * 1000
        for view, state in manifest.views.items()
        if (ran := runs_of(state).get(view)) is not None and ran.epoch == manifest.epoch
    }
    slowest = max(took, key=lambda each: took[each], default="")
    if took and took[slowest] >= late[name] / 2:
        return f"epoch: view {slowest} took {_seconds(took[slowest])} of the newest one"
    return (
        f"source: {name} was read up to {_seconds(late[name])} before the newest epoch was "
        "published: its changes or heartbeats come late"
    )


def _seconds(ms: float) -> str:
    return f"{ms / 1000:,.1f} s"
