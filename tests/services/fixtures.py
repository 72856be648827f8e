"""Session fixtures of real servers: kafka, mariadb, postgresql, debezium, clickhouse, Paimon's
reader and a conformance server for StarRocks; started on first use.

Tests that use them carry the marker `service`; conftest.py keeps all of those on one xdist worker,
so one process owns the servers and nothing is shared between processes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from mview_connectors.followers.hudi.environment import ENVIRONMENT
from mview_connectors.followers.paimon.environment import interpreter

from mview.errors import MviewError
from tests.services.clickhouse import ClickhouseServer
from tests.services.cluster import SparkCluster
from tests.services.dbt import ENVIRONMENT as DBT
from tests.services.debezium import DebeziumServer
from tests.services.duckdb_reader import DuckdbReader
from tests.services.kafka import KafkaServer
from tests.services.mariadb import MariadbServer
from tests.services.nessie import NessieServer
from tests.services.odbc import check_drivers
from tests.services.paimon import PaimonReader
from tests.services.postgresql import PostgresqlServer
from tests.services.process import ServiceError
from tests.services.registry import RegistryServer
from tests.services.s3 import S3Server
from tests.services.starrocks import StarrocksServer
from tests.services.tidb import TidbServer, tidb_binary

REQUIRED = any(os.environ.get(n) in ("true", "1") for n in ("CI", "MVIEW_REQUIRE_SERVICES"))


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    # Not pytest's folders: those are closed to other users, and PostgreSQL runs as one.
    folder = Path(tempfile.mkdtemp(prefix=f"mview-{name}-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _or_skip(name: str) -> Iterator[None]:
    """Turn "cannot be had" into a skip, or into a failure where services are required."""
    try:
        yield
    except (ServiceError, MviewError) as error:
        message = f"SERVICE MISSING: {name}: {error}"
        if REQUIRED:
            pytest.fail(message, pytrace=False)
        pytest.skip(message)


class _Server(Protocol):
    def stop(self) -> None: ...


S = TypeVar("S", bound=_Server)


@contextmanager
def running(name: str, start: Callable[[Path], S]) -> Iterator[S]:
    """A server in a folder of its own, or the skip or failure that says why there is none."""
    with _folder(name.lower().replace(" ", "-")) as folder:
        with _or_skip(name):
            server = start(folder)
        yield server
        server.stop()


@contextmanager
def servers() -> Iterator[Callable[[str], Any]]:
    """Servers for programs that are no tests, by the names of their fixtures; started when asked
    for, and ended together."""
    makers: dict[str, Callable[[Path], Any]] = {
        "kafka": KafkaServer,
        "mariadb": MariadbServer,
        "postgresql": PostgresqlServer,
        "clickhouse": ClickhouseServer,
        "starrocks": lambda _: StarrocksServer(),
        "paimon_reader": PaimonReader,
    }
    with ExitStack() as started:

        @cache
        def server(name: str) -> Any:
            if name == "hudi":  # an environment, where nothing runs
                return ENVIRONMENT.made()
            made = makers[name](started.enter_context(_folder(name)))
            started.callback(made.stop)
            return made

        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka broker."""
    with running("Kafka", KafkaServer) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """A MariaDB server."""
    with running("MariaDB", MariadbServer) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL server."""
    with running("PostgreSQL", PostgresqlServer) as server:
        yield server


@pytest.fixture(scope="session")
def tidb() -> Iterator[TidbServer]:
    """A TiDB server; it is in no package, so it is required nowhere."""
    try:
        tidb_binary()
    except ServiceError as error:
        pytest.skip(f"OPTIONAL SERVICE MISSING: TiDB was NOT tested: {error}")
    with running("TiDB", TidbServer) as server:
        yield server


@pytest.fixture(scope="session")
def odbc() -> None:
    """The ODBC drivers of MariaDB and PostgreSQL."""
    with _or_skip("ODBC"):
        check_drivers()


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[ClickhouseServer]:
    """A ClickHouse server."""
    with running("ClickHouse", ClickhouseServer) as server:
        yield server


@pytest.fixture(scope="session")
def starrocks() -> Iterator[StarrocksServer]:
    """The conformance server for StarRocks."""
    server = StarrocksServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def debezium(kafka: KafkaServer) -> Iterator[DebeziumServer]:
    """Kafka Connect with Debezium."""
    with running("Debezium", lambda folder: DebeziumServer(folder, kafka)) as server:
        yield server


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """A schema registry."""
    with running("Apicurio", RegistryServer) as server:
        yield server


@pytest.fixture(scope="session")
def paimon_reader() -> Iterator[PaimonReader]:
    """Paimon's own reader; the sink's side environment is there, too."""
    with _or_skip("Paimon's environment"):
        interpreter()
    with running("Paimon's reader", PaimonReader) as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server."""
    with running("S3", S3Server) as server:
        yield server


@pytest.fixture(scope="session")
def nessie(s3: S3Server) -> Iterator[NessieServer]:
    """An Iceberg REST catalog."""
    with running("Nessie", lambda folder: NessieServer(folder, s3)) as server:
        yield server


@pytest.fixture(scope="session")
def duckdb_reader() -> Iterator[DuckdbReader]:
    """DuckDB's reader of Iceberg."""
    with running("DuckDB's reader", DuckdbReader) as server:
        yield server


@pytest.fixture(scope="session")
def dbt() -> None:
    """dbt, in an environment of its own."""
    with _or_skip("dbt"):
        DBT.made()


@pytest.fixture(scope="session")
def hudi() -> None:
    """The side environment of Hudi sinks."""
    with _or_skip("Hudi's environment"):
        ENVIRONMENT.made()


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A standalone Spark cluster of two worker processes."""
    with running("Spark cluster", SparkCluster) as server:
        yield server
