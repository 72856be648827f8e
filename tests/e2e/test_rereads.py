"""Chunks that are read anew: what went past the log comes right, in views too, as a difference."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mview.admin.against_source import verify_tables
from mview.admin.content import StoredView, published
from mview.admin.mending.backfill import Backfilled, backfill
from mview.admin.status import status
from mview.clock import SystemClock
from mview.config import Config
from mview.config.file import load_config
from mview.errors import MviewError
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.mirror import Mirror
from tests.e2e.hidden import Hidden
from tests.e2e.running import beating, live, run_once, views_of
from tests.e2e.shop import TABLES, Changes, Row, Shop
from tests.relations import rel
from tests.seeds import daily

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

VIEWS = {
    "spent": "select product, count(*) as n, sum(amount) as total from shop.lines group by product",
    "named": "select o.id, c.name from shop.orders o join shop.customers c on c.id = o.customer_id",
}
PLAIN = {
    "spent": "select product, count(*), round(sum(amount), 2) from lines group by product",
    "named": "select o.id, c.name from orders o join customers c on c.id = o.customer_id",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    yield shop
    shop.close()


def is_right(shop: Shop, config: Config, views: Mapping[str, str] = PLAIN) -> None:
    """Our copies are the tables, and the views their queries."""
    manifest = published(config)
    for name in TABLES:
        state = manifest.tables[rel(f"shop.{name}")]
        mirror = Mirror(Store(config.store).mirror(rel(f"shop.{name}")), state.schema)
        copied = mirror.scan(state).to_pylist()
        assert state.rows == len(copied)
        kept = [{n: row[n] for n in state.schema.names} for row in shop.rows(name)]
        assert Counter(map(_plain, copied)) == Counter(map(_plain, kept)), name
    for view, sql in views.items():
        rows = [_plain(row) for row in StoredView(config, view).arrow().to_pylist()]
        expected = [_texts(row) for row in shop._db.execute(sql).fetchall()]
        assert Counter(rows) == Counter(expected), view


def _plain(row: dict[str, object]) -> tuple[str, ...]:
    return _texts(tuple(row.values()))


def _texts(row: tuple[object, ...]) -> tuple[str, ...]:
    def text(value: object) -> str:
        try:
            return f"{float(value):.2f}"  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return str(value)

    return tuple(map(text, row))


@pytest.mark.parametrize("number", range(2))
def test_random_faults_under_changes(shop: Shop, number: int) -> None:
    config = shop.config()
    names = [rel(f"shop.{name}") for name in TABLES]
    random_ = random.Random(daily(number))
    with live(config, *views_of(**VIEWS)) as running, beating(shop):
        running.epochs("spent", 1)
        built = {name: view.built_epoch for name, view in published(config).views.items()}
        with shop.busy(number, pause=0.02):
            hidden = Changes(Hidden(shop), random_)
            for _ in range(25):
                hidden.one()
            first = verify_tables(config, names, repair=True)
        second = verify_tables(config, names, repair=True)
        running.to_the_end(shop)
    assert any(result.repaired for result in (*first, *second))
    assert all(result.equal for result in second), second
    assert {n: v.built_epoch for n, v in published(config).views.items()} == built
    is_right(shop, config)
    assert not list(Store(config.store).rereads.glob("*"))


def test_what_is_asked_for_while_nobody_runs_is_done_by_a_bounded_run(shop: Shop) -> None:
    config = shop.config()
    shop.heartbeat()
    run_once(config, *views_of(**VIEWS))
    hidden = Hidden(shop)
    hidden.delete("lines", shop.rows("lines")[0])
    hidden.insert("lines", {"order_id": 999, "line": 1, "product": "new", "amount": "1.50"})
    line = shop.rows("lines")[7]
    hidden.update("lines", line, {**line, "amount": "77.70"})
    (result,) = verify_tables(config, [rel("shop.lines")], repair=True)
    assert (result.differing, result.undecided) == (0, 3)
    assert "to be read anew, when changes are followed" in result.error
    notes = run_once(config)
    is_right(shop, config)
    assert any("is as its database has it again" in text for text in notes.messages)
    lines = [epoch for epoch in notes.epochs if "shop.lines" in epoch.changes]
    assert sum(epoch.changes["shop.lines"] for epoch in lines) == 3


def test_a_whole_table_is_read_anew_and_views_get_the_difference(shop: Shop) -> None:
    config = shop.config()
    shop.heartbeat()
    run_once(config, *views_of(**VIEWS))
    (nothing,) = backfill(config, ["shop.customers"], lambda text: None)
    assert (nothing.state, nothing.why) == ("asked", "nobody runs the store: the next run reads it")
    hidden = Hidden(shop)
    line = shop.rows("lines")[7]
    hidden.update("lines", line, {**line, "amount": "77.70"})
    told: list[Backfilled] = []
    with beating(shop), live(config, *views_of(**VIEWS)) as running:
        running.until(lambda: Lease(Store(config.store).lease, SystemClock()).holder() is not None)
        told += backfill(config, ["shop.lines", "shop.customers"], running.notes.on_message)
        running.stop()
    assert [(table.table, table.state, table.why) for table in told] == [
        ("shop.lines", "done", ""),
        ("shop.customers", "done", ""),
    ]
    is_right(shop, config)
    changes = Counter(
        {
            name: sum(epoch.changes.get(name, 0) for epoch in running.notes.epochs)
            for name in ("shop.lines", "shop.customers")
        }
    )
    assert changes == {"shop.lines": 1, "shop.customers": 0}, "nothing but what differs"
    assert not list(Store(config.store).rereads.glob("*"))


def test_a_connector_that_reads_a_table_anew(shop: Shop) -> None:
    """Its rows tell of no delete: the table is read anew here, too, and views are not rebuilt."""
    config = shop.config()
    file = config.path
    file.write_text(file.read_text().replace("format: unified", "format: debezium"))
    config = load_config(file)
    views = views_of(bodies="select body, count(*) as n from shop.notes group by body")
    run_once(config, *views)
    built = published(config).views["bodies"].built_epoch
    hidden = Hidden(shop)

    def send(op: str, row: Row, **source: object) -> None:
        sequence = f'[null,"{shop.file.stat().st_size + 1}"]'
        place = {"connector": "postgresql", "table": "notes", "sequence": sequence, "ts_ms": 1}
        body = {"op": op, "before": None, "after": row, "source": {**place, **source}}
        shop.append(json.dumps(body))

    rows = [{"id": number, "body": f"b{number}"} for number in range(4)]
    for row in rows:
        hidden.insert("notes", row)
        send("c", row)
    run_once(config)
    hidden.delete("notes", rows[0])  # while the connector is down
    hidden.update("notes", rows[1], {"id": 1, "body": "changed"})
    for row in shop.rows("notes"):
        send("r", row, snapshot="true")
    notes = run_once(config)
    run_once(config)  # what is read now may be newer than what the bounded run took
    told = [text for text in notes.messages if text.startswith("the connector reads shop.notes")]
    assert len(told) == 1
    is_right(shop, config, {"bodies": "select body, count(*) from notes group by body"})
    assert published(config).views["bodies"].built_epoch == built
    assert not list(Store(config.store).rereads.glob("*"))


def test_one_that_cannot_be_read_is_told_and_the_run_goes_on(shop: Shop) -> None:
    config, table = shop.config(), rel("shop.customers")
    with beating(shop), live(config, *views_of(**VIEWS)) as running:
        running.epochs("spent", 1)
        shop._db.execute("alter table customers rename column name to title")
        told = backfill(config, ["shop.customers", "shop.lines"], running.notes.on_message)
        assert [(t.table, t.state) for t in told] == [
            ("shop.customers", "failed"),
            ("shop.lines", "done"),
        ]
        assert "table shop.customers has no column 'name' any more" in told[0].why
        assert told[0].next.endswith("mview backfill shop.customers")
        known = {t.name: t for t in status(config).tables}
        assert known["shop.customers"].refused == told[0].why
        assert known["shop.customers"].phase == "loaded"
        said = [text for text in running.notes.messages if told[0].why in text]
        assert len(said) == 1
        shop._db.execute("alter table customers rename column title to name")
        (again,) = backfill(config, ["shop.customers"], running.notes.on_message)
        assert again.state == "done"
        running.to_the_end(shop)
    assert not any(view.halted for view in published(config).views.values())
    assert not published(config).tables[table].halted
    assert not {t.refused for t in status(config).tables} - {""}
    is_right(shop, config)


def test_a_snapshot_of_a_connector_for_which_nothing_can_be_read_halts_the_table(
    shop: Shop,
) -> None:
    config = shop.config()
    file = config.path
    file.write_text(file.read_text().replace("format: unified", "format: debezium"))
    config = load_config(file)
    bodies, named = "select body, count(*) as n from shop.notes group by body", VIEWS["spent"]
    run_once(config, *views_of(bodies=bodies, spent=named))
    place = {"connector": "postgresql", "table": "notes", "ts_ms": 1, "snapshot": "true"}
    place["sequence"] = f'[null,"{shop.file.stat().st_size + 1}"]'
    row = {"id": 1, "body": "x"}
    shop.append(json.dumps({"op": "r", "before": None, "after": row, "source": place}))
    shop._db.execute("insert into notes values (1, x'ff') on conflict do update set body = x'ff'")
    run_once(config)  # what it reads then is for the next one
    with pytest.raises(MviewError, match="as a snapshot of its connector asks"):
        run_once(config)
    manifest = published(config)
    assert "stored as bytes" in manifest.tables[rel("shop.notes")].halted
    assert {name: bool(view.halted) for name, view in manifest.views.items()} == {
        "bodies": True,
        "spent": False,
    }
