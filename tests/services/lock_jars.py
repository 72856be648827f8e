"""Write jars.lock anew from ROOTS: `python -m tests.services.lock_jars` after a version change."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from mview.java.jars import _ivy_jar

LOCK = Path(__file__).with_name("jars.lock")
#: Set -> what it is made of. Kafka Connect runs in Kafka's set; Debezium is its plug-in.
ROOTS: dict[str, list[tuple[str, ...]]] = {
    "kafka": [
        ("org.apache.kafka", "kafka_2.13", "4.1.1"),
        ("org.apache.kafka", "connect-runtime", "4.1.1"),
        # Without a binding the servers log nothing.
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    "debezium": [
        ("io.debezium", "debezium-connector-mariadb", "3.5.0.Final"),
        ("io.debezium", "debezium-connector-postgres", "3.5.0.Final"),
    ],
    # Apicurio's converter for Avro, another plug-in.
    "avro": [("io.apicurio", "apicurio-registry-utils-converter", "2.6.13.Final")],
    # The vendor's own client, run against the conformance server.
    "starrocks": [
        ("com.starrocks", "starrocks-stream-load-sdk", "1.0"),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ],
    # Spark's JDBC reader, as the peer of the bulk load's bench.
    "jdbc": [
        ("org.postgresql", "postgresql", "42.7.8"),
        ("org.mariadb.jdbc", "mariadb-java-client", "3.5.6"),
        ("org.xerial", "sqlite-jdbc", "3.53.4.0"),
    ],
    # Reads what the sink for Paimon has written.
    "paimon": [("org.apache.paimon", "paimon-bundle", "1.4.2")],
    # The server as one jar, by its classifier.
    "nessie": [("org.projectnessie.nessie", "nessie-quarkus", "0.99.0", "runner")],
}
#: Sets that run in Kafka's.
PLUGINS = ("debezium", "avro")
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def _module() -> str:
    maven = "http://ant.apache.org/ivy/maven"
    lines = [
        f'<ivy-module version="2.0" xmlns:m="{maven}">',
        '<info organisation="mview" module="services"/>',
    ]
    lines += ["<configurations>", *(f'<conf name="{name}"/>' for name in ROOTS)]
    lines += ["</configurations>", "<dependencies>"]
    for name, roots in ROOTS.items():
        for organisation, artifact, version, *classifier in roots:
            dependency = f'<dependency org="{organisation}" name="{artifact}" rev="{version}"'
            if classifier:
                lines.append(
                    f'{dependency} transitive="false"><artifact name="{artifact}" type="jar"'
                    f' ext="jar" m:classifier="{classifier[0]}" conf="{name}"/></dependency>'
                )
            else:
                lines.append(f'{dependency} conf="{name}->default"/>')
    return "\n".join([*lines, "</dependencies>", "</ivy-module>"])


def _closure(temp: Path) -> dict[str, dict[str, str]]:
    """Set -> coordinates -> sha256, with everything the roots need."""
    (temp / "settings.xml").write_text(_SETTINGS)
    (temp / "ivy.xml").write_text(_module())
    subprocess.run(
        [
            *("java", f"-Duser.home={temp}", "-jar", str(_ivy_jar())),
            *("-settings", "settings.xml", "-cache", "cache", "-ivy", "ivy.xml"),
            *("-types", "jar", "bundle"),
            *(
                "-retrieve",
                f"{temp}/out/[conf]/[organisation]@[artifact]@[revision](@[classifier]).jar",
            ),
        ],
        cwd=temp,
        check=True,
    )
    return {
        name: {
            ":".join(path.stem.split("@")): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((temp / "out" / name).glob("*.jar"))
        }
        for name in ROOTS
    }


def main() -> None:
    """Resolve, then write the lock file; a plug-in leaves out what Kafka has already."""
    with tempfile.TemporaryDirectory() as temp:
        sets = _closure(Path(temp))
    lines = ["# Made by lock_jars.py: <set> <organisation>:<artifact>:<version> <sha256>"]
    for name, jars in sets.items():
        for coordinates, digest in jars.items():
            if name not in PLUGINS or coordinates not in sets["kafka"]:
                lines.append(f"{name} {coordinates} {digest}")
    LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
