"""The Spark session: what it sets, what it leaves to the user, and what it can do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import AnalysisException, ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mview.config import Config
from mview.config.meaning import MEANING
from mview.errors import ConfigError, UserError
from mview.session import spark as module
from mview.session.spark import session_settings, spark_session

MakeConfig = Callable[..., Config]


def settings(make_config: MakeConfig, master: str, **conf: str) -> dict[str, str]:
    config = make_config(spark={"master": master, "conf": conf})
    return session_settings(config, [Path("/jars/a.jar")])


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", "1"), ("local[2]", "2"), ("local[3,2]", "3"), ("local[64]", "4")],
)
def test_local_master_gets_few_shuffle_partitions(make_config, master, partitions):
    assert settings(make_config, master)["spark.sql.shuffle.partitions"] == partitions


def test_a_cluster_keeps_its_own_network_and_partitions(make_config):
    cluster = settings(make_config, "spark://host:7077")
    assert "spark.driver.bindAddress" not in cluster
    assert "spark.sql.shuffle.partitions" not in cluster
    assert "spark.sql.streaming.checkpointFileManagerClass" not in cluster


def test_user_settings_win_and_lists_are_joined(make_config):
    got = settings(
        make_config,
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": "7",
            "spark.driver.extraClassPath": "/mine.jar",
            "spark.driver.extraJavaOptions": "-Dmine=1",
            "spark.sql.optimizer.excludedRules": "a.Rule",
        },
    )
    assert got["spark.sql.optimizer.excludedRules"].endswith(".PushProjectionThroughUnion,a.Rule")
    assert got["spark.sql.shuffle.partitions"] == "7"
    assert got["spark.driver.extraClassPath"] == "/jars/a.jar:/mine.jar"
    assert "spark.jars" not in got
    cluster = settings(make_config, "spark://host:7077", **{"spark.jars": "/mine.jar"})
    assert cluster["spark.jars"] == "/jars/a.jar,/mine.jar"
    assert got["spark.driver.extraJavaOptions"].startswith("-Xss16m ")
    assert got["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")


@pytest.mark.parametrize(
    ("master", "option", "collects_alone"),
    [
        ("local[2]", "-Dmine=1", True),
        ("local[3]", "-Dmine=1", False),
        ("local[2]", "-XX:+UseG1GC", False),
        ("spark://host:7077", "-Dmine=1", False),
    ],
)
def test_two_cores_get_a_simple_collector_unless_the_user_has_one(
    make_config, monkeypatch, master, option, collects_alone
):
    def options(**conf: str) -> str:
        return settings(make_config, master, **conf)["spark.driver.extraJavaOptions"]

    def is_set(options: str) -> bool:
        return "-XX:+UseSerialGC" in options

    assert is_set(options(**{"spark.driver.extraJavaOptions": option})) == collects_alone
    assert is_set(options(**{"spark.driver.defaultJavaOptions": option})) == collects_alone
    monkeypatch.setenv("GIVEN", option)
    given = {"spark.driver.extraJavaOptions": "${env:GIVEN}"}
    assert is_set(options(**given)) == collects_alone
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", option)
    assert is_set(options()) == collects_alone


@pytest.mark.parametrize(
    ("master", "key"),
    [("local[2]", "spark.jars"), ("spark://host:7077", "spark.driver.extraClassPath")],
)
def test_jars_of_a_user_where_ours_come_by_another_setting(make_config, master, key):
    assert settings(make_config, master, **{key: "/mine.jar"})[key] == "/mine.jar"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("spark.sql.session.timeZone", "Europe/Berlin", "it is always UTC.*from_utc_timestamp"),
        ("spark.sql.ansi.enabled", "false", "it is always true.*try_cast"),
        ("spark.sql.caseSensitive", "${env:CASE}", "it is always false"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY", "an older Spark; leave it out"),
    ],
)
def test_a_setting_may_not_change_what_a_query_means(make_config, key, value, told):
    with pytest.raises(ValueError, match=told):
        settings(make_config, "local", **{key: value})


def test_what_a_query_means_is_said_whatever_spark_finds_elsewhere(make_config):
    same = {"spark.sql.ansi.enabled": "TRUE", "spark.sql.session.timeZone": "UTC"}
    for got in (settings(make_config, "local"), settings(make_config, "spark://h:1", **same)):
        assert got["spark.sql.ansi.enabled"] == "true"
        assert MEANING.items() <= got.items()


def test_a_secret_in_a_user_setting_is_read(make_config, monkeypatch):
    conf = {"spark.hadoop.fs.s3a.secret.key": "${env:S3_KEY}"}
    monkeypatch.setenv("S3_KEY", "sesame")
    assert settings(make_config, "local", **conf)["spark.hadoop.fs.s3a.secret.key"] == "sesame"
    monkeypatch.delenv("S3_KEY")
    with pytest.raises(ConfigError, match="S3_KEY") as caught:
        settings(make_config, "local", **conf)
    assert caught.value.where == "spark.conf.spark.hadoop.fs.s3a.secret.key"


def test_another_spark_home_is_refused(config, monkeypatch, tmp_path):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="SPARK_HOME is not the Spark"):
        spark_session(config)


@pytest.mark.parametrize("given", ["", "--jars /a.jar", "pyspark-shell --jars /a.jar"])
def test_arguments_that_start_nothing_are_told_as_what_they_are(config, monkeypatch, given):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    with pytest.raises(ConfigError, match="PYSPARK_SUBMIT_ARGS does not say"):
        spark_session(config)


PROGRAM = """
import sys
from mview.config import Config
from mview.errors import ConfigError
from mview.session.spark import spark_session

folder, key, value = sys.argv[1:]
section = {"master": "local[1]", "conf": {key: value}}
try:
    spark_session(Config(path=f"{folder}/mview.yml", store=f"{folder}/my store", spark=section))
except ConfigError as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("key", "value", "reason", "log"),
    [
        ("spark.driver.memory", "banana", "Invalid maximum heap size: -Xmxbanana", "spark.out"),
        pytest.param(
            *("spark.driver.port", "1", "startPort should be between 1024", "spark.log"),
            marks=pytest.mark.days(3),  # here a JVM starts first
        ),
    ],
)
def test_a_refused_setting_is_one_error_with_details_in_the_store(
    key, value, reason, log, tmp_path
):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), key, value]
    # Java says so first where the environment has options for it, as on many servers.
    options = {"JAVA_TOOL_OPTIONS": "-Da=1", "JDK_JAVA_OPTIONS": "-Db=1"}
    environment = {**os.environ, **options}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("Spark does not start\n")
    assert reason in done.stdout
    assert "Picked up" not in done.stdout
    assert done.stderr == ""
    assert reason in (tmp_path / "my store" / "logs" / log).read_text()


@pytest.mark.spark
def test_session_writes_and_reads_delta(spark: SparkSession, tmp_path):
    path = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(path)
    spark.range(3, 5).write.format("delta").mode("append").save(path)
    assert sorted(r.id for r in spark.read.format("delta").load(path).collect()) == [0, 1, 2, 3, 4]


@pytest.mark.spark
def test_time_zone_is_utc_and_ansi_is_on(spark: SparkSession):
    row = spark.sql("SELECT CAST(TIMESTAMP'1970-01-01 00:00:00' AS BIGINT) AS s").first()
    assert row is not None
    assert row.s == 0
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


@pytest.mark.spark
def test_files_are_made_by_java_alone_and_private(spark: SparkSession):
    found = spark.sparkContext._jsc.hadoopConfiguration()
    files = spark.sparkContext._jvm.org.apache.hadoop.fs.FileSystem.getLocal(found)
    used = spark.sparkContext._jvm.org.apache.hadoop.fs.FileSystem.get(files.getUri(), found)
    assert used.getClass().getSimpleName() == "BareLocalFileSystem"
    assert used.getConf().get("fs.permissions.umask-mode") == "077"


def test_workers_run_the_same_python(spark: SparkSession):
    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [sys.executable]})

    rows = spark.range(1).repartition(1).mapInArrow(executable, "path string").collect()
    assert [row.path for row in rows] == [sys.executable]


@pytest.mark.spark
def test_a_running_session_is_used_again(spark: SparkSession, config: Config):
    assert spark_session(config) is spark


@pytest.mark.spark
def test_of_a_running_session_the_settings_are_its_own(spark: SparkSession, config: Config):
    other = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.ansi.enabled": "false"}
    before = {name: str(spark.conf.get(name)) for name in other}
    rules = "spark.sql.optimizer.excludedRules"
    before[rules] = str(spark.conf.get(rules))
    other |= {"spark.sql.legacy.timeParserPolicy": "LEGACY", rules: "a.Rule"}
    sql = "SELECT hour(CAST('2024-07-01 00:00:00+00' AS timestamp)) AS h"
    try:
        for name, value in other.items():
            spark.conf.set(name, value)
        ours = spark_session(config)
        assert ours is not spark
        assert ours.sql(sql).first() == (0,)
        assert spark.sql(sql).first() == (2,)
        with pytest.raises(ArithmeticException):
            ours.sql("SELECT 1 / 0 AS x").first()
        assert spark.sql("SELECT 1 / 0 AS x").first() == (None,)
        assert not [name for name in ours.conf.getAll if "legacy" in name]
        assert str(ours.conf.get(rules)).endswith(".PushProjectionThroughUnion,a.Rule")
        assert all(spark.conf.get(name) == value for name, value in other.items())
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
        for name, text in before.items():
            spark.conf.set(name, text)
    assert spark_session(config) is spark


@pytest.mark.spark
def test_a_running_session_without_delta_is_refused(spark: SparkSession, config, monkeypatch):
    monkeypatch.setattr(module, "_DELTA", "an.extension.that.is.not.there")
    with pytest.raises(UserError, match="cannot read Delta"):
        spark_session(config)


@pytest.mark.spark
def test_a_running_jvm_without_delta_is_refused(spark: SparkSession, config, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(module, "_DELTA", "an.extension.that.is.not.there")
    with pytest.raises(UserError, match="before mview, without Delta"):
        spark_session(config)


@pytest.mark.spark
def test_spark_says_nothing_on_the_terminal_but_logs_to_the_store(spark: SparkSession, capfd):
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        spark.range(1).select(F.expr("id / 0")).collect()
    said = capfd.readouterr()
    assert said.err == ""
    assert said.out == ""
    logs = spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    assert "DIVIDE_BY_ZERO" in (Path(logs).parent / "logs" / "spark.log").read_text()


@pytest.mark.spark
def test_a_text_reaches_neither_the_environment_nor_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    (text,) = spark.sql("SELECT '${env:HOME}' AS x").collect()[0]
    assert text == "${env:HOME}"
    spark.range(1).write.parquet(str(tmp_path / "t"))
    with pytest.raises(AnalysisException, match=r"NOT_FOUND|UNSUPPORTED"):
        spark.sql(f"SELECT * FROM parquet.`{tmp_path / 't'}`")
