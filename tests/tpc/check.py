"""What is asked of a benchmark: every query equals Spark's batch result at every epoch."""

from __future__ import annotations

import os
from pathlib import Path

from mview.ivm.compile import compile_view
from tests.relations import keyed
from tests.tpc.strategies import strategy_table
from tests.tpc.world import BenchmarkWorld

_ROOT = Path(__file__).parents[2]


def check_strategies(world: BenchmarkWorld, name: str, title: str) -> None:
    """The table in docs/ is what the compiler does now; MVIEW_COMPLETE=1 writes it."""
    test, queries = f"tests/{name}/test_{name}.py", f"sql/{name}"
    table = strategy_table(world.views, title=title, test=test, queries=queries)
    file = _ROOT / "docs" / f"{name}.md"
    if "MVIEW_COMPLETE" in os.environ:
        file.write_text(table)
    assert file.read_text() == table, f"write docs/{name}.md anew with MVIEW_COMPLETE=1"


def check_keys(world: BenchmarkWorld) -> None:
    """`mview plan` asks no Spark, and must not foretell a key that a run would not find."""
    schemas = keyed(world.data.schemas)
    for definition in world.definitions:
        found = world.views[definition.name]
        plan = compile_view(definition, schemas)
        if plan.columns == found.columns:
            known = plan.keys
            assert known == {name: found.keys.get(name, key) for name, key in known.items()}


def check_epochs(world: BenchmarkWorld, epochs: int, changes: int) -> None:
    """Every view is right after every epoch, had rows, and was changed by some epoch."""
    assert world.empty() == set()
    changed: set[str] = set()
    for epoch in range(1, epochs + 1):
        counts = world.epoch(changes)
        changed |= {name for name, rows in counts.items() if rows}
        wrong = world.differences()
        assert not wrong, f"epoch {epoch}: {wrong}"
    # A view that nothing changes proves nothing.
    assert set(world.views) - changed == set()
