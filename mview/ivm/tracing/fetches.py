"""The fetches of one trace: which key values are sent where, and what need not be fetched twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from mview.ivm.facts.exact import comparable
from mview.ivm.facts.lineage import Alternative, Origin, origins
from mview.ivm.tracing.notes import Note
from mview.ivm.tracing.steps import Band, Fetch, KeySource, Step, Whole
from mview.plan.operators import ir
from mview.plan.operators.ir import Ref
from mview.relation import RelationId
from mview.schema import TableSchema

#: The rows at hand of each relation: steps that fetched them. The epoch's own changes of the
#: table always count as well.
Env = Mapping[str, frozenset[int]]


@dataclass(frozen=True)
class Keys:
    """Key values for some columns of a node."""

    columns: tuple[Ref, ...]
    sources: tuple[KeySource, ...]
    null_safe: bool = False
    or_null: bool = False


@dataclass(frozen=True)
class Between:
    """Values of one column of a node between what a bound of the time was and what it is.

    Attributes:
        columns: the column.
        clock: that of the bound.
        bound: SQL over the clock's column.
    """

    columns: tuple[Ref, ...]
    clock: RelationId
    bound: str


def merge(*parts: Env) -> Env:
    """The rows of several walks together."""
    merged: dict[str, frozenset[int]] = {}
    for part in parts:
        for relation, steps in part.items():
            merged[relation] = merged.get(relation, frozenset()) | steps
    return merged


@dataclass
class Fetches:
    """Collects the steps for the changes of one scan.

    Attributes:
        schemas: of the tables.
        steps: the fetches so far; a step refers to earlier ones by index.
        notes: for each operator that reads whole inputs, why.
    """

    schemas: Mapping[RelationId, TableSchema]
    steps: list[Step] = field(default_factory=list)
    notes: list[tuple[ir.Node, Note]] = field(default_factory=list)
    #: Where each step is: chains of joins have hundreds.
    _places: dict[Step, int] = field(default_factory=dict)
    #: Table, columns and whether NULL matches NULL: sources by whose values a step fetches.
    _fetched: dict[tuple[RelationId, tuple[str, ...], bool], dict[KeySource, int]] = field(
        default_factory=dict
    )

    def keys(
        self,
        here: ir.Node,
        mine: Sequence[Ref],
        env: Env,
        there: ir.Node,
        other: Sequence[Ref],
        *,
        null_safe: bool,
    ) -> Keys | None:
        """Key values for columns of `there`, taken from the rows at hand of `here`.

        Only positions count whose both ends are base columns; among them those that stand together
        in one relation at both ends. None when there are none.
        """
        sources, targets = origins(here, mine), origins(there, other)
        best: list[int] = []
        for group in _together(sources, targets):
            usable = [p for p in group if self._usable(p, sources, targets, null_safe)]
            usable = _without_repeats(usable, targets)
            best = usable if len(usable) > len(best) else best
        if not best or any(self.is_whole(source[best[0]], env) for source in sources):
            return None
        values = []
        for source in sources:
            chosen = [origin for p in best if (origin := source[p]) is not None]
            scan, names = chosen[0].scan, tuple(origin.column for origin in chosen)
            values.append(KeySource(scan.table, names))
            values += [
                KeySource(scan.table, names, step) for step in sorted(env.get(scan.relation, ()))
            ]
        nullable = any(
            o is not None and o.nullable for source in sources for p in best if (o := source[p])
        )
        extended = any(
            o is not None and o.extended for source in sources for p in best if (o := source[p])
        )
        safe = null_safe and nullable
        first = dict.fromkeys(source for value in values for source in self._shortened(value))
        return Keys(tuple(other[p] for p in best), tuple(first), safe, safe and extended)

    def _usable(
        self, p: int, sources: list[Alternative], targets: list[Alternative], null_safe: bool
    ) -> bool:
        nullable = any((o := ours[p]) is not None and o.nullable for ours in sources)
        for source in sources:
            for target in targets:
                ours, other = source[p], target[p]
                if (
                    ours is None
                    or other is None
                    or not comparable(self._type(ours), self._type(other))
                ):
                    return False
                # A NULL that an outer join put there belongs to no fetched row.
                if null_safe and nullable and other.extended:
                    return False
        return True

    def _type(self, origin: Origin) -> pa.DataType:
        return self.schemas[origin.scan.table].column(origin.column).type

    def is_whole(self, origin: Origin | None, env: Env) -> bool:
        """Whether all rows of the column's table are at hand already."""
        steps = env.get(origin.scan.relation, ()) if origin is not None else ()
        return any(isinstance(self.steps[step], Whole) for step in steps)

    def fetch(self, scan: ir.Scan, columns: tuple[str, ...], keys: Keys) -> frozenset[int]:
        """Add a fetch, unless its rows are at hand; returns the steps that have the rows."""
        sources = keys.sources
        key = set(self.schemas[scan.table].key)
        has_key = bool(key) and key <= set(columns)
        # Rows found by their own primary key are at hand already.
        own = [s for s in sources if has_key and s.table == scan.table and s.columns == columns]
        at_hand = {s.step for s in own if s.step is not None}
        fetched = self._fetched_by(scan.table, columns, keys)
        at_hand |= {fetched[s] for s in sources if s in fetched}
        needed = tuple(s for s in sources if s not in own and s not in fetched)
        if needed or keys.or_null:
            step = Fetch(scan.table, columns, needed, keys.null_safe, keys.or_null)
            at = self._add(step)
            at_hand.add(at)
            by = self._fetched.setdefault((scan.table, columns, keys.null_safe), {})
            by |= dict.fromkeys(needed, at)
        return frozenset(at_hand)

    def _fetched_by(
        self, table: RelationId, columns: tuple[str, ...], keys: Keys
    ) -> Mapping[KeySource, int]:
        """The steps that fetch rows of a table by the values of a source already.

        Chains of joins ask at every join for the rows of all tables so far: only what a join adds
        is asked for, or steps and sources grow by the square of the chain.
        """
        if keys.or_null:
            return {}
        wide = self._fetched.get((table, columns, True), {})
        return wide if keys.null_safe else self._fetched.get((table, columns, False), {}) | wide

    def band(self, scan: ir.Scan, column: str, values: Between) -> frozenset[int]:
        """Add the fetch of a band; returns the step that has the rows."""
        return frozenset((self._add(Band(scan.table, column, values.clock, values.bound)),))

    def _shortened(self, source: KeySource) -> Iterable[KeySource]:
        """Keys of rows that were fetched by these same keys: ask for the first ones at once."""
        if source.step is None:
            return [source]
        step = self.steps[source.step]
        if not isinstance(step, Fetch) or step.or_null:
            return [source]
        if not set(source.columns) <= set(step.columns):
            return [source]
        at = [step.columns.index(name) for name in source.columns]
        return [KeySource(s.table, tuple(s.columns[i] for i in at), s.step) for s in step.sources]

    def _add(self, step: Step) -> int:
        if isinstance(step, Fetch) and (wider := replace(step, null_safe=True)) in self._places:
            return self._places[wider]
        if step not in self._places:
            self._places[step] = len(self.steps)
            self.steps.append(step)
        return self._places[step]

    def whole(self, node: ir.Node, note: Note | None, below: ir.Node) -> Env:
        """All rows of all tables below; the note says why, if the reason is this operator."""
        if note is not None and (node, note) not in self.notes:
            self.notes.append((node, note))
        return {
            scan.relation: frozenset((self._add(Whole(scan.table)),)) for scan in ir.scans(below)
        }


def _without_repeats(positions: list[int], targets: list[Alternative]) -> list[int]:
    """Positions that go to different columns: one column compared to two values keeps the first."""
    kept: list[int] = []
    for p in positions:
        if not any(target[p] == target[q] for target in targets for q in kept):
            kept.append(p)
    return kept


def _together(sources: list[Alternative], targets: list[Alternative]) -> list[list[int]]:
    """Positions grouped by the relations they come from and go to, in every alternative."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for p in range(len(sources[0]) if sources else 0):
        ends = [
            origin for alternative in (*sources, *targets) if (origin := alternative[p]) is not None
        ]
        if len(ends) == len(sources) + len(targets):
            groups.setdefault(tuple(o.scan.relation for o in ends), []).append(p)
    return list(groups.values())


def needed(steps: Sequence[Step], indexes: Collection[RelationId]) -> tuple[Step, ...]:
    """The steps without those whose rows nobody reads.

    Without fetches of tables that are read whole, and without indexes, which no text reads; but
    with all that later steps use.
    """
    whole = {step.table for step in steps if isinstance(step, Whole)}
    kept: dict[int, Step] = {}
    asked: set[int] = set()
    for index in reversed(range(len(steps))):
        step = steps[index]
        known = () if isinstance(step, Whole) else whole
        idle = step.table in known or step.table in indexes
        if idle and index not in asked:
            continue
        asked |= {source.step for source in step.sources if source.step is not None}
        kept[index] = step
    order = sorted(kept)
    return tuple(_renumber(kept[index], order) for index in order)


def _renumber(step: Step, order: list[int]) -> Step:
    if not step.sources:
        return step
    assert isinstance(step, Fetch), f"nobody knows how to number the sources of {step}"
    sources = (s if s.step is None else replace(s, step=order.index(s.step)) for s in step.sources)
    return replace(step, sources=tuple(sources))
