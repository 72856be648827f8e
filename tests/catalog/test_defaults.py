"""A connector may send a default in place of NULL: refused until it is stated that it does not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mview.catalog.unsent import check_defaults
from mview.config import ChangesSettings
from mview.errors import ConfigError
from mview.schema import Column, TableSchema
from tests.relations import rel

SCHEMA = TableSchema((Column("id", pa.int64(), False), Column("n", pa.int64())), ("id",))


class Defaults:
    """A database with columns that have defaults."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def defaults(self, table: str) -> tuple[str, ...]:
        assert table == "orders"
        return self._names


def check(database: Any, kind: str = "debezium", **options: str) -> None:
    settings = ChangesSettings(
        connection="shop",
        source="files",
        format=kind,
        path="changes",
        options={f"format.{name}": text for name, text in options.items()},
    )
    check_defaults(settings, rel("shop.orders"), SCHEMA, database)


def test_columns_that_are_read_are_refused_until_the_converter_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        check(Defaults("n", "other"))
    assert caught.value.got == "n"
    assert caught.value.where == "changes.shop.options"
    assert 'format.replace.null.with.default: "false"' in str(caught.value.hint)
    check(Defaults("n"), **{"replace.null.with.default": "false"})


def test_where_no_default_comes_in_place_of_null() -> None:
    check(Defaults())
    check(Defaults("not_read"))
    for kind in ("canal", "maxwell", "ticdc", "unified"):
        check(Defaults("n"), kind)
