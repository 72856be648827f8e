"""The sums, counts and extremes of a view's groups, after a change of some of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from mview.connector import WEIGHT
from mview.execute.slices import is_plain
from mview.rows.values import are_few, column_of, first_places, row_values, whole_numbers
from mview.schema import as_schema


def _run(sql: str, **relations: pa.Table) -> pa.Table:
    # Here: planning a view (`mview check`) needs no engine.
    from mview.execute.queries import run_here

    return run_here(sql, relations)


def _quoted(names: Sequence[str]) -> str:
    """Column names as a DuckDB list."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def add_up(
    groups: Sequence[str],
    accumulators: Sequence[str],
    state: pa.Table,
    partial: pa.Table,
    extremes: Mapping[str, str],
    beside: Mapping[str, str],
    genuine: bool,
) -> pa.Table | None:
    """The rows of a state table with the changes added; groups without rows stay, with count 0.

    Args:
        groups: group columns.
        accumulators: accumulator columns; the first counts rows.
        state: the present rows of the changed groups.
        partial: what to add (WEIGHT 1) and to take away (-1).
        extremes: accumulators that are no sums: `min`, `max`, or `complete`, for a value that is
            that of all rows.
        beside: accumulators that are a value in a row with an extreme, and that extreme.
        genuine: rows that go and come were and are there. Else some may be of parts that did not
            change and are incomplete in the slices: they go and come alike, and were never there.

    Returns:
        The rows; None when rows with an extreme value went away, so that it is not known.

    Raises:
        pa.ArrowInvalid: a sum does not fit its type.
    """
    schema = partial.select([*groups, *accumulators]).schema
    if not extremes and is_plain(schema):
        numbers = schema.types[len(groups) :]
        few = are_few(state.num_rows + partial.num_rows, schema.types) and all(
            pa.types.is_integer(kind) or pa.types.is_decimal128(kind) for kind in numbers
        )
        return (_few_summed if few else _summed)(
            groups, accumulators, state.select(schema.names), partial
        )
    count = _sum(accumulators[0])
    sums = [name for name in accumulators if name not in extremes and name not in beside]
    columns = [
        f"sum({_quoted([name])}) FILTER (part = {part}) AS {_quoted([name + side])}"
        for name in sums
        for side, part in _SIDES.items()
    ]
    unknown = []
    for name, kind in extremes.items():
        value, doubt = _extreme(_quoted([name]), kind, genuine)
        columns.append(f"CASE WHEN {count} > 0 THEN {value} END AS {_quoted([name])}")
        unknown += [doubt] if doubt else []
    for name, extreme in beside.items():
        value, doubt = _beside(_quoted([name]), _quoted([extreme]), extremes[extreme], genuine)
        unknown.append(doubt)
        columns.append(f"CASE WHEN {count} > 0 THEN {value} END AS {_quoted([name])}")
    doubts = f"{count} > 0 AND ({' OR '.join(unknown)})" if unknown else "false"
    names = _quoted([*groups, *accumulators])
    sql = (
        f"SELECT {_quoted(groups)}, {', '.join(columns)}, coalesce({doubts}, false) AS __doubt "
        f"FROM (SELECT {WEIGHT} AS part, {names} FROM partial UNION ALL "
        f"SELECT 0, {names} FROM state) GROUP BY {_quoted(groups)}"
    )
    added = _run(sql, state=state, partial=partial)
    if pc.any(added["__doubt"]).as_py():
        return None
    for name in sums:
        added = added.append_column(name, _total(added, name))
    return as_schema(added.select(schema.names), schema)


#: Suffixes of what is kept, comes and goes of a sum, by `part`.
_SIDES = {"_kept": 0, "_come": 1, "_gone": -1}


def _total(added: pa.Table, name: str) -> pa.ChunkedArray:
    kept, come, gone = (pc.fill_null(_roomy(added[name + side]), 0) for side in _SIDES)
    return pc.subtract(pc.add(kept, come), gone)


def _roomy(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals that can be added without leaving their bits: Arrow would not notice."""
    kind = column.type
    if not pa.types.is_decimal128(kind) or kind.precision <= _ROOMY:
        return column
    return column.cast(pa.decimal256(_WIDE, kind.scale))


#: Digits of decimals of which 128 bits hold the sum of dozens; digits enough for any sum.
_ROOMY, _WIDE = 36, 50


def _extreme(column: str, kind: str, genuine: bool) -> tuple[str, str | None]:
    """The new smallest or largest value of a group, and the condition under which it is unknown."""
    function = "min" if kind == "min" else "max"
    kept, gone, come = (f"{function}({column}) FILTER (part = {part})" for part in ("0", "-1", "1"))
    if kind == "complete":
        # A group that is not in the partials did not change.
        return f"CASE WHEN count(*) FILTER (part <> 0) > 0 THEN {come} ELSE {kept} END", None
    beyond = f"{come} {'>' if kind == 'min' else '<'} {kept}"
    doubt = f"({gone} = {kept} AND ({come} IS NULL OR {beyond}))"
    if not genuine:
        doubt = f"({doubt} OR {_never_there(kept, gone, come, kind)})"
    return f"{'least' if kind == 'min' else 'greatest'}({kept}, {come})", doubt


def _never_there(kept: str, gone: str, come: str, kind: str) -> str:
    """Whether what comes has its extreme from rows that may not be genuine: those go as well."""
    reaches = f"{come} {'<=' if kind == 'min' else '>='} {kept}"
    return f"({come} = {gone} AND ({kept} IS NULL OR {reaches}))"


def _beside(column: str, extreme: str, kind: str, genuine: bool) -> tuple[str, str]:
    """The value in a row with the new extreme, and the condition under which it is unknown.

    Of rows that tie it is the greatest (the least, for a smallest extreme); NULL is the least.
    """
    least = kind == "min"
    function = "min" if least else "max"
    kept, gone, come = (f"{function}({extreme}) FILTER (part = {n})" for n in ("0", "-1", "1"))
    # One row of each part at most: `first` is its value, NULL or not.
    before, lost, after = (f"first({column}) FILTER (part = {n})" for n in ("0", "-1", "1"))
    low, high = (after, before) if least else (before, after)
    wins = f"({low} IS NULL OR ({high} IS NOT NULL AND {low} <= {high}))"
    more = f"{come} {'<' if least else '>'} {kept}"
    takes = f"({come} IS NOT NULL AND ({kept} IS NULL OR {more} OR ({come} = {kept} AND {wins})))"
    doubt = f"({gone} = {kept} AND {lost} IS NOT DISTINCT FROM {before} AND NOT {takes})"
    if not genuine:
        doubt = f"({doubt} OR {_never_there(kept, gone, come, kind)})"
    return f"CASE WHEN {takes} THEN {after} ELSE {before} END", doubt


def _few_summed(
    groups: Sequence[str], accumulators: Sequence[str], state: pa.Table, partial: pa.Table
) -> pa.Table:
    """The same as `_summed` of few rows."""
    rows = pa.concat_tables([state, as_schema(partial.select(state.column_names), state.schema)])
    weights = [1] * state.num_rows + partial[WEIGHT].to_pylist()
    keys = row_values(rows.select(groups)) if groups else [()] * rows.num_rows
    first = first_places(keys)
    codes = dict(zip(first, range(len(first)), strict=True))
    group = [codes[key] for key in keys]
    columns = rows.select(groups).take(pa.array([*first.values()], pa.int64())).columns
    for name in accumulators:
        totals = [0] * len(first)
        for code, number, weight in zip(group, whole_numbers(rows[name]), weights, strict=True):
            if number is not None:
                totals[code] += number * weight
        columns.append(column_of(totals, state.schema.field(name).type))
    return pa.table(columns, schema=pa.schema([*map(state.schema.field, [*groups, *accumulators])]))


def _summed(
    groups: Sequence[str], accumulators: Sequence[str], state: pa.Table, partial: pa.Table
) -> pa.Table:
    away = pc.less(partial[WEIGHT], 0)
    parts = [state, partial.filter(pc.invert(away)).select(state.column_names)]
    gone = partial.filter(away)
    columns = [gone[name] for name in groups] + [pc.negate(gone[name]) for name in accumulators]
    names = [*groups, *accumulators]
    parts.append(pa.table(columns, names=names).select(state.column_names))
    rows = pa.concat_tables([as_schema(part, state.schema) for part in parts])
    for at, name in enumerate(rows.column_names):
        if name in accumulators:
            rows = rows.set_column(at, name, _roomy(rows[name]))
    sums = [(name, "sum") for name in accumulators]
    added = rows.group_by(list(groups), use_threads=False).aggregate(sums).rename_columns(names)
    filled = [added[name] for name in groups]
    filled += [pc.fill_null(added[name], 0) for name in accumulators]
    return as_schema(pa.table(filled, names), pa.schema([state.schema.field(n) for n in names]))


def _sum(name: str) -> str:
    column = _quoted([name])
    return f"coalesce(sum(CASE WHEN part < 0 THEN -{column} ELSE {column} END), 0)"
