"""What an environment's views are, where they lie, and of which production they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mview.admin.mending.environments import check_named, light_views, promotable
from mview.admin.status import status
from mview.catalog.definitions import KeptLight, digest_of, save_definition, save_light
from mview.catalog.environments import (
    given_view,
    in_environment,
    keep_given,
    production,
    unpublished,
    waited_for,
)
from mview.catalog.places import check_store
from mview.catalog.sinks import sink_options
from mview.config.file import load_config
from mview.errors import ConfigError, UserError
from mview.plan.definition import parse_view
from mview.run.production import Production
from mview.store.environments import Followed
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.manifest import Manifest, QuarantineState, TableState, ViewState
from tests.relations import rel
from tests.store.mirrors import SCHEMA

CONFIG = """
store: data
connections: {shop: {drivername: sqlite, database: shop.db}}
changes: {shop: {source: files, format: unified, path: changes, T: 1s}}
sinks:
  delta: {path: tables}
  lake: {type: files, path: lake, format: jsonl}
"""

VIEW = parse_view(
    "create materialized view sums with (path='out/sums', sinks='lake', freshness='1 min') as"
    " select id, count(*) as n from shop.orders group by id",
    "sums",
)


def test_it_is_published_in_its_environment_alone(tmp_path: Path) -> None:
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    config = load_config(file)
    claim_store(config.store)
    dev = in_environment(config, "dev")
    assert (config.environment, dev.environment) == ("", "dev")
    check_store(dev)
    own = Store(dev.store)
    for view in (VIEW, replace(VIEW, options={}), replace(VIEW, mode="light")):
        kept = unpublished(view)
        assert not kept.sinks
        assert kept.mode == "full"
        assert Path(sink_options(dev, own, kept)["path"]).is_relative_to(own.root)
    # Of another kind of table nothing is known that could be kept apart.
    other = unpublished(replace(VIEW, sink="arrow_file", options={"file": "/x"}))
    assert (other.sink, other.options) == ("delta", {})
    # Sinks that views name stay what they are, and production's views get them back.
    assert dev.sinks["lake"] == config.sinks["lake"]
    keep_given(own, [VIEW])
    assert given_view(own, "sums") == VIEW


def test_production_is_to_be_there(tmp_path: Path) -> None:
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    dev = in_environment(load_config(file), "dev")
    with pytest.raises(ConfigError, match="production has no epoch yet"):
        production(dev)
    claim_store(tmp_path / "data")
    with pytest.raises(ConfigError, match="production has no epoch yet"):
        production(dev)


@pytest.mark.parametrize(
    ("epoch", "published_ms", "is_line"),
    [(2, 200, True), (3, 300, True), (4, 400, False), (2, 201, False), (1, 999, True)],
)
def test_production_that_was_put_back_is_noticed(
    tmp_path: Path, epoch: int, published_ms: int, is_line: bool
) -> None:
    """Its epochs are the ones that were followed, as far as they are kept."""
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    config = load_config(file)
    claim_store(config.store)
    log = ManifestLog(Store(config.store).manifests)
    for number in (1, 2, 3):
        log.publish(Manifest(number, 1, 100 * number, 1, number))
    log.prune([1])
    feed = Production(in_environment(config, "dev"))
    at = Followed(epoch, published_ms, {rel("shop.orders"): "id"})
    if is_line:
        assert feed.mirrors(at, feed.newest()) is None  # the table is not there
        return
    with pytest.raises(UserError, match="was put back") as error:
        feed.mirrors(at, feed.newest())
    assert "mview drop --env dev" in str(error.value.hint)


def test_what_production_has_in_quarantine_counts_in_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    config = load_config(file)
    claim_store(config.store)
    aside = TableState(SCHEMA, 0, 0, phase="loaded", quarantine=QuarantineState("7.json", 2, 99))
    log, orders = ManifestLog(Store(config.store).manifests), rel("shop.orders")
    log.publish(Manifest(1, 1, 100, 1, 1, tables={orders: aside}))
    dev = in_environment(config, "dev")
    own = Store(dev.store)
    own.root.mkdir(parents=True)
    save_definition(own, unpublished(VIEW))
    state = ViewState(digest_of(unpublished(VIEW)), "SELF_MAINTAINED", SCHEMA, {}, 1)
    mine = {orders: replace(aside, quarantine=None)}
    epoch = Manifest(1, 1, 100, 1, 1, tables=mine, views={"sums": state})
    ManifestLog(own.manifests).publish(epoch)
    told = status(dev)
    assert told.tables[0].quarantined == 2
    assert "shop.orders" in told.views[0].degraded
    log.publish(Manifest(2, 1, 200, 1, 2, tables=mine))
    assert not status(dev).views[0].degraded, "it was taken out since"


def test_a_light_view_is_promoted_by_no_apply(tmp_path: Path) -> None:
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    config = load_config(file)
    claim_store(config.store)
    ManifestLog(Store(config.store).manifests).publish(Manifest(1, 1, 100, 1, 1))
    own = Store(in_environment(config, "dev").store)
    own.root.mkdir(parents=True)
    light = replace(VIEW, name="picked", mode="light")
    keep_given(own, [VIEW, light])
    views = {
        view.name: ViewState(digest_of(unpublished(view)), "", SCHEMA, {}, 1)
        for view in (VIEW, light)
    }
    ManifestLog(own.manifests).publish(Manifest(1, 1, 100, 1, 1, views=views))
    assert [view.name for view in promotable(config, "dev")] == ["sums"]
    with pytest.raises(UserError, match="picked is in light mode"):
        promotable(config, "dev", ["sums", "picked"])
    # It is told that it is left out, until production has it as it is there.
    assert light_views(config, "dev") == ["picked"]
    save_light(Store(config.store), KeptLight(replace(light, sinks={}), SCHEMA))
    assert light_views(config, "dev") == ["picked"]
    save_light(Store(config.store), KeptLight(light, SCHEMA))
    assert light_views(config, "dev") == []


def test_production_takes_what_is_named() -> None:
    """What differs may be newer in production."""
    check_named("dev", ["sums"], [VIEW])
    with pytest.raises(UserError, match="name the views") as error:
        check_named("dev", [], [VIEW])
    assert "mview promote --env dev sums" in str(error.value.hint)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"halted": "a message that is not JSON"}, "has halted in production"),
        ({"phase": "loading"}, "production is loading"),
    ],
)
def test_tables_of_two_cuts_are_not_followed(
    tmp_path: Path, changes: dict[str, Any], why: str | None
) -> None:
    """A table that has halted stays where it was, while production's others go on."""
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    table, other = rel("shop.orders"), rel("shop.items")
    state = TableState(SCHEMA, 0, 0, phase="loaded")
    newest = Manifest(1, 1, 100, 1, 1, tables={table: replace(state, **changes), other: state})
    config = load_config(file)
    claim_store(config.store)
    ManifestLog(Store(config.store).manifests).publish(Manifest(1, 1, 100, 1, 1))
    error = Production(in_environment(config, "dev")).unready([table, other], newest)
    if not why:
        assert error is None
        return
    assert error is not None
    assert why in error.what
    # A run that waits goes on by itself; only who halts needs somebody.
    told = waited_for(error)
    assert "command again" not in told
    assert "This run goes on when the table is loaded" in told
    assert ("mview apply FILE" in told) == ("halted" in why)


def test_an_epoch_that_is_not_kept_may_have_been_another_one(tmp_path: Path) -> None:
    """Production may have gone back and on again beyond it: only its same runner cannot have."""
    file = tmp_path / "mview.yml"
    file.write_text(CONFIG)
    config = load_config(file)
    claim_store(config.store)
    log = ManifestLog(Store(config.store).manifests)
    for number, token in ((1, 1), (2, 1), (3, 2)):
        log.publish(Manifest(number, token, 100 * number, 1, number))
    feed, at = Production(in_environment(config, "dev")), Followed(2, 200, {})
    first, second = log.read(1), log.read(2)
    assert feed.mirrors(at, feed.newest()) == {}
    feed.take(second)
    log.prune([1, 2])
    assert feed.mirrors(at, feed.newest()) is None
    assert feed.mirrors(at, replace(feed.newest(), token=1)) == {}
    feed.take(first)
    assert feed.mirrors(at, replace(feed.newest(), token=1)) is None
