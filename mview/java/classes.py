"""The classes of Spark kept as an archive: to read and check them is what a start of it costs.

Java can write down at the end of a JVM which classes it has loaded, and map them at the next start
(class-data sharing, in all versions that Spark runs on). The first JVM of a Java and a class path
writes it, one at a time; the start after it takes it. Java passes an archive over that was made by
another Java, or of other jars; without one all is the same, and slower.

What is mapped is code: the archive is in a folder that is ours alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from mview.java.jars import cache_folder
from mview.java.runtime import find_java

#: What a dynamic archive begins with. Java writes it last: a file without it is not whole.
_MAGIC = (0xF00BABA8).to_bytes(4, "little")
#: Seconds after which an archive goes that nobody has used; each takes some 200 MB.
_UNUSED_S = 30 * 86_400
#: Java's words for what does not go with ours: a user who decides about archives, agents, with
#: which it writes none and does not even start, and recordings, which it then leaves out.
_OTHERS = (
    "-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit", "SharedClassListFile",
    "-agentlib", "-agentpath", "-javaagent", "-Xrun", "FlightRecord",
)  # fmt: skip
#: Where Java, or Spark's start of it, finds further options.
OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
#: Seconds that Java may take to show that it can write archives.
_PROBE_S = 20
#: Java warns of each class that it leaves out.
_QUIET = "-Xlog:cds*=off"


class Archive(NamedTuple):
    """What a JVM is started with.

    Attributes:
        options: of Java.
        handles: files that the JVM must inherit: it holds a lock by them until its end.
    """

    options: tuple[str, ...] = ()
    handles: tuple[int, ...] = ()


@contextmanager
def class_archive(class_path: str, options: str) -> Iterator[Archive]:
    """How to start a JVM with the archive, or so that it writes one; in the block it is started.

    Whatever fails here leaves it out: it would only have saved time.

    Args:
        class_path: what comes before the jars of Spark, as Java takes it.
        options: of Java, by the user.
    """
    archive = Archive()
    said = " ".join([options, *(os.environ.get(name, "") for name in OPTION_VARIABLES)])
    if not any(word in said for word in _OTHERS):
        with suppress(OSError):
            archive = _archive(_own_folder(), _key(class_path), options)
    try:
        yield archive
    finally:
        for handle in archive.handles:
            os.close(handle)  # the JVM has its own


def _archive(folder: Path, key: str, options: str) -> Archive:
    whole, part = folder / f"{key}.jsa", folder / f"{key}.part"
    if not whole.exists():
        lock = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _take(part, whole):
                part.unlink(missing_ok=True)
                _check_writes(folder, options)
                return Archive((f"-XX:ArchiveClassesAtExit={part}", _QUIET), (lock,))
        except OSError:
            os.close(lock)  # another JVM is to write it, or none can
            raise
        os.close(lock)
        _forget_unused(folder)
    os.utime(whole)
    return Archive((f"-XX:SharedArchiveFile={whole}", _QUIET))


def _check_writes(folder: Path, options: str) -> None:
    """Raise OSError where Java cannot write archives: asked to, it would end instead of starting.

    So are those without an archive of their own, and some options that only Java knows. To ask
    takes a start of Java: that it cannot is noted, and asked anew in a month.
    """
    submit, java = os.environ.get("SPARK_SUBMIT_OPTS", ""), find_java()
    try:
        said = shlex.split(f"{options} {submit}")
    except ValueError as error:
        raise OSError("nobody knows the options of Java") from error
    own = java.resolve()
    # Where somebody gives it an archive of its own, it is another Java.
    likes = [_likeness(file) for file in (own, own.parents[1] / "lib" / "server" / "classes.jsa")]
    name = hashlib.sha256("\n".join([*likes, *said]).encode()).hexdigest()[:32]
    probe, refused = folder / f"{name}.probe", folder / f"{name}.refused"
    _forget_unused(folder)
    if refused.exists():
        raise OSError("Java writes no archive of classes")
    try:
        subprocess.run(
            [java, f"-XX:ArchiveClassesAtExit={probe}", _QUIET, *said, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
            check=True,
        )
        probe.unlink()
    except subprocess.SubprocessError as error:
        probe.unlink(missing_ok=True)
        if isinstance(error, subprocess.CalledProcessError) and error.returncode > 0:
            refused.touch()  # not one that was killed, or had no time
        raise OSError("Java writes no archive of classes") from error


def _take(part: Path, whole: Path) -> bool:
    """Give what a JVM has written its name, if it came to the end of it."""
    try:
        with part.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
            os.fsync(file.fileno())
    except FileNotFoundError:
        return False
    part.replace(whole)
    return True


def _forget_unused(folder: Path) -> None:
    for file in (*folder.glob("*.jsa"), *folder.glob("*.part"), *folder.glob("*.refused")):
        if time.time() - file.stat().st_mtime > _UNUSED_S:
            file.unlink(missing_ok=True)


def _own_folder() -> Path:
    """The folder of our archives; raises OSError where others could write to it."""
    folder = cache_folder().with_name(f"classes-{os.geteuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_like = folder.lstat()
    if is_like.st_uid != os.geteuid() or stat.S_IMODE(is_like.st_mode) != 0o700:
        raise PermissionError(f"{folder} is not ours alone")
    return folder


def _key(class_path: str) -> str:
    """A digest of the Java and the jars: Java itself makes sure that they are those."""
    java = find_java().resolve()
    release = java.parents[1] / "release"
    said = [str(java), release.read_text() if release.is_file() else ""]
    said += [_likeness(Path(text)) for text in class_path.split(":")]
    said += map(_likeness, sorted(_spark_jars()))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]


def _spark_jars() -> Iterable[Path]:
    spec = find_spec("pyspark")
    assert spec is not None, "pyspark is a dependency of mview"
    assert spec.origin is not None, "pyspark is a package with files"
    return (Path(spec.origin).parent / "jars").glob("*.jar")


def _likeness(file: Path) -> str:
    try:
        like = file.stat()
    except OSError:
        return f"{file} absent"
    return f"{file} {like.st_size} {like.st_mtime_ns}"
