"""Real Debezium connectors in one Kafka Connect process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mview.java.jars import resolve
from tests.services.kafka import LOCK, KafkaServer, java_command
from tests.services.process import ServerProcess, ServiceError, free_port, wait_until
from tests.services.registry import plug_in

_WORKER = """
bootstrap.servers={bootstrap}
listeners=http://127.0.0.1:{port}
plugin.path={plugins}
plugin.discovery=service_load
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=500
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable={schemas}
value.converter.schemas.enable={schemas}
topic.creation.enable=true
"""
#: What mview's documentation asks of a connector, and topics of one partition unless given.
_DEFAULTS = {
    "tasks.max": "1",
    "provide.transaction.metadata": "true",
    "heartbeat.interval.ms": "1000",
    "tombstones.on.delete": "true",
    "skipped.operations": "none",
    "snapshot.mode": "no_data",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": "1",
}
#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _heartbeats(prefix: str) -> str:
    return f"__debezium-heartbeat.{prefix}"


class DebeziumServer:
    """Kafka Connect with the Debezium plug-ins; tests add connectors to it."""

    def __init__(self, folder: Path, kafka: KafkaServer) -> None:
        self._kafka, self._port = kafka, free_port()
        plugin = folder / "plugins" / "debezium"
        plugin.mkdir(parents=True)
        for jar in resolve("debezium", LOCK):
            (plugin / jar.name).symlink_to(jar)
        plug_in(plugin.with_name("avro"))
        worker = folder / "worker.properties"
        worker.write_text(
            _WORKER.format(
                bootstrap=kafka.bootstrap,
                port=self._port,
                plugins=plugin.parent,
                folder=folder,
                schemas="false",
            )
        )
        history = folder / "history"
        history.mkdir()
        self._history = history
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = java_command("kafka", main, worker)
        # More memory than the broker: two connectors with their schema histories.
        self._command = [part if part != "-Xmx256m" else "-Xmx512m" for part in command]
        self._log, self._offsets = folder / "connect.log", folder / "offsets"
        self._running: dict[str, dict[str, str]] = {}
        self._server = self._start()

    @property
    def url(self) -> str:
        """Of its REST interface."""
        return f"http://127.0.0.1:{self._port}"

    def _start(self) -> ServerProcess:
        server = ServerProcess("Kafka Connect", self._command, self._log)
        server.wait_until_ready(lambda: self._call("GET", "connectors") is not None)
        return server

    def note_offsets(self) -> bytes:
        """What the connectors have noted of their progress; for `crash`."""
        wait_until(self._offsets.exists, "noted offsets")
        return self._offsets.read_bytes()

    def crash(self, offsets: bytes | None = None) -> None:
        """Kill the process, start it again with all connectors, and wait until they stream.

        Args:
            offsets: progress noted earlier: what was sent since then is sent again.
        """
        self._server.kill()
        if offsets is not None:
            self._offsets.write_bytes(offsets)
        beats = {p: sum(self._kafka.end_offsets(_heartbeats(p)).values()) for p in self._running}
        self._server = self._start()
        for prefix, settings in self._running.items():
            self._call("PUT", f"connectors/{prefix}/config", settings)
        for prefix, count in beats.items():
            self.wait_for(_heartbeats(prefix), count + 1)

    @contextmanager
    def connector(self, settings: dict[str, str]) -> Iterator[str]:
        """Run a connector until the end of the block; gives its topic prefix.

        Args:
            settings: of `MariadbServer.connector` or `PostgresqlServer.connector`, plus own ones.
                By default no data is snapshot: only changes after the start are sent.
        """
        prefix = settings["topic.prefix"]
        own = {}
        if "mariadb" in settings["connector.class"]:
            own = {
                "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
                "schema.history.internal.file.filename": str(self._history / prefix),
            }
        self._running[prefix] = _DEFAULTS | own | settings
        try:
            self._call("PUT", f"connectors/{prefix}/config", self._running[prefix])
            # Heartbeats are sent only once the connector streams: changes from now on are seen.
            self.wait_for(_heartbeats(prefix), 1)
            yield prefix
        finally:
            del self._running[prefix]
            # After a crash that failed it may be gone: the failure is what counts.
            if prefix in self._call("GET", "connectors"):
                self._call("DELETE", f"connectors/{prefix}")

    def wait_for(self, topic: str, messages: int, timeout: float = 120.0) -> None:
        """Wait until a topic has at least so many messages."""
        wait_until(
            lambda: sum(self._kafka.end_offsets(topic).values()) >= messages,
            f"{messages} messages in {topic}",
            timeout,
            self._check,
        )

    def _check(self) -> None:
        self._server.check()
        for name, state in (self._call("GET", "connectors?expand=status") or {}).items():
            parts = [state["status"]["connector"], *state["status"]["tasks"]]
            for part in parts:
                if part["state"] == "FAILED":
                    raise ServiceError(f"connector {name} failed: {part.get('trace')}")

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with _OPENER.open(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(f"{method} {path}: {error.read().decode()}") from None
        return json.loads(content) if content else None

    def stop(self) -> None:
        """End the process."""
        self._server.kill()
