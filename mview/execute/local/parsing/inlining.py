"""What a query writes in short: windows with a name, rows of values, derived tables without a name.

They are written out.
"""

from __future__ import annotations

from sqlglot import exp

from mview.execute.refusal import NotAdmittedError
from mview.plan.functions.windows import put_windows_in_place


def write_out(tree: exp.Expr) -> None:
    """Write out windows with a name and VALUES in FROM, and name derived tables that have no name.

    Raises:
        NotAdmittedError: rows of VALUES differ in their length, or in the number of their names.
    """
    for select in tree.find_all(exp.Select):
        put_windows_in_place(select)
    for values in list(tree.find_all(exp.Values)):
        if isinstance(values.parent, exp.From | exp.Join):
            values.replace(_as_query(values))
    for number, query in enumerate(tree.find_all(exp.Subquery)):
        if isinstance(query.parent, exp.From | exp.Join) and not query.alias:
            query.set("alias", exp.TableAlias(this=exp.to_identifier(f"derived {number}", True)))


def _as_query(values: exp.Values) -> exp.Subquery:
    """`VALUES (1, 'x'), (2, 'y')` as `SELECT 1 AS a, 'x' AS b UNION ALL SELECT 2, 'y'`."""
    alias = values.args.get("alias") or exp.TableAlias()
    rows = [list(r.expressions) if isinstance(r, exp.Tuple) else [r] for r in values.expressions]
    names = alias.columns or [exp.to_identifier(f"col{n + 1}") for n in range(len(rows[0]))]
    if any(len(row) != len(names) for row in rows):
        raise NotAdmittedError("clause", "VALUES of several lengths")
    query, *others = (
        exp.Select(
            expressions=[
                exp.Alias(this=value, alias=name.copy())
                for value, name in zip(row, names, strict=True)
            ]
        )
        for row in rows
    )
    made: exp.Query = query
    for other in others:
        made = exp.Union(this=made, expression=other, distinct=False)
    return exp.Subquery(this=made, alias=exp.TableAlias(this=alias.args.get("this")))
