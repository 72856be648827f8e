"""Whether the keys of tables are those by which they were loaded, where no log tells of others.

A database's own log tells where a table gets another key. What programs write of changes does not,
and rows that only the new key tells apart would become one, without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress

from mview.config import Config
from mview.connector import Database
from mview.connector.halts import TableHalt, altered, lost_key
from mview.errors import RetryableError, UserError
from mview.ingest.spec import TableSpec, open_database


def with_other_keys(
    config: Config, connection: str, tables: Iterable[TableSpec]
) -> dict[str, TableHalt]:
    """The loaded tables of a connection of which rows may be apart that our key takes for one.

    A database that does not answer, or does not have a table, says nothing of it: they go on as
    they were loaded.

    Returns:
        By name, why a table halts.
    """
    halts: dict[str, TableHalt] = {}
    with (
        suppress(RetryableError, UserError),
        closing(open_database(config, connection)) as database,
    ):
        database.clock()  # one that is away, or lets nobody in, is asked once
        for table in tables:
            if not _keeps_apart(database, table):
                what = lost_key(table.schema.key)
                halts[table.source_name] = altered(
                    str(table.name), f"connections.{connection}", what
                )
    return halts


def _keeps_apart(database: Database, table: TableSpec) -> bool:
    """Whether our key tells rows apart: it has all columns of a key; so it is if nobody knows."""
    ours = {*table.schema.key}
    try:
        return any(ours.issuperset(key) for key in database.keys(table.source_name))
    except UserError:
        return True
