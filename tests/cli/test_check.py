"""`mview check`: what is wrong, where, and what would be right; fast and without Spark."""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import subprocess
import sys

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.catalog.definitions import digest_of, save_definition
from mview.cli import main
from mview.cli.checking import Checker
from mview.cli.demo import shop
from mview.config.file import load_config
from mview.errors import ExitCode, RetryableError
from mview.plan.definition import parse_view
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from tests.relations import rel

CONFIG = """
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a small shop; tests only add files."""
    folder = tmp_path_factory.mktemp("project")
    shop.create(folder / "shop.db", customers=5, orders=10)
    database = sqlite3.connect(folder / "shop.db")
    database.executescript("CREATE TABLE keyless (a INTEGER); CREATE VIEW seen AS SELECT 1 AS a")
    database.close()
    (folder / "changes").mkdir()
    (folder / "conf").mkdir()
    (folder / "conf/mview.yml").write_text(
        CONFIG.replace("shop.db", "../shop.db").replace("changes,", "../changes,")
    )
    return folder


@pytest.fixture
def check(project, tmp_path, monkeypatch):
    """Check views given as `name="SQL"` and return (exit code, stdout, stderr)."""
    monkeypatch.chdir(project)

    def run(*options, **views):
        for name, sql in views.items():
            (tmp_path / f"{name}.sql").write_text(sql)
        result = CliRunner().invoke(main, ["check", str(tmp_path), *options])
        return result.exit_code, result.stdout, result.stderr

    return run


def caret_token(text):
    """The text that the carets stand under."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if re.fullmatch(r" *\^+", line))
    start = lines[at].index("^")
    return lines[at - 1][start : start + lines[at].count("^")]


def test_a_sound_view_gives_its_key_tables_and_strategies(check):
    code, out, err = check(
        v="SELECT customer_id, count(*) AS n FROM shop.orders GROUP BY customer_id"
    )
    assert (code, err) == (0, "")
    assert out.startswith("v: ok, key customer_id, reads shop.orders; ")


@pytest.mark.parametrize(
    ("sql", "token", "hint"),
    [
        ("SELECT order_id FROM shop.orderz", "shop.orderz", "did you mean 'shop.orders'?"),
        ("SELECT order_id\nFROM shopp.orders", "shopp.orders", "did you mean 'shop'?"),
        ("SELECT order_id\nFROM SHOP.orders", "SHOP.orders", "did you mean 'shop'?"),
        ("SELECT o.stats FROM shop.orders o", "o.stats", "did you mean 'status'?"),
        ("SELECT a FROM shop.keyless", "shop.keyless", "add one in the database"),
        ("SELECT a FROM shop.seen", "shop.seen", "write the query of the view"),
        ("SELECT n FROM another_view", "another_view", ""),
        (
            "CREATE MATERIALIZED VIEW v WITH (kye='order_id') AS SELECT order_id FROM shop.orders",
            "kye",
            "did you mean 'key'?",
        ),
        (
            "CREATE MATERIALIZED VIEW v WITH (freshness='soon') AS SELECT 1 AS a",
            "'soon'",
            "10 seconds",
        ),
    ],
)
def test_an_error_has_a_caret_under_the_wrong_token_and_a_hint(check, sql, token, hint):
    code, out, err = check(v=sql)
    shown = out + err
    assert code == 1, shown
    assert caret_token(shown) in (token, token.split(".")[-1]), shown
    assert hint in shown
    assert "v.sql:" in shown
    assert "Traceback" not in shown


def test_a_table_outside_of_the_store_and_what_its_readers_must_know(check):
    code, out, err = check(
        v="CREATE MATERIALIZED VIEW v WITH (path='out/v') AS SELECT order_id FROM shop.orders",
        plain="CREATE MATERIALIZED VIEW plain WITH (path='out/p', sink.deletion_vectors='false') "
        "AS SELECT order_id FROM shop.orders",
        inside="SELECT order_id FROM shop.orders",
    )
    assert code == 0
    assert out.count(": ok") == 3
    (told,) = err.splitlines()
    assert told.startswith("note: the table of v has deletion vectors when it has more than 1 MB")
    assert "sink.deletion_vectors='false'" in told


@pytest.mark.parametrize(
    ("properties", "what", "hint"),
    [
        ("sink.pth='x'", "its sink has no option 'pth'", "did you mean 'path'?"),
        ("sink.color='red'", "its sink has no option 'color'", "path"),
        ("sink='dleta'", "no connector named 'dleta' among sinks", "did you mean 'delta'?"),
        ("sink.deletion_vectors='perhaps'", "deletion_vectors", "true"),
        ("path='50%'", "'%' in the path of a Delta table", ""),
        ("sinks='lake'", "there is no sink 'lake' to follow it", "declare it: sinks: lake: with"),
    ],
)
def test_a_sink_or_an_option_of_it_that_does_not_exist(check, properties, what, hint):
    sql = f"CREATE MATERIALIZED VIEW v WITH ({properties}) AS SELECT order_id FROM shop.orders"
    code, out, _ = check(v=sql, sound="SELECT order_id FROM shop.orders")
    assert code == 1
    assert what in out
    assert hint in out
    assert "v.sql" in out
    assert "sound: ok" in out


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        ("partition: 'bucket(16, nope)', warehouse: w", "bucket(16, nope)"),
        ("partition: 'buckt(16, order_id)', warehouse: w", "buckt(16, order_id)"),
        ("partition: amount, warehouse: w", "amount"),
        ("partition: ''", "sink lake has no warehouse"),
        ("warehouse: w, properties: {write.parquet.compression-codec: x}", "must be one of zstd"),
    ],
)
def test_an_option_of_a_sink_that_does_not_fit_the_columns(check, project, sink, what):
    """Before anything is loaded for it: what follows a view is made when the view is there."""
    file = project / "conf/mview.yml"
    before = file.read_text()
    file.write_text(f"{before}\nsinks: {{lake: {{type: iceberg, {sink}}}}}\n")
    try:
        code, out, err = check(
            v="CREATE MATERIALIZED VIEW v WITH (sinks='lake') AS"
            " SELECT order_id, CAST(order_id AS DOUBLE) AS amount FROM shop.orders"
        )
    finally:
        file.write_text(before)
    assert code == ExitCode.CHECK_FAILED, (out, err)
    assert what in out + err


def test_a_view_name_that_is_a_path_is_refused(check):
    code, out, err = check(v="CREATE MATERIALIZED VIEW `../up` AS SELECT 1 AS a")
    assert code == 1
    assert "is not a view name" in out + err


def test_the_name_of_a_file_forges_no_line(check):
    code, out, err = check(**{"a\nnext: rm": "SELECT 1 AS a"})
    assert code == 1
    assert "is not a view name" in out
    assert not [line for line in (out + err).splitlines() if line.startswith("next: rm")]


def test_every_view_is_checked_not_only_up_to_the_first_error(check):
    code, out, _ = check(
        a="SELECT nothing FROM shop.orders",
        b="SELECT order_id FROM shop.orders",
        c="SELECT * FROM a",
        d="SELECT nowhere FROM shop.customers",
    )
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines() if re.match(r"[a-d]: ", line)] == list(
        "abcd"
    )
    assert "b: ok" in out
    assert "c: it reads view 'a', see there" in out


def test_the_result_as_json(check):
    code, out, _ = check(
        "--json",
        good="SELECT order_id FROM shop.orders",
        wrong="SELECT stats FROM shop.orders",
    )
    assert code == 1
    good, wrong = json.loads(out)
    assert good["ok"] is True
    assert good["key"] == ["order_id"]
    assert wrong["ok"] is False
    assert wrong["error"]["where"].endswith("wrong.sql:1:8")


def test_offline_needs_a_store_that_knows_the_tables(check):
    code, _, err = check("--offline", v="SELECT order_id FROM shop.orders")
    assert code == 2
    assert "the columns of shop.orders are not in the store" in err
    assert "or run the view once" in err
    # Of a light view a run keeps no columns.
    light = "CREATE MATERIALIZED VIEW v WITH (mode = 'light', sinks = 'there') AS "
    code, _, err = check("--offline", v=f"{light} SELECT order_id FROM shop.orders")
    assert code == 2
    assert "check without --offline" in err
    assert "run the view" not in err


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A project whose store knows shop.orders and a view, and whose database is gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "changes").mkdir()
    (tmp_path / "mview.yml").write_text(CONFIG.replace("connections:", "store: data\nconnections:"))
    orders = TableSchema(
        (Column("order_id", pa.int64()), Column("status", pa.string())), ("order_id",)
    )
    view = parse_view("SELECT order_id, status FROM shop.orders", "known")
    claim_store(tmp_path / "data")
    save_definition(Store(tmp_path / "data"), view)
    manifest = Manifest(
        1, 1, 0, 1, 0,
        tables={rel("shop.orders"): TableState(orders, 0, 0)},
        views={"known": ViewState(digest_of(view), "LINEAR", orders, {"version": 0}, 1)},
    )  # fmt: skip
    ManifestLog(tmp_path / "data/manifest").publish(manifest)

    def run(sql, *options):
        (tmp_path / "v.sql").write_text(sql)
        result = CliRunner().invoke(main, ["check", "v.sql", "-c", "mview.yml", *options])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_offline_takes_tables_and_views_from_the_store(kept):
    assert kept("SELECT status FROM shop.orders", "--offline")[0] == 0
    assert kept("SELECT status FROM known", "--offline") == (
        0,
        "v: ok, no key, reads known; LINEAR\n",
        "",
    )
    assert kept("SELECT nothing FROM known", "--offline")[0] == 1


def test_a_sink_is_looked_at_with_the_columns_that_the_query_has_now(kept, tmp_path):
    """Those that were published have the same names, but other types."""
    file = tmp_path / "mview.yml"
    sink = "{type: iceberg, partition: status, warehouse: w}"
    file.write_text(f"{file.read_text()}\nsinks: {{lake: {sink}}}\n")
    known = "CREATE MATERIALIZED VIEW known WITH (sinks='lake') AS SELECT order_id, {} FROM"
    code, out, err = kept(f"{known.format('status')} shop.orders", "--offline")
    assert code == 0, (out, err)
    double = known.format("CAST(order_id AS DOUBLE) AS status")
    code, out, err = kept(f"{double} shop.orders", "--offline")
    assert code == ExitCode.CHECK_FAILED, (out, err)
    assert "status" in out + err


def test_a_view_that_is_one_to_spark_with_one_of_the_store(kept):
    sql = "CREATE MATERIALIZED VIEW KNOWN AS SELECT status FROM shop.orders"
    code, out, _ = kept(sql, "--offline")
    assert code == 1
    assert out.startswith("KNOWN: views 'known' and 'KNOWN' differ in case only")
    assert kept(sql.replace("KNOWN", "known"), "--offline")[0] == 0


def test_a_database_that_is_down_is_replaced_by_what_the_store_knows(kept, monkeypatch):
    def down(*_):
        raise RetryableError("database 'shop' cannot be reached")

    code, out, err = kept("SELECT status FROM shop.orders")
    assert code != 0, "a file that is not there is wrong, not down"
    monkeypatch.setattr("mview.cli.checking.describe_tables", down)
    code, out, err = kept("SELECT status FROM shop.orders")
    assert code == 0
    assert out.startswith("v: ok")
    assert err == "note: database 'shop' cannot be reached; its columns are taken from the store\n"
    code, out, err = kept("SELECT a FROM shop.other")
    assert code == 1
    assert err.startswith("Error: database 'shop' cannot be reached")


@pytest.mark.parametrize("section", ["connections", "changes"])
def test_a_connection_that_is_no_more_is_told_also_of_tables_in_the_store(kept, tmp_path, section):
    text = (tmp_path / "mview.yml").read_text()
    (tmp_path / "mview.yml").write_text(
        re.sub(rf"(?m)^{section}:\n.*\n", f"{section}: {{}}\n", text)
    )
    code, out, err = kept("SELECT status FROM shop.orders")
    assert code != 0
    told = {"connections": "there is no connection 'shop'", "changes": "has no changelog"}
    assert told[section] in out + err


def test_a_connection_that_is_not_safe_is_said_before_a_run(project, tmp_path, monkeypatch):
    (tmp_path / "mview.yml").write_text(
        f"connections: {{shop: {{drivername: sqlite, database: {project}/shop.db}}}}\n"
        "changes: {shop: {source: kafka, format: unified, topic: 's.{table}',\n"
        "  bootstrap_servers: 'k.example.org:9092'}}\n"
    )
    (tmp_path / "v.sql").write_text("SELECT order_id FROM shop.orders")
    monkeypatch.setattr("mview.cli.checking.check_changelogs", lambda *_: None)
    given = ["check", str(tmp_path / "v.sql"), "--config", str(tmp_path / "mview.yml"), "--json"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("WARNING: changes.shop: the connection to Kafka at k.example")
    assert json.loads(result.stdout)[0]["ok"]


def test_a_sink_that_is_called_like_the_kind_of_the_views_own_tables(
    tmp_path, monkeypatch, project
):
    """Its section says nothing of these."""
    sql = "WITH (sinks = 'delta') AS SELECT customer_id, name FROM shop.customers"
    (tmp_path / "v.sql").write_text(f"CREATE MATERIALIZED VIEW v {sql}")
    config = project / "conf/sinks.yml"
    section = f"sinks:\n  delta: {{type: delta, path: {tmp_path}/lake}}\n"
    config.write_text((project / "conf/mview.yml").read_text() + section)
    monkeypatch.chdir(project)
    result = CliRunner().invoke(main, ["check", str(tmp_path), "-c", str(config)])
    assert result.exit_code == 0, result.output


def test_a_sink_that_is_not_verified_is_said_once(tmp_path, monkeypatch, project):
    server = "{type: clickhouse, url: 'http://ch.example.org:8123'}"
    sections = f"sinks:\n  away: {server}\n  wrong: {{type: nothing}}\n"
    for name in ("v", "w"):
        sql = "WITH (sinks = 'away') AS SELECT customer_id, name FROM shop.customers"
        (tmp_path / f"{name}.sql").write_text(f"CREATE MATERIALIZED VIEW {name} {sql}")
    config = project / "conf/sinks.yml"
    config.write_text((project / "conf/mview.yml").read_text() + sections)
    monkeypatch.chdir(project)
    result = CliRunner().invoke(main, ["check", str(tmp_path), "-c", str(config)])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("WARNING: sinks.away.url: the connection to its server") == 1


def test_it_takes_no_spark_and_three_times_its_imports(project, tmp_path):
    """Two seconds where nothing else runs; beside other tests all takes longer, imports as well."""
    (tmp_path / "v.sql").write_text("SELECT order_id FROM shop.orders")
    script = (
        "import sys\n"
        "from mview.cli import main\n"
        f"main(['check', {str(tmp_path)!r}], standalone_mode=False)\n"
        "heavy = {'pyspark', 'delta', 'deltalake', 'duckdb', 'pandas', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    imports = "import click, pyarrow, pydantic, sqlalchemy, sqlglot, yaml"
    # The first run may compile.
    assert any(cpu_seconds(script, project) < 3 * cpu_seconds(imports, project) for _ in range(3))


def cpu_seconds(script, folder):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_view_over_one_that_is_not_built_knows_its_types(project, monkeypatch):
    """What runs in process is asked for them; what only Spark can tell is said to be open."""
    monkeypatch.chdir(project)
    notes: list[str] = []
    checker = Checker(load_config(project / "conf/mview.yml"), False, notes.append)
    texts = {
        "low": "select product, count(*) as n, sum(price) as total from shop.order_lines"
        " group by product",
        "high": "select n, sum(total) as total from low group by n",
        "coded": "select customer_id, soundex(name) as code from shop.customers",
        "codes": "select code, count(*) as n from coded group by code",
        "counts": "select n, count(*) as codes from codes group by n",
        **{f"more_{number}": "select code from coded" for number in range(6)},
    }
    views = [parse_view(text, name) for name, text in texts.items()]
    assert [view.error for view in checker.check(views)] == [None] * 11
    low = {c.name: str(c.type) for c in checker.schemas[RelationId("view", "low")].columns}
    assert low == {"product": "string", "n": "int64", "total": "decimal128(20, 2)"}
    assert notes == [
        "note: plans may change, as views that they read are not built yet (coded, codes): "
        "codes, counts, more_0, more_1, more_2 and 3 more",
    ]


@pytest.mark.parametrize(
    ("sql", "types"),
    [
        (
            "select customer_id, name from shop.customers order by name, customer_id limit 3",
            {"customer_id": "int64", "name": "string"},
        ),
        (
            "select customer_id, count(distinct order_id) as n,"
            " (select max(customer_id) from shop.customers) as m"
            " from shop.orders group by customer_id",
            {"customer_id": "int64", "n": "int64", "m": "int64"},
        ),
        (
            "with t as (select customer_id, count(*) as n from shop.orders group by customer_id)"
            " select n, count(*) as many from t group by n",
            {"n": "int64", "many": "int64"},
        ),
    ],
    ids=["top", "value", "cte"],
)
def test_a_view_of_parts_that_another_reads_or_a_sink_follows(project, monkeypatch, sql, types):
    """Its parts are the engine's: nothing but its own text knows them."""
    monkeypatch.chdir(project)
    checker = Checker(load_config(project / "conf/mview.yml"), False, lambda note: None)
    views = [parse_view(sql, "low"), parse_view("select * from low", "high")]
    assert [view.error for view in checker.check(views)] == [None, None]
    low = checker.schemas[RelationId("view", "low")]
    assert {column.name: str(column.type) for column in low.columns} == types
