"""What is known of places in Kafka's partitions: messages before them are read for that alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from mview.clock import SourceMs
from mview.connector import Format, Message, Offsets, passed_by
from mview.errors import DataLostError, DecodeError
from mview_connectors.changelogs.kafka.client import KafkaClient, Span
from mview_connectors.changelogs.times import Beat, heartbeat, lower_bound, sender

_Found = TypeVar("_Found")

#: Messages looked at to tell the time of a place: markers of transactions have none.
_PROBE = 16

#: Bytes that a message may have until a larger one was seen: a broker's default limit.
_LARGE_MESSAGE = 1 << 20

#: How many offsets back one looks: most messages tell something, markers of transactions do not.
_WINDOWS = (8, 256, 8192)


class KafkaTimes:
    """What the messages at some places say.

    Attributes:
        largest: bytes that a message may have: a broker's default, or more where that was seen.

    Args:
        client: reads them.
        format: decodes them.
    """

    def __init__(self, client: KafkaClient, format: Format) -> None:
        self._client = client
        self._format = format
        self.largest = _LARGE_MESSAGE

    def reach(self, ranges: Mapping[str, tuple[int, int]], limit: int) -> dict[str, int]:
        """By partition, up to where in a range no message is newer; they are ordered by time."""
        reached = dict(ranges)
        while wide := {p: (low + high) // 2 for p, (low, high) in reached.items() if low < high}:
            spans = [Span(p, at, min(at + _PROBE, ranges[p][1])) for p, at in wide.items()]
            times: dict[str, SourceMs] = {}
            for message in self._client.read(spans):
                at = lower_bound(self._format, message)
                if at is not None:
                    times.setdefault(message.partition, at)
            for partition, middle in wide.items():
                low, high = reached[partition]
                # Without a time it counts as newer: it waits.
                old = times.get(partition, limit + 1) <= limit
                reached[partition] = (middle + 1, high) if old else (low, middle)
        return {partition: low for partition, (low, _) in reached.items()}

    def before(self, ends: Offsets) -> dict[str, SourceMs]:
        """By partition, the time of the last message before its end that has one."""
        return self.last(ends, lambda message: lower_bound(self._format, message))

    def senders(self, ends: Offsets) -> dict[str, str]:
        """By partition, the name of the connector of the last change before its end; "": none."""
        return self.last(ends, lambda message: sender(self._format, message))

    def beats(self, ends: Offsets) -> list[Beat]:
        """The last heartbeats before the ends.

        Raises:
            DecodeError: one is none; nobody else would say so.
        """

        def find(message: Message) -> Beat | DecodeError | None:
            try:
                return heartbeat(self._format, message)
            except DecodeError as error:
                return error

        times: list[Beat] = []
        said: dict[str, Beat | DecodeError] = self.last(ends, find)
        for beat in said.values():
            if isinstance(beat, DecodeError):
                # It is of no table: what is loaded anew does not get past it.
                next_one = "run the same command again once the next heartbeat has come"
                raise passed_by(beat, next_one)
            times.append(beat)
        return times

    def last(self, ends: Offsets, find: Callable[[Message], _Found | None]) -> dict[str, _Found]:
        """What `find` says of the last message before each end of which it says something."""
        last_of: dict[str, _Found] = {}
        for partition, end in ends.items():
            for message in self._client.kept_before(partition, end):
                if (said := find(message)) is not None:
                    last_of[partition] = said
                    break
        left = {partition: end for partition, end in ends.items() if partition not in last_of}
        firsts = self._client.beginnings(left)
        while True:
            try:
                return last_of | self._last_since(firsts, left, find)
            except DataLostError:
                # Retention takes what was read long ago at any moment, also since `firsts`.
                before, firsts = firsts, self._client.beginnings(left)
                if firsts == before:
                    raise

    def _last_since(
        self, firsts: Offsets, ends: Offsets, find: Callable[[Message], _Found | None]
    ) -> dict[str, _Found]:
        """As `last`, of messages that are to be read; no older ones than the first ones are."""
        last_of: dict[str, _Found] = {}
        for window in _WINDOWS:
            spans = [
                Span(partition, max(firsts[partition], end - window), end)
                for partition, end in ends.items()
                if partition not in last_of
            ]
            for message in self._client.read([span for span in spans if span.start < span.end]):
                self.largest = max(self.largest, len(message.value or b""))
                said = find(message)
                if said is not None:
                    last_of[message.partition] = said
            if all(span.start == firsts[span.partition] for span in spans):
                break
        return last_of
