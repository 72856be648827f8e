"""The calls to Kafka that the changelog needs, each with errors that say what to do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from mview.config import ChangesSettings, reveal
from mview.connector import Message
from mview.errors import ConfigError, DataLostError, RetryableError
from mview_connectors.formats.messages import OPTION_PREFIX

#: Seconds until a broker that does not answer is an error; clients retry by themselves until then.
_PATIENCE = 10.0

#: The same while messages are read: a broker may have to pass a long rolled-back transaction.
_READ_PATIENCE = 30.0

#: Seconds between two questions about a partition that is moving to another broker.
_PAUSE = 0.1

#: Messages taken from the client per call: 700,000 a second come through on one core.
_BATCH = 1000

#: Our side of the contract with Kafka; a user's option must not change it.
_FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # Never jump to another offset by itself: that would be data lost in silence.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    # What goes wrong comes as an error of a call, not as lines on stderr.
    "log_level": 0,
}

#: Up to the end there is always something to fetch: waiting only delays the end of the last split.
_READ = {
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 8 << 20,
    "enable.partition.eof": True,
}

#: A wake-up call needs one message, not a full queue.
_WATCH = {
    "fetch.wait.max.ms": 500,
    "queued.max.messages.kbytes": 1024,
    "queued.min.messages": 100,
    # A queue that was full and is emptied is filled again at once, not a second later.
    "fetch.queue.backoff.ms": 10,
}

_UNKNOWN = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)

#: What a broker says while a partition gets a leader; the client passes it on without a retry.
_MOVING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    *_UNKNOWN,
)

_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, *_UNKNOWN)

_SAFE = "what is published stays as it is; nothing after this place was taken"


class Span(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: str
    start: int
    end: int


class KafkaClient:
    """A connection to one cluster; opened at the first call, secrets are revealed only there.

    Partitions are named `<topic>/<number>`.
    """

    def __init__(self, settings: ChangesSettings) -> None:
        self._settings = settings
        self._admin: AdminClient | None = None
        self._watcher: Consumer | None = None
        self._trouble = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None, "_watcher": None}

    # --- topics and offsets ----------------------------------------------------------------------

    def partitions(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """The partitions of each topic; a topic that does not exist is not in the answer."""
        futures = self._connected().describe_topics(
            TopicCollection(list(topics)), request_timeout=_PATIENCE
        )
        found = {}
        for topic, future in futures.items():
            try:
                numbers = [partition.id for partition in future.result(_PATIENCE + 1).partitions]
                found[topic] = [f"{topic}/{number}" for number in numbers]
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN:
                    self._away(error.args[0], f"topic {topic}")
            except TimeoutError:
                self._away(None, f"topic {topic}")
        return found

    def topics(self) -> list[str]:
        """All topic names, for messages."""
        try:
            return sorted(self._connected().list_topics(timeout=_PATIENCE).topics)
        except KafkaException as error:
            self._away(error.args[0], "the list of topics")

    def ends(self, partitions: Iterable[str]) -> dict[str, int]:
        """The offset after the last message that may be read (no open transaction is before it)."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def beginnings(self, partitions: Iterable[str]) -> dict[str, int]:
        """The offset of the oldest message still there."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(self, partitions: Iterable[str], spec: OffsetSpec) -> dict[str, int]:
        asked = {partition: _place(partition) for partition in partitions}
        found: dict[str, int] = {}
        until = time.monotonic() + _PATIENCE
        while waiting := {name: place for name, place in asked.items() if name not in found}:
            futures = self._connected().list_offsets(
                dict.fromkeys(waiting.values(), spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=_PATIENCE,
            )
            for name, place in waiting.items():
                try:
                    found[name] = futures[place].result(_PATIENCE + 1).offset
                except KafkaException as error:
                    self._pause(error.args[0], name, time.monotonic() >= until)
                except TimeoutError:
                    self._away(None, name)
        return found

    def _pause(self, error: KafkaError, partition: str, late: bool) -> None:
        """Wait a moment when a partition is moving to another broker; else, or too late, raise."""
        if late and error.code() in _UNKNOWN:
            gone(partition, "the partition does not exist any more")
        if late or error.code() not in _MOVING:
            self._away(error, partition)
        time.sleep(_PAUSE)

    # --- messages --------------------------------------------------------------------------------

    def read(self, spans: Sequence[Span]) -> Iterator[Message]:
        """The messages of spans of partitions, in order within each; offsets may have gaps.

        Raises:
            DataLostError: the start of a span is not there any more.
            RetryableError: the broker stopped answering; the message has the offset.
        """
        left = list(spans)
        while left:
            # A consumer is at one place of a partition: its second span waits for the next round.
            now = {span.partition: span for span in reversed(left)}
            left = [span for span in left if now[span.partition] is not span]
            yield from self._read_together(now)

    def _read_together(self, spans: Mapping[str, Span]) -> Iterator[Message]:
        # A new consumer is there in 5 ms; an old one waits for the fetch it has under way.
        consumer = self._consumer(_READ)
        at = {name: span.start for name, span in spans.items() if span.start < span.end}
        ends = {name: span.end for name, span in spans.items()}
        try:
            consumer.assign([_place(name, start) for name, start in at.items()])
            while at:
                first = consumer.poll(_READ_PATIENCE)
                if first is None:
                    self._away(None, _places(at))
                # Not `consume` alone: it would wait for a full batch, over gaps in vain.
                for record in [first, *consumer.consume(_BATCH, 0)]:
                    name = f"{record.topic()}/{record.partition()}"
                    error, offset = record.error(), record.offset() or 0
                    if error is not None:
                        self._at_event(error, name, offset, at, ends)
                    elif name in at and offset < ends[name]:
                        at[name] = offset + 1
                        yield _message(name, record)
                    elif name in at:
                        at[name] = offset
                    if name in at and at[name] >= ends[name]:
                        del at[name]
                        consumer.pause([_place(name)])
        finally:
            consumer.close()

    def _at_event(
        self, error: KafkaError, name: str, offset: int, at: dict[str, int], ends: Mapping[str, int]
    ) -> None:
        """Note where reading stands after an event that is no message, or raise."""
        if error.code() == KafkaError._PARTITION_EOF:
            # The last offsets may be control records of transactions, which are never delivered.
            if name in at:
                at[name] = max(at[name], offset)
            return
        if error.code() in _GONE and name in at:
            span = f"{at[name]} to {ends[name]}"
            gone(name, f"{span} were to be read, offset {at[name]} is not there any more")
        if error.fatal() or not error.retriable():
            self._away(error, _places(at))

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self, ends: dict[str, int], seconds: float) -> None:
        """Wait until something may be there after `ends`, at most so long.

        Costs nothing while idle: the broker holds the request. May return early for nothing.
        """
        if self._watcher is None:
            self._watcher = self._consumer(_WATCH)
            self._watcher.assign([_place(partition, end) for partition, end in ends.items()])
        if self._watcher.poll(seconds) is not None:
            while len(self._watcher.consume(_BATCH, 0)) == _BATCH:
                pass

    def stop_waiting(self) -> None:
        """Forget the waiter: the next wait begins at new ends."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def close(self) -> None:
        """Close the clients; may be called more than once."""
        self.stop_waiting()
        self._admin = None

    # --- connecting ------------------------------------------------------------------------------

    def _connected(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._made(AdminClient, {"log_level": 0})
        return self._admin

    def _consumer(self, sizes: dict[str, Any]) -> Consumer:
        group = {"group.id": f"mview-{self._settings.connection}"}
        consumer: Consumer = self._made(Consumer, {**group, **sizes, **_FIXED})
        return consumer

    def _made(self, kind: Any, ours: dict[str, Any]) -> Any:
        place = f"changes.{self._settings.connection}"
        theirs = {
            name: reveal(value, f"{place}.options.{name}")
            for name, value in self._settings.options.items()
            if not name.startswith(OPTION_PREFIX)
        }
        servers = reveal(self._settings.bootstrap_servers or "", f"{place}.bootstrap_servers")
        # A user's sizes and group win over our defaults, our contract wins over the user's options.
        fixed = {name: value for name, value in ours.items() if name in _FIXED}
        merged = {**ours, **theirs, **fixed, "bootstrap.servers": servers}
        try:
            return kind({**merged, "error_cb": self._note})
        except KafkaException as error:
            text = error.args[0].str()
            # Other texts may quote the value, which may be a secret.
            shown = text if text.startswith("No such configuration property") else None
            raise ConfigError(
                "the Kafka client does not accept the options",
                where=f"{place}.options",
                got=shown or f"options {', '.join(sorted(theirs))}",
                hint="names and values are those of librdkafka's configuration",
            ) from None

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def _away(self, error: KafkaError | None, where: str) -> NoReturn:
        reason = error.str() if error is not None else self._trouble
        raise RetryableError(
            f"Kafka at {self._settings.bootstrap_servers} does not answer",
            where=where,
            got=reason or "no answer in time",
            safe="nothing is lost: reading goes on at the same offsets",
            hint="check that the brokers run and can be reached, then run the same command again",
        )


def gone(partition: str, how: str) -> NoReturn:
    """Raise the error of changes that cannot be read any more."""
    raise DataLostError(
        f"changes of {partition} are gone before they were read: {how}",
        where=partition,
        safe=_SAFE,
        hint="raise the topic's retention.ms, and load the tables again: `mview drop`, `mview run`",
    )


def _place(partition: str, offset: int | None = None) -> TopicPartition:
    topic, _, number = partition.rpartition("/")
    if offset is None:
        return TopicPartition(topic, int(number))
    return TopicPartition(topic, int(number), offset)


def _places(at: Mapping[str, int]) -> str:
    return ", ".join(f"{name}, offset {offset}" for name, offset in at.items())


def _message(partition: str, record: Any) -> Message:
    headers = record.headers()
    return Message(
        partition, record.offset(), record.key(), record.value(), tuple(headers) if headers else ()
    )
