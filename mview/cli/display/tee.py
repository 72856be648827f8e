"""A display, and a listener beside it that is told the same."""

from __future__ import annotations

from mview.cli.display.progress import Display
from mview.epoch.report import BuildReport, EpochReport, Listener, LoadReport
from mview.errors import MviewError


class TeeDisplay:
    """Tells a display and a listener; the listener first.

    Args:
        display: the run's.
        listener: is told the same.
    """

    def __init__(self, display: Display, listener: Listener) -> None:
        self._display, self._listener = display, listener

    def on_load(self, load: LoadReport) -> None:
        """Tell both."""
        self._listener.on_load(load)
        self._display.on_load(load)

    def on_build(self, build: BuildReport) -> None:
        """Tell both."""
        self._listener.on_build(build)
        self._display.on_build(build)

    def on_epoch(self, epoch: EpochReport) -> None:
        """Tell both."""
        self._listener.on_epoch(epoch)
        self._display.on_epoch(epoch)

    def on_halt(self, view: str, error: MviewError) -> None:
        """Tell both."""
        self._listener.on_halt(view, error)
        self._display.on_halt(view, error)

    def on_message(self, text: str) -> None:
        """Tell both."""
        self._listener.on_message(text)
        self._display.on_message(text)
