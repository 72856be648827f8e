"""Paths of a store."""

from __future__ import annotations

from pathlib import Path

from mview.store.layout import Store, folder_name


def test_names_that_differ_in_case_differ_where_file_systems_fold_it() -> None:
    names = ["shop.orders", "shop.Orders", "SHOP.ORDERS", "größe", "GRÖSSE"]
    folders = [folder_name("table", name) for name in names]
    assert len({folder.casefold() for folder in folders}) == len(names)
    assert folders[0] == names[0]


def test_the_checkpoint_of_a_runner_is_none_of_an_older_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for generation, token in ((3, 1), (3, 2), (3, 4), (2, 1)):
        store.checkpoint(generation, token).mkdir(parents=True)
    assert store.checkpoints_of(3, 4) == [store.checkpoint(3, 1), store.checkpoint(3, 2)]
    assert store.checkpoints_of(3, 1) == []
