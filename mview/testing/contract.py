"""What every follower must do, whatever it writes to: one suite, run per connector by a subclass.

    class TestMine(FollowerContract):
        @pytest.fixture
        def harness(self, server): return MyHarness(server)

Each test plays a store in memory against a real target. A new object on the same target stands for
a new process. What is there is read by the harness, not by the connector.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from mview.errors import FencedError, MviewError, RetryableError, TargetError, UserError
from mview.failpoints import FaultError
from mview.follow.cursor import CursorLog
from mview.follow.following import Following, delta_schema, rows_schema
from mview.follower import (
    Facts,
    Follower,
    FollowerSettings,
    FollowerTarget,
    Probing,
    State,
    Step,
    check_mode,
)
from mview.schema import Column, TableSchema, parse_type
from mview.testing.faults import CALLS, Faulty, When
from mview.testing.view import MemoryView, Row, rows_of

#: Columns of most tests; a connector that refuses one of their types names others.
COLUMNS = (
    ("k", "bigint"),
    ("g", "string"),
    ("amount", "decimal(12,2)"),
    ("at", "timestamp"),
)

_YEARS_1_TO_9999 = (-62_135_596_800_000_000, 253_402_300_799_999_999)

#: One or more values per type that are easily lost: ends of ranges, micros, texts that look alike.
VALUES: dict[str, Sequence[Any]] = {
    "boolean": (True, False),
    "tinyint": (-128, 127),
    "smallint": (-32768, 32767),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1, 2**53 + 1),
    "float": (0.10000000149011612, -3.4028234663852886e38, 1.401298464324817e-45),
    "double": (0.1, 1.7976931348623157e308, 5e-324, 2.0**53 + 2),
    "string": (
        *("", " ", "a ", "A", "a", "ä", "é", "e\u0301", "😀", "NULL", "\\N", "a,b", "{}"),
        *("'\"`\\;--", "\t\r\n", "%s :x ?", "a\n\\.\nb"),
    ),
    "binary": (b"", b"\x00", b"\\x00", b"\xff\xfe'\n\r\t\\", bytes(range(256))),
    "date": (dt.date.min, dt.date(1582, 10, 10), dt.date(1969, 12, 31), dt.date.max),
    "timestamp": (0, -1, 1_700_000_000_123_456, *_YEARS_1_TO_9999),
    "timestamp_ntz": (0, -1, 1_700_000_000_123_456, *_YEARS_1_TO_9999),
    "decimal(5,0)": (Decimal(-99999), Decimal(0), Decimal(1)),
    "decimal(12,2)": (Decimal("-9999999999.99"), Decimal("0.01")),
    "decimal(38,10)": (Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")),
    "decimal(38,38)": (Decimal("0." + "9" * 38),),
    "array<string>": ([], ["a", None, "b,c"], ['"', "{}"]),
    "array<bigint>": ([], [1, None, -(2**63)]),
}


def schema_of(columns: Sequence[tuple[str, str]], key: Sequence[str] = ("k",)) -> TableSchema:
    """A view's schema of names and types."""
    return TableSchema(tuple(Column(n, parse_type(t)) for n, t in columns), tuple(key))


SCHEMA = schema_of(COLUMNS)


class FollowerHarness(ABC):
    """One empty place of the connector under test, and ways to look at it that are not its own.

    Attributes:
        columns: of most tests; the first, `k`, is the key, the second is text.
        large: rows of the large epoch.
        megabytes: whether a text of a megabyte is held; else it is refused.
    """

    columns: Sequence[tuple[str, str]] = COLUMNS
    large: int = int(os.environ.get("MVIEW_TEST_LARGE", "20000"))
    megabytes: bool = True

    @abstractmethod
    def settings(self, **options: Any) -> FollowerSettings:
        """The connector's settings, with these options (`table`, `mode`) laid over."""

    @abstractmethod
    def open(self, target: FollowerTarget) -> Follower:
        """A new object on the place, as a new process would make it."""

    @abstractmethod
    def read(self, target: FollowerTarget) -> list[Row] | None:
        """The content as other readers see it, by the view's columns; None: there is no table.

        Timestamps as micros since 1970. In changelog mode: what the changes come to; the harness
        checks itself that old rows fit.
        """

    def foreign(self, target: FollowerTarget) -> bool:
        """Make a table of this name that is somebody else's; False: there is no such thing."""
        return False

    def backup(self, target: FollowerTarget) -> Callable[[], None] | None:
        """Copy the table with its mark; returns what restores it. None: that cannot be done."""
        return None

    def pieces(self, target: FollowerTarget) -> int | None:
        """Files or parts that readers open; None: `maintain` does not make them fewer."""
        return None

    def drop(self, target: FollowerTarget) -> bool:
        """Drop the table as a person would, the mark may stay; False: there is no such thing."""
        return False

    def lost_answers(self) -> AbstractContextManager[None] | None:
        """Have every write that is made if something is absent, or unchanged, done and refused.

        So hears a client who has sent it again by itself, as the first answer was lost. None:
        there are no such writes, or none that this library can reach.
        """
        return None


class World:
    """A store with one view, and one sink that follows it."""

    def __init__(
        self,
        harness: FollowerHarness,
        folder: Path,
        schema: TableSchema | None = None,
        **options: Any,
    ) -> None:
        self.harness, self.folder = harness, folder
        self.schema = schema or schema_of(harness.columns)
        self.options = {"table": "t", **options}
        self.view = MemoryView(self.schema)
        self.view.epoch = 10
        self.fence = 0
        self._open: list[Follower] = []
        self.start()

    def target(self, fence: int | None = None, owner: str = "store/v/s") -> FollowerTarget:
        """The target as a runner of that token has it."""
        settings = self.harness.settings(**self.options)
        token = self.fence if fence is None else fence
        return FollowerTarget("v", "s", self.schema, settings, owner, token)

    def runner(self, fence: int) -> tuple[Faulty, Following]:
        """A runner with a token."""
        target = self.target(fence)
        follower = self.harness.open(target)
        self._open.append(follower)
        faulty = Faulty(follower)
        cursors = CursorLog(self.folder / "cursor")
        return faulty, Following(faulty, target, self.view, cursors, lambda: None, lambda: 1)

    def start(self) -> None:
        """A new process, after the one before has died in whatever moment."""
        self.fence += 1
        for follower in self._open:
            follower.close()
        self._open.clear()
        self.faulty, self.following = self.runner(self.fence)

    @property
    def compares(self) -> bool:
        """Whether what is there is compared with the view, when changes are gone."""
        able = self.faulty.capabilities
        return able.marks and able.reads and able.compares

    def forget(self) -> None:
        """Have a new process fill the target: no changes are kept, and what differs is too much."""
        self.view.forget()
        self.options["commit_bytes"] = 1
        self.start()

    def row(self, number: int, text: str | None = "x") -> Row:
        """A row of the schema of most tests."""
        more = {
            "decimal": Decimal(number % 1000) / 100,
            "timestamp": 1_700_000_000_000_000 + number,
        }
        rest = [more.get(kind.partition("(")[0]) for _, kind in self.harness.columns[2:]]
        return (number, text, *rest)

    def sync(self) -> int:
        """Follow until nothing is left; returns the number of commits."""
        for commits in range(100):
            if self.following.advance() is None:
                return commits
        raise AssertionError("the sink does not come to an end")

    def sync_through(self, faults: int) -> None:
        """The same where so many calls fail on the way."""
        for _ in range(faults):
            try:
                self.sync()
            except FaultError:
                continue
            break
        self.sync()

    def check(self) -> None:
        """The target has exactly the view's rows, for its readers and for `verify`."""
        expected = normal(self.view.content.values())
        there = self.harness.read(self.target())
        assert there is not None, "there is no table"
        assert normal(there) == expected, _told(normal(there), expected)
        if self.faulty.capabilities.reads:
            ours = normal(rows_of(self.faulty.read()))
            assert ours == expected, "by `read`: " + _told(ours, expected)

    def close(self) -> None:
        """End all runners."""
        for follower in self._open:
            follower.close()


def _in_pieces(world: World) -> int | None:
    """Many small commits, where maintenance makes them fewer; returns what is there then."""
    pieces = world.harness.pieces(world.target())
    for number in range(3 if pieces is None else 12):
        at = world.view.epoch
        world.view.publish([world.row(number, f"{at}"), world.row(1000 + at)], [(10 + number,)])
        world.sync()
    return world.harness.pieces(world.target())


def _maintain(world: World) -> Facts:
    """What `mview maintain` does: as another process, under the runner's token."""
    other = world.harness.open(world.target())
    try:
        return other.maintain(thorough=True)
    finally:
        other.close()


def _told(there: list[Row], expected: list[Row]) -> str:
    extra = [row for row in there if row not in expected]
    missing = [row for row in expected if row not in there]
    return f"there, but not in the view: {extra[:3]}; in the view, but not there: {missing[:3]}"


_MICRO = dt.timedelta(microseconds=1)


def normal(rows: Any) -> list[Row]:
    """Rows in one order, with values that compare as SQL does."""
    return sorted((tuple(map(_normal, row)) for row in rows), key=repr)


def _normal(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, Decimal):
        return value.normalize() + 0
    if isinstance(value, dt.datetime):
        began = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        return (value.replace(tzinfo=value.tzinfo or dt.timezone.utc) - began) // _MICRO
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    return value


class FollowerContract:
    """Subclass it as `Test…` and give a fixture `harness`.

    Attributes:
        steps: of the random walk.
        share: of the faults at each call, one in so many is tried, and other ones every day.
    """

    steps: ClassVar[int] = 60
    share: ClassVar[int] = 1

    def of_today(self, *choices: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Of all combinations, the share of today."""
        cases = enumerate(itertools.product(*choices), seed())
        return [case for place, case in cases if place % self.share == 0]

    @contextmanager
    def world(self, harness: FollowerHarness, *args: Any, **options: Any) -> Iterator[World]:
        """A store in a folder that goes with it."""
        with tempfile.TemporaryDirectory() as folder:
            world = World(harness, Path(folder), *args, **options)
            try:
                yield world
            finally:
                world.close()

    @contextmanager
    def filled(self, harness: FollowerHarness, rows: int = 5) -> Iterator[World]:
        """The same, with rows that have been brought."""
        with self.world(harness) as world:
            world.view.publish([world.row(n) for n in range(rows)])
            assert world.sync() == 1
            world.check()
            yield world

    # --- content ---------------------------------------------------------------------------------

    def test_inserts_updates_deletes_and_keys_that_change(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            view = world.view
            for put, delete in (
                ([world.row(7), world.row(1, "changed")], [(2,)]),
                ([world.row(8, "moved")], [(7,)]),
                ([world.row(2, "back")], [(8,), (1,)]),
                ([], [(0,), (2,), (3,), (4,)]),
                ([world.row(0)], []),
            ):
                view.publish(put, delete)
                assert world.sync() == 1
                world.check()
            assert world.sync() == 0

    def test_an_empty_view(self, harness: FollowerHarness) -> None:
        with self.world(harness) as world:
            world.view.publish()
            world.sync()
            world.check()
            world.view.publish([world.row(1)])
            world.sync()
            world.check()
            world.view.publish([], [(1,)])
            world.sync()
            world.check()

    def test_nulls(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            nulls = (None,) * (len(world.schema.names) - 1)
            world.view.publish([(1, *nulls), (9, *nulls)])
            world.sync()
            world.check()
            world.view.publish([world.row(1), (2, *nulls)], [(9,)])
            world.sync()
            world.check()

    def test_a_null_in_a_key_is_held_or_refused(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            world.view.publish([world.row(1, "changed"), (None, *world.row(5)[1:])])
            if world.faulty.capabilities.null_keys:
                world.sync()
                world.check()
                return
            refused = raised(world.sync, UserError)
            assert "NULL" in str(refused)
            world.view.publish([], [(None,)])
            world.sync()
            world.check()

    def test_epochs_that_cancel_out(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            world.view.publish([world.row(9)])
            world.view.publish([], [(9,)])
            world.sync()
            world.check()
            assert world.sync() == 0

    def test_epochs_without_a_change_cost_no_commit(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            world.view.publish()
            world.view.publish()
            assert world.sync() == 0
            world.view.publish([world.row(9)])
            assert world.sync() == 1
            world.check()

    def test_several_epochs_in_one_commit(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            for number in range(20):
                put = [world.row(number % 7, f"at {number}"), world.row(100 + number)]
                world.view.publish(put, [((number * 3) % 7,)])
            assert world.sync() == 1
            world.check()

    def test_every_type_is_exact_or_refused(self, harness: FollowerHarness) -> None:
        held: list[str] = []
        for kind in VALUES:
            with self.world(harness, schema_of([("k", "bigint"), ("v", kind)])) as world:
                try:
                    world.faulty.check()
                    held.append(kind)
                except UserError as error:
                    assert "v" in str(error), error
                    assert kind in str(error), error
        assert len(held) >= 5, "most types are refused"
        columns = [VALUES[kind] for kind in held]
        rows = [
            tuple(values[number % len(values)] for values in columns)
            for number in range(max(map(len, columns)))
        ]
        schema = schema_of([("k", "bigint"), *((f"c{n}", kind) for n, kind in enumerate(held))])
        with self.world(harness, schema, table="types") as world:
            nothing = (-1, *(None for _ in held))
            world.view.publish([*((n, *values) for n, values in enumerate(rows)), nothing])
            world.sync()
            world.check()
            world.view.publish([(n + 1, *values) for n, values in enumerate(rows)], [(0,)])
            world.sync()
            world.check()

    def test_numbers_that_are_none(self, harness: FollowerHarness) -> None:
        schema = schema_of([("k", "bigint"), ("v", "double")])
        with self.world(harness, schema, table="odd") as world:
            if _refuses(world):
                return
            world.view.publish([(1, 1.5)])
            world.sync()
            odd = ("nan", "inf", "-inf", "-0.0")
            world.view.publish([(n, float(text)) for n, text in enumerate(odd, 2)])
            try:
                world.sync()
            except UserError:
                world.view.publish([(1, 2.5)], [(2,), (3,), (4,)])
                world.sync()
            world.check()

    def test_keys_of_text_that_look_alike(self, harness: FollowerHarness) -> None:
        schema = schema_of([("k", "string"), ("n", "bigint"), ("v", "int")], ("k", "n"))
        with self.world(harness, schema, table="texts") as world:
            if _refuses(world):
                return
            texts = [text for text in VALUES["string"] if text]
            world.view.publish([(text, 1, n) for n, text in enumerate(texts)])
            world.sync()
            world.check()
            world.view.publish([("a", 1, 100)], [("a ", 1), ("A", 1), ("e\u0301", 1)])
            world.sync()
            world.check()

    def test_names_are_quoted(self, harness: FollowerHarness) -> None:
        names = ("select", "Group By", 'a"b', "a`b", "ü", "a'b", "a\\b", "100%", "x:y", "a b?")
        held = []
        for name in names:
            schema = schema_of([("k", "bigint"), (name, "string")])
            with self.world(harness, schema, table=f"T {name}") as world:
                if not _refuses(world):
                    held.append(name)
        schema = schema_of([("k", "bigint"), *((name, "string") for name in held)])
        with self.world(harness, schema, table=" ".join(["T", *held])) as world:
            world.view.publish([(1, *("a" for _ in held)), (2, *(None for _ in held))])
            world.sync()
            world.view.publish([(1, *("b" for _ in held)), (3, *held)], [(2,)])
            world.sync()
            world.check()

    def test_other_columns_are_filled_anew(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            world.schema = schema_of([*harness.columns, ("more", harness.columns[1][1])])
            rows = [(*row, "more") for row in world.view.content.values()]
            epoch = world.view.epoch
            world.view = MemoryView(world.schema)
            world.view.epoch = epoch
            world.view.publish(rows)
            world.view.forget()
            world.start()
            world.sync()
            world.check()

    def test_a_large_epoch(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            world.view.publish([world.row(n, f"n{n}") for n in range(harness.large)])
            world.sync()
            world.check()
            put = [world.row(n, "again") for n in range(0, harness.large, 2)]
            world.view.publish(put, [(n,) for n in range(1, harness.large, 2)])
            world.sync()
            world.check()

    def test_rows_of_a_megabyte(self, harness: FollowerHarness) -> None:
        """Held, also many in one commit, or refused by what they are."""
        with self.filled(harness) as world:
            world.view.publish([world.row(n, chr(97 + n) * 1_000_000) for n in range(20)])
            try:
                world.sync()
            except UserError:
                assert not harness.megabytes
                world.view.publish([world.row(n, "short") for n in range(20)])
                world.sync()
            world.check()
            world.view.publish([world.row(0, "again")], [(n,) for n in range(1, 20)])
            world.sync()
            world.check()

    # --- once ------------------------------------------------------------------------------------

    def test_a_step_twice(self, harness: FollowerHarness) -> None:
        """The same token again, and the same step staged again, change nothing."""
        with self.filled(harness) as world:
            follower, target = world.faulty.inner, world.target()
            epoch = world.following.cursor.epoch
            changes = [(world.row(1), world.row(1, "b")), (None, world.row(50))]
            step = Step("step-a", world.view.publish(), epoch, 3)
            token = follower.stage(step, delta_of(target, changes))
            follower.commit(token)
            first = normal(harness.read(target))
            assert ("b" in repr(first)) and len(first) == 6
            assert follower.state(step, token) is State.COMMITTED
            for again in (
                lambda: follower.commit(token),
                lambda: follower.commit(follower.stage(step, delta_of(target, changes))),
            ):
                _try(again)
                assert normal(harness.read(target)) == first
            follower.close()
            other = harness.open(world.target(world.fence + 1))
            other.create()
            assert other.state(step, token) is State.COMMITTED
            _try(lambda: other.commit(token))
            assert normal(harness.read(target)) == first
            other.close()

    def test_changes_by_key_alone(self, harness: FollowerHarness) -> None:
        """Rows that are put whether they are there or not, and keys that go, be they there or not:
        what a view in light mode brings."""
        with self.filled(harness) as world:
            mode = world.target().settings.mode
            if not world.faulty.capabilities.by_key or mode != "upsert":
                return
            follower, target = world.faulty.inner, world.target()
            put, gone = [world.row(1, "b"), world.row(51), world.row(52)], [2, 999]
            epoch = world.following.cursor.epoch
            step = Step("step-k", world.view.publish(put, [(2,)]), epoch, 5)
            nothing = (None,) * (len(world.schema.columns) - 1)
            rows = [*zip(("+U", "+U", "+I"), put, strict=True)]
            rows += [("-D", (key, *nothing)) for key in gone]
            delta = _kinds_and_rows(target, rows)
            follower.commit(follower.stage(step, delta))
            world.check()

    def test_a_step_that_begins_elsewhere_is_refused(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            if not world.faulty.capabilities.marks:
                return
            follower, target = world.faulty.inner, world.target()
            step = Step("step-b", 500, 400, 1)
            delta = delta_of(target, [(None, world.row(9))])
            raised(lambda: follower.commit(follower.stage(step, delta)), Exception)
            follower.close()
            world.start()
            world.sync()
            world.check()

    def test_what_is_aborted_is_not_there(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            follower, target = world.faulty.inner, world.target()
            step = Step("step-c", world.view.publish(), world.following.cursor.epoch, 1)
            token = follower.stage(step, delta_of(target, [(None, world.row(9))]))
            follower.abort(step, token)
            follower.abort(step, token)
            assert follower.state(step, token) in (State.UNKNOWN, State.ABORTED)
            world.check()
            world.view.publish([world.row(9)])
            world.sync()
            world.check()

    def test_what_is_staged_is_not_shown(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            follower, target = world.faulty.inner, world.target()
            step = Step("step-d", world.view.publish(), world.following.cursor.epoch, 1)
            token = follower.stage(step, delta_of(target, [(None, world.row(9))]))
            assert follower.state(step, token) is State.PREPARED
            world.start()
            world.following.advance()
            if world.faulty.capabilities.durable_prepare:
                state = world.faulty.inner.state(step, token)
                assert state is State.PREPARED
                world.faulty.inner.abort(step, token)
            else:
                assert world.faulty.inner.state(step, token) is State.UNKNOWN
            world.check()

    def test_an_error_at_each_call(self, harness: FollowerHarness) -> None:
        """Before a call is made, and after it has succeeded: by this process and by a new one."""
        calls = ("create", "position", "stage", "commit")
        whens: tuple[When, When] = ("before", "after")
        with self.filled(harness) as world:
            cases = self.of_today(calls, whens, (False, True))
            for number, (call, when, is_new) in enumerate(cases, 11):
                if call in ("create", "position"):
                    world.start()
                world.view.publish([world.row(number), world.row(1, f"{number}")])
                world.faulty.fail(call, when)
                raised_or_not(world.sync, FaultError)
                reached = world.faulty.hit
                if is_new:
                    world.start()
                world.sync()
                world.check()
                marks = world.faulty.capabilities.marks
                assert reached or (call == "position" and not marks), (call, when)

    def test_an_error_while_filling(self, harness: FollowerHarness) -> None:
        whens: tuple[When, When] = ("before", "after")
        for call, when, is_new in self.of_today(("fill", "commit"), whens, (False, True)):
            with self.world(harness, table=f"fill_{call}_{when}_{is_new}") as world:
                world.view.publish([world.row(n) for n in range(5)])
                world.faulty.fail(call, when)
                raised_or_not(world.sync, FaultError)
                if is_new:
                    world.start()
                world.sync()
                world.check()

    def test_errors_in_recovery(self, harness: FollowerHarness) -> None:
        whens: tuple[When, When] = ("before", "after")
        calls = ("create", "state", "position", "commit", "abort")
        with self.filled(harness) as world:
            for call, when, begun in self.of_today(calls, whens, ("stage", "commit")):
                world.view.publish([world.row(1, f"{call} {when} {begun}")])
                world.faulty.fail(begun, "after")
                raised_or_not(world.sync, FaultError)
                world.start()
                world.faulty.fail(call, when)
                world.sync_through(2)
                world.check()

    def test_a_source_that_fails_while_it_is_read(self, harness: FollowerHarness) -> None:
        with self.world(harness) as world:
            world.view.part_rows = 2
            world.view.publish([world.row(n) for n in range(7)])

            def fail() -> None:
                world.view.while_filled = lambda: None
                raise FaultError("a file of the store cannot be read")

            world.view.while_filled = fail
            raised(world.sync, Exception)
            world.sync()
            world.check()

    def test_answers_that_are_lost(self, harness: FollowerHarness) -> None:
        """What was written says itself that it was; nothing that it names is removed."""
        with self.filled(harness, 40) as world:
            losing = harness.lost_answers()
            if losing is None:
                return
            with losing:
                world.start()
                raised_or_not(world.sync, RetryableError)
                _in_pieces(world)
                _maintain(world)
                world.check()
                world.view.publish([world.row(3, "after it")], [(4,), (30,)])
                raised_or_not(world.sync, RetryableError)
                world.sync()
                world.check()
            world.start()
            world.view.publish([world.row(3, "later")], [(5,)])
            world.sync()
            world.check()

    # --- other places and times ------------------------------------------------------------------

    def test_a_backup_of_the_target_is_restored(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            restore = harness.backup(world.target())
            if restore is None:
                return
            for number in range(3):
                world.view.publish([world.row(number, "later"), world.row(20 + number)])
                world.sync()
            world.start()
            restore()
            world.sync()
            world.check()
            world.view.forget()
            world.start()
            restore()
            if not world.compares and not world.faulty.capabilities.fills:
                assert "anew" in str(raised(world.sync, TargetError))
                return
            world.sync()
            world.check()

    def test_a_dropped_table_is_filled_anew(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            if not harness.drop(world.target()):
                return
            world.start()
            world.view.publish([world.row(9)])
            world.sync()
            world.check()

    def test_changes_that_are_gone_from_the_store(self, harness: FollowerHarness) -> None:
        """What differs is brought, where that can be told; else all rows, or it is refused."""
        with self.filled(harness) as world:
            world.view.publish([world.row(1, "b"), world.row(9)], [(3,)])
            world.view.forget()
            if not world.compares and not world.faulty.capabilities.fills:
                assert "anew" in str(raised(world.sync, TargetError))
                return
            done = world.following.advance()
            assert done is not None
            assert (done.way, done.rows) == (("difference", 4) if world.compares else ("fill", 5))
            world.check()
            assert world.sync() == 0
            world.view.publish([world.row(10)])
            assert world.sync() == 1
            world.check()

    def test_errors_while_it_is_compared(self, harness: FollowerHarness) -> None:
        """At each call, by this process and a new one; also with more that differs than fits."""
        whens: tuple[When, When] = ("before", "after")
        with self.filled(harness) as world:
            if not world.compares:
                return
            for number, call in enumerate(("position", "stage", "commit")):
                for when in whens:
                    world.view.publish([world.row(1, f"{call} {when}"), world.row(20 + number)])
                    world.view.forget()
                    world.faulty.fail(call, when)
                    raised(world.sync, FaultError)
                    world.view.publish([world.row(2, f"{call} {when}")])
                    if when == "after":
                        world.start()
                    world.sync()
                    world.check()
            world.view.publish([world.row(1, "too large")])
            world.forget()
            if not world.faulty.capabilities.fills:
                assert "anew" in str(raised(world.sync, TargetError))
                return
            done = world.following.advance()
            assert done is not None
            assert done.way == "fill"
            world.check()

    def test_a_store_that_was_restored(self, harness: FollowerHarness) -> None:
        """The target is ahead of the store: what it has was never published, as it is now."""
        with self.filled(harness) as world:
            if not world.faulty.capabilities.marks:
                return
            before = CursorLog(world.folder / "cursor").latest()
            view, rows = world.view, dict(world.view.content)
            world.view.publish([world.row(77), world.row(1, "lost")])
            world.sync()
            fence = world.fence
            world.view = MemoryView(world.schema)
            world.view.epoch, world.view.content = view.epoch - 1, rows
            cursors = CursorLog(world.folder / "cursor")
            cursors.latest()
            cursors.write(before)
            world.fence = fence
            world.start()
            world.view.publish([world.row(78)])
            if not world.faulty.capabilities.fills:
                assert "anew" in str(raised(world.sync, TargetError))
                return
            world.sync()
            world.check()

    def test_a_copy_of_a_time_that_is_gone(self, harness: FollowerHarness) -> None:
        """A backup from before the store was restored is put back, beside a run and between two.

        It is of other rows, also where it stands at an epoch that the store has again.
        """
        with self.filled(harness) as world:
            restore = self._of_a_time_that_is_gone(world)
            for number in range(4 if restore and world.faulty.capabilities.fills else 0):
                for _ in range(number // 2):
                    world.view.publish([world.row(79 + number)])
                    world.sync()
                assert restore is not None
                restore()
                if number % 2:
                    world.start()
                world.view.publish([world.row(2, f"{number}")])
                raised_or_not(world.sync, MviewError)
                world.sync()
                world.check()

    def _of_a_time_that_is_gone(self, world: World) -> Callable[[], None] | None:
        """Restore the store, and go on; what puts back the target's backup of before."""
        cursors, copy = world.folder / "cursor", world.folder / "copy"
        shutil.copytree(cursors, copy)
        epoch, rows = world.view.epoch, dict(world.view.content)
        world.view.publish([world.row(77), world.row(1, "lost")])
        world.sync()
        restore = world.harness.backup(world.target())
        world.view = MemoryView(world.schema)
        world.view.epoch, world.view.content = epoch, rows
        shutil.rmtree(cursors)
        copy.rename(cursors)
        world.fence -= 1
        world.start()
        world.view.publish([world.row(78)])
        if restore is not None and world.faulty.capabilities.fills:
            world.sync()
            world.check()
        return restore

    def test_a_backup_is_put_back_before_a_step_is_committed(
        self, harness: FollowerHarness
    ) -> None:
        """What was staged is of other rows, also where as many commits are there again."""
        moments: Sequence[tuple[str, When]] = (("stage", "after"), ("commit", "before"))
        with self.filled(harness, 8) as world:
            for number, (call, when) in enumerate(moments):
                restore = harness.backup(world.target())
                if restore is None:
                    return
                for gone in (number, number + 4):
                    world.view.publish([], [(gone,)])
                    if gone == number:
                        world.sync()
                world.faulty.fail(call, when)
                raised(world.sync, FaultError)
                world.start()
                restore()
                raised_or_not(world.sync, RetryableError)
                world.sync()
                world.check()

    def test_a_new_sink_while_the_view_goes_on(self, harness: FollowerHarness) -> None:
        with self.world(harness) as world:
            world.view.part_rows = 3
            world.view.publish([world.row(n) for n in range(10)])
            numbers = iter(range(1000))

            def go_on() -> None:
                number = next(numbers)
                world.view.publish(
                    [world.row(100 + number), world.row(1, f"{number}")], [(number,)]
                )

            world.view.while_filled = go_on
            world.sync()
            world.check()

    def test_two_runners(self, harness: FollowerHarness) -> None:
        """An older one, paused before or in its commit, changes nothing when it wakes."""
        with self.filled(harness) as world:
            for call in ("stage", "commit"):
                world.view.publish([world.row(1, f"seen by both {call}"), world.row(30)])
                old, older = world.faulty, world.following
                fence = world.fence + 1

                held = call == "commit" and not old.capabilities.durable_prepare

                def take_over(old: Faulty = old, fence: int = fence, held: bool = held) -> None:
                    if held:
                        old.inner.close()  # what it has open would block: a server ends it, too
                    world.fence = fence
                    world.faulty, world.following = world.runner(fence)
                    world.view.publish([world.row(1, "by the newer"), world.row(40)], [(30,)])
                    if not held:
                        world.sync()

                old.at(call, "before", take_over)
                raised_or_not(older.advance, Exception)
                world.sync()
                world.check()
                raised_or_not(older.advance, Exception)
                world.view.publish([world.row(41)])
                raised_or_not(older.advance, Exception)
                world.sync()
                world.check()

    def test_an_older_runner_is_fenced(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            if not world.faulty.capabilities.marks:
                return
            world.start()
            world.view.publish([world.row(9)])
            world.sync()
            target = world.target(world.fence - 1)
            older = harness.open(target)
            step = Step("step-e", world.view.epoch + 1, world.view.epoch, 1)

            def write() -> None:
                older.create()
                older.commit(older.stage(step, delta_of(target, [(None, world.row(10))])))

            error = raised(write, MviewError)
            assert isinstance(error, FencedError), error
            older.close()
            world.check()
            # Who only reads, as `mview verify` does, has no token.
            reader = harness.open(world.target(0))
            assert reader.position() == world.faulty.position()
            if reader.capabilities.reads:
                assert normal(rows_of(reader.read())) == normal(world.view.content.values())
            reader.close()

    def test_a_table_of_somebody_else_is_left_alone(self, harness: FollowerHarness) -> None:
        with self.world(harness) as world:
            target = world.target()
            if not harness.foreign(target):
                return
            before = harness.read(target)
            world.view.publish([world.row(1)])
            raised(world.sync, TargetError)
            assert harness.read(target) == before

    def test_a_table_of_another_view_or_store_is_left_alone(self, harness: FollowerHarness) -> None:
        with self.filled(harness) as world:
            for owner in ("store/w/s", "other/v/s", "store/v/s2"):
                target = world.target(world.fence + 5, owner)
                other = harness.open(target)
                source = MemoryView(world.schema)
                source.publish([world.row(1)])
                cursors = CursorLog(world.folder / owner.replace("/", "-"))
                following = Following(other, target, source, cursors, lambda: None, lambda: 1)
                raised(following.advance, TargetError)
                other.close()
                world.check()

    def test_who_asks_makes_nothing(self, harness: FollowerHarness) -> None:
        with self.world(harness) as world:
            asking = harness.open(world.target(fence=0))
            if not isinstance(asking, Probing):
                return
            with closing(asking):
                asking.probe()
                assert harness.read(world.target()) is None
            world.view.publish([world.row(1)])
            world.sync()
            # It has no token, and a runner has.
            with closing(harness.open(world.target(fence=0))) as other:
                assert isinstance(other, Probing)
                other.probe()
            world.check()

    def test_a_mode_that_it_has_not_is_refused(self, harness: FollowerHarness) -> None:
        with self.world(harness) as world:
            modes = world.faulty.capabilities.modes
            assert modes
            target = world.target()
            for mode in ("upsert", "append", "changelog"):
                object.__setattr__(target.settings, "mode", mode)
                if mode in modes:
                    check_mode(target, world.faulty.capabilities)
                else:
                    raised(lambda: check_mode(target, world.faulty.capabilities), UserError)

    # --- mode append -----------------------------------------------------------------------------

    def test_append_adds_rows_and_changes_none(self, harness: FollowerHarness) -> None:
        """Once each, through faults; an update or a delete halts it, and nothing is written."""
        with self.world(harness) as world:
            is_other = world.target().settings.mode != "upsert"
            if is_other or "append" not in world.faulty.capabilities.modes:
                return
        numbers = iter(range(1000))
        calls: Sequence[tuple[str, When]] = (
            ("stage", "after"),
            ("commit", "before"),
            ("commit", "after"),
        )
        with self.world(harness, table="added", mode="append") as world:
            for _ in range(3):
                world.view.publish([world.row(next(numbers)) for _ in range(5)])
                world.view.publish([world.row(next(numbers))])
                assert world.sync() == 1
                world.check()
            for call, when in calls:
                for is_new in (False, True):
                    world.view.publish([world.row(next(numbers))])
                    world.faulty.fail(call, when)
                    raised(world.sync, FaultError)
                    if is_new:
                        world.start()
                    world.sync()
                    world.check()
            world.view.publish([world.row(next(numbers))])
            world.view.forget()
            world.sync()
            world.check()
            for put, delete in (([world.row(1, "changed")], []), ([], [(2,)])):
                world.view.publish([*put, world.row(next(numbers))], delete)
                assert "new ones only" in str(raised(world.sync, UserError))
                world.view.publish([world.row(1), world.row(2)])
                world.start()
                world.sync()
                world.check()

    # --- maintenance -----------------------------------------------------------------------------

    def test_maintenance_changes_no_row(self, harness: FollowerHarness) -> None:
        with self.filled(harness, 40) as world:
            before = _in_pieces(world)
            mark = world.faulty.position()
            done = _maintain(world)
            world.check()
            assert world.faulty.position() == mark
            after = harness.pieces(world.target())
            if before is not None and after is not None:
                assert after < before, (before, after)
                assert all(isinstance(number, int) and number for number in done.values())
                assert done
            world.view.publish([world.row(3, "after it")], [(4,)])
            assert world.sync() == 1
            world.check()
            world.start()
            world.view.publish([world.row(3, "later")], [(5,)])
            assert world.sync() == 1
            world.check()

    def test_maintenance_by_another_process_at_any_moment(self, harness: FollowerHarness) -> None:
        moments = self.of_today(("stage", "commit"), ("before", "after"))
        with self.filled(harness, 40) as world:
            for number, (call, when) in enumerate(moments):
                _in_pieces(world)
                world.faulty.at(call, when, lambda: _maintain(world))
                world.view.publish([world.row(200 + number), world.row(3, f"{number}")])
                raised_or_not(world.sync, RetryableError)
                assert world.faulty.hit[-1] == (call, when)
                world.sync()
                world.check()

    # --- all of it -------------------------------------------------------------------------------

    def test_maintenance_while_a_step_is_staged(self, harness: FollowerHarness) -> None:
        """What it was begun on may be gone by then: it is told as what passes, and staged again."""
        with self.filled(harness, 60) as world:
            history = {"history", "keep"} & type(world.target().settings).model_fields.keys()
            world.options |= dict.fromkeys(history, "0s")
            world.start()
            for number in range(3):
                _in_pieces(world)
                world.view.publish([world.row(number, f"staged {number}")], [(40 + number,)])
                if number == 2 and world.faulty.capabilities.fills:
                    world.forget()
                world.faulty.while_read = lambda: _maintain(world)
                raised_or_not(world.sync, RetryableError)
                world.sync()
                world.check()

    def test_a_random_walk(self, harness: FollowerHarness) -> None:
        """Changes, faults, new processes, restored backups, gone changes, in any order."""
        chance = random.Random(seed())
        with self.filled(harness) as world:
            restore: Callable[[], None] | None = None
            told = f"MVIEW_SEED={seed()}"
            for number in range(self.steps):
                put = [
                    world.row(chance.randrange(30), f"at {number}")
                    for _ in range(chance.randrange(5))
                ]
                world.view.publish(put, [(chance.randrange(30),)] if chance.random() < 0.5 else [])
                kind = chance.random()
                if kind < 0.5:
                    world.faulty.fail(chance.choice(CALLS), chance.choice(("before", "after")))
                elif kind < 0.6:
                    world.start()
                elif kind < 0.65:
                    restore = harness.backup(world.target())
                elif kind < 0.7 and restore is not None:
                    world.start()
                    restore()
                elif kind < 0.75 and (world.compares or world.faulty.capabilities.fills):
                    world.view.forget()
                    restore = None
                raised_or_not(world.sync, FaultError)
                if chance.random() < 0.2:
                    world.start()
                if chance.random() < 0.5:
                    world.sync_through(8)
                    try:
                        world.check()
                    except AssertionError as error:
                        raise AssertionError(f"{told}, step {number}") from error
            world.sync_through(8)
            world.check()


def seed() -> int:
    """What chance comes from: MVIEW_SEED, else the day."""
    return int(os.environ.get("MVIEW_SEED", str(dt.date.today().toordinal())))


def delta_of(
    target: FollowerTarget, changes: Sequence[tuple[Row | None, Row | None]]
) -> pa.RecordBatchReader:
    """A delta of rows before and after."""
    rows: list[tuple[str, Row]] = []
    for old, new in changes:
        if old is not None:
            rows.append(("-U" if new is not None else "-D", old))
        if new is not None:
            rows.append(("+U" if old is not None else "+I", new))
    return _kinds_and_rows(target, rows)


def _kinds_and_rows(
    target: FollowerTarget, rows: Sequence[tuple[str, Row]]
) -> pa.RecordBatchReader:
    schema = delta_schema(target)
    kinds = pa.array([kind for kind, _ in rows], pa.string())
    columns = [
        pa.array([row[place] for _, row in rows], field.type)
        for place, field in enumerate(rows_schema(target))
    ]
    batch = pa.record_batch([kinds, *columns], schema=schema)
    return pa.RecordBatchReader.from_batches(schema, [batch])


def raised(call: Callable[[], Any], kind: type[Exception]) -> Exception:
    """What a call raises; it has to."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def raised_or_not(call: Callable[[], Any], kind: type[Exception]) -> None:
    """A call that may raise so."""
    with suppress(kind):
        call()


def _try(call: Callable[[], Any]) -> None:
    raised_or_not(call, Exception)


def _refuses(world: World) -> bool:
    try:
        world.faulty.check()
    except UserError:
        return True
    return False
