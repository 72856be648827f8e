# ruff: noqa: E501
"""Whatever stands in a configuration or in a view file: a message with its line, never a traceback.

Values of a configuration are in no message: every text here has a planted secret where it can.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from mview.cli import main
from mview.cli.demo import shop
from mview.config.file import load_config

SECRET = "hunter2secret"

GOOD = """\
store: data
connections:
  shop:
    drivername: sqlite
    database: shop.db
changes:
  shop:
    source: files
    format: unified
    path: changes
    T: 1 second
engine:
  chunk_rows: 100
spark:
  master: local[2]
  conf: {}
"""

#: A second connection, whose mistakes are told beside the first's.
CRM = """\
store: data
connections:
  crm:
    drivername: postgresql+psycopg
    host: db.example
    password: ${env:PW}
changes:
  crm:
    source: kafka
    format: debezium
    bootstrap_servers: k:9092
    topic: x.{table}
"""


def good(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def crm(old: str, new: str) -> str:
    assert old in CRM
    return CRM.replace(old, new)


#: Text of the configuration, and the line of its mistake.
CONFIGS: list[tuple[str | bytes, int]] = [
    # no text, no YAML
    ("", 1), ("# only a comment\n", 1), ("---\n", 1), ("null", 1), ("5", 1), ("[a, b]", 1),
    ("just text", 1), (SECRET, 1), (f"- {SECRET}\n", 1),
    (GOOD.encode("utf-16"), 1), (GOOD.encode("utf-16-le"), 1), (GOOD.encode("utf-16-be"), 1),
    (GOOD.encode("utf-32"), 1), (good("shop.db", "größe.db").encode("latin-1"), 5),
    (b"\xff" + GOOD.encode(), 1), (GOOD.encode() + b"\x80", 17), (GOOD + "\0", 17),
    (GOOD + "# \x1b[31m red", 17), ("\x00" * 100, 1), (os.urandom(64) + b"\xff\xff", 1),
    ("a" * 600_000, 1), (GOOD + "#" * 600_000, 1), (GOOD + "---\n" + GOOD, 17),
    (good("store: data", 'store: "da\\0ta"'), 1), (good("shop.db", '"\\ud800.db"'), 5),
    (good("  master:", '  "ma\\0ster":'), 15), (good("path: changes", 'path: "\\0"'), 10),
    (good("store: data", "store: [data"), 2), (good("store: data", 'store: "data'), 1),
    (good("  shop:\n    drivername", "\tshop:\n    drivername"), 3),
    (good("store: data", f"store: *{SECRET}"), 1), (good("store: data", f"store: !{SECRET} x"), 1),
    (good("store: data", f"store: !!python/object:os.{SECRET} x"), 1),
    (good("store: data", "store: !!binary aGk="), 1), (good("store: data", "store: @data"), 1),
    (good("store: data", "store: `data`"), 1), (good("store: data", "store: %data"), 1),
    (good("store: data", "store: data: more"), 1), (good("store: data", "store data"), 2),
    (good("store: data", "  store: data"), 2), (good("store: data", "? [a]\n: b"), 1),
    (good("store: data", "? {a: b}\n: c"), 1), (good("store: data", "1: data"), 1),
    (good("store: data", "on: data"), 1), (good("store: data", "null: data"), 1),
    (good("store: data", "1.5: data"), 1), (good("store: data", '"": data'), 1),
    ("[" * 3000, 1), ("{a: " * 3000, 1), ("- " * 3000, 1), ("a: &a [*a]", 1),
    ("connections: &a {shop: *a}", 1), ("<<: [1]\nstore: x", 1), ("<<: x", 1),
    ("a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)), 1),
    (good("  master: local[2]", f"  master: {'9' * 5000}"), 15),
    # numbers of which YAML 1.1 makes others than are written
    *((good("chunk_rows: 100", f"{name}: {number}"), 13)
      for name in ("chunk_rows", "history", "memory")
      for number in ("017", "1:30", "1:30:00", "-017", "1:30.5", "0b11", "0_17", "08:00")),
    # twice
    (GOOD + "store: other\n", 17), (good("    T: 1 second", "    T: 1 second\n    T: 2 s"), 12),
    (good("engine:", "connections: {}\nengine:"), 12),
    (good("changes:\n", "  shop: {drivername: sqlite}\nchanges:\n"), 6),
    (good("  conf: {}", "  conf: {a: b, a: c}"), 16),
    # unknown
    (good("store:", "stor:"), 1), (GOOD + "path: x\n", 17), (GOOD + f"{SECRET} x: y\n", 17),
    (GOOD + f"postgresql://u:{SECRET}@h/db: y\n", 17),
    (good("drivername: sqlite", "drivername: sqlite\n    name: x"), 5),
    (good("    source: files", "    source: files\n    connection: x"), 9),
    (good("    source: files", "    source: files\n    pth: x"), 9),
    (good("    source: files", "    source: files\n    delay: 1 s"), 9),
    (good("  chunk_rows", "  chunk_rowz"), 13), (good("  master", "  mastr"), 15),
    (good("changes:\n  shop:", "changes:\n  shopp:"), 7),
    # the store
    (good("store: data", "store:"), 1), (good("store: data", "store: ''"), 1),
    (good("store: data", "store: '  '"), 1), (good("store: data", "store: [a, b]"), 1),
    (good("store: data", "store: {a: b}"), 1), (good("store: data", "store: 5"), 1),
    (good("store: data", "store: true"), 1), (good("store: data", "store: ${env:NO_SUCH}"), 1),
    (good("store: data", f"store: s3://k:{SECRET}@bucket"), 1),
    (good("store: data", "store: ${file:/no/such}"), 1), (good("store: data", "store: ${file:/}"), 1),
    # sections
    (good("connections:\n  shop:\n    drivername: sqlite\n    database: shop.db", "connections:"), 2),
    (good("connections:\n  shop:\n    drivername: sqlite\n    database: shop.db", "connections: []"), 2),
    (good("connections:\n  shop:\n    drivername: sqlite\n    database: shop.db",
          f"connections: postgresql://u:{SECRET}@h"), 2),
    (good("  shop:\n    drivername: sqlite\n    database: shop.db", "  shop:"), 3),
    (good("  shop:\n    drivername: sqlite\n    database: shop.db", f"  shop: {SECRET}"), 3),
    (good("  shop:\n    drivername: sqlite\n    database: shop.db", "  - shop"), 2),
    (good("engine:\n  chunk_rows: 100", "engine:"), 12),
    (good("engine:\n  chunk_rows: 100", "engine: [a]"), 12),
    (good("spark:\n  master: local[2]\n  conf: {}", "spark: local"), 14),
    (GOOD + "sinks: delta\n", 17), (GOOD + "sinks: {delta: x}\n", 17), (GOOD + "functions: [f]\n", 17),
    (GOOD + "sinks: {delta: {path: [a]}}\n", 17), (GOOD + "sinks: {delta: {path: }}\n", 17),
    (GOOD + "functions: {f: {python: f, returns: int, deterministic: true}}\n", 17),
    (GOOD + "functions: {f: {python: 'm:f', returns: nonsense, deterministic: true}}\n", 17),
    (GOOD + "functions: {f: {python: 'm:f', returns: int}}\n", 17),
    (GOOD + "functions: {f: {python: 'm:f', returns: int, deterministic: maybe}}\n", 17),
    # a database
    (good("    drivername: sqlite\n", ""), 3), (good("drivername: sqlite", "drivername:"), 4),
    (good("drivername: sqlite", "drivername: ''"), 4), (good("drivername: sqlite", "drivername: [a]"), 4),
    (good("drivername: sqlite", f"drivername: postgresql://u:{SECRET}@h/db"), 4),
    (good("drivername: sqlite", "drivername: 5"), 4), (good("shop.db", "[a]"), 5),
    (good("shop.db", f"sqlite:///{SECRET}"), 5), (good("shop.db", "{a: b}"), 5),
    (crm("db.example", f"u:{SECRET}@db.example"), 5), (crm("db.example", f"pg://{SECRET}"), 5),
    (crm("db.example", "[a, b]"), 5), (crm("db.example", "5"), 5),
    (crm("db.example", f"db\n    username: mview:{SECRET}@h"), 6),
    (crm("db.example", "db\n    port: 0"), 6), (crm("db.example", "db\n    port: 65536"), 6),
    (crm("db.example", "db\n    port: -1"), 6), (crm("db.example", "db\n    port: x"), 6),
    (crm("db.example", "db\n    port: 5432.5"), 6), (crm("db.example", "db\n    port: true"), 6),
    (crm("db.example", f"db\n    database: pg://u:{SECRET}@h/x"), 6),
    (crm("db.example", f"db\n    query: {{password: {SECRET}}}"), 6),
    (crm("db.example", f"db\n    query: {{sslpassword: {SECRET}}}"), 6),
    (crm("db.example", f"db\n    query: {SECRET}"), 6), (crm("db.example", "db\n    query: {a: 1}"), 6),
    (crm("${env:PW}", SECRET), 6), (crm("${env:PW}", "12345"), 6), (crm("${env:PW}", f"[{SECRET}]"), 6),
    (crm("${env:PW}", f"${{vault:{SECRET}}}"), 6), (crm("${env:PW}", f"$ENV_{SECRET}"), 6),
    (crm("${env:PW}", "${env:}"), 6), (crm("${env:PW}", "${ENV:PW}"), 6),
    (crm("${env:PW}", f"!secret {SECRET}"), 6), (crm("${env:PW}", f"%{SECRET}"), 6),
    (crm("password: ${env:PW}", f"pasword: {SECRET}"), 6),
    (crm("password: ${env:PW}", f"passwort: {SECRET}"), 6),
    # a changelog
    (good("source: files", "source: kafkaa"), 8), (good("source: files", "source:"), 8),
    (good("    source: files\n", ""), 7), (good("format: unified", "format: ''"), 9),
    (good("format: unified", "format: [a]"), 9), (good("path: changes", "path:"), 7),
    (good("path: changes", "path: [a, b]"), 10), (good("path: changes", "path: ''"), 7),
    (good("path: changes", f"path: sftp://u:{SECRET}@h/x"), 7), (good("    path: changes\n", ""), 7),
    (good("path: changes", "path: 5"), 10),
    (crm("k:9092", f"u:{SECRET}@k:9092"), 11), (crm("k:9092", f"http://u:{SECRET}@k"), 11),
    (crm("k:9092", "[k1, k2]"), 11), (crm("k:9092", "''"), 11), (crm("k:9092", "9092"), 11),
    (crm("x.{table}", "''"), 12), (crm("x.{table}", "[a]"), 12), (crm("x.{table}", "{table}"), 12),
    (CRM + "    topics: {t: []}\n", 13), (CRM + "    missing_topics: never\n", 13),
    (crm("    topic: x.{table}\n", ""), 8), (CRM + "    heartbeat_topic: ''\n", 13),
    (CRM + "    heartbeat_topic: [a]\n", 13), (CRM + f"    options: {SECRET}\n", 13),
    (CRM + f"    options: {{sasl.password: {SECRET}}}\n", 13),
    (CRM + f"    options: {{ssl.key.pem: {SECRET}}}\n", 13),
    (crm("k:9092", "SASL_SSL://k:9092"), 11),
    (crm("k:9092", f"SASL_SSL://u:{SECRET}@k:9092"), 11), (crm("k:9092", "k1:9092,ssl://k2"), 11),
    (CRM + "    options: {a: [b]}\n", 13), (CRM + "    options: {a: 5}\n", 13),
    # durations and sizes
    *((good("T: 1 second", f"T: {value}"), 11) for value in (
        ".inf", "-.inf", ".nan", "-1", "-1 s", "soon", "1e400", "1e30", "999999999999999999 days",
        "[1]", "{a: b}", "true", "", "''", "1 second 2", "0x10 s", f"{SECRET}")),
    *((good("chunk_rows: 100", f"chunk_rows: {value}"), 13) for value in (
        "0", "-1", "1.5", "many", "true", ".inf", ".nan", "[1]", "", "1e3", "'100'", "1" * 40)),
    *((good("chunk_rows: 100", f"{line}"), 13) for line in (
        "memory: -1", "memory: 0", "memory: 4g", "max_changes: 0", "max_changes: -5",
        "chunk_bytes: 0", "chunks_per_epoch: -1", "history: -1", "history: .inf", "tick: 0",
        "tick: 7 s", "tick: .inf", "max_drift: -1", "alignment: never", "executor: sparkk", "strategy: none",
        "keep_files: -1", "max_bytes: -1")),
    # Spark
    (good("local[2]", ""), 15), (good("local[2]", "''"), 15), (good("local[2]", "[local]"), 15),
    (good("conf: {}", "conf:"), 16), (good("conf: {}", "conf: {a: 5}"), 16),
    (good("conf: {}", "conf: {a: true}"), 16), (good("conf: {}", "conf: [a]"), 16),
    (good("conf: {}", "conf: {a: }"), 16), (good("conf: {}", f"conf: {SECRET}"), 16),
    (good("conf: {}", f"conf: {{spark.executor.extraJavaOptions: -Dpassword={SECRET}}}"), 16),
    (good("conf: {}", "conf: {spark.executor.defaultJavaOptions: '-Dx=${env:PW}'}"), 16),
    (good("conf: {}", "conf: {spark.sql.session.timeZone: Europe/Berlin}"), 16),
]  # fmt: skip

V = "SELECT order_id FROM shop.orders"

#: Text of a view file, and the line of its mistake.
VIEWS: list[tuple[str | bytes, int]] = [
    ("", 1), ("   \n\n", 1), ("-- nothing\n", 1), (";", 1), (V.encode("utf-16"), 1),
    (V.encode("utf-32"), 1), ("SELECT 'größe' AS x".encode("latin-1"), 1), (b"\x80", 1),
    (V + "\n\0", 2), (V + "\n\x1b[2J", 2), ("x" * 600_000, 1), (os.urandom(100) + b"\xff\xff", 1),
    ("SELECT", 1), ("SELECT\nFROM", 2), ("SELECT 'open", 1), ("SELECT `open", 1), ("SELECT 1 AS a; SELECT 2 AS a", 1),
    ("DROP TABLE x", 1), ("INSERT INTO x VALUES (1)", 1), ("CREATE TABLE x (a int)", 1),
    ("CREATE MATERIALIZED VIEW", 1), ("CREATE MATERIALIZED VIEW v", 1),
    ("CREATE MATERIALIZED VIEW v\nWITH", 2), ("CREATE MATERIALIZED VIEW v\nWITH (key", 2),
    (f"CREATE MATERIALIZED VIEW v\nWITH (kee='a') AS {V}", 2),
    (f"CREATE MATERIALIZED VIEW v\nWITH (freshness='soon') AS {V}", 2),
    (f"CREATE MATERIALIZED VIEW v\nWITH (policy='x') AS {V}", 2),
    (f"CREATE MATERIALIZED VIEW v\nWITH (key='a', key='b') AS {V}", 2),
    (f"CREATE MATERIALIZED VIEW `a/b` AS {V}", 1), (f"CREATE MATERIALIZED VIEW a.b AS {V}", 1),
    ("SELECT order_id\nFROM shop.orderz", 2), ("SELECT order_id\nFROM nowhere.orders", 2),
    ("SELECT\nnothing FROM shop.orders", 2), ("SELECT a FROM a.b.c.d", 1),
    ("SELECT " + "(" * 3000 + "1" + ")" * 3000 + " AS x", 1), ("(" * 3000, 1), (")" * 3000, 1),
    ("SELECT " + "-" * 2 + "x", 1), ("{}", 1), ("[1]", 1), ("null", 1), ("select\n,", 2),
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    shop.create(folder / "shop.db", customers=3, orders=3)
    (folder / "changes").mkdir()
    return folder


@pytest.fixture
def check(project: Path, monkeypatch: pytest.MonkeyPatch):
    """Check a configuration and views; returns exit code and all that was said."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("PW", SECRET)

    def run(config: str | bytes = GOOD, *files: Path, command: str = "check") -> tuple[int, str]:
        text = config.encode() if isinstance(config, str) else config
        (project / "mview.yml").write_bytes(text)
        paths = [str(file) for file in files] or ["v.sql"]
        (project / "v.sql").write_text(V)
        result = CliRunner().invoke(main, [command, *paths, "-c", "mview.yml"])
        said = result.stdout + result.stderr
        assert isinstance(result.exception, SystemExit | None), result.exception
        for word in ("Traceback", "Error: unexpected", "report it", "pydantic", SECRET, "\x1b"):
            assert word not in said
        return result.exit_code, said

    return run


def test_the_good_ones_are_good(check, project: Path) -> None:
    assert check()[0] == 0
    for text in ("\ufeff" + GOOD, GOOD.replace("\n", "\r\n"), GOOD + "# ümläut €\n"):
        assert check(text)[0] == 0
    assert check(good("  chunk_rows: 100", "  <<: &x {chunk_rows: 100}"))[0] == 0
    (project / "bom.sql").write_bytes(b"\xef\xbb\xbf" + V.encode())
    assert check(GOOD, project / "bom.sql")[0] == 0


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_a_configuration_tells_the_line_of_its_mistake(check, number: int) -> None:
    text, line = CONFIGS[number]
    code, said = check(text)
    assert code == 2, said
    assert f"mview.yml:{line}" in said, said


def test_a_store_that_no_file_system_can_have(check) -> None:
    code, said = check(good("store: data", f"store: {'a' * 300}"))
    assert (code, "too long" in said, "shorter" in said) == (1, True, True), said


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_a_view_file_tells_the_line_of_its_mistake(check, tmp_path: Path, number: int) -> None:
    text, line = VIEWS[number]
    file = tmp_path / "wrong.sql"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    code, said = check(GOOD, file)
    assert code == 1, said
    assert f"wrong.sql:{line}" in said, said


def test_all_mistakes_of_a_configuration_are_told_at_once_in_their_order(check) -> None:
    text = GOOD.replace("store: data", "store:").replace("sqlite", f"pg://{SECRET}@h")
    text = text.replace("T: 1 second", "T: .inf").replace("chunk_rows: 100", "memory: -1")
    code, said = check(text + "store: x\nstrange: 1\n")
    assert code == 2
    told = [int(line.split(":")[2]) for line in said.splitlines() if "where:" in line]
    assert told == [1, 4, 11, 13, 17, 18]
    assert "6 mistakes" in said


@pytest.mark.parametrize("command", ["check", "explain", "run"])
def test_all_mistakes_of_several_view_files_are_told_at_once(
    check, tmp_path: Path, command: str
) -> None:
    texts = {"a": "SELECT 'open", "b": b"\x80", "c": V, "d": "", "e": "SELECT\nFROM"}
    for name, text in texts.items():
        (tmp_path / f"{name}.sql").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "folder.sql").mkdir()
    (tmp_path / "gone.sql").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.sql").symlink_to(tmp_path / "loop.sql")
    code, said = check(GOOD, tmp_path, command=command)
    assert code == 1
    for place in ("a.sql:1", "b.sql:1", "d.sql:1", "e.sql:2", "gone.sql:1", "loop.sql:1"):
        assert place in said, said
    if command == "check":
        assert "c: ok" in said
        (tmp_path / "f.sql").write_text("SELECT order_id FROM a")
        assert "it reads view 'a', see there" in check(GOOD, tmp_path)[1]


def test_what_is_no_file(check, tmp_path: Path, project: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "no.sql", loop, tmp_path / "empty", Path("x" * 5000), Path("a\0b")):
        code, said = check(GOOD, path)
        assert code == 1, said
    for path in (tmp_path, loop, tmp_path / "no.yml", "x" * 5000, "a\0b", "/dev/zero"):
        result = CliRunner().invoke(main, ["status", "-c", str(path)])
        assert result.exit_code == 2, result.output
        assert "unexpected" not in result.output
    assert check(GOOD, project)[0] == 0


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(
    tmp_path: Path, project: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """In a process of its own: one that waits for a pipe can be ended from outside only."""
    odd = tmp_path / "odd.sql"
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/tty")
    else:
        odd = Path(f"/tmp/mview-odd-{os.getpid()}.sql")  # the name of a socket is 107 bytes at most
        request.addfinalizer(partial(odd.unlink, missing_ok=True))
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(odd))
    texts = {
        "good": GOOD,
        "secret": good("store: data", f"store: ${{file:{odd}}}"),
        "database": good("shop.db", str(odd)),
    }
    for name, text in texts.items():
        (project / f"odd-{name}.yml").write_text(text)
    (project / "odd_view.sql").write_text(V)
    program = f"""
from mview.cli import main
from click.testing import CliRunner
for view, config in [("{odd}", "odd-good.yml"), ("odd_view.sql", "{odd}"),
                     ("odd_view.sql", "odd-secret.yml"), ("odd_view.sql", "odd-database.yml")]:
    result = CliRunner().invoke(main, ["check", view, "-c", config])
    print("code", result.exit_code, result.output)
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, cwd=project)
    assert done.stdout.count("is no regular file") == 4, done.stdout + done.stderr
    codes = [line[5] for line in done.stdout.splitlines() if line.startswith("code ")]
    assert codes == ["1", "2", "2", "2"], done.stdout


def test_what_to_write_for_brokers_with_a_protocol(check) -> None:
    code, said = check(crm("k:9092", "sasl_ssl://k:9092"))
    assert code == 2
    assert "bootstrap_servers: must be host:port" in said
    assert "options: {security.protocol: SASL_SSL}" in said


def test_a_reference_beside_other_text_is_no_url(tmp_path: Path) -> None:
    """Users of some providers are written as user@tenant."""
    file = tmp_path / "mview.yml"
    file.write_text(
        crm("host: db.example", "host: db.example\n    username: ${env:DB_USER}@tenant")
    )
    assert load_config(file).connections["crm"].username == "${env:DB_USER}@tenant"


def test_a_path_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP", str(tmp_path / "elsewhere"))
    (tmp_path / "mview.yml").write_text(
        good("shop.db", "${env:SHOP}/shop.db").replace("path: changes", "path: ${env:SHOP}/changes")
    )
    config = load_config(tmp_path / "mview.yml")
    assert config.connections["shop"].database == str(tmp_path / "elsewhere/shop.db")
    assert config.changes["shop"].path == tmp_path / "elsewhere/changes"
