"""A changelog in Kafka: a topic per table, a topic of many tables, many topics of a table.

Offsets are `{"<topic>/<partition>": next offset, "<topic>": id}`: a topic that was deleted and made
anew has another id, and its offsets mean other messages.

The watermark is the minimum over all partitions of what is known of each:

- A partition that is read up to its end vouches for the time of the last heartbeat, provided that
  its end was asked for *after* that heartbeat was fetched: the connector had sent by then whatever
  it sent before the heartbeat. The wall clock says nothing: the connector may be behind.
- A partition that is not read up to its end vouches for the last change that is taken from it.

A format that sends heartbeats in the change partitions themselves needs no heartbeat topic; then
the second rule holds for all partitions.

With a transaction topic, a batch ends where transactions over all partitions are whole: see
`transactions`.

Where a topic may be missing (`missing_topics: wait`), it is looked for after each heartbeat, and
read from its first message: so what came before the heartbeat is read, also by the first rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, NoReturn

from mview.clock import SourceMs, SystemClock
from mview.config import ChangesSettings
from mview.connector import (
    ALL,
    NO_LIMIT,
    Align,
    Format,
    Look,
    Message,
    Offsets,
    Progress,
    Split,
    unknown_offsets,
)
from mview.errors import ConfigError, DataLostError, several
from mview_connectors.changelogs.kafka.client import KafkaClient, Span, Topic, topic_of
from mview_connectors.changelogs.kafka.connect import check_connector, connector_caution
from mview_connectors.changelogs.kafka.errors import (
    IDLE,
    behind,
    check_senders,
    gone,
    no_heartbeats,
    no_topic,
    not_whole,
    told_age,
    told_retention,
)
from mview_connectors.changelogs.kafka.stream import size_of
from mview_connectors.changelogs.kafka.times import KafkaTimes
from mview_connectors.changelogs.kafka.topics import TableTopics
from mview_connectors.changelogs.kafka.transactions import KafkaTransactions
from mview_connectors.changelogs.times import last_position
from mview_connectors.network import kafka_caution
from mview_connectors.registry import registry_of

#: Messages of one split at the most: a backlog in one partition is read by several tasks.
_SPLIT = 10_000

#: Messages that are read as soon as they are planned.
_FEW = 5_000

#: Seconds between looks for new partitions. Must be well below T: until it is seen, a new partition
#: does not hold the watermark back.
_LOOK_FOR_PARTITIONS_S = 2.0

#: Seconds for which a topic must be away before it counts as deleted, and between two looks.
_BELIEVE_S, _LOOK_AGAIN_S = 5.0, 0.2

#: Seconds for which the watermark of logs that are read up to their ends counts as new for who has
#: time to wait: each look for it reads from partitions again, and an older one is as true.
_WATERMARK_S = 0.25

#: Seconds between two looks for the rest of a transaction.
_REST_S = 0.05

_HEARTBEAT_HINT = (
    "debezium: set heartbeat.interval.ms=1000 in the connector, and heartbeat_topic: "
    "__debezium-heartbeat.<topic.prefix> under 'changes'; canal, maxwell: write a table every "
    "second, see docs/formats/canal.md"
)


class Portion(NamedTuple):
    """What a batch may have: messages, bytes of them, and how far ahead of others it may be."""

    rows: int
    size: int
    align: Align


class KafkaChangelog:
    """Reads the topics of a connection's tables; see the module.

    Args:
        settings: the connection's `changes` section.
        format: decodes messages, to know their times.
        tables: names of the tables, put into the topic pattern.
    """

    #: See `Changelog`.
    reads_ahead = True

    def __init__(self, settings: ChangesSettings, format: Format, tables: Sequence[str]) -> None:
        self._settings = settings
        self._format = format
        self._topics = TableTopics(settings, tables)
        self._registry = registry_of(settings.options)
        self._client = KafkaClient(settings, self._topics.tables)
        self._times = KafkaTimes(self._client, format)
        self._transactions: KafkaTransactions | None = None
        if (topic := settings.transaction_topic) is not None:
            self._transactions = KafkaTransactions(
                self._client, format, topic, tables, settings.delay
            )
        self._whole: bool | None = None if topic is None else True
        self._known: dict[str, Topic] = {}
        self._looked = float("-inf")
        self._caps: dict[str, int] | None = None
        self._heartbeat_ends: dict[str, int] = {}
        self._heartbeat: SourceMs | None = None
        self._beaters: set[str | None] = set()
        self._senders: dict[str, str] = {}
        self._unsaid: dict[str, int] = {}
        self._bounds: dict[str, tuple[int, SourceMs | None]] = {}
        self._watermark: SourceMs | None = None
        self._vouched_ends: dict[str, int] = {}
        self._vouched = float("-inf")

    # --- Changelog -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless the broker answers, all topics exist, none is compacted, heartbeats come."""
        self._look()
        absent = [] if self._waits_for_topics else self._topics.absent(self._known)
        told = self._client.settings_of(self._known).items()
        compacted = [not_whole(topic, settings) for topic, settings in told]
        if wrong := [*map(self._no_topic, absent), *filter(None, compacted)]:
            raise several(wrong, "topics cannot be read")
        if self._registry is not None:
            self._registry.check()
        self._check_heartbeats()
        if self._transactions is not None and self._settings.transaction_topic is not None:
            where = f"{self._settings.section}.transaction_topic"
            encoding = self._settings.options.get("format.encoding", "json")
            if (self._settings.format, encoding) != ("debezium", "json"):
                raise ConfigError(
                    "transactions are told apart by Debezium's topic of them in JSON only",
                    where=where,
                    got=f"format {self._settings.format}, {encoding}",
                    hint="leave transaction_topic out",
                )
            self._transactions.check(self._settings.transaction_topic, where)
        if self._settings.connect is not None:
            check_connector(self._settings)

    def _check_heartbeats(self) -> None:
        """Raise unless they come, where they are needed, and are of who sends the changes."""
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
            raise self._no_topic(topic, _HEARTBEAT_HINT)
        if not any(self._client.ends(known.partitions).values()):
            raise ConfigError(
                f"heartbeat topic {topic!r} never had a message",
                where=f"changes.{self._settings.connection}.heartbeat_topic",
                got=IDLE,
                hint=_HEARTBEAT_HINT,
            )
        if self._topics.has(topic):
            raise ConfigError(
                f"heartbeat topic {topic!r} is a topic of changes, too",
                where=f"changes.{self._settings.connection}.heartbeat_topic",
                allowed="a topic of heartbeats alone",
                hint="where heartbeats come in the topics of changes, leave heartbeat_topic out; "
                "canal and maxwell: name their table by format.heartbeat.table, under options",
            )
        self._observe({})

    def looks(self, tables: Sequence[str], load_ms: Callable[[], int] | None) -> Sequence[Look]:
        """The brokers, the topics of each table, heartbeats, and the connector where it is named.

        Heartbeats are taken for stopped when they are older than a minute, or than T.
        """
        section = self._settings.section

        def brokers() -> str:
            self._look()
            return f"{self._settings.bootstrap_servers} answers"

        def heartbeat() -> str:
            self._check_heartbeats()
            if self._settings.heartbeat_topic is None:
                return "comes in the topics of changes"
            age = SystemClock().now() - (self._heartbeat or 0)
            return told_age(self._settings, age)

        def connector() -> str:
            check_connector(self._settings)
            return f"runs, and sends all: {self._settings.connect}"

        looks = [Look(f"{section}: brokers", brokers)]
        if (registry := self._registry) is not None:
            looks.append(Look(f"{section}: schema registry", registry.check))
        for table in tables:
            ask = partial(self._look_at_topics, table, load_ms)
            looks.append(Look(f"{self._settings.connection}.{table}: topics", ask))
        looks.append(Look(f"{section}: heartbeat", heartbeat))
        if self._settings.connect is not None:
            looks.append(Look(f"{section}: connector", connector))
        return looks

    def _look_at_topics(self, table: str, load_ms: Callable[[], int] | None) -> str:
        topics = [topic for topic in self._known if self._topics.is_of(topic, table)]
        if not topics:
            if self._waits_for_topics:
                return "not there yet: it comes with the first change"
            raise self._no_topic(TableTopics(self._settings, [table]).names[0])
        load = 0 if load_ms is None else load_ms()
        settings = self._client.settings_of(topics)
        kept = [told_retention(topic, settings.get(topic, {}), load) for topic in topics]
        return "; ".join(kept)

    def begin(self, known: Offsets | None = None) -> Offsets:
        """The ends of all partitions now."""
        # Where transactions end is asked first: of what has ended by then nothing comes later.
        ended = {} if self._transactions is None else self._transactions.begin()
        ends = self._client.ends(self._partitions())
        return {**ends, **ended, **self._ids()}

    def has(self, name: str) -> bool:
        """Whether a partition or topic is one of these tables."""
        return self._topics.has(topic_of(name) or name) or self._is_of_ends(name)

    def _is_of_ends(self, name: str) -> bool:
        """Whether an entry of offsets is about the ends of transactions."""
        return self._transactions is not None and self._transactions.has(name)

    def first(self, offsets: Offsets) -> dict[str, int]:
        """The offsets of partitions, as messages have them."""
        return _places(offsets)

    def sent(self, table: str, before: Offsets) -> dict[str, tuple[int, ...]]:
        """By partition, the position of the table's last change before these offsets."""

        def find(message: Message) -> tuple[int, ...] | None:
            return last_position(self._format, message, table)

        places = _places(before).items()
        ends = {p: end for p, end in places if self._topics.is_of(topic_of(p), table)}
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
        for their sizes, up to that many bytes, and kept: a `read` of this object gives them. So are
        few, whose times are asked for next: that is one way to the brokers instead of three.

        Raises:
            DataLostError: what `start` asks for is not in the topic any more.
        """
        self._client.forget()
        beats, asked, made, start = self._heartbeat_ends, start, _ids(start), _places(start)
        ended = {name: at for name, at in start.items() if self._is_of_ends(name)}
        start = {name: at for name, at in start.items() if name not in ended}
        if ends := self._streamed(asked, start, wait_ms, Portion(max_rows, max_bytes, align)):
            return Progress({**ends, **self._ids(), **made}, self._watermark, 0, self._whole)
        observed = self._observe(asked)
        if wait_ms and self._caps is None and observed == start and self._heartbeat_ends == beats:
            self._client.wait(start, self._heartbeat_ends, wait_ms / 1000)
            observed = self._observe(asked)
        self._check_same(asked, fresh=observed != start)
        begun = self._with_new(start, observed)
        capped = observed
        if self._caps is not None:
            capped = {p: min(end, self._caps[p]) for p, end in observed.items()}
        backlog = {p: end - begun[p] for p, end in capped.items() if end > begun[p]}
        self._check_not_behind(begun, observed)
        if sum(backlog.values()) > _FEW:  # else they are read now, or not there
            self._check_still_there(begun, observed)
        bounds = Portion(max_rows, max_bytes, align)
        if self._transactions is None or not backlog:
            ends = self._limited(begun, backlog, observed, bounds)
        else:
            ends, ended = self._whole_ones(begun, backlog, observed, bounds, ended)
            if ends == begun and wait_ms:
                time.sleep(min(wait_ms / 1000, _REST_S))
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
        offsets = {**ends, **ended, **self._ids(), **made}
        return Progress(offsets, self._watermark, left, self._whole)

    def finish(self) -> None:
        """Stop at the ends that the partitions have now."""
        self._caps = self._client.ends(self._partitions())
        self._client.stop_waiting()

    def splits(self, start: Offsets, end: Offsets) -> Sequence[Split]:
        """The partitions that have something new, long ones in pieces."""
        if not self._known:  # another process planned this, perhaps long ago
            self._look()
            self._check_same(end, fresh=False)
        start, end = _places(start), _places(end)
        end = {name: at for name, at in end.items() if not self._is_of_ends(name)}
        start = self._with_new(start, end)
        return [
            Split(partition, low, min(low + _SPLIT, stop), min(_SPLIT, stop - low))
            for partition, stop in end.items()
            for low in range(start[partition], stop, _SPLIT)
        ]

    def read(self, splits: Sequence[Split]) -> Iterator[Message]:
        """The messages of splits, in order, transactions that were rolled back left out."""
        spans = [Span(split.partition, split.start, split.end) for split in splits]
        return self._client.read(spans, last=True)

    def caution(self) -> str | None:
        """A warning where the way to the brokers is not safe, or heartbeats come seldom."""
        section = self._settings.section
        cautions = [kafka_caution(self._settings)]
        cautions += [] if self._settings.connect is None else [connector_caution(self._settings)]
        cautions += [] if self._registry is None else [self._registry.caution(section)]
        return "\n".join(filter(None, cautions)) or None

    def close(self) -> None:
        """Close the clients; may be called more than once."""
        self._client.close()

    # --- planning --------------------------------------------------------------------------------

    def _streamed(
        self, asked: Offsets, start: Offsets, wait_ms: int, bounds: Portion
    ) -> dict[str, int] | None:
        """The ends of what has come since, where that is little; None: they are to be asked for.

        For as long as the watermark counts as new no broker is asked where its partitions end. It
        is true of the ends that it was worked out for: who did not take these, and asks again, is
        not told it with less.
        """
        left_s = self._vouched + _WATERMARK_S - time.monotonic()
        if not wait_ms or left_s <= 0 or self._caps is not None or self._transactions is not None:
            return None
        if bounds.align.until is not None or start.keys() != set(self._partitions()):
            return None
        messages = self._client.wait(start, self._heartbeat_ends, min(wait_ms / 1000, left_s))
        if messages is None:
            return None
        came = {partition: some for partition, some in messages.items() if some}
        ends = {**start, **{partition: some[-1].offset + 1 for partition, some in came.items()}}
        if any(ends.get(partition, 0) < end for partition, end in self._vouched_ends.items()):
            return None
        if not came:
            return ends if wait_ms / 1000 <= left_s else None
        sizes = [size_of(message) for some in came.values() for message in some]
        is_known = not self._heartbeat_ends or came.keys() <= self._senders.keys()
        if not is_known or len(sizes) > bounds.rows or sum(sizes) > bounds.size:
            return None
        self._check_same(asked, fresh=True)
        self._times.largest = max(self._times.largest, *sizes)
        self._client.keep(messages, start, ends)
        return ends

    def _limited(
        self, begun: Offsets, backlog: Offsets, observed: Offsets, bounds: Portion
    ) -> dict[str, int]:
        """The ends of about so many messages and bytes, none too far ahead of others."""
        shares = fair_shares(backlog, bounds.rows)
        ends = {p: begun[p] + shares.get(p, 0) for p in observed}
        messages = sum(shares.values())
        if 0 < messages <= _FEW or messages * self._times.largest > bounds.size:
            ends |= self._within(begun, ends, bounds.size)
        return ends | self._aligned(begun, ends, backlog, bounds.align)

    def _whole_ones(
        self,
        begun: Offsets,
        backlog: Offsets,
        observed: Offsets,
        bounds: Portion,
        ended: Mapping[str, int],
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Ends before which all transactions are whole, and the entries of offsets about them.

        One that is larger than the bounds is looked for in ever more messages, up to the room that
        there is for it; it comes in parts if there is none.
        """
        transactions, until = self._transactions, time.monotonic()
        assert transactions is not None
        if self._caps is not None:  # nobody asks again
            until += self._settings.delay / 1000
        while True:
            ends = self._limited(begun, backlog, observed, bounds)
            cut, after = transactions.cut(begun, ends, ended, observed)
            rows, most = bounds.rows, min(sum(backlog.values()), bounds.align.whole_changes)
            size = max(bounds.size, bounds.align.whole_bytes)
            while cut == begun and rows < most:
                rows = min(2 * max(rows, 1), most)
                wide = self._limited(begun, backlog, observed, Portion(rows, size, bounds.align))
                cut, after = transactions.cut(begun, wide, ended, observed)
            if cut != begun:
                self._whole = len(after) == 1
                return cut, after
            room = self._limited(begun, backlog, observed, Portion(rows, size, ALL))
            full = [p for p, waiting in backlog.items() if room[p] < begun[p] + waiting]
            takes_none = transactions.cut(begun, room, ended, observed)[0] == begun
            if takes_none and any(transactions.is_one(p, begun[p], room[p]) for p in full):
                self._whole = False
                return transactions.cut(begun, ends, ended, observed, parts=True)
            if time.monotonic() >= until:
                return dict(begun), dict(ended)
            time.sleep(_REST_S)

    def _within(self, begun: Offsets, ends: Offsets, max_bytes: int) -> dict[str, int]:
        """The ends of as many messages as fit into some bytes, by partition."""
        spans = [Span(p, begun[p], end) for p, end in ends.items() if end > begun[p]]
        try:
            reached = self._client.reach(spans, max_bytes // len(spans))
        except DataLostError:
            self._check_still_there(begun, ends)  # which says what there is
            raise
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
        return [partition for topic in self._known.values() for partition in topic.partitions]

    @property
    def _waits_for_topics(self) -> bool:
        return self._settings.missing_topics == "wait"

    def _look(self) -> None:
        there = self._client.topics() if self._topics.has_patterns else []
        known = self._client.describe(self._topics.among(there))
        if known != self._known:
            self._client.stop_waiting()
        self._known, self._looked = known, time.monotonic()

    def _ids(self) -> dict[str, str]:
        return {topic: known.id for topic, known in self._known.items() if known.id}

    def _check_same(self, start: Offsets, *, fresh: bool) -> None:
        """Raise when a topic is another than the one that was read so far.

        Asked again whenever there is something to read: what a new topic has at old offsets is not
        what comes next.
        """
        if fresh:
            self._look()
        if lost := self._made_anew(start):
            self._gone(lost, start)

    def _gone(self, lost: Mapping[str, str], start: Offsets) -> NoReturn:
        """Raise the error of changes that are gone, with all that is: one pause loses of many.

        Args:
            lost: what was noticed, by partition or topic.
            start: what is to be read next.
        """
        every = {**lost, **self._made_anew(start), **self._deleted(start)}
        left = [p for p in self._partitions() if p not in every and topic_of(p) not in every]
        every |= self._cut(start, left)
        gone(every, self._tables_of(every))

    def _tables_of(self, places: Iterable[str]) -> list[str]:
        """The tables of which some partitions or topics may have changes, each once."""
        tables = (self._topics.tables(topic_of(name) or name) for name in places)
        return list(dict.fromkeys(chain.from_iterable(tables)))

    def _made_anew(self, start: Offsets) -> dict[str, str]:
        """The topics that are others than those that were read so far."""
        made = _ids(start)
        others = [topic for topic, now in self._ids().items() if made.get(topic, now) != now]
        return dict.fromkeys(others, "the topic was deleted and made anew since")

    def _deleted(self, start: Offsets) -> dict[str, str]:
        """The partitions that were read, and are not there; not those of a topic made anew."""
        missing = _places(start).keys() - {*self._partitions()}
        topics = {t for t in map(topic_of, missing) if self._topics.has(t)}
        topics -= self._made_anew(start).keys()
        lost = sorted(partition for partition in missing if topic_of(partition) in topics)
        return dict.fromkeys(lost, "the topic or partition was deleted")

    def _cut(self, start: Offsets, partitions: Sequence[str]) -> dict[str, str]:
        """Those of some partitions whose oldest message is not the next one to be read any more."""
        lost = {}
        for partition, first in self._client.beginnings(partitions).items():
            if first <= start.get(partition, 0):
                continue
            if partition in start:
                how = f"offset {start[partition]} is next, the oldest that is left is {first}"
            else:
                how = f"it was added, and the oldest that is left is offset {first}"
            lost[partition] = how
        return lost

    def _observe(self, start: Offsets) -> dict[str, int]:
        """The ends of the data partitions, asked for after the last heartbeat was fetched."""
        data = self._data_of(start)
        beats = self._heartbeat_partitions()
        try:
            ends = self._client.ends([*data, *beats])
            beat_ends = {partition: ends.pop(partition) for partition in beats}
            if beat_ends != self._heartbeat_ends:
                said = self._times.beats(beat_ends)
                self._heartbeat = max((beat.at for beat in said), default=self._heartbeat)
                self._beaters = {beat.origin for beat in said}
                self._heartbeat_ends = beat_ends
                if self._waits_for_topics:
                    self._look()
                    data = self._data_of(start)
                ends = self._client.ends(data)
        except DataLostError as error:
            raise no_heartbeats(self._settings) if error.where in beats else error from None
        if beats:
            self._check_senders(ends)
        return ends

    def _check_senders(self, ends: Mapping[str, int]) -> None:
        """Raise where the heartbeats are of another connector; each partition is looked at once."""
        news = {
            partition: end
            for partition, end in ends.items()
            if partition not in self._senders and end > self._unsaid.get(partition, 0)
        }
        if news:
            self._senders |= self._times.senders(news)
            self._unsaid |= news
        check_senders(self._settings, self._senders.values(), self._beaters)

    def _data_of(self, start: Offsets) -> list[str]:
        """The partitions that are read; of a bounded run those that there were at its end."""
        data = self._all_of(start)
        return data if self._caps is None else [p for p in data if p in self._caps]

    def _all_of(self, start: Offsets) -> list[str]:
        """The partitions that are there, among which must be all that were read so far."""
        until = time.monotonic() + _BELIEVE_S
        while True:
            data = self._partitions()
            left = self._deleted(start)
            if not left:
                return data
            if time.monotonic() > until:
                self._gone(left, start)
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
        if lost := self._cut(start, fresh):
            self._gone(lost, start)
        return {**dict.fromkeys(fresh, 0), **start}

    def _check_not_behind(self, start: Offsets, observed: Offsets) -> None:
        short = {p: (start[p], end) for p, end in observed.items() if start[p] > end}
        if short:  # the same topics: their brokers may not have found again all that they have
            behind(self._settings, short, self._tables_of(short))

    def _check_still_there(self, start: Offsets, observed: Offsets) -> None:
        news = [partition for partition, end in observed.items() if end > start[partition]]
        if lost := self._cut(start, news):
            self._gone(lost, start)

    # --- times -----------------------------------------------------------------------------------

    def _watermark_at(self, ends: Offsets, observed: Offsets) -> SourceMs | None:
        by_heartbeat = self._settings.heartbeat_topic is not None
        beaten = {p for p, end in ends.items() if by_heartbeat and end == observed[p]}
        bounds = self._bounds_at({p: end for p, end in ends.items() if p not in beaten})
        known = [self._heartbeat if p in beaten else bounds[p] for p in ends]
        if not ends and by_heartbeat:
            known = [self._heartbeat]  # no topic is there yet, so nothing stands before it
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

    def _no_topic(self, topic: str, heartbeats: str = "") -> ConfigError:
        return no_topic(self._settings, topic, self._client.topics(), heartbeats)


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
