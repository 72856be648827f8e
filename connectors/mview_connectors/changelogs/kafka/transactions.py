"""Transactions over several topics, by the topic in which Debezium tells where each of them ends.

With `provide.transaction.metadata` each change has the id of its transaction, and a topic of its
own an END for each, with the number of its changes by table. A cut of the partitions is whole if of
each transaction that has a change before it all changes stand before it.

An END is sent after the changes, but to another partition: what it counts may come a moment later.
Changes that have not come T after it was read do not come: they stand before the begin of the load.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mview.connector import Format, Offsets, events_of
from mview.errors import ConfigError, DecodeError
from mview.relation import TableName
from mview_connectors.changelogs.kafka.client import KafkaClient, Span
from mview_connectors.formats.debezium.transactions import (
    TransactionEnd,
    transaction_end,
    transaction_name,
)


class Part(NamedTuple):
    """A message of a partition that is of a transaction."""

    offset: int
    transaction: str


def whole_cut(
    parts: Mapping[str, Sequence[Part]],
    ends: Mapping[str, int],
    changes: Mapping[str, int],
    before: Mapping[str, int],
) -> dict[str, int]:
    """The latest ends, none of them later than asked for, before which transactions are whole.

    Args:
        parts: by partition, what stands in it from the cut before on, in order.
        ends: by partition, the latest end.
        changes: how many messages a transaction has, of those that have ended.
        before: how much of some stands before the cut before, which were taken in parts.
    """
    cut = dict(ends)
    while True:
        taken = Counter(
            part.transaction
            for partition, there in parts.items()
            for part in there
            if part.offset < cut[partition]
        )
        open_ = {
            name
            for name, count in taken.items()
            if not 0 <= changes.get(name, -1) <= count + before.get(name, 0)
        }
        if not open_:
            return cut
        for partition, there in parts.items():
            firsts = (part.offset for part in there if part.transaction in open_)
            cut[partition] = min(cut[partition], next(firsts, cut[partition]))


class KafkaTransactions:
    """Where the transactions of a connection's partitions begin and end.

    Args:
        client: reads them.
        format: decodes changes.
        topic: that of the ends; it has one partition.
        tables: the tables that are read.
        delay: T, in milliseconds.
    """

    def __init__(
        self, client: KafkaClient, format: Format, topic: str, tables: Sequence[str], delay: int
    ) -> None:
        self._client, self._format, self._delay = client, format, delay / 1000
        self._tables = set(tables)
        #: Without schemas: what is counted of another one of the name only has to be waited for.
        self._names = {TableName.of(table).table for table in tables}
        self._place, self._part = f"{topic}/0", f"{topic}/part/"
        self._ends: dict[str, tuple[int, TransactionEnd, float]] = {}
        self._read = -1
        self._parts: dict[str, list[Part]] = {}
        self._scanned: dict[str, tuple[int, int]] = {}

    def has(self, name: str) -> bool:
        """Whether an entry of offsets is ours; see `begin`."""
        return name == self._place or name.startswith(self._part)

    def check(self, topic: str, where: str) -> None:
        """Raise unless the topic is there, with one partition.

        Raises:
            ConfigError: it is not.
        """
        known = self._client.describe([topic]).get(topic)
        if known is None or known.partitions != [self._place]:
            raise ConfigError(
                f"transaction topic {topic!r} "
                + ("does not exist" if known is None else "has several partitions"),
                where=where,
                allowed="a topic of one partition, in which Debezium tells where transactions end",
                hint="set provide.transaction.metadata=true in the connector; the topic is "
                "<topic.prefix>.transaction, and comes with the first transaction",
            )

    def begin(self) -> dict[str, int]:
        """Entries of offsets: the place of the first end that is still needed: the topic's end now.

        Later ones have, too, how much was taken of transactions that came in parts.
        """
        return self._client.ends([self._place])

    def cut(
        self,
        begun: Offsets,
        ends: Mapping[str, int],
        noted: Mapping[str, int],
        observed: Mapping[str, int],
        *,
        parts: bool = False,
    ) -> tuple[dict[str, int], dict[str, int]]:
        """The latest ends before which transactions are whole; and our entries of offsets for them.

        Args:
            begun: where the batch begins, by partition.
            ends: the latest ends that it may have.
            noted: our entries of offsets where the batch begins.
            observed: what there is, by partition.
            parts: the ends stay as they are, also inside of transactions.
        """
        place = noted.get(self._place)
        if place is None:  # the topic was named after the load
            place = self.begin()[self._place]
        before = {
            name.removeprefix(self._part): count
            for name, count in noted.items()
            if name != self._place
        }
        self._look(place)
        for partition, end in ends.items():
            self._scan(partition, begun[partition], end)
        there = {partition: self._parts[partition] for partition in ends}
        seen = Counter(part.transaction for known in there.values() for part in known)
        seen.update(before)
        # Some versions of Debezium count a change of a key as one, and send a delete and a create.
        changes = {
            name: max(self._count(end), seen[name]) for name, (_, end, _) in self._ends.items()
        }
        over = self._over(there, observed)
        changes |= {name: seen[name] for name in over}
        cut = dict(ends) if parts else whole_cut(there, ends, changes, before)
        fresh = Counter(
            part.transaction
            for partition, known in there.items()
            for part in known
            if part.offset < cut[partition]
        )
        taken = fresh + Counter(before)
        # One that is over may go on behind the cut: it has ended all the same.
        needed = [
            offset
            for name, (offset, _, _) in self._ends.items()
            if taken[name] < changes[name] or (name in over and fresh[name])
        ]
        entries = {self._place: min(needed, default=max(self._read, place))}
        for name in before.keys() | (fresh.keys() if parts else set()):
            if not 0 <= changes.get(name, -1) <= taken[name]:
                entries[f"{self._part}{name}"] = taken[name]
        return cut, entries

    def is_one(self, partition: str, start: int, end: int) -> bool:
        """Whether all that stands in a part of a partition, which was cut, is one transaction."""
        within = {p.transaction for p in self._parts[partition] if start <= p.offset < end}
        return len(within) == 1

    def _count(self, end: TransactionEnd) -> int:
        """How many changes of a transaction are of tables that are read."""
        return sum(
            count
            for name, count in end.changes.items()
            if any(name == table or name.endswith(f".{table}") for table in self._names)
        )

    def _over(self, parts: Mapping[str, Sequence[Part]], observed: Mapping[str, int]) -> set[str]:
        """The transactions of which nothing more comes, in whatever partition.

        A partition has them in the order of their ends: one of which a later one was seen is passed
        there. Where none was, all that there is must have been looked at for as long as T.
        """
        ranks: dict[str, float] = {name: offset for name, (offset, _, _) in self._ends.items()}
        for there in parts.values():
            ended = False
            for part in reversed(there):
                ended = ended or part.transaction in self._ends
                # Without an end before one that has one: it stands before the place of the begin.
                ranks.setdefault(part.transaction, -1 if ended else math.inf)
        newest = {
            partition: max((ranks[part.transaction] for part in there), default=-1)
            for partition, there in parts.items()
        }
        open_ = {p for p in parts if self._scanned[p][1] < observed[p]}
        late = time.monotonic() - self._delay

        def is_over(name: str, rank: float) -> bool:
            left = [partition for partition, ahead in newest.items() if ahead <= rank]
            waited = name not in self._ends or self._ends[name][2] < late
            return rank < math.inf and not (left and (not waited or open_ & set(left)))

        return {name for name, rank in ranks.items() if is_over(name, rank)}

    def _look(self, place: int) -> None:
        """Read the ends that have come, and forget those before a place."""
        if self._read < 0 or place > self._read:
            self._read = place
        self._ends = {name: end for name, end in self._ends.items() if end[0] >= place}
        to = self._client.ends([self._place])[self._place]
        if to > self._read:
            for message in self._client.read([Span(self._place, self._read, to)]):
                if (end := transaction_end(message)) is not None:
                    self._ends[end.transaction] = message.offset, end, time.monotonic()
            self._read = to

    def _scan(self, partition: str, start: int, end: int) -> None:
        """Note the transactions of the messages of a partition that were not looked at yet."""
        first, last = self._scanned.get(partition, (start, start))
        if not first <= start <= last:  # it was begun anew
            first = last = start
            self._parts[partition] = []
        known = [part for part in self._parts.get(partition, []) if part.offset >= start]
        if end > last:
            for message in self._client.read([Span(partition, last, end)]):
                try:
                    events = events_of(self._format, message)
                except DecodeError:
                    continue  # who reads it says so
                known += [
                    Part(message.offset, transaction_name(event.transaction))
                    for event in events
                    if event.transaction is not None
                    and event.table in self._tables
                    and not _is_alone(event.kind, event.transaction)
                ]
            last = end
        self._parts[partition], self._scanned[partition] = known, (start, last)


def _is_alone(kind: str, transaction: str) -> bool:
    """Whether a change is a transaction by itself, whose end comes with the next one only.

    So MySQL and MariaDB have TRUNCATE; in PostgreSQL it is one change of many.
    """
    return kind == "truncate" and transaction_name(transaction) == transaction
