"""A real TiDB server in one process, where there is one: no package has it.

It is built from the Go module `github.com/pingcap/tidb` (version v1.1.0-beta.0.20220124083611 and
its parser), which takes some minutes, and looked for in the cache of mview.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from mview.java.jars import cache_folder
from tests.services.process import ServerProcess, ServiceError, free_port


def tidb_binary() -> Path:
    """The server's program.

    Raises:
        ServiceError: it is not there.
    """
    path = Path(os.environ.get("MVIEW_TIDB", cache_folder().parent / "tidb" / "tidb-server"))
    if not path.is_file():
        raise ServiceError(f"there is no {path}; set MVIEW_TIDB to a tidb-server")
    return path


class TidbServer:
    """A running server, with its store in a folder, and what tests do with it."""

    def __init__(self, folder: Path) -> None:
        binary = tidb_binary()
        self.port, status = free_port(), free_port()
        self._names = count(1)
        command = [
            *(binary, "-store", "unistore", "-path", folder / "data", "-host", "127.0.0.1"),
            *("-P", str(self.port), "-status", str(status), "-status-host", "127.0.0.1"),
            *("-socket", ""),
        ]
        self._server = ServerProcess("TiDB", command, folder / "tidb.log")
        self._server.wait_until_ready(lambda: self.execute("SELECT 1"))

    def settings(self, database: str) -> dict[str, Any]:
        """Keyword arguments of ConnectionSettings."""
        return {
            "drivername": "mysql",
            "host": "127.0.0.1",
            "port": self.port,
            "username": "root",
            "database": database,
        }

    def connect(self, database: str | None = None) -> Any:
        """A connection with explicit transactions."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            charset="utf8mb4",
            client_flag=CLIENT.MULTI_STATEMENTS,
            ssl_disabled=True,
        )

    def execute(self, sql: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement, commit, and give its rows."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            rows = list(cursor.fetchall())
            connection.commit()
            return rows

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The name of a fresh database, dropped at the end."""
        name = f"ti_shop{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name}")

    def stop(self) -> None:
        """End the server."""
        self._server.kill()
