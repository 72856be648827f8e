"""What a change looks like in a topic of changes."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar, Protocol

import orjson
import pyarrow as pa

from mview.follower import FollowerTarget, Step

Row = dict[str, Any]

_DAY_US = 86_400_000_000


class Shape(Protocol):
    """The messages of one step."""

    def change(self, kind: str, old: Row | None, row: Row) -> bytes:
        """A change: `+I`, `-D`, or `+U` with the row before."""
        ...

    def heartbeat(self) -> bytes | None:
        """What says that all changes up to the step's time are before it; None: nothing does."""
        ...


class Unified:
    """The `unified` format, which mview's own sources read; see `formats.unified`.

    The position is the epoch and a number within the step; the time that of writing.
    """

    _OPS: ClassVar[dict[str, str]] = {"+I": "insert", "+U": "update", "-D": "delete"}

    def __init__(self, target: FollowerTarget, step: Step, ts: int) -> None:
        self._table, self._epoch, self._ts, self._number = target.view, step.epoch, ts, 0

    def change(self, kind: str, old: Row | None, row: Row) -> bytes:
        """See `Shape`."""
        self._number += 1
        body: Row = {"table": self._table, "op": self._OPS[kind]}
        if kind == "-D":
            body["before"] = row
        else:
            if old is not None:
                body["before"] = old
            body["after"] = row
        body["ts"], body["position"] = self._ts, [self._epoch, self._number]
        return orjson.dumps(body)

    def heartbeat(self) -> bytes | None:
        """See `Shape`."""
        return orjson.dumps({"op": "heartbeat", "ts": self._ts})


class Debezium:
    """Debezium's messages without the schema envelope.

    Values as a connector for PostgreSQL writes them with decimal.handling.mode=string: dates as
    days, `timestamp_ntz` as microseconds since 1970, `timestamp` as text in UTC, bytes as base64.
    """

    _OPS: ClassVar[dict[str, str]] = {"+I": "c", "+U": "u", "-D": "d"}

    def __init__(self, target: FollowerTarget, step: Step, ts: int) -> None:
        self._target, self._ts, self._epoch, self._number = target, ts, step.epoch, 0
        self._create = "r" if step.is_fill else "c"
        self._days = [c.name for c in target.schema.columns if pa.types.is_date(c.type)]
        self._micros = [
            c.name
            for c in target.schema.columns
            if pa.types.is_timestamp(c.type) and c.type.tz is None
        ]

    def change(self, kind: str, old: Row | None, row: Row) -> bytes:
        """See `Shape`."""
        self._number += 1
        op = self._create if kind == "+I" else self._OPS[kind]
        return orjson.dumps(
            {
                "before": self._row(row if kind == "-D" else old),
                "after": None if kind == "-D" else self._row(row),
                "source": {
                    "connector": "mview",
                    "name": self._target.sink,
                    "table": self._target.view,
                    "ts_ms": self._ts,
                    "snapshot": "true" if op == "r" else "false",
                    "epoch": self._epoch,
                    "number": self._number,
                },
                "op": op,
                "ts_ms": self._ts,
            }
        )

    def heartbeat(self) -> bytes | None:
        """Debezium's are in a topic of their own."""
        return None

    def _row(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        for name in self._days:
            row[name] = None if row[name] is None else micros_of(f"{row[name]}T00:00:00") // _DAY_US
        for name in self._micros:
            row[name] = None if row[name] is None else micros_of(row[name])
        return row


SHAPES: dict[str, type[Unified] | type[Debezium]] = {"unified": Unified, "debezium": Debezium}


def micros_of(text: str) -> int:
    """Microseconds since 1970 of an ISO text without a zone.

    >>> micros_of("1970-01-02T00:00:00.000001")
    86400000001
    """
    since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1)
    return since // dt.timedelta(microseconds=1)
