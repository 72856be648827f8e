"""The demo's shop and its writer: a changelog a connector could have written."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading

import pytest

from mview.cli.demo import shop, writer


@pytest.fixture
def folder(tmp_path):
    shop.create(tmp_path / "shop.db", customers=50, orders=200)
    (tmp_path / "changes").mkdir()
    return tmp_path


def content(folder):
    """Every table as {key: row}."""
    database = sqlite3.connect(folder / "shop.db")
    database.row_factory = sqlite3.Row
    try:
        return {
            table: {
                tuple(row[name] for name in key): dict(row)
                for row in database.execute(f"SELECT * FROM {table}")
            }
            for table, key in shop.KEYS.items()
        }
    finally:
        database.close()


def lines(folder):
    return [
        json.loads(line)
        for file in sorted((folder / "changes").iterdir())
        for line in file.read_text().splitlines()
    ]


def write_for(folder, seconds, **options):
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    try:
        return writer.write(folder, stop, **options)
    finally:
        timer.join()


class After(threading.Event):
    """Set after so many waits, however long they take."""

    def __init__(self, waits):
        super().__init__()
        self.left = waits

    def wait(self, timeout=None):
        self.left -= 1
        return self.left < 0


def test_the_same_seed_gives_the_same_shop(folder, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    shop.create(again / "shop.db", customers=50, orders=200)
    assert content(again) == content(folder)
    assert len(content(folder)["order_lines"]) > 400


def test_the_changes_lead_from_the_old_content_to_the_new(folder, monkeypatch):
    monkeypatch.setattr(writer, "FILE_LINES", 100)
    tables = content(folder)
    done = writer.write(folder, After(150))
    changes = [line for line in lines(folder) if line["op"] != "heartbeat"]
    assert len(changes) == done["changes"] > 100
    assert len(list((folder / "changes").iterdir())) > 1
    for change in changes:
        rows, key = tables[change["table"]], shop.KEYS[change["table"]]
        row = change["after"] or change["before"]
        place = tuple(row[name] for name in key)
        assert rows.get(place) == change["before"]
        if change["op"] == "delete":
            del rows[place]
        else:
            rows[place] = change["after"]
    assert tables == content(folder)
    assert {change["op"] for change in changes} == {"insert", "update", "delete"}
    assert {change["table"] for change in changes} == set(shop.KEYS)


def test_positions_grow_and_a_heartbeat_has_every_earlier_change_before_it(folder):
    done = write_for(folder, 0.6, rate=100)
    found = lines(folder)
    positions = [line["position"] for line in found if line["op"] != "heartbeat"]
    assert positions == sorted(set(positions))
    assert [line["ts"] for line in found] == sorted(line["ts"] for line in found)
    beats = [line["ts"] for line in found if line["op"] == "heartbeat"]
    assert len(beats) >= 3
    assert found[-1] == {"op": "heartbeat", "ts": done["ts"]}


def test_the_process_ends_with_its_input(folder):
    with subprocess.Popen(
        [sys.executable, "-m", "mview.cli.demo.writer", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            said, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    assert json.loads(said)["ts"] == lines(folder)[-1]["ts"]
