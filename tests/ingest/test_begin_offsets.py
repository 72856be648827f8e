"""Where logs are read from when tables are added: nothing that was not read is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from mview.ingest import load_plan
from mview.ingest.load_plan import begin_offsets
from mview.schema import Column, TableSchema, parse_type
from tests.relations import rel

CONFIG: Any = None


class Log:
    """The topics of some tables, with the ends and ids that they have now."""

    ends = {"a/0": 7, "a/1": 3, "a": "id-a", "b/0": 9, "b": "id-b"}  # noqa: RUF012

    #: What is read of the tables that a load begins with.
    begun: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, tables: list[str], columns: Mapping[str, Sequence[str]]) -> None:
        self.tables, self.columns = tables, columns

    def has(self, entry: str) -> bool:
        return entry.partition("/")[0] in self.tables

    def begin(self, known: object) -> dict[str, object]:
        Log.begun = self.columns
        return {entry: end for entry, end in self.ends.items() if self.has(entry)}

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(
        config: object,
        name: str,
        tables: list[str],
        columns: Mapping[str, Sequence[str]] = Log.begun,
        reader: object = None,
    ) -> Log:
        return Log(tables, columns)

    monkeypatch.setattr(load_plan, "open_changelog", opened)


def test_a_partition_that_a_followed_table_got_meanwhile_is_not_begun_at_its_end() -> None:
    read = {"shop": {"a/0": 5, "a": "id-a"}}
    offsets, ends = begin_offsets(CONFIG, read, [rel("shop.a"), rel("shop.b")], {rel("shop.b")}, {})
    assert offsets == {"shop": {"a/0": 5, "a": "id-a", "b/0": 9, "b": "id-b"}}
    assert ends == {"shop": Log.ends}


def test_a_topic_that_was_made_anew_keeps_the_id_that_was_read() -> None:
    read = {"shop": {"a/0": 5, "a": "older"}}
    offsets, _ = begin_offsets(CONFIG, read, [rel("shop.a"), rel("shop.b")], {rel("shop.b")}, {})
    assert offsets["shop"]["a"] == "older"


def test_a_table_that_is_loaded_anew_begins_at_the_end() -> None:
    read = {"shop": {"a/0": 5, "a": "older", "c/0": 1}}
    offsets, _ = begin_offsets(CONFIG, read, [rel("shop.a")], {rel("shop.a")}, {})
    assert offsets == {"shop": {"a/0": 7, "a/1": 3, "a": "id-a", "c/0": 1}}


def test_only_columns_that_are_read_need_be_in_the_log() -> None:
    """Another one may be of a type that the log has not."""
    read = TableSchema((Column("id", parse_type("bigint"), nullable=False),), ("id",))
    begin_offsets(CONFIG, {}, [rel("shop.a")], {rel("shop.a")}, {rel("shop.a"): read})
    assert {name: list(columns) for name, columns in Log.begun.items()} == {"a": ["id"]}
