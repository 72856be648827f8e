"""The calls to Kafka that the changelog needs, each with errors that say what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from mview.connector import Message
from mview.errors import ConfigError
from mview.secrets import reveal
from mview_connectors.changelogs.kafka.errors import FORBIDDEN, GONE, MOVING, UNKNOWN, away, gone
from mview_connectors.changelogs.kafka.stream import (
    BATCH,
    KafkaStream,
    message_of,
    place_of,
    size_of,
)
from mview_connectors.formats.messages import OPTION_PREFIX
from mview_connectors.network import Brokers

#: Seconds until a broker that does not answer is an error; clients retry by themselves until then.
_PATIENCE = 10.0

#: The same while messages are read: a broker may have to pass a long rolled-back transaction.
_READ_PATIENCE = 30.0

#: Seconds between two questions about a partition that is moving to another broker.
_PAUSE = 0.1

#: A broker that is back is noticed within a second; the client's own pauses grow to ten.
_SOON, _FIRST_PAUSE = {"reconnect.backoff.max.ms": 1000}, "reconnect.backoff.ms"

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

#: Up to the end there is always something to fetch: waiting only delays the end of the last split,
#: and the next read, for which the fetch that is under way must come back.
_READ = {
    "fetch.wait.max.ms": 1,
    "fetch.message.max.bytes": 8 << 20,
    # What is fetched ahead of the reader, over all partitions.
    "queued.max.messages.kbytes": 16 << 10,
    # A queue that was full and is emptied is filled again at once, not a second later.
    "fetch.queue.backoff.ms": 10,
    "enable.partition.eof": True,
}

#: Few messages are waited for; many are read from their place.
_STREAM = {
    "fetch.wait.max.ms": 500,
    "queued.max.messages.kbytes": 1024,
    "queued.min.messages": 1000,
    "fetch.queue.backoff.ms": 10,
}

#: What brokers of other makers say that tell no settings of topics.
_UNTOLD = (
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_REQUEST,
    KafkaError._UNSUPPORTED_FEATURE,
)

_NO_OFFSET = KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)

#: Seconds for which what the client said beside its answers tells why there is none.
_TOLD_S = 60.0

#: The id of a topic where brokers give none; it has another one when they are newer.
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Span(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: str
    start: int
    end: int


class Topic(NamedTuple):
    """A topic: the id that it got when it was made, "" where brokers give none; partitions."""

    id: str
    partitions: list[str]


class Reached(NamedTuple):
    """How far a part of a span reaches, its bytes, and those of its largest message."""

    end: int
    size: int
    largest: int


class _KeptSpan(NamedTuple):
    """Messages of a span that were read for their sizes."""

    span: Span
    messages: list[Message]


class _KeptConsumer:
    """A consumer that is kept between reads, and the partitions that it has read."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.known: set[str] = set()


class KafkaClient:
    """A connection to one cluster; opened at the first call, secrets are revealed only there.

    Clients of Kafka are kept until `close`, also that which reads: between two reads it has no
    partition. Secrets and certificates are those of when a client was made.

    Partitions are named `<topic>/<number>`.

    Args:
        settings: the section.
        tables: which tables have a topic, for messages; None: it is not about tables.
    """

    def __init__(
        self, settings: Brokers, tables: Callable[[str], Sequence[str]] | None = None
    ) -> None:
        self._settings, self._tables_of = settings, tables
        self._admin: AdminClient | None = None
        self._stream: KafkaStream | None = None
        self._reader: _KeptConsumer | None = None
        self._kept: dict[str, _KeptSpan] = {}
        # What the client said beside its answers, and when: why it could not connect, mostly.
        self._trouble: tuple[float, KafkaError] | None = None

    def __getstate__(self) -> dict[str, Any]:
        ours = dict.fromkeys(("_admin", "_stream", "_reader", "_trouble"))
        return {**self.__dict__, **ours, "_kept": {}}

    # --- topics and offsets ----------------------------------------------------------------------

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        """What is known of each topic; one that does not exist is not in the answer."""
        names = list(topics)
        if not names:
            return {}
        futures = self._connected().describe_topics(
            TopicCollection(names), request_timeout=_PATIENCE
        )
        topics_there = {}
        for topic, future in futures.items():
            try:
                described = future.result(_PATIENCE + 1)
                partitions = [f"{topic}/{partition.id}" for partition in described.partitions]
                made = str(described.topic_id)
                topics_there[topic] = Topic("" if made == _NO_ID else made, partitions)
            except KafkaException as error:
                if error.args[0].code() not in UNKNOWN:
                    self._away(error.args[0], f"topic {topic}")
            except TimeoutError:
                self._away(None, f"topic {topic}")
        return topics_there

    def topics(self) -> list[str]:
        """All topic names, for messages."""
        try:
            return sorted(self._connected().list_topics(timeout=_PATIENCE).topics)
        except KafkaException as error:
            self._away(error.args[0], "the list of topics")

    def settings_of(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, by name; of those topics whose settings are told to us."""
        asked = {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics}
        if not asked:
            return {}
        futures = self._connected().describe_configs([*asked.values()], request_timeout=_PATIENCE)
        told: dict[str, dict[str, str]] = {}
        for name, resource in asked.items():
            try:
                settings = futures[resource].result(_PATIENCE + 1)
                told[name] = {entry: str(value.value) for entry, value in settings.items()}
            except KafkaException as error:
                if error.args[0].code() not in (*FORBIDDEN, *_UNTOLD):
                    self._away(error.args[0], f"topic {name}")
            except TimeoutError:
                self._away(None, f"topic {name}")
        return told

    def ends(self, partitions: Iterable[str], *, committed: bool = True) -> dict[str, int]:
        """The offset after the last message that may be read (no open transaction is before it).

        Not `committed`: after the last message of all.
        """
        spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(partitions, spec, committed)

    def beginnings(self, partitions: Iterable[str]) -> dict[str, int]:
        """The offset of the oldest message still there."""
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(
        self, partitions: Iterable[str], spec: OffsetSpec, committed: bool = True
    ) -> dict[str, int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {partition: place_of(partition) for partition in partitions}
        offsets: dict[str, int] = {}
        until = time.monotonic() + _PATIENCE
        while waiting := {name: place for name, place in asked.items() if name not in offsets}:
            futures = self._connected().list_offsets(
                dict.fromkeys(waiting.values(), spec),
                isolation_level=level,
                request_timeout=_PATIENCE,
            )
            for name, place in waiting.items():
                try:
                    offset = futures[place].result(_PATIENCE + 1).offset
                    if offset >= 0:
                        offsets[name] = offset
                    else:  # the broker has just started, and does not know yet
                        self._pause(_NO_OFFSET, name, time.monotonic() >= until)
                except KafkaException as error:
                    self._pause(error.args[0], name, time.monotonic() >= until)
                except TimeoutError:
                    self._away(None, name)
        return offsets

    def _pause(self, error: KafkaError, partition: str, late: bool) -> None:
        """Wait a moment when a partition is moving to another broker; else, or too late, raise."""
        if late and (error.code() in UNKNOWN or not self._is_there(error, partition)):
            gone({partition: "the partition does not exist any more"}, self._tables(partition))
        if late or error.code() not in MOVING:
            self._away(error, partition)
        time.sleep(_PAUSE)

    def _tables(self, partition: str) -> Sequence[str]:
        return () if self._tables_of is None else self._tables_of(topic_of(partition))

    def _is_there(self, error: KafkaError, partition: str) -> bool:
        """Whether a partition without a leader is there at all; other errors say it themselves."""
        topic = topic_of(partition)
        if error.code() != KafkaError._NOENT:
            return True
        return partition in self.describe([topic]).get(topic, Topic("", [])).partitions

    # --- messages --------------------------------------------------------------------------------

    def read(self, spans: Sequence[Span], *, last: bool = False) -> Iterator[Message]:
        """The messages of spans of partitions, in order within each; offsets may have gaps.

        Args:
            spans: the spans.
            last: nobody asks for these again: what was kept of them is kept no longer.

        Raises:
            DataLostError: the start of a span is not there any more.
            AwayError: the broker stopped answering; the message has the offset.
            ConfigError: it does not let us in.
        """
        left = []
        for span in _joined(spans):
            if not self._has(span):
                left.append(span)
                continue
            kept = self._kept[span.partition]
            if last and span == kept.span:
                del self._kept[span.partition]
            yield from (m for m in kept.messages if span.start <= m.offset < span.end)
        while left:
            # A consumer is at one place of a partition: its second span waits for the next round.
            now = {span.partition: span for span in reversed(left)}
            left = [span for span in left if now[span.partition] is not span]
            ends = {name: progress.end for name, progress in now.items()}
            for name, record in self._read_together(now, ends):
                yield message_of(name, record)

    def reach(self, spans: Sequence[Span], most: int) -> dict[str, Reached]:
        """How far `most` bytes of messages reach in each span, one message at least.

        These are kept until they are read for the last time, or `forget`: who asks for no more than
        what is kept, with other bounds, is answered from there.

        Args:
            spans: of different partitions.
            most: bytes of keys and values, in each.
        """
        ends = {span.partition: span.end for span in spans}
        sizes, largest = dict.fromkeys(ends, 0), dict.fromkeys(ends, 0)
        is_kept = all(self._has(span) for span in spans)
        messages: dict[str, list[Message]] = {span.partition: [] for span in spans}
        for message in self.read(spans) if is_kept else self._read_anew(spans, ends):
            # A burst goes through here: no object is made for a message.
            name, size = message.partition, size_of(message)
            if message.offset >= ends[name]:
                continue
            before = sizes[name]
            if before and before + size > most:
                ends[name] = message.offset  # nothing from here on is read
                continue
            sizes[name] = before + size
            if size > largest[name]:
                largest[name] = size
            messages[name].append(message)
        if not is_kept:
            self._kept = {
                name: _KeptSpan(Span(name, start, ends[name]), messages[name])
                for name, start, _ in spans
            }
        return {name: Reached(ends[name], sizes[name], largest[name]) for name in ends}

    def _has(self, span: Span) -> bool:
        """Whether all of a span is kept."""
        kept = self._kept.get(span.partition)
        return kept is not None and kept.span.start <= span.start and span.end <= kept.span.end

    def _read_anew(self, spans: Sequence[Span], ends: Mapping[str, int]) -> Iterator[Message]:
        self.forget()
        for name, record in self._read_together({span.partition: span for span in spans}, ends):
            yield message_of(name, record)

    def kept_before(self, partition: str, end: int) -> Iterator[Message]:
        """The messages that are kept and stand right before an offset, the last one first."""
        kept = self._kept.get(partition)
        if kept is not None and kept.span.start < end <= kept.span.end:
            yield from (m for m in reversed(kept.messages) if m.offset < end)

    def forget(self) -> None:
        """Keep no messages."""
        self._kept = {}

    def _read_together(
        self, spans: Mapping[str, Span], ends: Mapping[str, int]
    ) -> Iterator[tuple[str, Any]]:
        """The client's records of a span per partition, up to its end, which may be lowered."""
        at = {name: span.start for name, span in spans.items() if span.start < span.end}
        if not at:
            return
        # Kept for the next read: a new one takes connections, log-ins, and the cluster's metadata.
        # Nobody else has it meanwhile, and after an error, or a read that was given up, nobody.
        reader, self._reader = self._reader or _KeptConsumer(self._consumer(_READ)), None
        consumer = reader.consumer
        try:
            self._place_reader(reader, at)
            while at:
                first = consumer.poll(_READ_PATIENCE)
                if first is None:
                    self._away(None, _places(at))
                # Not `consume` alone: it would wait for a full batch, over gaps in vain.
                for record in [first, *consumer.consume(BATCH, 0)]:
                    name = f"{record.topic()}/{record.partition()}"
                    error, offset = record.error(), record.offset() or 0
                    if error is not None:
                        self._at_event(error, name, offset, at, ends)
                    elif name in at and offset < ends[name]:
                        at[name] = offset + 1
                        yield name, record
                    elif name in at:
                        at[name] = offset
                    if name in at and at[name] >= ends[name]:
                        del at[name]
                        # Not paused: it would still be when it is assigned the next time.
                        consumer.incremental_unassign([place_of(name)])
        except BaseException:
            consumer.close()
            raise
        if self._reader is not None:  # two reads at once had one each
            self._reader.consumer.close()
        self._reader = reader

    def _place_reader(self, reader: _KeptConsumer, at: Mapping[str, int]) -> None:
        """Have a reader begin at offsets of partitions."""
        for topic in {topic_of(name) for name in at.keys() - reader.known}:
            # The client itself asks about a topic, or a partition that was added, a second later.
            try:
                reader.consumer.list_topics(topic, timeout=_PATIENCE)
            except KafkaException as error:
                self._away(error.args[0], f"topic {topic}")
        reader.known |= at.keys()
        reader.consumer.assign([place_of(name, start) for name, start in at.items()])

    def _at_event(
        self, error: KafkaError, name: str, offset: int, at: dict[str, int], ends: Mapping[str, int]
    ) -> None:
        """Note where reading stands after an event that is no message, or raise."""
        if error.code() == KafkaError._PARTITION_EOF:
            # The last offsets may be control records of transactions, which are never delivered.
            if name in at:
                at[name] = max(at[name], offset)
            return
        if error.code() in GONE and name in at:
            span = f"{at[name]} to {ends[name]}"
            how = f"{span} were to be read, offset {at[name]} is not there any more"
            gone({name: how}, self._tables(name))
        if error.fatal() or not error.retriable():
            self._away(error, _places(at))

    # --- waiting ---------------------------------------------------------------------------------

    def wait(
        self, at: Mapping[str, int], signs: Mapping[str, int], seconds: float
    ) -> dict[str, list[Message]] | None:
        """What has come after offsets, by partition; waits for something, at most so long.

        Costs nothing while idle: the broker holds the request. May return early for nothing.

        Args:
            at: the offsets.
            signs: of partitions whose messages only end the wait; as they were at the first one.
            seconds: how long.

        Returns:
            None: it is to be read from its place, as too much has come, or something is wrong.
        """
        if self._stream is not None and not self._stream.move(at):
            self.stop_waiting()
        if self._stream is None:
            self._stream = KafkaStream(self._consumer(_STREAM), at, signs)
        if self._stream.wait(seconds):
            return self._stream.messages
        self.stop_waiting()
        return None

    def stop_waiting(self) -> None:
        """Forget the stream: the next wait begins one at its offsets."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def keep(
        self,
        messages: Mapping[str, list[Message]],
        start: Mapping[str, int],
        end: Mapping[str, int],
    ) -> None:
        """Keep all that is between offsets, as if it had been read for its size."""
        self._kept = {
            name: _KeptSpan(Span(name, at, end[name]), messages[name]) for name, at in start.items()
        }

    def close(self) -> None:
        """Close the clients; may be called more than once."""
        self.stop_waiting()
        self.forget()
        if self._reader is not None:
            self._reader.consumer.close()
            self._reader = None
        self._admin = None

    # --- connecting ------------------------------------------------------------------------------

    def admin(self) -> AdminClient:
        """The client that makes and deletes topics."""
        return self._connected()

    def _connected(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._made(AdminClient, {}, {"log_level": 0})
        return self._admin

    def producer(self, sizes: dict[str, Any], fixed: dict[str, Any]) -> Producer:
        """A client that writes, with our defaults and what no option of the user may change."""
        producer: Producer = self._made(Producer, sizes, {**fixed, "log_level": 0})
        return producer

    def _consumer(self, sizes: dict[str, Any]) -> Consumer:
        group = {"group.id": f"mview-{self._settings.section.partition('.')[2]}"}
        consumer: Consumer = self._made(Consumer, {**group, **sizes}, _FIXED)
        return consumer

    def _made(self, kind: Any, ours: dict[str, Any], fixed: dict[str, Any]) -> Any:
        place = self._settings.section
        theirs = {
            name: reveal(value, f"{place}.options.{name}")
            for name, value in self._settings.options.items()
            if not name.startswith(OPTION_PREFIX)
        }
        servers = reveal(self._settings.bootstrap_servers or "", f"{place}.bootstrap_servers")
        if "://" in servers:
            raise ConfigError(
                "the Kafka servers are given with a protocol",
                where=f"{place}.bootstrap_servers",
                allowed="host:port, several with commas",
                hint="the protocol is an option: options: {security.protocol: SASL_SSL}",
            )
        soon = {} if _FIRST_PAUSE in theirs else _SOON  # which must not be shorter
        # A user's sizes and group win over our defaults, our contract wins over the user's options.
        merged = {**soon, **ours, **theirs, **fixed, "bootstrap.servers": servers}
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

    def trouble(self) -> KafkaError | None:
        """What the client said of late beside its answers."""
        if self._admin is not None:
            self._admin.poll(0)  # nothing else has it say what it has to say
        at, told = self._trouble or (float("-inf"), None)
        return told if time.monotonic() - at < _TOLD_S else None

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # says nothing of why
            self._trouble = time.monotonic(), error

    def _away(self, error: KafkaError | None, where: str) -> NoReturn:
        away(self._settings, error, self.trouble(), where)


def topic_of(partition: str) -> str:
    """The topic of a partition."""
    return partition.rpartition("/")[0]


def _places(at: Mapping[str, int]) -> str:
    return ", ".join(f"{name}, offset {offset}" for name, offset in at.items())


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The spans, those that follow each other as one."""
    joined: list[Span] = []
    for span in spans:
        if joined and (joined[-1].partition, joined[-1].end) == span[:2]:
            joined[-1] = joined[-1]._replace(end=span.end)
        else:
            joined.append(span)
    return joined
