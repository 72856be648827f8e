"""Processes that follow a store are killed at any moment: readers see published epochs, whole."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from mview.catalog.definitions import digest_of, save_definition
from mview.catalog.followers import open_follower
from mview.errors import RetryableError
from mview.plan.definition import parse_view
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import TableState
from tests.follow.child import config_of
from tests.follow.test_source import published
from tests.patience import wait_for
from tests.seeds import daily
from tests.store.mirrors import SCHEMA, MirrorDriver

#: Kills; a longer walk is asked for by the environment.
KILLS = int(os.environ.get("MVIEW_KILLS", "4"))

#: Seconds.
PATIENCE = 120


class Place(Protocol):
    """The sink's table, as another program reads it."""

    def seen(self) -> tuple[int | None, Counter[Any]]:
        """The epoch that the mark says, and the rows, of one moment."""
        ...


class SqlitePlace:
    """A file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def seen(self) -> tuple[int | None, Counter[Any]]:
        """In one transaction."""
        connection = sqlite3.connect(self.file, timeout=PATIENCE, isolation_level=None)
        try:
            connection.execute("BEGIN")
            marks = connection.execute("SELECT epoch FROM mview_marks").fetchall()
            rows = Counter(connection.execute("SELECT v, id, part, n FROM v"))
            return (marks[0][0] if marks else None), rows
        except sqlite3.OperationalError:
            return None, Counter()
        finally:
            connection.close()


class DeltaPlace:
    """A folder with a Delta table, as delta-rs reads it."""

    def __init__(self, folder: Path, owner: str) -> None:
        self.folder, self.owner = folder, owner

    def seen(self) -> tuple[int | None, Counter[Any]]:
        """Of one version."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            return None, Counter()
        table = DeltaTable(self.folder)
        epoch = table.transaction_version(self.owner)
        found = QueryBuilder().register("t", table).execute("SELECT v, id, part, n FROM t")
        rows = zip(*(column.to_pylist() for column in pa.table(found).columns), strict=True)
        return (None if epoch in (None, -1) else epoch), Counter(rows)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sink", ["sqlite", pytest.param("delta", marks=pytest.mark.long)])
def test_killed_at_any_moment(tmp_path: Path, sink: str) -> None:
    """Also beside maintenance, which takes turns with the process, and when changes are gone."""
    chance = random.Random(daily(77))
    config = config_of(tmp_path, sink)
    store = Store(config.store)
    claim_store(store.root)
    text = "CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1"
    definition = parse_view(text, "v")
    save_definition(store, definition)
    log = ManifestLog(store.manifests)
    place: Place = SqlitePlace(tmp_path / "sink.db")
    if sink == "delta":
        place = DeltaPlace(tmp_path / "lake" / "v", f"{store.id}/v/s")
    contents: dict[int, Counter[Any]] = {}

    class Publisher(MirrorDriver):
        def publish(self, state: TableState) -> None:
            super().publish(state)
            contents[self.epoch] = Counter(self.truth.values())
            manifest = published(self, self.epoch)
            view = replace(manifest.views["v"], definition=digest_of(definition))
            log.publish(replace(manifest, views={"v": view}))

    driver = Publisher(store.mirror("v"), chance.randrange(1 << 30), chunks=0)

    def publish() -> None:
        driver.publish(driver.epoch_once())

    def maintain(token: int) -> None:
        follower, _ = open_follower(config, store, definition, "s", SCHEMA, token)
        with suppress(RetryableError):  # steps come between whenever it looks
            follower.maintain(thorough=True)
        follower.close()

    publish()
    seen: set[int] = set()
    for token in range(1, KILLS + 2):
        command = [sys.executable, "-m", "tests.follow.child", str(tmp_path), str(token), sink]
        process = subprocess.Popen(command)
        try:
            before = len(seen)
            goal = chance.randrange(1, 6)

            def is_far() -> bool:
                publish()
                epoch, rows = place.seen()
                if epoch is not None:
                    assert rows == contents[epoch], f"epoch {epoch}"
                    seen.add(epoch)
                    if chance.random() < 0.1:
                        maintain(token)  # noqa: B023
                return len(seen) >= before + goal  # noqa: B023

            assert wait_for(is_far, PATIENCE), "the sink does not get on"
            if token <= KILLS:
                time.sleep(chance.random() * 0.05)
                process.kill()
                process.wait()
                if chance.random() < 0.5:  # the next one has to compare
                    publish()
                    driver.forget()
            else:
                assert wait_for(lambda: place.seen()[0] == driver.epoch, PATIENCE)
                assert place.seen()[1] == contents[driver.epoch]
        finally:
            process.kill()
            process.wait()
