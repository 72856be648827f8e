"""The side environment: Hudi's jars, and the program that uses them, compiled.

Hudi has nothing for the Spark that mview has. Its client for Java needs no Spark: a few jars, and
of those that come with pyspark the ones that it runs on. The compiler is a jar, too, as a runtime
of Java has none.
"""

from __future__ import annotations

import shutil
import zipfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mview.java.jars import resolve
from mview.java.runtime import check_java, find_java
from mview_connectors.followers.environments import SideEnvironment, run
from mview_connectors.followers.hudi.rehearsal import rehearse
from mview_connectors.followers.workers import Worker

LOCK = Path(__file__).with_name("jars.lock")
_SOURCES = sorted((Path(__file__).parent / "worker").glob("*.java"))

#: Of pyspark's jars: whatever begins so.
_SPARKS = (
    *("arrow-format", "arrow-memory", "arrow-vector", "commons-codec", "commons-collections4"),
    *("commons-compress", "commons-io", "commons-lang3", "commons-pool", "flatbuffers"),
    *("hadoop-client-api", "hadoop-client-runtime", "jackson-annotations", "jackson-core-2"),
    *("jackson-databind", "jackson-datatype-jsr310", "jcl-over-slf4j", "kryo-shaded"),
    *("log4j-1.2-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "lz4-java", "metrics-core"),
    *("minlog", "netty-buffer", "netty-common", "objenesis", "RoaringBitmap", "rocksdbjni"),
    *("slf4j-api", "snappy-java", "zstd-jni"),
)

#: Of the heap of a process. A commit has few rows; a compaction merges with the disk's help.
_HEAP = "1g"

_OPTIONS = (
    # It is for few rows at a time, beside a Spark that has the processors.
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    # What Arrow reaches for inside of Java.
    *(
        f"--add-opens=java.base/{name}=ALL-UNNAMED"
        for name in ("java.nio", "java.lang", "java.util", "sun.nio.ch")
    ),
    # Hudi measures rows with jol, which would look for a debugger for seconds.
    *("-Djol.skipHotspotSAAttach=true", "-Djol.skipDynamicAttach=true"),
    # Words of the JVM itself, of an archive that another Java has made, are not for the answers.
    *("-Xlog:disable", "-XX:+DisplayVMOutputToStderr"),
)

_PROGRAM, _ARCHIVE = "program.jar", "classes.jsa"


def _sparks() -> list[Path]:
    spec = find_spec("pyspark")
    assert spec is not None, "pyspark is a dependency of mview"
    assert spec.origin is not None, "pyspark is a package with files"
    folder = Path(spec.origin).parent / "jars"
    return sorted(jar for name in _SPARKS for jar in folder.glob(f"{name}*.jar"))


def _jars() -> str:
    return ":".join(map(str, (*resolve("hudi", LOCK), *_sparks())))


def _build(folder: Path) -> None:
    check_java()
    java, classes, listed = str(find_java()), folder / "classes", folder / "classes.list"
    step = partial(run, "Hudi", "try it with another Java 17 or 21")
    (compiler,) = resolve("compiler", LOCK)
    step(
        *(java, "-jar", str(compiler), "-17", "-nowarn", "-proc:none"),
        *("-classpath", _jars(), "-d", str(classes), *map(str, _SOURCES)),
    )
    with zipfile.ZipFile(folder / _PROGRAM, "w") as jar:
        for file in sorted(classes.rglob("*.class")):
            jar.write(file, file.relative_to(classes))
    shutil.rmtree(classes)
    # A process starts in a third of the time with classes that are parsed already: those that it
    # loads in a table's life. That this runs shows that the rest does, too.
    rehearse(Worker("Hudi", _command(folder, f"-XX:DumpLoadedClassList={listed}")))
    step(
        *(java, "-Xshare:dump", f"-XX:SharedClassListFile={listed}"),
        *(f"-XX:SharedArchiveFile={folder / _ARCHIVE}", *_OPTIONS, "-cp", _jars()),
    )
    listed.unlink()


def _command(folder: Path, sharing: str) -> list[str]:
    # The archive is of the jars; what comes after them in the path may be anywhere.
    path = f"{_jars()}:{folder / _PROGRAM}"
    return [str(find_java()), f"-Xmx{_HEAP}", *_OPTIONS, sharing, "-cp", path, "worker.Main"]


ENVIRONMENT = SideEnvironment(
    name="Hudi",
    tag="1.2.0",
    sources=(LOCK, Path(__file__), *_SOURCES),
    module="mview_connectors.followers.hudi",
    build=_build,
)


def command() -> list[str]:
    """What starts a process with Hudi.

    Raises:
        ConfigError: the environment has not been made.
    """
    folder = ENVIRONMENT.made()
    return _command(folder, f"-XX:SharedArchiveFile={folder / _ARCHIVE}")
