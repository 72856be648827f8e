"""PostgreSQL and MariaDB with `commit: two-phase`, on real servers; the contract runs beside it.

Processes and servers end between prepare and commit; orphans are taken back; the server says no.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.sql.follower import SqlSettings
from mview_connectors.followers.sql.sqlite import SqliteFollower

from mview.catalog.followers import check_followers
from mview.errors import ConfigError, RetryableError
from mview.follower import FollowerTarget, State, Step
from mview.plan.definition import parse_view
from mview.testing.contract import World, delta_of, schema_of
from mview.testing.faults import When
from tests.conftest import small_config
from tests.connectors.test_followers_servers import (
    TWO_PHASE,
    MariadbHarness,
    PostgresqlHarness,
    ServerHarness,
)
from tests.services.mariadb import MariadbServer
from tests.services.postgresql import PostgresqlServer

pytestmark = [pytest.mark.service]


@pytest.fixture(params=["postgresql", "mariadb"])
def harness(request: pytest.FixtureRequest) -> Iterator[ServerHarness]:
    server = request.getfixturevalue(request.param)
    kind = PostgresqlHarness if request.param == "postgresql" else MariadbHarness
    with server.new_database() as name:
        yield kind(server, name, **TWO_PHASE)


@pytest.fixture
def world(harness: ServerHarness, tmp_path: Path) -> Iterator[World]:
    made = World(harness, tmp_path)
    made.view.publish([made.row(n) for n in range(5)])
    assert made.sync() == 1
    yield made
    made.close()


def die(kind: type[ServerHarness], server: Any, database: str, folder: Path, at: Any) -> None:
    """A process that is killed in the middle of a step; what it does was published before."""
    world = World(kind(server, database, **TWO_PHASE), folder)
    world.view.publish([world.row(n) for n in range(5)])
    world.view.publish([world.row(1, "changed")], [(2,)])
    call, when, world.fence = at
    world.start()
    world.faulty.at(call, when, lambda: os.kill(os.getpid(), signal.SIGKILL))
    world.sync()


@pytest.mark.parametrize(
    ("call", "when", "is_committed"),
    [("commit", "before", True), pytest.param("stage", "after", False, marks=pytest.mark.long)],
)
def test_killed_between_prepare_and_commit(
    world: World, call: str, when: When, is_committed: bool
) -> None:
    """The process, and then the server. Who is next commits what has its token on disk only."""
    harness = world.harness
    assert isinstance(harness, ServerHarness)
    world.close()
    context = multiprocessing.get_context("spawn")
    at = (call, when, world.fence)
    arguments = (type(harness), Handle(harness.server), harness.database, world.folder, at)
    process = context.Process(target=die, args=arguments)
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    harness.server.kill()
    harness.server.restart()
    world.view.publish([world.row(1, "changed")], [(2,)])
    tried = world.following.cursor.tried
    world.fence += 1
    world.start()
    assert world.following.cursor.tried == tried + 1
    intent = world.following.cursor.intent
    assert intent is not None
    assert world.faulty.inner.state(intent.step, intent.token) is State.PREPARED
    assert (intent.token is not None) == is_committed
    world.sync()
    world.check()
    assert world.following.cursor.tried == tried + (1 if is_committed else 2)
    # Also where an older runner's step was committed, the newer one's token is there.
    assert harness.execute("SELECT fence FROM mview_marks") == [(world.fence,)]


class Handle:
    """What a process needs of a server that another one has started."""

    def __init__(self, server: Any) -> None:
        self.given = {**server.settings("x")}
        kind = type(server)
        self.variable = self.given["password"][6:-1]
        self.secret = os.environ[self.variable]
        assert kind in (PostgresqlServer, MariadbServer)

    def settings(self, database: str) -> dict[str, Any]:
        os.environ[self.variable] = self.secret
        return {**self.given, "database": database}


def test_what_nobody_means_to_commit_is_taken_back(world: World) -> None:
    """The next step finds it, as it holds the mark: the cursor knows nothing of it."""
    follower, target = world.faulty.inner, world.target()
    step = Step("step-o", world.view.epoch + 1, world.following.cursor.epoch, 1)
    token = follower.stage(step, delta_of(target, [(None, world.row(77))]))
    world.start()
    assert world.sync() == 0
    assert world.faulty.inner.state(step, token) is State.PREPARED
    world.view.publish([world.row(1, "by the next")])
    assert world.sync() == 1
    assert world.faulty.inner.state(step, token) is State.UNKNOWN
    world.check()
    with pytest.raises(RetryableError, match="not there any more"):
        follower.commit(token)
    follower.close()
    world.check()


def test_other_columns_while_a_step_is_prepared(world: World) -> None:
    """The step goes first, and then the table is another one."""
    world.view.publish([world.row(1, "changed")])
    world.faulty.fail("commit", "before")
    with pytest.raises(OSError, match="on request"):
        world.following.advance()
    world.schema = schema_of([*world.harness.columns, ("more", "string")])
    rows = [(*row, "more") for row in world.view.content.values()]
    epoch, world.view = world.view.epoch, type(world.view)(world.schema)
    world.view.epoch = epoch
    world.view.publish(rows)
    world.view.forget()
    world.start()
    world.sync()
    world.check()


def test_a_server_that_keeps_none(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    """`mview check` says so, and so does the sink itself."""
    postgresql.execute("ALTER SYSTEM SET max_prepared_transactions = 0")
    postgresql.kill()
    postgresql.restart()
    try:
        with postgresql.new_database() as name:
            harness = PostgresqlHarness(postgresql, name, **TWO_PHASE)
            world = World(harness, tmp_path)
            world.view.publish([world.row(1)])
            with pytest.raises(ConfigError, match="max_prepared_transactions = 0"):
                world.sync()
            world.close()
            settings = harness.settings().model_dump(include={"type", "url", "password", "commit"})
            config = small_config(tmp_path, sinks={"s": settings})
            text = "CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1"
            views = [parse_view(text, "v")]
            assert check_followers(config, views) == {}
            assert "does not keep transactions" in str(check_followers(config, views, probe=True))
    finally:
        postgresql.execute("ALTER SYSTEM RESET max_prepared_transactions")
        postgresql.kill()
        postgresql.restart()


def test_sqlite_has_no_such_thing(tmp_path: Path) -> None:
    settings = SqlSettings(type="sqlite", url=f"sqlite:///{tmp_path}/t.db", commit="two-phase")
    target = FollowerTarget("v", "s", schema_of([("k", "bigint")]), settings, "o")
    with pytest.raises(ConfigError, match="cannot commit in two phases"):
        SqliteFollower(target).check()
