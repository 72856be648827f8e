"""Which connections a view reads."""

from __future__ import annotations

import pytest

from mview.catalog.tables import connections_of
from mview.plan.definition import parse_view

VIEWS = {
    name: parse_view(sql, name)
    for name, sql in {
        "near": "SELECT id, now() AS seen FROM shop.t",
        "both": "SELECT a.id FROM near AS a JOIN crm.t AS b ON a.id = b.id",
        "above": "SELECT a.id FROM both AS a JOIN near AS b ON a.id = b.id",
        "constant": "SELECT 1 AS x",
        "lost": "SELECT id FROM of_another_store",
        "above_lost": "SELECT a.id FROM near AS a JOIN lost AS b ON a.id = b.id",
    }.items()
}


@pytest.mark.parametrize(
    ("view", "connections"),
    [
        ("near", {"shop"}),
        ("both", {"shop", "crm"}),
        ("above", {"shop", "crm"}),
        ("constant", set()),
        ("lost", None),
        ("above_lost", None),
        ("none", None),
    ],
)
def test_they_are_found_by_way_of_other_views(view: str, connections: set[str] | None) -> None:
    assert connections_of(view, VIEWS) == connections
