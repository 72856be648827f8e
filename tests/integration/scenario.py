"""What holds for every source database, for the tests of all and of each."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from mview.admin.content import StoredView
from mview.admin.mending.backfill import backfill
from mview.admin.mending.quarantine import mend, quarantined
from mview.admin.status import status
from mview.errors import DataLostError, DecodeError
from tests.integration.running import PATIENCE, Running, make_project
from tests.integration.shop import Shop, Writer
from tests.integration.truth import Copy, check_all_epochs, payload
from tests.services.debezium import DebeziumServer
from tests.services.process import wait_until

_REVENUE = """
CREATE MATERIALIZED VIEW revenue WITH (key='id') AS
SELECT o.id, c.name, o.placed, count(*) AS lines, sum(l.amount) AS total
FROM shop.orders o
JOIN shop.customers c ON o.customer_id = c.id
JOIN shop.order_lines l ON l.order_id = o.id
GROUP BY o.id, c.name, o.placed
"""
#: Every column of two tables as it is, to see each value.
_LINES = """
CREATE MATERIALIZED VIEW lines WITH (key='order_id, line') AS
SELECT order_id, line, amount, shipped, note FROM shop.order_lines
"""
_ORDERS = """
CREATE MATERIALIZED VIEW orders WITH (key='id') AS
SELECT o.id, o.placed, o.day, c.note
FROM shop.orders o JOIN shop.customers c ON o.customer_id = c.id
"""
VIEWS = {"revenue": _REVENUE, "lines": _LINES, "orders": _ORDERS}

#: Epochs under the writer after the load.
_LIVE = 6


def every_epoch_is_right_while_tables_change(shop: Shop, folder: Path) -> None:
    """Loading and live, under a writer: each published epoch equals the batch query over its cut.

    Transactions that are open when the load begins are committed while chunks are read, and after:
    what they wrote stands in the log before what was committed meanwhile.
    """
    copy = Copy(shop)
    config, views = make_project(folder, {"shop": shop}, VIEWS)
    with Writer(shop) as writer:
        early, late = (Held(shop, number) for number in range(2))
        with Running(config, views) as run:
            run.until_reading()
            early.commit()
            run.until_live()
            live_after = writer.transactions
            run.until_epochs(_LIVE // 2)
            late.commit()
            run.until_epochs(_LIVE)
            writer.stop()
            run.until_all_is_read({"shop": shop})
    assert live_after > 20, "nothing was written while the tables were loaded"
    assert writer.transactions > live_after + 20
    assert check_all_epochs(config, [copy], views) > _LIVE


class Held:
    """An open transaction over rows that the writer leaves alone.

    Args:
        shop: where.
        number: of the rows: each transaction has its own.
    """

    def __init__(self, shop: Shop, number: int) -> None:
        self._connection = shop.connect()
        cursor = self._connection.cursor()
        order, customer = shop.orders - 1 - number, shop.customers - 1 - number
        cursor.execute("UPDATE customers SET name = 'held' WHERE id = %s", (customer,))
        cursor.execute("DELETE FROM order_lines WHERE order_id = %s AND line = 0", (order,))
        cursor.execute("UPDATE order_lines SET amount = 7 WHERE order_id = %s", (order,))
        cursor.execute("UPDATE orders SET id = %s WHERE id = %s", (-order, order))
        cursor.execute("INSERT INTO customers VALUES (%s, 'held', NULL)", (-customer,))

    def commit(self) -> None:
        """End the transaction."""
        self._connection.commit()
        self._connection.close()


def crashes_and_odd_changes_leave_no_trace(
    shop: Shop,
    folder: Path,
    debezium: DebeziumServer,
    odd_changes: Callable[[Shop], None],
    *,
    resend: bool,
) -> None:
    """The connector is killed while loading and later; the pipeline stops and goes on.

    Args:
        shop: a small shop.
        folder: for the project.
        debezium: is killed.
        odd_changes: writes what is rare.
        resend: the connector also sends again all since before the load began.
    """
    offsets = debezium.note_offsets() if resend else None
    with Writer(shop, seed=3, rate=200) as writer:
        writer.until(150)
    copy = Copy(shop)
    config, views = make_project(
        folder, {"shop": shop}, VIEWS, engine={"chunk_rows": 100, "max_changes": 60}
    )
    with Running(config, views) as run:
        run.until_reading()
        debezium.crash(offsets)
        run.until_live()
        odd_changes(shop)
        with Writer(shop, seed=4, rate=100) as writer:
            writer.until(50)
            debezium.crash(offsets)
            writer.until(100)
        run.until_all_is_read({"shop": shop})
    with Writer(shop, seed=5) as writer:
        writer.until(50)
    with Running(config, []) as run:
        run.until_all_is_read({"shop": shop})
    assert check_all_epochs(config, [copy], views) > 5
    _bad_messages_are_put_aside(shop, folder)
    _bad_message_halts(shop, folder)


def _bad_messages_are_put_aside(shop: Shop, folder: Path) -> None:
    """With `on_error: quarantine` the others go on; all come right again, past retention, too."""
    config, _ = make_project(folder, {"shop": shop}, {}, changes={"on_error": "quarantine"})
    topic, last = shop.topic("orders"), shop.orders - 1  # the writer leaves it alone
    (end,) = shop.kafka.end_offsets(topic).values()
    shop.execute(f"UPDATE orders SET customer_id = 7 WHERE id = {last}")
    wait_until(lambda: shop.kafka.end_offsets(topic)[0] > end, "the change", PATIENCE)

    def wrong(cells: dict[str, Any]) -> bytes:
        """A change that comes just after the newest one, with cells that do not fit."""
        newest = [value for _, value in shop.kafka.messages(topic) if value][-1]
        message = payload(newest)
        after, source = message["after"], message["source"]
        if shop.kind == "postgresql":
            *before, own = json.loads(source["sequence"])
            source["sequence"] = json.dumps([*before, str(int(own) + 1)])
        else:
            source["row"] += 1
        return json.dumps(message | {"op": "u", "before": None, "after": after | cells}).encode()

    def shown() -> dict[int, Any]:
        return {row["id"]: row["day"] for row in StoredView(config, "orders").arrow().to_pylist()}

    with Running(config, []) as run:
        run.until_all_is_read({"shop": shop})
        bad = [b"{oops", b"\0\x7f\xff\xff\xff"]  # of Avro, the second has a schema that is unknown
        if shop.registry is None:
            bad += [wrong({"id": "no number"}), wrong({"id": last - 1, "day": "no day"})]
        shop.kafka.produce(topic, [*((b'{"id": 1}', value) for value in bad), (b'{"id": 1}', None)])
        shop.execute(f"UPDATE orders SET day = '2020-02-02' WHERE id = {last}")
        wait_until(lambda: shown()[last] == dt.date(2020, 2, 2), "the others", PATIENCE, run.check)
        ways = [change.way for change in quarantined(config)]
        assert sorted(ways) == ["backfill", "backfill", "backfill", "retry"][: len(bad)]
        degraded = {view.name: view.degraded for view in status(config).views}
        aside = f"{len(bad)} changes of shop.orders are in quarantine"
        assert degraded == {"revenue": aside, "orders": aside, "lines": ""}
        # The broker forgets them; what is put aside is in the store.
        (end,) = shop.kafka.end_offsets(topic).values()
        place = TopicPartition(topic, 0, end)
        shop.kafka.admin().delete_records([place])[TopicPartition(topic, 0)].result(30)
        for change in quarantined(config):
            if change.way == "retry":
                assert change.keys == [{"id": str(last - 1)}]
                (answer,) = mend(config, "retry", change.table, [change.id], run.messages.append)
                assert (answer.state, "cannot hold the value" in answer.why) == ("stays", True)
        (read,) = backfill(config, ["shop.orders"], run.messages.append)
        assert (read.state, read.why) == ("done", ""), (read, run.check())
        wait_until(lambda: not quarantined(config), "nothing in quarantine", PATIENCE, run.check)
        assert not any(view.degraded for view in status(config).views)
        joined = "orders o JOIN customers c ON c.id = o.customer_id"
        assert shown() == dict(shop.execute(f"SELECT o.id, o.day FROM {joined}"))


def _bad_message_halts(shop: Shop, folder: Path) -> None:
    """A message that is not JSON halts with its place; and what retention took is told."""
    config, _ = make_project(folder, {"shop": shop}, {})
    topic = shop.topic("orders")
    (end,) = shop.kafka.end_offsets(topic).values()
    shop.kafka.produce(topic, [b"{oops"])
    with Running(config, []) as run:
        error = run.failure()
    assert isinstance(error, DecodeError)
    assert f"{topic}/0, offset {end}" in str(error)
    assert "{oops" in str(error)
    shop.kafka.admin().delete_records([TopicPartition(topic, 0, end + 1)])[
        TopicPartition(topic, 0)
    ].result(30)
    with (
        pytest.raises(DataLostError, match="gone before they were read"),
        Running(config, []) as run,
    ):
        raise run.failure()
