"""`mview ui`, and the page beside a run: a process of its own, which ends with the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.watch import told as told_module
from mview.cli.watch.told import RunEvents, RunHeard, RunTold
from mview.epoch.report import EpochReport, LoadReport, ViewChange
from mview.errors import UserError
from tests.cli.watch.made import SECRET
from tests.patience import end_of, wait_for

CHANGED = ViewChange(60, 2, 1, 61, "LINEAR", "local")
EPOCH = EpochReport(
    4, 90, 840, {"shop.orders": 3}, {"v": CHANGED}, dropped=2, stages={"net": 1.5, "views": 20.25}
)


def ask(url):
    """The JSON at an address; None: nobody answers yet."""
    try:
        with urllib.request.urlopen(url, timeout=200) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return None


def test_what_a_run_says_arrives(made):
    reading, writing = os.pipe()
    events = RunEvents(os.fdopen(writing, "w"), made.mask, lambda: None)
    events.on_load(LoadReport("shop.orders", 0, 5, 60, False))
    events.on_load(LoadReport("shop.orders", 50, 55, 60, False))
    events.on_message(f"password={SECRET}")
    events.on_halt("v", UserError("a cause"))
    events.on_epoch(EpochReport(3, 0, None, {}, {"v": CHANGED}))
    events.on_epoch(EPOCH)
    events.close(60)
    told = RunTold()
    with os.fdopen(reading) as lines:
        told.follow(lines)
    kept = told.read(RunHeard.as_json)
    (load,) = kept["loads"]
    assert (load["read"], load["total"]) == (55, 60)
    stages, count = told.read(lambda heard: (dict(heard.stages), heard.count))
    assert (stages, count) == ({"net": 1.5, "views": 20.25}, 1)
    assert [event.get("text") for event in kept["messages"]] == ["password=******", None]
    assert kept["messages"][1]["error"] == "a cause\n  code:    MV1000"
    assert kept["messages"][1]["code"] == "MV1000"
    assert told.read(lambda each: (each.count, each.dropped, each.changes)) == (
        1,
        2,
        {"shop.orders": 3},
    )


def test_a_page_that_does_not_read_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(told_module, "_WAITING", 10)
    reading, writing = os.pipe()
    events = RunEvents(os.fdopen(writing, "w"), str, lambda: None)
    for _ in range(2_000):  # far beyond what a pipe holds
        events.on_message("x" * 1_000)
    assert events._queue.full()
    with os.fdopen(reading) as lines:
        told = RunTold()
        reader = threading.Thread(target=told.follow, args=[lines])
        reader.start()
        events.close(60)
        reader.join()
    assert 0 < len(told.read(RunHeard.as_json)["messages"]) < 2_000


def test_a_page_that_has_ended_is_told_once():
    reading, writing = os.pipe()
    os.close(reading)
    lost = []
    events = RunEvents(os.fdopen(writing, "w"), str, lambda: lost.append(1))
    for _ in range(3):
        events.on_message("x")
    events.close(60)
    assert lost == [1]


def test_what_is_kept_has_a_bound():
    told = RunHeard()
    for number in range(1_000):
        told.take({"time": "t", "event": "message", "text": str(number)})
        told.take(
            json.loads(
                json.dumps(
                    {
                        "time": "t",
                        "event": "epoch",
                        "stages": {"net": 1.0},
                        "views": {},
                        "changes": {},
                        "dropped": 0,
                        "duration_ms": 1,
                        "epoch": number,
                    }
                )
            )
        )
    kept = told.as_json()
    assert len(kept["messages"]) == 100
    assert told.count == 1_000


class Play:
    """A pipeline that waits for a test."""

    def __init__(self, config, views, *, listener=None, files=()):
        self.listener = listener._display  # beside it stands what notes epochs

    def run(self, *, once):
        type(self).play(self.listener)

    def stop(self):
        pass


@pytest.fixture
def run(made, monkeypatch, tmp_path):
    (tmp_path / "v.sql").write_text("SELECT order_id FROM shop.orders")

    def run(play, *arguments):
        kind = type("Played", (Play,), {"play": staticmethod(play)})
        monkeypatch.setitem(sys.modules, "mview.run.pipeline", SimpleNamespace(Pipeline=kind))
        return CliRunner().invoke(main, ["run", "v.sql", "-c", "mview.yml", *arguments])

    return run


def test_the_page_beside_a_run(run, capfd):
    seen = {}

    def play(listener):
        listener.on_epoch(EPOCH)
        listener.on_load(LoadReport("shop.orders", 50, 55, 60, False))
        url = listener._url
        assert wait_for(lambda: (ask(f"{url}api/run") or {}).get("loads"), 60)
        seen.update(url=url, run=ask(f"{url}api/run"), epochs=ask(f"{url}api/epochs"))
        seen["pid"] = listener._process.pid
        with urllib.request.urlopen(f"{url}metrics", timeout=200) as answer:
            seen["metrics"] = answer.read().decode()

    result = run(play, "--listen", "127.0.0.1:0")
    assert result.exit_code == 0, result.output
    assert f"watch it at {seen['url']}" in result.stdout
    assert seen["run"]["loads"][0]["read"] == 55
    assert "mview_run_epochs_total 1.0" in seen["metrics"]
    assert 'mview_run_changed_rows_total{table="shop.orders"} 3.0' in seen["metrics"]
    assert ask(f"{seen['url']}api/run") is None, "it ends with the run"
    with pytest.raises(ProcessLookupError):
        os.kill(seen["pid"], 0)
    assert capfd.readouterr().err == ""


def test_the_page_beside_a_run_asks_for_the_token(run, monkeypatch):
    monkeypatch.setenv("WATCH_TOKEN", "a-token-of-sixteen")
    seen = []

    def play(listener):
        asking = urllib.request.Request(f"{listener._url}api/status")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(asking)
        asking.add_header("Authorization", "Bearer a-token-of-sixteen")
        seen.append(ask(asking)["epoch"])

    result = run(play, "--listen", "127.0.0.1:0", "--token", "${env:WATCH_TOKEN}")
    assert result.exit_code == 0, result.output
    assert seen == [3]


def test_a_run_goes_on_without_its_page(run):
    def play(listener):
        os.kill(listener._process.pid, signal.SIGKILL)
        listener._process.wait()
        listener.on_message("first")
        assert wait_for(lambda: not listener._events._writer.is_alive(), 60)
        listener.on_epoch(EPOCH)

    result = run(play, "--listen", "127.0.0.1:0")
    assert result.exit_code == 0, result.output
    assert "the page has ended; the run goes on without it" in result.stdout
    assert "epoch 4" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--listen", "0.0.0.0:8080"], "other machines could read"),
        (["--remote", "box"], "are for --listen"),
        (["--listen", "nowhere"], "no address"),
    ],
)
def test_a_run_with_a_wrong_address_does_not_begin(run, arguments, what):
    began = []
    result = run(began.append, *arguments)
    assert result.exit_code == 2
    assert what in result.output
    assert not began


def test_the_command(made):
    command = [sys.executable, "-m", "mview", "ui", "-c", "mview.yml", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ui:
        try:
            url = re.match(r"(http://127.0.0.1:\d+/)  ", ui.stdout.readline()).group(1)
            assert ask(f"{url}api/status")["epoch"] == 3
            made.epoch()
            assert wait_for(lambda: len(ask(f"{url}api/epochs")) == 4, 60)
            assert wait_for(lambda: ask(f"{url}api/status")["epoch"] == 4, 60)
            ui.send_signal(signal.SIGINT)
            assert end_of(ui, 60) == 130
        finally:
            ui.kill()
        assert ui.stderr.read() == "interrupted\n"


def test_an_interrupt_that_python_drops_ends_it(made):
    """It does where it comes in a destructor, as of a thread that has answered."""
    program = """
import signal
from mview.cli import main
from mview.cli.watch.server import WatchServer

class Late:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        for _ in range(100_000):
            pass

def service_actions(self):
    WatchServer.service_actions = lambda self: None
    Late()

WatchServer.service_actions = service_actions
main(["ui", "-c", "mview.yml", "--listen", "127.0.0.1:0"])
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ui:
        try:
            assert end_of(ui, 60) == 130
        finally:
            ui.kill()
        assert ui.stderr.read() == "interrupted\n"


def test_one_that_is_to_be_passed_over_does_not(made):
    """As of a script that starts it in the background, and whose terminal gets an interrupt."""
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    program += "; from mview.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "ui", "-c", "mview.yml", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ui:
        try:
            url = re.match(r"(http://127.0.0.1:\d+/)  ", ui.stdout.readline()).group(1)
            ui.send_signal(signal.SIGINT)
            assert end_of(ui, 2) is None
            assert ask(f"{url}api/status")["epoch"] == 3
        finally:
            ui.kill()
