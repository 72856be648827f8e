"""The `ticdc` format: TiCDC's canal-json (`protocol=canal-json` in the changefeed's sink).

With `enable-tidb-extension=true`, which is taken for granted, a change has the timestamp (TSO) of
its transaction as its position, and TIDB_WATERMARK messages are heartbeats: all changes before
`watermarkTs` stand before it in the partition. A TSO's upper bits are milliseconds.

Without it (`format.enable.tidb.extension: "false"`) partition and offset order the changes, and
heartbeats are as those of `canal`.

Values are as those of `canal`; of an update `old` has all columns, or those that changed. Messages
without the row (`large-message-handle-option`) are refused, and so are those of other protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from mview.changelog import ChangeEvent
from mview.clock import SourceMs
from mview.connector import Message
from mview.errors import shown
from mview.schema import Column
from mview_connectors.formats.canal import (
    HEARTBEAT_TABLE,
    VALUE_OPTIONS,
    CanalValues,
    flat_events,
    is_statement,
)
from mview_connectors.formats.messages import (
    format_options,
    milliseconds,
    parse_object,
    too_deep,
    undecodable,
)

_EXTENSION = "enable.tidb.extension"
_WATERMARK = "TIDB_WATERMARK"

#: Bits of a TSO below its milliseconds.
_LOGICAL_BITS = 18

_PROTOCOL_HINT = (
    "create the changefeed with protocol=canal-json; no other one of TiCDC is read: simple, "
    "debezium, open-protocol, avro, canal, maxwell, csv"
)
_EXTENSION_HINT = (
    'set format.enable.tidb.extension: "false" and a heartbeat topic, and run again; or add '
    "enable-tidb-extension=true to the changefeed's sink"
)
_EXTENDED_HINT = (
    "remove format.enable.tidb.extension, as the changefeed's sink has it, and run again; or take "
    "enable-tidb-extension=true away there"
)


class TicdcFormat:
    """Decodes TiCDC's canal-json; see the module."""

    def __init__(self, options: Mapping[str, str]) -> None:
        allowed = {**VALUE_OPTIONS, HEARTBEAT_TABLE: (), _EXTENSION: ("true", "false")}
        own = format_options(options, allowed)
        self._extended = own.get(_EXTENSION, "true") == "true"
        self.in_band_heartbeats = self._extended or HEARTBEAT_TABLE in own
        self._values = CanalValues(own)

    def decode(self, message: Message) -> Iterable[ChangeEvent]:
        """An event per row of the message, or a heartbeat."""
        try:
            return self._decode(message)
        except RecursionError:
            raise too_deep(message) from None

    def _decode(self, message: Message) -> Iterable[ChangeEvent]:
        if message.value is None:
            return ()
        body = parse_object(message, _PROTOCOL_HINT)
        if "database" not in body or "version" in body:
            raise undecodable(message, "a message is not of canal-json", _PROTOCOL_HINT)
        if not self._extended:
            if "_tidb" in body:
                raise undecodable(message, "a message has '_tidb'", _EXTENDED_HINT)
            return flat_events(message, body, (), milliseconds(message, body.get("es"), "es"))
        more = body.get("_tidb")
        if type(more) is not dict:
            raise undecodable(message, "a message has no '_tidb'", _EXTENSION_HINT)
        if body.get("type") == _WATERMARK and not is_statement(message, body):
            # Changes of the same millisecond may follow: their lower bits are higher.
            at = SourceMs(max(0, (_tso(message, more, "watermarkTs") >> _LOGICAL_BITS) - 1))
            place = (message.partition, message.offset)
            return (ChangeEvent("", "heartbeat", None, None, None, (), at, *place),)
        for name in ("onlyHandleKey", "claimCheckLocation"):
            if more.get(name):
                raise undecodable(
                    message,
                    "a message is without its row, which was too large",
                    "raise max-message-bytes of the changefeed's sink and of the topic, and set "
                    "large-message-handle-option = none",
                )
        tso = _tso(message, more, "commitTs")
        return flat_events(message, body, (tso,), SourceMs(tso >> _LOGICAL_BITS))

    def convert(self, values: Sequence[Any], column: Column) -> pa.Array:
        """An Arrow array of the column's type; UNCHANGED becomes null, as its caller notes it."""
        return self._values.convert(values, column)


def _tso(message: Message, body: dict[str, Any], name: str) -> int:
    tso = body.get(name)
    if type(tso) is not int or not 0 < tso < 1 << 63:
        raise undecodable(message, f"'_tidb.{name}' is no TSO: {shown(tso, 80)}", _EXTENSION_HINT)
    return tso
