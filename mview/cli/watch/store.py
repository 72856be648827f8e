"""What the page shows of a store: what the commands print as JSON, views' texts, plans, rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from mview.admin.content import StoredView, published
from mview.catalog.definitions import load_definitions, load_lights
from mview.cli.checking import Checker
from mview.cli.costs import plan_cost
from mview.cli.display.cells import cell
from mview.cli.explore.lineage import ViewLineage, lineage_of
from mview.cli.render import explained_json, explained_text
from mview.config import Config
from mview.errors import MviewError, several
from mview.plan.definition import ViewDefinition
from mview.store.history import ManifestLog
from mview.store.layout import Store

#: Of a view's rows, how much is shown.
_ROWS, _COLUMNS, _CHARACTERS = 20, 100, 200


@dataclass(frozen=True)
class ViewText:
    """A view as it was declared.

    Attributes:
        name: its name.
        sql: its SELECT.
        file: where it was declared.
        comment: its comment.
        key: declared key columns.
        mode: `full` or `light`.
        policy: `auto` or `incremental_only`.
        freshness_ms: what it promises; None: nothing.
        reads: tables, as `<connection>.<table>`, and views.
        sinks: the names of all its sinks.
    """

    name: str
    sql: str
    file: str
    comment: str | None
    key: tuple[str, ...]
    mode: str
    policy: str
    freshness_ms: int | None
    reads: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, view: ViewDefinition) -> ViewText:
        """What a definition says."""
        own = [] if view.mode == "light" else [view.sink]
        return cls(
            view.name,
            view.sql,
            view.file,
            view.comment,
            view.key,
            view.mode,
            view.policy,
            view.freshness_ms,
            tuple(sorted({str(table) for table in view.table_names})),
            (*own, *view.sinks),
        )


def view_texts(config: Config) -> list[ViewText]:
    """The views that a store has, also those in light mode; damaged ones are left out."""
    store = Store(config.store)
    manifest = ManifestLog(store.manifests).latest()
    kept = {} if manifest is None else load_definitions(store, manifest).views
    lights = [light.definition for light in load_lights(store).values()]
    return [ViewText.of(view) for view in (*kept.values(), *lights)]


@dataclass(frozen=True)
class Plans:
    """How the views of a store are kept, as the columns are that the store knows.

    Attributes:
        lineage: as `mview lineage --json`.
        explained: as `mview explain --json`.
        texts: as `mview explain` prints it, by view; or why a view has no plan.
        error: why lineage and plans are not of all views.
    """

    lineage: Sequence[ViewLineage]
    explained: Sequence[Mapping[str, Any]]
    texts: Mapping[str, str]
    error: MviewError | None


def plans(config: Config) -> Plans:
    """The plans of the views of the store; no database is asked.

    Raises:
        MviewError: it has no views, or its files cannot be read.
    """
    checker = Checker(config, True, lambda note: None)
    views = checker.check_kept()
    costs = partial(plan_cost, manifest=checker.manifest)
    texts, sound = {}, []
    for view in views:
        told = [] if view.error is None else [view.error.render()]
        if view.plan is not None:
            told.append(explained_text(view.plan, costs))
            sound.append(view)
        if told:
            texts[view.definition.name] = "\n\n".join(told)
    wrong = [view.error for view in views if view.error]
    explained = [explained_json(view.plan, costs) for view in sound if view.plan]
    return Plans(lineage_of(sound), explained, texts, several(wrong) if wrong else None)


@dataclass(frozen=True)
class Sample:
    """Some rows of a view.

    Attributes:
        view: its name.
        epoch: the epoch that they are of.
        columns: names and types, the first ones.
        rows: values as text, long ones cut; None: NULL.
        more_columns: how many more there are.
    """

    view: str
    epoch: int
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str | None, ...], ...]
    more_columns: int


def sample(config: Config, view: str) -> Sample:
    """The first rows of a view at the newest epoch, in no order.

    Raises:
        MviewError: there is no such view, or nothing of it.
    """
    stored = StoredView(config, view, published(config))
    names = stored.schema.names[:_COLUMNS]
    columns = tuple((name, str(stored.schema.field(name).type)) for name in names)
    rows: list[tuple[str | None, ...]] = []
    for part in stored.parts():
        first = part.slice(0, _ROWS - len(rows)).select(names)
        rows += zip(*([_cell(value) for value in column] for column in first.columns), strict=True)
        if len(rows) >= _ROWS:
            break
    return Sample(view, stored.epoch, columns, tuple(rows), len(stored.schema) - len(names))


def _cell(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    try:
        plain = value.as_py()
    except (OverflowError, ValueError):  # a year that Python has no date for
        return "(beyond what can be shown)"
    text = cell(plain)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
