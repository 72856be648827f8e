"""A source that is away holds no views of others, and its own go on when it is back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.changelogs.sqlite.server import SqliteServer

from mview.admin.apply import apply_views
from mview.admin.status import SourceStatus, status
from mview.admin.verify import verify
from mview.ingest.mending.rereads import RereadLog, RereadRequest
from mview.plan.definition import parse_view
from mview.store.layout import Store
from tests.integration.running import PATIENCE, Running
from tests.integration.test_refused_source import VIEWS, Sources
from tests.relations import rel
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

ALL = [
    *VIEWS,
    parse_view(
        "SELECT n.id, n.x + f.x AS x FROM near.t AS n JOIN far.t AS f ON n.id = f.id", "both"
    ),
]


@pytest.fixture
def sources(postgresql: Any, spark: Any, tmp_path: Path) -> Iterator[Sources]:
    with postgresql.new_database() as database:
        yield Sources(postgresql, database, tmp_path)


def of_far(sources: Sources) -> SourceStatus:
    (told,) = (source for source in status(sources.config).sources if source.name == "far")
    return told


def said(run: Running, text: str) -> int:
    return sum(text in message for message in run.messages)


@contextmanager
def down(server: Any) -> Iterator[None]:
    """The server is gone."""
    server.kill()
    try:
        yield
    finally:
        server.restart()


def halted(sources: Sources) -> dict[str, str]:
    """The views that have halted, and why."""
    return {view.name: view.halted for view in status(sources.config).views if view.halted}


def drop_slot(sources: Sources) -> None:
    """Drop the slot that the run holds; it takes it again as soon as it has lost it."""
    ((slot,),) = sources.far(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )

    def is_dropped() -> bool:
        sources.far(
            f"SELECT pg_terminate_backend(active_pid, 5000), pg_drop_replication_slot('{slot}')"
            f" FROM pg_replication_slots WHERE slot_name = '{slot}'"
        )
        return True

    wait_until(is_dropped, "the end of the slot", PATIENCE)


def test_a_server_is_killed_and_comes_back(sources: Sources) -> None:
    far, near = [0], []
    with Running(sources.config, ALL) as run:
        sources.until(run, "of_far", far)
        for number in (1, 2):
            with down(sources.server):
                wait_until(lambda: of_far(sources).away, "the end of it", PATIENCE, run.check)
                for key in (10 * number, 10 * number + 1):
                    sources.near(f"INSERT INTO t VALUES ({key}, 1)")
                    near.append(key)
                    sources.until(run, "of_near", near)
                assert sources.ids("of_far") == far
                assert of_far(sources).away_since_ms > 0
            sources.far(f"INSERT INTO t VALUES ({10 * number}, 2), ({10 * number + 1}, 3)")
            far = [0, *near]
            sources.until(run, "of_far", far)
            sources.until(run, "both", near)
            assert of_far(sources).away == ""
            assert (said(run, "far is away"), said(run, "far is back")) == (number, number)
    assert said(run, "waiting for it") == 0
    assert all(result.equal for result in verify(sources.config, ALL))


def test_a_run_begins_without_it(sources: Sources) -> None:
    with Running(sources.config, ALL) as run:
        sources.until(run, "of_far", [0])
    sources.far("INSERT INTO t VALUES (1, 1)")
    with ExitStack() as stack:
        stack.enter_context(down(sources.server))
        sources.near("INSERT INTO t VALUES (1, 1)")
        with Running(sources.config, ALL) as run:
            sources.until(run, "of_near", [1])
            assert sources.ids("of_far") == [0]
            stack.close()
            sources.until(run, "of_far", [0, 1])
            sources.until(run, "both", [1])
    assert all(result.equal for result in verify(sources.config, ALL))


def test_one_that_lets_nobody_in_when_it_is_back_is_asked_until_it_does(sources: Sources) -> None:
    """Whose password was changed meanwhile keeps its own tables waiting, and no other's."""
    sources.as_user("reader", "before")
    sources.near("CREATE TABLE u (id INTEGER PRIMARY KEY, x INTEGER)")
    sources.near("INSERT INTO u VALUES (5, 5)")
    with closing(SqliteServer(sources.config.connections["near"])) as near:
        near.install(["u"])
    other = parse_view("SELECT id, x FROM near.u", "of_other")
    refused = "password authentication failed"
    with Running(sources.config, ALL) as run:
        sources.until(run, "of_far", [0])
        # Between the server's start and the other password nobody shall get in.
        sources.far("ALTER ROLE reader NOLOGIN PASSWORD 'after'")
        with down(sources.server):
            wait_until(lambda: of_far(sources).away, "the end of it", PATIENCE, run.check)
        sources.far("ALTER ROLE reader LOGIN; INSERT INTO t VALUES (1, 1)")
        wait_until(lambda: refused in of_far(sources).away, "the refusal", PATIENCE, run.check)
        answer = apply_views(sources.config, [other], (), run.messages.append)
        assert answer.state == "refused"
        assert refused in answer.error
        for key in (1, 2):
            sources.near(f"INSERT INTO t VALUES ({key}, {key})")
            sources.until(run, "of_near", [*range(1, key + 1)])
        assert sources.ids("of_far") == [0]
        sources.secret.write_text("after")
        sources.until(run, "of_far", [0, 1])
        sources.until(run, "both", [1])
        answer = apply_views(sources.config, [other], (), run.messages.append)
        assert answer.state == "done", answer.error
        sources.until(run, "of_other", [5])
        assert of_far(sources).away == ""
        assert (said(run, "far is away"), said(run, "far is back")) == (1, 1)
    assert said(run, "waiting for it") == 0
    assert all(result.equal for result in verify(sources.config, [*ALL, other]))


def test_tables_of_others_are_loaded_and_read_anew_meanwhile(sources: Sources) -> None:
    """Rows of a load wait for the log of their own connection, and so do those of a backfill."""
    sources.near("CREATE TABLE u (id INTEGER PRIMARY KEY, x INTEGER)")
    sources.near("INSERT INTO u VALUES (5, 5)")
    with closing(SqliteServer(sources.config.connections["near"])) as near:
        near.install(["u"])
    other = parse_view("SELECT id, x FROM near.u", "of_other")
    requests = RereadLog(Store(sources.config.store).rereads)
    with ThreadPoolExecutor(1) as beside, Running(sources.config, ALL) as run:
        sources.until(run, "of_far", [0])
        with down(sources.server):
            wait_until(lambda: of_far(sources).away, "the end of it", PATIENCE, run.check)
            answer = beside.submit(apply_views, sources.config, [other], (), run.messages.append)
            for key in (1, 2):
                sources.near(f"INSERT INTO t VALUES ({key}, {key})")
                sources.until(run, "of_near", [*range(1, key + 1)])
            assert answer.result(PATIENCE).state == "done", answer.result().error
            sources.near("INSERT INTO u VALUES (6, 6)")
            sources.until(run, "of_other", [5, 6])
            asked = requests.ask(RereadRequest(rel("near.t")))
            wait_until(lambda: not asked.exists(), "the backfill", PATIENCE, run.check)
            assert requests.why_refused(asked) is None
            lags = {view.name: view.lag_ms for view in status(sources.config).views}
            assert lags["of_other"] == lags["of_near"] < lags["of_far"] == lags["both"]
        sources.far("INSERT INTO t VALUES (2, 2)")
        sources.until(run, "of_far", [0, 2])
        sources.until(run, "both", [2])
    assert all(result.equal for result in verify(sources.config, [*ALL, other]))


def test_the_tables_of_a_log_that_is_lost_halt_until_they_are_loaded_anew(sources: Sources) -> None:
    with Running(sources.config, ALL) as run:
        sources.until(run, "of_far", [0])
        sources.near("INSERT INTO t VALUES (1, 1)")
        sources.until(run, "of_near", [1])
        drop_slot(sources)
        sources.far("INSERT INTO t VALUES (1, 1)")
        wait_until(lambda: halted(sources), "the halt", PATIENCE, run.check)
        for key in (2, 3):
            sources.near(f"INSERT INTO t VALUES ({key}, 1)")
            sources.until(run, "of_near", list(range(1, key + 1)))
        assert set(halted(sources)) == {"of_far", "both"}
        assert "the slot was dropped" in halted(sources)["of_far"]
        run._pipeline.stop()
        assert "the slot was dropped" in str(run.failure())
    with Running(sources.config, ALL) as run:
        sources.until(run, "of_far", [0, 1])
        sources.until(run, "both", [1])
        sources.far("INSERT INTO t VALUES (2, 2)")
        sources.until(run, "both", [1, 2])
    assert all(result.equal for result in verify(sources.config, ALL))
