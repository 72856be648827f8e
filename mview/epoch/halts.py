"""Whose error is it? What fails while one view is worked on halts that view alone.

It keeps its last rows, and the others go on. Only what is proven to be of all of them ends the run:
the lease, the store, Spark itself. The next run builds a halted view anew; it fails again until
the data, the query or the target is another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from mview.delta.parquet import unreadable
from mview.errors import (
    AlreadyRunningError,
    CorruptionError,
    DecodeError,
    FencedError,
    MviewError,
    TargetError,
    UserError,
    about,
    of_the_system,
    rows_text,
)
from mview.ivm.plan import ViewPlan
from mview.relation import RelationId
from mview.secrets import Mask
from mview.session.jvm import SparkEndedError
from mview.session.lazy import Spark
from mview.session.spark_errors import (
    WorkerEndedError,
    WorkerStartError,
    first_words,
    unread_file,
    without_advice,
)
from mview.store.layout import Store
from mview.store.manifest import NEVER, ViewState

if TYPE_CHECKING:  # `mview status` starts without the engine
    from mview.epoch.engine import Engine
    from mview.execute.delta import Delta

#: What Spark says of a query that fails on the data, by the classes of SQLSTATE: data exception,
#: and more than one row where one is wanted.
_DATA = re.compile(r"\[([A-Z0-9_.]+)\] (.*?) SQLSTATE: (?:22|21)\w{3}", re.DOTALL)
_FULL = ("No space left on device", "Disk quota exceeded")

#: A disk that has no room for so many bytes is full for all that an epoch writes.
_PROBE = bytes(4 << 20)

#: What is said of the data of a view that halts.
SAFE = "the view keeps the rows of its last good epoch, the other views go on"
_ANEW = "`mview apply` or the next run builds the view anew"
_NEXT = f"correct the row or the query; {_ANEW}"
#: What helps where the row is right, by Spark's name of the error.
_OF_DATA = {
    "INVALID_UTF8_STRING": "of bytes that are no text write base64(b) or hex(b); or "
    f"make_valid_utf8(CAST(b AS STRING)), which puts a sign in the place of what is none; {_ANEW}"
}
_CRASHED = (
    "if the system ended it for lack of memory, lower spark.driver.memory or engine.memory; if a "
    f"function of yours crashes, mend it; {_ANEW}"
)
#: What an error's line begins with that says what helps: see `MviewError.render`.
_HINT = "  next:"
_UNKNOWN = f"{_ANEW}; a run with --debug prints the traceback, too"


class ReadsHaltedError(UserError):
    """A view reads one that has halted, or a table that its source does not let be loaded."""


@contextmanager
def at_its_sink() -> Iterator[None]:
    """What a sink says of its target is no word about the store or the lease."""
    try:
        yield
    except (FencedError, CorruptionError) as error:
        raise of_its_target(error) from error


def of_its_target(error: MviewError) -> TargetError:
    """What a sink says of its target, as its view's error."""
    return TargetError(**{**error.parts, "safe": SAFE})


def of_the_data(error: BaseException) -> bool:
    """Whether Spark failed on the data."""
    return _said(error) is not None


def _said(error: BaseException) -> re.Match[str] | None:
    return _DATA.search(str(error)) if isinstance(error, PySparkException) else None


def _told(said: re.Match[str]) -> str:
    return f"{said.group(1)}: {without_advice(' '.join(said.group(2).split()))}"


@contextmanager
def in_a_batch(view: str) -> Iterator[None]:
    """A batch query of a published view that fails on the data."""
    try:
        yield
    except PySparkException as error:
        if (said := _said(error)) is None:
            raise
        raise UserError(
            f"the batch query of view {view} fails on the data: {_told(said)}",
            safe="the view keeps its rows; they were not compared",
            hint="Spark's sums may fail by the order in which rows are added up, where the sum "
            "itself fits: then use a wider type, sum(CAST(x AS DECIMAL(38, 0)))",
        ) from error


def halting(error: Exception, view: str, store: Store, spark: Spark | None = None) -> MviewError:
    """The error for the user, of a view that halts alone.

    Args:
        view: the view that was worked on.
        store: where all views are kept.
        spark: where the view was worked on; None: not on Spark.

    Raises:
        Exception: the given one, when it is not the view's.
    """
    if _is_of_all(error, store, spark):
        raise error
    return told_of(error, f"view {view}")


def told_of(
    error: Exception,
    subject: str,
    *,
    safe: str = SAFE,
    hint: str | None = None,
    then: str = _ANEW,
) -> MviewError:
    """The error for the user of what failed while a view was computed.

    Args:
        error: what was raised.
        subject: the view, for people.
        safe: of the data.
        hint: what to do about the data or the query; None: what a run that goes on needs.
        then: what to do when the machine has what it refused.
    """
    if isinstance(error, WorkerEndedError):
        what = f"{subject} fails: {error.what}"
        return UserError(what, safe=safe, hint=hint or _CRASHED)
    if isinstance(error, MviewError):
        return error
    if (said := _said(error)) is not None:
        what = f"the query of {subject} fails on the data: {_told(said)}"
        told: MviewError = UserError(what, safe=safe, hint=hint or _OF_DATA.get(said[1], _NEXT))
    elif (refused := of_the_system(error, then=then)) is not None:
        what = f"{subject} fails: {refused.what}"
        told = TargetError(**{**refused.parts, "what": what, "safe": safe})
    elif (file := unread_file(error)) is not None:
        told = about(unreadable(file, "it is no whole Parquet file, or may not be read"), subject)
    else:
        told = UserError(f"{subject} fails: {first_words(error)}", safe=safe, hint=hint or _UNKNOWN)
    told.__cause__ = error
    return told


_OF_ALL = (AlreadyRunningError, FencedError, CorruptionError, WorkerStartError, SparkEndedError)


def _is_of_all(error: Exception, store: Store, spark: Spark | None) -> bool:
    """Whether it is proven that other views cannot go on, either."""
    if isinstance(error, _OF_ALL):
        return not (isinstance(error, CorruptionError) and _is_of_a_view(error, store))
    # First: without a JVM all that is asked of it fails, whatever it then says.
    if spark is not None and spark.is_to_blame(error):
        return True
    if isinstance(error, MviewError):
        return False
    may_be_disk = isinstance(error, OSError) or any(text in str(error) for text in _FULL)
    return may_be_disk and not _takes_files(store.root)


def _is_of_a_view(error: CorruptionError, store: Store) -> bool:
    """Whether what is damaged is kept for one view: it can be made anew from the tables."""
    return (error.where or "").startswith(str(store.beside_views))


def _takes_files(folder: Path) -> bool:
    """Whether the disk of the store takes files."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        with probe.open("wb") as out:
            out.write(_PROBE)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True


def reads_halted_table(view: str, table: RelationId, error: MviewError) -> MviewError:
    """The error of a view whose table halts by an error."""
    first = f"{error.hint}; then " if error.hint else ""
    told = DecodeError(**{**error.parts, "safe": SAFE, "hint": f"{first}{_loaded_anew(table)}"})
    return about(told, f"view {view}, which reads {table}")


def needs_halted_table(view: str, table: RelationId, why: str) -> UserError:
    """The error of a view that reads a table that has halted before."""
    what, _, more = why.partition("\n")
    return UserError(
        f"view {view} reads table {table}, which has halted: {what}",
        got=dedent(more),
        safe=SAFE,
        hint=_loaded_anew(table),
    )


def _loaded_anew(table: RelationId) -> str:
    return f"`mview apply` or the next run loads {table} anew, where that can be done"


def reads_halted(view: str, halted: str) -> ReadsHaltedError:
    """The error of a view that reads one that has halted."""
    return ReadsHaltedError(
        f"view {view} reads view {halted}, which has halted",
        safe=SAFE,
        hint="see `mview status` for the reason; `mview apply` or the next run builds both anew",
    )


def has_halted(view: str, epoch: int, why: str) -> UserError:
    """The error of who reads a view at an epoch since it has halted.

    Args:
        why: what its error was told as, with what helps.
    """
    what, _, more = why.partition("\n")
    hints = [line.strip() for line in more.splitlines() if line.startswith(_HINT)]
    return UserError(
        f"view {view} has halted: {what}",
        where=f"epoch {epoch}",
        safe="its sink has the rows of its last good epoch",
        hint=hints[0].removeprefix(_HINT.strip()).strip() if hints else _NEXT,
    )


def with_rows(
    told: MviewError,
    error: Exception,
    engine: Engine,
    plan: ViewPlan,
    deltas: Mapping[RelationId, Delta],
) -> MviewError:
    """What is told of an error, with the changed rows that brought it about, where found."""
    if not of_the_data(error):
        return told
    for part in (*plan.parts, plan):
        if part.evaluation == "full":
            continue
        changed = {name: deltas[name].changes.rows for name in part.tables if name in deltas}
        failing = None
        # To look for them may fail as well; the error without them is still the error.
        with suppress(Exception):
            failing = engine.executors.failing_rows(part, changed, of_the_data)
        if failing is not None:
            table, rows = failing
            listed = rows_text(rows.select(part.schemas[table].names).to_pylist())
            return UserError(told.what, got=listed, where=str(table), safe=SAFE, hint=told.hint)
    return told


def halted(state: ViewState, error: MviewError, mask: Mask) -> ViewState:
    """The state of a view that has halted; a driver's words may quote the URL that it was given."""
    built = state.built_epoch if state.sink else NEVER
    return replace(state, stale=True, halted=mask(error.render()), built_epoch=built)
