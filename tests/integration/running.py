"""A pipeline in a thread of the test, and what it told its listener."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from mview.admin.content import published
from mview.config import Config
from mview.config.file import load_config
from mview.epoch.report import BuildReport, EpochReport, LoadReport
from mview.errors import MviewError
from mview.plan.definition import ViewDefinition, load_views
from mview.run.pipeline import Pipeline
from mview.secrets import reveal
from tests.integration.shop import COLUMNS, Shop
from tests.services.process import wait_until

#: Seconds that a load, or a change on its way, may take on a busy machine.
PATIENCE = 150.0


class Running:
    """A pipeline that runs from the beginning of the block to its end.

    Args:
        config: the configuration.
        views: the views.
        once: see `Pipeline.run`.
    """

    def __init__(self, config: Config, views: list[ViewDefinition], *, once: bool = False) -> None:
        self.config, self._once = config, once
        self._views = {view.name for view in views}
        self.epochs: list[EpochReport] = []
        self.loaded: set[str] = set()
        self.seen: dict[str, int] = {}
        self.messages: list[str] = []
        self.error: BaseException | None = None
        self._pipeline = Pipeline(config, views, listener=self)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pipeline.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if kind is None:
            self.check()

    def _run(self) -> None:
        try:
            self._pipeline.run(once=self._once)
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        """Raise what the pipeline raised."""
        if self.error is not None:
            raise self.error

    def failure(self) -> BaseException:
        """Wait for the pipeline to fail."""
        self._thread.join(PATIENCE)
        assert self.error is not None, "the pipeline did not fail"
        error, self.error = self.error, None
        return error

    # --- Listener --------------------------------------------------------------------------------

    def on_load(self, load: LoadReport) -> None:
        self.seen[load.table] = load.read
        if load.done:
            self.loaded.add(load.table)

    def on_build(self, build: BuildReport) -> None:
        """Nobody asks for it."""

    def on_epoch(self, epoch: EpochReport) -> None:
        self.epochs.append(epoch)

    def on_halt(self, view: str, error: MviewError) -> None:
        self.messages.append(f"view {view} halts: {error}")

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    # --- waiting ---------------------------------------------------------------------------------

    def until_reading(self) -> None:
        """Wait until chunks are being read."""
        wait_until(lambda: self.seen, "a chunk", PATIENCE, self.check)

    def until_live(self) -> None:
        """Wait until all views are built."""

        def are_built() -> bool:
            there = set(published(self.config).views)
            return bool(there) and self._views <= there

        wait_until(are_built, "the views", PATIENCE, self.check)

    def until_epochs(self, count: int) -> None:
        """Wait until so many epochs have changed a view after the first build."""
        goal = sum(1 for epoch in self.epochs if epoch.views and epoch.changes) + count
        wait_until(
            lambda: sum(1 for epoch in self.epochs if epoch.views and epoch.changes) >= goal,
            f"{count} epochs",
            PATIENCE,
            self.check,
        )

    def until_all_is_read(
        self, shops: Mapping[str, Shop], tables: Mapping[str, Collection[str]] | None = None
    ) -> None:
        """Wait until everything in the topics is published. The writers must have ended."""
        ends = {
            name: {
                f"{shop.topic(table)}/0": shop.kafka.end_offsets(shop.topic(table))[0]
                for table in (tables[name] if tables else COLUMNS)
            }
            for name, shop in shops.items()
        }

        def is_read() -> bool:
            # The connector may still be on its way: what counts are the topics' ends now.
            offsets = published(self.config).offsets
            return all(
                offsets[name][partition] >= end
                for name, partitions in ends.items()
                for partition, end in partitions.items()
            )

        self.until_live()
        wait_until(is_read, "all changes to be published", PATIENCE, self.check)


def make_project(
    folder: Path,
    shops: Mapping[str, Shop],
    views: Mapping[str, str],
    changes: Mapping[str, Any] | None = None,
    **sections: Any,
) -> tuple[Config, list[ViewDefinition]]:
    """A configuration file and view files for connections to shops."""
    connections = {}
    for name, shop in shops.items():
        settings = shop.server.settings(shop.database)
        # Workers have the environment from when their JVM was started: a file is always there.
        secret = folder / f"{name}.secret"
        secret.write_text(reveal(settings["password"], "tests"))
        connections[name] = settings | {"password": f"${{file:{secret}}}"}
    body = {
        "store": "store",
        "connections": connections,
        "changes": {name: shop.changes(**(changes or {})) for name, shop in shops.items()},
        "engine": {"chunk_rows": 2_000, "chunks_per_epoch": 3},
        **sections,
    }
    (folder / "mview.yml").write_text(yaml.safe_dump(body))
    (folder / "sql").mkdir(exist_ok=True)
    for name, text in views.items():
        (folder / "sql" / f"{name}.sql").write_text(text)
    return load_config(folder / "mview.yml"), load_views([folder / "sql"]) if views else []
