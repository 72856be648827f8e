"""Servers that go silent in the middle of something, and speak again: databases and their logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.databases.mysql import MysqlDatabase
from mview_connectors.databases.postgresql import PostgresqlDatabase
from mview_connectors.followers.sql.follower import SqlFollower
from mview_connectors.followers.sql.mysql import MariadbFollower
from mview_connectors.followers.sql.postgresql import PostgresqlFollower

from mview.config import ConnectionSettings
from mview.errors import AwayError, MviewError, RetryableError
from mview.follower import FollowerTarget, State, Step
from mview.testing.contract import schema_of
from tests.connectors.ownlog_contract import OwnLogHarness, fill
from tests.connectors.test_changelogs_mysql import Log as MysqlLog
from tests.connectors.test_changelogs_postgresql import Log as PostgresqlLog
from tests.connectors.test_followers_servers import (
    MariadbHarness,
    PostgresqlHarness,
    ServerHarness,
)
from tests.services.gate import Gate
from tests.services.process import wait_until

pytestmark = [pytest.mark.service, pytest.mark.days(5)]

#: Seconds after which something waits for ever, as far as a test can know.
MOST_S = 15.0


class Behind:
    """A server behind a gate, as tests see servers."""

    def __init__(self, server: Any, gate: Gate) -> None:
        self._server, self._gate = server, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def settings(self, database: str) -> dict[str, Any]:
        return {**self._server.settings(database), "port": self._gate.port, "timeout": "1 s"}


@pytest.fixture(params=["postgresql", "mariadb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(kind)


@pytest.fixture
def gate(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    for name in ("GREETING_S", "QUESTION_S"):
        monkeypatch.setattr(f"mview_connectors.silence.{name}", 1.0)
    gate = Gate(server.port)
    yield gate
    gate.stop()


@pytest.fixture
def database(server: Any) -> Iterator[str]:
    with server.new_database() as name:
        yield name


def in_time(work: Callable[[], object], error: type[MviewError]) -> None:
    began = time.monotonic()
    with pytest.raises(error):
        work()
    assert time.monotonic() - began < MOST_S


def test_a_chunk_that_is_being_read(kind: str, server: Any, gate: Gate, database: str) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, x text)", database)
    texts = ", ".join(f"({n}, '{'x' * 60_000}')" for n in range(250))
    server.execute(f"INSERT INTO t VALUES {texts}", database)
    reader = PostgresqlDatabase if kind == "postgresql" else MysqlDatabase
    settings = ConnectionSettings(name="c", **Behind(server, gate).settings(database))
    with closing(reader(settings)) as source:
        schema = source.describe("t")
        plan = source.plan("t", schema, 1000, 1 << 30)
        batches = source.read("t", schema, plan, plan.chunks[0])
        gate.fall_silent_after(5_000_000)  # of 15
        assert next(batches).num_rows
        in_time(lambda: [*batches], AwayError)
        in_time(source.clock, AwayError)
        gate.let_go()
        assert sum(b.num_rows for b in source.read("t", schema, plan, plan.chunks[0])) == 250


def test_its_own_log(
    kind: str,
    server: Any,
    gate: Gate,
    database: str,
    tmp_path: Path,
) -> None:
    harness: type[OwnLogHarness] = PostgresqlLog if kind == "postgresql" else MysqlLog
    log = harness(Behind(server, gate), database, tmp_path)
    changelog = log.open()
    start = changelog.begin()
    fill(log, [1])
    _, at = log.read_all(changelog, start, 1)
    fill(log, [2])
    gate.fall_silent()

    def follow() -> None:
        while True:
            changelog.advance(at, 100, 100)

    in_time(follow, AwayError)
    began = time.monotonic()
    changelog.close()
    assert time.monotonic() - began < MOST_S
    gate.let_go()
    again = log.open()

    def read() -> bool:
        with suppress(AwayError):  # PostgreSQL holds the slot until the old connection is gone
            return log.read_all(again, at, 1)[0] == [[2]]
        return False

    wait_until(read, 60)
    log.close()


@pytest.mark.parametrize("call", ["stage", "commit"])
def test_a_sink(kind: str, server: Any, gate: Gate, database: str, call: str) -> None:
    behind = Behind(server, gate)
    harness: type[ServerHarness] = PostgresqlHarness if kind == "postgresql" else MariadbHarness
    settings = harness(behind, database).settings(patience="1 s", timeout="5 s")
    factory: type[SqlFollower] = PostgresqlFollower if kind == "postgresql" else MariadbFollower
    schema = schema_of([("k", "bigint")])
    target = FollowerTarget("v", "s", schema, settings, "owner", fence=1)
    rows = pa.table({"k": pa.array([1, 2], pa.int64())})
    step = Step("a", 1, None)
    with closing(factory(target)) as follower:
        follower.create()
        if call == "stage":
            gate.fall_silent()
            in_time(lambda: follower.fill(step, rows.to_reader()), RetryableError)
        else:
            token = follower.fill(step, rows.to_reader())
            gate.fall_silent()
            in_time(lambda: follower.commit(token), RetryableError)
        in_time(follower.create, RetryableError)
        gate.let_go()

        def is_back() -> bool:
            with suppress(RetryableError):  # the older session may hold the mark for a while
                follower.create()
                return True
            return False

        wait_until(is_back, 60)
        if follower.state(step, None) is not State.COMMITTED:
            follower.commit(follower.fill(Step("b", 1, None), rows.to_reader()))
        assert sorted(harness(server, database).read(target) or ()) == [(1,), (2,)]
