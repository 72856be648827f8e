"""Transactions over two tables are in one epoch or not at all: own logs, and Debezium's metadata.

Money moves while tables are loaded, while changes are followed, and while nobody reads; the run is
a process of its own, which is killed at any moment; its JVM is there for the next one.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from mview.secrets import reveal
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.chaos.warm import Order, Warm
from tests.e2e.bank import VIEWS, Bank, check_totals
from tests.integration.running import PATIENCE
from tests.seeds import daily, of_today
from tests.services.process import wait_until

pytestmark = [
    pytest.mark.service,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1200),
]

#: Milliseconds for which the lease of a run that was killed holds.
_LEASE_MS = 2_000


class ServerBank(Bank):
    def __init__(self, root, kind, server, database):
        super().__init__(root, daily())
        self.kind, self.server, self.database = kind, server, database

    def execute(self, statements):
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("begin")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("commit")

    @property
    def settings(self):
        settings = self.server.settings(self.database)
        # The drivers have the environment from when the first one of all was forked.
        secret = self.root / "secret"
        secret.write_text(reveal(settings["password"], "tests"))
        return {
            "connections": {"bank": {**settings, "password": f"${{file:{secret}}}"}},
            "changes": {"bank": {"source": self.kind, "T": "2s"}},
        }


class KafkaBank(ServerBank):
    """The same through Debezium: two topics, and that of the ends of transactions."""

    def __init__(self, *given, kafka):
        super().__init__(*given)
        self.kafka = kafka

    @property
    def settings(self):
        schema = "public" if self.kind == "postgresql" else self.database
        changes = {
            "source": "kafka",
            "format": "debezium",
            "T": "2s",
            "bootstrap_servers": self.kafka.bootstrap,
            "topic": f"{self.database}.{schema}.{{table}}",
            "heartbeat_topic": f"__debezium-heartbeat.{self.database}",
            "transaction_topic": f"{self.database}.transaction",
            "options": {"format.skipped.operations": "none"},
        }
        return {**super().settings, "changes": {"bank": changes}}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A JVM for the drivers, which are killed one after the other."""
    with Warm(tmp_path_factory.mktemp("warm") / "spark") as warm:
        yield warm


@pytest.mark.parametrize("kind", of_today(["postgresql", "mariadb"], 2))
def test_the_total_is_the_same_at_every_epoch(request, warm, kind, tmp_path):
    server = request.getfixturevalue(kind)
    with server.new_database() as database:
        bank = ServerBank(tmp_path, kind, server, database)
        bank.create()
        lives(bank, warm)


@pytest.mark.parametrize("kind", of_today(["mariadb", "postgresql"], 2))
def test_through_debezium(request, warm, kind, kafka, debezium, tmp_path):
    server = request.getfixturevalue(kind)
    with server.new_database() as database:
        bank = KafkaBank(tmp_path, kind, server, database, kafka=kafka)
        bank.create()
        settings = server.connector(database, "checking", "savings") | {
            "heartbeat.interval.ms": "200",
            "provide.transaction.metadata": "true",
            "skipped.operations": "none",
        }
        with debezium.connector(settings):
            while not bank.transfers or bank.random.random() < 0.9:
                bank.transfer()
            debezium.wait_for(f"{database}.transaction", 2)
            lives(bank, warm)


def lives(bank, warm):
    """Lives of a run that are ended at any moment, then one to the end; then look at all epochs."""
    # A transaction over all accounts has more changes than that.
    config, chance = bank.config(max_changes=50), random.Random(daily())
    log = ManifestLog(Store(config.store).manifests)

    def epochs():
        last = log.latest()
        return 0 if last is None else last.epoch

    built = []

    def are_there(goal, shown):
        """Whether there are so many epochs, and so many that show the views."""
        last = log.latest()
        if not built and last is not None and set(last.views) == set(VIEWS):
            built.extend(() if any(s.stale for s in last.views.values()) else (last.epoch,))
        return epochs() >= goal and (not shown or (built and epochs() >= built[0] + shown))

    for life in range(3):
        # The first one is killed in its load; the last one shows enough to compare.
        goal = epochs() + (3 if life == 0 else chance.randrange(6, 25))
        shown = 9 if life == 2 else 0
        with bank.busy(pause=0.2):
            run = warm.start(Order(bank.root, "live", _LEASE_MS), bank.root / f"said-{life}")
            try:
                wait_until(partial(are_there, goal, shown), "epochs", PATIENCE, run.check)
            finally:
                run.stop()
        for _ in range(30):
            bank.transfer()
    last = warm.start(Order(bank.root, "once", _LEASE_MS), bank.root / "said-last")
    assert last.end() == 0, last.said
    assert set(log.latest().views) == set(VIEWS)
    assert log.latest().cuts["bank"].whole
    assert check_totals(bank, config) > 8
