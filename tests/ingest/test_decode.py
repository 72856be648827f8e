"""From messages to change batches: typing, routing, key changes, and what must halt."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.connector import Message, load
from mview.errors import DecodeError
from mview.ingest.decode import decode_split
from mview.ingest.spec import TableSpec
from mview.schema import Column, TableSchema
from mview.snapshot import ChunkPlan

SCHEMA = TableSchema(
    (
        Column("id", pa.int64(), nullable=False),
        Column("name", pa.string()),
        Column("amount", pa.decimal128(10, 2)),
    ),
    ("id",),
)
LIVE = TableSpec("shop.orders", SCHEMA, Path("base"), "stage", None)
PLAN = ChunkPlan("shop.orders", ("id",), ((10,), (20,)), (29,), 30)
LOADING = TableSpec("shop.orders", SCHEMA, Path("base"), "stage", PLAN)


def message(offset: int, **body: Any) -> Message:
    return Message("log", offset, None, json.dumps({"ts": 1, "position": offset, **body}).encode())


def row(number: int, name: str | None = "a", amount: str | None = "1.50") -> dict[str, Any]:
    return {"id": number, "name": name, "amount": amount}


def decode(messages: list[Message], table: TableSpec = LIVE) -> dict[int, pa.Table]:
    decoder = load("formats", "unified")({})
    rows = decode_split(messages, decoder, {"orders": table})
    return {one.chunk: one.changes for one in rows}


def test_values_are_typed_by_the_table() -> None:
    batch = decode([message(1, table="orders", op="insert", after=row(7, None, "-0.05"))])[0]
    assert batch["id"].to_pylist() == [7]
    assert batch["name"].to_pylist() == [None]
    assert batch["amount"].to_pylist() == [Decimal("-0.05")]
    assert batch["__op"].to_pylist() == ["c"]
    assert batch["__offset"].to_pylist() == [1]


def test_changes_go_to_the_chunk_of_their_key() -> None:
    messages = [
        message(n, table="orders", op="insert", after=row(key))
        for n, key in enumerate([0, 9, 10, 19, 20, 29, 1000])
    ]
    found = {chunk: batch["id"].to_pylist() for chunk, batch in decode(messages, LOADING).items()}
    assert found == {0: [0, 9], 1: [10, 19], 2: [20, 29, 1000]}


def test_a_key_change_is_a_delete_and_a_create_each_in_its_chunk() -> None:
    change = message(5, table="orders", op="update", before=row(3), after=row(25))
    found = decode([change], LOADING)
    assert [(b["__op"].to_pylist(), b["id"].to_pylist()) for b in found.values()] == [
        (["d"], [3]),
        (["c"], [25]),
    ]


def test_a_truncate_reaches_every_chunk_in_order_with_the_rest() -> None:
    messages = [
        message(1, table="orders", op="truncate"),
        message(2, table="orders", op="insert", after=row(15)),
    ]
    found = {c: b["__op"].to_pylist() for c, b in decode(messages, LOADING).items()}
    assert found == {0: ["truncate"], 1: ["truncate", "c"], 2: ["truncate"]}


def test_other_tables_are_passed_over() -> None:
    assert decode([message(1, table="carts", op="insert", after={"id": 1})]) == {}


def test_a_value_that_does_not_fit_halts_with_its_place() -> None:
    good = message(1, table="orders", op="insert", after=row(1))
    bad = message(2, table="orders", op="insert", after=row(2, "x", "12.345"))
    with pytest.raises(DecodeError) as error:
        decode([good, bad])
    assert error.value.where == "log, offset 2, table orders"
    assert "shop.orders.amount" in error.value.what
    assert "12.345" in str(error.value.got)


def test_a_missing_column_halts() -> None:
    with pytest.raises(DecodeError, match=r"'amount' of .* is not in the message"):
        decode([message(1, table="orders", op="insert", after={"id": 1, "name": "a"})])


def test_a_delete_needs_its_key() -> None:
    with pytest.raises(DecodeError, match="no value for the key"):
        decode([message(1, table="orders", op="delete", before={"name": "a"})])


@pytest.mark.parametrize("op", ["insert", "update"])
@pytest.mark.parametrize("table", [LIVE, LOADING])
def test_a_row_needs_its_key(op: str, table: TableSpec) -> None:
    """SQLite lets a text be NULL in a primary key; such rows could not be told apart."""
    good = [
        message(1, table="orders", op="truncate"),
        message(2, table="orders", op="insert", after=row(1)),
    ]
    bad = message(3, table="orders", op=op, after={**row(1), "id": None}, key={"id": 1})
    with pytest.raises(DecodeError, match="no value for the key") as error:
        decode([*good, bad], table)
    assert error.value.where == "log, offset 3, table orders"
    assert decode(good, table)
