"""Running pipelines in tests: to the end of the log, or live for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mview.admin.content import published
from mview.config import Config
from mview.epoch.report import BuildReport, EpochReport, LoadReport
from mview.errors import MviewError
from mview.plan.definition import ViewDefinition, order_views, parse_view
from mview.run.pipeline import Pipeline
from tests.e2e.shop import Shop
from tests.patience import join, wait_for

#: Seconds that something may take before a test gives up; see `Patience`.
PATIENCE = 180


def views_of(**sql: str) -> list[ViewDefinition]:
    """Views by name, in the order they read each other."""
    return order_views([parse_view(text, name) for name, text in sql.items()])


class Notes:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.epochs: list[EpochReport] = []
        self.halts: dict[str, MviewError] = {}
        self.messages: list[str] = []
        self.loads: list[LoadReport] = []

    def on_load(self, load: LoadReport) -> None:
        self.loads.append(load)

    def on_build(self, build: BuildReport) -> None:
        """Nobody asks for it."""

    def on_epoch(self, epoch: EpochReport) -> None:
        self.epochs.append(epoch)

    def on_halt(self, view: str, error: MviewError) -> None:
        self.halts[view] = error

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def run_once(config: Config, *views: ViewDefinition) -> Notes:
    """Take what is there."""
    notes = Notes()
    Pipeline(config, views, listener=notes).run(once=True)
    return notes


class Live:
    """A pipeline that runs in a thread."""

    def __init__(self, config: Config, *views: ViewDefinition) -> None:
        self.notes = Notes()
        self.error: BaseException | None = None
        self.pipeline = Pipeline(config, views, listener=self.notes)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.pipeline.run(once=False)
        except BaseException as error:
            self.error = error

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""

        def check() -> None:
            assert self._thread.is_alive(), f"the pipeline ended: {self.error}"

        assert wait_for(condition, PATIENCE, check), f"waited too long; {self.notes.messages}"

    def epochs(self, view: str, number: int) -> None:
        """Wait until `number` more epochs changed a view."""
        before = len(self.notes.epochs)
        self.until(lambda: sum(view in e.views for e in self.notes.epochs[before:]) >= number)

    def to_the_end(self, shop: Shop) -> None:
        """Wait until all that the log has now is published."""
        shop.heartbeat()
        config, size = self.pipeline.config, shop.file.stat().st_size
        self.until(lambda: published(config).offsets["shop"]["log"][1] >= size)

    def failure(self) -> BaseException:
        """Wait until the pipeline fails."""
        join(self._thread, PATIENCE)
        assert self.error is not None, "the pipeline did not fail"
        return self.error

    def stop(self) -> None:
        self.pipeline.stop()
        join(self._thread, PATIENCE)
        assert not self._thread.is_alive(), "the pipeline does not stop"


@contextmanager
def beating(shop: Shop) -> Iterator[None]:
    """A connector that is alive."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            shop.heartbeat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def live(config: Config, *views: ViewDefinition) -> Iterator[Live]:
    """Run until the end of the block."""
    running = Live(config, *views)
    try:
        yield running
    finally:
        running.stop()
    if running.error is not None:
        raise running.error
