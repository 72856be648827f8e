"""Follows a store until it is killed: `python -m tests.follow.child FOLDER TOKEN SINK`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mview.catalog.definitions import load_definitions
from mview.clock import SystemClock
from mview.follow.followers import Followers
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.layout import Store
from tests.conftest import small_config


@dataclass(frozen=True)
class Token:
    """The right to write of the newest process."""

    token: int
    takes_over: bool = True

    def check(self) -> None:
        """There is no newer one: the older ones are dead."""


def config_of(folder: Path, sink: str) -> Any:
    """A store with a sink of a type."""
    sinks = {
        "sqlite": {"type": "sqlite", "url": f"sqlite:///{folder / 'sink.db'}"},
        "delta": {"type": "delta", "path": str(folder / "lake"), "every": "0s"},
    }
    return small_config(folder, sinks={"s": sinks[sink]})


def main(folder: Path, token: int, sink: str) -> None:
    """Follow for ever."""
    config = config_of(folder, sink)
    store = Store(config.store)
    log = ManifestLog(store.manifests)
    manifest = log.latest()
    assert manifest is not None
    definitions = load_definitions(store, manifest).views.values()
    followers = Followers(config, definitions, Token(token), SystemClock(), Mask(()), print)
    followers.start(manifest)
    while True:
        time.sleep(0.01)
        newest = log.latest()
        if newest is not None and newest.epoch > manifest.epoch:
            manifest = newest
            followers.published(manifest)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
