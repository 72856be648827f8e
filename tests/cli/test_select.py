"""`--select`: which views of files are meant; and the events of OpenLineage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mview.catalog.definitions import digest_of, save_definition
from mview.cli import main
from mview.errors import UserError
from mview.plan.definition import parse_view
from mview.schema import type_name
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from tests.cli.test_past import ORDERS
from tests.relations import rel

CONFIG = """
store: data
connections:
  shop: {drivername: postgresql, host: db.example.org, username: me, password: "${env:PGPASSWORD}",
         database: shop}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
"""
VIEWS = {
    "low": "CREATE MATERIALIZED VIEW low WITH (tags = 'daily, money') AS "
    "SELECT id FROM shop.orders",
    "mid": "SELECT id, id + 1 AS next FROM low",
    "high": "CREATE MATERIALIZED VIEW high WITH (tags='money') AS SELECT next AS n FROM mid",
    "other": "SELECT count(*) AS n FROM shop.orders",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPASSWORD", "S3cret-of-shop")
    (tmp_path / "mview.yml").write_text(CONFIG)
    (tmp_path / "changes").mkdir()
    (tmp_path / "sql").mkdir()
    for name, sql in VIEWS.items():
        (tmp_path / "sql" / f"{name}.sql").write_text(sql)
    store = Store(tmp_path / "data")
    claim_store(store.root)
    kept = [parse_view(VIEWS["low"], "low"), parse_view("SELECT id FROM shop.orders", "other")]
    for view in kept:
        save_definition(store, view)
    states = {
        view.name: ViewState(digest_of(view), "LINEAR", ORDERS, {"version": 1}, 1) for view in kept
    }
    table = TableState(ORDERS, 0, 0, phase="loaded")
    ManifestLog(store.manifests).publish(
        Manifest(1, 1, 1_700_000_000_000, 1, 0, tables={rel("shop.orders"): table}, views=states)
    )
    return tmp_path


def mview(command: str, *arguments: str) -> Any:
    return CliRunner().invoke(main, [command, "sql", "--offline", *arguments, "-c", "mview.yml"])


def selected(*selectors: str) -> set[str]:
    arguments = [word for selector in selectors for word in ("--select", selector)]
    result = mview("check", *arguments, "--json")
    return {view["view"] for view in json.loads(result.stdout)}


@pytest.mark.parametrize(
    ("selectors", "views"),
    [
        ([], {"low", "mid", "high", "other"}),
        (["other"], {"other"}),
        (["low", "other"], {"low", "other"}),
        (["+high"], {"low", "mid", "high"}),
        (["low+"], {"low", "mid", "high"}),
        (["+mid"], {"low", "mid"}),
        (["+mid+"], {"low", "mid", "high"}),
        (["tag:money"], {"low", "high"}),
        (["tag:daily+"], {"low", "mid", "high"}),
        # low is as the store has it, other is not; the rest is new.
        (["changed"], {"mid", "high", "other"}),
    ],
)
def test_which_views_are_meant(selectors: list[str], views: set[str]) -> None:
    assert selected(*selectors) == views


def test_tags_make_no_other_view() -> None:
    bare = parse_view("SELECT id FROM shop.orders", "low")
    assert digest_of(parse_view(VIEWS["low"], "low")) == digest_of(bare)
    assert parse_view(VIEWS["low"], "low").tags == ("daily", "money")


def test_the_other_commands_take_it() -> None:
    assert "view low" in mview("plan", "--select", "low").stdout
    assert "view other" not in mview("plan", "--select", "low").stdout.split("goes on")[0]
    assert len(json.loads(mview("explain", "--select", "+mid", "--json").stdout)) == 2
    assert len(json.loads(mview("lineage", "-s", "low", "--json").stdout)) == 1


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("lo", "did you mean 'low'"),
        ("tag:mony", "no view has the tag 'mony'"),
        ("tag:", "no view has the tag ''"),
    ],
)
def test_what_means_no_view_is_told(selector: str, said: str) -> None:
    result = mview("check", "--select", selector)
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_tag_has_no_signs_of_selectors() -> None:
    with pytest.raises(UserError, match="is not a tag"):
        parse_view("CREATE MATERIALIZED VIEW v WITH (tags = 'a+') AS SELECT 1 AS a", "v")


def of_the_store(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["lineage", "--offline", *arguments, "-c", "mview.yml"])


@pytest.mark.parametrize(
    ("selector", "views"),
    [("low", ["low"]), ("low+", ["low"]), ("+other", ["other"])],
)
def test_lineage_of_some_views_of_the_store(selector: str, views: list[str]) -> None:
    everything = json.loads(of_the_store("--json").stdout)
    assert [view["view"] for view in everything] == ["low", "other"]
    result = of_the_store("--json", "--select", selector)
    assert [view["view"] for view in json.loads(result.stdout)] == views


@pytest.mark.parametrize("selector", ["tag:daily", "+changed"])
def test_only_files_tell_of_tags_and_changes(selector: str) -> None:
    result = of_the_store("--select", selector)
    assert (result.exit_code, "name them" in result.stderr) == (2, True)


def test_a_view_that_the_store_does_not_have_has_no_lineage_there() -> None:
    result = of_the_store("--select", "mid")
    assert (result.exit_code, "none of the views is called 'mid'" in result.stderr) == (1, True)


def test_that_nothing_has_changed_is_said() -> None:
    (Path("sql") / "other.sql").write_text("SELECT id FROM shop.orders")
    for name in ("mid", "high"):
        (Path("sql") / f"{name}.sql").unlink()
    for command in ("check", "explain", "plan", "lineage"):
        result = mview(command, "--select", "changed")
        assert result.exit_code == 0, result.output
        assert "none of these views has changed" in result.stderr


@pytest.mark.parametrize("command", ["verify", "run"])
def test_who_does_something_with_views_takes_those_that_are_meant(command: str) -> None:
    told = CliRunner().invoke(main, [command, "sql", "-s", "lo", "-c", "mview.yml"])
    assert (told.exit_code, "did you mean 'low'" in told.stderr) == (1, True)
    for name in ("mid", "high", "other"):
        (Path("sql") / f"{name}.sql").unlink()
    told = CliRunner().invoke(main, [command, "sql", "-s", "changed", "-c", "mview.yml"])
    assert (told.exit_code, "none of these views has changed" in told.stderr) == (1, True)


def test_a_view_is_named_where_a_file_could_be(project: Path) -> None:
    assert [v["view"] for v in json.loads(of_the_store("low", "--json").stdout)] == ["low"]
    assert len(json.loads(mview("lineage", "+mid", "--json").stdout)) == 2
    told = CliRunner().invoke(main, ["explain", "low", "-c", "mview.yml"])
    assert "a view of it by name: FOLDER --select low" in told.stderr


def test_events_of_openlineage(project: Path) -> None:
    result = mview("lineage", "--openlineage", "--select", "+mid")
    low, mid = map(json.loads, result.stdout.splitlines())
    assert "S3cret" not in result.stdout
    for event in (low, mid):
        # What the specification wants of a JobEvent, and of each facet.
        assert {"eventTime", "producer", "schemaURL", "job"} <= event.keys()
        assert event["schemaURL"].endswith("#/$defs/JobEvent")
        assert {"namespace", "name"} <= event["job"].keys()
        for dataset in (*event["inputs"], *event["outputs"]):
            assert dataset["namespace"]
            assert dataset["name"]
            for facet in dataset["facets"].values():
                assert {"_producer", "_schemaURL"} <= facet.keys()
    (table,) = low["inputs"]
    assert (table["namespace"], table["name"]) == (
        "postgres://db.example.org:5432",
        "shop.public.orders",
    )
    (column,) = table["facets"]["schema"]["fields"]
    assert column == {"name": "id", "type": type_name(ORDERS.columns[0].type)}
    (output,) = low["outputs"]
    assert output["name"] == str(Store(project / "data").view_target("low"))
    (read,) = mid["inputs"]
    assert (read["namespace"], read["name"]) == (output["namespace"], output["name"])
    fields = mid["outputs"][0]["facets"]["columnLineage"]["fields"]
    source = {"namespace": "file", "name": output["name"], "field": "id"}
    assert fields == {"id": {"inputFields": [source]}, "next": {"inputFields": [source]}}
    assert mid["job"]["facets"]["sql"]["query"] == VIEWS["mid"]
