"""What a run shows: bars and live lines on a terminal, timed lines or JSON elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from mview.cli.output import Output
from mview.clock import utc_text
from mview.epoch.report import BuildReport, EpochReport, Listener, LoadReport, ViewChange
from mview.errors import MviewError, RetryableError, counted, one_line, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text

#: How the lines of a run are written where no person watches.
LogFormat = Literal["text", "json"]

#: Seconds between two lines about the load of one table: a log stays readable.
_EVERY = 5.0

#: Seconds between two lines about the epochs of one view.
_SUMMARY_EVERY = 10.0

#: The part of a table after which a log tells how long the rest of its load takes.
_FIRST = 0.05

#: Seconds over which the live screen counts changes per second.
_RATE_OVER = 10.0

#: Columns of a terminal that a name and a reason have at least.
_NAME, _REASON = 12, 16

#: Seconds without a change or heartbeat after which the live screen says so in red.
_SILENT_AFTER = 15.0


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


def _clock_text(seconds: float) -> str:
    """Seconds that have passed: `00:12:03`."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"


def _build_text(build: BuildReport) -> str:
    """What is built, from how much."""
    return f"building from {counted(build.rows, 'row')}{_which(build)}"


def _which(build: BuildReport) -> str:
    return f", {build.number} of {build.views}" if build.views > 1 else ""


@dataclass
class _Tally:
    """What a run has done when it ends.

    Attributes:
        now: monotonic seconds.
    """

    now: Callable[[], float]
    began: float = 0.0
    first: int | None = None
    last: int = 0
    changes: int = 0
    worst_ms: int | None = None
    built: set[str] = field(default_factory=set)
    #: In the order in which they have halted; who is built anew has not.
    halted: dict[str, None] = field(default_factory=dict)

    def begin(self) -> None:
        """The run begins."""
        self.began = self.now()

    def add(self, epoch: EpochReport) -> None:
        """Count an epoch in."""
        self.first = epoch.epoch if self.first is None else self.first
        self.last = epoch.epoch
        self.changes += sum(epoch.changes.values())
        if epoch.lag_ms is not None:
            self.worst_ms = max(epoch.lag_ms, self.worst_ms or 0)

    def add_build(self, build: BuildReport) -> None:
        """Count a view in that is built."""
        if build.done:
            self.built.add(build.view)
            self.halted.pop(build.view, None)

    def text(self) -> str:
        """A line; the times of a run that has done nothing, too."""
        said = []
        if self.built:
            said.append(f"{counted(len(self.built), 'view')} built")
        if self.first is None:
            said.append("no epoch")
        else:
            several = self.last > self.first
            numbers = f"epochs {self.first:,} to {self.last:,}" if several else f"epoch {self.last}"
            said += [numbers, counted(self.changes, "change")]
        if self.worst_ms is not None:
            said.append(f"largest lag {duration_text(self.worst_ms)}")
        if self.halted:
            said.append(f"halted: {', '.join(map(one_line, self.halted))}")
        return f"ran for {_clock_text(self.now() - self.began)}: {', '.join(said)}"


def _dropped_text(changes: int) -> str:
    return f"{changes:,} sent again, dropped"


def _halt_text(view: str, error: MviewError) -> str:
    return f"view {one_line(view)} halts, alone: {error.render()}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class UnreadError(RetryableError):
    """Nobody reads any more what a run says."""


@contextmanager
def heard() -> Iterator[None]:
    """What a run says is no result of which a reader (`head`) has seen enough: it ends with it."""
    try:
        yield
    except BrokenPipeError as error:
        raise UnreadError(
            "nobody reads any more what the run says: the other end of its output is closed",
            safe="every published epoch stays; nobody keeps the views fresh now",
            hint="run the same command again; its lines may go to a file, or be few with --quiet",
        ) from error


class Display(Listener, Protocol):
    """A listener of a pipeline that is switched on for the time of a run."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@dataclass(frozen=True)
class _Epochs:
    """Epochs of one view, put together for one line.

    Attributes:
        first, last: their numbers.
        lag_ms: the largest one; None: of first builds only, which have none.
        total: what they did.
    """

    first: int
    last: int
    lag_ms: int | None
    total: ViewChange

    def and_then(self, later: _Epochs) -> _Epochs:
        """These and later ones."""
        lags = [ms for ms in (self.lag_ms, later.lag_ms) if ms is not None]
        total = replace(
            later.total,
            inserted=self.total.inserted + later.total.inserted,
            updated=self.total.updated + later.total.updated,
            deleted=self.total.deleted + later.total.deleted,
            chosen=later.total.chosen or self.total.chosen,
        )
        return _Epochs(self.first, later.last, max(lags, default=None), total)

    def text(self) -> str:
        """The line, without the view's name."""
        several = self.last > self.first
        numbers = f"epochs {self.first:,} to {self.last:,}" if several else f"epoch {self.last:,}"
        lag = ""
        if self.lag_ms is not None:
            lag = f"lag {'up to ' if several else ''}{duration_text(self.lag_ms)}, "
        total = self.total
        counts = f"+{total.inserted:,} ~{total.updated:,} -{total.deleted:,}"
        chosen = f"; {total.chosen}" if total.chosen else ""
        return f"{numbers}, {lag}{counts}, {counted(total.rows, 'row')}{chosen}"


class LineDisplay:
    """Plain lines with their time in UTC, for logs and pipes.

    The first epoch of a view is told at once, further ones together every ten seconds.

    Args:
        output: where the lines go.
        verbose: every epoch has a line of its own.
        now: monotonic seconds.
        wall: milliseconds since 1970.
    """

    def __init__(
        self,
        output: Output,
        *,
        verbose: bool = False,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = _wall_ms,
    ) -> None:
        self._output, self._verbose = output, verbose
        self._now, self._wall = now, wall
        self._began: dict[str, tuple[float, int]] = {}
        self._said: dict[str, float] = {}
        self._loaded: set[str] = set()
        #: Of what is below: epochs come from the run's thread, the timer has its own.
        self._lock = threading.Lock()
        self._epochs: dict[str, _Epochs] = {}
        self._dropped = 0
        self._told = -_SUMMARY_EVERY
        self._timer: threading.Timer | None = None
        self._tally = _Tally(now)

    def __enter__(self) -> LineDisplay:
        self._tally.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tell_epochs()  # an error is printed by the command, after them
        # What ends the run counts, not that nobody reads what it has done.
        with suppress(UnreadError) if kind else nullcontext():
            self._line(self._tally.text())

    def _line(self, text: str) -> None:
        with heard():
            self._output.line(f"{utc_text(self._wall())}  {text}")

    def on_load(self, load: LoadReport) -> None:
        """A line when a load begins and ends, and every few seconds between."""
        if load.table in self._loaded:
            return  # told again while other tables are loading
        now = self._now()
        # A load that goes on has rows at its beginning, which this run has not read.
        began, first = self._began.setdefault(load.table, (now, load.rows))
        came = load.rows - first
        rate = f", {came / (now - began):,.0f} rows/s" if now > began else ""
        table = one_line(load.table)
        if load.done:
            self._loaded.add(load.table)
            self._line(f"{table}: loaded, {counted(load.rows, 'row')}{rate}")
        elif now - self._said.get(load.table, -_EVERY) >= _EVERY:
            self._said[load.table] = now
            left = 0.0
            # The first rows that count are changes, and do not tell how fast chunks come; once all
            # is read, what is left depends on the changelog.
            if came > _FIRST * load.total and load.read < load.total:
                left = (now - began) * (load.total - load.rows) / came
            eta = f", {duration_text(int(left * 1000))} left" if left > 0 else ""
            seen = f"{load.rows:,} of about {counted(load.total, 'row')}{rate}{eta}"
            why = f"; {one_line(load.held)}" if load.held else ""
            self._line(f"{table}: loading, {seen}; {load.read:,} read{why}")

    def on_build(self, build: BuildReport) -> None:
        """A line when it begins: the epoch says that it is there."""
        self._tally.add_build(build)
        if not build.done:
            about = ""
            if build.expected is not None:
                about = f", about {duration_text(int(build.expected * 1000))}"
            self._line(f"{one_line(build.view)}: {_build_text(build)}{about}")

    def on_epoch(self, epoch: EpochReport) -> None:
        """Tell of the views that the epoch changed, at once or with later ones."""
        with self._lock:
            self._tally.add(epoch)
            for name, change in epoch.views.items():
                if change.inserted or change.updated or change.deleted:
                    these = _Epochs(epoch.epoch, epoch.epoch, epoch.lag_ms, change)
                    before = self._epochs.get(name)
                    self._epochs[name] = before.and_then(these) if before else these
            self._dropped += epoch.dropped
            wait = self._told + _SUMMARY_EVERY - self._now()
            at_once = self._verbose or wait <= 0
            if not at_once and self._timer is None and (self._epochs or self._dropped):
                self._timer = threading.Timer(wait, self._tell_late)
                self._timer.daemon = True
                self._timer.start()
        if at_once:
            self._tell_epochs()

    def _tell_late(self) -> None:
        """Tell what came last, in the timer's thread."""
        # What cannot be written is kept, and the run's own thread is told of it by the next line.
        with suppress(OSError, UnreadError):
            self._tell_epochs()

    def _tell_epochs(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._epochs and not self._dropped:
                return
            for name, epochs in self._epochs.items():
                self._line(f"{name}: {epochs.text()}")
            if self._dropped:
                self._line(_dropped_text(self._dropped))
            self._epochs, self._dropped = {}, 0
            self._told = self._now()

    def on_halt(self, view: str, error: MviewError) -> None:
        """A line, with why."""
        self._tally.halted[view] = None
        self.on_message(_halt_text(view, error))

    def on_message(self, text: str) -> None:
        """The text as a line."""
        self._line(self._output.advised(text))


class JsonDisplay:
    """Every event as a line of JSON, for programs: `time` (UTC) and `event`, then its fields.

    Events: `load`, `build` and `epoch` with the fields of `LoadReport`, `BuildReport` and
    `EpochReport`, `halt` with `view` and `error`, `message` with `text`.

    Args:
        output: where the lines go.
    """

    def __init__(self, output: Output) -> None:
        self._output = output

    def __enter__(self) -> JsonDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_load(self, load: LoadReport) -> None:
        """An event `load`."""
        self._event("load", load)

    def on_build(self, build: BuildReport) -> None:
        """An event `build`."""
        self._event("build", build)

    def on_epoch(self, epoch: EpochReport) -> None:
        """An event `epoch`."""
        self._event("epoch", epoch)

    def on_halt(self, view: str, error: MviewError) -> None:
        """An event `halt`."""
        told = self._output.advised(str(error.render()))
        self._event("halt", view=view, error=told, code=error.code)

    def on_message(self, text: str) -> None:
        """An event `message`."""
        self._event("message", text=self._output.advised(text))

    def _event(
        self,
        event: str,
        report: LoadReport | BuildReport | EpochReport | None = None,
        **more: str,
    ) -> None:
        told = {} if report is None else {f.name: getattr(report, f.name) for f in fields(report)}
        time_text = utc_text(_wall_ms()).replace(" ", "T") + "Z"
        with heard():
            self._output.json_line({"time": time_text, "event": event, **told, **more})


class QuietDisplay:
    """Says nothing of a run that goes well, only which views halt.

    Args:
        output: where these go.
    """

    def __init__(self, output: Output) -> None:
        self._output = output

    def __enter__(self) -> QuietDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def on_load(self, load: LoadReport) -> None:
        """Say nothing."""

    def on_build(self, build: BuildReport) -> None:
        """Say nothing."""

    def on_epoch(self, epoch: EpochReport) -> None:
        """Say nothing."""

    def on_halt(self, view: str, error: MviewError) -> None:
        """Say it, with why."""
        self._output.note(_halt_text(view, error))

    def on_message(self, text: str) -> None:
        """Say nothing."""


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


@dataclass(frozen=True)
class _ViewLines:
    """Lines of views. Where it is narrow reasons are folded and names cut, but never a number.

    Attributes:
        lines: by name.
    """

    lines: list[tuple[str, _ViewLine]]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        rows = [
            (
                Text(one_line(name), style="bold"),
                Text(counted(line.rows, "row")),
                Text(f"+{line.inserted:,}", style="green"),
                Text(f"~{line.updated:,}", style="yellow"),
                Text(f"-{line.deleted:,}", style="red"),
                Text(one_line(line.chosen), style="bold red" if line.chosen == "HALTED" else ""),
            )
            for name, line in self.lines
        ]
        if not rows:
            return
        longest, *numbers, reason = [max(map(len, column)) for column in zip(*rows, strict=True)]
        taken = sum(2 + width for width in numbers)
        taken += 2 + min(reason, _REASON) if reason else 0
        table = Table.grid(padding=(0, 2))
        name = min(longest, max(_NAME, options.max_width - taken))
        table.add_column(no_wrap=True, overflow="ellipsis", width=name)
        for width in numbers:
            table.add_column(no_wrap=True, width=width)
        if reason:
            table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row[: len(table.columns)])
        yield table


@dataclass
class _Pulse:
    """How a run is doing as a whole; times go on by themselves between two epochs.

    Attributes:
        now: monotonic seconds.
        wall: milliseconds since 1970.
        began: the run's begin, monotonic seconds.
    """

    now: Callable[[], float]
    wall: Callable[[], int]
    began: float
    live_since: float | None = None
    epoch: int = 0
    dropped: int = 0
    errors: int = 0
    lag_ms: int | None = None
    changed_at: float | None = None
    watermark: int | None = None
    _counts: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, epoch: EpochReport) -> None:
        """Count an epoch in."""
        now = self.now()
        self.epoch = epoch.epoch
        self.dropped += epoch.dropped
        self.watermark = epoch.watermark if epoch.watermark is not None else self.watermark
        if epoch.views and self.live_since is None:
            self.live_since = now
        if epoch.lag_ms is not None:
            self.lag_ms, self.changed_at = epoch.lag_ms, now
        if count := sum(epoch.changes.values()):
            self._counts.append((now, count))

    def rate(self) -> float:
        """Changes per second, of late."""
        begin = self.now() - _RATE_OVER
        while self._counts and self._counts[0][0] < begin:
            self._counts.popleft()
        return sum(count for _, count in self._counts) / _RATE_OVER

    def lines(self) -> list[list[tuple[str, str]]]:
        """What is said in each line, in parts with their styles."""
        now = self.now()
        if self.live_since is None:
            return [[("not live yet", "bold"), (_clock_text(now - self.began), "")]]
        doing = [
            (f"live {_clock_text(now - self.live_since)}", "bold green"),
            (f"epoch {self.epoch:,}", ""),
            (f"{self.rate():,.1f} changes/s", ""),
        ]
        heard = []
        if self.watermark is not None:  # as `mview status` has it: it goes on though nothing comes
            lag = max(0, self.wall() - self.watermark)
            style = "bold red" if lag > _SILENT_AFTER * 1000 else ""
            doing.append((f"lag {duration_text(lag)}", style))
        if self.changed_at is not None and self.lag_ms is not None:
            ago = duration_text(int((now - self.changed_at) * 1000))
            heard.append((f"last change {ago} ago, shown after {duration_text(self.lag_ms)}", ""))
        if self.errors:
            doing.append((counted(self.errors, "error"), "bold red"))
        if self.dropped:
            heard.append((_dropped_text(self.dropped), ""))
        return [doing, heard] if heard else [doing]


class LiveDisplay:
    """A load bar per table until all are loaded, a line on the whole, a line per view.

    A view that is built has a bar where it is known how long that takes. What stays at the end says
    what the run has done.

    Args:
        output: masks what is shown.
        now: monotonic seconds.
        wall: milliseconds since 1970.
    """

    def __init__(
        self,
        output: Output,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = _wall_ms,
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self._output = output
        self._bars = _load_bars()
        self._tasks: dict[str, TaskID] = {}
        self._loads: dict[str, LoadReport] = {}
        self._lines: dict[str, _ViewLine] = {}
        self._pulse = _Pulse(now, wall, now())
        self._now, self._tally, self._ended = now, _Tally(now), False
        self._build: tuple[BuildReport, float] | None = None
        self._live = Live(
            get_renderable=self._draw, console=Console(highlight=False), refresh_per_second=4
        )

    def __enter__(self) -> LiveDisplay:
        self._tally.begin()
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What ends a run by an error may be a view that has halted, and is counted.
        ended = kind is not None and issubclass(kind, Exception)
        self._pulse.errors = max(self._pulse.errors, int(ended))
        self._build, self._ended = None, True
        self._live.stop()

    def on_load(self, load: LoadReport) -> None:
        """Move the table's bar: it is full when all rows count, not when all are read."""
        if load.table not in self._tasks:
            self._tasks[load.table] = self._bars.add_task(
                one_line(load.table), total=max(load.total, 1), read=0, held="", first=load.rows
            )
        self._loads[load.table] = load
        # The total is an estimate: at the end the rows that were read are the truth.
        self._bars.update(
            self._tasks[load.table],
            completed=max(load.rows, 1) if load.done else load.rows,
            total=max(load.rows, 1) if load.done else max(load.total, load.rows, 1),
            read=load.rows if load.done else load.read,
            held=load.held,
        )

    def on_build(self, build: BuildReport) -> None:
        """Show what is built now, and since when."""
        self._tally.add_build(build)
        self._build = None if build.done else (build, self._now())

    def on_epoch(self, epoch: EpochReport) -> None:
        """Bring the lines of the views up to the epoch."""
        self._pulse.add(epoch)
        self._tally.add(epoch)
        for name, change in epoch.views.items():
            self._lines.setdefault(name, _ViewLine()).add(change)

    def on_halt(self, view: str, error: MviewError) -> None:
        """Mark the view's line, count it, and say why above the live part."""
        self._pulse.errors += 1
        self._tally.halted[view] = None
        self._build = None
        self._lines.setdefault(view, _ViewLine()).chosen = "HALTED"
        self.on_message(_halt_text(view, error))

    def on_message(self, text: str) -> None:
        """The text as a line above the live part."""
        said = printable(self._output.mask(self._output.advised(text)))
        self._live.console.print(said, markup=False)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        pulse = [
            Text(" · ").join(Text(text, style=style) for text, style in line)
            for line in self._pulse.lines()
        ]
        parts: list[RenderableType] = [*pulse, _ViewLines([*self._lines.items()])]
        if self._build is not None:
            parts.insert(0, self._building(*self._build))
        if self._loads:
            parts.insert(0, self._bars if self._loading() else self._loaded())
        if self._ended:
            parts.append(Text(self._tally.text()))
        return Group(*parts)

    def _building(self, build: BuildReport, began: float) -> RenderableType:
        """The build of a view: what it is made from, how long already, how long still."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        took = self._now() - began
        line = Table.grid(padding=(0, 1))
        # The name gives way: a column of `no_wrap` would do so with the others.
        line.add_column(min_width=_NAME)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        passed = duration_text(int(took * 1000))
        if build.expected is None:
            line.add_row(_name(build.view), _build_text(build), passed)
            return line
        # An estimate: it is not full before the view is there.
        share = min(took / build.expected, 0.99) if build.expected else 0.99
        about = f"{passed} of about {duration_text(int(build.expected * 1000))}"
        line.add_column(no_wrap=True)
        bar = ProgressBar(total=1.0, completed=share, width=16)
        line.add_row(_name(build.view), f"building{_which(build)}", bar, about)
        return line

    def _loading(self) -> bool:
        return any(not load.done for load in self._loads.values())

    def _loaded(self) -> str:
        """The bars as one line, once all are full."""
        loads = self._loads.values()
        rows = sum(load.rows for load in loads)
        tables = one_line(next(iter(self._loads)))
        if len(loads) > 1:
            tables = counted(len(loads), "table")
        return f"{tables} loaded, {counted(rows, 'row')}"


def _name(name: str) -> Text:
    """A name, whose end gives way where it is narrow."""
    from rich.text import Text

    return Text(one_line(name), style="bold", no_wrap=True, overflow="ellipsis")


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
        """Rows that count and their rate, and what the table waits for where it does."""

        def render(self, task: Task) -> Text:
            # Over the whole load: chunks come in steps, and a small table in a single one.
            read, seconds = task.fields["read"], task.finished_time or task.elapsed
            rows = int(task.completed)
            if not task.finished and read >= (task.total or 0):
                return Text(f"{counted(read, 'row')} read, waiting for the changelog")
            if task.fields["held"]:
                return Text(f"{counted(rows, 'row')}, {one_line(task.fields['held'])}")
            came = rows - task.fields["first"]
            return Text(f"{counted(rows, 'row')}  {came / seconds if seconds else 0:,.0f} rows/s")

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        Rows(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )


def display_for(
    output: Output, *, log_format: LogFormat | None = None, verbose: bool = False
) -> Display:
    """The live display on a terminal, lines elsewhere.

    Args:
        log_format: of lines; these come on a terminal, too, then.
        verbose: a line per epoch instead of the live display.
    """
    if log_format == "json":
        return JsonDisplay(output)
    if log_format == "text" or verbose or not output.is_terminal:
        return LineDisplay(output, verbose=verbose)
    return LiveDisplay(output)
