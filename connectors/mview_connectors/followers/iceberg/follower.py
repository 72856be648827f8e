"""Apache Iceberg tables as sinks: one snapshot per step, rows deleted by position.

Staging writes the files of a snapshot: rows, positions of rows that go, manifests. The token is
what a catalog is told to make it the current one, and holds only while the snapshot that it was
made on is the current one. So a commit is a comparison and a swap in the catalog, and what a paused
runner has staged is refused: a new runner's first commit, which changes no row, moves the table on.

The mark lies in the summary of the snapshot, so that it is where the rows are, also after somebody
has rolled the table back.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

# Before threads read databases: the rest of SQLAlchemy asks it as soon as it is begun to be
# imported, which pyiceberg does in a sink's thread, and fails on the half of it.
import sqlalchemy.orm  # noqa: F401

from mview.changelog import KIND
from mview.clock import steady_clock
from mview.errors import ConfigError, MviewError, RetryableError
from mview.files.modes import make_shared_folder
from mview.follower import (
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    batches,
    check_inserts,
    check_owner,
    failed,
    mark_of,
    new_rows,
    not_ours,
    refuse_types,
    unfit_keys,
)
from mview.schema import type_name
from mview.secrets import Mask, reveal, secrets_of
from mview_connectors.followers.folders import (
    check_folder,
    columns_changed,
    folder_of,
    overtaken,
    reread,
)
from mview_connectors.followers.iceberg.settings import IcebergSettings
from mview_connectors.network import http_caution

if TYPE_CHECKING:
    from mview_connectors.followers.iceberg.keys import KeyPlaces
    from mview_connectors.followers.iceberg.rows import RowsWriter
    from mview_connectors.followers.iceberg.snapshots import Commit

#: Properties of the table: whose it is, the newest runner's token, and what it is made of.
_OWNER, _FENCE, _COLUMNS = "mview.owner", "mview.fence", "mview.columns"

#: The entry of a snapshot's summary that is the mark.
_MARK = "mview.mark"

#: Properties that name a catalog.
_ELSEWHERE = {"type", "uri", "py-catalog-impl"}

#: A name that is one in every catalog and file system.
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,64}")

#: What pyiceberg cuts a URL at: all files below such a place would have one name, and overwrite
#: each other. Some catalogs (Nessie) choose the place by the table's name, whatever they are told.
_CUT = re.compile(r"[?#]")

#: So often maintenance begins again in a row because a step came between.
_TRIES = 20


class IcebergFollower:
    """A table of an Iceberg catalog, format version 2.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = IcebergSettings
    capabilities: ClassVar[Capabilities] = Capabilities(
        modes=frozenset({"upsert", "append"}), null_keys=True
    )

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: IcebergSettings = target.settings
        self._catalog: Any = None
        #: As it was last seen; what is staged on an older one is refused by the catalog.
        self._table: Any = None
        self._keys: KeyPlaces | None = None

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse keys that cannot be looked up, and partitions that cannot be made."""
        schema = self.target.schema
        wrong: dict[str, str] = {}
        if self._settings.mode == "upsert":
            wrong = unfit_keys(self.target, pa.types.is_nested)
        for _, name in self._settings.parts(self.target.schema.names):
            kind = schema.column(name).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                wrong[name] = "another type, as the table is partitioned by it"
        refuse_types(self.target, wrong)
        if self._settings.partition:  # pyiceberg takes long to import
            with suppress(ModuleNotFoundError):  # which who asks or writes is told
                self._partitioned()
        if self._settings.warehouse is None and not self._settings.catalog:
            raise ConfigError(
                f"sink {self.target.sink} has no warehouse",
                where=f"sinks.{self.target.sink}",
                hint="warehouse: a folder; or catalog: {type: rest, uri: …}",
            )

    def caution(self) -> str | None:
        """A warning for a remote catalog or storage without TLS."""
        return http_caution(f"sinks.{self.target.sink}.catalog", self._settings.catalog.values())

    def probe(self) -> None:
        """Ask the catalog whether the table is free or ours; makes nothing."""
        if self._folder is not None:
            check_folder(self.target, self._folder)
            if self._file is not None and not self._file.exists():
                return
        with self._failing("looking at it"):
            table = self._find()
            if table is not None:
                self._check_ours(table, writes=False)

    def create(self) -> None:
        """Make the table if it is not there, and move it on for a new runner."""
        self.check()
        if self._folder is not None:
            check_folder(self.target, self._folder)
        with self._failing("making the table"):
            from mview_connectors.followers.iceberg.snapshots import (
                SnapshotChange,
                current,
                prepare,
            )

            # Anew: a file that somebody has deleted is still one to who has it open.
            self._disconnect()
            table = self._find() or self._make()
            self._check_ours(table)
            fence = _fence(table)
            if not self._is_as_now(table):
                self._connected().purge_table(self._identifier())
                table = self._make()
                fence = self.target.fence
            if fence < self.target.fence or current(table) is None:
                change = SnapshotChange("append", _summary(_mark(table)), self._properties())
                self._run(prepare(table, change), table)
            self._table = table

    def position(self) -> Mark | None:
        """The mark in the current snapshot."""
        with self._failing("reading the mark"):
            self._table = self._find()
            return None if self._table is None else _mark(self._table)

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Write new rows, positions of old ones, and the manifests of a snapshot."""
        with self._failing("writing"), self._standing(self._begin(step)) as table:
            writer, gone = self._writer(table), []
            for batch in batches(delta):
                if self._settings.mode == "append":
                    check_inserts(self.target, batch.column(KIND))
                else:
                    is_old = pc.is_in(batch.column(KIND), pa.array(["-D", "-U"]))
                    gone.append(batch.filter(is_old).select(list(self.target.schema.key)))
                writer.add(new_rows(batch))
            writer.flush()
            keys = pa.Table.from_batches(gone) if sum(map(len, gone)) else None
            return self._finish(step, table, writer, keys)

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Write all rows, and a snapshot without the old ones."""
        with self._failing("writing"), self._standing(self._begin(step)) as table:
            writer = self._writer(table)
            for batch in batches(rows):
                writer.add(batch)
            writer.flush()
            return self._finish(step, table, writer, None)

    def commit(self, token: Token) -> Facts:
        """Tell the catalog, once; where it refuses, look what is there."""
        with self._failing("committing"):
            from pyiceberg.exceptions import CommitFailedException

            from mview_connectors.followers.iceberg.snapshots import Commit

            table = self._table if self._table is not None else self._required()
            commit = Commit.from_json(token["commit"])
            facts = {"epoch": token["epoch"], "snapshot": commit.snapshot}
            try:
                self._run(commit, table)
            except CommitFailedException as error:
                self._table = table = self._required()
                mark = _mark(table)
                if mark is not None and mark.step == token["step"]:
                    return facts
                check_owner(self.target, Mark("", _fence(table), -1))
                raise overtaken(self.target, " ".join(str(error).split())[:200]) from error
            return facts

    def state(self, step: Step, token: Token | None) -> State:
        """What the mark says, or whether what was staged still holds."""
        with self._failing("asking for a step"):
            from mview_connectors.followers.iceberg.snapshots import Commit, current

            self._table = table = self._find()
            if table is None:
                return State.UNKNOWN
            mark = _mark(table)
            if mark is not None and mark.step == step.id:
                return State.COMMITTED
            now = current(table)
            if token is None or now is None:
                return State.UNKNOWN
            commit = Commit.from_json(token["commit"])
            # The manifest list is written last and removed first.
            is_there = commit.fits(table) and table.io.new_input(commit.manifest_list).exists()
            return State.PREPARED if is_there else State.UNKNOWN

    def abort(self, step: Step, token: Token | None) -> None:
        """Remove the files of a snapshot that never was."""
        if token is None:
            return
        with self._failing("removing what was staged"):
            from mview_connectors.followers.iceberg.snapshots import Commit, remove

            table, commit = self._find(), Commit.from_json(token["commit"])
            if table is not None and table.metadata.snapshot_by_id(commit.snapshot) is None:
                remove(table, (commit.manifest_list, *commit.files))

    def read(self) -> pa.RecordBatchReader:
        """The rows, by pyiceberg's own scan."""
        schema = pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])
        with self._failing("reading the table"):
            from mview_connectors.followers.iceberg.rows import as_types

            table = self._required()
            self._check_ours(table, writes=False)
            rows = table.scan().to_arrow_batch_reader()

        def read() -> Iterator[pa.RecordBatch]:
            with self._failing("reading the table"):
                try:
                    for batch in rows:
                        yield from as_types(pa.Table.from_batches([batch]), schema).to_batches()
                except FileNotFoundError as error:
                    if self._has_moved(table):
                        raise reread(self.target, error) from error
                    raise

        return pa.RecordBatchReader.from_batches(schema, read())

    def maintain(self, *, thorough: bool) -> Facts:
        """Join small files and write those with many gone rows anew; remove old snapshots."""
        done: Counter[str] = Counter()
        with self._failing("compacting"):
            from mview_connectors.followers.iceberg.snapshots import expire

            while self._apart(lambda table: self._compact(table, done)) and thorough:
                continue
            before = steady_clock().now() - self._settings.history
            done["snapshots_removed"] += self._apart(lambda table: expire(table, before))
        return {name: number for name, number in done.items() if number}

    def close(self) -> None:
        """Free the connections of the catalog."""
        self._disconnect()
        self._keys = None

    # --- maintenance -----------------------------------------------------------------------------

    def _apart(self, work: Callable[[Any], int]) -> int:
        """Do work on the newest snapshot, again after each commit that came between."""
        from pyiceberg.exceptions import CommitFailedException

        for tried in range(1, _TRIES + 1):
            table = self._required()
            self._check_ours(table)
            try:
                done = work(table)
            except (CommitFailedException, FileNotFoundError) as error:
                is_gone = isinstance(error, FileNotFoundError)
                if tried == _TRIES or (is_gone and not self._has_moved(table)):
                    raise
                continue
            self._table = table
            return done
        raise AssertionError("the last try ends it")

    def _compact(self, table: Any, done: Counter[str]) -> int:
        """Take a bite; whether more is left."""
        from pyiceberg.exceptions import CommitFailedException

        from mview_connectors.followers.iceberg.compaction import compacted
        from mview_connectors.followers.iceberg.snapshots import remove

        summary, settings = _summary(_mark(table)), self._settings
        bite = compacted(table, self.target.schema, summary, settings.file_bytes)
        if bite is None:
            return False
        try:
            self._run(bite.commit, table)
        except CommitFailedException:
            if self._required().metadata.snapshot_by_id(bite.commit.snapshot) is None:
                remove(table, (bite.commit.manifest_list, *bite.commit.files))
            raise
        done["files_replaced"] += bite.replaced
        done["files_written"] += bite.written
        return not bite.is_last

    # --- a step ----------------------------------------------------------------------------------

    def _begin(self, step: Step) -> Any:
        from mview_connectors.followers.iceberg.keys import KeyPlaces

        if self._keys is None:
            self._keys = KeyPlaces(self.target)
        table = self._table if self._table is not None else self._required()
        check_owner(self.target, Mark("", _fence(table), -1))
        admit(self.target, _mark(table), step)
        return table

    @contextmanager
    def _standing(self, table: Any) -> Iterator[Any]:
        """For work on a table, of which maintenance may remove what newer snapshots do not have."""
        try:
            yield table
        except FileNotFoundError as error:
            if not self._has_moved(table):
                raise
            raise overtaken(self.target, " ".join(str(error).split())[:200]) from error

    def _has_moved(self, table: Any) -> bool:
        """Whether the table has another snapshot by now."""
        from mview_connectors.followers.iceberg.snapshots import current

        return bool(current(self._required()) != current(table))

    def _writer(self, table: Any) -> RowsWriter:
        from mview_connectors.followers.iceberg.index import ROW_BYTES
        from mview_connectors.followers.iceberg.rows import RowsWriter

        settings = self._settings
        most = settings.index_bytes // ROW_BYTES if settings.mode == "upsert" else 0
        return RowsWriter(table, self.target.schema, settings.file_bytes, most)

    def _finish(self, step: Step, table: Any, writer: RowsWriter, gone: pa.Table | None) -> Token:
        """Write the deletes and the manifests."""
        from mview_connectors.followers.iceberg.files import write_deletes
        from mview_connectors.followers.iceberg.snapshots import SnapshotChange, entries, prepare

        assert self._keys is not None
        change = SnapshotChange("append", _summary(mark_of(self.target, step)), self._properties())
        change.data = writer.files
        change.deletes = write_deletes(table, self._keys.located(table, gone))
        if step.is_fill:
            data, deletes = entries(table)
            change.removed = [*data, *deletes]
        if change.deletes or change.removed:
            change.operation = "overwrite"
        commit = prepare(table, change)
        self._keys.staged(commit.snapshot, writer.hashed, is_fill=step.is_fill)
        return {"step": step.id, "epoch": step.epoch, "commit": commit.to_json()}

    def _run(self, commit: Commit, table: Any) -> None:
        """Commit, and let the places of keys follow."""
        commit.run(table)
        self._table = table
        if self._keys is not None:
            self._keys.committed(commit)

    # --- the table -------------------------------------------------------------------------------

    def _find(self) -> Any:
        """The table; None: there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._connected().load_table(self._identifier())
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _required(self) -> Any:
        table = self._find()
        if table is None:
            raise RetryableError(
                f"the table {self.target.table} is gone",
                where=f"sinks.{self.target.sink}",
                safe="it is made anew and filled",
            )
        return table

    def _check_ours(self, table: Any, *, writes: bool = True) -> None:
        """Refuse a table of somebody else, and that of a newer runner to who writes there."""
        owner = table.metadata.properties.get(_OWNER)
        if owner is None:
            raise not_ours(self.target)
        check_owner(self.target, Mark(owner, _fence(table) if writes else 0, -1))
        if self._is_as_now(table):
            self._check_columns(table)

    def _is_as_now(self, table: Any) -> bool:
        """Whether the table was made of the columns and for the partition of now."""
        return bool(table.metadata.properties.get(_COLUMNS) == self._columns())

    def _check_columns(self, table: Any) -> None:
        """Refuse a table whose columns somebody has changed: rows would not be where they were.

        A column of the name of one that was dropped is another one to Iceberg. Wider types are
        read as they were.
        """
        ids = {field.name: field.field_id for field in table.schema().fields}
        made = table.schemas().get(0, table.schema())
        if ids.keys() == set(self.target.schema.names) and all(
            ids.get(field.name) == field.field_id for field in made.fields
        ):
            return
        raise columns_changed(self.target, ids)

    def _make(self) -> Any:
        catalog, settings = self._connected(), self._settings
        schema, spec = self._partitioned()
        catalog.create_namespace_if_not_exists((settings.namespace,))
        table = catalog.create_table(
            self._identifier(),
            schema,
            self._location(catalog),
            spec,
            properties={
                # Each commit writes one.
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "20",
                **({"comment": self.target.comment} if self.target.comment else {}),
                **settings.properties,
                "format-version": "2",
                "write.format.default": "parquet",
                "write.parquet.row-group-limit": "131072",
                **self._properties(),
                _COLUMNS: self._columns(),
            },
        )
        if _CUT.search(table.location()):
            catalog.drop_table(self._identifier())
            raise ConfigError(
                f"the catalog has put the table {self.target.table} where its files would be one",
                where=f"sinks.{self.target.sink}",
                got=table.location(),
                allowed="a name without ? and #",
                safe="nothing was written, the table was dropped again",
                hint=f"give it another name: sinks.{self.target.sink}.table",
            )
        return table

    def _partitioned(self) -> tuple[Any, Any]:
        """The columns of the table, and its partition spec.

        Raises:
            ConfigError: it cannot be partitioned so.
        """
        from mview_connectors.followers.iceberg.files import schema_of, spec_of
        from mview_connectors.followers.iceberg.rows import stored

        schema = schema_of(stored(self.target.schema))
        try:
            return schema, spec_of(schema, self._settings.parts(self.target.schema.names))
        except ValueError as error:
            raise ConfigError(
                f"sink {self.target.sink} cannot partition so",
                where=f"sinks.{self.target.sink}.partition",
                got=str(error),
            ) from None

    def _properties(self) -> dict[str, str]:
        return {_OWNER: self.target.owner, _FENCE: str(self.target.fence)}

    def _identifier(self) -> tuple[str, str]:
        return (self._settings.namespace, self.target.table)

    def _location(self, catalog: Any) -> str | None:
        """Where the table lies; None: where the catalog has it by its name."""
        table, warehouse = self.target.table, catalog.properties.get("warehouse")
        if _PLAIN.fullmatch(table) or not warehouse or "://" not in warehouse:
            return None
        # Names that are no part of a URL.
        name = re.sub(r"[^A-Za-z0-9_]+", "-", table)[:40]
        digest = hashlib.sha256(table.encode()).hexdigest()[:12]
        return f"{warehouse.rstrip('/')}/{self._settings.namespace}/{name}-{digest}"

    def _columns(self) -> str:
        """What the table is made of; another text means another table."""
        schema = self.target.schema
        columns = [[column.name, type_name(column.type)] for column in schema.columns]
        return orjson.dumps(
            [columns, list(schema.key), self._settings.parts(self.target.schema.names)]
        ).decode()

    # --- the catalog -----------------------------------------------------------------------------

    def _connected(self) -> Any:
        if self._catalog is None:
            from mview_connectors.followers.iceberg.catalogs import catalog_of

            settings, place = self._settings, f"sinks.{self.target.sink}"
            options = {
                name: reveal(text, f"{place}.catalog.{name}")
                for name, text in settings.catalog.items()
            }
            if settings.warehouse is not None:
                options["warehouse"] = settings.warehouse
            if self._folder is not None:
                make_shared_folder(self._folder)
                options["warehouse"] = f"file://{self._folder}"
            if self._file is not None:
                options["uri"] = f"sqlite:///{self._file}"
            if options.get("uri", "").startswith("sqlite"):
                options.setdefault("type", "sql")
            timeout_s = settings.timeout / 1000
            self._catalog = catalog_of(settings.catalog_name, options, timeout_s)
        return self._catalog

    def _disconnect(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = self._table = None

    @property
    def _folder(self) -> Path | None:
        """The warehouse on this machine; None: it is elsewhere."""
        warehouse = self._settings.warehouse
        return None if warehouse is None else folder_of(warehouse)

    @property
    def _file(self) -> Path | None:
        """The catalog that is made in the folder; None: another one is named."""
        if self._folder is None or self._settings.catalog.keys() & _ELSEWHERE:
            return None
        return self._folder / "catalog.db"

    @contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors of pyiceberg as ours, without secrets."""
        try:
            yield
        except MviewError:
            raise
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{error.name} is not installed",
                where=f"sinks.{self.target.sink}",
                hint="pip install 'mview-engine[iceberg]' --find-links DIR, where mview's wheel is",
            ) from None
        except Exception as error:
            from mview_connectors.followers.iceberg.catalogs import to_be_looked_at

            mask = Mask(secrets_of("catalog", dict(self._settings.catalog)))
            told = " ".join(str(error).split())
            look_at = to_be_looked_at(error) or self._unfit_properties(error)
            raise failed(
                self.target,
                f"the Iceberg catalog or its storage failed while {task}",
                mask(told if look_at else f"{type(error).__name__}: {told}"),
                "the mark in the table tells what was written; it is asked before the next try",
                look_at,
            ) from error

    def _unfit_properties(self, error: Exception) -> str | None:
        """The table's properties, where an error may be of one: only what needs it looks at it."""
        names = ", ".join(self._settings.properties)
        # Not what has a class of its own, as an answer of a catalog that cannot be read.
        is_value = type(error) is ValueError or isinstance(error, pa.ArrowException)
        return f"sinks.{self.target.sink}.properties: {names}" if is_value and names else None


def _summary(mark: Mark | None) -> dict[str, str]:
    return {} if mark is None else {_MARK: mark.to_text()}


def _fence(table: Any) -> int:
    return int(table.metadata.properties.get(_FENCE, 0))


def _mark(table: Any) -> Mark | None:
    """The mark of the current snapshot; files that others have rewritten keep their rows."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if (text := snapshot.summary[_MARK]) is not None:
            mark = Mark.from_text(text)
            return Mark(mark.owner, max(mark.fence, _fence(table)), mark.epoch, mark.step)
        if snapshot.summary.operation.value != "replace":
            return None
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
    return None
