"""The jar resolver against a stand-in `java`: what is fetched, what is refused, what is said."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from mview.errors import ConfigError, CorruptionError, RetryableError
from mview.java import runtime
from mview.java.jars import LOCK, check_java, read_lock, resolve

GOOD = b"a jar"
#: Java that says its version, and as Ivy puts one file into the folder of its last argument.
FAKE_JAVA = """#!/bin/sh
echo "$1" >> {calls}
if [ "$1" = -version ]; then echo '{version}' >&2; exit {version_code}; fi
{ivy}
for last; do :; done
mkdir -p "${{last%/*}}"
printf '{content}' > "${{last%/*}}/a-1.jar"
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    runtime._major.cache_clear()
    monkeypatch.setenv("MVIEW_CACHE", str(tmp_path / "cache"))
    yield
    runtime._major.cache_clear()


@pytest.fixture
def use_java(monkeypatch, tmp_path):
    """Install a stand-in Java; gives the file that logs its calls."""

    def install(version='openjdk version "17.0.15" 2025', ivy="", content="a jar", code=0):
        home = tmp_path / "java"
        (home / "bin").mkdir(parents=True, exist_ok=True)
        program, calls = home / "bin" / "java", tmp_path / "calls"
        text = FAKE_JAVA.format(
            calls=calls, version=version, version_code=code, ivy=ivy, content=content
        )
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        return calls

    return install


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "test.lock"
    path.write_text(f"# comment\nset org.x:a:1 {hashlib.sha256(GOOD).hexdigest()}\n")
    return path


def cached(tmp_path):
    return tmp_path / "cache" / "jars" / "a-1.jar"


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
    ],
)
def test_wrong_java_is_refused_and_named(use_java, version, major):
    use_java(version)
    with pytest.raises(ConfigError, match=f"Java {major}") as caught:
        check_java()
    assert caught.value.allowed == "Java 17 or 21"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2", "17"])
def test_right_java_is_accepted(use_java, version):
    use_java(f'openjdk version "{version}"')
    check_java()


def test_java_that_does_not_start_is_reported_with_its_words(use_java):
    use_java("cannot load libjvm", code=1)
    with pytest.raises(ConfigError, match="cannot load libjvm"):
        check_java()


def test_no_java_at_all(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Java was not found"):
        check_java()


def test_java_home_without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="JAVA_HOME has no Java"):
        check_java()


def test_fetches_once_then_works_without_java(use_java, lock, tmp_path, monkeypatch):
    use_java()
    assert resolve("set", lock) == [cached(tmp_path)]
    assert cached(tmp_path).read_bytes() == GOOD
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert resolve("set", lock) == [cached(tmp_path)]


def test_damaged_cache_is_fetched_anew(use_java, lock, tmp_path):
    use_java()
    cached(tmp_path).parent.mkdir(parents=True)
    cached(tmp_path).write_bytes(b"half of a j")
    resolve("set", lock)
    assert cached(tmp_path).read_bytes() == GOOD


def test_other_content_is_refused_and_not_kept(use_java, lock, tmp_path):
    use_java(content="another jar")
    with pytest.raises(CorruptionError, match="is not the pinned one") as caught:
        resolve("set", lock)
    assert hashlib.sha256(b"another jar").hexdigest() in str(caught.value)
    assert [p.name for p in cached(tmp_path).parent.iterdir()] == [".lock"]


def test_no_network_names_the_jar_and_the_cause(use_java, lock):
    use_java(ivy='echo "java.net.UnknownHostException: some host"; exit 1')
    with pytest.raises(RetryableError, match="UnknownHostException") as caught:
        resolve("set", lock)
    assert "org.x:a:1" in caught.value.what
    assert "a-1.jar" in str(caught.value.hint)


def test_cache_that_cannot_be_written(use_java, lock, tmp_path, monkeypatch):
    use_java()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MVIEW_CACHE", str(tmp_path / "file"))
    with pytest.raises(RetryableError, match="cannot be written"):
        resolve("set", lock)


def test_parallel_processes_fetch_once(use_java, lock):
    calls = use_java(ivy="sleep 0.3")
    code = (
        "from pathlib import Path; from mview.java import jars;"
        f" jars.resolve('set', Path({str(lock)!r}))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [p.wait(timeout=60) for p in processes] == [0, 0, 0]
    assert len([call for call in calls.read_text().split() if call != "-version"]) == 1


def test_unknown_set(lock):
    with pytest.raises(KeyError, match="no jars named 'other'"):
        resolve("other", lock)


def test_runtime_set_is_delta_for_the_installed_spark():
    from importlib.metadata import version

    spark = ".".join(version("pyspark").split(".")[:2])
    names = {(jar.artifact, jar.version) for jar in read_lock(LOCK, "runtime")}
    delta = version("delta-spark")
    assert names == {(f"delta-spark_{spark}_2.13", delta), ("delta-storage", delta)}


@pytest.mark.service
def test_real_download_is_not_disturbed_by_a_broken_local_maven_folder(tmp_path, monkeypatch):
    """A pom without its jar in ~/.m2 makes Spark's own resolution fail."""
    jar = read_lock(LOCK, "local")[0]
    folder = tmp_path / ".m2" / "repository" / Path(*jar.organisation.split("."))
    pom = folder / jar.artifact / jar.version / f"{jar.artifact}-{jar.version}.pom"
    pom.parent.mkdir(parents=True)
    pom.write_text("<project>")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [path.name for path in resolve("local")] == [jar.file_name]
