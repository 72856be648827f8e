"""A changelog in Kafka: one topic per table.

Offsets are `{"<topic>/<partition>": next offset, "<topic>": id}`: a topic that was deleted and made
anew has another id, and its offsets mean other messages.

The watermark is the minimum over all partitions of what is known of each:

- A partition that is read up to its end vouches for the time of the last heartbeat, provided that
  its end was asked for *after* that heartbeat was fetched: the connector had sent by then whatever
  it sent before the heartbeat. The wall clock says nothing: the connector may be behind.
- A partition that is not read up to its end vouches for the last change that is taken from it.

A format that sends heartbeats in the change partitions themselves needs no heartbeat topic; then
the second rule holds for all partitions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from mview.clock import SourceMs
from mview.config import ChangesSettings
from mview.connector import (
    ALL,
    NO_LIMIT,
    Align,
    Format,
    Message,
    Offsets,
    Progress,
    Split,
    unknown_offsets,
)
from mview.errors import ConfigError, DataLostError
from mview_connectors.changelogs.kafka_client import KafkaClient, Span, Topic
from mview_connectors.changelogs.kafka_errors import (
    IDLE,
    behind,
    gone,
    no_heartbeats,
    no_topic,
)
from mview_connectors.changelogs.kafka_times import KafkaTimes
from mview_connectors.changelogs.times import last_position
from mview_connectors.network import kafka_caution

#: Messages of one split at the most: a backlog in one partition is read by several tasks.
_SPLIT = 10_000

#: Seconds between looks for new partitions. Must be well below T: until it is seen, a new partition
#: does not hold the watermark back.
_LOOK_FOR_PARTITIONS_S = 2.0

#: Seconds for which a topic must be away before it counts as deleted, and between two looks.
_BELIEVE_S, _LOOK_AGAIN_S = 5.0, 0.2

#: Seconds for which the watermark of logs that are read up to their ends counts as new for who has
#: time to wait: each look for it takes a consumer of its own, and an older one is as true.
_WATERMARK_S = 0.25

#: What a topic's name cannot have.
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")

_HEARTBEAT_HINT = (
    "set heartbeat.interval.ms=1000 in the connector, and heartbeat_topic: "
    "__debezium-heartbeat.<topic.prefix> under 'changes'"
)


class KafkaChangelog:
    """Reads the topics of a connection's tables; see the module.

    Args:
        settings: the connection's `changes` section.
        format: decodes messages, to know their times.
        tables: names of the tables, put into the topic pattern.
    """

    def __init__(self, settings: ChangesSettings, format: Format, tables: Sequence[str]) -> None:
        assert settings.topic is not None
        self._settings = settings
        self._format = format
        self._topics = list(dict.fromkeys(map(self._topic, tables)))
        self._client = KafkaClient(settings)
        self._times = KafkaTimes(self._client, format)
        self._known: dict[str, Topic] = {}
        self._looked = float("-inf")
        self._caps: dict[str, int] | None = None
        self._heartbeat_ends: dict[str, int] = {}
        self._heartbeat: SourceMs | None = None
        self._bounds: dict[str, tuple[int, SourceMs | None]] = {}
        self._watermark: SourceMs | None = None
        self._vouched_ends: dict[str, int] = {}
        self._vouched = float("-inf")

    # --- Changelog -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless the broker answers, all topics exist, and heartbeats come."""
        described = self._client.describe(self._topics)
        for topic in self._topics:
            if topic not in described:
                raise self._no_topic(topic, "topic")
        if self._settings.heartbeat_topic is None:
            if not self._format.in_band_heartbeats:
                raise ConfigError(
                    "no heartbeat topic is configured",
                    where=f"changes.{self._settings.connection}.heartbeat_topic",
                    got=IDLE,
                    hint=_HEARTBEAT_HINT,
                )
            return
        topic = self._settings.heartbeat_topic
        known = self._client.describe([topic]).get(topic)
        if known is None:
            raise self._no_topic(topic, "heartbeat topic")
        if not any(self._client.ends(known.partitions).values()):
            raise ConfigError(
                f"heartbeat topic {topic!r} never had a message",
                where=f"changes.{self._settings.connection}.heartbeat_topic",
                got=IDLE,
                hint=_HEARTBEAT_HINT,
            )

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The ends of all partitions now."""
        ends = self._client.ends(self._partitions())
        return {**ends, **self._ids()}

    def has(self, name: str) -> bool:
        """Whether a partition or topic is one of these tables."""
        return (_topic_of(name) or name) in self._topics

    def first(self, offsets: Offsets) -> dict[str, int]:
        """The offsets of partitions, as messages have them."""
        return _places(offsets)

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """By partition, the position of the table's last change before these offsets."""
        topic = self._topic(table)

        def find(message: Message) -> tuple[int, ...] | None:
            return last_position(self._format, message, table)

        ends = {p: end for p, end in _places(before).items() if _topic_of(p) == topic}
        return self._times.last(ends, find)

    def advance(
        self,
        start: Offsets,
        max_rows: int,
        wait_ms: int,
        max_bytes: int = NO_LIMIT,
        align: Align = ALL,
    ) -> Progress:
        """Up to about `max_rows` messages on from `start`, shared fairly between partitions.

        Offsets say nothing of bytes, and what a batch reads must be known before it is read. So
        where as many messages of the largest size might be more than `max_bytes`, they are read
        once for their sizes alone, up to that many bytes; nothing is decoded for that.

        Raises:
            DataLostError: what `start` asks for is not in the topic any more.
        """
        beats, made, start = self._heartbeat_ends, _ids(start), _places(start)
        observed = self._observe(start)
        if wait_ms and self._caps is None and observed == start and self._heartbeat_ends == beats:
            self._client.wait({**start, **self._heartbeat_ends}, wait_ms / 1000)
            observed = self._observe(start)
        self._check_same(made, fresh=observed != start)
        begun = self._with_new(start, observed)
        capped = observed
        if self._caps is not None:
            capped = {p: min(end, self._caps[p]) for p, end in observed.items()}
        backlog = {p: end - begun[p] for p, end in capped.items() if end > begun[p]}
        self._check_still_there(begun, observed)
        shares = fair_shares(backlog, max_rows)
        ends = {p: begun[p] + shares.get(p, 0) for p in observed}
        if sum(shares.values()) * self._times.largest > max_bytes:
            ends |= self._within(begun, ends, max_bytes)
        ends |= self._aligned(begun, ends, backlog, align)
        left = sum(backlog.values()) - sum(ends[p] - begun[p] for p in observed)
        if left:
            # The waiter would have to pass through all that before it waits again.
            self._client.stop_waiting()
        is_new = time.monotonic() - self._vouched < _WATERMARK_S
        if left or not wait_ms or not is_new or self._caps is not None:
            if any(ends.get(p, 0) < end for p, end in self._vouched_ends.items()):
                # It was not taken: less is read now, and nothing of more is known.
                self._watermark, self._bounds = None, {}
            self._watermark, self._vouched_ends = self._watermark_at(ends, observed), ends
            self._vouched = time.monotonic()
        return Progress({**ends, **self._ids(), **made}, self._watermark, left)

    def finish(self) -> None:
        """Stop at the ends that the partitions have now."""
        self._caps = self._client.ends(self._partitions())
        self._client.stop_waiting()

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """The partitions that have something new, long ones in pieces."""
        if not self._known:  # another process planned this, perhaps long ago
            self._look()
            self._check_same(_ids(end), fresh=False)
        start, end = _places(start), _places(end)
        start = self._with_new(start, end)
        return [
            Split(partition, low, min(low + _SPLIT, stop), min(_SPLIT, stop - low))
            for partition, stop in end.items()
            for low in range(start[partition], stop, _SPLIT)
        ]

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The messages of splits, in order, transactions that were rolled back left out."""
        return self._client.read(
            [Span(split.partition, split.start, split.end) for split in splits]
        )

    def caution(self) -> str | None:
        """A warning where the way to the brokers is not safe."""
        return kafka_caution(self._settings)

    def close(self) -> None:
        """Close the clients; may be called more than once."""
        self._client.close()

    def _topic(self, table: str) -> str:
        """A table's topic, as Debezium names it: Kafka knows few letters, all others become `_`.

        Two tables may so share one; their messages name the table.
        """
        assert self._settings.topic is not None
        # Java counts a letter beyond the first 65,536 as two.
        name = _FOREIGN.sub(lambda letter: "_" * (1 + (letter[0] > "\uffff")), table)
        return self._settings.topic.replace("{table}", name)

    # --- planning --------------------------------------------------------------------------------

    def _within(self, begun: Offsets, ends: Offsets, max_bytes: int) -> dict[str, int]:
        """The ends of as many messages as fit into some bytes, by partition."""
        spans = [Span(p, begun[p], end) for p, end in ends.items() if end > begun[p]]
        reached = self._client.reach(spans, max_bytes // len(spans))
        self._times.largest = max(self._times.largest, *(part.largest for part in reached.values()))
        return {partition: part.end for partition, part in reached.items()}

    def _aligned(
        self, begun: Offsets, ends: Offsets, backlog: Offsets, align: Align
    ) -> dict[str, int]:
        """Ends before which no partition is further than allowed ahead of the slowest.

        Slow is only what has more to be read: a partition that is read up to its end has told all
        that it knows. One that is ahead is cut where its time comes, not left out: else it would
        stay behind in its turn.
        """
        slow = [p for p, waiting in backlog.items() if begun[p] + waiting > ends[p]]
        if align.until is None and (not slow or len(backlog) < 2):
            return {}
        times = self._times.before({p: ends[p] for p in backlog})
        known = [times[p] + align.max_drift for p in slow if p in times]
        limits = [*known, *([] if align.until is None else [align.until])]
        if not limits:
            return {}
        ahead = {p: (begun[p], ends[p]) for p, at in times.items() if at > min(limits)}
        return self._times.reach(ahead, min(limits))

    def _partitions(self) -> list[str]:
        """All partitions of the topics, looked up again every few seconds."""
        if time.monotonic() - self._looked >= _LOOK_FOR_PARTITIONS_S:
            self._look()
        known = [self._known[topic] for topic in self._topics if topic in self._known]
        return [partition for topic in known for partition in topic.partitions]

    def _look(self) -> None:
        known = self._client.describe(self._topics)
        if known != self._known:
            self._client.stop_waiting()
        self._known, self._looked = known, time.monotonic()

    def _ids(self) -> dict[str, str]:
        known = {topic: self._known[topic].id for topic in self._topics if topic in self._known}
        return {topic: made for topic, made in known.items() if made}

    def _check_same(self, made: Mapping[str, str], *, fresh: bool) -> None:
        """Raise when a topic is another than the one that was read so far.

        Asked again whenever there is something to read: what a new topic has at old offsets is not
        what comes next.
        """
        if fresh:
            self._look()
        for topic, now in self._ids().items():
            if made.get(topic, now) != now:
                gone(topic, "the topic was deleted and made anew since")

    def _observe(self, start: Offsets) -> dict[str, int]:
        """The ends of the data partitions, asked for after the last heartbeat was fetched."""
        data = self._all_of(start)
        if self._caps is not None:
            data = [partition for partition in data if partition in self._caps]
        beats = self._heartbeat_partitions()
        try:
            ends = self._client.ends([*data, *beats])
            beat_ends = {partition: ends.pop(partition) for partition in beats}
            if beat_ends != self._heartbeat_ends:
                self._heartbeat = max(self._times.beats(beat_ends), default=self._heartbeat)
                self._heartbeat_ends = beat_ends
                ends = self._client.ends(data)
        except DataLostError as error:
            raise no_heartbeats(self._settings) if error.where in beats else error from None
        return ends

    def _all_of(self, start: Offsets) -> list[str]:
        """The partitions that are there, among which must be all that were read so far."""
        until = time.monotonic() + _BELIEVE_S
        while True:
            data = self._partitions()
            left = [p for p in start if _topic_of(p) in self._topics and p not in data]
            if not left:
                return data
            if time.monotonic() > until:
                gone(left[0], "the topic or partition was deleted")
            # A broker that has just started may not know its topics yet.
            time.sleep(_LOOK_AGAIN_S)
            self._look()

    def _heartbeat_partitions(self) -> list[str]:
        topic = self._settings.heartbeat_topic
        if topic is None:
            return []
        if self._heartbeat_ends:
            return list(self._heartbeat_ends)
        known = self._client.describe([topic]).get(topic)
        if known is None:
            raise no_heartbeats(self._settings)
        return known.partitions

    def _with_new(self, start: Offsets, there: Offsets) -> Offsets:
        """`start` with the partitions that were added since, from their first messages.

        Raises:
            DataLostError: the first messages of one are not there any more.
        """
        fresh = [partition for partition in there if partition not in start]
        for partition, first in self._client.beginnings(fresh).items():
            if first > 0:
                gone(partition, f"it was added, and the oldest that is left is offset {first}")
        return {**dict.fromkeys(fresh, 0), **start}

    def _check_still_there(self, start: Offsets, observed: Offsets) -> None:
        for partition, end in observed.items():
            if start[partition] > end:
                # The same topic: its broker may not have found again all that it has.
                behind(self._settings, partition, start[partition], end)
        news = [partition for partition, end in observed.items() if end > start[partition]]
        for partition, first in self._client.beginnings(news).items():
            if start[partition] < first:
                gone(
                    partition,
                    f"offset {start[partition]} is next, the oldest that is left is {first}",
                )

    # --- times -----------------------------------------------------------------------------------

    def _watermark_at(self, ends: Offsets, observed: Offsets) -> SourceMs | None:
        by_heartbeat = self._settings.heartbeat_topic is not None
        beaten = {p for p, end in ends.items() if by_heartbeat and end == observed[p]}
        bounds = self._bounds_at({p: end for p, end in ends.items() if p not in beaten})
        known = [self._heartbeat if p in beaten else bounds[p] for p in ends]
        times = [bound for bound in known if bound is not None]
        if times and len(times) == len(known):
            return max(min(times), self._watermark or min(times))
        return self._watermark

    def _bounds_at(self, ends: Offsets) -> dict[str, SourceMs | None]:
        """What the messages before the ends vouch for; asked once per end."""
        news = {p: end for p, end in ends.items() if self._bounds.get(p, (-1, None))[0] != end}
        stamps = self._times.before(news)
        for partition, end in news.items():
            _, known = self._bounds.get(partition, (-1, None))
            times = [time for time in (known, stamps.get(partition)) if time is not None]
            self._bounds[partition] = (end, max(times, default=None))
        return {partition: self._bounds[partition][1] for partition in ends}

    def _no_topic(self, topic: str, what: str) -> ConfigError:
        return no_topic(self._settings, topic, what, self._client.topics())


def _topic_of(partition: str) -> str:
    return partition.rpartition("/")[0]


def _places(offsets: Offsets) -> dict[str, int]:
    """The offsets of partitions. A topic's name has no slash."""
    if not all(isinstance(at, int if "/" in name else str) for name, at in offsets.items()):
        raise unknown_offsets(offsets)
    return {name: offset for name, offset in offsets.items() if "/" in name}


def _ids(offsets: Offsets) -> dict[str, str]:
    """The ids of topics among offsets."""
    return {name: made for name, made in offsets.items() if "/" not in name}


def fair_shares(backlog: Mapping[str, int], rows: int) -> dict[str, int]:
    """Parts of `rows` for each partition: equal, but never more than its backlog.

    What a short partition leaves goes to the longer ones; at least one row is shared out.

    >>> fair_shares({"a": 2, "b": 100, "c": 7}, 20)
    {'a': 2, 'c': 7, 'b': 11}
    """
    shares = {}
    left = max(rows, 1)
    waiting = sorted(backlog, key=lambda partition: (backlog[partition], partition))
    for number, partition in enumerate(waiting):
        # Rounded up, so that a few rows over many partitions never come to nothing for all.
        equal = -(-left // (len(waiting) - number))
        shares[partition] = min(backlog[partition], equal)
        left -= shares[partition]
    return shares
