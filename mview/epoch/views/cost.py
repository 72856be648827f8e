"""The cost rule: is it cheaper to compute a view again than to follow the changes?

The answer is a function of the published history and of what an epoch brings, never of a clock: an
epoch that is run again after a crash chooses the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from mview.files.records import record
from mview.ivm.plan import ViewPlan
from mview.plan.clocks import is_clock
from mview.relation import RelationId
from mview.store.manifest import TableState, ViewState

Forced = Literal["auto", "incremental", "full"]

INCREMENTAL, FULL = "incremental", "FULL"

#: An epoch with fewer changed rows is incremental.
SMALL_ROWS = 1_000
#: FULL must be foreseen to be so many times cheaper: estimates err, and it rewrites nothing twice.
MARGIN = 1.5
#: FULL is not thought of while a smaller share of the rows is touched (changed or looked up).
LEAST_SHARE = 0.2
#: Before both ways are measured: FULL from this share of changed rows on, by where it would run
#: (in process it takes a few times less), in tables of this size.
UNMEASURED_SHARE: Mapping[str, float] = {"local": 0.05, "spark": 0.3}
UNMEASURED_ROWS = 100_000
#: Seconds below which a view is not worth a thread of its own.
QUICK_SECONDS = 0.1
#: Epochs that handle fewer rows tell the fixed cost, others the cost of a row.
MANY_ROWS = 1_000
#: The cost of a row is believed up to so many times the rows that it was measured with.
REACH = 10
#: How much of the history the next epoch leaves in place.
_KEEP = 0.7
#: Seconds of an epoch of one row until one was measured.
_FIXED = {"local": 0.02, "spark": 1.0}


@dataclass(frozen=True)
class Pace:
    """How fast an executor was, lately.

    Attributes:
        fixed: seconds of a small epoch.
        rows: rows that larger epochs handled, older ones counted less.
        seconds: what these took beyond `fixed`, weighted alike.
    """

    fixed: float
    rows: float = 0.0
    seconds: float = 0.0

    def after(self, rows: int, seconds: float) -> Pace:
        """With another epoch."""
        if rows < MANY_ROWS:
            return replace(self, fixed=_KEEP * self.fixed + (1 - _KEEP) * seconds)
        more = max(0.0, seconds - self.fixed)
        return replace(self, rows=_KEEP * self.rows + rows, seconds=_KEEP * self.seconds + more)

    def estimate(self, rows: float) -> float | None:
        """Seconds for so many rows; None when nothing of the kind was measured."""
        if rows < MANY_ROWS:
            return self.fixed
        if rows > REACH * self.rows:
            return None
        return self.fixed + rows * self.seconds / self.rows


@dataclass(frozen=True)
class Costs:
    """What a view or part has cost so far; kept in the manifest, of a fixed size.

    Attributes:
        paces: of incremental epochs, by executor.
        executor: of the last incremental epoch.
        foreseen: rows that the plan let expect to be looked up, older epochs counted less.
        read: rows that were looked up, weighted alike.
        full_rows: rows of the tables when the view was last computed as a whole.
        full_seconds: what that takes; 0: not measured.
        full_executor: where that ran.
    """

    paces: Mapping[str, Pace] = field(default_factory=dict)
    executor: str = ""
    foreseen: float = 0.0
    read: float = 0.0
    full_rows: int = 0
    full_seconds: float = 0.0
    full_executor: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON form: its fields."""
        return {**vars(self), "paces": {name: {**vars(pace)} for name, pace in self.paces.items()}}

    def after_full(self, executor: str, rows: int, seconds: float) -> Costs:
        """With another computation of everything, from so many rows."""
        known = self.full_estimate(rows) if executor == self.full_executor else None
        mean = seconds if known is None else (known + seconds) / 2
        return replace(self, full_rows=rows, full_seconds=mean, full_executor=executor)

    def after_incremental(
        self, executor: str, changed: int, foreseen: float, read: int, seconds: float
    ) -> Costs:
        """With another incremental epoch."""
        pace = self.paces.get(executor, Pace(_FIXED[executor])).after(changed + read, seconds)
        return replace(
            self,
            paces={**self.paces, executor: pace},
            executor=executor,
            foreseen=_KEEP * self.foreseen + foreseen,
            read=_KEEP * self.read + read,
        )

    def reads(self, foreseen: float) -> float:
        """Rows that will be looked up: as foreseen from the plan, corrected by experience."""
        return foreseen * self.read / self.foreseen if self.foreseen else foreseen

    def incremental_estimate(self, rows: float) -> float | None:
        """Seconds of an epoch that changes and looks up so many rows; None: not measured."""
        pace = self.paces.get(self.executor)
        return None if pace is None else pace.estimate(rows)

    def full_estimate(self, rows: int) -> float | None:
        """Seconds to compute everything from so many rows; None: not measured."""
        if not self.full_seconds:
            return None
        return self.full_seconds * max(1.0, rows / max(1, self.full_rows))


def is_few(changed: int) -> bool:
    """Whether so few rows changed that nothing but following them is thought of."""
    return changed < SMALL_ROWS


def full_rows(plan: ViewPlan, tables: Mapping[RelationId, TableState]) -> int:
    """The rows of the relations from which a view or part is computed as a whole."""
    return sum(tables[name].rows for name in plan.full_definition.table_names if not is_clock(name))


@dataclass(frozen=True)
class Load:
    """What an epoch asks of a view or part.

    Attributes:
        changed: changed rows by table.
        rows: rows of every table that is read when tables change, before or after the epoch:
            whichever is more.
        foreseen: rows to be looked up, as the plan lets expect.
        full_rows: rows of the tables that the text reads.
        full_bytes: of the old and the new result, which a FULL epoch holds in memory.
        full_executor: where it would be computed as a whole.
    """

    changed: Mapping[RelationId, int]
    rows: Mapping[RelationId, int]
    foreseen: float
    full_rows: int
    full_bytes: int
    full_executor: str = "spark"

    @property
    def changed_rows(self) -> int:
        """All changed rows."""
        return sum(self.changed.values())

    @property
    def all_rows(self) -> int:
        """All rows of the tables."""
        return max(1, sum(self.rows.values()))

    def share_text(self) -> str:
        """`41 % of shop.orders changed`: of the table with the most changed rows."""
        table, changed = max(self.changed.items(), key=lambda item: item[1])
        if is_clock(table):
            return "the time moved"
        return f"{percent(changed / max(changed, self.rows[table], 1))} of {table} changed"


@dataclass(frozen=True)
class Choice:
    """The strategy of an epoch, and why."""

    strategy: str
    why: str


def choose(
    costs: Costs, load: Load, forced: Forced, *, incremental_only: bool, memory: int
) -> Choice:
    """Incremental or FULL, for a view or part that can be either.

    Args:
        costs: its history.
        load: what the epoch asks.
        forced: `auto`, or what tests want.
        incremental_only: the view's policy; it is never computed as a whole by choice.
        memory: bytes that a FULL epoch may hold.
    """
    if incremental_only:
        return Choice(INCREMENTAL, "policy incremental_only")
    if forced != "auto":
        return Choice(FULL if forced == "full" else INCREMENTAL, f"engine.strategy is {forced}")
    share = load.share_text()
    if is_few(load.changed_rows):
        return Choice(INCREMENTAL, share)
    if load.full_bytes > memory:
        return Choice(INCREMENTAL, f"{share}, the view is beyond engine.memory")
    touched = load.changed_rows + min(costs.reads(load.foreseen), load.all_rows)
    delta, full = costs.incremental_estimate(touched), costs.full_estimate(load.full_rows)
    if delta is None or full is None or costs.full_executor != load.full_executor:
        many = load.changed_rows >= UNMEASURED_SHARE[load.full_executor] * load.all_rows
        large = load.all_rows >= UNMEASURED_ROWS
        return Choice(FULL if many and large else INCREMENTAL, f"{share}, not measured yet")
    if touched < LEAST_SHARE * load.all_rows:
        return Choice(INCREMENTAL, share)
    better = FULL if delta > MARGIN * full else INCREMENTAL
    first, second = (full, delta) if better == FULL else (delta, full)
    return Choice(better, f"{share}, estimated {_seconds(first)} against {_seconds(second)}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.3f} s"


def percent(share: float) -> str:
    """`41 %`, and `0.3 %` where there is little."""
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2g} %"


@dataclass(frozen=True)
class Ran:
    """How a view or part was brought up to an epoch; kept in the manifest as its history.

    Attributes:
        epoch: the epoch.
        strategy: `incremental` or `FULL`.
        why: the reason.
        executor: where it was worked out: `local`, in process, or `spark`.
        changed: changed rows of the tables.
        read: rows that were looked up; of a FULL one, all rows of its tables.
        output: changed rows of the view; an update is two.
        seconds: time it took.
    """

    epoch: int
    strategy: str
    why: str
    executor: str
    changed: int
    read: int
    output: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """A JSON form: its fields."""
        return {**vars(self)}

    @property
    def text(self) -> str:
        """`FULL this epoch: 41 % of shop.orders changed, estimated 0.9 s against 4.2 s`."""
        return f"{self.strategy} this epoch: {self.why}"


# --- in a view's facts ---------------------------------------------------------------------------

#: Where a view's facts in the manifest have its costs and its last runs, by plan.
COSTS, RAN = "costs", "ran"

F = TypeVar("F")


def costs_of(view: ViewState, plan: RelationId) -> Costs:
    """What a view, or a part of it, has cost so far."""
    return _facts(view, COSTS, Costs).get(str(plan), Costs())


def runs_of(view: ViewState) -> dict[str, Ran]:
    """The last run of a view and of each part of it, by plan."""
    return _facts(view, RAN, Ran)


def is_quick(view: ViewState, plan: RelationId) -> bool:
    """Whether a view, or a part of it, was last brought up by its changes, in process, at once.

    Asked for all views in every epoch: only what is needed is read.
    """
    ran = _by_plan(view.facts, RAN).get(str(plan))
    if not isinstance(ran, dict):
        return False
    seconds = ran.get("seconds")
    followed = (ran.get("strategy"), ran.get("executor")) == (INCREMENTAL, "local")
    return followed and isinstance(seconds, float) and seconds < QUICK_SECONDS


def _facts(view: ViewState, name: str, kind: type[F]) -> dict[str, F]:
    """By plan. What another version wrote is no history: nothing but estimates comes of it."""
    facts: dict[str, F] = {}
    for plan, data in _by_plan(view.facts, name).items():
        with suppress(ValueError):
            facts[plan] = record(kind, data)
    return facts


def with_run(facts: Mapping[str, Any], plan: RelationId, ran: Ran, costs: Costs) -> dict[str, Any]:
    """A view's facts after it, or a part of it, was brought up to an epoch."""
    return {
        **facts,
        COSTS: {**_by_plan(facts, COSTS), str(plan): costs.to_json()},
        RAN: {**_by_plan(facts, RAN), str(plan): ran.to_json()},
    }


def _by_plan(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    told = facts.get(name)
    return told if isinstance(told, dict) else {}
