"""What Kafka's answers mean for who reads: wait, ask for rights, or load anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

from confluent_kafka import KafkaError

from mview.config import ChangesSettings
from mview.errors import AwayError, ConfigError, DataLostError, typed
from mview_connectors.network import Brokers

UNKNOWN = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)

#: What a broker says while a partition gets a leader; the client passes it on without a retry.
MOVING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    # The client's own word for the whole call, where no partition that was asked about has one.
    KafkaError._NOENT,
    *UNKNOWN,
)

GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, *UNKNOWN)

#: What a broker says to who may not do it: to ask again changes nothing.
FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.SECURITY_DISABLED,
    KafkaError._AUTHENTICATION,
)

#: Further places that an error of lost changes names; its command has the tables of all.
_NAMED = 5

_SAFE = "what is published stays as it is; nothing after this place was taken"
_GOES_ON = "nothing is lost: reading goes on at the same offsets"

IDLE = (
    "a table without changes tells nothing of time: only a heartbeat that came through the "
    "connector proves that all up to then was sent (T covers clock skew and the way to Kafka)"
)


def away(
    settings: Brokers, error: KafkaError | None, beside: KafkaError | None, where: str
) -> NoReturn:
    """Raise the error of brokers that do not answer, or do not let us in.

    Args:
        settings: the section.
        error: the answer; None: there was none in time.
        beside: what the client said of late beside its answers: a call to who does not let us in
            ends in a time-out, and only this has the reason.
        where: what was asked about.
    """
    told = error if error is not None else beside
    for cause in (error, beside):
        if cause is not None and cause.code() in FORBIDDEN:
            raise ConfigError(
                f"Kafka at {settings.bootstrap_servers} does not let us in",
                where=where,
                got=cause.str(),
                safe=_GOES_ON,
                hint=f"check options under {settings.section}, and that their user may "
                "DESCRIBE and READ these topics; then run the same command again",
            )
    if told is not None and told.code() in MOVING:
        raise AwayError(
            f"Kafka at {settings.bootstrap_servers} has no broker that leads what is asked for",
            where=where,
            got=told.str(),
            safe=_GOES_ON,
            hint="check that all brokers run: kafka-topics --describe tells which partitions have "
            "no leader; then run the same command again",
        )
    raise AwayError(
        f"Kafka at {settings.bootstrap_servers} does not answer",
        where=where,
        got="no answer in time" if told is None else told.str(),
        safe=_GOES_ON,
        hint="check that the brokers run and can be reached, then run the same command again",
    )


def _anew(tables: Sequence[str]) -> str:
    """What loads the tables of a topic anew, whose changes are lost."""
    if not tables:
        return "`mview drop` the tables of this topic and run again: they are loaded anew"
    return f"mview drop {typed(*tables)}; then run again: what is dropped is loaded anew"


def behind(
    settings: ChangesSettings, short: Mapping[str, tuple[int, int]], tables: Sequence[str]
) -> NoReturn:
    """Raise the error of partitions that have less than what was read from them before.

    Args:
        settings: the section.
        short: by partition, the offset that is next, and that where it ends.
        tables: that have their topics, as commands name them.
    """
    (place, (offset, end)), *others = short.items()
    raise AwayError(
        f"Kafka at {settings.bootstrap_servers} has lost what was read, or not found it again yet",
        where=place + _beside([name for name, _ in others]),
        got=f"it ends at offset {end}",
        allowed=f"{offset}, the next one, or more",
        safe=_SAFE,
        hint=f"if it stays so, the broker has lost messages: {_anew(tables)}",
    )


def _beside(others: Sequence[str]) -> str:
    """Further places, as a part of a sentence; empty: there are none."""
    more = [*others[:_NAMED]]
    if len(others) > _NAMED:
        more.append(f"{len(others) - _NAMED} more")
    return f"; also {', '.join(more)}" if more else ""


def gone(lost: Mapping[str, str], tables: Sequence[str]) -> NoReturn:
    """Raise the error of changes that cannot be read any more.

    Args:
        lost: what has become of them, by the partitions or topics where they were.
        tables: that have these topics, as commands name them.
    """
    (place, how), *others = lost.items()
    raise DataLostError(
        f"changes of {place} are gone before they were read: {how}",
        where=place + _beside([name for name, _ in others]),
        safe=_SAFE,
        hint=f"{_anew(tables)}. Let no topic that is read be deleted, and its retention.ms be "
        "longer than any pause",
    )


def no_heartbeats(settings: ChangesSettings) -> AwayError:
    """The error of a heartbeat topic that was there. It has no change, so none is gone."""
    return AwayError(
        f"heartbeat topic {settings.heartbeat_topic!r} does not exist any more",
        where=f"changes.{settings.connection}.heartbeat_topic",
        got=IDLE,
        safe=_GOES_ON,
        hint="make it again: a connector that may make topics does so with its next heartbeat, or "
        "when it is restarted; then run the same command again",
    )


def check_senders(
    settings: ChangesSettings, changes: Iterable[str], beats: Iterable[str | None]
) -> None:
    """Make sure that who sends the heartbeats sends the changes.

    Args:
        settings: the section.
        changes: names of the connectors of changes; empty ones say nothing.
        beats: names in the heartbeats.

    Raises:
        ConfigError: heartbeats would say of changes what they do not know.
    """
    senders, beaters = {name for name in changes if name}, set(beats)
    if not senders or not beaters or (beaters == senders and len(senders) == 1):
        return
    named = ", ".join(sorted(map(str, senders)))
    raise ConfigError(
        "the heartbeats are not of the connector that sends the changes",
        where=f"{settings.section}.heartbeat_topic",
        got=f"heartbeats of {', '.join(sorted(str(name or 'nobody') for name in beaters))} in "
        f"{settings.heartbeat_topic}; changes of {named}",
        allowed="one connector, whose name (topic.prefix) stands in the key of its heartbeats",
        safe=_GOES_ON,
        hint=f"set heartbeat_topic: __debezium-heartbeat.{min(senders)}; keys must come through "
        "JsonConverter. Tables of another connector are a connection of their own",
    )


def no_topic(
    settings: ChangesSettings, topic: str, known: Iterable[str], heartbeats: str = ""
) -> ConfigError:
    """The error of a topic that was never there, with the names of those that are.

    Args:
        settings: of the connection.
        topic: its name.
        known: topics of the cluster.
        heartbeats: what has one of heartbeats be there; empty: it is one of changes.
    """
    names = list(known)
    # Topics of one connector are alike in most of their names.
    close = get_close_matches(topic, names, n=1, cutoff=0.8)
    shown = [name for name in names if not name.startswith("__consumer_")]
    comes = "if it comes with a table's first change, set missing_topics: wait"
    return ConfigError(
        f"{'heartbeat topic' if heartbeats else 'topic'} {topic!r} does not exist",
        where=f"changes.{settings.connection}",
        allowed=", ".join(shown[:20]) or "the cluster has no topics",
        hint=(f"did you mean {close[0]!r}? " if close else "")
        + f"correct its name; {heartbeats or comes}",
    )


#: Milliseconds after which heartbeats, which come every second, count as stopped.
_STOPPED_MS = 60_000
_HOUR_MS = 3_600_000


def told_age(settings: ChangesSettings, age: int) -> str:
    """How old the last heartbeat is, in words.

    Args:
        settings: the section.
        age: milliseconds; below 0, where its clock is ahead of this machine's.

    Raises:
        ConfigError: they have stopped, so that no watermark moves.
    """
    if age > max(_STOPPED_MS, settings.delay):
        raise ConfigError(
            f"the last heartbeat is {age // 1000:,} seconds old: views stay as they are",
            where=str(settings.heartbeat_topic),
            got="the connector is stopped, or has no heartbeat.interval.ms",
            hint="look at the connector: its state and its log",
        )
    return f"the last one is {age / 1000:.1f} s old"


def not_whole(topic: str, settings: Mapping[str, str]) -> ConfigError | None:
    """Why a topic does not keep all changes until they are read; None: it does, or tells nothing.

    Compaction takes messages out of the middle, where offsets have gaps anyway: nobody sees later
    that a delete is missing.

    Args:
        topic: its name.
        settings: its settings; empty: they are not told to this user.
    """
    policy = settings.get("cleanup.policy", "")
    if "compact" not in policy:
        return None
    return ConfigError(
        "the topic is compacted: deletes that were not read yet would go",
        where=topic,
        got=f"cleanup.policy={policy}",
        allowed="cleanup.policy=delete",
        hint=f"kafka-configs --alter --topic {topic} --add-config cleanup.policy=delete. Where "
        "it was compacted while nobody read it, `mview verify --source` tells what differs",
    )


def told_retention(topic: str, settings: Mapping[str, str], load_ms: int) -> str:
    """For how long a topic keeps messages, in words.

    Args:
        topic: its name.
        settings: its settings; empty: they are not told to this user.
        load_ms: about how long the load of its tables takes.

    Raises:
        ConfigError: changes would go before they are read.
    """
    if not settings:
        return f"{topic} is there; what it keeps is not told to this user (DESCRIBE_CONFIGS)"
    if (error := not_whole(topic, settings)) is not None:
        raise error
    kept = int(settings.get("retention.ms", -1))
    if 0 <= kept < load_ms:
        raise ConfigError(
            "the topic keeps changes for less than a load takes",
            where=topic,
            got=f"retention.ms={kept}; a load takes about {load_ms:,} ms",
            hint=f"kafka-configs --alter --topic {topic} --add-config "
            f"retention.ms={max(7 * 24 * _HOUR_MS, 2 * load_ms)}",
        )
    size = settings.get("retention.bytes", "-1")
    limit = "" if size == "-1" else f", at most {size} bytes of a partition"
    span = "for ever" if kept < 0 else f"for {kept / _HOUR_MS:g} hours"
    return f"{topic} keeps changes {span}{limit}"
