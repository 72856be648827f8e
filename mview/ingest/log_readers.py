"""The end of who reads a database's own log: its server keeps nothing for it any more.

The server is told only after the store has forgotten who read: nobody may go on from a place that
is gone. So who is to be ended is noted before that; what cannot be told now is with the next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial

from mview.config import Config
from mview.connector import Offsets, Retaining
from mview.errors import MviewError, RetryableError
from mview.files.durable import put
from mview.files.fence import Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.ingest.spec import log_reader, open_changelog
from mview.store.identity import copied_from
from mview.store.layout import Store


@dataclass(frozen=True)
class LeftReader:
    """Who reads a database's own log no more.

    Attributes:
        connection: whose log.
        light: see `LogReader`.
        known: up to where it has read; None: nobody knows.
    """

    connection: str
    light: str
    known: Offsets | None


def note_left(store: Store, left: Iterable[LeftReader], fence: Fence) -> None:
    """Note who is to be ended, before it is forgotten that it reads; see `end_left`."""
    fence.check()
    for reader in left:
        name = hashlib.sha256(f"{reader.connection}\0{reader.light}".encode()).hexdigest()[:16]
        store.left_readers.mkdir(exist_ok=True)
        put(store.left_readers / f"{name}.json", checked(asdict(reader)))


def end_left(config: Config, store: Store, is_used: Callable[[LeftReader], bool]) -> list[str]:
    """Have servers keep their logs for those who are noted no more.

    A server that cannot be told is told the next time.

    Args:
        config: the configuration.
        store: the store.
        is_used: whether somebody reads under that name, still or again: it is not ended then.

    Returns:
        What people must know.
    """
    told = []
    for file in sorted(store.left_readers.glob("*.json")):
        try:
            left: LeftReader = read_checked(
                file,
                partial(record, LeftReader),
                "it cannot be read who reads a database's log no more",
                "remove the file; what the database keeps is removed by hand, see "
                "docs/light.md#readers",
            )
            if not is_used(left):
                told.append(_end(config, store, left))
            file.unlink()
        except MviewError as error:
            told.append(str(error.render()))
    return [text for text in told if text]


def _end(config: Config, store: Store, left: LeftReader) -> str:
    """Have a server keep its log for a reader no more; in a copy of a store it is left alone.

    What a copy has noted as its place in the log is that of the store that was copied.

    Returns:
        What people must know; empty: nothing is left.

    Raises:
        RetryableError: the server cannot be told.
    """
    connection, who = left.connection, left.light or "the store"
    if connection not in config.connections or connection not in config.changes:
        return (
            f"the log of {connection} is not read any more by the configuration: what its server "
            f"may keep for {who} stays there, see docs/light.md#readers"
        )
    if not config.changes[connection].is_own_log:
        return (
            f"the log of {connection} is another one now: what the database's own keeps for {who} "
            "stays there, see docs/light.md#readers"
        )
    try:
        reader = log_reader(config, left.light)
        with closing(open_changelog(config, connection, [], reader=reader)) as changelog:
            if not isinstance(changelog, Retaining):
                return ""
            if (original := copied_from(store.root)) is not None:
                return (
                    f"the store is a copy of {original}, which reads the log of {connection}: what "
                    f"its server keeps for {who} stays there, see docs/light.md#readers"
                )
            changelog.leave(left.known)
    except MviewError as error:
        raise RetryableError(
            f"the database of {connection} cannot be told that {who} reads its log no more, and "
            f"keeps it until it is: {error.what}",
            where=error.where,
            got=error.got,
            safe="nothing is lost, and nothing else waits for it",
            hint="mend that: the next run, or drop, of the store tells it; or, where that database "
            f"is gone for good, take {connection} out of {config.path} before",
        ) from error
    return ""
