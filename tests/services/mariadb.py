"""A real MariaDB server with a row-based binary log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tests.services.process import ServerProcess, ServiceError, free_port, run, wait_until

_PASSWORD_VARIABLE = "MVIEW_TEST_MARIADB_PASSWORD"
_PASSWORD = "mariadb-of-the-tests"
_DEBIAN = "apt-get install --no-install-recommends mariadb-server-core mariadb-client-core"


class MariadbServer:
    """A running server and what tests do with it."""

    def __init__(self, folder: Path, number: int = 1) -> None:
        server = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
        install = shutil.which("mariadb-install-db")
        if server is None or install is None:
            raise ServiceError(f"mariadbd is not installed; `make services` or: {_DEBIAN}")
        self.port = free_port()
        self._names = count(1)
        data, scratch = folder / "data", folder / "tmp"
        scratch.mkdir(parents=True)  # its own: a server that starts clears it of others' files
        user = ["--user=root"] if os.geteuid() == 0 else []
        normal = "--auth-root-authentication-method=normal"
        run(
            "mariadb-install-db",
            [
                install,
                "--no-defaults",
                f"--datadir={data}",
                f"--tmpdir={scratch}",
                normal,
                "--skip-test-db",
                *user,
            ],
        )
        init = folder / "init.sql"
        password = f"ALTER USER root@localhost IDENTIFIED BY '{_PASSWORD}';"
        init.write_text(f"SET sql_log_bin = 0;\n{password}\n")  # at every start: it is no change
        command = [
            *(server, "--no-defaults", f"--datadir={data}", f"--init-file={init}", *user),
            *(f"--socket={folder}/s", f"--pid-file={folder}/pid"),
            f"--tmpdir={scratch}",
            *("--bind-address=127.0.0.1", f"--server-id={number}"),
            *("--log-bin", "--log-slave-updates", "--binlog-format=ROW", "--binlog-row-image=FULL"),
            *("--binlog-row-metadata=FULL", "--gtid-strict-mode=1"),
            *("--character-set-server=utf8mb4", "--innodb-flush-log-at-trx-commit=0"),
            *("--innodb-buffer-pool-size=64M", "--performance-schema=OFF"),
        ]
        self._command, self._log = command, folder / "mariadb.log"
        self.restart()
        os.environ[_PASSWORD_VARIABLE] = _PASSWORD

    def settings(self, database: str) -> dict[str, Any]:
        """Keyword arguments of ConnectionSettings."""
        return {
            "drivername": "mariadb",
            "host": "127.0.0.1",
            "port": self.port,
            "username": "root",
            "password": f"${{env:{_PASSWORD_VARIABLE}}}",
            "database": database,
        }

    def follow(self, primary: MariadbServer) -> None:
        """Be a replica of another server, by GTID, from what it has on."""
        self.execute(
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {primary.port}, "
            f"master_user = 'root', master_password = '{_PASSWORD}', master_use_gtid = slave_pos; "
            "START SLAVE"
        )

    def until_at(self, primary: MariadbServer) -> None:
        """Wait until it has what its primary has now."""
        ((at,),) = primary.execute("SELECT @@gtid_binlog_pos")
        wait_until(lambda: self.execute("SELECT @@gtid_slave_pos")[0][0] == at, "the replica", 30)

    def promote(self) -> None:
        """Be a replica no more, with what has come."""
        self.execute("STOP SLAVE; RESET SLAVE ALL")

    def restart_at(self, port: int) -> None:
        """Answer at another port, which is free by now."""
        self.kill()
        self.port = port
        self.restart()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._server.pid

    def connector(self, database: str, *tables: str) -> dict[str, str]:
        """Settings of a Debezium connector; topics are `<database>.<database>.<table>`."""
        return {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.port),
            "database.user": "root",
            "database.password": _PASSWORD,
            "database.server.id": str(5000 + next(self._names)),
            "database.ssl.mode": "disable",
            "database.include.list": database,
            "table.include.list": ",".join(f"{database}.{table}" for table in tables),
            "topic.prefix": database,
        }

    def connect(self, database: str | None = None) -> Any:
        """A connection with explicit transactions."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            password=_PASSWORD,
            database=database,
            charset="utf8mb4",
            client_flag=CLIENT.MULTI_STATEMENTS,
            # Else each connection reads all certificates of the system, 40 ms of it.
            ssl_disabled=True,
        )

    def execute(self, sql: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one or more statements, commit, and give the rows of the last that has some."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                rows = list(cursor.fetchall())
                while cursor.nextset():
                    rows = list(cursor.fetchall()) or rows
            connection.commit()
            return rows
        finally:
            connection.close()

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The name of a fresh database, dropped at the end."""
        name = f"my_shop{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.roll_back_prepared()
            self.execute(f"DROP DATABASE {name}")

    def roll_back_prepared(self) -> None:
        """End what was prepared: it holds locks, and is of no database."""
        for _, length, _, data in self.execute("XA RECOVER"):
            name = data.decode() if isinstance(data, bytes) else data
            parts = f"'{name[:length]}','{name[length:]}'"
            # Without it each session is in a transaction, in which no other one may be decided.
            self.execute(f"SET autocommit = 1; XA ROLLBACK {parts}")

    def kill(self) -> None:
        """End the server at once, with all that it had committed until now."""
        # Else what was committed in the last second is lost, though it is in the binary log. As the
        # server is set up, it flushes nothing when it is asked.
        self.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1; FLUSH LOCAL ENGINE LOGS")
        self._server.kill()

    def restart(self, *options: str) -> None:
        """Start it, with what it has on disk."""
        command = [*self._command, f"--port={self.port}", *options]
        self._server = ServerProcess("MariaDB", command, self._log)
        self._server.wait_until_ready(lambda: self.execute("SELECT 1"))

    def stop(self) -> None:
        """End the server."""
        self._server.kill()
        os.environ.pop(_PASSWORD_VARIABLE, None)
