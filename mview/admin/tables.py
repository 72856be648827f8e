"""What readers see of a store's copies of tables: their rows, and the complete changelog."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from mview.admin.content import When, manifest_at, published
from mview.config import Config
from mview.errors import CorruptionError, UserError, counted
from mview.plan.text.place import did_you_mean
from mview.relation import RelationId
from mview.store.history import ManifestLog
from mview.store.kinds import comes
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState
from mview.store.mirror import EPOCH, Mirror


class StoredTable:
    """Our copy of a source table, for reading: at the newest epoch, or an older one that is kept.

    Args:
        name: as `<connection>.<table>`.

    Raises:
        UserError: there is no such table at that epoch.
    """

    def __init__(self, config: Config, name: str, at: Manifest | None = None) -> None:
        self._config, self._table = config, RelationId.of(name)
        self._manifest = published(config) if at is None else at
        tables = self._manifest.source_tables
        if self._table not in tables:
            raise UserError(
                f"there is no table {name!r} at epoch {self._manifest.epoch}",
                where=str(config.store),
                hint=did_you_mean(name, map(str, tables)),
            )
        self._state: TableState = tables[self._table]
        self._mirror = Mirror(Store(config.store).mirror(self._table), self._state.schema)

    @property
    def name(self) -> str:
        """As `<connection>.<table>`."""
        return str(self._table)

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._manifest.epoch

    @property
    def num_rows(self) -> int:
        """How many rows it has; nothing is read."""
        return self._state.rows

    @property
    def phase(self) -> str:
        """`loading` until all of its rows are here, then `loaded`."""
        return self._state.phase

    @property
    def schema(self) -> pa.Schema:
        """The columns, all nullable."""
        return pa.schema([field.with_nullable(True) for field in self._state.schema.arrow])

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of its key."""
        return self._state.schema.key

    def arrow(self) -> pa.Table:
        """The rows."""
        return self._mirror.scan(self._state)

    def head(self, most: int) -> pa.Table:
        """The first rows, in no order: as many files are read as it takes."""
        rows = self.schema.empty_table()
        for part in self._mirror.parts(self._state):
            rows = pa.concat_tables([rows, part.slice(0, most - rows.num_rows)])
            if rows.num_rows >= most:
                break
        return rows

    def as_of(self, when: When) -> StoredTable:
        """The table at an older epoch, or as it was at a time."""
        return StoredTable(self._config, self.name, manifest_at(self._config, when))

    def changes(self, since: When | None = None) -> pa.Table:
        """The complete changelog: EPOCH, KIND (`+I -U +U -D`) and the columns.

        In order of epochs, then of keys. Of one key an epoch has at most a row that goes and,
        after it, one that comes.

        Args:
            since: changes after this epoch or time; None: all that are kept.

        Raises:
            UserError: the table was not loaded yet then, or the changes are not all kept.
        """
        older = self.as_of(self._first() if since is None else since)
        if not self._goes_on_from(older._state):
            why = "was not loaded yet" if older.phase != "loaded" else "had other columns"
            raise UserError(
                f"table {self.name} {why} at epoch {older.epoch}: its changes begin later",
                where=str(self._config.store),
                hint="ask for the changes since a later epoch; as_of() has the rows of then",
            )
        parts = [*self._pieces(older.epoch)]
        rows = pa.concat_tables(reversed(parts))
        # A table that was dropped and loaded again meanwhile has another life.
        come = pc.sum(comes(rows)).as_py() or 0
        if older.num_rows + 2 * come - rows.num_rows != self.num_rows:
            raise UserError(
                f"table {self.name} was loaded anew after epoch {older.epoch}",
                got=f"{counted(older.num_rows, 'row')} then, {self.num_rows:,} now, "
                f"{rows.num_rows:,} "
                "changes between",
                safe="the rows of both epochs are right: as_of()",
                hint="ask for the changes since a later epoch",
            )
        return _ordered(rows, self.key)

    def _pieces(self, since: int) -> Iterator[pa.Table]:
        """The changes after an epoch, the last ones first.

        Raises:
            UserError: not all of them are kept.
        """
        begins = self.epoch
        for state, begins, upto in self._stages():
            rows = self._mirror.changes(state, max(begins, since))
            yield rows.filter(pc.less_equal(rows[EPOCH], upto))
            if begins <= since:
                return
        raise UserError(
            f"the changes of table {self.name} are kept since epoch {begins}",
            got=f"epoch {since}",
            where=str(self._config.store),
            hint=f"changes({begins}); as_of() has the rows of older epochs",
        )

    def _stages(self) -> Iterator[tuple[TableState, int, int]]:
        """What has the changes, the last ones first: what was compacted, older epochs have.

        Returns:
            A state of the table, the epoch after which it has changes, and the last one of them
            that is asked of it.
        """
        log = self._log()
        state, upto = self._state, self.epoch
        while True:
            begins = self._mirror.trimmed(state)
            yield state, begins, upto
            upto, older = begins, _kept_from(log, begins, upto)
            before = None if older is None else older.tables.get(self._table)
            if before is None or not self._reaches_below(before, begins):
                return
            state = before

    def _first(self) -> int:
        """The first epoch that is kept since which all changes are, and the table is loaded."""
        log, first = self._log(), self.epoch
        kept_since = min(begins for _, begins, _ in self._stages())
        for epoch in reversed(log.epochs()):
            if epoch < kept_since:
                break
            if epoch >= first:
                continue
            try:
                state = log.read(epoch).source_tables.get(self._table)
            except UserError:
                if epoch in log.epochs():
                    raise
                break  # a runner has pruned beside us
            if state is None or not self._goes_on_from(state):
                break
            first = epoch
        return first

    def _goes_on_from(self, state: TableState) -> bool:
        return state.phase == "loaded" and state.schema == self._state.schema

    def _log(self) -> ManifestLog:
        return ManifestLog(Store(self._config.store).manifests)

    def _reaches_below(self, state: TableState, epoch: int) -> bool:
        try:
            return self._mirror.trimmed(state) < epoch
        except CorruptionError:  # of a table that was dropped
            return False


def _kept_from(log: ManifestLog, epoch: int, below: int) -> Manifest | None:
    """The first epoch from one on that is kept, and before another."""
    kept = log.epochs()
    place = bisect_left(kept, epoch)
    return log.read(kept[place]) if place < len(kept) and kept[place] <= below else None


def _ordered(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    by = rows.select([EPOCH, *key]).rename_columns([f"c{n}" for n in range(len(key) + 1)])
    by = by.append_column("comes", comes(rows))
    return rows.take(
        pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.schema.names])
    )
