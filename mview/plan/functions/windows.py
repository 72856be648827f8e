"""Windows that a query names: `OVER w … WINDOW w AS (…)`."""

from __future__ import annotations

from sqlglot import exp

from mview.plan.functions.effects import windows


def put_windows_in_place(select: exp.Select) -> None:
    """Write out `OVER name`; the query names no windows then."""
    named = {window.name.lower(): window for window in select.args.get("windows") or []}
    if not named:
        return
    clauses = (select.args.get(name) for name in ("having", "qualify", "order"))
    places = [*select.expressions, *(clause for clause in clauses if clause is not None)]
    for window in [inner for place in places for inner in windows(place)]:
        base = named.get(window.alias.lower())
        if base is not None:
            write_out(window, base)
        window.set("alias", None)
    select.set("windows", None)


def write_out(window: exp.Window, base: exp.Expr) -> None:
    """Give a window in a tree what the window that it names consists of."""
    for part in ("partition_by", "order", "spec"):
        window.set(part, base.copy().args.get(part))
    window.set("alias", None)
