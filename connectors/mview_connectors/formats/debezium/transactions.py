"""The ends of transactions, as Debezium sends them with `provide.transaction.metadata`, in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mview.connector import Message
from mview_connectors.formats.debezium.encoding import payload
from mview_connectors.formats.debezium.format import MARKER
from mview_connectors.formats.messages import parse_object, undecodable

_HINT = "transaction_topic is <topic.prefix>.transaction of the connector"


class TransactionEnd(NamedTuple):
    """The end of a transaction: its name, and how many changes it has, by `<schema>.<table>`."""

    transaction: str
    changes: Mapping[str, int]


def transaction_name(text: str) -> str:
    """A transaction's name, of the id in a message.

    PostgreSQL's has the place of the message behind it, so that each has another one.

    >>> transaction_name("896:23115424"), transaction_name("0-1-168")
    ('896', '0-1-168')
    """
    number, _, place = text.partition(":")
    return number if number.isdecimal() and place.isdecimal() else text


def transaction_end(message: Message) -> TransactionEnd | None:
    """The end of a transaction in the topic of their markers; None: it is a begin.

    Raises:
        DecodeError: it is no marker.
    """
    if message.value is None:
        return None
    body = payload(parse_object(message))
    if type(body) is not dict or not body.keys() >= MARKER or type(body["id"]) is not str:
        raise undecodable(message, "no marker of a transaction", _HINT)
    if body["status"] != "END":
        return None
    try:
        changes = {
            str(part["data_collection"]): int(part["event_count"])
            for part in body["data_collections"] or ()
        }
    except (TypeError, KeyError, ValueError):
        raise undecodable(message, "the end of a transaction counts no changes") from None
    return TransactionEnd(transaction_name(body["id"]), changes)
