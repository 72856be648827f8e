"""Changes that triggers note in a SQLite database, as messages.

A message is JSON: `{"table": …, "op": "u" | "d", "ms": …, "row": {column: value}}`; u has all
columns, d the key. Values are as SQLite stores them: NULL, integers and texts as JSON has them,
reals as `["real", hexadecimal]` and bytes as `["blob", hexadecimal]`. They become a column's values
by the rules by which the table's own rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from mview.changelog import ChangeEvent
from mview.clock import SourceMs
from mview.connector import Message
from mview.schema import Column
from mview_connectors.databases.sqlite import converter
from mview_connectors.formats.messages import format_options, undecodable


def noted_message(
    partition: str, number: int, ms: int, table: str, op: str, row: Mapping[str, Any]
) -> Message:
    """The message of a change; see the module."""
    cells = {name: _written(value) for name, value in row.items()}
    body = {"table": table, "op": op, "ms": ms, "row": cells}
    return Message(partition, number, None, orjson.dumps(body))


class NotedFormat:
    """Decodes changes that triggers noted; see the module."""

    in_band_heartbeats = True

    def __init__(self, options: Mapping[str, str]) -> None:
        format_options(options, {})

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """The one change of a message."""
        try:
            body = orjson.loads(message.value or b"")
            row = {name: _read(value) for name, value in body["row"].items()}
            table, op, ms = body["table"], body["op"], body["ms"]
            if not (isinstance(table, str) and op in ("u", "d") and type(ms) is int):
                raise ValueError("table, op or ms")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise undecodable(message, f"no change that a trigger noted: {error}") from error
        before, after = (row, None) if op == "d" else (None, row)
        position = (message.offset,)
        yield ChangeEvent(
            table,
            op,
            None,
            before,
            after,
            position,
            SourceMs(ms),
            message.partition,
            message.offset,
        )

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type, by the rules of the tables' own rows."""
        return converter(column.type)(values)


def _written(value: Any) -> Any:
    if isinstance(value, float):
        return ["real", value.hex()]
    if isinstance(value, bytes):
        return ["blob", value.hex()]
    return value


def _read(value: Any) -> Any:
    match value:
        case ["real", str(text)]:
            return float.fromhex(text)
        case ["blob", str(text)]:
            return bytes.fromhex(text)
        case None | int() | str() if not isinstance(value, bool):
            return value
    raise ValueError(f"a value of no kind that SQLite has: {value!r}")
