"""Which tables are looked at before a run, and what is warned of that a connector does not send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mview.catalog import tables
from mview.catalog.unsent import unsent_cautions
from mview.config import ChangesSettings
from mview.errors import AwayError, UserError
from mview.schema import Column, TableSchema
from tests.relations import rel

SCHEMA = TableSchema(
    (
        Column("id", pa.int64(), False, "bigint"),
        Column("at", pa.timestamp("us"), True, "datetime(6)"),
        Column("day", pa.date32(), False, "date"),
    ),
    ("id",),
)
ORDERS, ITEMS = rel("shop.orders"), rel("shop.items")


class Log:
    """A changelog that refuses a table."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def check(self) -> None:
        if "orders" in self._names:
            raise UserError("orders cannot be followed")

    def close(self) -> None:
        pass


class HaltingLog(Log):
    """One that halts what it cannot follow any more."""

    def only(self, columns: Any, loading: Any = ()) -> None:
        assert columns["orders"] == SCHEMA.names


@pytest.mark.parametrize(
    ("log", "loaded", "is_refused"),
    [
        (HaltingLog, set(), True),
        (HaltingLog, {ITEMS}, True),
        (HaltingLog, {ORDERS}, False),
        (HaltingLog, {ORDERS, ITEMS}, False),
        (Log, {ORDERS, ITEMS}, True),
    ],
)
def test_one_that_is_followed_refuses_no_start(
    monkeypatch: pytest.MonkeyPatch, log: Any, loaded: Any, is_refused: bool
) -> None:
    def open_changelog(_: Any, connection: str, names: list[str], columns: Any) -> Any:
        assert connection == "shop"
        opened = log(names)
        if hasattr(opened, "only"):
            opened.only(columns)
        return opened

    monkeypatch.setattr(tables, "open_changelog", open_changelog)
    monkeypatch.setattr(tables, "source_tables", lambda _: [ITEMS, ORDERS])
    config: Any = None
    schemas = {ORDERS: SCHEMA, ITEMS: SCHEMA}
    if is_refused:
        with pytest.raises(UserError, match="orders cannot be followed"):
            tables.check_changelogs(config, [], schemas, loaded)
    else:
        tables.check_changelogs(config, [], schemas, loaded)


@pytest.mark.parametrize(
    ("away", "loaded", "begins"),
    [
        ({"shop"}, {"shop", "crm"}, True),
        ({"crm"}, {"shop", "crm"}, True),
        ({"crm"}, {"shop"}, False),
        ({"shop", "crm"}, {"shop", "crm"}, False),
    ],
)
def test_one_that_is_away_is_gone_on_without(
    monkeypatch: pytest.MonkeyPatch, away: set[str], loaded: set[str], begins: bool
) -> None:
    """Where all of it is loaded, and another one is there."""

    class AwayLog(Log):
        def check(self) -> None:
            if self._names[0] in away:
                raise AwayError("it does not answer")

    monkeypatch.setattr(
        tables, "open_changelog", lambda _, connection, *more: AwayLog([connection])
    )
    monkeypatch.setattr(tables, "source_tables", lambda _: [ORDERS, rel("crm.orders")])
    config: Any = None
    known = {rel(f"{connection}.orders") for connection in loaded}
    if begins:
        tables.check_changelogs(config, [], {}, known)
    else:
        with pytest.raises(AwayError):
            tables.check_changelogs(config, [], {}, known)


@pytest.mark.parametrize(("drivername", "is_warned"), [("mariadb", True), ("postgresql", False)])
def test_zero_dates_are_warned_of(drivername: str, is_warned: bool) -> None:
    settings = ChangesSettings(connection="shop", source="files", format="debezium", path="x")
    connections = {"shop": SimpleNamespace(drivername=drivername)}
    config: Any = SimpleNamespace(changes={"shop": settings}, connections=connections)
    said = list(unsent_cautions(config, {"shop": ["orders"]}, {ORDERS: SCHEMA}))
    told = [text for text in said if "zero date" in text]
    assert len(told) == is_warned
    if is_warned:
        assert "shop.orders.at, shop.orders.day: " in told[0]
