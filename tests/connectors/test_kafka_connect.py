"""What a connector's settings lose, asked of Kafka Connect."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from mview_connectors.changelogs.kafka.connect import check_connector, connector_caution
from pydantic import ValidationError

from mview.config import ChangesSettings
from mview.errors import AwayError, ConfigError, MviewError
from tests.services.process import free_port

_RIGHT = {"topic.prefix": "pg", "skipped.operations": "none"}


def one(state: str = "RUNNING", **properties: str) -> dict[str, Any]:
    """A connector as Kafka Connect 4.1 tells of it."""
    config = {**_RIGHT, **{name.replace("_", "."): text for name, text in properties.items()}}
    return {
        "info": {"name": "shop", "config": config, "tasks": [], "type": "source"},
        "status": {
            "name": "shop",
            "connector": {"state": "RUNNING", "worker_id": "127.0.0.1:8083"},
            "tasks": [{"id": 0, "state": state, "worker_id": "127.0.0.1:8083"}],
            "type": "source",
        },
    }


Ask = Callable[..., MviewError | None]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """What is said of an answer; asked of a server that gives it."""
    answers: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/connectors?expand=info&expand=status"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[-1])

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def asked(
        answer: Any, said: list[str | None] | None = None, **options: str
    ) -> MviewError | None:
        answers.append(json.dumps(answer).encode())
        settings = section(server.server_port, **options)
        if said is not None:
            said.append(connector_caution(settings))
        try:
            check_connector(settings)
        except MviewError as error:
            return error
        return None

    yield asked
    server.shutdown()
    server.server_close()


def section(port: int, **options: str) -> ChangesSettings:
    return ChangesSettings(
        connection="shop",
        source="kafka",
        format="debezium",
        bootstrap_servers="127.0.0.1:9",
        topic="pg.public.{table}",
        heartbeat_topic="__debezium-heartbeat.pg",
        connect=f"http://127.0.0.1:{port}/",
        options={f"format.{name.replace('_', '.')}": text for name, text in options.items()},
    )


def test_a_connector_that_sends_all(ask: Ask) -> None:
    another = one(**{"topic_prefix": "other", "skipped_operations": "t"})
    assert ask({"shop": one(), "another": another}) is None
    hexadecimal = one(binary_handling_mode="hex")
    assert ask({"shop": hexadecimal}) is None  # the messages may say it
    assert ask({"shop": hexadecimal}, binary_handling_mode="hex") is None


@pytest.mark.parametrize(
    ("properties", "got", "hint"),
    [
        ({"skipped_operations": "t"}, "skipped.operations=t", "skipped.operations=none"),
        ({"skipped_operations": "u,d"}, "skipped.operations=u,d", "skipped.operations=none"),
        ({"errors_tolerance": "all"}, "errors.tolerance=all", "errors.tolerance=none"),
        ({"event_processing_failure_handling_mode": "skip"}, "mode=skip", "mode=fail"),
        ({"column_mask_with_5_chars": "a.b.c"}, "column.mask.with.5.chars", "remove"),
        (
            {"transforms": "x, flat", "transforms_flat_type":
                "io.debezium.transforms.ExtractNewRecordState"},
            "flat: io.debezium.transforms.ExtractNewRecordState",
            "remove the transform",
        ),
        (
            {"unavailable_value_placeholder": "?"},
            "unavailable.value.placeholder=?",
            "format.unavailable.value.placeholder: ? under changes.shop.options",
        ),
        ({"state": "FAILED"}, "FAILED", "connectors/shop/restart"),
    ],
)  # fmt: skip
def test_settings_that_lose_changes(
    ask: Ask, properties: dict[str, str], got: str, hint: str
) -> None:
    error = ask({"shop": one(**properties)})
    assert isinstance(error, ConfigError)
    assert error.where == "changes.shop.connect"
    assert got in str(error.got)
    assert hint in str(error.hint)


def test_truncate_is_left_out_where_nothing_is_set(ask: Ask) -> None:
    default = one()
    del default["info"]["config"]["skipped.operations"]
    error = ask({"shop": default})
    assert error is not None
    assert error.got == "skipped.operations=t"


def test_modes_that_are_not_the_stated_ones(ask: Ask) -> None:
    error = ask({"shop": one(time_precision_mode="connect")}, time_precision_mode="adaptive")
    assert error is not None
    assert "time.precision.mode=connect" in str(error.got)
    assert error.hint == "set format.time.precision.mode: connect under changes.shop.options"
    assert ask({"shop": one()}, time_precision_mode="isostring") is not None


def test_a_converter_that_sends_defaults_in_place_of_null(ask: Ask) -> None:
    json = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
    kept = {"value.converter.replace.null.with.default": "false"}
    stated = {"replace_null_with_default": "false"}

    def of(**properties: str) -> Any:
        connector = one()
        connector["info"]["config"] |= properties
        return {"shop": connector}

    error = ask(of(**json), **stated)
    assert error is not None
    assert error.hint == "set value.converter.replace.null.with.default=false in the connector"
    assert ask(of(**json, **kept), **stated) is None
    assert ask(of(), **stated) is None  # the worker's converter is not known here
    assert ask(of(**json)) is None  # tables that need it are refused until it is stated


def test_all_faults_are_told_at_once(ask: Ask) -> None:
    error = ask({"shop": one("FAILED", skipped_operations="t", errors_tolerance="all")})
    assert error is not None
    assert "3 mistakes" in error.render()


def test_a_connector_of_other_heartbeats_is_not_ours(ask: Ask) -> None:
    error = ask({"another": one(topic_prefix="other")})
    assert isinstance(error, ConfigError)
    assert error.got == "another"


@pytest.mark.parametrize("answer", ["no", [], {"shop": {"info": {}}}, {"shop": None}])
def test_an_answer_of_something_else(ask: Ask, answer: Any) -> None:
    error = ask(answer)
    assert isinstance(error, AwayError)
    assert error.where == "changes.shop.connect"


def test_nobody_answers() -> None:
    with pytest.raises(AwayError, match="does not answer"):
        check_connector(section(free_port()))
    assert connector_caution(section(free_port())) is None


@pytest.mark.parametrize(
    ("kind", "interval", "seconds"),
    [
        ("mysql.MySqlConnector", None, "48"),
        ("mariadb.MariaDbConnector", "15000", "12"),
        ("mariadb.MariaDbConnector", "5000", None),
        ("mariadb.MariaDbConnector", "often", None),
        ("postgresql.PostgresConnector", None, None),
    ],
)
def test_heartbeats_of_idle_servers_that_come_seldom_are_warned_of(
    ask: Ask, kind: str, interval: str | None, seconds: str | None
) -> None:
    properties = {"connector_class": f"io.debezium.connector.{kind}"}
    if interval is not None:
        properties["connect_keep_alive_interval_ms"] = interval
    said: list[str | None] = []
    assert ask({"shop": one(**properties)}, said=said) is None
    (told,) = said
    if seconds is None:
        assert told is None
    else:
        assert f"connector shop sends a heartbeat every {seconds} s only" in str(told)


@pytest.mark.parametrize("url", ["connect:8083", "http://user:secret@connect:8083", "ftp://x"])
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(ValidationError, match="must be a URL"):
        ChangesSettings(connection="shop", source="kafka", format="debezium", connect=url)
