"""How many of two hundred ordinary views need a full recompute, and what they are told."""

from __future__ import annotations

from mview.ivm.compile import compile_view
from mview.plan.definition import parse_view
from tests.ivm.ordinary import is_full, plans
from tests.ivm.world import table_schema
from tests.relations import keyed


def test_few_ordinary_views_are_full_and_they_say_why() -> None:
    found = plans()
    full = {sql: plan for sql, plan in found.items() if is_full(plan)}
    assert len(found) > 200
    assert len(full) / len(found) < 0.05, "\n".join(full)
    for sql, plan in full.items():
        every = (*plan.parts, plan)
        notes = [n.note for one in every for n in one.nodes if n.strategy == "FULL"]
        assert all(note is not None and note.hint for note in notes), sql


def test_a_long_chain_of_joins_is_planned_in_time() -> None:
    """Steps and their keys grow by the number of tables, not by its square for each of them."""
    sizes = {}
    for count in (8, 16):
        names = [f"t{i}" for i in range(count)]
        schemas = {one: table_schema("id bigint, v bigint", "id") for one in names}
        joins = " ".join(f"full join {one} using (id)" for one in names[1:])
        plan = compile_view(parse_view(f"select id from t0 {joins}", "v"), keyed(schemas))
        sources = [len(s.sources) for t in plan.traces for s in t.steps]  # type: ignore[union-attr]
        assert len(plan.traces) == count
        sizes[count] = sum(sources)
    # Per changed table: every other table once by every table's key.
    assert sizes[16] <= 16 * 16 * 16
    assert sizes[16] / sizes[8] < 10
