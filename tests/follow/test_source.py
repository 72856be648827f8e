"""What a store has of a view's changes, while it is written, compacted, trimmed and crashes."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.changelog import KIND
from mview.errors import CorruptionError, RetryableError
from mview.follow.source import ViewSource
from mview.schema import Column
from mview.store.layout import Store
from mview.store.manifest import Manifest, ViewState
from tests.relations import keyed, rel
from tests.seeds import seeds, some_today
from tests.store.mirrors import SCHEMA, MirrorDriver

Row = tuple[Any, ...]


def published(driver: MirrorDriver, changed: int, built: int = 0) -> Manifest:
    facts = {"epoch": changed}
    view = ViewState("digest", "LINEAR", SCHEMA, {"version": 1}, built, facts=facts)
    tables = {"v": driver.state}
    return Manifest(driver.epoch, 1, 0, 1, 0, tables=keyed(tables), views={"v": view})


def rows_of(table: pa.Table, *more: str) -> list[Row]:
    names = (*more, *SCHEMA.names)
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("seed", some_today(seeds(6), 2))
def test_changes_since_any_epoch_lead_to_the_newest(tmp_path: Path, seed: int) -> None:
    store = Store(tmp_path)
    driver = MirrorDriver(store.mirror(rel("v")), seed, chunks=0)
    source = ViewSource(store, "v")
    changed, needed, contents = 0, 0, {0: Counter[Row]()}
    for _ in range(60):
        fate = driver.rng.random()
        if fate < 0.1:
            driver.crash()
        elif fate < 0.25:
            driver.compact()
        elif fate < 0.35:
            needed = max(needed, driver.epoch - driver.rng.randrange(1, 12))
            driver.mirror.maintain(driver.state, driver.state, 1, after=needed)
        else:
            driver.publish(driver.epoch_once())
            contents[driver.epoch] = Counter(driver.truth.values())
            if contents[driver.epoch] != contents[driver.epoch - 1]:
                changed = driver.epoch
        for epoch in range(driver.epoch + 1):
            contents.setdefault(epoch, contents.get(epoch - 1, Counter()))
        source.move(published(driver, changed))
        assert source.newest() == changed
        assert source.begins() <= needed
        content = source.rows()
        parts = [row for part in content.parts for row in rows_of(part)]
        assert Counter(parts) == contents[driver.epoch]
        for after in {source.begins(), driver.rng.randrange(source.begins(), driver.epoch + 1)}:
            most = driver.rng.choice([1, 3_000, sys.maxsize])
            most_rows = driver.rng.choice([None, 1, 20])
            epoch = after
            while epoch < changed:
                found = source.changes(epoch, most, most_rows)
                assert epoch < found.epoch <= changed
                step = Counter(contents[epoch])
                for kind, *row in rows_of(found.rows, KIND):
                    step[tuple(row)] += 1 if kind.startswith("+") else -1
                assert +step == contents[found.epoch]
                assert min(step.values(), default=0) >= 0
                epoch = found.epoch
            waiting = source.waiting_bytes(after)
            assert (waiting > 0) >= (after < changed)


def test_a_view_that_was_built_anew_begins_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    driver = MirrorDriver(store.mirror(rel("v")), 1, chunks=0)
    source = ViewSource(store, "v")
    assert source.schema is None
    driver.publish(driver.epoch_once())
    source.move(published(driver, 1))
    assert source.begins() == 0
    driver.publish(driver.epoch_once())
    source.move(published(driver, 2, built=2))
    assert source.begins() == 2
    stale = published(driver, 3)
    halted = {"v": replace(stale.views["v"], stale=True)}
    assert not source.move(replace(stale, views=halted))
    assert source.newest() == 2
    source.move(Manifest(3, 1, 0, 1, 0, tables={}, views=stale.views))
    assert source.begins() == 2


@pytest.mark.parametrize("how", ["built", "trimmed"])
def test_an_epoch_between_two_questions_gives_no_share_of_the_changes(
    tmp_path: Path, how: str
) -> None:
    """A sink asks how far back changes are kept, and then for them: an epoch may come between."""
    store = Store(tmp_path)
    driver = MirrorDriver(store.mirror(rel("v")), 1, chunks=0)
    source = ViewSource(store, "v")

    def change(times: int) -> None:
        for _ in range(times):
            before = driver.state
            while driver.state == before:
                driver.publish(driver.epoch_once())

    change(4)
    source.move(published(driver, driver.epoch))
    assert source.begins() == 0
    if how == "trimmed":
        driver.forget()
    change(1)
    source.move(published(driver, driver.epoch, built=driver.epoch if how == "built" else 0))
    with pytest.raises(RetryableError, match="are not kept any more"):
        source.changes(2, sys.maxsize, None)
    assert source.begins() > 2
    assert source.changes(source.begins(), sys.maxsize, None).epoch == driver.epoch


def test_rows_that_go_while_they_are_read_are_no_damage(tmp_path: Path) -> None:
    """A fill may take longer than files are kept that newer epochs have replaced."""
    store = Store(tmp_path)
    driver = MirrorDriver(store.mirror(rel("v")), 1, chunks=0)
    source = ViewSource(store, "v")
    driver.publish(driver.epoch_once())
    driver.forget()
    driver.publish(driver.epoch_once())
    source.move(published(driver, driver.epoch))
    parts = source.rows().parts
    for file in source._opened(driver.state).files(driver.state).base:
        Path(file[0]).unlink()
    with pytest.raises(CorruptionError, match="a data file cannot be read"):
        list(parts)
    parts = source.rows().parts
    before = driver.state
    while driver.state == before:
        driver.publish(driver.epoch_once())
    source.move(published(driver, driver.epoch))
    with pytest.raises(RetryableError, match="went before a sink had read them all") as told:
        list(parts)
    assert "engine.keep_files" in str(told.value.render())


def test_a_view_with_other_columns_gives_no_rows_to_who_began_before(tmp_path: Path) -> None:
    """It would write them into columns of other types, as far as these can be cast."""
    store = Store(tmp_path)
    driver = MirrorDriver(store.mirror(rel("v")), 1, chunks=0)
    source = ViewSource(store, "v")
    driver.publish(driver.epoch_once())
    manifest = published(driver, driver.epoch)
    source.move(manifest)
    source.give(SCHEMA)
    assert source.rows().epoch == driver.epoch
    columns = (*SCHEMA.columns[:-1], Column(SCHEMA.columns[-1].name, pa.string()))
    other = replace(SCHEMA, columns=columns)
    views = {"v": replace(manifest.views["v"], schema=other)}
    source.move(replace(manifest, views=views))
    for ask in (source.rows, lambda: source.changes(driver.epoch, 1, None)):
        with pytest.raises(RetryableError, match="has other columns"):
            ask()
    source.give(other)
    assert source.rows().epoch == driver.epoch
