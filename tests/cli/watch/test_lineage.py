"""Events of OpenLineage while a run goes on."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from openlineage.client.naming.dataset import MySQL, Postgres

from mview.catalog.definitions import KeptLight, digest_of, save_definition, save_light
from mview.cli.explore.datasets import sink_dataset, table_dataset
from mview.cli.explore.openlineage import ViewJobs
from mview.cli.watch.lineage import LineageEvents
from mview.config import ConnectionSettings, OpenLineageSettings
from mview.config.file import load_config
from mview.epoch.report import EpochReport, ViewChange
from mview.errors import ConfigError, UserError
from mview.plan.definition import parse_view
from tests.cli.watch.made import EVIL, ORDERS, SECRET, VIEWS
from tests.cli.watch.openlineage import read_event
from tests.patience import wait_for
from tests.relations import rel


class Told:
    """The events of a run over a store that is made.

    Args:
        made: the store.
        settings: of `openlineage`.
    """

    def __init__(self, made, once=False, **settings):
        settings = OpenLineageSettings(**settings)
        self.made, self.said = made, []
        config = made.config.model_copy(update={"openlineage": settings})
        self.events = LineageEvents(config, settings, once, made.mask, self.said.append)
        self.events.start()

    def epoch(self, **changes):
        """An epoch, published and reported; took so many seconds to be reported."""
        manifest = self.made.epoch(**changes)
        change = ViewChange(1, 2, 0, manifest.epoch, "SELF_MAINTAINED", "local")
        views = dict.fromkeys(manifest.views, change)
        began = time.perf_counter()
        self.events.on_epoch(EpochReport(manifest.epoch, 5, 5, {}, views, manifest.watermark))
        return time.perf_counter() - began


def until(is_so):
    assert wait_for(is_so, 20)


def of(events, name):
    """The events of a view, read by the classes of OpenLineage's client."""
    told = [read_event(event) for event in events if event["job"]["name"] == name]
    assert [told[0].eventType.value, *{event.run.runId for event in told}] == [
        "START",
        told[0].run.runId,
    ]
    return told


@pytest.fixture
def lines(made, tmp_path):
    def read():
        file = tmp_path / "told/lineage.jsonl"
        text = file.read_text() if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last one may be on its way
        return list(map(json.loads, whole.splitlines()))

    return read


def test_a_run_in_a_file(made, tmp_path, lines):
    told = Told(made, file=tmp_path / "told/lineage.jsonl", every=3600, namespace="tests")
    told.epoch()  # the first one is told at once, the others together
    until(lambda: len(lines()) == 4)
    told.epoch()
    told.epoch()
    told.events.end(None)
    assert told.said == []
    assert SECRET not in (tmp_path / "told/lineage.jsonl").read_text()
    start, first, both, end = of(lines(), "totals")
    assert [e.eventType.value for e in (first, both, end)] == ["RUNNING", "RUNNING", "COMPLETE"]
    assert (start.job.namespace, start.job.facets["jobType"].processingType) == (
        "tests",
        "STREAMING",
    )
    assert start.job.facets["jobType"].emissionPattern.windowDuration == 3600
    (table,), (view,) = start.inputs, start.outputs
    assert table.name == f"{tmp_path / 'shop.db'}.orders"
    assert [f.name for f in table.facets["schema"].fields] == ["order_id", "status"]
    assert [(f.name, f.type) for f in view.facets["schema"].fields] == [
        ("status", "string"),
        ("n", "bigint"),
    ]
    lineage = view.facets["columnLineage"].fields
    assert [(f.namespace, f.name, f.field) for f in lineage["status"].inputFields] == [
        (table.namespace, table.name, "status")
    ]
    assert lineage["n"].inputFields == []
    epochs = both.run.facets["mview_epochs"]
    assert (epochs["first"], epochs["last"], epochs["inserted"], epochs["rows"]) == (5, 6, 2, 6)
    assert both.outputs[0].outputFacets["outputStatistics"].rowCount == 6
    assert both.outputs[0].facets["version"].datasetVersion == "6"
    # What a view reads of another one is what that one writes.
    (above, *_) = of(lines(), "open_orders")
    own, cache = above.outputs
    assert own.name.endswith("/open_orders/data")
    assert (cache.namespace, cache.name) == ("file", "cache.db.open_orders")
    assert cache.facets["columnLineage"] == own.facets["columnLineage"]
    assert (view.namespace, view.name) in {(d.namespace, d.name) for d in above.inputs}
    assert ("postgres://localhost:5432", f"public.{EVIL}") in {
        (d.namespace, d.name) for d in above.inputs
    }


def test_a_view_that_halts_has_failed_and_begins_anew(made, tmp_path, lines):
    told = Told(made, file=tmp_path / "told/lineage.jsonl", every=0)
    told.epoch()
    until(lambda: len(lines()) == 4)
    whole = made.log.latest().views
    broken = whole | {"totals": replace(whole["totals"], halted="division by zero")}
    made.epoch(views=broken)
    told.events.on_halt("totals", UserError(f"division by zero {SECRET}"))
    until(lambda: len(lines()) == 5)
    told.epoch(views=whole)
    until(lambda: len(lines()) == 8)
    told.events.end(RuntimeError(SECRET))
    events = [e for e in lines() if e["job"]["name"] == "totals"]
    assert [e["eventType"] for e in events] == [
        "START",
        "RUNNING",
        "FAIL",
        "START",
        "RUNNING",
        "FAIL",
    ]
    ids = [e["run"]["runId"] for e in events]
    assert (len({*ids[:3]}), len({*ids[3:]}), len({*ids})) == (1, 1, 2)
    assert "division by zero ***" in events[2]["run"]["facets"]["errorMessage"]["message"]
    assert events[-1]["run"]["facets"]["errorMessage"]["message"] == "RuntimeError"
    for event in events:
        read_event(event)


def test_another_text_ends_a_run_and_begins_one(made, tmp_path, lines):
    told = Told(made, True, file=tmp_path / "told/lineage.jsonl", every=0)
    told.epoch()
    until(lambda: len(lines()) == 4)
    views = made.log.latest().views
    told.epoch(views={"totals": replace(views["totals"], definition="another")})
    until(lambda: len(lines()) >= 6)
    told.events.end(None)
    events = lines()
    assert [e["eventType"] for e in events if e["job"]["name"] == "open_orders"] == [
        "START",
        "RUNNING",
        "COMPLETE",
    ]
    ended = [e["eventType"] for e in events if e["job"]["name"] == "totals"]
    assert ended[:3] == ["START", "RUNNING", "COMPLETE"]
    assert events[0]["job"]["facets"]["jobType"]["processingType"] == "BATCH"


# --- an endpoint ---------------------------------------------------------------------------------


class Endpoint:
    """Takes events; `answer` may be changed meanwhile."""

    def __init__(self):
        self.events, self.refused, self.keys, self.asked = [], [], set(), 0
        self.answers = []  # in the order of the events
        self.body = ""  # of an answer: none, "cut", or "silence" instead of it
        self.answer, self.go = 201, threading.Event()
        self.never = ()  # a view, a transition, and what it is answered
        self.go.set()


@contextmanager
def served():
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            endpoint.asked += 1
            endpoint.go.wait(30)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            endpoint.keys.add(self.headers["Authorization"])
            event, answer = json.loads(body), endpoint.answer
            if endpoint.never[:2] == (event["job"]["name"], event["eventType"]):
                answer = endpoint.never[2]
            endpoint.answers.append(answer)
            into = endpoint.events if answer < 300 else endpoint.refused
            into.append(event)
            self.send_response(answer)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "10" if endpoint.body else "0")
            self.end_headers()
            if endpoint.body == "cut":
                # Closed with a reset, not with an end.
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            elif endpoint.body == "silence":
                time.sleep(0.5)

        def do_GET(self):
            raise AssertionError("nobody follows it")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(0.05))
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/api/v1/lineage"
    try:
        yield endpoint
    finally:
        endpoint.go.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("answer", [302, 500])
def test_an_endpoint_that_refuses_gets_all_later_and_nobody_waits_for_it(made, monkeypatch, answer):
    monkeypatch.setenv("CRM_PW", SECRET)
    monkeypatch.setattr("mview.cli.watch.lineage._AGAIN_S", 0.05)
    with served() as endpoint:
        endpoint.answer = answer
        told = Told(made, url=endpoint.url, every=0, api_key="${env:CRM_PW}")
        took = [told.epoch() for _ in range(5)]
        until(lambda: told.said)
        assert max(took) < 0.5
        assert f"do not reach {endpoint.url}: {answer}" in told.said[0]
        assert "they are kept" in told.said[0]
        endpoint.answer = 201
        until(lambda: len(endpoint.events) >= 4)
        told.events.end(None)
        assert "again" in told.said[1]
        assert len(told.said) == 2
        assert endpoint.keys == {f"Bearer {SECRET}"}
        _, told_all, end = of(endpoint.events, "totals")
        assert told_all.run.facets["mview_epochs"]["first"] == 4
        assert told_all.run.facets["mview_epochs"]["last"] == 8
        assert told_all.run.facets["mview_epochs"]["inserted"] == 5
        assert end.eventType.value == "COMPLETE"
        assert SECRET not in json.dumps(endpoint.events)


def test_an_endpoint_that_hangs_holds_nothing_up(made, monkeypatch):
    monkeypatch.setattr("mview.cli.watch.lineage._END_S", 0.2)
    with served() as endpoint:
        endpoint.go.clear()
        told = Told(made, url=endpoint.url, every=0)
        told.epoch()
        until(lambda: endpoint.asked)
        assert max(told.epoch() for _ in range(20)) < 0.5
        assert len(told.events._wrote) == 2  # a sum per view, however many epochs wait
        began = time.perf_counter()
        told.events.end(None)
        assert time.perf_counter() - began < 2


def test_answers_that_break_off_and_events_that_are_no_text_do_not_end_it(made, monkeypatch):
    monkeypatch.setattr("mview.cli.watch.lineage._AGAIN_S", 0.05)
    monkeypatch.setattr("mview.cli.watch.lineage._ANSWER_S", 0.2)
    real = ViewJobs.run_event
    with served() as endpoint:
        endpoint.answer, endpoint.body = 502, "cut"
        told = Told(made, url=endpoint.url, every=0)
        told.epoch()
        until(lambda: endpoint.asked > 1)
        until(lambda: any(": 502;" in said for said in told.said))
        endpoint.body = "silence"
        asked = endpoint.asked
        until(lambda: endpoint.asked > asked + 1)
        monkeypatch.setattr(ViewJobs, "run_event", lambda *_, **__: {"odd": "\ud800"})
        until(lambda: "UnicodeEncodeError" in told.said[-1])
        monkeypatch.setattr(ViewJobs, "run_event", lambda *_, **__: {}["missing"])
        until(lambda: "KeyError" in told.said[-1])
        monkeypatch.setattr(ViewJobs, "run_event", real)
        endpoint.answer, endpoint.body = 201, ""
        until(lambda: len(endpoint.events) == 4)
        told.events.end(None)
        of(endpoint.events, "totals")


def test_a_start_that_is_sent_again_is_of_the_same_run(made, monkeypatch):
    monkeypatch.setattr("mview.cli.watch.lineage._AGAIN_S", 0.05)
    with served() as endpoint:
        endpoint.answer = 503
        told = Told(made, url=endpoint.url, every=0)
        told.epoch()
        until(lambda: endpoint.asked > 2)
        endpoint.answer = 201
        until(lambda: len(endpoint.events) == 4)
        told.events.end(None)
        runs = {(e["job"]["name"], e["run"]["runId"]) for e in endpoint.refused}
        assert len(runs) == len(VIEWS)
        begun = [e for e in endpoint.refused if e["job"]["name"] == "totals"]
        of([*begun[:1], *endpoint.events], "totals")


def test_epochs_hasten_nothing_that_has_its_time(made):
    with served() as endpoint:
        endpoint.answer = 503
        told = Told(made, url=endpoint.url, every=3600)
        told.epoch()
        until(lambda: told.said)
        for _ in range(20):
            told.epoch()
        time.sleep(0.2)
        assert endpoint.asked == len(VIEWS)
        endpoint.answer = 201
        told.events.end(None)  # which waits for nothing
        assert len(of(endpoint.events, "totals")) == 3


@pytest.mark.parametrize("answer", [422, 500])
def test_what_is_never_taken_holds_up_its_view_alone_and_is_given_up(made, monkeypatch, answer):
    monkeypatch.setattr("mview.cli.watch.lineage._AGAIN_S", 0.05)
    monkeypatch.setattr("mview.cli.watch.lineage._TRIES", 2)
    with served() as endpoint:
        endpoint.never = "totals", "START", answer
        told = Told(made, url=endpoint.url, every=0)
        told.epoch()
        names = lambda: [e["job"]["name"] for e in endpoint.events]  # noqa: E731
        until(lambda: names().count("open_orders") == 2)
        while answer == 500 and not any("given up" in said for said in told.said):
            told.epoch()  # only the other view's events tell that the endpoint is there
            time.sleep(0.1)
        until(lambda: "totals" in names())
        told.events.end(None)
        refused = [e for e in endpoint.refused if e["job"]["name"] == "totals"]
        assert {e["eventType"] for e in refused} == {"START"}
        # A 500 counts where the other view's events are taken right after it. The last one of all
        # is that with which it is given up.
        tries = [after for now, after in pairwise(endpoint.answers) if now == answer][:-1]
        assert (len(tries) if answer == 422 else tries.count(201)) == 2
        events = [e["eventType"] for e in endpoint.events if e["job"]["name"] == "totals"]
        assert (events[0], events[-1]) == ("RUNNING", "COMPLETE")
        lost = "view totals: a START event of lineage is given up"
        (said,) = [said for said in told.said if lost in said]
        assert f": {answer}; 1 event was given up so far; the run goes on" in said
        assert told.said[-1] == "lineage: 1 event was given up in this run"


def test_a_line_that_a_full_disk_took_in_part_ends_there(made, tmp_path):
    file = tmp_path / "told/lineage.jsonl"
    file.parent.mkdir()
    file.write_text('{"eventTime": "20')
    told = Told(made, file=file, every=0)
    told.epoch()
    until(lambda: file.read_text().count("\n") == 5)
    told.events.end(None)
    torn, *whole = file.read_text().splitlines()
    assert torn == '{"eventTime": "20'
    assert [json.loads(line)["eventType"] for line in whole].count("START") == 2


def test_a_view_that_is_never_sound_wakes_nobody(made, tmp_path, lines):
    told = Told(made, file=tmp_path / "told/lineage.jsonl", every=3600)
    views = made.epoch().views
    told.epoch(views=views | {"totals": replace(views["totals"], stale=True)})
    until(lambda: len(lines()) == 2)
    told.epoch()
    time.sleep(0.2)
    assert len(lines()) == 2
    told.events.end(None)
    assert told.said == []


def test_a_view_that_cannot_be_checked_any_more_ends_and_so_do_the_others(made, tmp_path, lines):
    told = Told(made, file=tmp_path / "told/lineage.jsonl", every=0)
    told.epoch()
    until(lambda: len(lines()) == 4)
    # The other one reads this one, which is wrong now: neither is a job of the next ones.
    views = made.log.latest().views
    odd = parse_view("SELECT nothing FROM shop.orders", "totals", "sql/totals.sql")
    save_definition(made.store, odd)
    told.epoch(views=views | {"totals": replace(views["totals"], definition=digest_of(odd))})
    until(lambda: len(lines()) >= 6)
    told.events.end(None)
    assert told.said == []
    for name in VIEWS:
        assert [e["eventType"] for e in lines() if e["job"]["name"] == name][-1] == "COMPLETE"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{}", "give 'url' or 'file'"),
        ("{url: http://x, file: y}", "give 'url' or 'file'"),
        ("{url: ftp://x}", "must be a URL"),
        ("{url: 'http://me:pw@x'}", "must be a URL"),
        ("{url: 'http://x/?key=plain'}", "write a key as api_key"),
        ("{url: 'http://x/#plain'}", "write a key as api_key"),
        ("{url: 'http://x/${env:plain}'}", "write a key as api_key"),
        ("{url: http://x, api_key: plain}", "not the key itself"),
        ("{url: http://x, evry: 1 min}", "did you mean 'every'"),
    ],
)
def test_settings_that_have_no_sense(tmp_path, section, said):
    (tmp_path / "mview.yml").write_text(f"openlineage: {section}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "mview.yml")
    text = str(caught.value.render())
    assert said in text
    assert "plain" not in text
    assert "pw@" not in text


def test_a_light_view_has_its_table_and_its_sinks(made, lines, tmp_path):
    text = (
        "CREATE MATERIALIZED VIEW picked WITH (mode = 'light', sinks = 'cache', "
        "sinks.cache.table = 'p') AS SELECT order_id AS id, status FROM shop.orders"
    )
    save_light(made.store, KeptLight(parse_view(text, "picked", "picked.sql"), ORDERS))
    told = Told(made, file=tmp_path / "told/lineage.jsonl", every=3600)
    told.epoch()
    until(lambda: len(lines()) == 5)
    told.events.end(None)
    start, end = of(lines(), "picked")
    assert (start.eventType.value, end.eventType.value) == ("START", "COMPLETE")
    (table,), (sink,) = start.inputs, start.outputs
    assert table.name == f"{tmp_path / 'shop.db'}.orders"
    assert (sink.namespace, sink.name) == ("file", "cache.db.p")
    (source,) = sink.facets["columnLineage"].fields["id"].inputFields
    assert source.field == "order_id"


#: Sections of sinks, and what the table of view `v` is called there.
PLACES = [
    (
        {"type": "postgresql", "url": "postgresql://me:${env:PW}@db:5433/dw", "namespace": "w"},
        ("postgres://db:5433", "dw.w.v"),
    ),
    ({"type": "mysql", "url": "mysql://me@db/dw"}, ("mysql://db:3306", "dw.v")),
    (
        {"type": "clickhouse", "url": "http://a:8123,http://b:8123", "database": "dw"},
        ("clickhouse://a:8123", "dw.v"),
    ),
    ({"type": "kafka", "bootstrap_servers": "a:9093,b"}, ("kafka://a:9093", "v")),
    ({"type": "files", "path": "/srv/lake"}, ("file", "/srv/lake/v")),
    ({"type": "delta", "path": "s3://lake/tables/"}, ("s3://lake", "tables/v")),
    ({"type": "iceberg", "warehouse": "/srv/ice"}, ("file", "/srv/ice/default.v")),
    (
        {"type": "iceberg", "catalog": {"type": "rest", "uri": "https://u@cat:8181/x"}},
        ("iceberg://cat:8181", "default.v"),
    ),
    ({"type": "kafka", "bootstrap_servers": "${env:BROKERS}"}, None),
    ({"type": "postgresql", "url": "${env:URL}"}, None),
    ({"type": "mine"}, None),
]


def test_what_follows_a_view_is_called_by_its_place(made):
    view = parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 'out') AS SELECT 1 AS one", "v")
    for section, called in PLACES:
        config = made.config.model_copy(update={"sinks": {"out": section}})
        assert sink_dataset(config, view, "out") == called, section


def test_names_are_those_of_the_convention(made):
    def named(drivername, table, **more):
        connection = ConnectionSettings(
            name="shop", drivername=drivername, host="db", database="shop", **more
        )
        config = made.config.model_copy(update={"connections": {"shop": connection}})
        return table_dataset(config, rel(table))

    def by(naming):
        return naming.get_namespace(), naming.get_name()

    postgres = Postgres(host="db", port="5432", database="shop", schema="public", table="orders")
    assert named("postgresql+psycopg", "shop.orders") == by(postgres)
    other = Postgres(host="db", port="5433", database="shop", schema="crm", table="orders")
    assert named("postgresql+psycopg", "shop.crm.orders", port=5433) == by(other)
    mysql = MySQL(host="db", port="3306", database="shop", table="orders")
    assert named("mariadb+pymysql", "shop.orders") == by(mysql)
