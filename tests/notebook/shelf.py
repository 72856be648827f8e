"""A store of one table and one view with the same rows, published epoch by epoch, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.catalog.definitions import digest_of, save_definition
from mview.catalog.sinks import open_sink
from mview.clock import SourceMs, SystemClock, WallMs
from mview.config.file import load_config
from mview.connector import WEIGHT
from mview.execute.delta import Delta
from mview.notebook.project import Project
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Cut, Manifest, ViewState
from mview.store.mirror import Mirror
from tests.relations import rel

Row = tuple[Any, ...]

#: One column of each kind that notebooks spoil as a rule.
TYPES = {
    "id": pa.int64(),
    "big": pa.int64(),
    "price": pa.decimal128(38, 2),
    "at": pa.timestamp("us", "UTC"),
    "raw": pa.binary(),
    "tags": pa.list_(pa.string()),
}
TABLE = rel("shop.t")


class Shelf:
    """Rows by their first column, put and deleted by `publish`.

    Args:
        folder: for the configuration, the store and the view's table.
        types: of the columns; the first one is the key.
    """

    def __init__(self, folder: Path, types: dict[str, pa.DataType] | None = None) -> None:
        types = TYPES if types is None else types
        (folder / "mview.yml").write_text(
            "store: store\n"
            "connections: {shop: {drivername: sqlite, database: none.db}}\n"
            "changes: {shop: {source: files, format: unified, path: changes, T: 1s}}\n"
        )
        self.config = load_config(folder / "mview.yml")
        self.store = Store(self.config.store)
        claim_store(self.store.root)
        columns = [Column(name, kind, nullable=False) for name, kind in types.items()]
        self.schema = TableSchema(tuple(columns), (columns[0].name,))
        self._shape = pa.schema([*types.items(), (WEIGHT, pa.int32())])
        self.log = ManifestLog(self.store.manifests)
        self.mirror = Mirror(self.store.mirror(TABLE), self.schema)
        self.table = replace(self.mirror.create(), phase="loaded")
        self.definition = parse_view(f"SELECT {', '.join(types)} FROM shop.t", "v")
        save_definition(self.store, self.definition)
        self._digest = digest_of(self.definition)
        self.sink = open_sink(self.config, self.store, self.definition, self.schema, self._digest)
        self.rows: dict[Any, Row] = {}
        self.epoch = 0

    @property
    def project(self) -> Project:
        """What is tested."""
        return Project(self.config)

    def publish(
        self,
        put: Sequence[Row] = (),
        delete: Sequence[Any] = (),
        ms: int | None = None,
        cuts: Mapping[str, Cut] | None = None,
        **view: Any,
    ) -> int:
        """Publish an epoch; returns its number.

        Args:
            put: whole rows, new or in the place of others.
            delete: keys.
            ms: when it was published.
            cuts: up to when each connection was read.
            view: other things that the manifest says of the view.
        """
        self.epoch += 1
        weighted: list[Row] = []
        for key in [*delete, *(row[0] for row in put)]:
            if key in self.rows:
                weighted.append((*self.rows.pop(key), -1))
        for row in put:
            self.rows[row[0]] = row
            weighted.append((*row, 1))
        names = self._shape.names
        delta = pa.Table.from_pylist(
            [dict(zip(names, row, strict=True)) for row in weighted], self._shape
        )
        version = self.mirror.append(self.epoch, Delta(delta, self.schema.key).changelog)
        self.table = replace(self.table, changelog_version=version, rows=len(self.rows))
        facts = self.sink.commit(self.sink.stage(self.epoch, delta))
        state = ViewState(self._digest, "LINEAR", self.schema, facts, 1, rows=len(self.rows))
        now = SystemClock().now()
        self.log.publish(
            Manifest(
                self.epoch,
                1,
                now if ms is None else WallMs(ms),
                1,
                self.epoch,
                watermark=now,
                cuts={"shop": Cut(SourceMs(now), None)} if cuts is None else cuts,
                tables={TABLE: self.table},
                views={"v": replace(state, **view)},
            )
        )
        return self.epoch

    def compact(self) -> None:
        """Fold the table's changes into its base; the next epoch publishes that."""
        base, folded = self.mirror.compact(self.table)
        self.table = replace(self.table, base_version=base, folded=folded)

    def trim(self) -> None:
        """Delete what is folded, as upkeep does."""
        oldest = self.log.read(self.log.epochs()[0]).tables[TABLE]
        self.mirror.maintain(self.table, oldest, 1)
