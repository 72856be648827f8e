"""What is at which path: the same as the commands print, without secrets."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.watch import site as site_module
from mview.cli.watch import store
from mview.cli.watch.site import KeptFor, Site
from mview.cli.watch.told import RunHeard
from mview.epoch.report import EpochReport, LoadReport
from mview.errors import RetryableError, UserError
from mview.store.failure import failure_kept
from mview.store.lease import Lease
from tests.cli.watch.made import EVIL, SECRET

DOCS = Path(__file__).parents[3] / "docs/watch.md"


def command(*arguments):
    result = CliRunner().invoke(main, [*arguments, "--json", "-c", "mview.yml"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def without_ages(told):
    """A status, but for what moves by itself."""
    for aging in [*told["views"], *told["sources"]]:
        assert aging.pop("lag_ms") >= 0
    return told


def test_the_same_json_as_the_commands(page):
    assert without_ages(json.loads(page.get("/api/status").text)) == without_ages(command("status"))
    assert json.loads(page.get("/api/lineage").text) == command("lineage", "--offline")
    explained = json.loads(page.get("/api/explain").text)
    assert explained == command("explain", "--offline", "sql")
    assert [view["view"] for view in explained] == ["totals", "open_orders"]


def test_every_number_is_had_by_a_command(page, made):
    """By the page of docs that says so: no path is left out."""
    told = DOCS.read_text().partition("### The same by commands")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in told.splitlines() if "/api/" in line]
    paths = {path for row in rows for path in re.findall(r"`(/api/\w+)`", row[2])}
    routes = Site(made.config, made.mask)._routes
    assert paths == {route for route in routes if route.startswith("/api/")}

    epochs = json.loads(page.get("/api/epochs").text)
    past = command("history", "--all", "-n", "300")
    assert [epoch.items() <= told.items() for epoch, told in zip(epochs, past, strict=True)] == (
        [True] * 3
    )
    # The rates of the page, of epochs that are as young as that.
    for view in command("lag", "--over", "30 s")["views"]:
        changes = [epoch["views"][view["view"]] for epoch in epochs]
        assert view["changed"] == sum(
            each[kind] for each in changes for kind in ("inserted", "updated", "deleted")
        )
        assert view["changed"]
    lineage = {view["view"]: view for view in command("lineage", "--offline")}
    for view in json.loads(page.get("/api/views").text):
        for what in ("reads", "sinks"):
            assert view[what] == lineage[view["name"]][what]


def test_what_a_run_tells_is_among_its_events():
    events = {
        "load": LoadReport("t", 1, 2, 3, False),
        "epoch": EpochReport(1, 2, 3, stages={"n": 1}),
    }
    heard = RunHeard()
    for event, report in events.items():
        heard.take({"time": "t", "event": event, **asdict(report)})
    told = heard.as_json()
    (sent,) = told["loads"]
    assert sent.keys() - {"time", "event"} <= asdict(events["load"]).keys()


def test_views_plans_rows_epochs(page):
    views = {view["name"]: view for view in json.loads(page.get("/api/views").text)}
    assert views["open_orders"]["sinks"] == ["delta", "cache"]
    assert views["open_orders"]["reads"] == [f"crm.{EVIL}", "totals"]
    plan = json.loads(page.get("/api/plan?view=totals").text)
    assert plan["text"].startswith("view totals: incremental")
    rows = json.loads(page.get("/api/rows?view=totals").text)
    assert rows["columns"] == [["status", "string"], ["n", "int64"]]
    assert sorted(rows["rows"]) == [["state 1", "1"], ["state 2", "2"], ["state 3", "3"]]
    assert json.loads(page.get("/api/rows?view=open_orders").text)["rows"][0][1] is None
    epochs = json.loads(page.get("/api/epochs").text)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert epochs[2]["lag_ms"] == 800
    assert epochs[2]["views"]["totals"]["seconds"] == 0.25
    told = [(epoch["took_ms"], epoch["stages"], epoch["changes"]) for epoch in epochs]
    assert told == [(9, {"net": 1.5, "views": 7}, {"shop.orders": 1})] * 3
    assert json.loads(page.get("/api/run").text) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.scalar(None, pa.int64()), None),
        (pa.scalar(2**63 - 1), "9223372036854775807"),
        (pa.scalar(Decimal("1.10")), "1.10"),
        (pa.scalar(b"\x00\xff"), "00ff"),
        (pa.scalar(True), "true"),
        (pa.scalar([Decimal("1.10")]), "[1.10]"),
        (pa.scalar({"a": "x", "b": [b"\x00"]}), "{a: x, b: [00]}"),
        (pa.scalar("x" * 201), "x" * 199 + "…"),
        (pa.scalar([1, None]), "[1, NULL]"),
        (pa.scalar(10**18, pa.int64()).cast(pa.timestamp("us")), "(beyond what can be shown)"),
    ],
)
def test_a_value_is_told_as_text(value, text):
    assert store._cell(value) == text


def test_rows_follow_the_epochs(made):
    site = Site(made.config, made.mask)
    rows = json.loads(site.answer("/api/rows?view=totals").body)
    made.epoch()
    site._samples.clear()
    assert json.loads(site.answer("/api/rows?view=totals").body)["epoch"] == rows["epoch"] + 1
    for number in range(40):
        assert site.answer(f"/api/rows?view=v{number}").status == 404
    assert len(site._samples) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/api/rows?view=no",
        "/api/plan?view=no",
        "/api/no",
        "/no",
        "/../site.py",
        "/page/app.js",
        "//x",
    ],
)
def test_what_is_not_there(page, path):
    answer = page.get(path)
    assert answer.status == 404
    assert set(json.loads(answer.text)) == {"error", "text"}


def test_a_secret_is_in_no_answer(page, made):
    with pytest.raises(UserError), failure_kept(made.store, 1, made.clock, lambda text: text):
        raise UserError(f"password={SECRET}", got=SECRET)
    paths = ["status", "lineage", "explain", "views", "epochs", "run", "ready"]
    paths = [f"/api/{name}" for name in paths]
    paths += [f"/api/{what}?view=open_orders" for what in ("rows", "plan")]
    for path in [*paths, "/metrics", "/readyz"]:
        answer = page.get(path)
        assert answer.text, path
        assert SECRET not in answer.text, path
    assert "******" in page.get("/readyz").text


def test_ready_and_why_not(made):
    def ask():
        answer = Site(made.config, made.mask).answer("/readyz")
        return int(answer.status), answer.body.decode().splitlines()

    status, reasons = ask()
    assert status == 503
    assert reasons == ["nobody runs the store, and open_orders promises no freshness to go by"]
    with Lease(made.store.lease):
        assert ask() == (200, ["ready"])
        latest = made.log.latest()
        halted = replace(latest.views["totals"], halted="two\nlines", stale=True)
        made.epoch(views={**latest.views, "totals": halted})
        assert ask() == (503, ["totals: halted"])
        for file in made.store.manifests.iterdir():
            file.unlink()
        assert ask() == (503, ["no view was published yet"])
    made.store.root.rename(made.store.root.with_name("gone"))
    made.store.root.write_text("a file")
    status, (reason, *more) = ask()
    assert (status, more) == (503, [])
    assert reason


def test_a_store_that_comes_and_goes_is_followed(made):
    away = made.store.root.with_name("away")
    made.store.root.rename(away)
    site, ended = Site(made.config, made.mask), threading.Event()
    ended.set()
    site._epochs.follow()
    assert site._epochs.points == []
    away.rename(made.store.root)
    made.epoch()
    site._epochs.follow()
    assert [point.epoch for point in site._epochs.points] == [1, 2, 3, 4]
    (made.store.manifests / f"{4:020d}.json").write_text("{")
    again = Site(made.config, made.mask)
    again._epochs.follow()
    assert [point.epoch for point in again._epochs.points] == [1, 2, 3]
    assert again.answer("/api/status").status == 503
    assert "damaged" in json.loads(again.answer("/api/status").body)["text"]


def test_a_value_is_made_by_whoever_asks_first(monkeypatch):
    made, going, go_on = [], threading.Event(), threading.Event()

    def make():
        made.append(len(made))
        if len(made) == 2:
            going.set()
            assert go_on.wait(60)
        return made[-1]

    kept = KeptFor(make)
    assert [kept.get() for _ in range(5)] == [0] * 5
    kept._until = time.monotonic()
    monkeypatch.setattr(site_module, "_OVERDUE_S", 3600)
    thread = threading.Thread(target=kept.get)
    thread.start()
    assert going.wait(60)
    assert kept.get() == 0, "it is being made: the older one"
    monkeypatch.setattr(site_module, "_OVERDUE_S", 0)
    monkeypatch.setattr(site_module, "_PATIENCE_S", 0.01)
    with pytest.raises(RetryableError, match="takes long"):
        kept.get()  # what is old does not look fresh
    go_on.set()
    thread.join()
    assert kept.get() == 1
    fails = KeptFor(lambda: (_ for _ in ()).throw(UserError("no")))
    for _ in range(2):
        with pytest.raises(UserError, match="no"):
            fails.get()


def test_the_files_of_the_page_name_nothing_outside(page):
    for name, kind in (
        ("", "text/html"),
        ("app.js", "text/javascript"),
        ("style.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        answer = page.get(f"/{name}")
        assert answer.headers["Content-Type"].startswith(kind)
        outside = answer.text.replace("http://www.w3.org/", "")
        assert "http:" not in outside
        assert "https:" not in outside
        assert "innerHTML" not in outside
