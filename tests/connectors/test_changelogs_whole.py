"""Transactions of own logs stay whole: random logs, limits, restarts and replays, without a server.

The model: a log of transactions of a read table and another one. What comes of it must be its
changes in order, each once, and a batch may end inside of a transaction only where it has no room.
"""

from __future__ import annotations

import json
import random
import struct
from typing import NamedTuple

import pytest
from mview_connectors.changelogs.ownlog.changelog import OwnLog
from mview_connectors.changelogs.ownlog.runs import Place
from mview_connectors.changelogs.ownlog.stream import LogStream
from mview_connectors.formats.ownlog.blocks import EPOCH_2000_MS, Begin, commit_message, relation_of
from mview_connectors.formats.ownlog.pgoutput import PgoutputFormat

from mview.clock import SourceMs
from mview.config import ChangesSettings
from mview.connector import NO_LIMIT, Align, events_of
from tests.seeds import seeds

#: Relations 1 and 2 are read, 3 is not.
_READ, _OTHER = (1, 2), 3


def relation(number):
    name = f"t{number}".encode()
    return b"R" + struct.pack(">I", number) + b"public\0" + name + b"\0d\0\1\1id\0" + b"\0" * 8


def insert(number, value, padding=0):
    text = str(value).zfill(padding).encode()
    return b"I" + struct.pack(">I", number) + b"N\0\1t" + struct.pack(">I", len(text)) + text


class Transaction(NamedTuple):
    commit: int
    end: int
    ms: int
    messages: list[bytes]
    ids: list[int]

    @property
    def size(self):
        return sum(map(len, self.messages))


class Server:
    """A log that grows, and how much of it has been sent."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.transactions, self.place, self.number = [], 100, 0
        self.clock = EPOCH_2000_MS

    def commit(self, *tables, padding=0):
        commit, end = self.place + 10, self.place + 20
        self.clock += self.random.choice([0, 5])
        messages, ids = [], []
        for table in tables:
            self.number += 1
            if table in _READ:
                ids.append(self.number)
            messages.append(insert(table, self.number, padding))
        self.transactions.append(Transaction(commit, end, self.clock, messages, ids))
        self.place = end

    def some(self):
        many = self.random.choice([1, 2, 3, 3, 7, 40, 700])
        kinds = [*_READ, _OTHER] if self.random.random() < 0.7 else list(_READ)
        padding = self.random.choice([0, 0, 30, 300])
        self.commit(*(self.random.choice(kinds) for _ in range(many)), padding=padding)

    def messages(self, after):
        """All that a stream is sent from a place on, for ever."""
        for number in (*_READ, _OTHER):
            yield relation(number)
        at = 0
        while True:
            if at == len(self.transactions):
                yield None
                continue
            one, at = self.transactions[at], at + 1
            if one.end > after.end:
                yield Begin(one.commit, SourceMs(one.ms), at).message()
                yield from one.messages
                yield commit_message(one.end) + bytes(8)  # the time

    def all_of(self, table_ids):
        """By id, the number of its transaction."""
        return {i: n for n, one in enumerate(self.transactions) for i in one.ids}


def wanted(description):
    """The two tables that are read."""
    return description if relation_of(description)[2] in ("t1", "t2") else None


class Fed(LogStream):
    def __init__(self, server, start):
        super().__init__(start, wanted, AssertionError)
        self.source = server.messages(start)

    def feed(self, count):
        for _ in range(count):
            message = next(self.source)
            if message is None:
                break
            if message is not None:
                with self._news:
                    self._runs.add(message)
                    self._collect()

    def wait(self, seconds):
        self.feed(97)

    def _follow(self):
        raise NotImplementedError

    def _away(self):
        raise NotImplementedError

    def _disconnect(self):
        pass


class State(NamedTuple):
    clock: SourceMs
    end: int


class FedLog(OwnLog):
    log = "wal"

    def __init__(self, server):
        super().__init__(ChangesSettings(connection="c", source="postgresql"), ["t1", "t2"], ())
        self.server = server

    def check(self):
        pass

    def begin(self, known=None):
        return {self.log: list(Place(self.server.place))}

    def _end(self):
        return self.server.place

    def _check(self, start):
        return State(SourceMs(self.server.clock - 1), self.server.place)

    def _opened(self, start):
        return Fed(self.server, self._place(start))

    def _disconnect(self):
        pass

    def ids(self, start, end):
        messages = self.read(self.splits(start, end))
        events = [e for message in messages for e in events_of(PgoutputFormat({}), message)]
        return [int(event.after["id"]) for event in events]


def taken(log, start, rows, size=NO_LIMIT, room=(NO_LIMIT, NO_LIMIT), wait_ms=0):
    progress = log.advance(start, rows, wait_ms, size, Align(1 << 40, None, *room))
    return log.ids(start, progress.offsets), progress


@pytest.mark.parametrize("seed", seeds(12))
def test_every_change_once_and_no_transaction_in_part(seed):
    server, chance = Server(seed), random.Random(seed)
    server.some()
    log, at = FedLog(server), {"wal": [100, 0, 0]}
    room = chance.choice([(NO_LIMIT, NO_LIMIT), (800, NO_LIMIT), (50, 4_000), (0, 0)])
    ids, cuts = [], []
    for step in range(100):
        if step < 70:
            for _ in range(chance.choice([0, 0, 1, 4])):
                server.some()
        log._following(at).feed(chance.choice([0, 1, 13, 700]))
        rows, size = chance.choice([1, 3, 50, 1000]), chance.choice([100, 3_000, NO_LIMIT])
        before = at
        found, progress = taken(log, at, rows, size, room)
        at = json.loads(json.dumps(progress.offsets))
        if chance.random() < 0.2:  # another process does the same batch again
            assert FedLog(server).ids(before, at) == found
        if chance.random() < 0.2:
            log = FedLog(server)
        ids += found
        if found:
            cuts.append((len(ids), progress, rows, size))
    log.finish()
    while True:
        found, progress = taken(log, at, 100, NO_LIMIT, room)
        if progress.offsets == at:
            break
        ids += found
        at = progress.offsets
        cuts.append((len(ids), progress, 100, NO_LIMIT))
    of = {i: n for n, one in enumerate(server.transactions) for i in one.ids}
    assert ids == list(of)
    assert progress.whole
    for count, progress, rows, size in cuts:
        if not 0 < count < len(ids):
            continue
        inside = of[ids[count - 1]] == of[ids[count]]
        assert not (inside and progress.whole)
        one = server.transactions[of[ids[count]]]
        # A change that stands alone is taken whatever the limits are.
        assert not inside or not (
            len(one.messages) <= max(rows, room[0]) and one.size <= max(size, room[1])
        ), one
        if progress.watermark is not None:
            assert progress.watermark < one.ms


@pytest.mark.parametrize("come", range(1, 8))
def test_one_that_is_still_coming_is_waited_for(come):
    """Whatever of it has come; and what stands before it does not wait."""
    server = Server()
    server.commit(1)
    server.commit(1, 2, 3, 1, 2)
    log, at = FedLog(server), {"wal": [100, 0, 0]}
    log._following(at).feed(3 + 3 + come)  # relations, the first one, its own begin and on
    found, progress = taken(log, at, 2)
    assert found == [1]
    assert progress.whole
    found, progress = taken(log, progress.offsets, 2)
    assert found == ([2, 3, 5, 6] if come == 7 else [])
    assert progress.whole


def test_the_end_of_a_bounded_log_waits_for_all_of_it():
    server = Server()
    server.commit(*[1] * 500)
    log, at = FedLog(server), {"wal": [100, 0, 0]}
    log.finish()
    server.commit(1)
    found, progress = taken(log, at, 10)
    assert len(found) == 500
    assert progress.whole
    assert taken(log, progress.offsets, 10)[0] == []


def test_a_run_that_was_closed_before_its_commit_came_is_whole_afterwards():
    server = Server()
    server.commit(1, 2)
    log, at = FedLog(server), {"wal": [100, 0, 0]}
    stream = log._following(at)
    stream.feed(3 + 3)
    assert taken(log, at, 9)[0] == []
    stream.feed(1)
    found, progress = taken(log, at, 9)
    assert found == [1, 2]
    assert progress.whole
    assert progress.offsets == {"wal": [120, 0, 0]}


def test_what_has_no_room_comes_in_parts_and_says_so():
    server = Server()
    server.commit(*[1] * 1200)
    server.commit(2)
    log, at = FedLog(server), {"wal": [100, 0, 0]}
    log._following(at).feed(5000)
    parts, whole = [], []
    while at["wal"][0] < server.place:
        found, progress = taken(log, at, 400, room=(500, NO_LIMIT))
        parts.append(len(found))
        whole.append(progress.whole)
        at = progress.offsets
    assert parts == [400, 400, 400 + 1] or parts == [400, 400, 400, 1]
    assert whole[:2] == [False, False]
    assert whole[-1]


def test_what_will_not_come_is_not_waited_for():
    """Neither for ever, nor is a part of it taken: the error is raised that ended the stream."""
    server = Server()
    server.commit(1)
    server.commit(1, 2)
    log, at = FedLog(server), {"wal": [100, 0, 0]}
    stream = log._following(at)
    stream.feed(3 + 3 + 2)
    stream._error = RuntimeError("rolled back later, perhaps")
    log.finish()
    found, progress = taken(log, at, 9)
    assert found == [1]
    with pytest.raises(RuntimeError, match="rolled back later"):
        taken(log, progress.offsets, 9)
