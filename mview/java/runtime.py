"""Which Java runs Spark, and is it one that Spark 4.2 works with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from mview.errors import ConfigError

SUPPORTED = (17, 21)
_ALLOWED = "Java 17 or 21"
_HINT = (
    "install a Java 17 runtime (Debian: apt-get install openjdk-17-jre-headless), "
    "or point JAVA_HOME at one"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')


def find_java() -> Path:
    """The `java` program that Spark will start: of JAVA_HOME, else of PATH.

    Raises:
        ConfigError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if os.access(java, os.X_OK):
            return java
        raise ConfigError(
            "JAVA_HOME has no Java in it", where=str(java), allowed=_ALLOWED, hint=_HINT
        )
    on_path = shutil.which("java")
    if on_path is None:
        raise ConfigError(
            "Java was not found", where="PATH and JAVA_HOME", allowed=_ALLOWED, hint=_HINT
        )
    return Path(on_path)


@cache
def _major(java: Path) -> int:
    """The feature number of a Java (8, 17, 21). Cached: asking starts a JVM."""
    run = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = _VERSION.search(run.stderr)
    if match is None:
        raise ConfigError(
            "Java does not start",
            where=str(java),
            got=run.stderr.strip() or f"exit code {run.returncode}",
            allowed=_ALLOWED,
            hint=_HINT,
        )
    return int(match.group(1))


def check_java() -> int:
    """Make sure that Spark can start; returns the version of Java.

    Raises:
        ConfigError: no Java, or a version that Spark does not run on; it names the one found.
    """
    java = find_java()
    major = _major(java)
    if major not in SUPPORTED:
        raise ConfigError(
            f"Spark does not run on Java {major}",
            where=str(java),
            got=f"Java {major}",
            allowed=_ALLOWED,
            hint=_HINT,
        )
    return major
