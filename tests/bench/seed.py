"""A store whose tables are loaded, without a database: written by the store's own parts.

The load has its own bench; the others begin here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from mview.clock import SystemClock
from mview.config import Config
from mview.connector import Offsets
from mview.ingest.chunks import stage_chunk
from mview.ingest.spec import TableSpec
from mview.snapshot import Chunk, Marker
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import FIRST_EPOCH, Manifest, TableState
from mview.store.mirror import Mirror
from tests.bench.w1 import CONNECTION, Tables, schema_of
from tests.relations import keyed, rel

#: Rows of a staged chunk file, as in a load.
_CHUNK_ROWS = 200_000


def seed_store(config: Config, tables: Tables, offsets: Offsets) -> None:
    """Write the tables' mirrors and the manifest that publishes them.

    Args:
        config: names the store; nothing may be in it.
        tables: rows by table name.
        offsets: where the changelog of the tables begins.
    """
    store = Store(config.store)
    claim_store(store.root)
    states = {f"{CONNECTION}.{name}": _mirror(store, name, rows) for name, rows in tables.items()}
    publish(store, CONNECTION, states, offsets)


def publish(
    store: Store, connection: str, states: Mapping[str, TableState], offsets: Offsets
) -> None:
    """Publish loaded tables of a connection, by their names in SQL, as the first epoch."""
    manifest = Manifest(
        FIRST_EPOCH,
        token=0,
        created_ms=SystemClock().now(),
        generation=1,
        batch=-1,
        offsets={connection: offsets},
        tables=keyed(states),
    )
    ManifestLog(store.manifests).publish(manifest)


def _mirror(store: Store, name: str, rows: pa.Table) -> TableState:
    schema = schema_of(name, rows)
    mirror = Mirror(store.mirror(rel(f"{CONNECTION}.{name}")), schema)
    state = mirror.create()
    stage = mirror.stage_folder(1).relative_to(mirror.base.folder)
    spec = TableSpec(rel(f"{CONNECTION}.{name}"), schema, mirror.base.folder, str(stage), None)
    markers = []
    for number, start in enumerate(range(0, rows.num_rows, _CHUNK_ROWS)):
        part = rows.slice(start, _CHUNK_ROWS)
        staged = stage_chunk(iter(part.to_batches()), spec, Chunk(number, None, None))
        markers.append(Marker(str(spec.name), number, high_ms=0, **staged))
    version = mirror.register(FIRST_EPOCH, markers, {})
    released = tuple(range(len(markers)))
    return replace(
        state, base_version=version, rows=rows.num_rows, released=released, phase="loaded"
    )


def write_config(folder: Path, changes: str, extra: str = "") -> Path:
    """An `mview.yml` for a seeded store: its tables are known, so no database is asked.

    Args:
        folder: for the file and the store.
        changes: the settings of the changelog, as YAML in braces.
        extra: more sections.
    """
    file = folder / "mview.yml"
    file.write_text(
        f"store: store\nconnections:\n  {CONNECTION}: {{drivername: sqlite, database: none.db}}\n"
        f"changes:\n  {CONNECTION}: {changes}\n{extra}\n"
    )
    return file
