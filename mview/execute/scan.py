"""Reading rows by key: of changes held in memory, and of Parquet files as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from mview.delta.parquet import read_parquet
from mview.execute.queries import run_here


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
    names = list(dict.fromkeys([*schema.names, *(keys.column_names if keys is not None else ())]))
    answers = []
    for file in files:
        # Not by DuckDB: it looks at no checksums.
        rows = read_parquet(Path(file), schema, names)
        answers.append(scan_table(rows, schema, keys, null_safe))
    return pa.concat_tables(answers)


def scan_table(
    rows: pa.Table, schema: pa.Schema, keys: pa.Table | None, null_safe: bool
) -> pa.Table:
    """The same over rows in memory."""
    if keys is None or rows.num_rows == 0:
        return rows.select(schema.names).cast(schema)
    query = semi_join("source_rows", schema.names, keys, null_safe)
    return run_here(query, {"keys": keys, "source_rows": rows}).cast(schema)
