"""`mview init`: from a database to files that check accepts."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from pathlib import Path

import orjson
import pytest
import yaml
from click.testing import CliRunner
from mview_connectors.changelogs.mysql.server import MysqlServer
from mview_connectors.databases.sqlite import SqliteDatabase

from mview.admin.init.files import configuration
from mview.cli import main
from mview.config.file import load_config
from mview.secrets import reveal
from tests.connectors.test_databases_mssql import Server, answers


def mview(*arguments):
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect(tmp_path / "my shop.db")
    database.executescript(
        """
        CREATE TABLE "my order" (id INTEGER PRIMARY KEY, total NUMERIC);
        INSERT INTO "my order" VALUES (1, 2), (3, 4);
        CREATE TABLE people (id INTEGER PRIMARY KEY);
        CREATE TABLE bare (a INTEGER);
        """
    )
    database.close()
    return tmp_path


@pytest.mark.parametrize("where", [".", "project"])
def test_what_it_writes_is_accepted(folder, where):
    result = mview("init", "sqlite:///my shop.db", "--folder", where)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:4] == [
        "tables",
        "  bare          left out: table my_shop.bare has no primary key, and no unique index "
        "of columns that are NOT NULL; add one in the database: ALTER TABLE `bare` ADD PRIMARY KEY "
        "(...); or say which columns, all NOT NULL, tell its rows apart: "
        "connections.my_shop.tables.bare.key: [...]",
        "  my order  id  about 2 rows",
        "  people    id  about 0 rows",
    ]
    at = folder / where
    assert (at / "sql/my_order.sql").read_text() == "SELECT *\nFROM my_shop.`my order`\n"
    assert load_config(at / "mview.yml").connections["my_shop"].database == str(
        folder / "my shop.db"
    )
    heading = lines.index("missing, before they can be followed")
    told = lines[heading + 1].split("`")[1]
    config = str(at / "mview.yml")
    command, view = lines[-2].split()[1:3]
    assert mview(command, view, "--config", config).exit_code == 2
    made = mview(*shlex.split(told)[1:])
    assert made.exit_code == 0, made.output
    assert "triggers made: my order" in made.stdout
    assert "missing" not in made.stdout
    checked = mview(command, view, "--config", config)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.startswith("my_order: ok, key id, reads my_shop.my order; ")


def test_nothing_is_written_over(folder):
    assert mview("init", "sqlite:///my shop.db").exit_code == 0
    before = (folder / "mview.yml").read_text()
    again = mview("init", "sqlite:///my shop.db", "--name", "other")
    assert again.exit_code == 2
    assert "mview.yml is there already" in again.stderr
    assert (folder / "mview.yml").read_text() == before


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("sqlite:///my shop.db", "mview.yml"),
        ("sqlite:///my shop.db", "sql"),
        ("mariadb://user@nowhere/my_shop", "debezium-my_shop.json"),
    ],
)
def test_nothing_is_written_where_one_of_its_files_is(folder, url, there):
    before = sorted([*folder.iterdir(), folder / there])
    (folder / there).touch()
    result = mview("init", url)
    assert result.exit_code == 2
    assert f"{there} is there already" in result.stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["postgresql://a:hush@h/d"], "the URL has a password"),
        (["shop.db"], "this is no URL of a database"),
        (["sqlite://"], "the URL names no database"),
        (["sqlite:///"], "the URL names no database"),
        (["sqlite:///:memory:"], "the URL names no database"),
        (["mariadb://user@host"], "the URL names no database"),
        (["postgresql://user@host:5432/"], "the URL names no database"),
        (["oracle://h/d"], "allowed: postgresql://user@host:5432/database, mariadb://"),
        (["postgres://h/d"], "next:    did you mean 'postgresql'?"),
        (["kafka://h:9092/d"], "give the URL of the database whose changes are in Kafka"),
        (["sqlite:///none.db"], "there is no file none.db"),
        (["sqlite:///srv/shop.db"], "begins after three slashes: sqlite:////srv/shop.db"),
        (["sqlite:///my shop.db", "--name", "My-Shop"], "cannot be the name of a connection"),
    ],
)
def test_what_it_refuses(folder, arguments, told):
    result = mview("init", *arguments)
    assert result.exit_code in (1, 2)
    assert told in result.stderr
    assert "hush" not in result.output
    assert not (folder / "mview.yml").exists()
    assert not (folder / "none.db").exists()


@pytest.mark.parametrize("password", ["", "wrong"])
def test_what_the_server_refuses_is_told_by_what_was_given(
    folder, monkeypatch, postgresql, password
):
    settings = postgresql.settings("postgres")
    url = f"postgresql://nobody@{settings['host']}:{settings['port']}/postgres"
    if password:
        monkeypatch.setenv("CRM_PASSWORD", password)
    told = mview("init", f"{url}?connect_timeout=9", "--name", "crm")
    assert told.exit_code in (1, 2)
    assert f"where:   {url}, with the password of CRM_PASSWORD\n" in told.stderr
    assert "no file was written" in told.stderr
    assert "connections.crm" not in told.stderr
    assert not (folder / "mview.yml").exists()


def test_a_server_that_is_away_has_nothing_that_stays(folder, monkeypatch):
    monkeypatch.setenv("CRM_PASSWORD", "any")
    told = mview("init", "postgresql://nobody@127.0.0.1:1/crm")
    assert told.exit_code == 1
    assert "where:   postgresql://nobody@127.0.0.1:1/crm, with the password of" in told.stderr
    assert "no file was written" in told.stderr
    assert "stays" not in told.stderr


@pytest.mark.parametrize("beside", [False, True])
def test_triggers_that_cannot_be_made_are_told_by_the_url(folder, monkeypatch, beside):
    if beside:
        (folder / "mview.yml").write_text("store: store\n")
    server = "mview_connectors.changelogs.sqlite.server.SqliteServer"
    monkeypatch.setattr(f"{server}._writing", lambda at, task: at._transaction("BEGIN", task, 1))
    other = sqlite3.connect("my shop.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told = mview("init", "sqlite:///my shop.db", "--triggers")
    other.close()
    assert told.exit_code == 1
    assert "failed while installing triggers\n  where:   sqlite:///my shop.db\n" in told.stderr
    assert "got:     database is locked" in told.stderr
    assert "data:    no file was written" in told.stderr
    assert "another program holds a lock on the file" in told.stderr
    assert "server" not in told.stderr


def test_what_is_no_database_is_told_by_its_file(folder):
    (folder / "a.db").write_text("id,total\n" * 99)
    told = mview("init", "sqlite:///a.db", "--triggers")
    assert told.exit_code == 1
    assert "next:    check the path and the rights of the file\n" in told.stderr


def test_triggers_are_made_and_found_and_made_again(folder):
    result = mview("init", "sqlite:///my shop.db", "--triggers")
    assert result.exit_code == 0, result.stderr
    assert "triggers made: my order\ntriggers made: people\nwritten: " in result.stdout
    assert load_config(folder / "mview.yml").changes["my_shop"].source == "sqlite"
    checked = mview("check", "sql", "--config", "mview.yml")
    assert checked.exit_code == 0, checked.output
    again = mview("init", "sqlite:///my shop.db", "--triggers", "--json")
    assert json.loads(again.stdout)["triggers"] == json.loads(again.stdout)["files"] == []
    database = sqlite3.connect(folder / "my shop.db")
    database.execute('DROP TRIGGER "_mview_insert_my order"')
    database.close()
    checked = mview("check", "sql", "--config", "mview.yml")
    assert checked.exit_code == 2
    assert "the triggers of my_shop.my order are not installed" in checked.stderr
    again = mview("init", "sqlite:///my shop.db", "--triggers", "--json")
    assert json.loads(again.stdout)["triggers"] == ["my order"]
    mine = "changes: {my_shop: {source: files, format: unified, path: changes}}"
    text = (folder / "mview.yml").read_text().split("changes:")[0]
    (folder / "mview.yml").write_text(text + mine)
    again = mview("init", "sqlite:///my shop.db", "--triggers")
    assert "mview.yml does not follow my_shop by its triggers yet; write there" in again.stdout
    other = mview("init", "postgresql://u@h/d", "--triggers")
    assert other.exit_code == 2
    assert "triggers are for SQLite" in other.stderr


def test_triggers_beside_a_configuration_of_other_databases(folder):
    """Nothing reads them until the file has a connection to the database: what to write is told."""
    (folder / "conf").mkdir()
    (folder / "conf" / "mview.yml").write_text(
        "store: store\n"
        "connections:\n"
        "  my_shop: {drivername: sqlite, database: other.db}\n"
        "changes:\n"
        "  my_shop: {source: sqlite, T: 1 second}\n"
    )
    command = ("init", "sqlite:///my shop.db", "--triggers", "--folder", "conf")
    made = mview(*command)
    assert made.exit_code == 0, made.output
    assert "triggers made: my order" in made.stdout
    (told,) = (line for line in made.stdout.splitlines() if "has no connection" in line)
    connection, changes = re.findall(r"under (?:connections|changes): (.*?\})", told)
    config = yaml.safe_load((folder / "conf" / "mview.yml").read_text())
    config["connections"] |= yaml.safe_load(connection)
    config["changes"] |= yaml.safe_load(changes)
    (folder / "conf" / "mview.yml").write_text(yaml.safe_dump(config))
    assert "missing" not in mview(*command).stdout
    (folder / "v.sql").write_text("select id from my_shop_2.people")
    checked = mview("check", "v.sql", "--config", "conf/mview.yml")
    assert checked.exit_code == 0, checked.output


def test_sql_server_is_followed_by_debezium(folder, monkeypatch):
    """As docs/sqlserver.md has it; what captures its changes is told per table."""
    asked = answers() | {"FROM sys.objects": [("orders", "U ", "dbo")]}
    server = Server(asked | {"FROM sys.tables": [(False,)], "s.name <> ?": []})
    monkeypatch.setattr("mview.admin.init.open_database", lambda config, name: server)
    result = mview("init", "mssql://mview@erp.example/shop", "--name", "erp", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    (missing,) = told["missing"]
    assert "sys.sp_cdc_enable_db" in missing
    assert "@source_schema = N'dbo', @source_name = N'orders'" in missing
    config = load_config(folder / "mview.yml")
    assert config.connections["erp"].drivername == "mssql+pyodbc"
    changes = config.changes["erp"]
    page = (Path(__file__).parents[2] / "docs/sqlserver.md").read_text().split("```yaml\n")[1]
    documented = yaml.safe_load(page.split("```")[0])["changes"]["erp"]
    assert (changes.source, changes.format, changes.delay) == ("kafka", "debezium", 30_000)
    assert changes.topic == documented["topic"].replace("erp.erp", "erp.shop")
    assert changes.heartbeat_topic == documented["heartbeat_topic"]
    assert changes.options.items() >= documented["options"].items()
    connector = json.loads((folder / "debezium-erp.json").read_text())
    assert connector["connector.class"] == "io.debezium.connector.sqlserver.SqlServerConnector"
    assert (connector["database.names"], connector["database.port"]) == ("shop", "1433")
    assert connector["topic.prefix"] == "erp"
    assert "docs/sources.md, a connector of Debezium)\n" in (folder / "mview.yml").read_text()


def test_tables_that_triggers_cannot_follow_are_told(folder):
    database = sqlite3.connect(folder / "my shop.db")
    database.executescript(
        """
        INSERT INTO people VALUES (1), (2), (3), (4);
        CREATE UNIQUE INDEX some ON people (id) WHERE id > 5;
        CREATE TABLE keyless (a INTEGER NOT NULL UNIQUE);
        """
    )
    database.close()
    result = mview("init", "sqlite:///my shop.db", "--triggers")
    assert result.exit_code == 0, result.stderr
    told = {line.split("  ")[1]: line for line in result.stdout.splitlines() if "left out" in line}
    assert "no primary key; give the table a PRIMARY KEY" in told["keyless"]
    assert "unique index some of my_shop.people has a condition" in told["people"]
    assert "triggers made: my order\nwritten: " in result.stdout
    assert sorted(path.name for path in (folder / "sql").iterdir()) == ["my_order.sql"]
    again = json.loads(mview("init", "sqlite:///my shop.db", "--triggers", "--json").stdout)
    assert {t["name"] for t in again["tables"] if t["why"]} == {"bare", "keyless", "people"}


def test_the_columns_that_can_be_read_are_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("a.db")
    database.execute('CREATE TABLE g (id INTEGER PRIMARY KEY, "p q" GEOMETRY, "n ame" TEXT)')
    result = mview("init", "sqlite:///a.db", "--triggers")
    assert result.exit_code == 0, result.output
    assert "not all columns: column type GEOMETRY" in result.stdout
    comment, view = (tmp_path / "sql" / "g.sql").read_text().split("\n", 1)
    assert comment.startswith("-- Not all columns: column type GEOMETRY")
    assert view == "SELECT `id`, `n ame`\nFROM a.g\n"
    assert mview("check", "sql").exit_code == 0


@pytest.mark.service
def test_a_setting_that_all_tables_need_is_written_as_a_comment(tmp_path, monkeypatch, mariadb):
    monkeypatch.chdir(tmp_path)
    with mariadb.new_database() as database:
        mariadb.execute(
            "CREATE TABLE a (x int NOT NULL, `no` int NOT NULL, n int); CREATE TABLE d (n int)",
            database,
        )
        settings = mariadb.settings(database)
        monkeypatch.setenv("CRM_PASSWORD", reveal(settings["password"], "tests"))
        url = f"mariadb://{settings['username']}@127.0.0.1:{settings['port']}/{database}"
        result = mview("init", url, "--name", "crm")
        assert result.exit_code == 1
        assert (
            "set first what mview.yml has as a comment: a key; then\nmview check" in result.stdout
        )
        assert mview("check", "sql").exit_code == 1
        file = tmp_path / "mview.yml"
        text = file.read_text()
        lines = ("tables:", '  "a": {key: ["x", "no"]}')
        for line in lines:
            text = text.replace(f"    # {line}\n", f"    {line}\n")
        file.write_text(text)
        assert '"d"' not in text, "none of its columns can be of a key"
        checked = mview("check", "sql")
        assert checked.stdout == "a: ok, key x, no, reads crm.a; LINEAR\n", checked.output
        file.write_text(text.replace('["x", "no"]', '["n", "no"]'))
        refused = mview("check", "sql").output
        assert "column 'n' of the key may be NULL" in refused
        assert "make NOT NULL, in the database, what tells the rows apart" in refused


def test_columns_that_cannot_be_read_are_told_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("a.db")
    more = ", ".join(f"c{number} TEXT" for number in range(20))
    database.execute(f'CREATE TABLE g (id INTEGER PRIMARY KEY, a GEOMETRY, "no" THING, {more})')
    asked = []
    describe = SqliteDatabase.describe
    monkeypatch.setattr(
        SqliteDatabase, "describe", lambda *given: (asked.append(given), describe(*given))[1]
    )
    result = mview("init", "sqlite:///a.db", "--triggers")
    assert result.exit_code == 0, result.output
    assert "not all columns: 2 columns cannot be read exactly: a: column type G" in result.stdout
    assert len(asked) == 2
    (tmp_path / "sql" / "g.sql").write_text("SELECT * FROM a.g")
    refused = mview("check", "sql")
    assert refused.exit_code == 1
    assert 'or leave them out: connections.a.tables.g.exclude: [a, "no"]' in refused.output
    config = tmp_path / "mview.yml"
    config.write_text(
        config.read_text().replace("a.db", 'a.db\n    tables: {g: {exclude: [a, "no"]}}')
    )
    assert mview("check", "sql").exit_code == 0


def test_nothing_is_written_until_a_table_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("a.db")
    database.execute("CREATE TABLE bare (a INTEGER)")
    first = mview("init", "sqlite:///a.db", "--triggers")
    assert first.exit_code == 1
    assert "left out: table a.bare has no primary key" in first.stdout
    assert "no table can be read yet; change one in the database, then run the same" in first.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
    database.execute("CREATE TABLE good (id INTEGER PRIMARY KEY)")
    again = mview("init", "sqlite:///a.db", "--triggers")
    assert again.exit_code == 0, again.output
    assert again.stdout.endswith("\nmview check sql/good.sql\nmview run sql/good.sql\n")


@pytest.mark.service
def test_what_a_log_lacks_is_told_at_once(folder, monkeypatch, postgresql):
    with postgresql.new_database() as database:
        postgresql.execute("CREATE TABLE orders (id bigint PRIMARY KEY)", database)
        postgresql.execute(
            "DROP ROLE IF EXISTS init_reader; CREATE ROLE init_reader LOGIN PASSWORD 'r'", database
        )
        monkeypatch.setenv("CRM_PASSWORD", "r")
        settings = postgresql.settings(database)
        where = f"init_reader@{settings['host']}:{settings['port']}/{database}"
        command = ("init", f"postgresql://{where}", "--name", "crm")
        blind = mview(*command)
        assert blind.exit_code == 1
        assert 'GRANT SELECT ON "public"."orders" TO "init_reader"' in blind.stdout
        assert 'ALTER ROLE "init_reader" REPLICATION' in blind.stdout
        assert not (folder / "mview.yml").exists()
        postgresql.execute("GRANT SELECT ON orders TO init_reader", database)
        result = mview(*command)
        assert result.exit_code == 0, result.output
        missing = result.stdout.split("missing, before they can be followed\n")[1].split("\n\n")[0]
        role, publication = missing.splitlines()
        assert 'ALTER ROLE "init_reader" REPLICATION' in role
        assert 'FOR TABLE "public"."orders"' in publication
        postgresql.execute("DROP OWNED BY init_reader; DROP ROLE init_reader", database)


@pytest.mark.service
def test_all_rights_that_are_missing_are_told_at_once(folder, monkeypatch, mariadb):
    with mariadb.new_database() as database:
        mariadb.execute("CREATE TABLE orders (id bigint PRIMARY KEY)", database)
        mariadb.execute("CREATE OR REPLACE USER init_reader@'%' IDENTIFIED BY 'r'", database)
        monkeypatch.setenv("CRM_PASSWORD", "r")
        settings = mariadb.settings(database)
        where = f"init_reader@{settings['host']}:{settings['port']}/{database}"
        outside = mview("init", f"mariadb://{where}", "--name", "crm")
        assert f"next:    GRANT SELECT ON `{database}`.* TO 'init_reader'@'%'" in outside.stderr
        mariadb.execute(f"GRANT SHOW VIEW ON {database}.* TO init_reader@'%'", database)
        blind = mview("init", f"mariadb://{where}", "--name", "crm")
        assert blind.exit_code == 1
        assert not (folder / "mview.yml").exists()
        rights = ("SELECT ON ", "BINLOG MONITOR", "REPLICA MONITOR", "PROCESS", "REPLICATION SLAVE")
        for right in rights:
            assert f"GRANT {right}" in blind.stdout
        mariadb.execute("DROP USER init_reader@'%'", database)


@pytest.mark.service
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_servers(request, folder, monkeypatch, kind):
    server = request.getfixturevalue(kind)
    with server.new_database() as database:
        server.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, total decimal(12, 2))", database
        )
        settings = server.settings(database)
        monkeypatch.setenv("CRM_PASSWORD", reveal(settings["password"], "tests"))
        url = f"{kind}://{settings['username']}@{settings['host']}:{settings['port']}/{database}"
        told = mview("init", url, "--name", "crm", "--folder", "other").stdout
        assert told.splitlines()[-1].startswith("mview run other/sql/orders.sql ")
        assert "export" not in told, "it was set already: the server was asked with it"
        result = mview("init", url, "--name", "crm", "--json")
        assert result.exit_code == 0, result.stderr
        (table,) = json.loads(result.stdout)["tables"]
        assert (table["name"], table["key"], table["why"]) == ("orders", ["id"], "")
        config = load_config(folder / "mview.yml")
        assert config.connections["crm"].password == "${env:CRM_PASSWORD}"
        assert json.loads(result.stdout)["password"] == "CRM_PASSWORD"
        if kind == "mariadb":
            connector = orjson.loads((folder / "debezium-crm.json").read_bytes())
            assert connector["skipped.operations"] == "none"
            assert int(connector["connect.keep.alive.interval.ms"]) <= 10_000
            assert connector["bigint.unsigned.handling.mode"] == "precise"
            assert connector["value.converter.replace.null.with.default"] == "false"
            told = (folder / "mview.yml").read_text().split("\n# Or by Debezium")[1]
            lines = told.replace("\n# ", "\n").splitlines()
            assert lines[0].endswith(" (docs/sources.md, a connector of Debezium),")
            assert lines[1] == "whose user needs the right RELOAD, too:"
            assert connector["topic.creation.default.partitions"] == "-1", "topics are made"
            other = yaml.safe_load("\n".join(lines[2:]))["changes"]["crm"]
            assert other["topic"] == f"crm.{database}.{{table}}"
            assert other["missing_topics"] == "wait", "a connector that begins has none of changes"
        assert config.changes["crm"].source == kind
        checked = mview("check", "sql", "--config", "mview.yml")
        assert checked.exit_code == 0, checked.output


@pytest.mark.service
def test_columns_that_the_database_computes_are_told(folder, monkeypatch, postgresql):
    with postgresql.new_database() as database:
        postgresql.execute(
            "CREATE TABLE a (id int PRIMARY KEY, "
            'twice int GENERATED ALWAYS AS (id) STORED, "a b" int GENERATED ALWAYS AS (1) STORED)',
            database,
        )
        settings = postgresql.settings(database)
        monkeypatch.setenv("CRM_PASSWORD", reveal(settings["password"], "tests"))
        url = (
            f"postgresql://{settings['username']}@{settings['host']}:{settings['port']}/{database}"
        )
        result = mview("init", url, "--name", "crm")
        told = (
            "ot all columns: the database computes columns twice, a b, which its log does not have:"
            " write the expression into the view\n"
        )
        assert result.exit_code == 0, result.output
        assert f"; n{told}" in result.stdout
        assert (folder / "sql" / "a.sql").read_text() == f"-- N{told}SELECT *\nFROM crm.a\n"
        checked = mview("check", "sql")
        assert checked.exit_code == 0, checked.output


@pytest.mark.service
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_the_first_view_is_one_that_check_accepts(request, folder, monkeypatch, kind):
    server = request.getfixturevalue(kind)
    made = {
        "postgresql": "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY HASH (id); "
        "CREATE UNLOGGED TABLE b (id int PRIMARY KEY); "
        'CREATE TABLE d ("X" int PRIMARY KEY, x int)',
        "mariadb": "CREATE TABLE a (id int PRIMARY KEY) WITH SYSTEM VERSIONING; "
        "CREATE TABLE b (id int PRIMARY KEY, c int, FOREIGN KEY (c) REFERENCES c (id) "
        "ON DELETE CASCADE)",
    }[kind]
    with server.new_database() as database:
        server.execute(f"CREATE TABLE c (id int PRIMARY KEY); {made}", database)
        settings = server.settings(database)
        monkeypatch.setenv("CRM_PASSWORD", reveal(settings["password"], "tests"))
        url = f"{kind}://{settings['username']}@{settings['host']}:{settings['port']}/{database}"
        result = mview("init", url, "--name", "crm", "--json")
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)
        first, second = told["missing"]
        assert (first.split()[1], second.split()[1]) == ("crm.a", "crm.b")
        assert all("None" not in table["partly"] for table in told["tables"])
        checked = mview("check", "sql")
        assert checked.exit_code == 0, checked.output
        assert checked.stdout.startswith("c: ok, key id, reads crm.c; ")


@pytest.mark.service
def test_tidb_is_followed_by_ticdc(folder, monkeypatch, mariadb):
    """The server is asked by MySQL's protocol, which both speak."""
    with mariadb.new_database() as database:
        mariadb.execute("CREATE TABLE orders (id int PRIMARY KEY)", database)
        settings = mariadb.settings(database)
        monkeypatch.setenv("CRM_PASSWORD", reveal(settings["password"], "tests"))
        where = f"{settings['username']}@{settings['host']}:{settings['port']}/{database}"
        result = mview("init", f"tidb://{where}", "--name", "crm", "--json")
        assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["files"] == ["mview.yml", "sql/orders.sql"]
    assert told["missing"] == []
    config = load_config(folder / "mview.yml")
    assert config.connections["crm"].drivername == "mysql+pymysql"
    changes = config.changes["crm"]
    assert (changes.source, changes.format, changes.topic) == ("kafka", "ticdc", "crm")
    feed = "/crm?protocol=canal-json&enable-tidb-extension=true&partition-num=3"
    assert feed in (folder / "mview.yml").read_text()


def test_topics_are_named_as_debezium_names_them():
    told = configuration("crm", {"database": "Größe 😀"}, "mssql", {})
    assert yaml.safe_load(told)["changes"]["crm"]["topic"] == "crm.Gr__e___.{schema}.{table}"


@pytest.mark.service
@pytest.mark.parametrize("kind", ["tidb", "mariadb"])
def test_tidb_has_no_log_of_mysql(request, folder, monkeypatch, kind):
    server = request.getfixturevalue(kind)
    if kind == "mariadb":  # as if it were one
        version = {"version": "8.0.11-TiDB-v7.5.0"}
        monkeypatch.setattr(MysqlServer, "variables", property(lambda _: version))
    with server.new_database() as database:
        server.execute("CREATE TABLE orders (id int PRIMARY KEY)", database)
        settings = server.settings(database)
        password = settings.get("password")
        monkeypatch.setenv("CRM_PASSWORD", reveal(password, "tests") if password else "")
        where = f"{settings['username']}@{settings['host']}:{settings['port']}/{database}"
        result = mview("init", f"mysql://{where}", "--name", "crm", "--json")
        assert result.exit_code == 0, result.output
        (missing,) = json.loads(result.stdout)["missing"]
        assert "is TiDB, which writes no binary log" in missing
        assert "mview init tidb://" in missing
        looked = json.loads(mview("doctor", "sql", "--json").stdout)
        told = [finding for finding in looked if "is TiDB" in str(finding)]
        assert {finding["state"] for finding in told} == {"wrong"}
