"""DuckDB queries that are planned once and run over ever new Arrow tables.

To register a few tables and to plan a query over them takes ten times as long as to run it over
some hundred rows. So a query keeps a connection in which its tables are registered as streams, with
a prepared statement over them; a run only puts other rows behind the streams.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import cast

import duckdb
import pyarrow as pa

from mview.turns import aside

#: Queries that stay planned; beyond, the oldest is planned again when it is asked for.
_MOST = 500

# The copy is that of a small result, and asking for a relation instead plans the statement twice.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result makes an extra copy")


_local = threading.local()


class _Stream:
    """A table of a planned query; DuckDB asks for its rows at every run."""

    def __init__(self, schema: pa.Schema) -> None:
        self._none = self.rows = schema.empty_table()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)

    def clear(self) -> None:
        """Hold no rows between two runs."""
        self.rows = self._none


class _Planned:
    """A query, its tables and a connection of their own: others would invalidate the plan."""

    def __init__(
        self, database: duckdb.DuckDBPyConnection, sql: str, tables: Mapping[str, pa.Schema]
    ) -> None:
        self._lock = threading.Lock()
        self._connection = database.cursor()
        self._streams = {name: _Stream(schema) for name, schema in tables.items()}
        try:
            for name, stream in self._streams.items():
                self._connection.register(name, stream)
            self._connection.execute(f"PREPARE planned AS {sql}")
        except BaseException:
            self.close()
            raise

    def run(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        # Aside first: who has the lock needs no turn to give it back.
        with aside(), self._lock:
            for name, rows in tables.items():
                self._streams[name].rows = rows
            try:
                found = self._connection.execute("EXECUTE planned").to_arrow_table()
            finally:
                for stream in self._streams.values():
                    stream.clear()
        return cast(pa.Table, found)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class Queries:
    """Queries of one in-memory DuckDB.

    Several threads may run queries at once; of the same one, one waits for the other. Times with a
    zone are shown in UTC.
    """

    def __init__(self) -> None:
        # The default order of rows is kept: without it, DuckDB returns ORDER BY unsorted. Tables
        # are small as a rule: a second thread takes longer to wake up than to help.
        self._database = duckdb.connect(config={"threads": "1"})
        self._database.execute("SET GLOBAL TimeZone = 'UTC'")
        self._planned: dict[object, _Planned] = {}

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
        planned = self._planned.get(key)
        if planned is None:
            schemas = {name: rows.schema for name, rows in tables.items()}
            planned = self._planned[key] = _Planned(self._database, sql, schemas)
            if len(self._planned) > _MOST:
                self._planned.pop(next(iter(self._planned))).close()
        return planned.run(tables)

    def close(self) -> None:
        """Free the connections."""
        for planned in self._planned.values():
            planned.close()
        self._planned.clear()
        self._database.close()
        # The stream's callback threads outlive the interpreter; they must hold no DuckDB object.
        del self._database


def of_this_thread() -> Queries:
    """Queries that no other thread runs; they stay as long as the thread."""
    found: Queries | None = getattr(_local, "queries", None)
    if found is None:
        found = _local.queries = Queries()
    return found
