"""Pinned jars: fetched once by the Ivy that ships with pyspark, checked by sha256, then offline.

Spark's own `spark.jars.packages` is not used: it reads the user's local Maven folder (which may
hold half-filled entries), needs the network at each new home folder, and checks no pinned digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mview.errors import CorruptionError, MviewError, RetryableError
from mview.files.modes import make_shared_folder, users_umask
from mview.java.runtime import check_java, find_java

__all__ = ["LOCK", "Jar", "absent", "cache_folder", "check_java", "read_lock", "resolve"]

LOCK = Path(__file__).with_suffix(".lock")

#: Only the central repository, by Ivy's own built-in name; no local Maven folder; no pom files:
#: the lock already is the full list.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central" checksums=""/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
  </resolvers>
</ivysettings>
"""
#: Seconds; a download that takes longer is taken for a dead network.
_TIMEOUT = 600


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar."""

    organisation: str
    artifact: str
    version: str
    #: Of several jars of one version; mostly empty.
    classifier: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the cache folder."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    def __str__(self) -> str:
        return ":".join(
            filter(None, (self.organisation, self.artifact, self.version, self.classifier))
        )


def read_lock(lock: Path, name: str) -> list[Jar]:
    """The jars of one set of a lock file.

    Raises:
        KeyError: the lock file has no such set.
    """
    jars = []
    for line in lock.read_text().splitlines():
        fields = line.split()
        if fields and fields[0] == name:
            organisation, artifact, version, *rest = fields[1].split(":")
            jars.append(Jar(organisation, artifact, version, "".join(rest), fields[2]))
    if not jars:
        raise KeyError(f"no jars named {name!r} in {lock}")
    return jars


def cache_folder() -> Path:
    """Where jars are kept: `$MVIEW_CACHE`, else `~/.cache/mview`; in it, `jars`."""
    root = os.environ.get("MVIEW_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "mview") / "jars"


def resolve(name: str = "runtime", lock: Path = LOCK) -> list[Path]:
    """Paths of a set of jars; what is not cached yet is fetched. Safe in parallel processes.

    Args:
        name: the set in the lock file.
        lock: the lock file, `<set> <organisation>:<artifact>:<version>[:<classifier>] <sha256>`
            per line.

    Raises:
        ConfigError: Java is missing or of a wrong version (only when something must be fetched).
        RetryableError: a jar is not cached and cannot be fetched.
        CorruptionError: what was fetched is not what the lock file pins.
    """
    jars = read_lock(lock, name)
    folder = cache_folder()
    if any(not _is_cached(jar, folder) for jar in jars):
        check_java()
        with _exclusive(folder):
            # Asked again under the lock: another process may have fetched them meanwhile.
            missing = [jar for jar in jars if not _is_cached(jar, folder)]
            if missing:
                _fetch(missing, folder)
    return [folder / jar.file_name for jar in jars]


def absent(name: str = "runtime", lock: Path = LOCK) -> list[Jar]:
    """The jars of a set that are not cached, or damaged there: the first run fetches them."""
    return [jar for jar in read_lock(lock, name) if not _is_cached(jar, cache_folder())]


def _is_cached(jar: Jar, folder: Path) -> bool:
    # Hashing 10 MB takes about 10 ms and finds a damaged cache before Java reports it as riddles.
    path = folder / jar.file_name
    return path.is_file() and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    try:
        make_shared_folder(folder)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise RetryableError(
            f"the jar cache cannot be written: {error.strerror}",
            where=str(folder),
            hint="set MVIEW_CACHE to a folder that you can write to",
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(jars: list[Jar], folder: Path) -> None:
    # The temporary folder is on the cache's own disk, so that the rename below is atomic.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temp:
        fetched = _run_ivy(jars, Path(temp))
        for jar in jars:
            path = fetched / jar.file_name
            if not path.is_file():
                raise _unreachable(jar, folder, "the central repository did not give it")
            got = _sha256(path)
            if got != jar.sha256:
                raise CorruptionError(
                    f"jar {jar} is not the pinned one",
                    where=str(folder / jar.file_name),
                    got=f"sha256 {got}",
                    allowed=f"sha256 {jar.sha256}",
                    safe="the file was thrown away, nothing was started",
                    hint="a proxy or mirror may have replaced it; try again from another network",
                )
            path.chmod(0o666 & ~users_umask())  # the cache may be for all users
            path.replace(folder / jar.file_name)


def _run_ivy(jars: list[Jar], temp: Path) -> Path:
    """Download into `temp` and give the folder; a failed download leaves files missing there."""
    (temp / "settings.xml").write_text(_SETTINGS)
    (temp / "ivy.xml").write_text(_ivy_module(jars))
    out = temp / "out"
    command = [
        str(find_java()),
        # Ivy looks for settings and caches in the home folder: give it an empty one.
        f"-Duser.home={temp}",
        *("-jar", str(_ivy_jar())),
        *("-settings", str(temp / "settings.xml")),
        *("-cache", str(temp / "cache")),
        *("-ivy", str(temp / "ivy.xml")),
        *("-retrieve", f"{out}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT, cwd=temp
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(jars[0], temp.parent, f"no end after {_TIMEOUT} s") from None
    if run.returncode != 0:
        raise _unreachable(jars[0], temp.parent, _reason(run.stdout + run.stderr))
    return out


def _ivy_module(jars: list[Jar]) -> str:
    # `artifact` is named outright: some jars are published with packaging "bundle".
    dependencies = "\n".join(
        f'    <dependency org="{jar.organisation}" name="{jar.artifact}" rev="{jar.version}"'
        f' transitive="false"><artifact name="{jar.artifact}" type="jar" ext="jar"'
        + (f' m:classifier="{jar.classifier}"' if jar.classifier else "")
        + "/></dependency>"
        for jar in jars
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="mview" module="jars"/>\n'
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n</ivy-module>\n"
    )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None, "pyspark is a dependency of mview"
    assert spec.origin is not None, "pyspark is a package with files"
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))


def _reason(output: str) -> str:
    """The line of Ivy's long output that says why."""
    lines = [line.strip() for line in output.splitlines()]
    causes = ("Exception", "access Error", "not found", "download failed", "FAILED")
    return next((line for cause in causes for line in lines if cause in line), lines[-1])


def _unreachable(jar: Jar, folder: Path, reason: str) -> MviewError:
    return RetryableError(
        f"jar {jar} is not cached and cannot be fetched",
        where=str(folder),
        got=reason,
        safe="nothing was started",
        hint=f"check the network and try again, or put {jar.file_name} into that folder",
    )
