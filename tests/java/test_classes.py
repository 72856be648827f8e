"""The archive of classes: who writes it, who takes it, and what leaves it out."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from mview.java import classes
from mview.java.classes import Archive, class_archive
from mview.java.jars import cache_folder
from tests.patience import end_of, wait_for

#: What Java's own archives begin with.
WHOLE = (0xF00BABA8).to_bytes(4, "little") + b"classes"

#: A Java that writes its archive at its end, and one that ends where it is asked to.
WRITES = '#!/bin/sh\necho classes > "${1#*=}"\n'
REFUSES = "#!/bin/sh\nexit 1\n"


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a Java that is a file, which writes what it is asked to."""
    monkeypatch.setenv("MVIEW_CACHE", str(tmp_path / "cache"))
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(WRITES)
    java.chmod(0o700)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return java


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / f"classes-{os.geteuid()}"


def begun(class_path: str = "", options: str = "") -> Archive:
    with class_archive(class_path, options) as archive:
        return archive


def written(content: bytes = WHOLE, class_path: str = "") -> Path:
    """A JVM that is asked to write the archive, and does."""
    (option, quiet) = begun(class_path).options
    assert quiet == "-Xlog:cds*=off"
    what, _, name = option.partition("=")
    assert what == "-XX:ArchiveClassesAtExit"
    Path(name).write_bytes(content)
    return Path(name)


def taken(class_path: str = "") -> Path | None:
    """The archive that a JVM would be started with."""
    for option in begun(class_path).options:
        what, _, name = option.partition("=")
        if what == "-XX:SharedArchiveFile":
            return Path(name)
    return None


def test_the_first_jvm_writes_it_and_the_next_takes_it(folder: Path) -> None:
    part = written()
    archive = taken()
    assert archive is not None
    assert archive.read_bytes() == WHOLE
    assert archive.parent == folder
    assert not part.exists()
    assert taken() == archive


@pytest.mark.parametrize("content", [b"", WHOLE[:3], b"\0" * 100], ids=["empty", "cut", "no head"])
def test_what_was_not_written_to_its_end_is_written_anew(content: bytes) -> None:
    part = written(content)
    assert taken() is None
    assert not part.exists()
    written()
    assert taken() is not None


def test_another_java_and_other_jars_have_their_own(java: Path, tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"a")
    written(class_path=str(jar))
    assert taken(str(jar)) is not None
    assert taken() is None
    jar.write_bytes(b"another")
    assert taken(str(jar)) is None
    written(class_path=str(jar))
    (java.parents[1] / "release").write_text('JAVA_VERSION="21.0.1"\n')
    assert taken(str(jar)) is None


def test_one_jvm_at_a_time_writes_it() -> None:
    with class_archive("", "") as archive:
        # As the JVM does: it has the handle until its end.
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        jvm = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=archive.handles)
    assert jvm.stdin is not None
    with jvm:
        assert begun() == Archive()
        jvm.stdin.close()
        assert end_of(jvm, 30) == 0
    written()
    assert taken() is not None


@pytest.mark.parametrize("body", [REFUSES, "#!/bin/sh\n"])
def test_a_java_that_writes_no_archive_is_not_asked_to(java: Path, body: str, folder: Path) -> None:
    """It would not start: a small one has no archive of its own, on which ours stands."""
    java.write_text(body)
    assert begun() == Archive()
    assert not list(folder.glob("*.probe"))
    java.write_text(WRITES)
    written()
    assert taken() is not None


def test_a_java_that_refused_to_write_an_archive_is_not_asked_at_every_start(
    java: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    java.write_text(f"#!/bin/sh\necho >> {asked}\nexit 1\n")
    count = lambda: len(asked.read_text().splitlines())  # noqa: E731
    for options, starts in (("", 1), ("", 1), ("-Xmx1g", 2), ("-Xmx1g", 2)):
        assert begun(options=options) == Archive()
        assert count() == starts
    own = java.parents[1] / "lib" / "server" / "classes.jsa"
    own.parent.mkdir(parents=True)
    own.write_bytes(WHOLE)  # it has an archive of its own now, on which ours could stand
    assert begun() == Archive()
    assert count() == 3
    month = time.time() - classes._UNUSED_S - 1
    for note in (tmp_path / "cache" / f"classes-{os.geteuid()}").glob("*.refused"):
        os.utime(note, (month, month))
    assert begun() == Archive()
    assert count() == 4


@pytest.mark.parametrize("body", ["exec kill -9 $$", "sleep 60"], ids=["killed", "slow"])
def test_a_java_that_was_only_in_trouble_is_asked_again(java: Path, body: str) -> None:
    java.write_text(f"#!/bin/sh\n{body}\n")
    with pytest.MonkeyPatch.context() as hurry:  # the other one has set which Java is asked
        hurry.setattr(classes, "_PROBE_S", 0.2)
        assert begun() == Archive()
    size, at = java.stat().st_size, java.stat().st_mtime_ns
    java.write_text(WRITES.ljust(size, "\n"))
    os.utime(java, ns=(at, at))  # the same file, as far as can be seen
    assert begun().options


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS"])
@pytest.mark.parametrize("option", ["-javaagent:metrics.jar=8080", "-agentlib:jdwp=server=y"])
def test_an_agent_leaves_it_out(
    option: str, variable: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM with one writes none, and does not start where it is to."""
    assert begun(options=f"-Xss1m {option}") == Archive()
    monkeypatch.setenv(variable, option)
    assert begun() == Archive()
    assert not folder.exists()


@pytest.mark.parametrize(
    "options",
    ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:StartFlightRecording=filename=a.jfr"],
)
def test_a_user_who_decides_about_archives_is_left_alone(options: str, folder: Path) -> None:
    assert begun(options=f"-Xss1m {options}") == Archive()
    assert not folder.exists()


def test_a_folder_that_others_may_write_to_is_left_alone(folder: Path) -> None:
    written()
    assert taken() is not None
    folder.chmod(0o770)
    assert begun() == Archive()


def test_a_cache_that_cannot_be_written_to_costs_nothing_else(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    assert begun() == Archive()


def test_an_archive_that_nobody_uses_goes(tmp_path: Path) -> None:
    written(class_path="/old.jar")
    old = taken("/old.jar")
    assert old is not None
    month = time.time() - classes._UNUSED_S - 1
    os.utime(old, (month, month))
    written()
    new = taken()
    assert new is not None
    assert new.exists()
    assert not old.exists()


def is_free(lock: Path) -> bool:
    """Whether nobody writes an archive."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


#: Starts Spark and says where Java has its classes from.
PROGRAM = """
import sys
from pathlib import Path
from mview.config import Config
from mview.session.spark import spark_session

folder = Path(sys.argv[1])
options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:class+load:file={folder}/loaded"
section = {"master": "local[1]", "conf": {"spark.driver.extraJavaOptions": options}}
spark = spark_session(Config(path=folder / "mview.yml", store=folder / "store", spark=section))
spark.range(3).write.format("delta").save(f"{folder}/table")
assert spark.read.format("delta").load(f"{folder}/table").count() == 3
"""


@pytest.mark.spark
@pytest.mark.long
def test_the_second_start_of_spark_maps_its_classes_and_those_of_delta(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = folder.parent
    monkeypatch.delenv("MVIEW_CACHE")
    monkeypatch.delenv("JAVA_HOME")
    cache.mkdir()
    (cache / "jars").symlink_to(cache_folder())
    monkeypatch.setenv("MVIEW_CACHE", str(cache))
    shared = []
    for number in range(2):
        # The JVM that writes it ends after us.
        assert all(wait_for(partial(is_free, lock), 120) for lock in folder.glob("*.lock"))
        (run := tmp_path / str(number)).mkdir()
        subprocess.run([sys.executable, "-c", PROGRAM, str(run)], check=True, timeout=3000)
        loaded = (run / "loaded").read_text().splitlines()
        mapped = [line.split()[-6:] for line in loaded if "shared objects file (top)" in line]
        shared.append(" ".join(word for words in mapped for word in words))
    assert "org.apache.spark" not in shared[0]
    assert "org.apache.spark.sql.classic.SparkSession" in shared[1]
    assert "org.apache.spark.sql.delta.DeltaLog" in shared[1]
