"""What a run shows: bars and live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from mview.cli.output import Output
from mview.epoch.report import EpochReport, Listener, ViewChange
from mview.errors import one_line, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, Task, TaskID

#: Seconds between two lines about the load of one table: a log stays readable.
_EVERY = 5.0


def duration_text(ms: int | None) -> str:
    """Milliseconds for people: `0.8 s`, `12 s`, `3 min`, `5 h`; `-` where unknown."""
    if ms is None:
        return "-"
    seconds = ms / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _dropped_text(changes: int) -> str:
    return f"{changes:,} sent again, dropped"


class Display(Listener, Protocol):
    """A listener of a pipeline that is switched on for the time of a run."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class LineDisplay:
    """Plain lines, for logs and pipes.

    Args:
        output: where the lines go.
        now: monotonic seconds.
    """

    def __init__(self, output: Output, now: Callable[[], float] = time.monotonic) -> None:
        self._output = output
        self._now = now
        self._began: dict[str, float] = {}
        self._said: dict[str, float] = {}
        self._loaded: set[str] = set()

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None  # the command prints the error

    def on_load(self, table: str, rows: int, total: int, done: bool) -> None:
        """A line when a load begins and ends, and every few seconds between."""
        if table in self._loaded:
            return  # told again while other tables are loading
        now = self._now()
        began = self._began.setdefault(table, now)
        rate = f", {rows / (now - began):,.0f} rows/s" if now > began else ""
        if done:
            self._loaded.add(table)
            self._output.line(f"{one_line(table)}: loaded, {rows:,} rows{rate}")
        elif now - self._said.get(table, -_EVERY) >= _EVERY:
            self._said[table] = now
            left = (now - began) * (total - rows) / rows if rows else 0
            eta = f", {duration_text(int(left * 1000))} left" if left > 0 else ""
            seen = f"{rows:,} of about {total:,} rows"
            self._output.line(f"{one_line(table)}: loading, {seen}{rate}{eta}")

    def on_epoch(self, epoch: EpochReport) -> None:
        """A line per view that the epoch changed."""
        for name, change in epoch.views.items():
            if change.inserted or change.updated or change.deleted:
                # A first build has no newest change, and so no lag.
                lag = "" if epoch.lag_ms is None else f"lag {duration_text(epoch.lag_ms)}, "
                counts = f"+{change.inserted:,} ~{change.updated:,} -{change.deleted:,}"
                chosen = f"; {change.chosen}" if change.chosen else ""
                self._output.line(
                    f"{name}: epoch {epoch.epoch}, {lag}{counts}, {change.rows:,} rows{chosen}"
                )
        if epoch.dropped:
            self._output.line(f"epoch {epoch.epoch}: {_dropped_text(epoch.dropped)}")

    def on_message(self, text: str) -> None:
        """The text as a line."""
        self._output.line(text)


@dataclass
class _ViewLine:
    """What the live line of a view shows: counts since the start of the run."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rows: int = 0
    chosen: str = ""

    def add(self, change: ViewChange) -> None:
        """Count an epoch in."""
        self.inserted += change.inserted
        self.updated += change.updated
        self.deleted += change.deleted
        self.rows, self.chosen = change.rows, change.chosen


class LiveDisplay:
    """A load bar per table, then a live line per view, redrawn in place."""

    def __init__(self, output: Output) -> None:
        from rich.console import Console
        from rich.live import Live

        self._output = output
        self._bars = _load_bars()
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, _ViewLine] = {}
        self._epoch = EpochReport(0, 0, None)
        self._lag: int | None = None
        self._dropped = self._errors = 0
        self._live = Live(
            get_renderable=self._draw, console=Console(highlight=False), refresh_per_second=4
        )

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What ends a run by an error may be a view that has halted, and is counted.
        ended = kind is not None and issubclass(kind, Exception)
        self._errors = max(self._errors, int(ended))
        self._live.stop()

    def on_load(self, table: str, rows: int, total: int, done: bool) -> None:
        """Move the table's bar."""
        if table not in self._tasks:
            self._tasks[table] = self._bars.add_task(one_line(table), total=max(total, 1))
        # The total is an estimate: at the end the rows that were read are the truth.
        self._bars.update(
            self._tasks[table],
            completed=max(rows, 1) if done else rows,
            total=max(rows, 1) if done else max(total, rows, 1),
        )

    def on_epoch(self, epoch: EpochReport) -> None:
        """Bring the lines of the views up to the epoch."""
        self._epoch = epoch
        self._dropped += epoch.dropped
        if epoch.lag_ms is not None:
            self._lag = epoch.lag_ms
        for name, change in epoch.views.items():
            self._lines.setdefault(name, _ViewLine()).add(change)
        for name in epoch.halted:
            self._errors += 1
            self._lines.setdefault(name, _ViewLine()).chosen = "HALTED"

    def on_message(self, text: str) -> None:
        """The text as a line above the live part."""
        self._live.console.print(printable(self._output.mask(text)), markup=False)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        lines = Table.grid(padding=(0, 2))
        for name, line in list(self._lines.items()):
            lines.add_row(
                Text(one_line(name), style="bold"),
                f"epoch {self._epoch.epoch:,}",
                f"lag {duration_text(self._lag)}",
                Text(f"+{line.inserted:,}", style="green"),
                Text(f"~{line.updated:,}", style="yellow"),
                Text(f"-{line.deleted:,}", style="red"),
                f"{line.rows:,} rows",
                Text(f"{self._errors} errors", style="bold red" if self._errors else "dim"),
                _dropped_text(self._dropped) if self._dropped else "",
                Text(one_line(line.chosen)),
            )
        return Group(self._bars, lines) if self._tasks else lines


def _load_bars() -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rows(ProgressColumn):
        """Rows read and their rate."""

        def render(self, task: Task) -> Text:
            # Over the whole load: chunks come in steps, and a small table in a single one.
            seconds = task.finished_time or task.elapsed
            rate = task.completed / seconds if seconds else 0
            return Text(f"{task.completed:,.0f} rows  {rate:,.0f} rows/s")

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        Rows(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )


def display_for(output: Output) -> Display:
    """The live display on a terminal, plain lines elsewhere."""
    return LiveDisplay(output) if output.is_terminal else LineDisplay(output)
