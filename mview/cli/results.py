"""Results that are put together for `--json`; the others are those of what computed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from mview.admin.against_source import TableVerified
    from mview.admin.drop import Going
    from mview.admin.verify import VerifyResult
    from mview.cli.costs import PlanCost
    from mview.cli.planning import Planned
    from mview.store.requests.applies import ApplyAnswer
    from mview.trial.trying import TrialOutcome


class ErrorJson(TypedDict, total=False):
    """An error; only what it says is there.

    Attributes:
        code: what kind it is, see errors.md.
        what: what failed.
        where: the place.
        got: the value that was there.
        allowed: the values that are accepted.
        safe: what happened to the data.
        hint: the next command or edit.
    """

    code: str
    what: str
    where: str
    got: str
    allowed: str
    safe: str
    hint: str


class CheckedJson(TypedDict, total=False):
    """A view that was looked at.

    Attributes:
        view: its name.
        file: where it is declared.
        ok: whether it is sound, as far as that can be told without Spark.
        error: what is wrong; only where something is.
        key: its key columns; only of a view with a plan.
        tables: what it reads; only of a view with a plan.
        strategies: of its operators, from the top; only of a view with a plan.
    """

    view: str
    file: str
    ok: bool
    error: ErrorJson
    key: Sequence[str]
    tables: Sequence[str]
    strategies: Sequence[str]


class OperatorJson(TypedDict, total=False):
    """An operator of a plan.

    Attributes:
        operator: what it does.
        strategy: how its changes are found.
        reason: the code of why it reads all rows (reasons.md); only where it does.
        hint: what to change in the SQL; only with a reason.
    """

    operator: str
    strategy: str
    reason: str
    hint: str


class ExplainedJson(TypedDict, total=False):
    """The plan of a view or of a part of it.

    Attributes:
        view: its name; a part has `:` and its number behind it.
        evaluation: `slice_diff`: by changed rows and those that go with them; `maintained`: by sums
            and counts that are kept; `top`: by the first rows, which are kept; `full`: all anew.
        key: its key columns; none: rows may be there more than once.
        tables: what it reads.
        operators: its operators, from the top.
        place: where its epochs run, and why; null: it is not known.
        cost: what changes of its tables cost; null: they are not loaded.
        parts: the plans of its parts.
        reason: why the whole query is computed anew; only where it is.
        hint: what to change in the SQL; only with a reason.
    """

    view: str
    evaluation: str
    key: Sequence[str]
    tables: Sequence[str]
    operators: Sequence[OperatorJson]
    place: str | None
    cost: PlanCost | None
    parts: Sequence[ExplainedJson]
    reason: str
    hint: str


class ByChanceJson(TypedDict):
    """How random tests of views went.

    Attributes:
        tests: how many were run.
        seed: of the first of them.
        failed: the first that failed, as a test file has it (testing.md); null: all passed.
        outcome: how that one went; null: all passed.
    """

    tests: int
    seed: int
    failed: Mapping[str, Any] | None
    outcome: TrialOutcome | None


@dataclass(frozen=True)
class Applied:
    """What a run was asked to take, and what became of it.

    Attributes:
        plan: what was to be done.
        answer: what the run has done.
    """

    plan: Planned
    answer: ApplyAnswer


@dataclass(frozen=True)
class RolledBack:
    """A view that was to be as it was declared before it was changed last.

    Attributes:
        sql: its query then.
        plan: what was to be done.
        answer: what the run has done; None: it was not asked.
    """

    sql: str
    plan: Planned
    answer: ApplyAnswer | None


@dataclass(frozen=True)
class Promoted:
    """Views of an environment that production was to take.

    Attributes:
        environment: its name.
        plan: what was to be done.
        answer: what production's run has done; None: it was not asked.
        light: views in light mode that were left out, as no name was given: a run takes such at
            its start only.
    """

    environment: str
    plan: Planned
    answer: ApplyAnswer | None
    light: Sequence[str] = ()


@dataclass(frozen=True)
class Verified:
    """Our copies of tables against their databases, and views against their queries.

    Attributes:
        tables: the tables.
        views: the views; none where only tables were asked for.
    """

    tables: Sequence[TableVerified]
    views: Sequence[VerifyResult]


@dataclass(frozen=True)
class Dropped:
    """What was removed.

    Attributes:
        what: what went and what stays.
        left: views whose definition was damaged: a table at a path of its own stays.
        at_servers: what databases still keep for who read their logs, for people.
    """

    what: Going
    left: Sequence[str]
    at_servers: Sequence[str] = ()


@dataclass(frozen=True)
class Repaired:
    """A view of which was taken back what others had written.

    Attributes:
        view: its name.
        built_anew: whether the next run builds it anew, as files of its table are gone.
    """

    view: str
    built_anew: bool
