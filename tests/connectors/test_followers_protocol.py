"""Every registered sink has the methods of the protocol, as they are called."""

from __future__ import annotations

import inspect
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.files.follower import FilesFollower

from mview.catalog import followers
from mview.catalog.followers import check_followers
from mview.errors import TargetError
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.java.jars import cache_folder
from mview.plan.definition import parse_view
from mview.testing.contract import schema_of
from tests.conftest import small_config


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(one.name, one.kind) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", sorted(one.name for one in entry_points(group="mview.followers")))
def test_a_registered_sink_is_a_follower(name: str) -> None:
    (found,) = entry_points(group="mview.followers", name=name)
    factory = found.load()
    assert issubclass(factory.settings, FollowerSettings)
    assert factory.capabilities.modes
    methods = [n for n, one in vars(Follower).items() if inspect.isfunction(one) and n[0] != "_"]
    assert {"stage", "commit", "maintain"} <= set(methods)
    for method in methods:
        ours = parameters(getattr(factory, method))
        assert ours == parameters(getattr(Follower, method)), method


@pytest.mark.parametrize(
    ("name", "options"), [("paimon", {"warehouse": "lake"}), ("hudi", {"path": "lake"})]
)
def test_what_a_sink_runs_with_has_not_been_made(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mview check` says so, with the command; without it, nothing is looked at."""
    monkeypatch.setenv("MVIEW_CACHE", str(tmp_path / "cache"))
    config = small_config(tmp_path, sinks={"s": {"type": name, **options}})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    assert check_followers(config, views) == {}
    told = str(check_followers(config, views, probe=True)["v"])
    assert "has not been made" in told
    assert f"python -m mview_connectors.followers.{name}" in told


@pytest.mark.parametrize("name", sorted(one.name for one in entry_points(group="mview.followers")))
def test_a_wrong_option_is_told_in_our_words(name: str, tmp_path: Path) -> None:
    """Not in those of the library that has found it; and what may be missing is, too."""
    sink = {"type": name, "evry": "1s", "patience": "soon", "table": 3}
    config = small_config(tmp_path, sinks={"s": sink})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    told = str(check_followers(config, views)["v"])
    assert "sinks.s.evry: unknown property" in told
    assert "did you mean 'every'?" in told
    assert "sinks.s.table: must be text; put it in quotes" in told
    assert not [
        words for words in ("permitted", "required", "Input", "Value error") if words in told
    ]


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ({"type": "postgresql", "password": "tiger"}, "password: write ${env:NAME}"),
        ({"type": "clickhouse", "password": "tiger"}, "password: write ${env:NAME}"),
        ({"type": "starrocks", "password": "tiger"}, "password: write ${env:NAME}"),
        ({"type": "starrocks", "database": "a b"}, "database: must be of letters, digits, _ and -"),
        ({"type": "paimon", "database": "a b"}, "database: must be of letters, digits and _"),
    ],
)
def test_a_text_of_another_form_is_told_without_the_form(
    sink: dict[str, Any], told: str, tmp_path: Path
) -> None:
    config = small_config(tmp_path, sinks={"s": sink})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    text = str(check_followers(config, views)["v"])
    assert f"sinks.s.{told}" in text
    assert "tiger" not in text
    assert "pattern" not in text


def test_what_is_wrong_with_options_together_has_no_place_among_them(
    tmp_path: Path,
) -> None:
    detail: Any = {"type": "value_error", "loc": (), "msg": "Value error, both are set"}
    error = followers._mistake(small_config(tmp_path), "s", FilesFollower, detail)
    assert (error.what, error.hint) == ("sinks.s: both are set", None)


#: Sinks in a folder, and those that say of a table there whose it is without a process beside.
FOLDERS = {
    "iceberg": {"warehouse": "{}"},
    "delta": {"path": "{}"},
    "files": {"path": "{}"},
    "paimon": {"warehouse": "{}"},
    "hudi": {"path": "{}"},
}
ASKED = ("iceberg", "delta", "files")


def follower_of(name: str, place: Path, owner: str = "store/v/s", fence: int = 0) -> Any:
    (found,) = entry_points(group="mview.followers", name=name)
    factory = found.load()
    options = {option: text.format(place) for option, text in FOLDERS[name].items()}
    settings = factory.settings(type=name, **options)
    return factory(
        FollowerTarget(
            "v", "s", schema_of((("k", "bigint"), ("v", "string"))), settings, owner, fence
        )
    )


@pytest.mark.parametrize("name", ASKED)
def test_who_asks_is_told_of_a_table_of_somebody_else(name: str, tmp_path: Path) -> None:
    """`mview check` and `doctor` say it, before all tables were loaded."""
    with closing(follower_of(name, tmp_path / "lake", fence=7)) as ours:
        ours.create()
    with closing(follower_of(name, tmp_path / "lake")) as asking:
        asking.probe()
    for owner in ("other/v/s", "store/w/s"):
        asking = follower_of(name, tmp_path / "lake", owner)
        with closing(asking), pytest.raises(TargetError, match="written by somebody else"):
            asking.probe()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_cannot_be_made_is_told_by_who_asks_and_by_who_writes(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "a").touch()
    with closing(follower_of(name, tmp_path / "a" / "b" / "lake", fence=1)) as follower:
        for call in (follower.probe, follower.create):
            with pytest.raises(TargetError, match="cannot write in its folder") as refused:
                call()
            assert refused.value.got == f"{tmp_path / 'a'} is no folder"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_url_with_one_slash_is_no_folder_beside_the_run(name: str, tmp_path: Path) -> None:
    sink = {"type": name, **dict.fromkeys(FOLDERS[name], "s3:/lake/x")}
    config = small_config(tmp_path, sinks={"s": sink})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    (option,) = FOLDERS[name]
    told = f"sinks.s.{option}: must be a folder, or a URL: s3://…, with two slashes"
    assert told in str(check_followers(config, views)["v"])


@pytest.mark.parametrize("name", FOLDERS)
def test_who_asks_makes_no_folder(name: str, tmp_path: Path) -> None:
    with closing(follower_of(name, tmp_path / "b" / "lake")) as asking:
        asking.probe()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_the_home(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whoever runs it, for all sinks; not a folder that is called `~`."""
    monkeypatch.setenv("MVIEW_CACHE", str(cache_folder().parent))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with closing(follower_of(name, Path("~/lake"), fence=1)) as follower:
        follower.create()
    assert (tmp_path / "home" / "lake").is_dir()
    assert [*(tmp_path / "work").iterdir()] == []


@pytest.mark.parametrize(
    ("name", "catalog", "told"),
    [
        ("iceberg", {"type": "rset"}, "type must be one of rest, sql, hive, glue, dynamodb"),
        ("iceberg", {"type": "in-memory"}, "type must be one of"),
        (
            "iceberg",
            {"type": "sql", "py-catalog-impl": "a.B"},
            "type and py-catalog-impl are both set",
        ),
        ("paimon", {"metastore": "hive"}, "metastore must be one of filesystem, rest, jdbc"),
    ],
)
def test_a_catalog_that_there_is_not(
    name: str, catalog: dict[str, str], told: str, tmp_path: Path
) -> None:
    """It was found when it was opened, after the load."""
    sink = {"type": name, "warehouse": "lake", "catalog": catalog}
    config = small_config(tmp_path, sinks={"s": sink})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    assert f"sinks.s.catalog: {told}" in str(check_followers(config, views)["v"])


@pytest.mark.parametrize(
    ("name", "sink", "told"),
    [
        ("iceberg", {"catalog": {"type": "rest"}, "warehouse": "s3://b/w"}, "URI missing"),
        ("iceberg", {"catalog": {"uri": "mysql://h/d"}}, "Could not infer the catalog type"),
        ("delta", {"path": "s3://b/x", "options": {"aws_regin": "x"}}, "'aws_regin' is not valid"),
        ("delta", {"path": "s4://b/x"}, "Unable to recognise URL"),
    ],
)
def test_options_that_its_library_does_not_take_are_told_before_a_load(
    name: str, sink: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """They are no server that is away, which `check` passes over."""
    config = small_config(tmp_path, sinks={"s": {"type": name, **sink}})
    views = [parse_view("CREATE MATERIALIZED VIEW v WITH (sinks = 's') AS SELECT 1", "v")]
    assert told in str(check_followers(config, views, probe=True)["v"])
