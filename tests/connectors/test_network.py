"""Servers beyond this machine must prove who they are, or the user is warned."""

from __future__ import annotations

import ssl
from typing import Any

import pyarrow as pa
import pytest
from mview_connectors.changelogs.kafka.changelog import KafkaChangelog
from mview_connectors.databases.mysql import MysqlDatabase
from mview_connectors.databases.postgresql import PostgresqlDatabase
from mview_connectors.followers.clickhouse.follower import ClickhouseFollower, ClickhouseSettings
from mview_connectors.followers.files.follower import FilesFollower, FilesSettings
from mview_connectors.followers.iceberg.follower import IcebergFollower
from mview_connectors.followers.iceberg.settings import IcebergSettings
from mview_connectors.followers.kafka.follower import KafkaFollower, KafkaSettings
from mview_connectors.followers.sql.follower import SqlSettings
from mview_connectors.followers.sql.mysql import MysqlFollower
from mview_connectors.followers.sql.postgresql import PostgresqlFollower
from mview_connectors.followers.sql.sqlite import SqliteFollower
from mview_connectors.followers.starrocks.follower import StarrocksFollower, StarrocksSettings
from mview_connectors.formats.unified import UnifiedFormat

from mview.config import ChangesSettings, ConnectionSettings
from mview.errors import ConfigError
from mview.follower import FollowerSettings, FollowerTarget
from mview.schema import Column, TableSchema

LOCAL = ["localhost", "127.0.0.1", "127.8.8.8", "::1", "/run/postgresql", None]
REMOTE = ["db.example.org", "10.0.0.7", "localhost.example.org", "2001:db8::1"]


def settings(kind: str, host: str | None, /, **query: str) -> ConnectionSettings:
    return ConnectionSettings(name="shop", drivername=kind, host=host, database="d", query=query)


def mysql(host: str | None, /, **query: str) -> Any:
    return MysqlDatabase(settings("mysql+pymysql", host, **query))


def postgresql(host: str | None, /, **query: str) -> Any:
    return PostgresqlDatabase(settings("postgresql+psycopg", host, **query))


@pytest.mark.parametrize("host", REMOTE)
def test_remote_databases_are_verified_by_default(host: str) -> None:
    options = postgresql(host)._options()
    assert (options["sslmode"], options["sslrootcert"]) == ("verify-full", "system")
    own = postgresql(host, sslrootcert="/ca.pem")._options()
    assert own["sslmode"] == "verify-full"
    assert "sslrootcert" not in own
    context = mysql(host)._options()["ssl"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert mysql(host).caution() is None
    assert mysql(host, ssl_ca="/ca.pem").caution() is None
    assert postgresql(host).caution() is None
    assert postgresql(host, sslmode="verify-full").caution() is None


@pytest.mark.parametrize("host", LOCAL)
def test_this_machine_needs_no_certificate(host: str | None) -> None:
    assert "sslmode" not in postgresql(host)._options()
    assert "ssl" not in mysql(host)._options()
    assert postgresql(host, sslmode="disable").caution() is None
    assert mysql(host, ssl_disabled="true").caution() is None


@pytest.mark.parametrize("mode", ["disable", "prefer", "require", "verify-ca"])
def test_what_does_not_verify_is_said_loudly(mode: str) -> None:
    said = postgresql("db.example.org", sslmode=mode).caution()
    assert said.startswith("WARNING: connections.shop.query")
    assert mode in said
    for query in ({"ssl_disabled": "true"}, {"ssl_ca": "/ca", "ssl_check_hostname": "false"}):
        assert "may not be verified" in mysql("db.example.org", **query).caution()


@pytest.mark.parametrize("name", ["host", "hostaddr"])
def test_a_host_in_the_query_counts(name: str) -> None:
    assert postgresql(None, **{name: "10.0.0.7"})._options()["sslmode"] == "verify-full"
    assert postgresql("localhost", **{name: "127.0.0.1,10.0.0.7"})._is_remote()
    assert not postgresql("localhost,127.0.0.1", **{name: "127.0.0.1"})._is_remote()


def test_an_error_of_tls_is_no_server_that_is_away() -> None:
    assert not mysql("db")._is_passing(OSError("certificate verify failed"))
    assert not postgresql("db")._is_passing(OSError("server does not support SSL"))


@pytest.mark.parametrize("made", [mysql, postgresql])
def test_options_of_tls_are_told_for_a_configuration_and_for_a_url(made: Any) -> None:
    with pytest.raises(ConfigError) as told:
        made("db")._fail(OSError("certificate verify failed"), "connecting")
    assert told.value.hint is not None
    assert ("ssl_ca=" in told.value.hint) == (made is mysql)
    assert ("sslrootcert=" in told.value.hint) == (made is postgresql)
    assert told.value.hint.endswith(
        "(options stand under query in the configuration, behind ? in a URL)"
    )


@pytest.mark.parametrize(
    ("servers", "options", "said"),
    [
        ("localhost:9092,127.0.0.1:9093", {}, None),
        ("k.example.org:9092", {}, "is not encrypted"),
        ("localhost:9092,k.example.org:9092", {"security.protocol": "SASL_PLAINTEXT"},
         "is not encrypted"),
        ("k.example.org", {}, "is not encrypted"),
        ("localhost,[::1]:9092,::1,127.0.0.1", {}, None),
        ("[2001:db8::1]:9092", {}, "is not encrypted"),
        ("k.example.org:9092", {"security.protocol": "SASL_SSL"}, None),
        ("k.example.org:9092", {"security.protocol": "ssl"}, None),
        ("k.example.org:9092", {"security.protocol": "ssl",
         "enable.ssl.certificate.verification": "false"}, "is not verified"),
        ("k.example.org:9092", {"security.protocol": "ssl",
         "ssl.endpoint.identification.algorithm": "none"}, "is not verified"),
    ],
)  # fmt: skip
def test_kafka(servers: str, options: dict[str, str], said: str | None) -> None:
    section = ChangesSettings(
        connection="shop", source="kafka", format="unified", bootstrap_servers=servers,
        topic="{table}", options=options,
    )  # fmt: skip
    found = KafkaChangelog(section, UnifiedFormat({}), ["t"]).caution()
    assert found is None if said is None else said in str(found)


# --- sinks ------------------------------------------------------------------------------------


def sink(kind: Any, settings: FollowerSettings) -> Any:
    schema = TableSchema((Column("k", pa.int64(), nullable=False),), ("k",))
    return kind(FollowerTarget("v", "s", schema, settings, "store/v/s"))


def sql_sink(kind: Any, url: str) -> Any:
    return sink(kind, SqlSettings(type="sql", url=url))


def test_remote_sinks_are_verified_by_default() -> None:
    for place in ("db.example.org/d", "/d?host=db.example.org", "localhost/d?hostaddr=10.0.0.7"):
        follower = sql_sink(PostgresqlFollower, f"postgresql://u@{place}")
        assert follower.options()["sslmode"] == "verify-full"
        assert follower.caution() is None
    follower = sql_sink(MysqlFollower, "mysql://u@db.example.org/d")
    assert follower.options()["ssl"].check_hostname
    assert follower.caution() is None
    for place in ("localhost/d", "/d?host=/run/postgresql", "/d?host=localhost:5432"):
        assert "sslmode" not in sql_sink(PostgresqlFollower, f"postgresql://u@{place}").options()


@pytest.mark.parametrize(
    ("follower", "told"),
    [
        (sql_sink(PostgresqlFollower, "postgresql://u@db.example.org/?sslmode=allow"), "sslmode"),
        (sql_sink(PostgresqlFollower, "postgresql://u@localhost/d?sslmode=disable"), None),
        (sql_sink(MysqlFollower, "mysql://u@db.example.org/d?ssl_disabled=true"), "ssl_disabled"),
        (sql_sink(SqliteFollower, "sqlite:////tmp/x.db"), None),
        (sink(ClickhouseFollower, ClickhouseSettings(type="c", url="http://ch.example.org:8123")),
         "is not encrypted"),
        (sink(ClickhouseFollower, ClickhouseSettings(
            type="c", url="http://localhost:8123, https://ch.example.org")), None),
        (sink(StarrocksFollower, StarrocksSettings(
            type="s", url="https://fe1.example.org,http://fe2.example.org:8030", database="d")),
         "is not encrypted"),
        (sink(StarrocksFollower, StarrocksSettings(
            type="s", url="https://fe.example.org", database="d", plain_backends=True)),
         "without TLS"),
        (sink(StarrocksFollower, StarrocksSettings(
            type="s", url="http://localhost:8030, https://fe.example.org", database="d")), None),
        (sink(KafkaFollower, KafkaSettings(type="k", bootstrap_servers="k.example.org:9092")),
         "is not encrypted"),
        (sink(KafkaFollower, KafkaSettings(type="k", bootstrap_servers="localhost:9092")), None),
        (sink(IcebergFollower, IcebergSettings(
            type="i", warehouse="s3://b/w", catalog={"type": "rest", "uri": "http://c.example.org"})),
         "is not encrypted"),
        (sink(FilesFollower, FilesSettings(type="f", path="/tmp/x")), None),
    ],
)  # fmt: skip
def test_sinks_that_do_not_verify_are_said_loudly(follower: Any, told: str | None) -> None:
    said = follower.caution()
    assert said is None if told is None else told in said and said.startswith("WARNING: sinks.s")


def test_what_is_no_url_is_said_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINK_URL", "no url, but secret")
    follower = sql_sink(PostgresqlFollower, "${env:SINK_URL}")
    for call in (follower.caution, follower.create):
        with pytest.raises(ConfigError, match="no URL of a database") as refused:
            call()
        assert "secret" not in refused.value.render()
