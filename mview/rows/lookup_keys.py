"""Keys of a look-up in the types of the columns they are looked up in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mview.rows.match import first_rows, row_codes

#: Types whose values are equal in SQL exactly when they are equal after a cast that keeps them.
#: (Not integers with floats: SQL compares them as doubles, where large integers fall together.)
_GROUPS = (
    lambda kind: pa.types.is_integer(kind) or pa.types.is_decimal(kind),
    pa.types.is_floating,
    pa.types.is_temporal,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
)


def typed_keys(
    schema: pa.Schema, columns: Sequence[str], keys: pa.Table, null_safe: bool
) -> pa.Table | None:
    """The keys that can match, in the types and the order of the schema's columns.

    Args:
        schema: the rows that are looked up.
        columns: column names in `schema`.
        keys: one column per name, in the order of `columns`.
        null_safe: keep keys with NULL.

    Returns:
        The keys; None when values of these types cannot be compared by hash.
    """
    given = dict(zip(columns, keys.columns, strict=True))
    typed: dict[str, pa.ChunkedArray] = {}
    kept = []
    for name in schema.names:
        if name not in given:
            continue
        cast = _cast(given[name], schema.field(name).type)
        if cast is None:
            return None
        typed[name], fits = cast
        if fits is not None:
            kept.append(fits)
        if not null_safe and given[name].null_count:
            kept.append(pc.is_valid(given[name]))
    table = pa.table(typed)
    return table.filter(reduce(pc.and_, kept)) if kept else table


def first_duplicate(keys: pa.Table) -> int | None:
    """The number of a row whose values stand in the table before; None when all differ."""
    first, group = first_rows(row_codes([keys])[0])
    again = np.flatnonzero(first[group] != np.arange(keys.num_rows))
    return int(again[0]) if len(again) else None


def _cast(
    keys: pa.ChunkedArray, kind: pa.DataType
) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None] | None:
    """The cast keys and which of them the type can hold (the others match nothing)."""
    if keys.type == kind:
        return keys, None
    if not any(same(keys.type) and same(kind) for same in _GROUPS):
        return None
    try:
        cast = keys
        if pa.types.is_integer(keys.type) and pa.types.is_decimal(kind):
            # Arrow wants room for every bigint first.
            cast = cast.cast(pa.decimal128(38, kind.scale))
        cast = cast.cast(kind, safe=False)
        fits = pc.or_(pc.equal(cast.cast(keys.type, safe=False), keys), pc.is_null(keys))
        if pa.types.is_floating(kind):
            fits = pc.or_(fits, pc.is_nan(keys))
    except pa.ArrowInvalid:
        return None
    return cast, pc.fill_null(fits, True)
