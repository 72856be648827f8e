"""Where a change of Debezium comes from: its place in the database's log, and its partition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mview.changelog import Kind
from mview.connector import Message
from mview_connectors.formats.messages import undecodable

_LATER_PARTITION = re.compile(r".*/[1-9][0-9]*")


def is_first(partition: str) -> bool:
    """Whether a partition is the topic's first: without a key all of them get messages."""
    return _LATER_PARTITION.fullmatch(partition) is None


def parts_of(message: Message, source: Mapping[str, Any], kind: Kind) -> tuple[Any, ...]:
    """The parts of a change's position, as they were sent; see `format`.

    Raises:
        DecodeError: they cannot be read.
    """
    sub = 0 if kind == "d" else 1
    try:
        connector = source.get("connector")
        if connector in ("mariadb", "mysql"):
            # A truncate is no row event: its `row` is what the event before it left there.
            row = 0 if kind == "truncate" else source["row"]
            return (int(source["file"].rpartition(".")[2]), source["pos"], row, sub)
        if connector == "postgresql":
            _, *quoted = source["sequence"].split('"')
            lsn = int(quoted[-2])
            # null: no commit was seen since the connector began, so this row's own LSN is a lower
            # bound of what its commit will be, and above all commits before.
            return (int(quoted[0]) if len(quoted) > 2 else lsn, lsn, sub)
        if connector == "sqlserver":
            commit, change = source["commit_lsn"], source["change_lsn"]
            parts = [int(part, 16) for part in f"{commit}:{change}".split(":")]
            return (*parts, source["event_serial_no"] or 0, sub)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise undecodable(message, "the 'source' of a change has no readable position") from None
    refuse_ticdc(message, source)
    return ()


def refuse_ticdc(message: Message, source: Any) -> None:
    """Refuse TiCDC's own kind of Debezium's messages: decimals are doubles, and no time is told."""
    if type(source) is dict and source.get("connector") == "TiCDC":
        raise undecodable(
            message,
            "a message is of TiCDC, with protocol=debezium: its values are not exact",
            "create the changefeed with protocol=canal-json, and set format: ticdc "
            "(docs/formats/ticdc.md)",
        )
