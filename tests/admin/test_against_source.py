"""`verify --source`: what is wrong is named, and nothing that has only changed meanwhile."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from mview.admin import against_source
from mview.admin.against_source import RowDifference, verify_tables
from mview.admin.content import published
from mview.cli import main
from mview.errors import UserError
from tests.admin.copied import TABLE, Copied
from tests.relations import rel
from tests.seeds import seeds


@pytest.fixture
def world(tmp_path: Path):
    copied = Copied(tmp_path)
    for key in range(45):
        copied.change(key, (f"n{key}", f"{key}.50"))
    copied.epoch()
    yield copied
    copied.end()


def verified(world: Copied):
    (result,) = verify_tables(world.config, [TABLE])
    return result


def test_a_table_that_is_as_its_database_has_it(world):
    result = verified(world)
    assert (result.equal, result.rows, result.differing, result.error) == (True, 45, 0, "")


def test_rows_behind_the_changelog_are_named_with_their_side_and_columns(world):
    with world.run(), world.busy([5, 6, 100]):
        world.change(3, ("other", "3.50"), hidden=True)
        world.change(12, None, hidden=True)
        world.change(70, ("new", None), hidden=True)
        world.change(44, ("n44", None), hidden=True)
        result = verified(world)
    assert not result.equal
    assert (result.differing, result.undecided) == (4, 0)
    assert sorted(result.sample, key=lambda row: row.key["id"]) == [
        RowDifference({"id": 3}, "neither", ("name",)),
        RowDifference({"id": 12}, "mirror"),
        RowDifference({"id": 44}, "neither", ("price",)),
        RowDifference({"id": 70}, "source"),
    ]


def test_without_a_run_it_is_not_known_whether_a_change_is_on_its_way(world):
    world.change(3, ("changed", "3.50"))
    result = verified(world)
    assert (result.equal, result.differing, result.undecided) == (False, 0, 1)
    assert "no run follows them: start `mview run`" in result.error
    with world.run():
        assert verified(world).equal


def test_a_changelog_that_stands_still_is_told(world, monkeypatch):
    monkeypatch.setattr(against_source, "_STILL_S", 0.1)
    world.change(3, ("other", "3.50"), hidden=True)
    with world.run(pause=3600):
        result = verified(world)
    assert (result.differing, result.undecided) == (0, 1)
    assert "stands still" in result.error


def test_rows_that_never_rest_are_not_called_wrong(world, monkeypatch):
    monkeypatch.setattr(against_source, "_ROUNDS", 2)
    with world.run(), world.busy([1], pause=0):
        result = verified(world)
    assert result.equal
    assert result.changing <= 1


def test_more_rows_than_are_held_are_counted(world, monkeypatch):
    monkeypatch.setattr(against_source, "_HELD", 4)
    with world.run():
        for key in range(20):
            world.change(key, ("other", None), hidden=True)
        result = verified(world)
    assert not result.equal
    assert result.differing == 4
    assert result.undecided > 0
    assert "more rows differ than the 4 that are read again" in result.error


@pytest.mark.parametrize("key", ["id integer", "code text"])
@pytest.mark.parametrize("empty", ["database", "copy"])
def test_all_rows_are_on_one_side(tmp_path, key, empty):
    world = Copied(tmp_path, key)
    keys = [n if key == "id integer" else f"k{n:02d}ü" for n in range(25)]
    with world.run():
        for number in keys:
            world.change(number, ("x", "1.00"), hidden=empty == "copy")
            if empty == "database":
                world.change(number, None, hidden=True)
        world.settle()
        result = verified(world)
    assert result.differing == 25
    assert {row.only_in for row in result.sample} == {"mirror" if empty == "database" else "source"}
    world.end()


@pytest.mark.parametrize("seed", seeds(3))
def test_random_histories_and_faults(tmp_path, seed):
    """Exactly the rows are named in which the database and the copy differ at the end."""
    random_ = random.Random(seed)
    world = Copied(tmp_path)
    keys = range(60)

    def item():
        return random_.choice([None, ("a", "1.00"), ("b", None), (None, "2.00")])

    with world.run(pause=0.002), world.busy([100, 101, 102]):
        for _ in range(200):
            act = random_.random()
            if act < 0.8:
                world.change(random_.choice(keys), item())
            elif act < 0.9:
                world.change(random_.choice(keys), item(), hidden=True)
            else:
                world.damage(random_.choice(keys), item())
        world.settle()
        result = verified(world)
    world.epoch()
    rows, copied = world.rows(), world.copied()
    wrong = {
        key
        for key in keys
        if (rows.get(key) is None) != (copied.get(key) is None)
        or (rows.get(key) and _plain(rows[key]) != _plain(copied[key]))
    }
    assert result.undecided == 0, result
    assert result.differing == len(wrong)
    assert {row.key["id"] for row in result.sample} <= wrong
    world.end()


def _plain(item):
    name, price = item
    return name, None if price is None else float(price)


def test_a_table_that_is_not_in_the_store_is_refused(world):
    with pytest.raises(UserError, match=r"the store has no table shop\.item") as refused:
        verify_tables(world.config, [rel("shop.item")])
    assert "shop.items" in str(refused.value.hint)


def test_what_is_not_compared_is_told_of_the_newest_epoch(world, tmp_path):
    (tmp_path / "shop.db").rename(tmp_path / "moved.db")
    newest = published(world.config).epoch
    assert verified(world).epoch == newest > 0


def test_a_database_that_is_away_is_told_in_the_result(world, tmp_path):
    (tmp_path / "shop.db").rename(tmp_path / "moved.db")
    result = verified(world)
    assert not result.equal
    assert "failed while" in result.error


def test_the_command(world, tmp_path):
    def mview(*arguments):
        return CliRunner().invoke(main, ["verify", *arguments, "-c", str(tmp_path / "mview.yml")])

    assert mview().exit_code == 2
    result = mview("--source", "shop.items")
    assert result.exit_code == 0, result.output
    assert "shop.items: OK, 45 rows as in the database at epoch 2" in result.stdout
    world.change(3, ("other", "3.50"), hidden=True)
    with world.run():
        result = mview("--source")
        shown = mview("--source", "--json")
    assert result.exit_code == shown.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("shop.items: DIFFERS from the database at epoch")
    assert lines[1:] == ["  id=3: other values in name"]
    (table,) = json.loads(shown.stdout)["tables"]
    assert (table["differing"], table["sample"][0]["columns"]) == (1, ["name"])
