"""Kafka topics as sinks: rows or changes, and the mark, in one transaction.

A step is a transaction: its messages go to the topic, and its mark, one record, to the topic of
marks beside it, which is compacted and has one partition. Who reads `read_committed` sees both or
neither. What is open when a process ends is rolled back by the broker: a step is then sent again.

The transactional id is the topic's: to begin with it ends whoever had it before. So from then on
until somebody else begins, the last committed mark is what we have read or written ourselves; a
commit of who was replaced fails by itself.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import orjson
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from pydantic import AfterValidator, Field, field_validator

from mview.changelog import KIND
from mview.clock import SystemClock
from mview.config import Count, Duration, Filled, broker_list, by_reference
from mview.connector import Message
from mview.errors import (
    AwayError,
    ConfigError,
    DataLostError,
    MviewError,
    RetryableError,
    TargetError,
    UserError,
)
from mview.follower import (
    Capabilities,
    Facts,
    FollowerSettings,
    FollowerTarget,
    Mark,
    State,
    Step,
    Token,
    admit,
    batches,
    check_owner,
    gone_keys,
    mark_of,
    new_rows,
    state_by_mark,
)
from mview.schema import type_name
from mview.secrets import Mask, secrets_of
from mview_connectors.changelogs.kafka.client import KafkaClient, Span, Topic
from mview_connectors.changelogs.kafka.errors import FORBIDDEN
from mview_connectors.followers.kafka.shapes import SHAPES
from mview_connectors.formats.written import json_keys, json_rows, read_rows
from mview_connectors.network import kafka_caution

#: What Kafka takes as a topic's name.
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: Ends the name of the topic of marks.
_MARKS = ".mview-epochs"

#: The key of all marks: compaction leaves the last one.
_KEY = b"mark"

#: Seconds that a broker is waited for.
_PATIENCE = 30.0

#: Seconds that a topic which was deleted may still be in the way, and between two tries.
_DELETED_S, _PAUSE = 60.0, 0.1

#: Records of the topic of marks that are looked at first, from the end: rolled-back ones count.
_TAIL = 64

#: Our side of the contract with Kafka; a user's option must not change it.
_FIXED = {
    "enable.idempotence": True,
    "acks": "all",
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
    # As Java's clients do it: who joins this topic with another one finds equal keys together.
    "partitioner": "murmur2_random",
}

#: Refused by what the brokers are told to be; to try again changes nothing.
_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_MSG,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_ARG,
)
_NOT_ALLOWED = (*FORBIDDEN, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

_SAFE = "the mark in Kafka tells what was written; it is asked before the next try"


class KafkaSettings(FollowerSettings):
    """Topics of a Kafka cluster as a sink; `table` is the topic."""

    hidden = ("options",)

    #: `host:port`, several with commas.
    bootstrap_servers: Annotated[Filled, AfterValidator(broker_list)]
    #: Client settings, e.g. security.protocol; values may hold `${env:…}`.
    options: dict[str, str] = Field(default={}, repr=False)
    #: mode changelog: what a change looks like.
    shape: Literal["unified", "debezium"] = "unified"
    #: Partitions of a topic that is made.
    partitions: Count = 1
    #: Its copies; the brokers' default where none is given.
    replication: Count | None = None
    #: Its further settings, e.g. retention.ms.
    topic_options: dict[str, str] = Field(default={})
    #: After so long the brokers roll back what a runner has left open.
    transaction_timeout: Duration = 300_000

    @field_validator("options")
    @classmethod
    def _no_plain_secret(cls, value: dict[str, str]) -> dict[str, str]:
        return by_reference(value)


@dataclass(frozen=True)
class _Section:
    """What a client is opened with; see `mview_connectors.network.Brokers`."""

    section: str
    bootstrap_servers: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class _Record:
    """A record of the topic of marks.

    Attributes:
        mark: its epoch is -1 where the topic is not filled.
        content: what messages are made of: another text means another topic, or a fill.
        topic: the id that the topic got when it was made.
        partitions: of the topic: a key stays in one as long as they are as many. 0: the topic is
            to be made anew.
        ts: milliseconds; the newest time that a message has.
    """

    mark: Mark
    content: str
    topic: str
    partitions: int
    ts: int

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "epoch": self.mark.epoch,
                "ts": self.ts,
                "owner": self.mark.owner,
                "fence": self.mark.fence,
                "step": self.mark.step,
                "content": self.content,
                "topic": self.topic,
                "partitions": self.partitions,
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes | None, where: str) -> _Record:
        try:
            body = orjson.loads(value or b"")
            mark = Mark(str(body["owner"]), int(body["fence"]), int(body["epoch"]), body["step"])
            return cls(mark, body["content"], body["topic"], body["partitions"], body["ts"])
        except (ValueError, TypeError, KeyError):
            raise TargetError(
                "a mark in Kafka cannot be read",
                where=where,
                got=repr(value)[:200],
                safe="nothing was written",
                hint="delete this topic and the one whose marks it has: they are made anew",
            ) from None


class KafkaFollower:
    """A topic that follows a view.

    Args:
        target: the view and the sink.
    """

    settings: ClassVar[type[FollowerSettings]] = KafkaSettings
    # Of a topic of changes only an empty one is filled, and retention may have deleted changes.
    capabilities: Capabilities = Capabilities(
        modes=frozenset({"upsert", "changelog"}), compares=False, null_keys=True
    )

    def __init__(self, target: FollowerTarget) -> None:
        self.target = target
        self._settings: KafkaSettings = target.settings
        if self._settings.mode != "upsert":
            self.capabilities = replace(type(self).capabilities, fills=False, reads=False)
        self._topic = target.table
        self._marks = self._topic + _MARKS
        self._now: Callable[[], int] = SystemClock().now
        section = f"sinks.{target.sink}"
        self._brokers = _Section(section, self._settings.bootstrap_servers, self._settings.options)
        self._client = KafkaClient(self._brokers)
        self._producer: Producer | None = None
        self._record: _Record | None = None
        self._staged: _Record | None = None
        self._undelivered: KafkaError | None = None

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse names that Kafka does not take; JSON holds all types."""
        if not _TOPIC.fullmatch(self._marks) or self._topic in (".", ".."):
            raise UserError(
                f"sink {self.target.sink} cannot have a topic of this name",
                where=f"view {self.target.view}",
                got=self._topic,
                allowed=f"letters A-Z and a-z, digits, '.', '_', '-', {249 - len(_MARKS)} at most",
                hint="give the topic another name: table: …",
            )

    def caution(self) -> str | None:
        """A warning for remote brokers that are not proven to be those that are meant."""
        return kafka_caution(self._brokers)

    def probe(self) -> None:
        """Ask the brokers whether the topics are free or ours; makes nothing."""
        with self._failing("asking the brokers"):
            is_there = self._marks in self._client.describe([self._marks])
            last = self._last() if is_there else None
            # Who asks has no token.
            self._check(last and replace(last, mark=replace(last.mark, fence=0)))

    def create(self) -> None:
        """Make the topics, end whoever wrote before, and put the fence's token in."""
        self.check()
        self._let_go()
        with self._failing("making the topics"):
            if self._marks not in self._client.describe([self._marks]):
                self._check_unused()
                self._make(self._marks, 1, {"cleanup.policy": "compact"})
            # Before anything of another runner is ended: it may be the newer one.
            self._check(self._last())
            producer = self._begun()
            last = self._last(settled=True)
            self._check(last)
            self._producer = producer
            self._claim(last)

    def position(self) -> Mark | None:
        """The last mark that was committed; None: the topic was never filled."""
        with self._failing("reading the mark"):
            if self._marks not in self._client.describe([self._marks]):
                return None
            last = self._last(settled=self._staged is None)
        return None if last is None or last.mark.epoch < 0 else last.mark

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """Send the changes in a transaction that stays open."""
        if self._settings.mode == "upsert":
            return self._stage(step, lambda producer: self._upsert(producer, delta))
        ts = self._next_ts()
        return self._stage(step, lambda producer: self._log(producer, step, ts, delta), ts)

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """Send all rows in a transaction that stays open.

        A topic of rows gets a tombstone for each key that it has and the rows have not: their keys
        are held in memory. A topic of changes must be empty.
        """
        if self._settings.mode == "upsert":
            with self._failing("reading the keys of the topic"):
                there = {key for key, value in self._content() if value is not None}
            return self._stage(step, lambda producer: self._replace(producer, rows, there))
        with self._failing("looking for changes in the topic"):
            if next(self._messages(), None) is not None:
                raise TargetError(
                    f"the topic {self._topic} has changes, and would have to begin anew",
                    where=f"sinks.{self.target.sink}",
                    safe="nothing was written there; other sinks go on",
                    hint="delete the topic: it is made anew, and who reads it has to load anew",
                )
        ts = self._next_ts()
        schema = pa.schema([pa.field(KIND, pa.string(), False), *rows.schema])
        inserts = pa.RecordBatchReader.from_batches(
            schema,
            (
                pa.record_batch([pa.repeat("+I", batch.num_rows), *batch.columns], schema=schema)
                for batch in batches(rows)
            ),
        )
        return self._stage(step, lambda producer: self._log(producer, step, ts, inserts), ts)

    def commit(self, token: Token) -> Facts:
        """Commit the open transaction."""
        staged = self._staged
        if self._producer is None or staged is None or staged.mark.step != token["id"]:
            mark = self.position()
            if mark is not None and mark.step == token["id"]:
                return {"epoch": token["epoch"]}
            raise RetryableError(
                f"what was staged for {self._topic} is gone with its connection",
                where=f"sinks.{self.target.sink}",
                safe="nothing of it was written; it is staged again",
            )
        with self._failing("committing"):
            self._producer.commit_transaction(_PATIENCE)
        self._record, self._staged = staged, None
        return {"epoch": token["epoch"]}

    def state(self, step: Step, token: Token | None) -> State:
        """What the mark says, or that the transaction is open here."""
        if self._staged is not None and self._staged.mark.step == step.id:
            return State.PREPARED
        return state_by_mark(self.position(), step)

    def abort(self, step: Step, token: Token | None) -> None:
        """Roll the open transaction back."""
        if self._producer is not None and self._staged is not None:
            with self._failing("rolling back"):
                self._roll_back(self._producer)

    def read(self) -> pa.RecordBatchReader:
        """The last row of each key."""
        schema = pa.schema([field.with_nullable(True) for field in self.target.schema.arrow])
        with self._failing("reading the topic"):
            last = dict(self._content())
        texts = (value for value in last.values() if value is not None)
        return pa.RecordBatchReader.from_batches(schema, read_rows(texts, schema, may_lack=True))

    def maintain(self, *, thorough: bool) -> Facts:
        """Brokers compact topics themselves."""
        return {}

    def close(self) -> None:
        """Roll back what is open and free the clients."""
        self._let_go()
        self._client.close()

    # --- messages --------------------------------------------------------------------------------

    def _upsert(self, producer: Producer, delta: pa.RecordBatchReader) -> None:
        key = self.target.schema.key
        for batch in batches(delta):
            # Both of one key never are in a step: their order does not matter.
            for gone in json_keys(gone_keys(batch, key), key):
                self._send(producer, gone, None)
            self._put(producer, new_rows(batch))

    def _put(self, producer: Producer, rows: pa.RecordBatch) -> list[bytes]:
        schema = self.target.schema
        keys = json_keys(rows, schema.key)
        for key, row in zip(keys, json_rows(rows, schema.names), strict=True):
            self._send(producer, key, orjson.dumps(row))
        return keys

    def _replace(self, producer: Producer, rows: pa.RecordBatchReader, there: set[bytes]) -> None:
        for batch in batches(rows):
            there.difference_update(self._put(producer, batch))
        for key in there:
            self._send(producer, key, None)

    def _log(self, producer: Producer, step: Step, ts: int, delta: pa.RecordBatchReader) -> None:
        """Send changes, and to each partition that all up to their time are before this."""
        schema = self.target.schema
        shape = SHAPES[self._settings.shape](self.target, step, ts)
        old: dict[str, Any] | None = None
        for batch in batches(delta):
            kinds = batch.column(KIND).to_pylist()
            rows = json_rows(batch, schema.names)
            keys = json_keys(batch, schema.key) if schema.key else [None] * batch.num_rows
            for kind, row, key in zip(kinds, rows, keys, strict=True):
                if kind == "-U":
                    old = row
                    continue
                self._send(producer, key, shape.change(kind, old if kind == "+U" else None, row))
        assert self._record is not None
        if (beat := shape.heartbeat()) is not None:
            for partition in range(self._record.partitions):
                self._send(producer, None, beat, partition)

    def _send(
        self, producer: Producer, key: bytes | None, value: bytes | None, at: int | None = None
    ) -> None:
        # Rows without a key have no partition of their own: one keeps their order.
        place = at if at is not None else (0 if key is None else -1)
        self._produce(producer, self._topic, key, value, place)

    def _produce(
        self, producer: Producer, topic: str, key: bytes | None, value: bytes | None, place: int
    ) -> None:
        """Hand a message to the client; wait while it holds as many as it may."""
        while self._undelivered is None:
            try:
                producer.produce(topic, value=value, key=key, partition=place)
                return
            except BufferError:
                producer.poll(0.1)
        raise KafkaException(self._undelivered)

    def _next_ts(self) -> int:
        """Now, and after all that was sent before: a promise of a heartbeat must hold."""
        before = 0 if self._record is None else self._record.ts
        return max(self._now(), before + 1)

    # --- steps -----------------------------------------------------------------------------------

    def _stage(self, step: Step, send: Callable[[Producer], None], ts: int | None = None) -> Token:
        producer, record = self._producer, self._record
        if producer is None or record is None:
            raise RetryableError(
                f"the connection to {self._topic} is gone",
                where=f"sinks.{self.target.sink}",
                safe="nothing of the step was written; it is staged again",
            )
        check_owner(self.target, record.mark)
        admit(self.target, None if record.mark.epoch < 0 else record.mark, step)
        staged = replace(record, mark=mark_of(self.target, step), ts=ts or self._next_ts())
        with self._failing("writing"):
            if self._staged is not None:
                self._roll_back(producer)
            self._check_topic(record)
            self._undelivered = None
            producer.begin_transaction()
            send(producer)
            self._mark(producer, staged)
        self._staged = staged
        return {"id": step.id, "epoch": step.epoch}

    def _mark(self, producer: Producer, record: _Record) -> None:
        """Send the mark and wait until all of the transaction is there."""
        self._produce(producer, self._marks, _KEY, record.to_bytes(), 0)
        left, until = len(producer), time.monotonic() + _PATIENCE
        while (now := producer.flush(1.0)) and self._undelivered is None:
            if now < left:
                left, until = now, time.monotonic() + _PATIENCE
            elif time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if self._undelivered is not None:
            raise KafkaException(self._undelivered)

    def _roll_back(self, producer: Producer) -> None:
        self._staged = None
        producer.abort_transaction(_PATIENCE)

    # --- the topics ------------------------------------------------------------------------------

    def _check(self, last: _Record | None) -> None:
        if last is None:
            self._check_unused()
        else:
            check_owner(self.target, last.mark)

    def _check_unused(self) -> None:
        """Refuse a topic without marks that has, or had, messages; an empty one may be prepared."""
        topic = self._client.describe([self._topic]).get(self._topic)
        if topic is not None and any(self._client.ends(topic.partitions, committed=False).values()):
            raise TargetError(
                f"there is a topic {self._topic} that mview has not written",
                where=f"sinks.{self.target.sink}",
                safe="nothing was written there",
                hint="give the view another one: table: …; or, if mview wrote it and somebody has "
                f"deleted {self._marks}, delete it: it is made anew and filled",
            )

    def _check_topic(self, record: _Record) -> None:
        """Refuse to write on where the topic is another one: the next `create` sees to that.

        A producer does not notice that a topic was deleted and made anew, or got partitions.
        """
        topic = self._client.describe([self._topic]).get(self._topic)
        if topic is None or (topic.id, len(topic.partitions)) != (record.topic, record.partitions):
            raise RetryableError(
                f"the topic {self._topic} is gone, or not the one that it was",
                where=f"sinks.{self.target.sink}",
                safe="nothing was written; a topic that was deleted is filled anew",
            )

    def _claim(self, last: _Record | None) -> None:
        """Have the topic there as it is to be, and say in its mark that this runner writes."""
        content = self._content_text()
        topic = self._client.describe([self._topic]).get(self._topic)
        mark = Mark("", 0, -1) if last is None else last.mark
        ts = 0 if last is None else last.ts
        if last is not None and topic is not None:
            is_log = self._settings.mode != "upsert" or '"upsert"' not in last.content[:20]
            if (last.content != content and is_log) or not last.partitions:
                # The mark goes first: what is begun here is ended by whoever comes.
                self._write(_Record(self._ours(Mark("", 0, -1)), content, "", 0, ts))
                self._delete(self._topic)
                topic = None
        if topic is None:
            policy = "compact" if self._settings.mode == "upsert" else "delete"
            options = {"cleanup.policy": policy, **self._settings.topic_options}
            self._make(self._topic, self._settings.partitions, options)
            topic = self._described(self._topic)
        parts = len(topic.partitions)
        if last is None or last.content != content or last.topic != topic.id:
            mark = Mark("", 0, -1)
        elif last.partitions != parts:
            raise TargetError(
                f"the topic {self._topic} has another number of partitions than it had",
                where=f"sinks.{self.target.sink}",
                got=str(parts),
                allowed=f"{last.partitions}: a key must stay in its partition",
                safe="nothing was written there",
                hint="delete the topic: it is made anew and filled",
            )
        record = _Record(self._ours(mark), content, topic.id, parts, ts)
        if record != last:
            self._write(record)
        self._record = record

    def _ours(self, mark: Mark) -> Mark:
        return replace(mark, owner=self.target.owner, fence=self.target.fence)

    def _write(self, record: _Record) -> None:
        """Put a mark in, in a transaction of its own."""
        assert self._producer is not None
        self._undelivered = None
        self._producer.begin_transaction()
        self._mark(self._producer, record)
        self._producer.commit_transaction(_PATIENCE)

    def _content_text(self) -> str:
        """What messages are made of."""
        mode, schema = self._settings.mode, self.target.schema
        how = "upsert" if mode == "upsert" else self._settings.shape
        columns = [[c.name, type_name(c.type)] for c in schema.columns]
        return orjson.dumps([how, columns, list(schema.key)]).decode()

    def _make(self, topic: str, partitions: int, options: dict[str, str]) -> None:
        new = NewTopic(topic, partitions, self._settings.replication or -1, config=options)
        until = time.monotonic() + _DELETED_S
        while True:
            try:
                self._client.admin().create_topics([new])[topic].result(_PATIENCE)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                if topic in self._client.describe([topic]) or time.monotonic() > until:
                    return
                time.sleep(_PAUSE)  # it is being deleted
                continue
            self._described(topic)
            return

    def _delete(self, topic: str) -> None:
        self._client.admin().delete_topics([topic])[topic].result(_PATIENCE)
        until = time.monotonic() + _DELETED_S
        while topic in self._client.describe([topic]):
            if time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            time.sleep(_PAUSE)

    def _described(self, topic: str) -> Topic:
        """A topic that was just made: the brokers tell each other."""
        until = time.monotonic() + _PATIENCE
        while True:
            described = self._client.describe([topic]).get(topic)
            if described is not None:
                return described
            if time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            time.sleep(_PAUSE)

    # --- reading ---------------------------------------------------------------------------------

    def _last(self, *, settled: bool = False) -> _Record | None:
        """The last committed mark.

        Args:
            settled: wait for a transaction that is being decided: a commit is answered before
                readers see it.
        """
        place = f"{self._marks}/0"
        end = self._ends([place], settled=settled)[place]
        begin = self._client.beginnings([place])[place]
        back = _TAIL
        while begin < end:
            start = max(begin, end - back)
            last = None
            for message in self._client.read([Span(place, start, end)]):
                last = message
            if last is not None:
                return _Record.from_bytes(last.value, place)
            if start == begin:
                break
            back *= 16
        return None

    def _messages(self) -> Iterator[Message]:
        """All committed messages of the topic."""
        topic = self._client.describe([self._topic]).get(self._topic)
        if topic is None:
            return iter(())
        begins = self._client.beginnings(topic.partitions)
        ends = self._ends(topic.partitions, settled=self._staged is None)
        return self._client.read([Span(p, begins[p], ends[p]) for p in topic.partitions])

    def _ends(self, partitions: list[str], *, settled: bool) -> dict[str, int]:
        """The offsets up to which readers see what was committed.

        Args:
            partitions: of one topic.
            settled: see `_last`. What comes before an undecided message is not all there is: keys
                after it would be taken for absent.
        """
        until = time.monotonic() + _PATIENCE
        ends = self._client.ends(partitions)
        while settled and ends != self._client.ends(partitions, committed=False):
            if time.monotonic() > until:
                raise RetryableError(
                    f"a transaction on {partitions[0].rpartition('/')[0]} is not decided yet",
                    where=f"sinks.{self.target.sink}",
                    safe="it is asked again; nothing is written meanwhile",
                )
            time.sleep(_PAUSE / 10)
            ends = self._client.ends(partitions)
        return ends

    def _content(self) -> Iterator[tuple[bytes, bytes | None]]:
        return ((message.key or b"", message.value) for message in self._messages())

    # --- the producer ----------------------------------------------------------------------------

    def _begun(self) -> Producer:
        """A producer that has ended the one before it, and what that had open."""
        sizes = {"linger.ms": 5, "compression.type": "lz4"}
        fixed = {
            **_FIXED,
            "transactional.id": f"mview-{self._topic}",
            "transaction.timeout.ms": self._settings.transaction_timeout,
            "on_delivery": self._delivered,
        }
        producer = self._client.producer(sizes, fixed)
        # Without a connection librdkafka looks for one only after half a second.
        producer.list_topics(self._marks, _PATIENCE)
        producer.init_transactions(_PATIENCE)
        return producer

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None and self._undelivered is None:
            self._undelivered = error

    def _let_go(self) -> None:
        """End the producer; what it has open is rolled back."""
        producer, self._producer = self._producer, None
        self._record = self._staged = None
        if producer is not None:
            with contextlib.suppress(KafkaException):  # nothing is open, or it was ended
                producer.abort_transaction(_PATIENCE)
            producer.purge()  # not `close`, which waits for brokers that are away

    @contextlib.contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """Errors as ours; what is open then is rolled back, and begun anew by `create`."""
        try:
            yield
        except BaseException as error:
            self._let_go_of_broken()
            if isinstance(error, DataLostError):
                self._fail(task, None, str(error.what))
            if isinstance(error, AwayError):
                # Of a source: a sink's next step is not to run the command again.
                self._fail(task, None, f"{error.what}: {error.got}")
            if isinstance(error, KafkaException):
                self._fail(task, error.args[0], error.args[0].str())
            if isinstance(error, TimeoutError):
                self._fail(task, None, "no answer in time")
            raise

    def _let_go_of_broken(self) -> None:
        with contextlib.suppress(Exception):
            self._let_go()

    def _fail(self, task: str, error: KafkaError | None, text: str) -> NoReturn:
        beside = self._client.trouble()
        codes = [failure.code() for failure in (error, beside) if failure is not None]
        kind: type[MviewError] = RetryableError
        hint = "it is tried again; look at the brokers if it stays so"
        if any(code in _NOT_ALLOWED for code in codes):
            kind = ConfigError
            hint = "look at `options`, and at what docs/sinks/kafka.md lets the user do"
        elif error is not None and error.code() in _REFUSED:
            kind = TargetError
            hint = "look at the settings of the brokers and of the topic (max.message.bytes, …)"
        told = text if beside is None else f"{text}; {beside.str()}"
        raise kind(
            f"sink {self.target.sink} failed while {task}",
            where=f"{self._topic} of sinks.{self.target.sink}",
            got=Mask(secrets_of("options", dict(self._settings.options)))(told)[:500],
            safe=_SAFE,
            hint=hint,
        )
