"""About two hundred ordinary views over a small shop: how many of them need a full recompute.

`python -m tests.ivm.ordinary` prints those that do, with the reason and the hint.
"""

from __future__ import annotations

from pathlib import Path

from mview.ivm.compile import compile_view
from mview.ivm.plan import ViewPlan
from mview.plan.definition import parse_view
from tests.ivm.world import table_schema
from tests.relations import keyed

SCHEMAS = {
    "o": table_schema(
        "id bigint, c bigint, d date, at timestamp, total decimal(12,2), st string", "id"
    ),
    "l": table_schema("ord bigint, n int, p bigint, qty int, price decimal(12,2)", "ord n"),
    "c": table_schema("id bigint, name string, city string, nation bigint not null", "id"),
    "p": table_schema("id bigint, name string, kind string, price decimal(12,2)", "id"),
    "e": table_schema("id bigint, boss bigint, dept string, pay decimal(12,2), hired date", "id"),
}

#: Views of other shapes, one per line.
_MORE = Path(__file__).with_name("ordinary.sql")

_AGGREGATES = ["count(*)", "sum(total)", "avg(total)", "min(total)", "max(total)", "count(st)",
    "count(distinct c)", "sum(distinct total)", "stddev(total)", "var_pop(total)",
    "sum(total) filter (where st = 'x')", "count(*) filter (where total > 10)",
    "sum(case when st = 'x' then total else 0 end)", "count_if(st = 'x')",
    "round(avg(total), 1)", "max(total) - min(total)", "sum(total) / count(*)",
    "coalesce(sum(total), 0)", "cast(avg(total) as int)", "bool_or(st = 'x')",
    "collect_list(st)", "collect_set(st)", "max_by(st, total)", "percentile(total, 0.5)",
    "median(total)", "min(d)", "max(at)", "approx_count_distinct(c)"]  # fmt: skip
_GROUPS = ["c", "c, st", "d", "date_trunc('month', at)", "year(d)", "st, year(d), month(d)"]
_JOINS = ["join", "left join", "right join", "full join", "left semi join", "left anti join"]


def texts() -> list[str]:
    """The views."""
    found = [f"select {one} as x from o" for one in _AGGREGATES]
    found += [f"select c, {one} as x from o group by c" for one in _AGGREGATES]
    for group in _GROUPS:
        named = ", ".join(f"{g} as g{i}" for i, g in enumerate(_cut(group)))
        found.append(f"select {named}, count(*) as n, sum(total) as s from o group by {group}")
        found.append(f"select {named}, max(total) as m from o group by {group}")
        found.append(
            f"select {named}, sum(l.qty * l.price) as s from o join l on l.ord = o.id "
            f"group by {group}"
        )
    for kind in _JOINS:
        found.append(f"select o.id, o.total from o {kind} c on c.id = o.c")
        found.append(f"select o.id from o {kind} l on l.ord = o.id and l.qty > 1")
        found.append(f"select o.id from o {kind} c on lower(c.name) = lower(o.st)")
        found.append(f"select o.st, count(*) as n from o {kind} c on c.id = o.c group by o.st")
    found += _MORE.read_text().splitlines()
    return found


def _cut(group: str) -> list[str]:
    return [group] if "(" in group and group.count(",") == 1 else group.split(", ")


def plans() -> dict[str, ViewPlan]:
    """The plan of each view, by its text."""
    return {sql: compile_view(parse_view(sql, "v"), keyed(SCHEMAS)) for sql in texts()}


def is_full(plan: ViewPlan) -> bool:
    """Whether some operator of a view or of its parts reads all rows whenever something changes."""
    every = (*plan.parts, plan)
    return any(one.refused or any(n.strategy == "FULL" for n in one.nodes) for one in every)


def main() -> None:
    found = plans()
    full = {sql: plan for sql, plan in found.items() if is_full(plan)}
    for sql, plan in full.items():
        every = (*plan.parts, plan)
        notes = [one.refused for one in every if one.refused]
        notes += [n.note for one in every for n in one.nodes if n.strategy == "FULL" and n.note]
        print(sql)
        for note in dict.fromkeys(notes):
            print(f"    {note.code}: {note.hint}")
    print(f"{len(full)} of {len(found)}: {len(full) / len(found):.1%}")


if __name__ == "__main__":
    main()
