"""Look-ups of single keys in a table's index, for planning chunks."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mview.errors import UserError, literal
from mview.schema import TableSchema, type_name
from mview.snapshot import KeyValues
from mview_connectors.databases.chunking import whole_number
from mview_connectors.databases.ranges import Limit

if TYPE_CHECKING:
    from mview_connectors.databases.sql import SqlDatabase


class IndexKeys:
    """Look-ups over the chunk columns; see `chunking.Keys`."""

    def __init__(
        self, database: SqlDatabase, table: str, schema: TableSchema, columns: tuple[str, ...]
    ) -> None:
        self._database, self._table = database, table
        self._columns = columns
        self._types = [schema.column(name).type for name in columns]
        self._names = [database.quote(name) for name in columns]

    def minimum(self) -> KeyValues | None:
        """The smallest key."""
        return self._first(None, None)

    def maximum(self) -> KeyValues | None:
        """The largest key."""
        return self._first(None, None, descending=True)

    def skip(self, low: KeyValues, rows: int, maximum: KeyValues) -> KeyValues | None:
        """The key `rows` rows after the first one >= `low`; None beyond `maximum`."""
        return self._first((">=", low), ("<=", maximum), offset=rows)

    def after(self, key: KeyValues, maximum: KeyValues) -> KeyValues | None:
        """The smallest key greater than `key`; None beyond `maximum`."""
        return self._first((">", key), ("<=", maximum))

    def _first(
        self, low: Limit | None, high: Limit | None, *, offset: int = 0, descending: bool = False
    ) -> KeyValues | None:
        where, parameters = self._database.where(self._columns, low, high)
        names = ", ".join(self._names) or "1"
        direction = " DESC" if descending else ""
        order = ", ".join(f"{name}{direction}" for name in self._names)
        sql = self._database.first(
            f"SELECT {names} FROM {self._database.relation(self._table)}{where}",
            f" ORDER BY {order}" if order else "",
            offset,
        )
        rows = self._database.query(sql, parameters)
        if not rows:
            return None
        try:
            return tuple(map(_bound, self._types, rows[0]))
        except ValueError as error:
            raise UserError(
                f"a key of {self._database.place(self._table)} does not fit its column: {error}",
                where=", ".join(self._columns),
                hint="correct the row in the source database, then run again",
            ) from None


def _bound(arrow: pa.DataType, value: Any) -> Any:
    """A driver's value in the form `ChunkPlan` compares and stores.

    Raises:
        ValueError: the value is not of the column's type; it says so.
    """
    try:
        bound = _converted(arrow, value)
    except (ValueError, TypeError):
        bound = None
    if bound is None:
        raise ValueError(f"{literal(value)} is no {type_name(arrow)}")
    return bound


def _converted(arrow: pa.DataType, value: Any) -> Any:
    """A driver's value as one of a type; None: there is no such form of it."""
    if whole_number(arrow) and not isinstance(value, str):
        return int(value)
    if pa.types.is_date(arrow):
        return value if isinstance(value, dt.date) else dt.date.fromisoformat(value)
    if pa.types.is_timestamp(arrow) and isinstance(value, dt.datetime):
        # A driver without zones gives the reading of its session, which is UTC.
        naive = arrow.tz is not None and value.tzinfo is None
        return value.replace(tzinfo=dt.timezone.utc) if naive else value
    if pa.types.is_string(arrow) and isinstance(value, str | uuid.UUID):
        return str(value)
    return None
