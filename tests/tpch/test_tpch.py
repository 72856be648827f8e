"""All 22 TPC-H queries stay equal to Spark's batch result while every table changes.

A small scale and two epochs by default; MVIEW_TPCH_SCALE=0.01 MVIEW_TPCH_EPOCHS=6 asks for more.
The table of strategies in docs/tpch.md is made here: MVIEW_COMPLETE=1 writes it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mview.ivm.plan import ViewPlan
from tests.tpch.data import Tpch
from tests.tpch.world import QUERIES, TpchWorld

SCALE = float(os.environ.get("MVIEW_TPCH_SCALE", "0.0005"))
EPOCHS = int(os.environ.get("MVIEW_TPCH_EPOCHS", "2"))
TABLE = Path(__file__).parents[2] / "docs" / "tpch.md"

_HEAD = """# TPC-H: how each query is kept

Made by `tests/tpch/test_tpch.py`, which also holds every view against Spark's batch result after
epochs that insert, update and delete in every table. The queries are in `sql/tpch`.

- *strategies*: those of the operators that do more than work on changed rows, from the top.
- *parts*: results in between that are kept as tables of their own.
- *reads all rows*: never (`-`), or in which epochs; see `mview explain`.

| query | strategies | parts | state | reads all rows |
|---|---|---|---|---|
"""
_WHEN = {
    "VALUE": "when the subquery's value changes",
    "TOP": "when the reserve of rows is used up",
    "EXTREME": "when the extreme value goes away",
}


def strategy_table(plans: dict[str, ViewPlan]) -> str:
    """The file's text."""
    lines = []
    for name, plan in plans.items():
        if ":" in name:
            continue
        every = (plan, *plan.parts)
        notes = [note for one in every for note in one.nodes]
        strategies = dict.fromkeys(n.strategy for n in notes if n.strategy != "LINEAR")
        codes = dict.fromkeys(note.note.code for note in notes if note.note is not None)
        state = "yes" if any(one.state_definition is not None for one in every) else "-"
        reads = "; ".join(_WHEN.get(code, f"always ({code})") for code in codes) or "-"
        parts = len(plan.parts) or "-"
        lines.append(f"| {name} | {', '.join(strategies)} | {parts} | {state} | {reads} |")
    return _HEAD + "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_every_query_equals_batch_at_every_epoch(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    world = TpchWorld(spark, Tpch(SCALE))
    assert len(world.definitions) == len(list(QUERIES.glob("q*.sql"))) == 22
    full = {
        plan.name
        for plan in world.plans.values()
        if plan.refused or any(note.strategy == "FULL" for note in plan.nodes)
    }
    assert full == set()
    table = strategy_table(world.plans)
    if "MVIEW_COMPLETE" in os.environ:
        TABLE.write_text(table)
    assert TABLE.read_text() == table
    changed: set[str] = set()
    for epoch in range(1, EPOCHS + 1):
        counts = world.epoch(changes=max(120, int(60_000 * SCALE)))
        changed |= {name for name, rows in counts.items() if rows}
        assert world.differences() == {}, f"epoch {epoch}"
    # A view that nothing changes proves nothing.
    assert {one.name for one in world.definitions} - changed == set()
