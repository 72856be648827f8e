"""Heartbeats of a connector whose server is idle: without them no load comes to its end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy.engine import make_url

from mview.admin.init.files import debezium as settings_of

pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(300)]

#: Seconds for three of them. A server says that it is there every 48 s by default.
PATIENCE = 90


def test_an_idle_mariadb_sends_them_by_what_init_writes(mariadb: Any, debezium: Any) -> None:
    written = orjson.loads(settings_of("crm", make_url("mariadb://root@localhost/crm")))
    name = "connect.keep.alive.interval.ms"
    with mariadb.new_database() as database:
        mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", database)
        settings = mariadb.connector(database, "t") | {name: written[name]}
        with debezium.connector(settings) as prefix:
            topic = f"__debezium-heartbeat.{prefix}"
            there = sum(debezium._kafka.end_offsets(topic).values())
            debezium.wait_for(topic, there + 3, PATIENCE)
