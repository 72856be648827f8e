"""The begin of a load: what is noted and planned before the first chunk of a table is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mview.catalog.definitions import load_definitions
from mview.connector import Offsets
from mview.epoch.engine import Engine
from mview.epoch.recover import forget_folders
from mview.epoch.without import without
from mview.errors import AwayError, UserError
from mview.failpoints import failpoint
from mview.ingest.load_plan import (
    LoadPlan,
    LoadStart,
    begin_offsets,
    begin_positions,
    plan_load,
    write_plan,
)
from mview.relation import RelationId, by_connection
from mview.schema import TableSchema

#: Tables of which the chunks are asked for at the same time, each by a connection of its own.
_AT_ONCE = 4


class Refused(NamedTuple):
    """What a source says before a chunk of it is read.

    Attributes:
        tables: whose load it keeps from beginning.
        error: why.
    """

    tables: tuple[RelationId, ...]
    error: UserError


def begin_anew(
    engine: Engine,
    tables: Mapping[RelationId, str],
    spared: Collection[Path],
    say: Callable[[str], None],
) -> None:
    """Have tables that are loaded be loaded once more, as if they had been dropped.

    Args:
        tables: by name, why.
        spared: folders that stay, whatever names them.
        say: is told of them.
    """
    for name, why in tables.items():
        say(f"{name} is loaded anew: {why}")
    store, manifest = engine.store, engine.manifest
    after = without(load_definitions(store, manifest), manifest, [*map(str, tables)])
    engine.manifest = engine.manifests.publish_after(after, engine.clock.now())
    engine.open_relations()  # what is open of them goes first
    # Only now: what a manifest names must be there.
    forget_folders(store, engine.manifest, engine.lease, spared)


def begin_tables(
    engine: Engine, schemas: Mapping[RelationId, TableSchema], say: Callable[[str], None]
) -> Refused | None:
    """Note where the changelogs are, then plan the chunks, then publish that loading began.

    In this order: a change after the noted offsets is read, one before them is in the chunks.
    Tables that are not to be followed any more go with the same manifest.

    Args:
        schemas: of every source table that is to be followed.
        say: is told of progress.

    Returns:
        The tables of the first source that refuses; nothing has begun then.
    """
    sources = engine.manifest.source_tables.keys()
    if sources == set(schemas):
        return None
    # A load that was under way starts over with the new ones: its state is in the old query.
    new = [
        name
        for name in schemas
        if name not in engine.manifest.tables or engine.manifest.tables[name].phase == "loading"
    ]
    generation = engine.manifest.generation + 1
    halted = {name for name, state in engine.manifest.source_tables.items() if state.halted}
    read = [name for name in schemas if name not in halted]
    offsets: dict[str, Offsets] = {}
    ends: dict[str, Offsets] = {}
    known, config = engine.manifest.offsets, engine.config
    for connection in by_connection(read):
        tables_of_it = [name for name in read if name.connection == connection]
        try:
            at, end = begin_offsets(config, known, tables_of_it, set(new), schemas)
        except AwayError:
            # Where it is read on is known, and of its tables nothing else is asked for.
            if any(name.connection == connection for name in new):
                raise
            at, end = {connection: known[connection]}, {}
        except UserError as error:
            if mine := tuple(name for name in new if name.connection == connection):
                return Refused(mine, error)
            raise
        offsets, ends = offsets | at, ends | end
    start = replace(LoadStart.at(engine.manifest), offsets=offsets)
    left = sources - set(schemas)
    tables = {k: v for k, v in engine.manifest.tables.items() if k not in left}
    positions = {k: v for k, v in engine.manifest.positions.items() if k not in left}
    newest = {k: v for k, v in engine.manifest.newest.items() if k not in left}
    begins = {
        name: begin_positions(engine.config, name, ends, positions.get(name, {})) for name in new
    }

    def planned(name: RelationId) -> LoadPlan:
        return plan_load(engine.config, name, schemas[name], start, *begins[name])

    with closing(_side_by_side(planned, new)) as plans:
        for name in new:
            say(f"planning the load of {name}")
            plan, schema, (begin, _) = next(plans), schemas[name], begins[name]
            write_plan(engine.store.plan(generation, engine.lease.token, name), plan)
            failpoint("after-plan")
            tables[name] = engine.mirror(name, schema).create()
            positions[name] = begin
            # The log may be stamped by another clock than the one that was asked.
            asked = plan.asked_ms + engine.config.changes[name.connection].delay
            newest[name] = dict.fromkeys(begin, asked)
    manifest = engine.next_manifest(
        generation=generation,
        batch=-1,
        offsets=offsets,
        cuts={name: cut for name, cut in engine.manifest.cuts.items() if name in offsets},
        tables=tables,
        positions=positions,
        newest=newest,
    )
    engine.commit(manifest, {})
    return None


def _side_by_side(
    planned: Callable[[RelationId], LoadPlan], names: Sequence[RelationId]
) -> Generator[LoadPlan]:
    """The plans of some tables, in their order; a database that is far away answers meanwhile."""
    pool = ThreadPoolExecutor(_AT_ONCE, "mview-plan")
    try:
        yield from pool.map(planned, names)
    finally:
        pool.shutdown(cancel_futures=True)
