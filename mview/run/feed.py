"""Where the tables of a run come from, and their changes: databases and their changelogs, or the
store around that of an environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from mview.catalog.tables import cautions, check_changelogs
from mview.config import Config
from mview.epoch.engine import Engine
from mview.errors import UserError
from mview.ingest.batches import OnBatch
from mview.ingest.live import LiveQuery
from mview.ingest.spec import QuerySpec
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.run.begin import Refused, begin_tables
from mview.run.tables import RunTables, tables_of
from mview.schema import TableSchema
from mview.store.manifest import Manifest

#: Says something to people.
Say = Callable[[str], None]


class FeedQuery(Protocol):
    """Hands changes to epochs."""

    def run(self, until: Callable[[], bool]) -> None:
        """Run until `until()` is true, all is read (bounded), or an epoch fails."""
        ...


class Feed(Protocol):
    """Brings the tables of a run, and their changes."""

    @property
    def begins_anew(self) -> bool:
        """Whether the query has ended as the tables are to be begun once more."""
        ...

    def tables_of(
        self,
        definitions: Sequence[ViewDefinition],
        manifest: Manifest,
        left: Collection[RelationId] = (),
        refusing: Mapping[RelationId, UserError] = MappingProxyType({}),
    ) -> RunTables:
        """The tables that views read; see `mview.run.tables.tables_of`."""
        ...

    def check(
        self,
        definitions: Sequence[ViewDefinition],
        schemas: Mapping[RelationId, TableSchema],
        loaded: Collection[RelationId],
    ) -> None:
        """Make sure that the changes of all tables of views can be followed.

        Args:
            definitions: the views.
            schemas: what is read of the tables.
            loaded: those that are followed already, see `mview.catalog.tables.check_changelogs`.
        """
        ...

    def cautions(
        self, definitions: Sequence[ViewDefinition], schemas: Mapping[RelationId, TableSchema]
    ) -> list[str]:
        """What people should know of the tables of views."""
        ...

    def begin(
        self, engine: Engine, schemas: Mapping[RelationId, TableSchema], say: Say
    ) -> Refused | None:
        """Have the engine's manifest name the tables, and no others; see `begin_tables`."""
        ...

    def live(
        self, engine: Engine, spec: QuerySpec, folder: Path, on_batch: OnBatch, say: Say
    ) -> FeedQuery:
        """The query that follows the changes when nothing is loaded."""
        ...


class SourceFeed:
    """The databases of the configuration, and their changelogs."""

    begins_anew = False

    def __init__(self, config: Config) -> None:
        self._config = config

    def tables_of(
        self,
        definitions: Sequence[ViewDefinition],
        manifest: Manifest,
        left: Collection[RelationId] = (),
        refusing: Mapping[RelationId, UserError] = MappingProxyType({}),
    ) -> RunTables:
        """See `Feed`."""
        return tables_of(self._config, definitions, manifest, left, refusing)

    def check(
        self,
        definitions: Sequence[ViewDefinition],
        schemas: Mapping[RelationId, TableSchema],
        loaded: Collection[RelationId],
    ) -> None:
        """See `Feed`."""
        check_changelogs(self._config, definitions, schemas, loaded)

    def cautions(
        self, definitions: Sequence[ViewDefinition], schemas: Mapping[RelationId, TableSchema]
    ) -> list[str]:
        """See `Feed`."""
        return cautions(self._config, definitions, schemas)

    def begin(
        self, engine: Engine, schemas: Mapping[RelationId, TableSchema], say: Say
    ) -> Refused | None:
        """See `Feed`; the loads are yet to be done then."""
        return begin_tables(engine, schemas, say)

    def live(
        self, engine: Engine, spec: QuerySpec, folder: Path, on_batch: OnBatch, say: Say
    ) -> FeedQuery:
        """See `Feed`."""
        return LiveQuery(
            engine.spark,
            spec,
            folder,
            on_batch,
            engine.most_changes,
            engine.store.rereads,
            say,
            engine.store.mends,
        )
