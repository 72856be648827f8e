"""One test: its rows and changes go through the views, which must show what is expected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.connector import WEIGHT
from mview.errors import MviewError, UserError
from mview.plan.clocks import clocks_of
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.trial.cases import Given, Listed, TrialCase, TrialStep
from mview.trial.values import milliseconds, value_of
from mview.trial.world import TrialEngine, TrialWorld, differences, shown

#: Values of a row, in the order of the columns.
Values = tuple[Any, ...]
#: Sees the views after the given rows (None), and after each step that went well.
Watch = Callable[[int | None, TrialWorld], None]
#: So many rows of a difference are told.
_TOLD = 10


@dataclass(frozen=True)
class TrialOutcome:
    """How a test went.

    Attributes:
        file: its file.
        name: its name.
        where: where what failed stands, as `file:line:column`.
        seconds: how long it took.
        failures: what is wrong, a line each; none: it passed.
        on_spark: why queries ran on Spark; none: all ran in process.
        is_wrong: a view that is kept up by changes differs from its batch query: a fault of mview.
        recorded: how often what views show was written into it as its `expect`.
    """

    file: str
    name: str
    where: str
    seconds: float
    failures: tuple[str, ...] = ()
    on_spark: tuple[str, ...] = ()
    is_wrong: bool = False
    recorded: int = 0

    @property
    def passed(self) -> bool:
        """Whether all was as expected."""
        return not self.failures


class Tables:
    """Rows of source tables by key, and the changes that lead to them."""

    def __init__(self, schemas: Mapping[RelationId, TableSchema]) -> None:
        self._schemas = schemas
        self._rows: dict[RelationId, dict[Values, Values]] = {name: {} for name in schemas}
        self._deltas: dict[RelationId, list[tuple[int, Values]]] = {}

    def change(self, table: RelationId, key: Values, row: Values | None) -> None:
        """Put a row in the place of the one with this key; None: it goes."""
        rows, delta = self._rows[table], self._deltas.setdefault(table, [])
        if (old := rows.pop(key, None)) is not None:
            delta.append((-1, old))
        if row is not None:
            rows[key] = row
            delta.append((1, row))

    def row(self, table: RelationId, key: Values) -> Values | None:
        """The row with a key."""
        return self._rows[table].get(key)

    def rows(self, table: RelationId) -> list[Values]:
        """All rows of a table."""
        return list(self._rows[table].values())

    def taken(self) -> dict[RelationId, pa.Table]:
        """The changes since this was asked last: the columns and WEIGHT."""
        taken, self._deltas = self._deltas, {}
        return {table: self._delta(table, rows) for table, rows in taken.items() if rows}

    def _delta(self, table: RelationId, rows: list[tuple[int, Values]]) -> pa.Table:
        columns = self._schemas[table].columns
        arrays = [
            pa.array([row[number] for _, row in rows], column.type)
            for number, column in enumerate(columns)
        ]
        weights = pa.array([weight for weight, _ in rows], pa.int32())
        return pa.table([*arrays, weights], names=[*(c.name for c in columns), WEIGHT])


class _FailedError(Exception):
    """A test did not get on; says why."""


class Trial:
    """Runs the tests of a file.

    Args:
        path: the file.
        where: tells where a place of it is.
        cases: its tests.
        views: its views.
        schemas: of the tables that they read.
        engine: runs queries.
    """

    def __init__(
        self,
        path: Path,
        where: Callable[..., str],
        cases: Sequence[TrialCase],
        views: Sequence[ViewDefinition],
        schemas: Mapping[RelationId, TableSchema],
        engine: TrialEngine,
    ) -> None:
        self._path, self._where, self._cases = path, where, cases
        self._views, self._schemas, self._engine = views, schemas, engine

    def run(self, number: int, watch: Watch | None = None) -> TrialOutcome:
        """Run a test by its place in the file."""
        case = self._cases[number]
        began = time.monotonic()
        at: int | None = None
        is_wrong = False
        try:
            self._check_time(case)
            world = TrialWorld(
                self._schemas, self._views, self._engine, 0 if case.at is None else _time(case.at)
            )
            tables = Tables(self._schemas)
            first = TrialStep(insert=case.given, expect=case.expect)
            for at, step in ((None, first), *enumerate(case.steps)):
                self._take(tables, step)
                wrong = world.epoch(tables.taken(), _time(step.at) if step.at else None)
                is_wrong = bool(wrong)
                failures = [*_apart(wrong), *self._unexpected(world, step.expect)]
                if failures:
                    raise _FailedError(*failures)
                if watch is not None:
                    watch(at, world)
            failures = []
        except _FailedError as error:
            failures = [str(line) for line in error.args]
        except MviewError as error:
            failures = error.render().splitlines()
        return TrialOutcome(
            str(self._path),
            case.name,
            self._where("tests", number, *(() if at is None else ("steps", at))),
            time.monotonic() - began,
            tuple(failures),
            tuple(sorted(set(self._engine.reasons.values()))),
            is_wrong,
        )

    def _check_time(self, case: TrialCase) -> None:
        if case.at is not None:
            return
        for view in self._views:
            if clocks_of(view):
                raise _FailedError(f"view {view.name} asks for the time: say it with `at:`")

    def _take(self, tables: Tables, step: TrialStep) -> None:
        """Let the rows of a step come and go."""
        for name, rows in self._known(step.delete):
            for given in rows:
                key, _ = self._keyed(name, given, complete=False)
                if tables.row(name, key) is None:
                    raise _FailedError(f"delete: {name} has no row {_told(given)}")
                tables.change(name, key, None)
        for name, rows in self._known(step.update):
            for given in rows:
                key, values = self._keyed(name, given, complete=False)
                old = tables.row(name, key)
                if old is None:
                    raise _FailedError(f"update: {name} has no row {_told(given)}")
                names = self._schemas[name].names
                row = tuple(values.get(column, was) for column, was in zip(names, old, strict=True))
                tables.change(name, key, row)
        for name, rows in self._known(step.insert):
            for given in rows:
                key, values = self._keyed(name, given, complete=True)
                if tables.row(name, key) is not None:
                    raise _FailedError(f"insert: {name} has a row with this key: {_told(given)}")
                tables.change(name, key, tuple(values.get(c) for c in self._schemas[name].names))

    def _known(self, listed: Listed) -> list[tuple[RelationId, list[Given]]]:
        known = []
        for text, rows in listed.items():
            name = RelationId.of(text)
            if name not in self._schemas:
                tables = ", ".join(sorted(map(str, self._schemas)))
                raise _FailedError(f"no view of this file reads {text!r}; they read: {tables}")
            known.append((name, rows))
        return known

    def _keyed(
        self, name: RelationId, given: Given, *, complete: bool
    ) -> tuple[Values, dict[str, Any]]:
        """The key of a row, and its values by column."""
        schema = self._schemas[name]
        # The table has them, and no view uses them: a row may be given whole.
        unread = {column.lower() for column in schema.unread}
        given = {column: value for column, value in given.items() if column.lower() not in unread}
        values = _typed(given, {column.name: column for column in schema.columns}, str(name))
        needed = [c.name for c in schema.columns if not c.nullable] if complete else schema.key
        for column in needed:
            if values.get(column) is None:
                raise _FailedError(f"{name}: column {column} is missing in {_told(given)}")
        return tuple(values[column] for column in schema.key), values

    def _unexpected(self, world: TrialWorld, expect: Listed) -> list[str]:
        """What views show otherwise than expected."""
        views = {view.name.lower(): view.relation for view in self._views}
        failures = []
        for text, rows in expect.items():
            if text.lower() not in views:
                raise _FailedError(f"expect: no view {text!r}; there are: {', '.join(views)}")
            view = views[text.lower()]
            columns = {column.name: column for column in world.schema(view).columns}
            names = list(dict.fromkeys(name for row in rows for name in row)) or list(columns)
            typed = [_typed(row, columns, f"view {text}") for row in rows]
            shape = pa.schema(
                [(_same(columns, name), columns[_same(columns, name)].type) for name in names]
            )
            wanted = pa.Table.from_pylist(typed, shape)
            apart = differences(world.rows(view).select(shape.names), wanted)
            failures += _lines(f"view {text} is not as expected:", apart, "expected")
        return failures


def _time(text: str) -> int:
    try:
        return milliseconds(text)
    except UserError as error:
        raise _FailedError(f"at: {error.what}: {error.got}; {error.allowed}") from None


def _same(columns: Mapping[str, Column], name: str) -> str:
    """The column of this name, in whatever case."""
    return next(known for known in columns if known.lower() == name.lower())


def _typed(given: Given, columns: Mapping[str, Column], of: str) -> dict[str, Any]:
    values = {}
    for name, value in given.items():
        if not any(name.lower() == known.lower() for known in columns):
            raise _FailedError(f"{of} has no column {name!r}; it has: {', '.join(columns)}")
        column = columns[_same(columns, name)]
        try:
            values[column.name] = value_of(value, column.type)
        except UserError as error:
            raise _FailedError(
                f"{of}, column {name}: {error.what}: {error.got}; allowed: {error.allowed}"
            ) from None
    return values


def _told(row: Given) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in row.items())


def _apart(wrong: Mapping[RelationId, pa.Table]) -> list[str]:
    """What is kept up otherwise than the batch query: a fault of mview."""
    lines = []
    for view, apart in wrong.items():
        title = f"view {view} differs from its batch query, a fault of mview; please report it:"
        lines += _lines(title, apart, "of the batch")
    return lines


def _lines(title: str, apart: pa.Table, wanted: str) -> list[str]:
    """A difference as lines; empty where there is none."""
    if not apart.num_rows:
        return []
    lines = [title]
    for row in apart.slice(0, _TOLD).to_pylist():
        weight = row.pop(WEIGHT)
        times = f" ({abs(weight)} times)" if abs(weight) > 1 else ""
        side = "too much" if weight > 0 else f"missing ({wanted})"
        lines.append(f"  {side}: {_told(row)}{times}")
    if apart.num_rows > _TOLD:
        lines.append(f"  and {apart.num_rows - _TOLD} rows more")
    return lines
