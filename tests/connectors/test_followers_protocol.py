"""Every registered sink has the methods of the protocol, as they are called."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from mview_connectors.followers.files.follower import FilesFollower

from mview.catalog import followers
from mview.catalog.followers import check_followers
from mview.follower import Follower, FollowerSettings
from mview.plan.definition import parse_view
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


def test_what_is_wrong_with_options_together_has_no_place_among_them(
    tmp_path: Path,
) -> None:
    detail: Any = {"type": "value_error", "loc": (), "msg": "Value error, both are set"}
    error = followers._mistake(small_config(tmp_path), "s", FilesFollower, detail)
    assert (error.what, error.hint) == ("sinks.s: both are set", None)
