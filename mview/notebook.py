"""What a notebook sees: the views of a store, as pandas or Arrow, now or at an older epoch."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from mview.config import Config
from mview.runtime.status import StoredView, StoreStatus, ViewStatus, status

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Rows of a view that a notebook shows by itself.
_SHOWN = 10


class Project:
    """A store, by its configuration; made by `mview.connect`. Reads only.

    >>> p = mview.connect("conf/mview.yml")  # doctest: +SKIP
    >>> p["order_revenue"].df()  # doctest: +SKIP
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getitem__(self, name: str) -> View:
        """The view of that name, at its newest epoch.

        Raises:
            UserError: there is no such view; the message has a close name.
        """
        return View(self._config, StoredView(self._config, name))

    def __iter__(self) -> Iterator[str]:
        """The names of the views."""
        return iter([view.name for view in self.status().views])

    def status(self) -> StoreStatus:
        """What the store has now: tables, views, epoch, lag."""
        return status(self._config)

    def _repr_html_(self) -> str:
        found = self.status()
        rows = "".join(
            f"<tr><td>{escape(view.name)}</td><td>{view.rows:,}</td>"
            f"<td>{escape(view.strategy)}</td><td>{escape(view.path)}</td></tr>"
            for view in found.views
        )
        return (
            f"<p>{escape(found.store)}, epoch {found.epoch}</p><table><tr><th>view</th>"
            f"<th>rows</th><th>strategy</th><th>table</th></tr>{rows}</table>"
        )


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
        found = {view.name: view for view in status(self._config).views}
        return found[self.name]

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._stored.arrow()

    def df(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame; decimals stay exact (`decimal.Decimal`)."""
        rows: pd.DataFrame = self.arrow().to_pandas()
        return rows

    def as_of(self, epoch: int) -> View:
        """The view at an older epoch; `engine.history` of them are kept."""
        return View(self._config, self._stored.as_of(epoch))

    def changes(self, since: int) -> pd.DataFrame:
        """What came (`__weight` +1) and went (-1) since an epoch; an updated row does both."""
        changes: pd.DataFrame = self._stored.changes(since).to_pandas()
        return changes

    def _repr_html_(self) -> str:
        rows = self.df()
        head: str = rows.head(_SHOWN).to_html(index=False)
        return f"<p>{escape(self.name)}, epoch {self.epoch}: {len(rows):,} rows</p>{head}"
