"""A store of an older version is brought to the format of this one."""

from __future__ import annotations

from dataclasses import dataclass

from mview.clock import SystemClock
from mview.config import Config
from mview.store.environments import names_of
from mview.store.identity import FORMAT, format_of, refusal
from mview.store.layout import Store
from mview.store.migrations import migrate as migrate_store


@dataclass(frozen=True)
class Migrated:
    """What was done to a store.

    Attributes:
        store: its folder.
        before: the format that it had; None: there is no store yet.
        format: the format that it has.
        done: what was changed, step by step.
    """

    store: str
    before: int | None
    format: int
    done: tuple[str, ...]


def migrate(config: Config) -> Migrated:
    """Bring the store and its environments to the format of this version.

    It is done step by step; what is killed is done again.

    Raises: as `mview.store.migrations.migrate`; and
        ConfigError: something else is in the place of the store.
    """
    store = Store(config.store, any_format=True)
    before = format_of(store.root)
    if before is None and (error := refusal(store.root)):
        raise error
    done = [step.what for step in migrate_store(store, SystemClock())]
    for name in names_of(store):
        own = Store(store.environment(name), any_format=True)
        done += [f"environment {name}: {s.what}" for s in migrate_store(own, SystemClock())]
    return Migrated(str(config.store), before, FORMAT, tuple(done))
