"""DuckDB queries that are planned once and run over ever new Arrow tables.

To register a few tables and to plan a query over them takes ten times as long as to run it over
some hundred rows. So a query keeps a connection in which its tables are registered as streams, with
a prepared statement over them; a run only puts other rows behind the streams.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import cast

import duckdb
import pyarrow as pa

from mview.errors import DataError
from mview.execute.sketches import functions as sketches
from mview.execute.strict_math import functions as strict_math
from mview.execute.turns import aside
from mview.files.scratch import ScratchFolder
from mview.memory import Demand
from mview.rows.parts import Parts

#: Queries that stay planned, whatever DuckDB may hold, and bytes of its share for each further one:
#: of a plan with its connection some 90 KiB (measured), which are a quarter of this.
_LEAST_PLANS, _BYTES_PER_PLAN = 500, 360 << 10

#: So many rows of a result, of so many bytes, are read sooner one by one than by the query that
#: makes Arrow of them. Where the last result had no more, a few times as many are still read: else
#: it is run once more.
_FEW_ROWS, _FEW_BYTES, _STILL = 512, 1 << 20, 4

# The copy is that of a small result, and asking for a relation instead plans the statement twice.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result makes an extra copy")

_local = threading.local()

#: Bytes that DuckDB may hold where nobody said how many: in Spark's workers.
_UNSAID = 512 << 20


def closed_database(memory: int = _UNSAID) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that reaches nothing: no files but those it spills to, no extensions.

    What it may do can't be changed any more, by no query. Times with a zone are shown in UTC.

    Args:
        memory: bytes that all its queries may hold; beyond, they sort and group on disk.
    """
    # The default order of rows is kept: without it, DuckDB returns ORDER BY unsorted. Tables are
    # small as a rule: a second thread takes longer to wake up than to help.
    database = duckdb.connect(
        config={
            "threads": "1",
            "enable_object_cache": "true",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": f"{memory // 1024}KiB",
            "temp_directory": str(_spill().path),
        }
    )
    strict_math.add_to(database)
    sketches.add_to(database)
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    database.execute("SET GLOBAL enable_external_access = false")
    database.execute("SET GLOBAL lock_configuration = true")
    return database


@cache
def _spill() -> ScratchFolder:
    """The folder of this process for what does not fit."""
    return ScratchFolder("mview-spill-")


class _Shared:
    """The DuckDB that all queries of this process have together, so that one limit holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = _UNSAID
        #: Queries that a `Queries` keeps planned.
        self.most_plans = max(_LEAST_PLANS, _UNSAID // _BYTES_PER_PLAN)
        self._database: duckdb.DuckDBPyConnection | None = None

    def limit(self, memory: int) -> None:
        with self._lock:
            self.most_plans = max(_LEAST_PLANS, memory // _BYTES_PER_PLAN)
            if memory != self._memory:
                # Its limit cannot be changed; who has queries in it goes on with it.
                self._memory, self._database = memory, None

    def close(self) -> None:
        with self._lock:
            self._database = None

    @property
    def database(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = closed_database(self._memory)
            return self._database


_shared = _Shared()


@atexit.register
def _forget() -> None:
    """Free DuckDB before the interpreter ends, which else lists on stderr what is left of it."""
    if (queries := _local.__dict__.pop("queries", None)) is not None:
        queries.close()
    _shared.close()
    if _spill.cache_info().currsize:
        _spill().close()


def limit_memory(memory: int) -> None:
    """Say what DuckDB may hold in this process, all queries together that are made from now on.

    Args:
        memory: bytes.
    """
    _shared.limit(memory)


class _Stream:
    """A table of a planned query; DuckDB asks for its rows at every run."""

    def __init__(self, schema: pa.Schema) -> None:
        self._none = self.rows = schema.empty_table()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)

    def clear(self) -> None:
        """Hold no rows between two runs."""
        self.rows = self._none


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Python has all values of a type, and DuckDB hands them over as they are."""
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind)
    return bool(is_number or pa.types.is_boolean(kind) or pa.types.is_string(kind))


def _is_small(result: pa.Table) -> bool:
    size: int = result.get_total_buffer_size()
    return result.num_rows <= _FEW_ROWS and size <= _FEW_BYTES


class _Planned:
    """A query, its tables and a connection of their own: others would invalidate the plan."""

    def __init__(
        self, database: duckdb.DuckDBPyConnection, sql: str, tables: Mapping[str, pa.Schema]
    ) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._connection = database.cursor()
        self._streams = {name: _Stream(schema) for name, schema in tables.items()}
        # The columns of results, where the last one was small and can be read row by row.
        self._schema: pa.Schema | None = None
        self._is_plain = True
        try:
            for name, stream in self._streams.items():
                self._connection.register(name, stream)
            self._connection.execute(f"PREPARE planned AS {sql}")
        except BaseException:
            self.close()
            raise

    def run(self, tables: Mapping[str, pa.Table]) -> pa.Table | None:
        """The result; None: it was closed, as others are asked for more often."""
        # Aside first: who has the lock needs no turn to give it back.
        with aside(), self._lock:
            if self._is_closed:
                return None
            for name, rows in tables.items():
                self._streams[name].rows = rows
            try:
                result = self._few()
                if result is None:
                    result = cast(pa.Table, self._execute().to_arrow_table())
                    self._is_plain = self._is_plain and all(map(_is_plain, result.schema.types))
                self._schema = result.schema if self._is_plain and _is_small(result) else None
            finally:
                for stream in self._streams.values():
                    stream.clear()
        return result

    def _few(self) -> pa.Table | None:
        """A result of few rows; None: it may have many, or values that have to come as Arrow."""
        if self._schema is None:
            return None
        try:
            rows = self._execute().fetchmany(_STILL * _FEW_ROWS + 1)
            if len(rows) > _STILL * _FEW_ROWS:
                return None
            values = zip(*rows, strict=True) if rows else [()] * len(self._schema)
            columns = map(pa.array, values, self._schema.types)
            return pa.Table.from_arrays(list(columns), schema=self._schema)
        except (pa.ArrowException, OverflowError):  # a number of 39 digits
            self._is_plain = False
            return None
        except duckdb.Error:  # it comes again, but for a text that is none
            return None

    def _execute(self) -> duckdb.DuckDBPyConnection:
        return self._connection.execute("EXECUTE planned")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()


class Queries:
    """Queries of the process's in-memory DuckDB.

    Several threads may run queries at once; of the same one, one waits for the other. Times with a
    zone are shown in UTC. Where there are more queries than stay planned, those stay that are asked
    for the most: each epoch asks for all of them in turn, and to plan the newest in the place of
    the oldest would be to plan all, every time.

    Args:
        most: queries that stay planned; None: as many as DuckDB's memory is made for.
    """

    def __init__(self, most: int | None = None) -> None:
        self._database = _shared.database
        self._most = _shared.most_plans if most is None else most
        self._lock = threading.Lock()
        self._planned: OrderedDict[Hashable, _Planned] = OrderedDict()
        self._demand = Demand()
        #: Queries that were planned so far.
        self.plans = 0

    def run(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The result of a query over tables by name.

        Raises:
            duckdb.Error: DuckDB refuses the text, or failed over these rows.
        """
        types = (
            (name, *zip(rows.column_names, rows.schema.types, strict=True))
            for name, rows in tables.items()
        )
        key = sql, *types
        while True:
            planned = self._kept(key)
            if planned is None:
                break
            if (result := planned.run(tables)) is not None:
                return result
        self.plans += 1
        planned = _Planned(self._database, sql, {name: t.schema for name, t in tables.items()})
        try:
            result = planned.run(tables)
        except BaseException:
            planned.close()
            raise
        self._keep(key, planned)
        return cast(pa.Table, result)

    def stream(self, sql: str, tables: Mapping[str, Parts], rows: int) -> Iterator[pa.RecordBatch]:
        """The result of a query, planned for this once, over tables that are read part by part.

        Neither they nor the result are held; what the query holds itself is bounded, and goes to
        the disk beyond.

        Args:
            sql: the query.
            tables: what it reads, by name.
            rows: of a batch of the result, at the most.

        Raises:
            duckdb.Error: DuckDB refuses the text, or failed over these rows.
            Exception: a table could not be read, as it says itself.
        """
        connection = self._database.cursor()
        try:
            with aside():
                for name, parts in tables.items():
                    connection.register(name, parts)
                result = connection.execute(sql).to_arrow_reader(rows)
            batches = iter(cast(pa.RecordBatchReader, result))
            while True:
                with aside():
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        except (duckdb.Error, pa.ArrowException) as error:
            for parts in tables.values():
                if parts.failure is not None:
                    raise parts.failure from None
            if isinstance(error, duckdb.Error):
                raise
            raise duckdb.Error(str(error)) from error
        finally:
            connection.close()

    def _kept(self, key: Hashable) -> _Planned | None:
        with self._lock:
            self._demand.note(key, len(self._planned))
            planned = self._planned.get(key)
            if planned is not None:
                self._planned.move_to_end(key)
            return planned

    def _keep(self, key: Hashable, planned: _Planned) -> None:
        """Keep a plan, in the place of the oldest one if that is asked for less often."""
        goes: _Planned | None = planned
        with self._lock:
            oldest = next(iter(self._planned)) if len(self._planned) >= self._most else None
            if key not in self._planned and (oldest is None or self._demand.outranks(key, oldest)):
                goes = None if oldest is None else self._planned.pop(oldest)
                self._planned[key] = planned
        if goes is not None:
            goes.close()

    @property
    def is_outdated(self) -> bool:
        """Whether another limit holds by now for what is new."""
        return self._database is not _shared.database

    def close(self) -> None:
        """Free the connections."""
        with self._lock:
            kept = list(self._planned.values())
            self._planned.clear()
        for planned in kept:
            planned.close()
        # The stream's callback threads outlive the interpreter; they must hold no DuckDB object.
        del self._database


def run_here(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The result of a query of ours, planned for this thread alone.

    Raises:
        DataError: rows are so large that DuckDB cannot hold them, nor a part of them at a time.
    """
    queries: Queries | None = getattr(_local, "queries", None)
    if queries is None or queries.is_outdated:
        queries = _local.queries = Queries()
    try:
        return queries.run(sql, tables)
    except duckdb.OutOfMemoryException as error:
        size = max((rows.nbytes // rows.num_rows for rows in tables.values() if rows), default=0)
        raise DataError(
            "rows are too large for engine.memory",
            got=f"rows of {size} bytes; {str(error).splitlines()[0]}",
            safe="nothing of this epoch was published",
            hint="set a larger engine.memory and run the same command again",
        ) from error
