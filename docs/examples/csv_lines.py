"""A format: messages of one line, `<table>,<position>,<c, u or d>,<values of all columns>`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mview.changelog import ChangeEvent
from mview.connector import Message
from mview.schema import Column


class CsvLines:
    """Values are texts, typed by `convert`; an empty one is NULL.

    Args:
        options: of the changelog's section; `columns.<table>` names the columns in their order.
    """

    #: A line says nothing of the time: how far the log was read is known at its end only.
    in_band_heartbeats = True

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def decode(self, message: Message) -> Iterator[ChangeEvent]:
        """The one event; what raises here is told with the place of the message."""
        assert message.value is not None
        table, position, kind, *values = next(csv.reader([message.value.decode()]))
        names = self._options[f"columns.{table}"].split(",")
        row = dict(zip(names, (value or None for value in values), strict=True))
        common = ((int(position),), None, message.partition, message.offset)
        if kind == "d":
            yield ChangeEvent(table, "d", None, row, None, *common)
        elif kind == "c" or kind == "u":
            yield ChangeEvent(table, kind, None, None, row, *common)
        else:
            raise ValueError(f"{kind!r} is neither c, u nor d")

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """Texts as the column's type; Arrow raises ValueError for one that does not fit."""
        return pa.array(values, pa.string()).cast(column.type)
