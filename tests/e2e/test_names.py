"""Names of any letters go from the source to the sink; those that differ in case stay two."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from mview.admin.content import StoredView
from mview.admin.verify import verify
from mview.config import Config
from mview.config.file import load_config
from tests.e2e.running import run_once, views_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Table and column names: letters, signs, words of SQL, lengths, what looks like ours.
NAMES = ("größe", "表", "my table", "a`b", "we.ird", "q\"u'ote", "select", "x" * 128, "_metadata")
#: Two connections whose names, and so those of their tables, differ in case only.
CONNECTIONS = ("shop", "SHOP")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class World:
    """Tables of two columns, `<name>` and `g <name>`, and their changelogs."""

    def __init__(self, root: Path) -> None:
        self.root, self.position = root, 0
        for connection in CONNECTIONS:
            (root / f"log-{connection}").mkdir()
            with sqlite3.connect(self.file(connection)) as database:
                for name in NAMES:
                    columns = (
                        f"{self.lite(name)} integer primary key, {self.lite('g ' + name)} integer"
                    )
                    database.execute(f"create table {self.lite(name)}({columns})")
                    database.execute(f"insert into {self.lite(name)} values (1, 1), (2, 1)")
            self.log(connection, op="heartbeat")

    def file(self, connection: str) -> Path:
        return self.root / f"db-{CONNECTIONS.index(connection)}.sqlite"

    def lite(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def log(self, connection: str, **change: object) -> None:
        line = json.dumps({**change, "ts": time.time_ns() // 1_000_000})
        with (self.root / f"log-{connection}" / "0.jsonl").open("a") as out:
            out.write(line + "\n")

    def insert(self, connection: str, name: str, key: int, group: int) -> None:
        self.position += 1
        with sqlite3.connect(self.file(connection)) as database:
            database.execute(f"insert into {self.lite(name)} values (?, ?)", (key, group))
        after = {name: key, f"g {name}": group}
        self.log(connection, op="insert", table=name, after=after, position=self.position)

    def config(self, executor: str) -> Config:
        file = self.root / "mview.yml"
        spark = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"}
        settings = {
            "store": "store",
            "connections": {
                one: {"drivername": "sqlite", "database": str(self.file(one))}
                for one in CONNECTIONS
            },
            "changes": {
                one: {"source": "files", "format": "unified", "path": f"log-{one}", "T": "200ms"}
                for one in CONNECTIONS
            },
            "engine": {"executor": executor},
            "spark": {"master": "local[2]", "conf": spark},
        }
        file.write_text(yaml.safe_dump(settings, allow_unicode=True))
        return load_config(file)


@pytest.mark.long
def test_from_the_source_to_the_sink(tmp_path: Path, spark: SparkSession) -> None:
    world = World(tmp_path)
    sql = {}
    for number, name in enumerate(NAMES):
        table, column, group = f"shop.{quoted(name)}", quoted(name), quoted(f"g {name}")
        sql[f"all_{number}"] = f"select * from {table}"
        sql[f"sums_{number}"] = (
            f"select {group}, sum({column}) {column} from {table} group by {group}"
        )
    sql["größen_表"] = (
        "select a.`größe`, b.`g größe` from SHOP.`größe` a join shop.`größe` b"
        " on a.`größe` = b.`größe`"
    )
    sql["upper"] = "select `größe`, count(*) n from SHOP.`größe` group by 1"
    sql["lower"] = "select `größe`, count(*) n from shop.`größe` group by 1"
    views = views_of(**sql)
    for turn, executor in enumerate(("auto", "spark")):
        config = world.config(executor)
        if turn == 0:
            run_once(config, *views)
        for name in NAMES:
            world.insert("shop", name, 10 + turn, 2)
        run_once(config, *views)
    for result in verify(config, views):
        assert result.equal, result
    assert StoredView(config, "upper").arrow().num_rows == 2
    assert StoredView(config, "lower").arrow().num_rows == 4
    assert StoredView(config, "größen_表").arrow().column_names == ["größe", "g größe"]
    for number, name in enumerate(NAMES):
        assert StoredView(config, f"all_{number}").arrow().to_pylist()[0].keys() == {
            name,
            f"g {name}",
        }
        sums = StoredView(config, f"sums_{number}").arrow().to_pylist()
        assert sorted(row[name] for row in sums) == [3, 21]
