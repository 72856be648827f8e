"""What the demo does beside the run: start the writer, watch the epochs, end both in order."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mview.cli.interrupt import Drainable
from mview.epoch.report import BuildReport, EpochReport, Listener, LoadReport
from mview.errors import MviewError

#: Seconds that the view is kept fresh before the writer is ended.
LIVE_SECONDS = 15
#: Seconds that the run gets to take the last changes.
CATCH_UP_SECONDS = 60


class ShopWriter:
    """The writer process, for the time of a `with` block."""

    def __init__(self, folder: Path) -> None:
        # A session of its own: Ctrl-C is for the run. It ends with us, by the end of its input.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mview.cli.demo.writer", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> ShopWriter:
        return self

    def finish(self) -> dict[str, int]:
        """End the writer.

        Returns:
            What it did; see `mview.cli.demo.writer.write`.
        """
        said, _ = self._process.communicate(timeout=30)
        if self._process.returncode:
            raise MviewError(
                "the demo's writer failed", got=f"exit code {self._process.returncode}"
            )
        done: dict[str, int] = json.loads(said)
        return done

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            if self._process.poll() is None:
                self._process.kill()


class Conductor:
    """Listens to the run, and ends it when it has been live for a while and has every change.

    Args:
        display: shows what is listened to.
        writer: ended after LIVE_SECONDS of a live view.
    """

    def __init__(self, display: Listener, writer: ShopWriter) -> None:
        self._display = display
        self._writer = writer
        self._moved = threading.Condition()
        self._live = self._over = False
        self._watermark = 0
        #: Lag of every epoch with changes after the view went live, milliseconds.
        self.lags: list[int] = []
        #: What the writer did, when it has ended.
        self.written: dict[str, int] = {}
        self.failure: MviewError | None = None

    def on_load(self, load: LoadReport) -> None:
        """See `Listener`."""
        self._display.on_load(load)

    def on_build(self, build: BuildReport) -> None:
        """See `Listener`."""
        self._display.on_build(build)

    def on_halt(self, view: str, error: MviewError) -> None:
        """See `Listener`."""
        self._display.on_halt(view, error)

    def on_message(self, text: str) -> None:
        """See `Listener`."""
        self._display.on_message(text)

    def on_epoch(self, epoch: EpochReport) -> None:
        """See `Listener`. The first epoch with a view is its first build: its lag says nothing."""
        self._display.on_epoch(epoch)
        with self._moved:
            if self._live and epoch.lag_ms is not None:
                self.lags.append(epoch.lag_ms)
            self._live = self._live or bool(epoch.views)
            self._watermark = max(self._watermark, epoch.watermark or 0)
            self._moved.notify_all()

    def conduct(self, pipeline: Drainable) -> None:
        """End the writer, then the pipeline. Runs in a thread beside the pipeline."""
        try:
            if self._wait_for(lambda: self._live, None):
                self.on_message(f"live; changes keep coming for {LIVE_SECONDS} more seconds")
                self._wait_for(lambda: False, LIVE_SECONDS)
                self.written = self._writer.finish()
                self._wait_for(lambda: self._watermark >= self.written["ts"], CATCH_UP_SECONDS)
        except MviewError as error:
            self.failure = error
        pipeline.stop()

    def over(self) -> None:
        """The pipeline has ended: nothing is left to wait for."""
        with self._moved:
            self._over = True
            self._moved.notify_all()

    def _wait_for(self, happened: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until something happened or the pipeline is over; whether it happened."""
        with self._moved:
            self._moved.wait_for(lambda: self._over or happened(), seconds)
            return happened()
