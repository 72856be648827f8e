"""Servers that take a connection and never answer: all that is asked of them comes to an end.

In a test seconds are what is a minute otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mview_connectors.databases.mysql import MysqlDatabase
from mview_connectors.databases.postgresql import PostgresqlDatabase
from mview_connectors.registry import SchemaRegistry

from mview.config import ConnectionSettings
from mview.connector import load
from mview.errors import AwayError, RetryableError
from mview.follower import FollowerFactory, FollowerTarget
from mview.testing.contract import schema_of
from tests.services.silent import silent_port

#: Seconds after which something waits for ever, as far as a test can know.
MOST_S = 15.0


@pytest.fixture
def port() -> Iterator[int]:
    with silent_port() as port:
        yield port


@contextmanager
def ends() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < MOST_S


DATABASES: dict[str, Callable[[int], Any]] = {
    "postgresql": lambda port: PostgresqlDatabase(
        settings("postgresql", port, connect_timeout="2")
    ),
    "mysql": lambda port: MysqlDatabase(settings("mysql", port, read_timeout="1")),
}


def settings(kind: str, port: int, **query: str) -> ConnectionSettings:
    return ConnectionSettings(
        name="db",
        drivername=kind,
        host="127.0.0.1",
        port=port,
        username="u",
        database="d",
        query=query,
    )


def test_a_time_out_that_a_user_gives_stays() -> None:
    """However long it is waited for otherwise."""
    database = MysqlDatabase(settings("mysql", 1, read_timeout="7"))
    factory = cast(FollowerFactory, load("followers", "mariadb"))
    url = "mariadb://u@127.0.0.1:1/d?read_timeout=7"
    options = factory.settings(type="mariadb", url=url)
    schema = schema_of([("k", "bigint")])
    with closing(factory(FollowerTarget("v", "s", schema, options, "owner", fence=1))) as follower:
        for wait in (database._wait, cast(Any, follower).wait):
            connection = SimpleNamespace(_read_timeout=7, _write_timeout=30)
            wait(connection, 600)
            assert (connection._read_timeout, connection._write_timeout) == (7, 600)


@pytest.mark.parametrize("kind", DATABASES)
def test_a_database(kind: str, port: int) -> None:
    with ends(), closing(DATABASES[kind](port)) as database, pytest.raises(AwayError):
        database.clock()


#: Options of a sink at a port.
SINKS: dict[str, Callable[[int], dict[str, Any]]] = {
    "postgresql": lambda port: {"url": f"postgresql://u@127.0.0.1:{port}/d?connect_timeout=2"},
    "mariadb": lambda port: {"url": f"mariadb://u@127.0.0.1:{port}/d?read_timeout=1"},
    "mysql": lambda port: {"url": f"mysql://u@127.0.0.1:{port}/d?read_timeout=1"},
    "clickhouse": lambda port: {"url": f"http://127.0.0.1:{port}", "timeout": "1 s"},
    "starrocks": lambda port: {
        "url": f"http://127.0.0.1:{port}",
        "database": "d",
        "timeout": "1 s",
        "query_port": port,
    },
    "iceberg": lambda port: {
        "catalog": {"type": "rest", "uri": f"http://127.0.0.1:{port}"},
        "timeout": "1 s",
    },
    "kafka": lambda port: {"bootstrap_servers": f"127.0.0.1:{port}"},
}


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink(kind: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("changelogs.kafka.client", "followers.kafka.follower"):
        monkeypatch.setattr(f"mview_connectors.{module}._PATIENCE", 1)
    factory = cast(FollowerFactory, load("followers", kind))
    options = factory.settings(type=kind, **SINKS[kind](port))
    schema = schema_of([("k", "bigint")])
    target = FollowerTarget("v", "s", schema, options, "owner", fence=1)
    with ends(), closing(factory(target)) as follower, pytest.raises(RetryableError):
        follower.create()


def test_a_registry_of_schemas(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mview_connectors.registry._PATIENCE", 1)
    registry = SchemaRegistry({"registry.url": f"http://127.0.0.1:{port}"})
    with ends(), pytest.raises(AwayError):
        registry.schema(1, "")
