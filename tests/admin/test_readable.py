"""What a store has no rows of: sinks that hold changes, and views in light mode."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mview.admin.content import StoredView, check_views, published
from mview.admin.verify import _followers_of
from mview.catalog.definitions import KeptLight, save_light
from mview.cli.render import verified_text
from mview.config.file import load_config
from mview.errors import CorruptionError, RetryableError, UserError
from mview.plan.definition import parse_view
from tests.cli.watch.made import CONFIG, ORDERS, MadeStore
from tests.notebook.shelf import Shelf

LIGHT = (
    "CREATE MATERIALIZED VIEW picked WITH (mode = 'light', sinks = 'cache') AS "
    "SELECT order_id, status FROM shop.orders"
)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("changelog", "it holds changes, not the rows of the view"),
        ("append", "it holds all rows that ever came"),
    ],
)
def test_a_sink_that_holds_no_rows_of_the_view_is_no_difference(
    tmp_path: Path, mode: str, told: str
) -> None:
    made = MadeStore(tmp_path)
    manifest = made.epoch()
    kind = "files" if mode == "changelog" else "delta"
    cache = f"cache: {{type: {kind}, mode: {mode}, path: '{tmp_path / 'there'}'}}"
    made.file.write_text(CONFIG.replace("cache: {type: sqlite, url: 'sqlite:///cache.db'}", cache))
    results = _followers_of(load_config(made.file), manifest, "open_orders")
    assert verified_text(results) == f"open_orders, sink cache: not compared, {told}"
    assert [(result.equal, result.is_right) for result in results] == [(False, True)]


def test_a_light_view_is_told_from_one_that_was_not_run(tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    with pytest.raises(UserError, match="nothing was published yet"):
        published(made.config)
    save_light(made.store, KeptLight(parse_view(LIGHT, "picked", "picked.sql"), ORDERS))
    with pytest.raises(UserError, match="no epochs: all of its views are in light mode") as told:
        published(made.config)
    assert told.value.hint == "their rows are in their sinks: mview status, mview verify FILE"
    manifest = made.epoch()
    with pytest.raises(UserError, match="there is no view 'picked'") as told:
        check_views(made.config, manifest, ["picked"])
    assert str(told.value.hint).startswith("it is in light mode, and the store has no rows of such")
    with pytest.raises(UserError, match="there is no view 'picked' at epoch 1") as told:
        StoredView(made.config, "picked", manifest)
    assert "light mode" in str(told.value.hint)


def test_an_epoch_that_is_kept_no_longer_is_no_damage(tmp_path: Path) -> None:
    """Who is overtaken by the cleaning of a run must not be told to drop a view."""
    shelf = Shelf(tmp_path, {"id": pa.int64(), "name": pa.string()})
    for number in range(3):
        shelf.publish([(number, "a")])
    old, new = (StoredView(shelf.config, "v", epoch) for epoch in (1, 3))
    reads = (old.arrow, lambda: [*old.parts()], lambda: new.changes_from(old))
    for file in Path(old.path).rglob("*"):
        if file.is_file() and "mview" not in file.name:
            file.unlink()
    for read in reads:
        with pytest.raises(CorruptionError):
            read()
    shelf.log.prune({1})
    for read in reads:
        with pytest.raises(RetryableError, match="epoch 1 went while it was read") as told:
            read()
        assert "engine.keep_files" in str(told.value.hint)
