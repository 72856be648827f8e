"""Reading rows by key with DuckDB: of changes held in memory, and of Parquet files as a whole."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from mview.queries import of_this_thread

_local = threading.local()


def _files() -> duckdb.DuckDBPyConnection:
    connection = getattr(_local, "connection", None)
    if connection is None:
        # Kept, because it remembers the files' metadata between epochs.
        connection = _local.connection = duckdb.connect(
            config={"threads": "1", "enable_object_cache": "true"}
        )
        connection.execute("SET TimeZone = 'UTC'")
    return connection


def quote(name: str) -> str:
    """A DuckDB identifier."""
    return '"' + name.replace('"', '""') + '"'


def semi_join(source: str, select: Sequence[str], keys: pa.Table | None, null_safe: bool) -> str:
    """SQL for the rows of `source` whose key columns are among `keys`; all rows for None.

    The key relation is called `keys`. NaN equals NaN here, which at most adds rows.
    """
    columns = ", ".join(f"t.{quote(name)}" for name in select)
    if keys is None:
        return f"SELECT {columns} FROM {source} t"
    equals = "IS NOT DISTINCT FROM" if null_safe else "="
    condition = " AND ".join(
        f"t.{quote(name)} {equals} k.{quote(name)}" for name in keys.column_names
    )
    return f"SELECT {columns} FROM {source} t SEMI JOIN keys k ON {condition}"


def scan_files(
    files: Sequence[str], schema: pa.Schema, keys: pa.Table | None, null_safe: bool
) -> pa.Table:
    """The rows of Parquet files whose key columns are among `keys`.

    Args:
        files: absolute paths.
        schema: columns and types to return.
        keys: distinct key rows, columns named as in the files; None reads everything.
        null_safe: NULL matches NULL.
    """
    if not files:
        return schema.empty_table()
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    query = semi_join(f"read_parquet([{listed}])", schema.names, keys, null_safe)
    connection = _files()
    if keys is not None:
        connection.register("keys", keys)
    try:
        return connection.sql(query).to_arrow_table().cast(schema)
    finally:
        if keys is not None:
            connection.unregister("keys")


def scan_table(
    rows: pa.Table, schema: pa.Schema, keys: pa.Table | None, null_safe: bool
) -> pa.Table:
    """The same over rows in memory."""
    if keys is None or rows.num_rows == 0:
        return rows.select(schema.names).cast(schema)
    query = semi_join("source_rows", schema.names, keys, null_safe)
    return of_this_thread().run(query, {"keys": keys, "source_rows": rows}).cast(schema)
