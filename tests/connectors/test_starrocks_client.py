"""The vendor's own client against the conformance server: so that the server is not only ours.

`starrocks-stream-load-sdk` 1.0 is what StarRocks' connectors for Flink, Spark and Kafka load with.
It runs in a Java of its own and is called from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.starrocks.follower import StarrocksFollower, StarrocksSettings
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from mview.follower import FollowerTarget, State, Step
from mview.java.jars import resolve
from mview.java.runtime import find_java
from mview.testing.contract import SCHEMA, World, delta_of
from tests.connectors.test_followers_starrocks import StarrocksHarness
from tests.services.fixtures import running
from tests.services.kafka import LOCK
from tests.services.starrocks import StarrocksServer, drop, says

pytestmark = pytest.mark.service

_LABELS = count(1)


class JavaProcess:
    """A Java with the client; ends with this process."""

    def __init__(self, folder: Path) -> None:
        jars = ":".join(str(jar) for jar in resolve("starrocks", LOCK))
        port, token = launch_gateway(
            classpath=jars,
            javaopts=["-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"],
            java_path=str(find_java()),
            die_on_exit=True,
            enable_auth=True,
        )
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token)
        )

    def stop(self) -> None:
        """End it."""
        self.gateway.shutdown()


@pytest.fixture(scope="module")
def java() -> Iterator[JavaGateway]:
    with running("the client of StarRocks", JavaProcess) as process:
        yield process.gateway


class Client:
    """The vendor's client for one table.

    Args:
        java: where it runs.
        server: the conformance server.
        database: of the table.
        table: the table.
    """

    def __init__(
        self, java: JavaGateway, server: StarrocksServer, database: str, table: str
    ) -> None:
        self._java, self._place = java, (database, table)
        sdk = java.jvm.com.starrocks.data.load.stream
        self._sdk = sdk
        user, password = server.credentials
        of_table = (
            sdk.properties.StreamLoadTableProperties.builder()
            .database(database)
            .table(table)
            .streamLoadDataFormat(sdk.StreamLoadDataFormat.JSON)
            .addProperty("format", "json")
            .addProperty("strip_outer_array", "true")
            .build()
        )
        urls = java.new_array(java.jvm.String, 1)
        urls[0] = server.url.removeprefix("http://")
        properties = (
            sdk.properties.StreamLoadProperties.builder()
            .loadUrls(urls)
            .username(user)
            .password(password)
            .version("3.5.0")
            .enableTransaction()
            .labelPrefix(f"client-{next(_LABELS)}-")
            .defaultTableProperties(of_table)
            .ioThreadCount(1)
            .scanningFrequency(50)
            .socketTimeout(5000)
            .build()
        )
        self.manager = sdk.v2.StreamLoadManagerV2(properties, False)
        self.manager.init()

    def load(self, *rows: str) -> Any:
        """Send rows in a transaction; returns the snapshot that is prepared and committed."""
        texts = self._java.new_array(self._java.jvm.String, len(rows))
        for number, row in enumerate(rows):
            texts[number] = row
        self.manager.write(None, *self._place, texts)
        self.manager.flush()
        return self.manager.snapshot()

    def commit_label(self, label: str) -> bool:
        """Commit a transaction of anybody's by its label."""
        snapshot = getattr(self._sdk, "StreamLoadSnapshot$Transaction")(*self._place, label)
        done: bool = self.manager.getStreamLoader().commit(snapshot)
        return done


@contextmanager
def client_of(
    java: JavaGateway, server: StarrocksServer, table: str = "t"
) -> Iterator[tuple[Client, str]]:
    """A client of a fresh table."""
    with server.new_database() as database:
        server.execute(
            f"CREATE TABLE `{database}`.`{table}` (k BIGINT NOT NULL, g VARCHAR(99) NULL, "
            "amount DECIMAL(38, 10) NULL) PRIMARY KEY (k) DISTRIBUTED BY HASH(k)"
        )
        client = Client(java, server, database, table)
        try:
            yield client, database
        finally:
            client.manager.close()


ROWS = (
    '{"k": 1, "g": "a", "amount": "9999999999999999999999999999.9999999999", "__op": 0}',
    '{"k": 2, "g": "NULL", "amount": null, "__op": 0}',
    '{"k": 3, "g": null, "amount": "-0.0000000001", "__op": 0}',
)


def test_a_transaction_of_the_client_is_seen_when_it_is_committed(
    java: JavaGateway, starrocks: StarrocksServer
) -> None:
    with client_of(java, starrocks) as (client, database):
        snapshot = client.load(*ROWS)
        label = snapshot.getTransactions()[0].getLabel()
        assert starrocks.state(database, label) == "PREPARE"
        assert client.manager.prepare(snapshot)
        assert starrocks.state(database, label) == "PREPARED"
        shown = f"SELECT k, g, amount FROM `{database}`.t ORDER BY k"
        assert starrocks.execute(shown) == []
        assert client.manager.commit(snapshot)
        assert starrocks.state(database, label) == "VISIBLE"
        assert starrocks.execute(shown) == [
            ("1", "a", "9999999999999999999999999999.9999999999"),
            ("2", "NULL", None),
            ("3", None, "-0.0000000001"),
        ]
        snapshot = client.load('{"k": 1, "__op": 1}', '{"k": 2, "g": "b", "__op": 0}')
        assert client.manager.prepare(snapshot)
        assert client.manager.commit(snapshot)
        assert [row[:2] for row in starrocks.execute(shown)] == [("2", "b"), ("3", None)]
        assert client.manager.getException() is None


@pytest.mark.parametrize("documented", [False, True])
def test_the_client_understands_answers_that_do_not_decide(
    java: JavaGateway, starrocks: StarrocksServer, documented: bool
) -> None:
    """It asks for the label, as we do."""
    starrocks.documented = documented
    with client_of(java, starrocks) as (client, database):
        snapshot = client.load(*ROWS)
        starrocks.fault("prepare", "after", says("TXN_NOT_EXISTS", "TXN_NOT_EXISTS"))
        assert client.manager.prepare(snapshot)
        label = snapshot.getTransactions()[0].getLabel()
        assert starrocks.state(database, label) == "PREPARED"
        starrocks.fault("commit", "after", says("FAILED", "publish timeout"))
        assert client.manager.commit(snapshot)
        assert client.commit_label(label), "a second commit is no error"
        assert starrocks.execute(f"SELECT count(*) FROM `{database}`.t") == [("3",)]
        assert not starrocks.faults
    starrocks.documented = False


def test_what_the_client_takes_back_is_not_there(
    java: JavaGateway, starrocks: StarrocksServer
) -> None:
    with client_of(java, starrocks) as (client, database):
        for is_prepared in (False, True):
            snapshot = client.load(*ROWS)
            label = snapshot.getTransactions()[0].getLabel()
            assert not is_prepared or client.manager.prepare(snapshot)
            assert client.manager.abort(snapshot)
            assert starrocks.state(database, label) == "ABORTED"
        assert starrocks.execute(f"SELECT count(*) FROM `{database}`.t") == [("0",)]


def test_the_client_can_commit_what_we_have_prepared(
    java: JavaGateway, starrocks: StarrocksServer, tmp_path: Path
) -> None:
    with starrocks.new_database() as database:
        world = World(StarrocksHarness(starrocks, database), tmp_path)
        world.view.publish([world.row(n) for n in range(3)])
        world.sync()
        settings = StarrocksSettings(**starrocks.settings(database), table="t")
        target = FollowerTarget("v", "s", SCHEMA, settings, "store/v/s", 9)
        follower = StarrocksFollower(target)
        step = Step("theirs", world.view.epoch + 1, world.view.epoch, 1)
        token = follower.stage(step, delta_of(target, [(None, world.row(77))]))
        client = Client(java, starrocks, database, token["table"])
        starrocks.fault("commit", "after", drop)
        # Its HTTP client asks again by itself: a second commit has to be harmless.
        assert client.commit_label(follower._label(step))
        assert not starrocks.faults
        assert follower.state(step, token) is State.COMMITTED
        follower.commit(token)
        assert sorted(follower.read().read_all()["k"].to_pylist()) == [0, 1, 2, 77]
        follower.close()
        client.manager.close()
        world.close()
