"""The consumer that stays at the ends of partitions, and has what came since."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from mview.connector import Message

#: Messages taken from the client per call: 700,000 a second come through on one core.
BATCH = 1000

#: Messages, and bytes of them, that are kept for who asks next; more is read from their place.
_MOST, _MOST_BYTES = 5_000, 8 << 20

#: Seconds until who waits is told that something is wrong.
_PAUSE = 0.1


class KafkaStream:
    """What comes after some offsets, in the order of each partition, sent as soon as it is there.

    A reader is placed anew for each read: a way to the client's thread for each partition, and one
    to the brokers. This one stays, and what it has was sent meanwhile.

    Args:
        consumer: is closed with this.
        at: by partition, the offset of the first message that may be asked for.
        signs: by partition, the offset from which on messages only end a wait.
    """

    def __init__(self, consumer: Consumer, at: Mapping[str, int], signs: Mapping[str, int]) -> None:
        self._consumer = consumer
        self._first = dict(at)
        self._messages: dict[str, deque[Message]] = {name: deque() for name in at}
        self._count = self._size = 0
        places = {**signs, **at}.items()
        consumer.assign([place_of(name, offset) for name, offset in places])

    def move(self, at: Mapping[str, int]) -> bool:
        """Keep only what comes after offsets from now on; whether this has all of that."""
        if at.keys() != self._first.keys() or any(self._first[name] > at[name] for name in at):
            return False
        self._first = dict(at)
        for name, offset in at.items():
            messages = self._messages[name]
            while messages and messages[0].offset < offset:
                self._count -= 1
                self._size -= size_of(messages.popleft())
        return True

    def wait(self, seconds: float) -> bool:
        """Take what has come; where there is nothing, wait for something, at most so long.

        Costs nothing while idle: the broker holds the request. May return early for nothing.

        Returns:
            Whether this can be asked again: else something is wrong, or too much has come, and who
            asks from the place itself is told what.
        """
        record = self._consumer.poll(0 if self._count else seconds)
        records = [] if record is None else [record]
        while records:
            for record in records:
                error = record.error()
                if error is None:
                    self._take(message_of(f"{record.topic()}/{record.partition()}", record))
                elif error.code() != KafkaError._PARTITION_EOF:
                    time.sleep(min(seconds, _PAUSE))  # it may last: nobody asks all the time
                    return False
            if self._count > _MOST or self._size > _MOST_BYTES:
                return False
            records = self._consumer.consume(BATCH, 0)
        return True

    @property
    def messages(self) -> dict[str, list[Message]]:
        """What is there, by partition."""
        return {name: list(messages) for name, messages in self._messages.items()}

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def _take(self, message: Message) -> None:
        if message.offset >= self._first.get(message.partition, message.offset + 1):
            self._messages[message.partition].append(message)
            self._count += 1
            self._size += size_of(message)


def size_of(message: Message) -> int:
    """The bytes of a message."""
    return len(message.key or b"") + len(message.value or b"")


def place_of(partition: str, offset: int | None = None) -> TopicPartition:
    """A partition, and an offset of it, as the client takes them."""
    topic, _, number = partition.rpartition("/")
    if offset is None:
        return TopicPartition(topic, int(number))
    return TopicPartition(topic, int(number), offset)


def message_of(partition: str, record: Any) -> Message:
    """A record of the client."""
    headers = record.headers()
    return Message(
        partition, record.offset(), record.key(), record.value(), tuple(headers) if headers else ()
    )
