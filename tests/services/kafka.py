"""A real Kafka broker: one node, KRaft, no ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from mview_connectors.changelogs.kafka.errors import UNKNOWN

from mview.java.jars import resolve
from mview.java.runtime import find_java
from tests.patience import wait_for
from tests.services.gate import Gate
from tests.services.process import ServerProcess, free_port, run

LOCK = Path(__file__).with_name("jars.lock")
#: A random id may start with "-", which the format tool takes for an option.
_CLUSTER_ID = "bXZpZXctdGVzdC1jbHVzdA"
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")
_PASSWORD = "kafka-of-the-tests"
_LOGIN = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="{_PASSWORD}";'
)
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller},BROKERS://127.0.0.1:{brokers}{listened}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},BROKERS://127.0.0.1:{gate}{advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,BROKERS:PLAINTEXT{protocols}
inter.broker.listener.name=BROKERS
controller.listener.names=CONTROLLER
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={login}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
log.dirs={folder}/logs
auto.create.topics.enable=false
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=1000
log.cleaner.enable=false
"""


def java_command(jar_set: str, main: str, *arguments: str | Path) -> list[str | Path]:
    """A command that runs a Java program of a set in our lock file."""
    jars = ":".join(str(jar) for jar in resolve(jar_set, LOCK))
    return [find_java(), *_JVM, "-cp", jars, main, *arguments]


class Listener(NamedTuple):
    """One more way to the broker.

    Attributes:
        protocol: how it is spoken: `PLAINTEXT` or `SSL`.
        port: where the broker listens.
        told: the port that it tells clients.
        properties: what the broker needs for it, by name after `listener.name.<name>.`.
    """

    protocol: str
    port: int
    told: int
    properties: Mapping[str, str] = {}


class KafkaServer:
    """A running broker and what tests do with it.

    Args:
        folder: where its files are.
        listeners: more ways to it, by name.
    """

    def __init__(self, folder: Path, listeners: Mapping[str, Listener] | None = None) -> None:
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        properties = folder / "server.properties"
        # Workers have the environment from when their JVM was started: a file is always there.
        self._secret = folder / "reader.secret"
        self._secret.write_text(_PASSWORD)
        sasl = free_port()
        self._sasl = f"127.0.0.1:{sasl}"
        brokers = free_port()
        #: What the broker tells itself as a member of the cluster: the ends of transactions.
        self.among_brokers = Gate(brokers)
        more = listeners or {}
        text = _PROPERTIES.format(
            port=port,
            sasl=sasl,
            controller=free_port(),
            brokers=brokers,
            gate=self.among_brokers.port,
            folder=folder,
            login=_LOGIN,
            listened="".join(f",{n}://127.0.0.1:{way.port}" for n, way in more.items()),
            advertised="".join(f",{n}://127.0.0.1:{way.told}" for n, way in more.items()),
            protocols="".join(f",{n}:{way.protocol}" for n, way in more.items()),
        )
        lines = [
            f"listener.name.{name.lower()}.{key}={value}\n"
            for name, way in more.items()
            for key, value in way.properties.items()
        ]
        properties.write_text("".join([text, *lines]))
        run(
            "Kafka's format tool",
            java_command(
                "kafka",
                "kafka.tools.StorageTool",
                *("format", "-t", _CLUSTER_ID, "-c", properties),
            ),
        )
        self._command = java_command("kafka", "kafka.Kafka", properties)
        self._log = folder / "kafka.log"
        self._server = ServerProcess("Kafka", self._command, self._log)
        # Kept: a client that is garbage-collected while a call is under way breaks the call.
        self._admin = AdminClient(self._client())
        self._wait()
        self._producer = Producer(self._client())

    def _client(self) -> dict[str, str | int]:
        # log_level 0: the client writes "connection refused" to stderr while the broker starts.
        settings = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        return {**settings, "reconnect.backoff.max.ms": 200}

    def of_a_reader(self) -> dict[str, Any]:
        """Settings under `changes` of a user who logs in, and may do what nobody has denied."""
        options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": f"${{file:{self._secret}}}",
        }
        return {"bootstrap_servers": self._sasl, "options": options}

    @contextmanager
    def denied(self, topic: str) -> Iterator[None]:
        """Within the block, the reader may not read a topic."""
        rule = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:reader", "*"
        how = AclOperation.READ, AclPermissionType.DENY
        for future in self._admin.create_acls([AclBinding(*rule, *how)]).values():
            future.result(30)
        try:
            yield
        finally:
            for future in self._admin.delete_acls([AclBindingFilter(*rule, *how)]).values():
                future.result(30)

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._server.pid

    def admin(self) -> AdminClient:
        """The admin client."""
        return self._admin

    def create_topic(self, name: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic and give its name."""
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self._admin.create_topics([new])[name].result(timeout=30)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until the broker neither lists it nor answers for it.

        A deletion is done before the broker knows of it, and the name goes before the partitions.
        """
        self._admin.delete_topics([name])[name].result(30)
        first, spec = TopicPartition(name, 0), OffsetSpec.latest()

        def is_gone() -> bool:
            if name in self._admin.list_topics(timeout=10).topics:
                return False
            try:
                self._admin.list_offsets({first: spec}, request_timeout=10)[first].result(11)
            except KafkaException as error:
                # The client's own word where no partition that was asked about has a leader.
                return error.args[0].code() in (*UNKNOWN, KafkaError._NOENT)
            return False

        assert wait_for(is_gone, 60), f"topic {name} is not deleted"

    def produce(
        self,
        topic: str,
        messages: Iterable[bytes | str | tuple[bytes | str | None, bytes | str | None] | None],
        partition: int | None = None,
    ) -> None:
        """Send messages, each a value or (key, value), and wait until all are stored."""
        place = {} if partition is None else {"partition": partition}
        for message in messages:
            key, value = message if isinstance(message, tuple) else (None, message)
            self._producer.produce(topic, value=value, key=key, **place)
            self._producer.poll(0)
        left = self._producer.flush(30)
        assert left == 0, f"{left} messages were not stored"

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> offset of the next message; empty when there is no such topic.

        What is not decided yet counts: a commit is answered before its end is in the partitions.
        """
        found = self._admin.list_topics(timeout=10).topics.get(topic)
        if found is None or found.error is not None:
            return {}
        consumer = self._consumer("read_uncommitted")
        try:
            return {
                p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
                for p in found.partitions
            }
        finally:
            consumer.close()

    def messages(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """All (key, value) that are in the topic now, partition by partition."""
        ends = self.end_offsets(topic)
        found: list[tuple[bytes | None, bytes | None]] = []
        consumer = self._consumer()
        try:
            for partition, end in ends.items():
                consumer.assign([TopicPartition(topic, partition, 0)])
                while consumer.position([TopicPartition(topic, partition)])[0].offset < end:
                    message = consumer.poll(10)
                    assert message is not None, f"{topic}/{partition} ends before offset {end}"
                    found.append((message.key(), message.value()))
        finally:
            consumer.close()
        return found

    def _consumer(self, level: str = "read_committed") -> Consumer:
        settings = {"group.id": "tests", "enable.auto.commit": False, "isolation.level": level}
        return Consumer(self._client() | settings)

    def _wait(self) -> None:
        self._server.wait_until_ready(lambda: self._admin.list_topics(timeout=2).brokers)

    def kill(self) -> None:
        """End the broker at once, as by a power cut of its process."""
        self._server.kill()

    def restart(self) -> None:
        """Start it again, with what it has on disk."""
        self._server = ServerProcess("Kafka", self._command, self._log)
        self._wait()

    def stop(self) -> None:
        """End the broker."""
        self._server.kill()
        self.among_brokers.stop()
