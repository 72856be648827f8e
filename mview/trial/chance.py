"""Tests by chance: random rows and changes, under which views must stay equal to their batch."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

import pyarrow as pa
from sqlglot import exp

from mview.errors import UserError
from mview.plan.definition import ViewDefinition
from mview.relation import RelationId
from mview.schema import Column, TableSchema
from mview.trial.cases import Given, Listed, TrialCase, TrialStep
from mview.trial.values import value_of

#: Where the time begins.
_START = "2026-01-01 12:00:00"
_ROWS, _STEPS, _CHANGES = 12, 6, 5
_NULLS = 0.15
_WORDS = ("", "a", "b", "B", "ä", "a b")
_DATES = ("2025-12-31", "2026-01-01", "2026-02-28")
_TIMES = ("2025-12-31 23:59:59.999999", "2026-01-01 00:00:00", "2026-01-01 12:30:00")


class Chance:
    """Makes tests of views.

    Values are few, so that rows meet; those that stand in the views' texts are among them.

    Args:
        schemas: of the tables.
        views: the views.
    """

    def __init__(
        self, schemas: Mapping[RelationId, TableSchema], views: Sequence[ViewDefinition]
    ) -> None:
        self._schemas = schemas
        read = {name for view in views for name in view.table_names if name.is_table}
        self._tables = sorted(read)
        self._day = 0
        self._written = [
            literal.this if literal.is_string else _number(literal.this)
            for view in views
            for literal in view.tree.find_all(exp.Literal)
        ]

    def case(self, seed: int) -> TrialCase:
        """The test of a seed."""
        chance = random.Random(seed)
        self._day = 0
        rows: dict[RelationId, dict[tuple[str, ...], Given]] = {name: {} for name in self._tables}
        given = {
            str(name): [
                row
                for _ in range(chance.randrange(_ROWS))
                if (row := self._new(chance, name, rows[name])) is not None
            ]
            for name in self._tables
        }
        steps = [self._step(chance, rows) for _ in range(chance.randint(1, _STEPS))]
        return TrialCase(name=f"seed {seed}", given=given, at=_START, steps=steps)

    def _step(
        self, chance: random.Random, rows: dict[RelationId, dict[tuple[str, ...], Given]]
    ) -> TrialStep:
        kinds: dict[str, Listed] = {"insert": {}, "update": {}, "delete": {}}
        for name in chance.sample(self._tables, chance.randint(1, len(self._tables))):
            there, key = rows[name], self._schemas[name].key
            touched: set[tuple[str, ...]] = set()
            for _ in range(chance.randint(1, _CHANGES)):
                kind = chance.choice(("insert", "update", "update", "delete"))
                if kind == "insert":
                    row = self._new(chance, name, there, touched)
                else:
                    left = [known for known in there if known not in touched]
                    if not left:
                        continue
                    old = there[chance.choice(left)]
                    row = {column: old[column] for column in key}
                    if kind == "delete":
                        del there[_key(old, key)]
                    else:
                        row |= self._some(chance, name)
                        old.update(row)
                if row is None:
                    continue
                touched.add(_key(row, key))
                kinds[kind].setdefault(str(name), []).append(dict(row))
        self._day += chance.choice((0, 0, 0, 1, 40))
        at = dt.datetime.fromisoformat(_START) + dt.timedelta(days=self._day)
        return TrialStep(**kinds, at=str(at))

    def _new(
        self,
        chance: random.Random,
        name: RelationId,
        there: dict[tuple[str, ...], Given],
        but: AbstractSet[tuple[str, ...]] = frozenset(),
    ) -> Given | None:
        """A row whose key is neither there yet nor among some others; None: none was met."""
        schema = self._schemas[name]
        row = {column.name: self._value(chance, column) for column in schema.columns}
        key = _key(row, schema.key)
        if key in there or key in but:
            return None
        there[key] = row
        return dict(row)

    def _some(self, chance: random.Random, name: RelationId) -> Given:
        """New values of some columns that are not of the key."""
        schema = self._schemas[name]
        others = [column for column in schema.columns if column.name not in schema.key]
        chosen = chance.sample(others, chance.randint(min(1, len(others)), len(others)))
        return {column.name: self._value(chance, column) for column in chosen}

    def _value(self, chance: random.Random, column: Column) -> Any:
        if column.nullable and chance.random() < _NULLS:
            return None
        if pa.types.is_list(column.type):
            part = Column(column.name, column.type.value_type)
            return [self._value(chance, part) for _ in range(chance.randrange(3))]
        written = [value for value in self._written if _fits(value, column.type)]
        if written and chance.random() < 1 / 3:
            return chance.choice(written)
        return _MADE[_kind(column.type)](chance, column.type)


def _number(text: str) -> Any:
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        return value_of(value, kind) is not None
    except UserError:
        return False


def _kind(kind: pa.DataType) -> str:
    for name in ("boolean", "integer", "decimal", "floating", "string", "binary", "date"):
        if getattr(pa.types, f"is_{name}")(kind):
            return name
    return "timestamp"


def _decimal(chance: random.Random, kind: pa.DataType) -> str:
    digits = min(kind.precision, 4)
    return (
        f"{chance.randint(-20, 10 ** max(1, digits - kind.scale) - 1)}"
        if (kind.precision > kind.scale)
        else "0"
    )


_MADE: Mapping[str, Callable[[random.Random, pa.DataType], Any]] = {
    "boolean": lambda chance, kind: chance.random() < 0.5,
    "integer": lambda chance, kind: chance.randint(-1, 9),
    "decimal": _decimal,
    "floating": lambda chance, kind: chance.choice((0.0, 0.5, -1.25, 3.0)),
    "string": lambda chance, kind: chance.choice(_WORDS),
    "binary": lambda chance, kind: chance.choice(("", "00", "ff01")),
    "date": lambda chance, kind: chance.choice(_DATES),
    "timestamp": lambda chance, kind: chance.choice(_TIMES),
}


def _key(row: Given, key: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(row[column]) for column in key)


def smaller(case: TrialCase, fails: Callable[[TrialCase], bool], tries: int = 200) -> TrialCase:
    """A test that fails still, with fewer steps and rows.

    Args:
        case: one that fails.
        fails: whether a test does.
        tries: so many smaller ones are tried at the most.
    """
    left = tries
    changed = True
    while changed and left > 0:
        changed = False
        for candidate in _smaller(case):
            left -= 1
            if left < 0:
                break
            if fails(candidate):
                case, changed = candidate, True
                break
    return case


def _smaller(case: TrialCase) -> list[TrialCase]:
    """Tests with a step or a row less."""
    smaller_ones = [
        case.model_copy(update={"steps": [*case.steps[:at], *case.steps[at + 1 :]]})
        for at in reversed(range(len(case.steps)))
    ]
    smaller_ones += [case.model_copy(update={"given": given}) for given in _without_one(case.given)]
    for at, step in enumerate(case.steps):
        for kind in ("insert", "update", "delete"):
            for listed in _without_one(getattr(step, kind)):
                fewer = step.model_copy(update={kind: listed})
                steps = [*case.steps[:at], fewer, *case.steps[at + 1 :]]
                smaller_ones.append(case.model_copy(update={"steps": steps}))
    return smaller_ones


def _without_one(listed: Listed) -> list[Listed]:
    return [
        {**listed, name: [*rows[:at], *rows[at + 1 :]]}
        for name, rows in listed.items()
        for at in range(len(rows))
    ]
