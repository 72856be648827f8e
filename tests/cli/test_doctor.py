"""`mview doctor`: all that a run needs, a line each, whatever is away."""

from __future__ import annotations

import json
import socket
import sqlite3
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from mview_connectors.databases.sqlite import SqliteDatabase

from mview.admin import doctor as doctor_module
from mview.admin.doctor import Doctor
from mview.cli import main
from mview.clock import SourceMs
from mview.config.file import load_config
from mview.errors import UserError
from mview.ingest.spec import open_changelog
from mview.plan.definition import parse_view
from tests.patience import Patience

CONFIG = """
store: store
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    """Ask about files of SQL, by name; returns the exit code and the findings by what is asked."""
    monkeypatch.chdir(tmp_path)
    sqlite3.connect("shop.db").execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, x TEXT)")
    (tmp_path / "changes").mkdir()
    (tmp_path / "mview.yml").write_text(CONFIG)

    def ask(config="", **views):
        (tmp_path / "mview.yml").write_text(CONFIG + config)
        for name, sql in views.items():
            (tmp_path / f"{name}.sql").write_text(sql)
        files = [f"{name}.sql" for name in views]
        result = CliRunner().invoke(main, ["doctor", *files, "-c", "mview.yml", "--json"])
        assert result.exit_code in (0, 1), result.output
        told = json.loads(result.stdout)
        findings = {finding["about"]: finding for finding in told}
        return SimpleNamespace(code=result.exit_code, of=findings, order=list(findings))

    return ask


def wrong(result):
    return {about for about, finding in result.of.items() if finding["state"] == "wrong"}


def test_all_is_well(doctor):
    result = doctor(v="SELECT * FROM shop.orders")
    assert (result.code, wrong(result)) == (0, set())
    assert result.order == [
        "java",
        "jars of Spark",
        "store",
        "store's disk",
        "store's lease",
        "connections.shop",
        "shop.orders",
        "changes.shop",
        "view v",
    ]
    assert result.of["java"]["text"].startswith("Java ")
    assert "T is 1000 ms" in result.of["connections.shop"]["text"]
    assert result.of["shop.orders"]["text"] == "2 columns, key id, about 0 rows"


def test_a_line_each_for_people(doctor, tmp_path):
    doctor()
    (tmp_path / "changes").rmdir()
    result = CliRunner().invoke(main, ["doctor", "-c", "mview.yml"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[-1] == "1 to be mended"
    assert [line[0] for line in lines[2:-1]] == ["✓", "✓", "✓", "✓", "✗"]
    assert lines[-2].startswith("✗ changes.shop: ")
    assert "; next: " in lines[-2]


def test_everything_that_is_wrong_is_told(doctor):
    result = doctor(
        a="SELECT * FROM shop.absent",
        b="SELECT * FROM nowhere.t",
        c="SELECT FROM",
        d="SELECT * FROM shop.orders",
    )
    assert result.code == 1
    assert wrong(result) == {"shop.absent", "nowhere", "view c"}
    assert result.of["shop.orders"]["state"] == "ok"
    assert "add it to" in result.of["nowhere"]["next"]


def test_what_all_tables_lack_alike_is_told_once(doctor, monkeypatch):
    def denied(self, table, *_):
        what = "no right" if table != "d" else "another one"
        raise UserError(what, hint="GRANT it")

    monkeypatch.setattr(SqliteDatabase, "describe", denied)
    result = doctor(**{name: f"SELECT * FROM shop.{name}" for name in "abcd"})
    assert wrong(result) == {"shop.a and 2 more", "shop.d"}
    assert result.of["shop.a and 2 more"]["next"] == "GRANT it"


AWAY = """  away: {{source: kafka, format: debezium, bootstrap_servers: 127.0.0.1:{port},
    topic: "x.{{table}}", heartbeat_topic: beats, T: 1 second}}
"""


def test_a_server_that_does_not_answer_is_one_cross_and_the_rest_goes_on(doctor, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        text = CONFIG.replace(
            "changes:\n",
            f"  away: {{drivername: mysql+pymysql, host: 127.0.0.1, port: {port}, database: d}}\n"
            "changes:\n" + AWAY.format(port=port),
        )
        (tmp_path / "other.yml").write_text(text)
        view = parse_view("SELECT o.id FROM shop.orders o JOIN away.t ON t.id = o.id", "v")
        config = load_config("other.yml")
        open_changelog(config, "away", []).close()  # to import its client may take half a second
        patience = Patience(15)
        findings = Doctor(config, [view], patience_s=0.5).examine()
        assert not patience.is_over()
    told = {finding.about: finding for finding in findings}
    assert [name for name, finding in told.items() if finding.state == "wrong"] == [
        "connections.away",
        "changes.away: brokers",
    ]
    assert told["connections.away"].text == "no answer in 0.5 s"
    assert told["shop.orders"].state == "ok"


@pytest.mark.parametrize(("ahead", "state"), [(1_500, "wrong"), (-1_500, "wrong"), (300, "ok")])
def test_clocks_are_compared_with_t(doctor, monkeypatch, ahead, state):
    clock = SqliteDatabase.clock
    monkeypatch.setattr(SqliteDatabase, "clock", lambda self: SourceMs(clock(self) + ahead))
    result = doctor()
    assert result.of["connections.shop"]["state"] == state
    assert "differs from this machine's by " in result.of["connections.shop"]["text"]


def test_a_store_that_cannot_be_one(doctor, tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    (tmp_path / "store/mine.txt").write_text("mine")
    result = doctor()
    assert wrong(result) == {"store"}
    assert "another folder" in result.of["store"]["next"]
    assert [file.name for file in (tmp_path / "store").iterdir()] == ["mine.txt"]


def test_a_disk_that_is_nearly_full(doctor, monkeypatch):
    usage = SimpleNamespace(free=10 << 20)
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda folder: usage)
    result = doctor()
    assert wrong(result) == {"store's disk"}
    assert result.of["store's disk"]["text"].startswith("10 MB are free")


def test_no_java(doctor, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = doctor()
    assert wrong(result) == {"java"}
    assert "JAVA_HOME" in result.of["java"]["next"]


def test_sinks(doctor):
    sinks = 'sinks:\n  here: {type: sqlite, url: "sqlite:///out.db"}\n'
    sql = "CREATE MATERIALIZED VIEW {} WITH (sinks = '{}') AS SELECT * FROM shop.orders"
    result = doctor(sinks, v=sql.format("v", "here"), w=sql.format("w", "nowhere"))
    assert wrong(result) == {"w: sink nowhere"}
    assert result.of["v: sink here"]["state"] == "ok"


@pytest.mark.parametrize("kind", ["files", "hudi"])
def test_a_url_is_no_folder_of_a_sink(doctor, kind):
    """As `check` has it; a view that was never built has no columns to check."""
    sinks = f"sinks:\n  lake: {{type: {kind}, path: 's3://lake/x'}}\n"
    sql = "CREATE MATERIALIZED VIEW v WITH (sinks = 'lake') AS SELECT * FROM shop.orders"
    result = doctor(sinks, v=sql)
    assert "s3://lake/x" in result.of["v: sink lake"]["text"]
    assert wrong(result) == {"v: sink lake"}


def test_sinks_in_folders(doctor, tmp_path):
    (tmp_path / "taken").touch()
    sinks = "".join(
        f"  {name}: {{type: {name}, {option}: {tmp_path}/{place}}}\n"
        for name, option, place in (
            ("iceberg", "warehouse", "ice"),
            ("delta", "path", "taken/lake"),
            ("files", "path", "files"),
        )
    )
    sql = "CREATE MATERIALIZED VIEW v WITH (sinks = 'iceberg, delta, files') AS SELECT * FROM "
    result = doctor(f"sinks:\n{sinks}", v=f"{sql} shop.orders")
    assert wrong(result) == {"v: sink delta"}
    assert "taken is no folder" in result.of["v: sink delta"]["text"]
    assert result.of["v: sink files"]["text"] == "writes v, and what that takes is there"
    assert not (tmp_path / "ice").exists()
    assert not (tmp_path / "files").exists()
