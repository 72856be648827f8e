"""The Spark session of a pipeline: jars, Delta, and settings that suit small batches."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import IllegalArgumentException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from mview.config import Config
from mview.config.meaning import LEGACY, MEANING
from mview.errors import ConfigError, RetryableError, UserError
from mview.files.modes import PRIVATE
from mview.java import jars
from mview.java.classes import OPTION_VARIABLES
from mview.java.runtime import check_java
from mview.secrets import REFERENCE, TELLING, is_telling, reveal
from mview.session.jvm import quiet_end, start_jvm

_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_LOG4J = Path(__file__).with_name("log4j2.properties")
#: Spark 4.2 fails over a UNION ALL, as a mirror with a tail is one, where a correlated subquery
#: stands in what is selected: this rule takes the columns of the subquery for those of the union
#: (SPARK-59042). Columns that are not read are left out by another rule.
_EXCLUDED = "spark.sql.optimizer.excludedRules"
_FAILING_RULE = "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion"
#: Settings whose values add up: what the user gives comes after ours, not instead of it.
_JOINED = {
    "spark.jars": ",",
    "spark.driver.extraClassPath": ":",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.redaction.regex": "|",
    _EXCLUDED: ",",
}
#: Settings with options of Java, and the option that chooses its collector.
_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
#: Masters for which Spark makes the secret of its own connections by itself.
_OWN_SECRET = ("local", "yarn", "k8s://")
#: The text of a view is only what stands in it: no variables of the environment in its strings,
#: and no paths of files in the place of tables.
_CLOSED = {"spark.sql.variable.substitute": "false", "spark.sql.runSQLOnFiles": "false"}
#: They print the text and trace of each error that the caller is about to get anyway.
_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
#: Which Python the workers run; pyspark itself asks the environment.
_PYTHON = "spark.pyspark.python"
#: Seconds in which a worker that was killed is gone, at the most.
_GONE_S = 5.0
#: A process has one session, and several threads may ask for the first.
_starting = threading.Lock()


def spark_session(config: Config) -> SparkSession:
    """The Spark session of this process: a new one, or the running one if it can read Delta.

    Raises:
        ConfigError: Java is missing or wrong, or Spark refuses a setting.
        RetryableError: a jar cannot be fetched, or the cluster cannot be reached.
        UserError: this process has a Spark session without Delta.
    """
    with _starting:
        if SparkContext._active_spark_context is not None:
            return _adopted(SparkSession.builder.getOrCreate())
        return _new_session(config)


def cores_of(config: Config) -> int | None:
    """The tasks that a local Spark runs at once; None: a cluster's are known when it is there."""
    master = config.spark.master
    said = config.spark.conf.get("spark.default.parallelism")
    if said is not None or not master.startswith("local") or master.startswith("local-cluster"):
        return None
    return _cores(master)


def _new_session(config: Config) -> SparkSession:
    check_java()
    logs = config.store / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    near = jars.resolve("local") if config.spark.master.startswith("local") else []
    settings = session_settings(config, [*near, *jars.resolve()])
    _check_environment()
    _choose_python(settings)
    conf = _started(settings, _hidden(config.spark.conf), logs)
    for name in _NOISY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    session = _connect(conf, logs)
    quiet_end(session.sparkContext)
    _drop_legacy(session)
    if "spark.sql.shuffle.partitions" not in settings:
        # A cluster: only now is it known how many cores there are.
        cores = session.sparkContext.defaultParallelism
        session.conf.set("spark.sql.shuffle.partitions", str(cores))
    return session


def session_settings(config: Config, jar_files: list[Path]) -> dict[str, str]:
    """All Spark settings: ours, then the local ones for `local[…]`, then the user's on top."""
    settings = {
        "spark.app.name": "mview",
        "spark.master": config.spark.master,
        "spark.sql.extensions": _DELTA,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(config.store / "warehouse"),
        "spark.redaction.regex": _redacted(_hidden(config.spark.conf)),
        # A bit that was flipped on the disk is an error, not another row.
        "spark.hadoop.parquet.page.write-checksum.enabled": "true",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        _EXCLUDED: _FAILING_RULE,
        # Hadoop sets the modes of some files itself.
        "spark.hadoop.fs.permissions.umask-mode": f"{PRIVATE:03o}",
        # The manifest is the truth; Spark's checkpoint only has to survive the query's own restart.
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Views are built beside the epochs: these must not wait until a build is over.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Errors of Python code inside a stream pass a deep regular expression on the JVM side:
        # the default stack of 1 MB overflows there and hides the error.
        "spark.driver.extraJavaOptions": shlex.join(
            [
                "-Xss16m",
                f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
                f"-Dmview.logs={config.store / 'logs'}",
            ]
        ),
    }
    if config.spark.master.startswith("local"):
        settings |= _local_settings(config.spark.master)
        settings["spark.driver.extraJavaOptions"] += _heap_options(config)
    if config.spark.master.startswith("local") and not _is_small_cluster(config.spark.master):
        # Executors are in the driver. What comes by `spark.jars` has a loader of its own, and no
        # archive holds its classes (mview/java/classes.py).
        settings["spark.driver.extraClassPath"] = ":".join(map(str, jar_files))
    else:
        settings["spark.jars"] = ",".join(map(str, jar_files))
    if _makes_its_secret(config.spark.master):
        settings["spark.authenticate"] = "true"
    for key, text in config.spark.conf.items():
        value = reveal(text, f"spark.conf.{key}")
        joins = key in _JOINED and key in settings
        settings[key] = settings[key] + _JOINED[key] + value if joins else value
    return {**settings, **MEANING, **_CLOSED}


def _hidden(conf: Mapping[str, str]) -> set[str]:
    """Keys of settings whose values nobody may see."""
    return {key for key, text in conf.items() if is_telling(key) or REFERENCE.search(text)}


def _redacted(hidden: set[str]) -> str:
    """Which settings Spark leaves out of its event log and its UI, as a regular expression."""
    return "|".join([f"(?i){TELLING}", *(rf"^\Q{key}\E$" for key in sorted(hidden))])


def _makes_its_secret(master: str) -> bool:
    return master.startswith(_OWN_SECRET) and not _is_small_cluster(master)


def _is_small_cluster(master: str) -> bool:
    """Whether executors are processes of their own beside the driver, as tests of Spark have it."""
    return master.startswith("local-cluster")


def _local_settings(master: str) -> dict[str, str]:
    return {
        # A local file system in Java alone: Hadoop's forks a `chmod` for every file that it makes,
        # of which a micro-batch makes about ten, in the checkpoint.
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Rows are read, looked up and kept outside of it; a build sorts on disk what is more.
        "spark.driver.memory": "2g",
        # There is no network, so that silence says nothing but that the machine is busy, or slept.
        "spark.network.timeout": "3600s",
        "spark.sql.broadcastTimeout": "3600",
        # Each shuffle partition of a stateful batch costs a task and a state file per batch: with 8
        # of them a small batch took 4.6 times as long as with 1.
        "spark.sql.shuffle.partitions": str(min(_cores(master), 4)),
        "spark.databricks.delta.snapshotPartitions": "1",
        # Renames files itself; the default goes through a slower layer for remote file systems.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
    }


def _heap_options(config: Config) -> str:
    """Have the heap be little larger than what is in it, and given back when `release_heap` asks.

    By its own measure Java lets it grow to its limit before it tidies up, and keeps it. On up to
    two cores one thread that collects takes less of both, memory and processor.
    """
    options = " -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30 -XX:-ShrinkHeapInSteps"
    conf = config.spark.conf
    said = [reveal(conf.get(key, ""), f"spark.conf.{key}") for key in _JAVA_OPTIONS]
    said += [os.environ.get(name, "") for name in OPTION_VARIABLES]
    has_collector = any(_COLLECTOR.search(text) for text in said)  # Java refuses two of them
    if _cores(config.spark.master) <= 2 and not has_collector:
        options += " -XX:+UseSerialGC"
    return options


def release_heap(session: SparkSession) -> None:
    """Have the JVM give back memory that it does not need now; takes some tenths of a second."""
    assert session.sparkContext._jvm is not None
    getattr(session.sparkContext._jvm, "java.lang.System").gc()


def release_workers(session: SparkSession) -> None:
    """End Spark's Python workers: each has 150 to 300 MB, and Spark keeps idle ones for a minute.

    They come again when they are needed. To be called when no task runs that needs one. Executors
    elsewhere keep theirs.
    """
    assert session.sparkContext._jvm is not None
    handle = getattr(session.sparkContext._jvm, "java.lang.ProcessHandle")
    # Only what daemons have forked: a daemon that is gone fails the next task that needs one.
    workers = [
        worker
        for daemon in handle.current().children().toArray()
        for worker in daemon.children().toArray()
    ]
    for worker in workers:
        worker.destroyForcibly()
    # Spark looks whether an idle worker is alive before it gives it a task.
    until = time.monotonic() + _GONE_S
    while any(worker.isAlive() for worker in workers) and time.monotonic() < until:
        time.sleep(0.01)


def _cores(master: str) -> int:
    """Cores of a master such as `local`, `local[4]`, `local[*,2]`."""
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    if inside == "*":
        return os.cpu_count() or 1
    return int(inside) if inside.isdigit() else 1


def _adopted(session: SparkSession) -> SparkSession:
    if _DELTA not in (session.conf.get("spark.sql.extensions", None) or ""):
        raise UserError(
            "this process already has a Spark session, and it cannot read Delta tables",
            hint="call mview before Spark is used, or stop that session: spark.stop()",
        )
    excluded = session.conf.get(_EXCLUDED, None) or _FAILING_RULE
    if _FAILING_RULE not in excluded:
        excluded = f"{_FAILING_RULE},{excluded}"
    wanted = {**MEANING, **_CLOSED, _EXCLUDED: excluded}
    if all(session.conf.get(n, None) == wanted[n] for n in wanted) and not _legacy(session):
        return session
    # The settings of whoever has made it are left as they are.
    own = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
    for name, value in wanted.items():
        own.conf.set(name, value)
    _drop_legacy(own)
    return own


def _legacy(session: SparkSession) -> list[str]:
    return [name for name in session.conf.getAll if name.startswith(LEGACY)]


def _drop_legacy(session: SparkSession) -> None:
    """Unset what Spark's defaults say of older versions."""
    for name in _legacy(session):
        session.conf.unset(name)


def _check_environment() -> None:
    """Refuse variables by which pyspark fails with riddles: of another Spark, or of no start."""
    home = os.environ.get("SPARK_HOME")
    core = f"spark-core_2.13-{pyspark.__version__}.jar"
    if home and not (Path(home) / "jars" / core).is_file():
        raise ConfigError(
            "SPARK_HOME is not the Spark that mview works with",
            where=home,
            allowed=f"Spark {pyspark.__version__}",
            hint="unset SPARK_HOME: pyspark brings its own Spark",
        )
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    if arguments.split()[-1:] != ["pyspark-shell"]:
        raise ConfigError(
            "PYSPARK_SUBMIT_ARGS does not say what pyspark is to start",
            where="the environment",
            allowed="arguments of spark-submit, and pyspark-shell after them",
            hint="unset PYSPARK_SUBMIT_ARGS, or end it with pyspark-shell; settings of Spark can "
            "stand under 'spark:' in the configuration",
        )


def _choose_python(settings: dict[str, str]) -> None:
    """Run Python workers by this interpreter: another one may lack the libraries or differ."""
    chosen = settings.pop(_PYTHON, None)
    if chosen is None and not settings["spark.master"].startswith("local"):
        # On a cluster the path of the interpreter may differ: the environment may say which.
        chosen = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = chosen or sys.executable


def _started(settings: dict[str, str], hidden: set[str], logs: Path) -> SparkConf:
    """The settings for the session of a JVM that runs: a new one, or the one of this process."""
    if SparkContext._gateway is not None:
        _check_running_jvm()
        return SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        return start_jvm(settings, hidden, logs)
    except PySparkRuntimeError:
        raw = logs / "spark.out"
        raise _refused(str(raw), raw.read_text(errors="replace")) from None


def _check_running_jvm() -> None:
    """A JVM that somebody else started and used may lack our jars; it cannot be given any."""
    assert SparkContext._jvm is not None
    threads = getattr(SparkContext._jvm, "java.lang.Thread")
    try:
        threads.currentThread().getContextClassLoader().loadClass(_DELTA)
    except Py4JJavaError:
        raise UserError(
            "Spark was used in this process before mview, without Delta",
            hint="restart Python (or the notebook's kernel) and call mview first",
        ) from None


#: How lines begin that are no reason: of stack traces, and of what the environment gave to Java.
_BESIDE = ("\t", "WARN", "Picked up ", "NOTE: Picked up ")


def _reason(output: str) -> str | None:
    """The innermost cause of a Java error, else the first lines; never the stack trace."""
    lines = [line for line in output.splitlines() if line and not line.startswith(_BESIDE)]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else " ".join(lines[:3]) or None


def _connect(conf: SparkConf, logs: Path) -> SparkSession:
    master = conf.get("spark.master")
    try:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        # Spark reads its SQL settings at the first use: have it refuse them here.
        session.conf.get("spark.sql.session.timeZone")
        return session
    except IllegalArgumentException as error:
        raise _refused(master, str(error)) from None
    except Py4JJavaError as error:
        java = error.java_exception
        if java.getClass().getName() == "java.lang.IllegalStateException":
            # The context stopped itself while it was being made: no master answered.
            raise RetryableError(
                "the Spark cluster cannot be reached",
                where=master,
                hint=f"is its master running? details: {logs / 'spark.log'}",
            ) from None
        raise _refused(master, java.toString()) from None


def _refused(where: str | None, said: str) -> ConfigError:
    return ConfigError(
        "Spark does not start",
        where=where,
        got=_reason(said),
        hint="check 'spark:' in the configuration",
    )
