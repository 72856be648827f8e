"""A manifest without some views or tables: what they alone need goes, too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mview.catalog.definitions import Kept
from mview.relation import RelationId
from mview.store.manifest import Manifest


def read_by(kept: Kept, manifest: Manifest) -> set[RelationId]:
    """The tables that a manifest's views read; all, where nobody knows what one reads."""
    if kept.damaged.keys() & manifest.views.keys():
        return set(manifest.source_tables)
    views = [kept.views[name] for name in manifest.views]
    return {table for view in views for table in view.table_names if table.is_table}


def without(
    kept: Kept, manifest: Manifest, names: Collection[str], with_tables: bool = False
) -> Manifest:
    """The manifest without these views and tables, and what only they need.

    Args:
        kept: the definitions of its views.
        manifest: the newest one.
        names: of the views and tables that go.
        with_tables: tables that no view reads then go, too.

    Returns:
        What is to be published: views that read a table that goes are stale.
    """
    views = {n: s for n, s in manifest.views.items() if n not in names}
    reads = {n: kept.views[n].table_names if n in kept.views else () for n in views}
    gone = set(map(RelationId.of, names))
    # No delta leads to what reads a table that starts over, only a new build.
    stale = set(gone)
    while readers := [r for n in views if (r := _view(n)) not in stale and stale & set(reads[n])]:
        stale.update(readers)
    source = set(manifest.source_tables)
    read = read_by(kept, replace(manifest, views=views)) if with_tables else source
    # Rows of a view that others read stay right as long as it does. Where nobody reads them any
    # more, the next run lets go of them.
    sound = {_view(name) for name, state in views.items() if not state.stale} - stale
    # What was half loaded starts over, too: its merge goes by the old query's checkpoint.
    tables = {
        name: state
        for name, state in manifest.tables.items()
        if (name not in gone and name in read) or name in sound or _view_inside(name) in views
        if state.phase == "loaded"
    }
    connections = {name.connection for name in tables}
    return replace(
        manifest,
        generation=manifest.generation + 1,
        batch=-1,
        offsets={k: v for k, v in manifest.offsets.items() if k in connections},
        cuts={k: v for k, v in manifest.cuts.items() if k in connections},
        tables=tables,
        views={n: replace(s, stale=s.stale or _view(n) in stale) for n, s in views.items()},
        positions={k: v for k, v in manifest.positions.items() if k in tables},
        newest={k: v for k, v in manifest.newest.items() if k in tables},
    )


def _view(name: str) -> RelationId:
    return RelationId("view", name)


def _view_inside(relation: RelationId) -> str:
    """The view that nobody but it reads a relation of: its state, or of a part; else empty."""
    return "" if relation == _view(relation.view) else relation.view
