"""Follows a store until it is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mview.catalog.definitions import load_definitions
from mview.clock import SystemClock
from mview.config.file import load_config
from mview.follow.followers import Followers
from mview.secrets import Mask
from mview.store.history import ManifestLog
from mview.store.layout import Store


@dataclass(frozen=True)
class Token:
    """The right to write of the newest process."""

    token: int
    takes_over: bool = True

    def check(self) -> None:
        """There is no newer one: the older ones are dead."""


def main(folder: Path, token: int, environment: Mapping[str, str]) -> None:
    """Follow for as long as its parent is there.

    Args:
        folder: has `mview.yml`.
        token: greater than that of every process before.
        environment: has the secrets.
    """
    os.environ.update(environment)
    config = load_config(folder / "mview.yml")
    store = Store(config.store)
    log = ManifestLog(store.manifests)
    manifest = log.latest()
    assert manifest is not None
    definitions = load_definitions(store, manifest).views.values()
    followers = Followers(config, definitions, Token(token), SystemClock(), Mask(()), print)
    followers.start(manifest)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.01)
        newest = log.latest()
        if newest is not None and newest.epoch > manifest.epoch:
            manifest = newest
            followers.published(manifest)
