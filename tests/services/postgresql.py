"""A real PostgreSQL server with logical decoding."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.patience import Patience
from tests.services.process import START_TIMEOUT, ServerProcess, ServiceError, free_port, run

_PASSWORD_VARIABLE = "MVIEW_TEST_POSTGRESQL_PASSWORD"
_PASSWORD = "postgresql-of-the-tests"
_DEBIAN = "apt-get install --no-install-recommends postgresql"


def _programs() -> Path:
    # Debian keeps the server's programs out of PATH, one folder per version.
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = str(versions[-1]) if versions else shutil.which("postgres")
    if found is None:
        raise ServiceError(f"postgres is not installed; `make services` or: {_DEBIAN}")
    return Path(found).parent


class PostgresqlServer:
    """A running server and what tests do with it."""

    def __init__(self, folder: Path) -> None:
        programs = _programs()
        self.port = free_port()
        self._names = count(1)
        # The server refuses to run as root: Debian's package has a user for it.
        account: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            account |= {"user": "postgres", "group": "postgres", "extra_groups": []}
        secret, data = folder / "password", folder / "data"
        secret.write_text(_PASSWORD)
        secret.chmod(0o644)
        run(
            "initdb",
            [
                *(programs / "initdb", "-D", data, "-U", "postgres", "--no-sync"),
                *("--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"),
            ],
            **account,
        )
        # In the file, so that ALTER SYSTEM may say otherwise.
        with (data / "postgresql.conf").open("a") as conf:
            conf.write("max_prepared_transactions = 20\n")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_replication_slots": 20,
            "max_wal_senders": 20,
            "fsync": "off",
            "shared_buffers": "64MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._command = [programs / "postgres", "-D", data, *options]
        self._log, self._account = folder / "postgresql.log", account
        self._start()
        os.environ[_PASSWORD_VARIABLE] = _PASSWORD

    def settings(self, database: str) -> dict[str, Any]:
        """Keyword arguments of ConnectionSettings."""
        return {
            "drivername": "postgresql",
            "host": "127.0.0.1",
            "port": self.port,
            "username": "postgres",
            "password": f"${{env:{_PASSWORD_VARIABLE}}}",
            "database": database,
        }

    @property
    def pid(self) -> int:
        """Its process."""
        return self._server.pid

    def connector(self, database: str, *tables: str) -> dict[str, str]:
        """Settings of a Debezium connector; topics are `<database>.public.<table>`."""
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.port),
            "database.user": "postgres",
            "database.password": _PASSWORD,
            "database.dbname": database,
            "slot.name": database,
            "publication.name": database,
            "publication.autocreate.mode": "filtered",
            "table.include.list": ",".join(f"public.{table}" for table in tables),
            "topic.prefix": database,
        }

    def connect(self, database: str | None = None) -> Any:
        """A connection with explicit transactions."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            password=_PASSWORD,
            dbname=database or "postgres",
        )

    def execute(self, sql: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one or more statements, commit, and give the rows of the last that has some."""
        with self.connect(database) as connection:
            connection.autocommit = True
            cursor = connection.execute(sql)
            rows: list[tuple[Any, ...]] = []
            while True:
                rows = cursor.fetchall() if cursor.description else rows
                if not cursor.nextset():
                    return rows

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The name of a fresh database, dropped at the end with its replication slots."""
        name = f"pg_shop{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            self.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots"
                f" WHERE database = '{name}' AND active"
            )
            self.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                f" WHERE database = '{name}'"
            )
            self.roll_back_prepared(name)
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def roll_back_prepared(self, database: str) -> None:
        """End what was prepared in a database: it cannot be dropped with that."""
        listed = self.execute(f"SELECT gid FROM pg_prepared_xacts WHERE database = '{database}'")
        for (gid,) in listed:
            self.execute(f"ROLLBACK PREPARED '{gid}'", database)

    def kill(self) -> None:
        """End the server at once; what it has committed is in the files of its log."""
        self._server.kill()

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Its files are afterwards what they were before; it must be down at both ends."""
        data = self._log.parent / "data"
        copy = data.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        run("cp", ["cp", "-a", data, copy])
        yield
        shutil.rmtree(data)
        copy.rename(data)

    def restart(self) -> None:
        """Start it again, with what it has on disk, once the last of the old processes is gone."""
        patience = Patience(START_TIMEOUT)
        while True:
            try:
                self._start()
                return
            except ServiceError:
                if patience.is_over():
                    raise
                time.sleep(0.2)

    def _start(self) -> None:
        self._server = ServerProcess("PostgreSQL", self._command, self._log, **self._account)
        self._server.wait_until_ready(lambda: self.execute("SELECT 1"))

    def stop(self) -> None:
        """End the server."""
        self._server.kill()
        os.environ.pop(_PASSWORD_VARIABLE, None)
