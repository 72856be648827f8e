"""A store, as programs and notebooks see it: views and tables, now or at an older epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mview.admin.content import StoredView, When, manifest_at, published
from mview.admin.status import StoreStatus, ViewStatus, status
from mview.admin.tables import StoredTable
from mview.config import Config
from mview.errors import UserError
from mview.notebook.frames import Decimals, query, to_pandas
from mview.notebook.rows import Table, View
from mview.notebook.running import ChildRun, begin, begun, end
from mview.notebook.svg import Box, Picture, graph
from mview.store.manifest import Manifest

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from mview.cli.explore.lineage import ViewLineage


@dataclass(frozen=True, repr=False)
class ShownStatus(StoreStatus):
    """The status of a store, which a cell or a prompt shows as the command does."""

    def __repr__(self) -> str:
        # Only now: who asks for rows prints none of it.
        from mview.cli.render import status_text

        return status_text(self)


class Project:
    """A store, by its configuration; made by `mview.connect`.

    Each view is read at the newest epoch there is when it is asked for. Several views of one epoch
    come from a snapshot:

    >>> p = mview.connect("conf/mview.yml")  # doctest: +SKIP
    >>> now = p.snapshot()  # doctest: +SKIP
    >>> now["orders"].df(), now["order_revenue"].df()  # doctest: +SKIP
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self._config

    def __getitem__(self, name: str) -> View:
        """The view of that name, at its newest epoch.

        Raises:
            UserError: there is no such view; the message has a close name.
        """
        return View(self._config, StoredView(self._config, _checked(name)))

    def table(self, name: str) -> Table:
        """Our copy of a source table, as `<connection>.<table>`, at its newest epoch.

        Raises:
            UserError: it is not in the store; the message has a close name.
        """
        return Table(self._config, StoredTable(self._config, _checked(name)))

    def snapshot(self) -> Snapshot:
        """All views and tables at the newest epoch, and at no other one."""
        return Snapshot(self._config, published(self._config))

    def at(self, when: When) -> Snapshot:
        """All views and tables at an older epoch, or as they were at a time: `p.at("10:00")`.

        Raises:
            UserError: it is not kept; the message says which epochs are.
        """
        return Snapshot(self._config, manifest_at(self._config, when))

    def sql(self, text: str, decimals: Decimals = "exact") -> pd.DataFrame:
        """The result of a query over views and tables of the newest epoch; see `Snapshot.sql`."""
        return self.snapshot().sql(text, decimals)

    def __iter__(self) -> Iterator[str]:
        """The names of the views."""
        return iter([view.name for view in self.status().views])

    def status(self) -> StoreStatus:
        """What the store has now: tables, views, epoch, lag; shown as `mview status` prints it."""
        store = status(self._config)
        return ShownStatus(**{part.name: getattr(store, part.name) for part in fields(store)})

    def lineage(self) -> Picture:
        """Tables, views and sinks as a picture, each to the right of all that it is made of.

        Raises:
            UserError: the store has no views yet.
        """
        from mview.cli.checking import Checker
        from mview.cli.explore.lineage import lineage_of

        views = Checker(self._config, True, lambda note: None).check_kept()
        return lineage_picture(lineage_of([view for view in views if view.error is None]))

    # --- a run of it -----------------------------------------------------------------------------

    def run(
        self,
        *files: str | Path,
        once: bool = False,
        wait: bool = True,
        seconds: float | None = None,
    ) -> ChildRun:
        """Begin a run in a process of its own, which ends with this one.

        Args:
            files: view files and folders.
            once: take what is there now, and end.
            wait: until all views are live, or with `once` until the run has ended. An interrupt
                ends the waiting, and not the run.
            seconds: how long that may take.

        Raises:
            UserError: a run that was begun here goes on, or a file is not there.
            RunFailedError: the run has ended by an error; the message is its own.
            RetryableError: it takes longer than `seconds`; the run goes on.
        """
        return begin(self._config, files, once=once, wait=wait, seconds=seconds)

    def stop(self) -> None:
        """End the run that was begun here, when its epoch is finished; none: nothing is done."""
        end(self._config)

    @property
    def running(self) -> ChildRun | None:
        """The run that was begun here last."""
        return begun(self._config)

    # --- how it is shown -------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<mview project {self._config.path}>"

    def _repr_html_(self) -> str:
        # Of the manifest alone: no row of any view is read.
        store = self.status()
        if store.published_ms is None:
            asked = ", ".join(map(escape, store.unbuilt)) or "none"
            return f"<p>{escape(store.store)}: nothing was published yet; asked for: {asked}</p>"
        rows = "".join(
            f"<tr><td>{escape(view.name)}</td><td>{view.rows:,}</td>"
            f"<td>{escape(view.strategy)}</td><td>{escape(_state(view))}</td>"
            f"<td>{escape(view.path)}</td></tr>"
            for view in store.views
        )
        running = escape(store.running or "nobody runs it")
        failed = store.failure
        if failed is not None:
            running += f"; the last run ended by an error: {escape(failed.what)}"
        return (
            f"<p>{escape(store.store)}, epoch {store.epoch}: {running}</p>"
            "<table><tr><th>view</th><th>rows</th><th>strategy</th><th>state</th><th>path</th>"
            f"</tr>{rows}</table>"
        )


#: What `mview.connect` has opened last, for magics.
_last: list[Project] = []


def open_project(config: Config) -> Project:
    """The project of a configuration, which magics go by from now on."""
    _last[:] = [Project(config)]
    return _last[0]


def connected() -> Project | None:
    """What was opened last."""
    return _last[0] if _last else None


def lineage_picture(views: Sequence[ViewLineage]) -> Picture:
    """Views in an order in which each comes after what it reads, with their tables and sinks."""
    known = {view.view for view in views}
    tables = sorted({name for view in views for name in view.reads} - known)
    nodes, labels = [Box(name, "table") for name in tables], {}
    for view in views:
        nodes.append(Box(view.view, "view", view.reads))
        for sink in view.sinks:
            name = f"{view.view} -> {sink}"
            labels[name] = sink
            nodes.append(Box(name, "sink", (view.view,)))
    return Picture(graph(nodes, labels, "lineage"))


def _checked(name: str) -> str:
    if not isinstance(name, str):
        raise UserError(
            "views and tables are asked for by their names",
            got=repr(name),
            allowed='a text: p["revenue"], p.table("shop.orders")',
        )
    return name


def _read(opened: Callable[[str], View | Table], name: str) -> pa.Table:
    return opened(name).arrow()


def _state(view: ViewStatus) -> str:
    if view.halted:
        return f"halted: {view.halted.splitlines()[0]}"
    lag = "lag unknown" if view.lag_ms is None else f"{view.lag_ms / 1000:,.1f} s behind"
    return f"{lag}, degraded: {view.degraded}" if view.degraded else lag


class Snapshot:
    """The views and tables of a store at one epoch: one cut of all their tables."""

    def __init__(self, config: Config, manifest: Manifest) -> None:
        self._config, self._manifest = config, manifest

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._manifest.epoch

    @property
    def published(self) -> dt.datetime:
        """When it was published, in UTC."""
        return dt.datetime.fromtimestamp(self._manifest.created_ms / 1000, dt.timezone.utc)

    def __getitem__(self, name: str) -> View:
        """The view of that name at this epoch.

        Raises:
            UserError: there is no such view, or it had halted.
        """
        return View(self._config, StoredView(self._config, _checked(name), self._manifest))

    def table(self, name: str) -> Table:
        """Our copy of a source table, as `<connection>.<table>`, at this epoch.

        Raises:
            UserError: it was not in the store.
        """
        return Table(self._config, StoredTable(self._config, _checked(name), self._manifest))

    def sql(self, text: str, decimals: Decimals = "exact") -> pd.DataFrame:
        """The result of a query in DuckDB's SQL over views and tables of this epoch.

        Tables are written as in views, `<connection>.<table>`. Only those that are named are read,
        as a whole, into memory.

        Raises:
            UserError: the query is wrong.
            DataError: it fails on the rows.
        """
        return to_pandas(query(text, self._relations), decimals)

    @property
    def _relations(self) -> Mapping[str, Callable[[], pa.Table]]:
        tables = map(str, self._manifest.source_tables)
        return {
            **{name: partial(_read, self.__getitem__, name) for name in self},
            **{name: partial(_read, self.table, name) for name in tables},
        }

    def __iter__(self) -> Iterator[str]:
        """The names of the views that have content."""
        return (name for name, state in self._manifest.views.items() if not state.stale)

    def __contains__(self, name: object) -> bool:
        """Whether a view has content at this epoch."""
        return name in set(self)

    def __repr__(self) -> str:
        return f"<mview snapshot, epoch {self.epoch}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        names = ", ".join(escape(name) for name in self)
        return f"<p>epoch {self.epoch}, published {self.published:%Y-%m-%d %H:%M:%S}: {names}</p>"
