"""The rows of a view or a table at one epoch, in whatever form they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from mview.admin.content import EpochGoneError, StoredView, When
from mview.admin.status import ViewStatus, status
from mview.admin.tables import StoredTable
from mview.config import Config
from mview.connector import WEIGHT
from mview.errors import UserError, counted, one_line
from mview.notebook.extra import needed
from mview.notebook.frames import Decimals, query, to_pandas, to_polars
from mview.store.history import ManifestLog
from mview.store.layout import Store

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from mview.notebook.live import Live

#: Rows and columns that a notebook shows by itself.
_SHOWN, _COLUMNS = 10, 50

#: Rows that a chart takes: beyond, nobody sees them, and drawing takes minutes.
_DRAWN = 100_000

#: Seconds between two looks for a new epoch.
_LOOK_S = 0.2


class Readable:
    """What `View` and `Table` share: rows at one epoch, which stays as it is."""

    def __init__(self, config: Config, stored: StoredView | StoredTable) -> None:
        self._config = config
        self._rows = stored
        self.name = stored.name

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return self._rows.epoch

    @property
    def columns(self) -> dict[str, str]:
        """The type of each column, as Arrow calls it."""
        return {field.name: str(field.type) for field in self._rows.schema}

    def __len__(self) -> int:
        """How many rows there are; none is read."""
        return self._rows.num_rows

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._rows.arrow()

    def df(self, decimals: Decimals = "exact") -> pd.DataFrame:
        """The rows as a pandas DataFrame.

        Args:
            decimals: `exact`, as `decimal.Decimal`; `float` where they are calculated with.
        """
        return to_pandas(self.arrow(), decimals)

    def polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame.

        Raises:
            UserError: polars is not installed.
        """
        return to_polars(self.arrow())

    def head(self, n: int = 5, decimals: Decimals = "exact") -> pd.DataFrame:
        """Some rows, in no order; of a large view only a file is read.

        Raises:
            UserError: `n` is no number of rows.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise UserError("head() takes a number of rows", got=repr(n))
        return to_pandas(self._rows.head(n), decimals)

    def sql(self, text: str, decimals: Decimals = "exact") -> pd.DataFrame:
        """The result of a query in DuckDB's SQL over these rows, by their name.

        >>> p["revenue"].sql("SELECT avg(total) FROM revenue")  # doctest: +SKIP

        Raises:
            UserError: the query is wrong, or names something else; `Project.sql` knows all views.
            DataError: it fails on the rows.
        """
        return to_pandas(query(text, {self.name: self.arrow}), decimals)

    def plot(self, **how: Any) -> Any:
        """A chart by matplotlib: `plot(x="day", y="revenue", kind="bar")`; see pandas' `plot`.

        Rows come in the order of `x`, decimals as DOUBLE.

        Returns:
            matplotlib's axes.

        Raises:
            UserError: matplotlib is not installed, a column is none, there are too many rows, or
                pandas cannot draw them so.
        """
        needed("matplotlib", "plot()")
        if len(self) > _DRAWN:
            raise UserError(
                f"a chart of {len(self):,} rows cannot be read",
                allowed=f"at most {_DRAWN:,} rows",
                hint=f"draw fewer: sql('SELECT … FROM {self.name} GROUP BY …').plot()",
            )
        for axis in ("x", "y"):
            given = how.get(axis)
            for column in given if isinstance(given, list | tuple) else [given]:
                if isinstance(column, str) and column not in self.columns:
                    allowed = ", ".join(self.columns)
                    raise UserError(f"{self.name} has no column {column!r}", allowed=allowed)
        rows = self.df(decimals="float")
        if isinstance(how.get("x"), str):
            rows = rows.sort_values(how["x"])
        try:
            return rows.plot(**how)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.name} cannot be drawn so: {one_line(str(error))}",
                got=", ".join(f"{name}={value!r}" for name, value in how.items()) or None,
                hint="x and y are columns, y of numbers; kind is 'line', 'bar', 'hist' or another "
                "of pandas' plot",
            ) from None

    def __repr__(self) -> str:
        return f"<{self._kind} {self.name}, epoch {self.epoch}: {counted(len(self), 'row')}>"

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()

    def _repr_html_(self) -> str:
        head = to_pandas(self._rows.head(_SHOWN))
        table: str = head.to_html(index=False, max_cols=_COLUMNS)
        more = f", of which {len(head)} are shown" if len(head) < len(self) else ""
        what = f"{self._kind} {escape(self.name)}, epoch {self.epoch}"
        told = f"{what}: {counted(len(self), 'row')}{more}"
        return f"<p>{told}</p>{table}"


class ShownView(ViewStatus):
    """The status of a view, which a cell or a prompt shows as `mview status` does."""

    def __repr__(self) -> str:
        # Only now: who asks for rows prints none of it.
        from mview.cli.render import view_lines

        return "\n".join(view_lines([self]))


class View(Readable):
    """A view at one epoch. The epoch stays as it is: ask the project again for a newer one."""

    def __init__(self, config: Config, stored: StoredView) -> None:
        super().__init__(config, stored)
        self._stored = stored

    @property
    def query(self) -> str:
        """The SELECT that it was declared by."""
        return self._stored.definition.sql

    def status(self) -> ViewStatus:
        """How the view is kept, where its table is, and how old it is now.

        Raises:
            UserError: it was dropped meanwhile.
        """
        store = status(self._config)
        views = {view.name: view for view in store.views}
        if self.name not in views:
            raise _dropped(self.name, store.epoch)
        view = views[self.name]
        return ShownView(**{part.name: getattr(view, part.name) for part in fields(view)})

    def spark(self, session: SparkSession | None = None) -> DataFrame:
        """The rows as a Spark DataFrame: the table in its folder, at the version of the epoch.

        Args:
            session: one that can read Delta; default: this process's, which is started for it.
        """
        # Only now: it starts a JVM.
        from mview.session.jvm import jvm_errors
        from mview.session.spark import spark_session

        with jvm_errors():
            reader = (session or spark_session(self._config)).read.format("delta")
            version = str(self._stored.facts["version"])
            return reader.option("versionAsOf", version).load(self._stored.path)

    def as_of(self, when: When) -> View:
        """The view at an older epoch, or as it was at a time; `engine.history` says how old."""
        return View(self._config, self._stored.as_of(when))

    def changes(self, since: When, decimals: Decimals = "exact") -> pd.DataFrame:
        """What came (`__weight` +1) and went (-1) since then; an updated row does both.

        Only the files of the view's table are read that were written or replaced meanwhile.
        """
        return to_pandas(self._stored.changes(since), decimals)

    def follow(self, seconds: float | None = None) -> Iterator[ViewStep]:
        """What each new epoch changes, as soon as it is published; begins after this epoch.

        Epochs that are not kept any more come together with the next one. While the view is halted
        nothing comes.

        Args:
            seconds: ends when nothing has changed for so long; None: goes on until it is broken
                off.

        Raises:
            UserError: the view was dropped, its columns have changed, or who follows has taken so
                long for a step that the epoch before is not kept any more.
        """
        log = ManifestLog(Store(self._config.store).manifests)
        shown, seen, quiet_since = self._stored, self.epoch, time.monotonic()
        while True:
            has_come = False
            for epoch in [number for number in log.epochs() if number > seen]:
                newer = self._opened_at(log, epoch)
                seen = epoch
                if newer is None or newer.facts == shown.facts:
                    continue
                try:
                    rows = newer.changes_from(shown)
                except EpochGoneError:
                    if epoch not in log.epochs():
                        continue  # its files have gone since: they come with the next one
                    raise _too_far_behind(self.name, shown.epoch) from None
                shown = newer
                if rows.num_rows:
                    yield ViewStep(self.name, epoch, newer.manifest.created_ms, rows)
                    has_come, quiet_since = True, time.monotonic()
            if has_come:
                continue  # who reads may have taken long: there may be more
            if seconds is not None and time.monotonic() - quiet_since >= seconds:
                return
            time.sleep(_LOOK_S)

    def _opened_at(self, log: ManifestLog, epoch: int) -> StoredView | None:
        """The view at an epoch; None: it has halted, or the epoch is not kept any more."""
        try:
            manifest = log.read(epoch)
        except UserError:
            if epoch in log.epochs():
                raise
            return None  # a runner has pruned beside us
        if self.name not in manifest.views:
            raise _dropped(self.name, epoch)
        if manifest.views[self.name].stale:
            return None
        return StoredView(self._config, self.name, manifest)

    def live(self, x: str | None = None, y: str | None = None, every: float = 1.0) -> Live:
        """Show the view in a notebook, with a chart of its lag, and keep both up in a thread.

        The kernel stays free; `stop()` of what is returned ends it.

        Args:
            x: column of names for a bar chart of the view.
            y: column of its numbers.
            every: seconds between two looks.
        """
        from mview.notebook.live import Live

        return Live(self._config, self._stored, x, y, every).start()


def _too_far_behind(view: str, epoch: int) -> UserError:
    return UserError(
        f"the changes of view {view} since epoch {epoch} cannot be told any more",
        allowed="steps that are taken within engine.keep_files",
        safe="the view is right; epochs before this one were told",
        hint=f"read it as it is now, and follow that: p[{view!r}]",
    )


def _dropped(view: str, epoch: int) -> UserError:
    return UserError(
        f"view {view} is not in the store any more",
        where=f"epoch {epoch}",
        hint="mview status shows which views are",
    )


class Table(Readable):
    """Our copy of a source table at one epoch, which stays as it is."""

    def __init__(self, config: Config, stored: StoredTable) -> None:
        super().__init__(config, stored)
        self._stored = stored

    def as_of(self, when: When) -> Table:
        """The table at an older epoch, or as it was at a time."""
        return Table(self._config, self._stored.as_of(when))

    def changes(self, since: When | None = None, decimals: Decimals = "exact") -> pd.DataFrame:
        """The complete changelog, in order: since an epoch or a time, or all that is kept.

        Returns:
            `__epoch`, `__kind` (`+I`, `-U`, `+U`, `-D`) and the table's columns.

        Raises:
            UserError: the table was not loaded then, or the changes are not kept; the message says
                since when they are.
        """
        return to_pandas(self._stored.changes(since), decimals)


@dataclass(frozen=True)
class ViewStep:
    """What an epoch has changed in a view.

    Attributes:
        view: its name.
        epoch: the epoch.
        published_ms: when it was published, wall milliseconds.
        arrow: the columns and `__weight`: +1 for a row that came, -1 for one that went.
    """

    view: str
    epoch: int
    published_ms: int
    arrow: pa.Table

    def df(self, decimals: Decimals = "exact") -> pd.DataFrame:
        """The same as a pandas DataFrame."""
        return to_pandas(self.arrow, decimals)

    @property
    def come(self) -> int:
        """How many rows came."""
        return int(pc.sum(pc.max_element_wise(self.arrow[WEIGHT], 0)).as_py() or 0)

    @property
    def gone(self) -> int:
        """How many rows went."""
        return int(-(pc.sum(pc.min_element_wise(self.arrow[WEIGHT], 0)).as_py() or 0))

    def __repr__(self) -> str:
        came = counted(self.come, "row")
        return f"<epoch {self.epoch} of {self.view}: {came} came, {self.gone} went>"

    def _repr_html_(self) -> str:
        head: str = to_pandas(self.arrow.slice(0, _SHOWN)).to_html(index=False, max_cols=_COLUMNS)
        return f"<p>{escape(repr(self)[1:-1])}</p>{head}"
