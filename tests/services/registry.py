"""Apicurio, a schema registry with the interface of Confluent's, and its converter for Avro.

It is published as an archive of jars, so it is unpacked into the cache.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import fastavro
from mview_connectors.followers.environments import SideEnvironment, run

from mview.errors import CorruptionError
from mview.java.jars import _ivy_jar, resolve
from mview.java.runtime import find_java
from tests.connectors.avro import plain_schema
from tests.services.kafka import LOCK
from tests.services.process import ServerProcess, free_port

_ARCHIVE = Path(__file__).with_name("registry.lock")

_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"
#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_SETTINGS = """<ivysettings>
  <settings defaultResolver="central" checksums=""/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="mview" module="registry"/>
  <dependencies>
    <dependency org="{organisation}" name="{name}" rev="{version}" transitive="false">
      <artifact name="{name}" type="tar.gz" ext="tar.gz" m:classifier="{classifier}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def _build(folder: Path) -> None:
    coordinates, digest = _ARCHIVE.read_text().split()
    organisation, name, version, classifier = coordinates.split(":")
    (folder / "settings.xml").write_text(_SETTINGS)
    (folder / "ivy.xml").write_text(
        _MODULE.format(organisation=organisation, name=name, version=version, classifier=classifier)
    )
    run(
        "Apicurio",
        "it needs the central repository of Maven",
        *(str(find_java()), f"-Duser.home={folder}", "-jar", str(_ivy_jar())),
        *("-settings", f"{folder}/settings.xml", "-ivy", f"{folder}/ivy.xml"),
        *("-cache", f"{folder}/cache", "-types", "tar.gz"),
        *("-retrieve", f"{folder}/[artifact].[ext]"),
    )
    archive = folder / f"{name}.tar.gz"
    got = hashlib.sha256(archive.read_bytes()).hexdigest()
    if got != digest:
        raise CorruptionError("Apicurio is not the pinned one", got=got, allowed=digest)
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "server", filter="data")
    run("Apicurio", "the cache cannot be written", "rm", "-r", str(archive), f"{folder}/cache")


ENVIRONMENT = SideEnvironment(
    name="Apicurio",
    tag="2.6",
    sources=(_ARCHIVE,),
    module="tests.services.registry",
    build=_build,
)


class RegistryServer:
    """A running registry; what it knows is in its memory.

    Attributes:
        url: as Confluent's registry is asked.
    """

    def __init__(self, folder: Path) -> None:
        (jar,) = (ENVIRONMENT.made() / "server").glob("*-runner.jar")
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        self.url, self._own = f"{address}/apis/ccompat/v7", f"{address}/apis/registry/v2"
        command = [
            *(find_java(), "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-jar", jar),
        ]
        self._process = ServerProcess("Apicurio", command, folder / "registry.log", cwd=folder)
        self._process.wait_until_ready(lambda: self.ask("/schemas/types"))

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, path: str) -> Any:
        """An answer, out of JSON."""
        with _OPENER.open(f"{self.url}{path}", timeout=5) as answer:
            return json.load(answer)

    def converters(self) -> dict[str, str]:
        """Settings of a connector that writes keys and values as Avro."""
        settings = {
            "": _CONVERTER,
            ".apicurio.registry.url": self._own,
            ".apicurio.registry.auto-register": "true",
            ".apicurio.registry.find-latest": "true",
            ".apicurio.registry.as-confluent": "true",
            ".apicurio.registry.use-id": "contentId",
            ".apicurio.registry.headers.enabled": "false",
        }
        return {
            f"{part}.converter{name}": value
            for part in ("key", "value")
            for name, value in settings.items()
        }

    def as_json(self, value: bytes) -> bytes:
        """A message as JsonConverter had written it, without the envelope."""
        number = int.from_bytes(value[1:5], "big")
        schema = plain_schema(json.loads(self.ask(f"/schemas/ids/{number}")["schema"]))
        read = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        return json.dumps(read, default=lambda raw: base64.b64encode(raw).decode()).encode()

    def stop(self) -> None:
        """End it."""
        self._process.kill()


def plug_in(folder: Path) -> None:
    """Put the converter into a folder of plug-ins of Kafka Connect."""
    folder.mkdir(parents=True)
    for jar in resolve("avro", LOCK):
        (folder / jar.name).symlink_to(jar)
    # Connect finds plug-ins by this file, which the converter's own jar lacks.
    with zipfile.ZipFile(folder / "services.jar", "w") as jar:
        jar.writestr("META-INF/services/org.apache.kafka.connect.storage.Converter", _CONVERTER)


if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main())
