"""Follows a view into a target that is in a call, and looks at it when it is told to."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from mview_connectors.followers.sql.sqlite import SqliteFollower

from mview.follow.followers import read_problem
from tests.follow.test_followers import World


def main(folder: Path) -> None:
    """Say `in the call`, then per line of the input whether the sink is silent.

    Args:
        folder: an empty one.
    """
    entered = threading.Event()

    def held(*_: Any) -> None:
        entered.set()
        threading.Event().wait()

    SqliteFollower.fill = held  # type: ignore[method-assign, assignment]
    world = World(folder, patience="5 s")
    world.place()
    with world.followed() as followers:
        entered.wait()
        print("in the call", flush=True)
        for _ in sys.stdin:
            followers._threads[0].look()
            problem = read_problem(world.store.follower("v", "s"))
            print("not silent" if problem is None else problem.text, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
