"""What a notebook sees: the views of a store, as pandas or Arrow, now or at an older epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from mview.admin.content import StoredView, When, manifest_at, published
from mview.admin.status import StoreStatus, ViewStatus, status
from mview.config import Config
from mview.store.manifest import Manifest

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Rows of a view that a notebook shows by itself.
_SHOWN = 10


class Project:
    """A store, by its configuration; made by `mview.connect`. Reads only.

    Each view is read at the newest epoch there is when it is asked for. Several views of one epoch
    come from a snapshot:

    >>> p = mview.connect("conf/mview.yml")  # doctest: +SKIP
    >>> now = p.snapshot()  # doctest: +SKIP
    >>> now["orders"].df(), now["order_revenue"].df()  # doctest: +SKIP
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getitem__(self, name: str) -> View:
        """The view of that name, at its newest epoch.

        Raises:
            UserError: there is no such view; the message has a close name.
        """
        return View(self._config, StoredView(self._config, name))

    def snapshot(self) -> Snapshot:
        """All views at the newest epoch, and at no other one."""
        return Snapshot(self._config, published(self._config))

    def at(self, when: When) -> Snapshot:
        """All views at an older epoch, or as they were at a time: `p.at("2026-11-20 10:00")`.

        Raises:
            UserError: it is not kept; the message says which epochs are.
        """
        return Snapshot(self._config, manifest_at(self._config, when))

    def __iter__(self) -> Iterator[str]:
        """The names of the views."""
        return iter([view.name for view in self.status().views])

    def status(self) -> StoreStatus:
        """What the store has now: tables, views, epoch, lag."""
        return status(self._config)

    def _repr_html_(self) -> str:
        store = self.status()
        rows = "".join(
            f"<tr><td>{escape(view.name)}</td><td>{view.rows:,}</td>"
            f"<td>{escape(view.strategy)}</td><td>{escape(view.path)}</td></tr>"
            for view in store.views
        )
        return (
            f"<p>{escape(store.store)}, epoch {store.epoch}</p><table><tr><th>view</th>"
            f"<th>rows</th><th>strategy</th><th>table</th></tr>{rows}</table>"
        )


class Snapshot:
    """The views of a store at one epoch: one cut of all their tables."""

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
        return View(self._config, StoredView(self._config, name, self._manifest))

    def __iter__(self) -> Iterator[str]:
        """The names of the views that have content."""
        return (name for name, state in self._manifest.views.items() if not state.stale)

    def __contains__(self, name: object) -> bool:
        """Whether a view has content at this epoch."""
        return name in set(self)

    def _repr_html_(self) -> str:
        names = ", ".join(escape(name) for name in self)
        return f"<p>epoch {self.epoch}, published {self.published:%Y-%m-%d %H:%M:%S}: {names}</p>"


class View:
    """A view at one epoch. The epoch stays as it is: ask the project again for a newer one."""

    def __init__(self, config: Config, stored: StoredView) -> None:
        self._config, self._stored = config, stored
        self.name = stored.name

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._stored.epoch

    def status(self) -> ViewStatus:
        """How the view is kept, where its table is, and how old it is now."""
        views = {view.name: view for view in status(self._config).views}
        return views[self.name]

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._stored.arrow()

    def df(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame; decimals stay exact (`decimal.Decimal`)."""
        rows: pd.DataFrame = self.arrow().to_pandas()
        return rows

    def as_of(self, when: When) -> View:
        """The view at an older epoch, or as it was at a time; `engine.history` says how old."""
        return View(self._config, self._stored.as_of(when))

    def changes(self, since: When) -> pd.DataFrame:
        """What came (`__weight` +1) and went (-1) since then; an updated row does both."""
        changes: pd.DataFrame = self._stored.changes(since).to_pandas()
        return changes

    def _repr_html_(self) -> str:
        rows = self.df()
        head: str = rows.head(_SHOWN).to_html(index=False)
        return f"<p>{escape(self.name)}, epoch {self.epoch}: {len(rows):,} rows</p>{head}"
