"""Look-ups in resident tables, within a memory budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from mview.errors import CorruptionError
from mview.execute.local.index import ResidentTable
from mview.execute.program import Request
from mview.relation import RelationId
from mview.rows.match import Positions
from mview.rows.parts import Parts


class LocalLookups:
    """Resident tables by name; a table that does not fit is not resident.

    The caller asks `resident` first and looks other tables up elsewhere.

    Args:
        memory: bytes that all resident tables together may take.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._tables: dict[RelationId, ResidentTable] = {}
        # Merges run beside the epochs, one at a time.
        self._merger = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mview-merge")
        self._merges: dict[RelationId, Future[None]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that the resident tables take."""
        return sum(table.nbytes for table in self._tables.values())

    @property
    def needed(self) -> int:
        """Bytes that they take with the merge of the largest, which holds old and new rows."""
        sizes = [table.nbytes for table in self._tables.values()]
        return sum(sizes) + max(sizes, default=0)

    def fits(self, nbytes: int) -> bool:
        """Whether rows of so many bytes fit beside what is resident.

        Asks for twice as much: indexes come on top, and a merge holds old and new rows.
        """
        return max(self.nbytes + 2 * nbytes, self.needed + nbytes) <= self._memory

    @property
    def room(self) -> int:
        """Bytes of rows that one table more may have, see `fits`."""
        return max(0, min((self._memory - self.nbytes) // 2, self._memory - self.needed))

    def add(self, table: ResidentTable) -> bool:
        """Make a table resident, unless it exceeds the budget.

        Returns:
            Whether it is resident now.
        """
        self.drop(table.name)
        if not self.fits(table.nbytes):
            return False
        self._tables[table.name] = table
        return True

    def prepare(self, name: RelationId, columns: Iterable[str]) -> None:
        """Have an index made beside the epochs, if the table is resident."""
        if name in self._tables:
            self._merger.submit(self._tables[name].prepare, columns)

    def drop(self, name: RelationId) -> None:
        """Forget a table; nothing happens when it is not resident."""
        self._tables.pop(name, None)

    def resident(self, name: RelationId, columns: Sequence[str]) -> bool:
        """Whether a table can be looked up here, with these columns."""
        table = self._tables.get(name)
        return table is not None and set(columns) <= set(table.schema.names)

    def fetch(self, requests: Sequence[Request]) -> list[pa.Table]:
        """The rows of every request, each row once; see `Lookups`.

        Raises:
            KeyError: a table is not resident.
        """
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> pa.Table:
        table = self._tables[request.table]
        if request.within is not None:
            return table.within(request.within, request.select)
        if request.keys is None:
            return table.rows().select(request.select)
        names = request.keys.column_names
        return table.lookup(names, request.keys, request.null_safe, request.select)

    def after(
        self, name: RelationId, change: tuple[pa.Table, pa.Table] | None, select: Sequence[str]
    ) -> Parts | None:
        """All rows of a resident table as an epoch will leave them; it does not take it in.

        Args:
            name: the table.
            change: the rows that go (at least their keys), and those that come; None: none.
            select: columns to return.

        Returns:
            None: it does not hold what the epoch changes, and `apply` will drop it.
        """
        try:
            return self._tables[name].after(change, select)
        except CorruptionError:
            return None

    def key_numbers(self, name: RelationId, keys: pa.Table) -> Positions | None:
        """See `ResidentTable.key_numbers`; None where the table is not resident."""
        table = self._tables.get(name)
        return None if table is None else table.key_numbers(keys)

    def foresee(
        self, name: RelationId, old: pa.Table, new: pa.Table, codes: Positions | None
    ) -> None:
        """Find what `apply` of these very tables needs to find, if the table is resident."""
        if (table := self._tables.get(name)) is not None:
            table.foresee(old, new, codes)

    def apply(self, changes: Mapping[RelationId, tuple[pa.Table, pa.Table]]) -> list[RelationId]:
        """Follow a published epoch.

        Args:
            changes: per table the rows that go (at least their keys) and the rows that come.
                Tables that are not resident are skipped.

        Returns:
            Tables that are not resident any more: they outgrew the budget, or did not hold what
            the epoch changed.
        """
        dropped = []
        for resident in self._tables.values():
            resident.end_epoch()
        for name, (old, new) in changes.items():
            table = self._tables.get(name)
            if table is None:
                continue
            try:
                table.apply(old, new)
            except CorruptionError:
                self.drop(name)
                dropped.append(name)
                continue
            self._merge_when_due(name, table)
        while self.needed > self._memory:
            largest = max(self._tables, key=lambda name: self._tables[name].nbytes)
            self.drop(largest)
            dropped.append(largest)
        return dropped

    def close(self) -> None:
        """Wait for what runs beside, leave out what has not begun, and free the tables."""
        self._merger.shutdown(cancel_futures=True)
        self._tables.clear()

    def _merge_when_due(self, name: RelationId, table: ResidentTable) -> None:
        running = self._merges.get(name)
        if running is not None:
            if not running.done():
                return
            running.result()
            del self._merges[name]
        if table.merge_due:
            self._merges[name] = self._merger.submit(table.merge)
