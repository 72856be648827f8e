"""The tables in docs/ that say how each query of a benchmark is kept."""

from __future__ import annotations

from collections.abc import Mapping

from mview.ivm.plan import ViewPlan

_HEAD = """# {title}: how each query is kept

Made by `{test}`, which also holds every view against Spark's batch result after
epochs that insert, update and delete in every table. The queries are in `{queries}`.

- *strategies*: those of the operators that do more than work on changed rows, from the top.
- *parts*: results in between that are kept as tables of their own.
- *state*: whether aggregates are kept in a table of their own, to be added up.
- *reads all rows*: never (`-`), or in which epochs; see `mview explain`. The codes are explained in
  [reasons.md](reasons.md).

"""
_COLUMNS = "| query | strategies | parts | state | reads all rows |\n|---|---|---|---|---|\n"
#: How many queries a benchmark has.
_QUERIES = {"TPC-H": 22, "TPC-DS": 99}
#: Codes of operators that read all rows in some epochs only.
_WHEN = {
    "VALUE": "when the subquery's value changes",
    "TOP": "when the reserve of rows is used up",
    "EXTREME": "when the extreme value goes away",
}


def full_codes(plan: ViewPlan) -> tuple[str, ...]:
    """Why a view or one of its parts reads all rows in every epoch; () for an incremental view."""
    every = (plan, *plan.parts)
    notes = [one.refused for one in every]
    notes += [node.note for one in every for node in one.nodes]
    return tuple(dict.fromkeys(note.code for note in notes if note is not None and note.always))


def strategy_table(views: Mapping[str, ViewPlan], *, title: str, test: str, queries: str) -> str:
    """The file's text: a row per view, and how many are FULL for what reason."""
    head = _HEAD.format(title=title, test=test, queries=queries)
    full = {name: codes for name, plan in views.items() if (codes := full_codes(plan))}
    there = "" if len(views) == _QUERIES[title] else f" (of the {_QUERIES[title]} of {title})"
    count = f"{len(views) - len(full)} of {len(views)} queries{there} are incremental"
    lines = [f"{count}{'; FULL:' if full else '.'}"]
    lines += [""] if full else []
    lines += [f"- {name}: {', '.join(codes)}" for name, codes in full.items()]
    return head + "\n".join(lines) + "\n\n" + _COLUMNS + "".join(map(_line, views.values()))


def _line(plan: ViewPlan) -> str:
    every = (plan, *plan.parts)
    notes = [note for one in every for note in one.nodes]
    strategies = list(dict.fromkeys(n.strategy for n in notes if n.strategy != "LINEAR"))
    if plan.refused is not None:
        strategies = ["FULL"]
    codes = dict.fromkeys(note.note.code for note in notes if note.note is not None)
    reads = [_WHEN.get(code, f"always ({code})") for code in (*full_codes(plan), *codes)]
    state = "yes" if any(one.state_definition is not None for one in every) else "-"
    cells = [
        str(plan.relation),
        ", ".join(strategies) or "LINEAR",
        str(len(plan.parts) or "-"),
        state,
        "; ".join(dict.fromkeys(reads)) or "-",
    ]
    return f"| {' | '.join(cells)} |\n"
