"""Whether what moves the watermark goes by a clock that T allows for.

A chunk counts when the watermark has passed the end of its read, by the database's clock, plus T.
Heartbeats through Kafka have the clock of the connector that sends them. One that is ahead of the
database's by more than T would have chunks count before the changes have come that they may have.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from mview.clock import END_OF_TIME, SourceMs
from mview.config import Config
from mview.connector import Database
from mview.errors import ConfigError, RetryableError
from mview.ingest.spec import open_database

#: Seconds between two questions: clocks drift slowly, and heartbeats come often.
_PAUSE_S = 1.0


class Clocks:
    """Holds watermarks of Kafka against the clocks of their databases, while tables are loaded.

    Args:
        config: the configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._databases: dict[str, Database] = {}
        self._asked = float("-inf")

    def check(self, marks: Mapping[str, SourceMs | None]) -> None:
        """Raise where a watermark is ahead of its database's clock by more than T.

        The clock is read after the watermark was sent, so by no less is the connector's ahead. A
        database that does not answer proves nothing: who reads chunks of it says so.

        Args:
            marks: the watermark of each connection.

        Raises:
            ConfigError: with by how much.
        """
        if time.monotonic() - self._asked < _PAUSE_S:
            return
        self._asked = time.monotonic()
        for name, mark in marks.items():
            settings = self._config.changes[name]
            if settings.source != "kafka" or mark is None or mark == END_OF_TIME:
                continue
            if name not in self._databases:
                self._databases[name] = open_database(self._config, name)
            with suppress(RetryableError):
                ahead = mark - self._databases[name].clock()
                if ahead > settings.delay:
                    raise ConfigError(
                        f"{settings.section}: what writes the heartbeats has a clock that is ahead "
                        "of the database's by more than T: rows could count before their changes "
                        "have come",
                        where=f"connections.{name}",
                        got=f"{ahead} ms ahead, or more; T is {settings.delay} ms",
                        safe="no row of this moment counts; published epochs are untouched",
                        hint="set both clocks right (NTP), or raise T above that, and run the same "
                        "command again",
                    )

    def close(self) -> None:
        """Free connections; may be called more than once."""
        for database in self._databases.values():
            database.close()
        self._databases = {}
