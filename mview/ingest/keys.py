"""Whether the keys of tables are those by which they were loaded, where no log tells of others.

A database's own log tells where a table gets another key. What programs write of changes does not,
and rows that only the new key tells apart would become one, without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress

from mview.config import Config
from mview.connector.halts import TableHalt, altered, lost_key
from mview.errors import NoKeyError, RetryableError, UserError
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
    halts = {}
    # One that is away is asked once.
    with suppress(RetryableError), closing(open_database(config, connection)) as database:
        for table in tables:
            key = table.schema.key
            try:
                # Columns of the key alone: another one may be of a type that cannot be read.
                is_kept = {*database.describe(table.source_name, _none).key} <= {*key}
            except NoKeyError:
                is_kept = False
            except UserError:
                continue
            if not is_kept:
                place = f"connections.{connection}"
                halts[table.source_name] = altered(str(table.name), place, lost_key(key))
    return halts


def _none(_: str) -> bool:
    return False
