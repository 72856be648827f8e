"""A changelog in Kafka: one topic per table, offsets `{"<topic>/<partition>": next offset}`.

The watermark is the minimum over all partitions of what is known of each:

- A partition that is read up to its end vouches for the time of the last heartbeat, provided that
  its end was asked for *after* that heartbeat was fetched: the connector had sent by then whatever
  it sent before the heartbeat. The wall clock says nothing: the connector may be behind.
- A partition that is not read up to its end vouches for the last change that is taken from it.

A format that sends heartbeats in the change partitions themselves needs no heartbeat topic; then
the second rule holds for all partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import TypeVar

from mview.clock import SourceMs
from mview.config import ChangesSettings
from mview.connector import Format, Message, Offsets, Progress, Split
from mview.errors import ConfigError
from mview_connectors.changelogs.kafka_client import KafkaClient, Span, gone
from mview_connectors.changelogs.shares import fair_shares
from mview_connectors.changelogs.times import last_position, lower_bound

_Found = TypeVar("_Found")

#: Messages of one split at the most: a backlog in one partition is read by several tasks.
_SPLIT = 10_000

#: Seconds between looks for new partitions. Must be well below T: until it is seen, a new partition
#: does not hold the watermark back.
_LOOK_FOR_PARTITIONS_S = 2.0

#: Seconds for which the watermark of logs that are read up to their ends counts as new for who has
#: time to wait: each look for it takes a consumer of its own, and an older one is as true.
_WATERMARK_S = 0.25

#: How many offsets back one looks: most messages tell something, markers of transactions do not.
_WINDOWS = (8, 256, 8192)

_IDLE = (
    "a table without changes tells nothing of time: only a heartbeat that came through the "
    "connector proves that all up to then was sent (T covers clock skew and the way to Kafka)"
)
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
        self._topics = [self._topic(table) for table in tables]
        self._client = KafkaClient(settings)
        self._known: list[str] = []
        self._looked = float("-inf")
        self._caps: dict[str, int] | None = None
        self._heartbeat_ends: dict[str, int] = {}
        self._heartbeat: SourceMs | None = None
        self._bounds: dict[str, tuple[int, SourceMs | None]] = {}
        self._watermark: SourceMs | None = None
        self._vouched = float("-inf")

    # --- Changelog -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless the broker answers, all topics exist, and heartbeats come."""
        found = self._client.partitions(self._topics)
        for topic in self._topics:
            if topic not in found:
                raise self._no_topic(topic, "topic")
        if self._settings.heartbeat_topic is None:
            if not self._format.in_band_heartbeats:
                raise ConfigError(
                    "no heartbeat topic is configured",
                    where=f"changes.{self._settings.connection}.heartbeat_topic",
                    got=_IDLE,
                    hint=_HEARTBEAT_HINT,
                )
            return
        topic = self._settings.heartbeat_topic
        partitions = self._client.partitions([topic]).get(topic)
        if partitions is None:
            raise self._no_topic(topic, "heartbeat topic")
        if not any(self._client.ends(partitions).values()):
            raise ConfigError(
                f"heartbeat topic {topic!r} never had a message",
                where=f"changes.{self._settings.connection}.heartbeat_topic",
                got=_IDLE,
                hint=_HEARTBEAT_HINT,
            )

    def begin(self) -> Offsets:
        """The ends of all partitions now."""
        return dict(self._client.ends(self._partitions()))

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """By partition, the position of the table's last change before these offsets."""
        topic = self._topic(table)

        def find(message: Message) -> tuple[int, ...] | None:
            return last_position(self._format, message, table)

        ends = {p: end for p, end in before.items() if p.rpartition("/")[0] == topic}
        return self._last_before(ends, find)

    def advance(self, start: Offsets, max_rows: int, wait_ms: int) -> Progress:
        """Up to about `max_rows` messages on from `start`, shared fairly between partitions.

        Raises:
            DataLostError: what `start` asks for is not in the topic any more.
        """
        beats = self._heartbeat_ends
        observed = self._observe(start)
        if wait_ms and self._caps is None and observed == start and self._heartbeat_ends == beats:
            self._client.wait({**start, **self._heartbeat_ends}, wait_ms / 1000)
            observed = self._observe(start)
        begun = self._start_new(start, observed)
        capped = observed
        if self._caps is not None:
            capped = {p: min(end, self._caps[p]) for p, end in observed.items()}
        backlog = {p: end - begun[p] for p, end in capped.items() if end > begun[p]}
        self._check_still_there(begun, observed)
        # A partition too far ahead of the slowest would be left out of the shares here.
        shares = fair_shares(backlog, max_rows)
        ends = {p: begun[p] + shares.get(p, 0) for p in observed}
        left = sum(backlog.values()) - sum(shares.values())
        if left:
            # The waiter would have to pass through all that before it waits again.
            self._client.stop_waiting()
        is_new = time.monotonic() - self._vouched < _WATERMARK_S
        if left or not wait_ms or not is_new or self._caps is not None:
            self._watermark = self._watermark_at(ends, observed)
            self._vouched = time.monotonic()
        return Progress(dict(ends), self._watermark, left)

    def finish(self) -> None:
        """Stop at the ends that the partitions have now."""
        self._caps = self._client.ends(self._partitions())
        self._client.stop_waiting()

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """The partitions that have something new, long ones in pieces."""
        fresh = [partition for partition in end if partition not in start]
        start = {**self._client.beginnings(fresh), **start}
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

    def close(self) -> None:
        """Close the clients; may be called more than once."""
        self._client.close()

    def _topic(self, table: str) -> str:
        assert self._settings.topic is not None
        return self._settings.topic.replace("{table}", table)

    # --- planning --------------------------------------------------------------------------------

    def _partitions(self) -> list[str]:
        """All partitions of the topics, looked up again every few seconds."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_FOR_PARTITIONS_S:
            found = self._client.partitions(self._topics)
            known = [partition for topic in self._topics for partition in found.get(topic, ())]
            if known != self._known:
                self._client.stop_waiting()
            self._known, self._looked = known, now
        return self._known

    def _observe(self, start: Offsets) -> dict[str, int]:
        """The ends of the data partitions, asked for after the last heartbeat was fetched."""
        data = self._partitions()
        for partition in start:
            if partition.rpartition("/")[0] in self._topics and partition not in data:
                gone(partition, "the partition does not exist any more")
        if self._caps is not None:
            data = [partition for partition in data if partition in self._caps]
        beats = self._heartbeat_partitions()
        ends = self._client.ends([*data, *beats])
        beat_ends = {partition: ends.pop(partition) for partition in beats}
        if beat_ends != self._heartbeat_ends:
            times = self._times_before(beat_ends).values()
            self._heartbeat = max(times, default=self._heartbeat)
            self._heartbeat_ends = beat_ends
            ends = self._client.ends(data)
        return ends

    def _heartbeat_partitions(self) -> list[str]:
        topic = self._settings.heartbeat_topic
        if topic is None:
            return []
        return list(self._heartbeat_ends) or self._client.partitions([topic]).get(topic, [])

    def _start_new(self, start: Offsets, observed: Offsets) -> Offsets:
        """`start` with the partitions that are new, from their beginnings."""
        fresh = [partition for partition in observed if partition not in start]
        return {**self._client.beginnings(fresh), **start}

    def _check_still_there(self, start: Offsets, observed: Offsets) -> None:
        for partition, end in observed.items():
            if start[partition] > end:
                gone(
                    partition,
                    f"offset {start[partition]} is next, but it ends at {end}: it was made anew",
                )
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
        found = self._times_before(news)
        for partition, end in news.items():
            _, known = self._bounds.get(partition, (-1, None))
            times = [time for time in (known, found.get(partition)) if time is not None]
            self._bounds[partition] = (end, max(times, default=None))
        return {partition: self._bounds[partition][1] for partition in ends}

    def _times_before(self, ends: Offsets) -> dict[str, SourceMs]:
        """By partition, the time of the last message before its end that has one."""
        return self._last_before(ends, lambda message: lower_bound(self._format, message))

    def _last_before(
        self, ends: Offsets, find: Callable[[Message], _Found | None]
    ) -> dict[str, _Found]:
        """What `find` says of the last message before each end of which it says something."""
        firsts = self._client.beginnings(ends)
        found: dict[str, _Found] = {}
        for window in _WINDOWS:
            spans = [
                Span(partition, max(firsts[partition], end - window), end)
                for partition, end in ends.items()
                if partition not in found
            ]
            for message in self._client.read([span for span in spans if span.start < span.end]):
                said = find(message)
                if said is not None:
                    found[message.partition] = said
            if all(span.start == firsts[span.partition] for span in spans):
                break
        return found

    # --- errors ----------------------------------------------------------------------------------

    def _no_topic(self, topic: str, what: str) -> ConfigError:
        names = self._client.topics()
        close = get_close_matches(topic, names, n=1, cutoff=0.5)
        shown = [name for name in names if not name.startswith("__consumer_")]
        return ConfigError(
            f"{what} {topic!r} does not exist",
            where=f"changes.{self._settings.connection}",
            allowed=", ".join(shown[:20]) or "the cluster has no topics",
            hint=f"did you mean {close[0]!r}?" if close else "check the topic pattern",
        )
