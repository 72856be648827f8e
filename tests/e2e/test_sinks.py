"""Sinks that follow views: two of a view, one of them down, new ones, and a kill in between."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from mview.admin import verify as verifying
from mview.admin.content import StoredView, published
from mview.admin.status import SinkStatus, status
from mview.admin.verify import verify
from mview.cli.render import status_text, verified_text
from mview.config import Config
from mview.config.file import load_config
from mview.errors import MviewError, UserError
from mview.follow.cursor import CursorLog
from mview.follow.followers import read_problem
from mview.plan.definition import ViewDefinition, parse_view
from mview.store.layout import Store
from mview.testing.contract import normal
from mview.testing.view import rows_of as contract_rows
from tests.connectors.every_sink import places, section, target_of
from tests.e2e.running import live, run_once
from tests.e2e.shop import Shop
from tests.e2e.test_processes import run
from tests.e2e.test_processes import wait_for as wait
from tests.services.hudi import read_hudi
from tests.services.paimon import PaimonReader
from tests.services.postgresql import PostgresqlServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TOTALS = (
    "select product, count(*) as n, sum(amount) as total from shop.lines"
    " where product is not null group by product"
)


def view(sinks: str, *options: str, name: str = "totals", sql: str = TOTALS) -> ViewDefinition:
    said = ", ".join([f"sinks = '{sinks}'", *options])
    text = f"CREATE MATERIALIZED VIEW {name} WITH ({said}) AS {sql}" if sinks else sql
    return parse_view(text, name)


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    shop.heartbeat()
    yield shop
    shop.close()


def config_with(shop: Shop, **sinks: Any) -> Config:
    shop.config()
    file = shop.root / "mview.yml"
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**settings, "sinks": sinks}))
    return load_config(file)


def sqlite_sink(file: Path) -> dict[str, Any]:
    return {"type": "sqlite", "url": f"sqlite:///{file}"}


def rows_of(file: Path, table: str) -> set[tuple[Any, ...]]:
    connection = sqlite3.connect(file)
    try:
        return set(connection.execute(f"select product, n, total from {table}"))
    finally:
        connection.close()


def expected(config: Config) -> set[tuple[Any, ...]]:
    rows = StoredView(config, "totals").arrow().to_pylist()
    return {(row["product"], row["n"], digits(row["total"])) for row in rows}


def digits(total: Decimal | None) -> str | None:
    """A sum as its digits; None: all that was summed is NULL."""
    return None if total is None else f"{total:f}"


def sinks_of(config: Config) -> dict[str, SinkStatus]:
    return {sink.name: sink for one in status(config).views for sink in one.sinks}


def test_one_is_down_and_the_other_goes_on(shop: Shop) -> None:
    there, away = shop.root / "there.db", shop.root / "away" / "away.db"
    config = config_with(shop, there=sqlite_sink(there), away=sqlite_sink(away))
    both = view("there, away", "sinks.away.table = 'Other \"name\"'")
    with pytest.raises(MviewError, match="sink away of view totals has not caught up"):
        run_once(config, both)
    assert rows_of(there, "totals") == expected(config)
    shown = sinks_of(config)
    assert shown["there"].waiting == 0
    assert shown["away"].epoch is None
    assert "unable to open database file" in shown["away"].error
    said = status_text(status(config))
    assert "sink there" in said
    assert "not filled yet" in said

    # It goes on where it was, without a new build.
    epoch = StoredView(config, "totals").epoch
    away.parent.mkdir()
    shop.insert("lines", {"order_id": 900, "line": 1, "product": "new", "amount": "1.00"})
    run_once(config)
    assert status(config).views[0].runs[0].epoch > epoch
    assert rows_of(there, "totals") == expected(config)
    assert rows_of(away, '"Other ""name"""') == expected(config)
    assert sinks_of(config)["away"].error == ""

    with live(config) as running, shop.busy(seed=3, pause=0.02):
        running.epochs("totals", 3)
    run_once(config)
    assert rows_of(there, "totals") == expected(config)
    assert rows_of(away, '"Other ""name"""') == expected(config)
    results = verify(config, [both])
    assert [result.sink for result in results] == ["", "there", "away"]
    assert all(result.equal for result in results), results
    connection = sqlite3.connect(there)
    connection.execute("update totals set n = n + 1 where product = 'new'")
    connection.commit()
    connection.close()
    told = verified_text(verify(config, [both]))
    assert "totals, sink there: DIFFERS from the view" in told
    assert told.count("OK") == 2
    assert "next: drop the table there; a run fills it anew" in told
    connection = sqlite3.connect(there)
    connection.execute("drop table totals")
    connection.close()
    run_once(config)
    assert all(result.equal for result in verify(config, [both]))


@pytest.mark.days(5)
@pytest.mark.service
def test_a_copy_from_before_is_told_and_brought_right(
    shop: Shop, request: pytest.FixtureRequest
) -> None:
    """It is the view of its epoch, which is not the one that was brought there."""
    names = ("sqlite", "delta", "iceberg", "postgresql")
    with places(shop.root / "places", request.getfixturevalue, names) as there:
        config = config_with(shop, **{name: section(one) for name, one in there.items()})
        followed = view(", ".join(names))
        run_once(config, followed)
        schema = published(config).views["totals"].schema
        targets = {name: target_of(one, "totals", schema) for name, one in there.items()}
        copies = [one.backup(targets[name]) for name, one in there.items()]
        shop.insert("lines", {"order_id": 901, "line": 1, "product": "newer", "amount": "1.00"})
        run_once(config)
        for put_back in copies:
            assert put_back is not None
            put_back()
        [_, *told] = verify(config, [followed])
        for name, result in zip(names, told, strict=True):
            assert not result.equal
            assert f"sink {name} of view totals has gone back" in result.error
        run_once(config)
        stored = normal(contract_rows(StoredView(config, "totals").arrow()))
        for name, one in there.items():
            assert normal(one.read(targets[name]) or []) == stored
        assert all(result.equal for result in verify(config, [followed]))


def test_a_sink_is_compared_beside_a_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has gone on since verify looked which epoch there is, and does between mark and rows."""
    file = shop.root / "there.db"
    config = config_with(shop, there=sqlite_sink(file))
    followed = view("there")
    opened = verifying.open_follower

    def slow(*arguments: Any) -> tuple[Any, Any]:
        follower, target = opened(*arguments)
        read = follower.read

        def goes_on() -> None:
            was = follower.position().epoch
            running.until(lambda: follower.position().epoch > was)

        def read_late() -> Iterator[pa.RecordBatch]:
            reads.append(follower.position().epoch)
            if len(reads) < 3:
                goes_on()
            return read()

        monkeypatch.setattr(follower, "read", read_late)
        goes_on()
        return follower, target

    reads: list[int] = []
    run_once(config, followed)
    with live(config) as running, shop.busy(seed=3, pause=0.05):
        running.epochs("totals", 1)
        before = published(config).epoch
        with monkeypatch.context() as patched:
            patched.setattr(verifying, "open_follower", slow)
            results = verify(config, [followed])
        assert [result.sink for result in results] == ["", "there"]
        assert all(result.equal for result in results), results
        assert results[1].epoch > before
    assert len(set(reads)) > 2
    # What somebody has changed is told beside a run, too.
    connection = sqlite3.connect(file)
    connection.execute("insert into totals values ('nobody has it', 1, '1.00')")
    connection.commit()
    connection.close()
    with live(config) as running:
        running.to_the_end(shop)
        told = verified_text(verify(config, [followed]))
    assert "totals, sink there: DIFFERS from the view" in told


@pytest.mark.days(5)
def test_a_sink_that_comes_and_goes(shop: Shop) -> None:
    one, two = shop.root / "one.db", shop.root / "two.db"
    config = config_with(shop, one=sqlite_sink(one), two=sqlite_sink(two))
    run_once(config, view(""))
    shop.insert("lines", {"order_id": 901, "line": 1, "product": "first", "amount": "1.00"})
    run_once(config, view("one"))
    assert rows_of(one, "totals") == expected(config)
    shop.insert("lines", {"order_id": 902, "line": 1, "product": "second", "amount": "1.00"})
    run_once(config, view("two"))
    assert rows_of(two, "totals") == expected(config)
    assert rows_of(one, "totals") != expected(config)
    run_once(config, view(""))
    shop.insert("lines", {"order_id": 903, "line": 1, "product": "third", "amount": "1.00"})
    run_once(config, view(""))
    run_once(config, view("one, two"))
    assert rows_of(one, "totals") == expected(config)
    assert rows_of(two, "totals") == expected(config)


def test_what_is_wrong_is_said_before_anything_runs(shop: Shop) -> None:
    config = config_with(shop, there=sqlite_sink(shop.root / "x.db"), old={"path": "old"})
    for sinks, options, told in (
        ("ther", (), "there is no sink 'ther'"),
        ("old", (), "as its section has no type"),
        ("there", ("sinks.there.tabel = 'x'",), "tabel"),
        ("there", ("sinks.there.mode = 'append'",), "no mode 'append'"),
    ):
        with pytest.raises(UserError, match=told):
            run_once(config, view(sinks, *options))
    for sql, told in (
        ("select count(*) as n from shop.lines", "has no key, which sink there needs"),
        ("select id, array(body) as listed from shop.notes", "column listed of view odd cannot"),
    ):
        with pytest.raises(UserError, match=told):
            run_once(config, view("there", name="odd", sql=sql))
    with pytest.raises(UserError, match="of no sink of the view"):
        view("there", "sinks.other.table = 'x'")
    with pytest.raises(UserError, match="would write one table"):
        run_once(config, view("there", "sinks.there.table = 't'"),
                 view("there", "sinks.there.table = 't'", name="more"))  # fmt: skip


def follows_a_run(
    shop: Shop, sink: dict[str, Any], read: Callable[[pa.Schema], Sequence[Any] | None]
) -> None:
    """A fill and live changes, read by somebody else's reader."""
    config = config_with(shop, lake={**sink, "every": "100ms", "buckets": 2})

    def rows() -> set[tuple[Any, ...]]:
        schema = StoredView(config, "totals").schema
        named = [dict(zip(schema.names, row, strict=True)) for row in read(schema) or ()]
        return {(row["product"], row["n"], digits(row["total"])) for row in named}

    run_once(config, view("lake"))
    assert rows() == expected(config)
    with live(config) as running, shop.busy(seed=7, pause=0.02):
        running.epochs("totals", 3)
    run_once(config)
    assert rows() == expected(config)
    results = verify(config, [view("lake")])
    assert [(result.sink, result.equal) for result in results] == [("", True), ("lake", True)]


@pytest.mark.service
@pytest.mark.long
def test_a_paimon_table_follows_a_run(shop: Shop, paimon_reader: PaimonReader) -> None:
    warehouse = shop.root / "warehouse"
    follows_a_run(
        shop,
        {"type": "paimon", "warehouse": str(warehouse)},
        lambda schema: paimon_reader.read(warehouse, "default", "totals", schema),
    )


@pytest.mark.service
@pytest.mark.long
@pytest.mark.usefixtures("hudi")
def test_a_hudi_table_follows_a_run(shop: Shop) -> None:
    lake = shop.root / "lake"
    follows_a_run(
        shop,
        {"type": "hudi", "path": str(lake)},
        lambda schema: read_hudi(lake / "totals", schema),
    )


@pytest.mark.service
@pytest.mark.long
def test_killed_while_one_of_two_is_down(shop: Shop, postgresql: PostgresqlServer) -> None:
    """A view in SQLite and PostgreSQL, at the end equal to the batch query, whatever happened."""
    with postgresql.new_database() as database:
        given = postgresql.settings(database)
        url = f"postgresql://{given['username']}@127.0.0.1:{given['port']}/{database}"
        server = {"type": "postgresql", "url": url, "password": given["password"]}
        file = shop.root / "sink.db"
        config = config_with(shop, lite=sqlite_sink(file), server=server)
        (shop.root / "views").mkdir()
        text = f"CREATE MATERIALIZED VIEW totals WITH (sinks = 'lite, server') AS {TOTALS}"
        (shop.root / "views" / "totals.sql").write_text(text)
        store = Store(config.store)

        def epoch_of(sink: str) -> int:
            return CursorLog(store.follower("totals", sink)).latest().epoch or 0

        def later(sink: str, commits: int) -> Callable[[], bool]:
            log = CursorLog(store.follower("totals", sink))
            before = log.latest().tried
            return lambda: log.latest().tried >= before + commits

        with shop.busy(seed=5, pause=0.05):
            with run(shop) as running:
                wait(lambda: epoch_of("lite") and epoch_of("server"), running.process)
                postgresql.kill()
                wait(later("lite", 5), running.process)
                wait(lambda: read_problem(store.follower("totals", "server")), running.process)
                behind = epoch_of("server")
                running.process.kill()
            with run(shop) as running:
                wait(later("lite", 3), running.process)
                assert epoch_of("server") == behind
                postgresql.restart()
                wait(lambda: epoch_of("server") > behind, running.process)
                wait(later("server", 3), running.process)
                running.process.kill()
        run_once(config)
        wanted = expected(config)
        assert rows_of(file, "totals") == wanted
        listed = postgresql.execute("SELECT product, n, total FROM totals", database)
        assert {(product, n, digits(total)) for product, n, total in listed} == wanted
        results = verify(config, [view("lite, server")])
        assert [result.sink for result in results] == ["", "lite", "server"]
        assert all(result.equal for result in results), results
