"""The end of who reads a database's own log: its server keeps nothing for it any more."""

from __future__ import annotations

from contextlib import closing

from mview.config import Config
from mview.connector import LogReader, Offsets, Retaining
from mview.errors import MviewError, RetryableError
from mview.ingest.spec import open_changelog
from mview.store.identity import copied_from


def end_reader(config: Config, connection: str, reader: LogReader, known: Offsets | None) -> str:
    """Have a server keep its log for a reader no more; in a copy of a store it is left alone.

    What a copy has noted as its place in the log is that of the store that was copied.

    Args:
        config: the configuration.
        connection: whose log it is.
        reader: who reads no more.
        known: up to where it has read; None: nobody knows.

    Returns:
        What people must know; empty: nothing is left.

    Raises:
        RetryableError: the server cannot be told.
    """
    changes = config.changes.get(connection)
    if connection not in config.connections or changes is None or not changes.is_own_log:
        return (
            f"the log of {connection} is not read any more by the configuration: what its server "
            f"keeps for {reader.light or 'the store'} stays there, see docs/light.md#readers"
        )
    try:
        with closing(open_changelog(config, connection, [], reader=reader)) as changelog:
            if not isinstance(changelog, Retaining):
                return ""
            if (original := copied_from(reader.store)) is not None:
                return (
                    f"the store is a copy of {original}, which reads the log of {connection}: what "
                    f"its server keeps for {reader.light or 'the store'} stays there, see "
                    "docs/light.md#readers"
                )
            changelog.leave(known)
    except MviewError as error:
        raise RetryableError(
            f"the database of {connection} cannot be told that {reader.light or 'the store'} reads "
            f"its log no more, and would keep it for ever: {error.what}",
            where=error.where,
            got=error.got,
            safe="nothing was removed",
            hint="mend that and run the same command again; or, where that database is gone for "
            f"good, take {connection} out of {config.path} before",
        ) from error
    return ""
