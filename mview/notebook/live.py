"""A view that keeps itself up in a notebook: its state, a chart of its lag, rows or bars."""

from __future__ import annotations

import threading
import time
from collections import deque
from html import escape
from types import TracebackType
from typing import Any

from mview.admin.content import StoredView, published
from mview.admin.status import cuts_of, lag_of
from mview.catalog.definitions import load_definitions
from mview.clock import SystemClock
from mview.config import Config
from mview.errors import MviewError, UserError, counted, known_error
from mview.notebook.extra import needed
from mview.notebook.frames import to_pandas
from mview.notebook.svg import bar_chart, line_chart
from mview.store.layout import Store
from mview.store.lease import Lease

#: Looks of which the chart has the lag.
_POINTS = 300

#: Rows that are shown, bars, and rows of a view that may be read for its bars.
_ROWS, _BARS, _MOST = 10, 20, 10_000

#: Seconds between two looks at least: each reads the store.
_SHORTEST = 0.1

#: Seconds that the look that is going on gets to end.
_END_S = 10.0

#: What is shown now, by view: who shows it again ends the one before.
_shown: dict[tuple[str, str], Live] = {}


class Live:
    """See `View.live`. A context manager, too: it stops at the end of the block.

    Raises:
        UserError: a column is none, or IPython is not there.
    """

    def __init__(
        self, config: Config, stored: StoredView, x: str | None, y: str | None, every: float
    ) -> None:
        if (x is None) != (y is None):
            raise UserError("a bar chart takes two columns: x and y", got=f"x={x!r}, y={y!r}")
        for column in (x, y):
            if column is not None and column not in stored.schema.names:
                raise UserError(
                    f"view {stored.name} has no column {column!r}",
                    allowed=", ".join(stored.schema.names),
                )
        if not isinstance(every, int | float) or not every >= _SHORTEST:
            raise UserError(
                "`every` is no number of seconds, or too short",
                got=repr(every),
                allowed=f"{_SHORTEST} and more",
            )
        self._display = needed("IPython.display", "live()")
        self._config, self.view = config, stored.name
        self._x, self._y, self._every = x, y, every
        self._lags: deque[tuple[float, float]] = deque(maxlen=_POINTS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"live {self.view}", daemon=True)
        self._handle: Any = None
        #: How often it was brought up.
        self.looks = 0

    def start(self) -> Live:
        """Show it, and begin."""
        place = (str(self._config.store), self.view)
        if (before := _shown.pop(place, None)) is not None:
            before.stop()
        _shown[place] = self
        self._handle = self._display.display(self._look(), display_id=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End it; what is shown stays. A second time does nothing."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    @property
    def is_running(self) -> bool:
        """Whether it is still kept up."""
        return self._thread.is_alive() and not self._ended.is_set()

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<live {self.view}: {'stop() ends it' if self.is_running else 'ended'}>"

    def _work(self) -> None:
        while not self._ended.wait(self._every):
            if self._handle is not None:  # else there is no notebook to show it
                self._handle.update(self._look())
        if self._handle is not None:
            self._handle.update(self._look())

    def _look(self) -> Any:
        """The newest state; an error where it cannot be had: the next look may be another."""
        try:
            html = self._html()
        except Exception as error:
            html = f"<pre>{escape(known_error(error).render())}</pre>"
        self.looks += 1
        return self._display.HTML(html)

    def _html(self) -> str:
        manifest = published(self._config)
        stored = StoredView(self._config, self.view, manifest)
        clock = SystemClock()
        store = Store(self._config.store)
        owner = Lease(store.lease, clock).holder()
        views = load_definitions(store, manifest).views
        lag = lag_of(cuts_of(manifest, self.view, views), clock.now())
        if lag is not None:
            self._lags.append((time.monotonic(), lag / 1000))
        state = "nobody runs the store" if owner is None else f"process {owner.pid} runs it"
        if self._ended.is_set():
            state += "; not kept up any more"
        rows = counted(stored.num_rows, "row")
        told = f"{escape(self.view)}, epoch {stored.epoch}: {rows}; {state}"
        return f"<p>{told}</p>{line_chart(self._lags, 'lag', 's')}<br>{self._content(stored)}"

    def _content(self, stored: StoredView) -> str:
        if self._x is None or self._y is None:
            table: str = to_pandas(stored.head(_ROWS)).to_html(index=False)
            return table
        if stored.num_rows > _MOST:
            raise MviewError(
                f"a bar chart of {stored.num_rows:,} rows cannot be read",
                allowed=f"views of at most {_MOST:,} rows; the largest {_BARS} are shown",
            )
        rows = to_pandas(stored.arrow().select([self._x, self._y]), "float")
        bars = [
            (str(name), float(value))
            for name, value in zip(rows[self._x], rows[self._y], strict=True)
            if isinstance(value, int | float) and value == value
        ]
        bars.sort(key=lambda bar: (-bar[1], bar[0]))
        return bar_chart(bars[:_BARS], f"{self._y} by {self._x}")
