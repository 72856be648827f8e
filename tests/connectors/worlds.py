"""Worlds of one sink that end, and what is tried in them of every sink with properties."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mview.errors import TargetError
from mview.testing import FollowerHarness
from mview.testing.contract import World, raised


@contextmanager
def a_world(harness: FollowerHarness, folder: Path, *args: Any, **options: Any) -> Iterator[World]:
    """A world that ends."""
    world = World(harness, folder, *args, **options)
    try:
        yield world
    finally:
        world.close()


def change(world: World, number: int) -> None:
    """Change a row, add one, and delete one."""
    world.view.publish(
        [world.row(number, f"at {number}"), world.row(100 + number)], [(number - 1,)]
    )
    assert world.sync() == 1


def is_refused_by_its_writer(harness: FollowerHarness, folder: Path, name: str, value: str) -> None:
    """A value that no property has, where nobody has seen it before the table is written.

    Nothing passes by itself: somebody must mend the properties.
    """
    with a_world(harness, folder, properties={name: value}) as world:
        world.view.publish([world.row(1)])
        told = str(raised(world.sync, TargetError))
        assert f"look at sinks.s.properties: {name}" in told


def is_seen_without_a_table(
    harness: FollowerHarness, folder: Path, name: str, bad: str, good: str
) -> None:
    """Of two values of a property one is none, and the other does."""
    with pytest.raises(ValidationError, match=rf"{name} must be .*, not '{bad}'"):
        harness.settings(properties={name: bad})
    with a_world(harness, folder, properties={name: good}) as world:
        world.view.publish([world.row(1)])
        world.sync()
        world.check()
