"""What is told of the size of rows before they are read."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mview.execute.executors import Executors
from mview.execute.relations import Relation
from mview.memory import Memory
from mview.schema import Column, TableSchema, parse_type
from mview.store.mirror import Mirror
from tests.relations import rel
from tests.store.mirrors import stage

SCHEMA = TableSchema(
    (Column("id", parse_type("bigint")), Column("note", parse_type("string"))), ("id",)
)


def relation(folder: Path, length: int, rows: int = 300) -> Relation:
    """A table with texts of a length that no compression makes shorter."""
    rng = random.Random(length)
    mirror = Mirror(folder, SCHEMA)
    state = mirror.create()
    texts = [(number, rng.randbytes(length // 2).hex()) for number in range(rows)]
    version = mirror.register(1, [stage(mirror, texts)], {})
    return Relation(mirror, replace(state, base_version=version, rows=rows, phase="loaded"))


def executors(known: Relation, memory: int) -> Executors:
    spark: Any = None
    return Executors(spark, {rel("c.t"): known}, "local", Memory(memory))


def test_long_texts_are_as_long_as_their_files_say(tmp_path: Path) -> None:
    long, short = relation(tmp_path / "long", 5000), relation(tmp_path / "short", 4)
    assert 4000 < long.text_bytes < 15_000
    assert short.text_bytes == 24
    budget = 16 << 20
    found = [executors(known, budget).most(rel("c.t"), ("note",)) for known in (long, short)]
    assert found == [(1 << 20) // long.text_bytes, (1 << 20) // 24]
    # A column of fixed width takes what it takes.
    assert executors(long, budget).most(rel("c.t"), ("id",)) == (1 << 20) // 9


def test_a_table_that_cannot_fit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its columns alone it would fit."""
    large = relation(tmp_path / "t", 5000)
    made = executors(large, 1 << 20)
    monkeypatch.setattr(made, "prepare", lambda *_: None)
    read: list[Any] = []
    monkeypatch.setattr(Mirror, "scan_within", lambda *asked: read.append(asked))
    assert made.warm({}) == [rel("c.t")]
    assert read == []
    # With a larger budget it is tried.
    made = executors(large, 64 << 20)
    monkeypatch.setattr(made, "prepare", lambda *_: None)
    assert made.warm({}) == [rel("c.t")]
    assert len(read) == 1
