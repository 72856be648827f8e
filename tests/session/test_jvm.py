"""The JVM of Spark: what strangers see of it, where it listens, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from mview.epoch.halts import halting
from mview.errors import RetryableError, UserError
from mview.session import jvm
from mview.session.jvm import SparkEndedError, _options_file, check_jvm, jvm_errors
from mview.session.lazy import Spark
from mview.store.layout import Store

SECRET = "planted S3cret"

#: Runs Spark in a folder of traps, and prints what can be seen of the JVM.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import psutil
from mview.config import Config
from mview.epoch.halts import halting
from mview.session.jvm import SparkEndedError, check_jvm, jvm_errors
from mview.session.spark import release_workers, spark_session

folder = Path(sys.argv[1])
conf = {
    "spark.hadoop.fs.s3a.secret.key": "${env:PLANTED}",
    "spark.mview.untold": "${env:PLANTED}",
    "spark.driver.extraJavaOptions":
        '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-Dmy.password=${env:PLANTED}"',
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file:{folder}/events",
    "spark.ui.enabled": "true",
}
section = {"master": "local[1]", "conf": conf}
spark = spark_session(Config(path=folder / "mview.yml", store=Path(sys.argv[2]), spark=section))

def touch(batches):
    import os, pandas, pyarrow, sys
    seen = {"at": os.getcwd(), "pandas": pandas.__file__, "pid": os.getpid()}
    for batch in batches:
        yield batch.assign(pool=pyarrow.default_memory_pool().backend_name, **seen)

columns = "id long, at string, pandas string, pid long, pool string"
touched = spark.range(1).mapInPandas(touch, columns)
row = touched.first()
release_workers(spark)
again = touched.first()
process = [one for one in psutil.Process().children() if one.name() == "java"][0]
system = getattr(spark.sparkContext._jvm, "java.lang.System")
seen = {
    "commands": process.cmdline(),
    "listens": [c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"],
    "session": os.getsid(process.pid) == process.pid,
    "worker": row.at, "pandas": row.pandas, "anew": again.pid != row.pid,
    "pool": row.pool,
    "ended worker": not psutil.pid_exists(row.pid),
    "revealed": [spark.conf.get("spark.mview.untold"), system.getProperty("my.password")],
    "authenticate": spark.conf.get("spark.authenticate"),
}
check_jvm()
process.send_signal(signal.SIGKILL)
began = time.monotonic()
try:
    with jvm_errors():
        spark.range(5).collect()
except SparkEndedError as error:
    seen["ended"] = str(error)
seen["noticed_s"] = time.monotonic() - began
print(json.dumps(seen))
"""


@pytest.mark.spark
@pytest.mark.days(3)  # a JVM of its own
def test_nobody_sees_a_secret_or_gets_in_and_its_end_is_told(tmp_path: Path) -> None:
    traps = tmp_path / "traps"
    traps.mkdir()
    (tmp_path / "events").mkdir()
    for name in ("pandas", "pyarrow", "mview"):
        (traps / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    store = tmp_path / 'Ann\'s "best" \\ store; & $HOME #1'
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(store)],
        cwd=traps, env=environment | {"PLANTED": SECRET}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout, done.stderr
    seen = json.loads(done.stdout)
    assert seen["revealed"] == [SECRET, SECRET]
    assert SECRET not in str(seen["commands"])
    assert "java" in str(seen["commands"])
    assert set(seen["listens"]) == {"::ffff:127.0.0.1"}
    assert seen["authenticate"] == "true"
    assert seen["session"]
    assert seen["worker"] == str(store / "logs")
    assert "site-packages" in seen["pandas"]
    assert seen["anew"]
    assert seen["pool"] == "system"
    assert seen["ended worker"]
    assert "killed by SIGKILL" in seen["ended"]
    assert "every published epoch stays" in seen["ended"]
    assert f"Its last words: {store}/logs/spark.out" in seen["ended"]
    assert done.stderr == ""
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("events" in str(file) for file in files)
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]


def test_options_are_quoted_for_java() -> None:
    assert _options_file(r"""-Da=1 "-Db=x y" '-Dc=say "hi"' -Dd=c:\\d""") == (
        '"-Da=1"\n"-Db=x y"\n"-Dc=say \\"hi\\""\n"-Dd=c:\\\\d"\n'
    )


class Ended:
    """A JVM that ends a moment after its connection."""

    def __init__(self, code: int | None) -> None:
        self.code, self.returncode = code, None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float) -> None:
        if self.code is None:
            raise subprocess.TimeoutExpired("java", seconds)
        self.returncode = self.code


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch):
    def end(code: int | None) -> None:
        process = Ended(code)
        monkeypatch.setattr(jvm, "_process", lambda: process)
        monkeypatch.setattr(jvm, "_answers", lambda: False)

    return end


@pytest.mark.parametrize(
    ("code", "how"), [(3, "exit code 3"), (-signal.SIGKILL, "SIGKILL"), (-200, "exit code -200")]
)
def test_what_fails_because_the_jvm_is_gone_blames_nobody_else(ended, code, how) -> None:
    ended(code)
    wrong = UserError("the changelogs cannot be read")
    wrong.__cause__ = ConnectionRefusedError()
    with pytest.raises(SparkEndedError, match=how), jvm_errors():
        raise wrong
    with pytest.raises(SparkEndedError, match=how):
        check_jvm()


def test_what_fails_beside_a_jvm_that_lives_is_told_as_it_is(ended) -> None:
    ended(None)
    check_jvm()
    for error in (UserError("the data"), ConnectionResetError()):
        with pytest.raises(type(error)), jvm_errors():
            raise error


def test_a_view_is_not_blamed_beside_a_jvm_that_is_gone(tmp_path: Path) -> None:
    """Whatever was made of its end on the way here."""

    class Gone:
        @property
        def sparkContext(self) -> object:
            raise ConnectionRefusedError

    error = RetryableError("a query failed on Spark")
    with pytest.raises(RetryableError):
        halting(error, "v", Store(tmp_path), Spark.of(cast(Any, Gone())))
    assert halting(error, "v", Store(tmp_path)) is error
