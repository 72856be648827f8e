"""The JVM of Spark: started without a secret in its command line, watched, and gone with us."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from mview.errors import RetryableError
from mview.files.modes import PRIVATE
from mview.java.classes import class_archive
from mview.secrets import is_telling

#: What the JVM's start itself needs, before there is a connection to tell it the rest.
_AT_START = (
    "spark.master", "spark.jars", "spark.files", "spark.archives", "spark.driver.", "spark.submit.",
    "spark.yarn.", "spark.kubernetes.", "spark.kerberos.",
    # Files are looked at already then, and what does so is kept.
    "spark.hadoop.fs.file.", "spark.hadoop.fs.permissions.",
)  # fmt: skip
_OPTIONS = "spark.driver.extraJavaOptions"
#: The raw output of the JVM, of which a process has one at the most.
_words = Path("spark.out")
#: Seconds in which the end of a JVM that does not answer is noted.
_NOTED_S = 5.0


class SparkEndedError(RetryableError):
    """The JVM has ended under a run."""


def start_jvm(settings: Mapping[str, str], hidden: set[str], logs: Path) -> SparkConf:
    """Start the JVM of this process; returns the settings to make the session with.

    Anybody on the machine can read a command line. On it are only the settings that the start
    itself needs, without those that are hidden; the others follow over the connection. Java's own
    options are in a file that only we can read, for as long as the start takes.

    The JVM has a session of its own: a signal to our process group, or a terminal that closes,
    ends it after us, not before. It ends when its standard input does, which is with us. It runs
    in `logs`, and its Python workers import nothing from where they were started. Files that it
    or its workers make are private.

    Args:
        settings: of Spark.
        hidden: keys of settings that hold secrets.
        logs: folder, also of its raw output: it prints warnings that no setting silences.

    Raises:
        PySparkRuntimeError: it did not start; `spark.out` says why.
    """
    global _words
    _words = logs / "spark.out"
    started = {key: settings[key] for key in settings if _is_for_start(key) and key not in hidden}
    # Of Python workers. Arrow's own allocator keeps more of what was freed: a worker that reads
    # chunks had 328 MB with it at the most, and 268 with the system's, for the same CPU.
    environment = {"PYTHONSAFEPATH": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    if settings["spark.master"].startswith("local"):
        # What takes no address from a setting, such as the UI.
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    said = settings.get(_OPTIONS, "")
    by_default = settings.get("spark.driver.defaultJavaOptions", "")
    with (
        tempfile.TemporaryDirectory(prefix="mview-") as private,
        class_archive(
            settings.get("spark.driver.extraClassPath", ""), f"{by_default} {said}"
        ) as archive,
    ):
        options = Path(private) / "java.options"
        _write_private(options, _options_file(shlex.join(archive.options) + " " + said))
        started[_OPTIONS] = f'"@{options}"'
        raw = os.open(_words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        popen = {"stdout": raw, "stderr": raw, "cwd": str(logs), "start_new_session": True}
        popen |= {"umask": PRIVATE, "pass_fds": archive.handles}
        try:
            with _environment(environment):
                conf = SparkConf(loadDefaults=False).setAll(list(started.items()))
                gateway = launch_gateway(conf, popen_kwargs=popen)  # type: ignore[no-untyped-call]
        finally:
            os.close(raw)
    SparkContext._ensure_initialized(gateway=gateway)
    rest = {key: value for key, value in settings.items() if key != _OPTIONS}
    return SparkConf(loadDefaults=False).setAll(list(rest.items()))


def _is_for_start(key: str) -> bool:
    return key.startswith(_AT_START) and not is_telling(key)


def _options_file(options: str) -> str:
    """Options as Java reads them from a file: one per line, in quotes."""
    escaped = (option.replace("\\", "\\\\").replace('"', '\\"') for option in shlex.split(options))
    return "".join(f'"{option}"\n' for option in escaped)


def _write_private(file: Path, text: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """More variables for the processes that are started in the block; the user's own stay."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _process() -> subprocess.Popen[bytes] | None:
    """The JVM that we started; None: there is none, or somebody else started it."""
    gateway = SparkContext._gateway
    return None if gateway is None else getattr(gateway, "proc", None)


def quiet_end(context: SparkContext) -> None:
    """Keep off the terminal what pyspark and py4j print of a JVM that is gone; they raise, too."""
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    server = context._accumulatorServer
    tell = server.handle_error

    def handle_error(request: Any, client: Any) -> None:
        if _answers():
            tell(request, client)

    server.handle_error = handle_error  # type: ignore[method-assign, assignment]


def check_jvm() -> None:
    """Raise when the JVM has ended; costs some microseconds.

    Raises:
        SparkEndedError: with how it ended.
    """
    process = _process()
    if process is not None and process.poll() is not None:
        raise _ended(process.returncode)


@contextmanager
def jvm_errors() -> Iterator[None]:
    """Blame the JVM for what fails in the block because it has ended, and nobody else.

    Raises:
        SparkEndedError: in the place of what Spark, Python's workers or a client then raise.
    """
    try:
        yield
    except SparkEndedError:
        raise
    except Exception as error:
        process = _process()
        if process is None:
            raise
        if not _answers():  # its end is noted a moment after what it brings about
            with suppress(subprocess.TimeoutExpired):
                process.wait(_NOTED_S)
        if process.poll() is None:
            raise
        raise _ended(process.returncode) from error


def _answers() -> bool:
    try:
        assert SparkContext._jvm is not None
        getattr(SparkContext._jvm, "java.lang.System").nanoTime()
    except Exception:
        return False
    return True


def _ended(code: int) -> SparkEndedError:
    how = f"exit code {code}"
    if code < 0:
        with suppress(ValueError):
            how = f"killed by {signal.Signals(-code).name}"
    return SparkEndedError(
        "Spark's Java process has ended",
        got=how,
        safe="every published epoch stays; the running one was not published",
        hint="run the same command again; if the system ends it for lack of memory, "
        f"lower spark.driver.memory or engine.memory. Its last words: {_words}",
    )
