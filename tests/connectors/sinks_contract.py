"""What every sink must do, whatever it writes to: one suite, run for each sink by a subclass."""

from __future__ import annotations

import datetime as dt
import random
from abc import ABC, abstractmethod
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mview.connector import WEIGHT, Sink
from mview.errors import CorruptionError, TargetError, UserError
from mview.schema import Column, TableSchema, parse_type
from tests.seeds import seeds, some_today

Row = tuple[Any, ...]

COLUMNS = (
    ("k", "bigint"),
    ("g", "string"),
    ("amount", "decimal(12,2)"),
    ("ratio", "double"),
    ("day", "date"),
    ("at", "timestamp"),
    ("wall", "timestamp_ntz"),
    ("raw", "binary"),
    ("small", "tinyint"),
    ("flag", "boolean"),
)


def view_schema(key: tuple[str, ...], names: tuple[str, ...] | None = None) -> TableSchema:
    columns = [Column(n, parse_type(t)) for n, t in COLUMNS if names is None or n in names]
    return TableSchema(tuple(columns), key)


class SinkHarness(ABC):
    """One target of the sink under test, and ways to look at it that are not the sink's."""

    @abstractmethod
    def open(self, schema: TableSchema, comment: str | None = None) -> Sink:
        """A new sink object on the target, as a new process would make it."""

    @abstractmethod
    def read(self) -> list[list[Row]]:
        """The visible content as each foreign reader sees it; [] where there is no target."""

    @abstractmethod
    def write_foreign(self, rows: pa.Table) -> None:
        """Write to the target as somebody else would."""


def normal(value: Any) -> Any:
    """NaN and -0.0 as values that compare as SQL groups them."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def rows_of(table: pa.Table, names: tuple[str, ...]) -> list[Row]:
    columns = [table[name].to_pylist() for name in names]
    return [tuple(map(normal, row)) for row in zip(*columns, strict=True)]


def delta_of(schema: TableSchema, weights: dict[Row, int]) -> pa.Table:
    rows = [dict(zip(schema.names, row, strict=True)) for row in weights]
    rows = [{n: float("nan") if v == "NaN" else v for n, v in row.items()} for row in rows]
    table = pa.Table.from_pylist(rows, schema=schema.arrow)
    return table.append_column(WEIGHT, pa.array(list(weights.values()), pa.int64()))


class Driver:
    """Plays the runtime against a sink: keeps what is published, and the model of the content."""

    def __init__(self, harness: SinkHarness, schema: TableSchema) -> None:
        self.harness, self.schema = harness, schema
        self.sink = harness.open(schema)
        self.published: dict[str, Any] | None = None
        self.epoch = 0
        self.model: Counter[Row] = Counter()
        #: What was published before, and the content then.
        self.before: tuple[dict[str, Any], Counter[Row]] | None = None

    def stage(self, weights: dict[Row, int]) -> dict[str, Any]:
        return self.sink.stage(self.epoch + 1, delta_of(self.schema, weights))

    def publish(self, facts: dict[str, Any], weights: dict[Row, int]) -> None:
        if self.published is not None:
            self.before = self.published, Counter(self.model)
        self.published, self.epoch = facts, self.epoch + 1
        for row, weight in weights.items():
            self.model[row] += weight
            if not self.model[row]:
                del self.model[row]

    def apply(self, weights: dict[Row, int]) -> None:
        self.publish(self.sink.commit(self.stage(weights)), weights)

    def restart(self) -> None:
        self.sink = self.harness.open(self.schema)

    def check(self) -> None:
        expected = Counter(self.model)
        for content in self.harness.read():
            assert Counter(content) == expected
        if self.published is not None:
            ours = self.sink.rows(self.published)
            assert ours.schema.types == self.schema.arrow.types
            assert Counter(rows_of(ours, self.schema.names)) == expected
            if self.before is not None:
                old, content = self.before
                new, gone = self.sink.apart(self.published, old)
                both = Counter(rows_of(new, self.schema.names))
                both.subtract(rows_of(gone, self.schema.names))
                expected.subtract(content)
                assert {r: n for r, n in both.items() if n} == {
                    r: n for r, n in expected.items() if n
                }


class SinkContract:
    """Subclass it as `Test…` and give a fixture `harness`."""

    KEYED = view_schema(("k", "g"))
    KEYLESS = view_schema((), ("k", "g", "ratio", "raw"))
    SMALL = view_schema(("k",), ("k", "g"))

    def test_a_token_committed_twice_is_the_same_as_once(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1, (2, "b"): 1})
        weights = {(1, "a"): -1, (1, "c"): 1}
        token = driver.stage(weights)
        first = driver.sink.commit(token)
        assert driver.sink.commit(token) == first
        driver.restart()
        assert driver.sink.commit(token) == first
        driver.publish(first, weights)
        driver.check()

    def test_what_is_staged_is_not_visible(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.stage({(1, "a"): 1})
        driver.check()
        driver.apply({(1, "a"): 1})
        driver.stage({(1, "a"): -1, (2, "b"): 1})
        driver.check()

    @pytest.mark.parametrize("first_build", [True, False])
    @pytest.mark.parametrize("crash", ["staged", "committed"])
    @pytest.mark.parametrize("forward", [True, False])
    def test_a_crash_between_any_two_calls(
        self, harness: SinkHarness, first_build: bool, crash: str, forward: bool
    ) -> None:
        driver = Driver(harness, self.SMALL)
        if not first_build:
            driver.apply({(1, "a"): 1, (2, "b"): 1})
        weights = {(9, "z"): 1} if first_build else {(1, "a"): -1, (9, "z"): 1}
        token = driver.stage(weights)
        if crash == "committed":
            driver.sink.commit(token)
        driver.restart()
        if forward:
            driver.publish(driver.sink.commit(token), weights)
        driver.sink.rollback(None if forward else token, driver.published)
        driver.check()
        # The same epoch number with other content must not be taken for the one rolled back.
        weights = {(9, "z"): -1, (4, "d"): 1} if forward else {(3, "c"): 1}
        driver.apply(weights)
        driver.check()

    def test_roll_back_without_the_token(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1})
        driver.sink.commit(driver.stage({(2, "b"): 1}))
        driver.restart()
        driver.sink.rollback(None, driver.published)
        driver.check()
        driver.sink.rollback(None, driver.published)
        driver.check()

    @pytest.mark.parametrize("moment", ["before stage", "before commit", "after commit"])
    def test_a_foreign_write_fences(self, harness: SinkHarness, moment: str) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1})
        foreign = pa.table({"k": [7], "g": ["x"]}, schema=self.SMALL.arrow)
        if moment == "before stage":
            harness.write_foreign(foreign)
            with pytest.raises(TargetError):
                driver.stage({(2, "b"): 1})
        else:
            token = driver.stage({(2, "b"): 1})
            if moment == "after commit":
                facts = driver.sink.commit(token)
            harness.write_foreign(foreign)
            for _ in range(2):
                if moment == "after commit":
                    assert driver.sink.commit(token) == facts
                else:
                    with pytest.raises(TargetError):
                        driver.sink.commit(token)
                driver.restart()
        with pytest.raises(TargetError):
            driver.sink.rollback(None, driver.published)
        assert driver.published is not None
        assert driver.sink.repair(driver.published)
        driver.restart()
        driver.sink.rollback(None, driver.published)
        driver.check()
        driver.apply({(3, "c"): 1})
        driver.check()

    def test_a_foreign_write_halts_an_epoch_without_a_delta(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1})
        token = driver.stage({})
        harness.write_foreign(pa.table({"k": [7], "g": ["x"]}, schema=self.SMALL.arrow))
        driver.restart()
        with pytest.raises(TargetError):
            driver.sink.commit(token)

    def test_an_empty_delta_carries_the_facts_on(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({})
        driver.check()
        driver.apply({(1, "a"): 1})
        driver.apply({})
        driver.restart()
        driver.apply({(1, "a"): -1})
        driver.apply({})
        driver.check()

    def test_a_key_that_is_there_already(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1})
        with pytest.raises(UserError, match=r"(?s)two rows have one key \(k\).*k=1"):
            driver.stage({(1, "b"): 1})
        with pytest.raises(UserError, match="two rows have one key"):
            driver.stage({(2, "b"): 1, (2, "c"): 1})
        driver.apply({(2, "b"): 1})
        driver.check()

    def test_a_row_that_is_not_there(self, harness: SinkHarness) -> None:
        for schema in (self.SMALL, view_schema((), ("k", "g"))):
            driver = Driver(harness, schema)
            driver.sink.rollback(None, None)
            driver.apply({(1, "a"): 1})
            with pytest.raises(CorruptionError, match="to be removed is not in its table"):
                driver.stage({(3, "a"): -1})
            driver.sink.drop()

    def test_full_content_then_deltas(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        for rows in ({(1, "a"): 1, (2, "b"): 1}, {(2, "c"): 1, (3, None): 1}):
            folder = driver.sink.staging(driver.epoch + 1)
            halves = [list(rows)[:1], list(rows)[1:], []]
            files: list[Path] = []
            for number, half in enumerate(halves):
                table = delta_of(self.SMALL, dict.fromkeys(half, 1)).drop_columns([WEIGHT])
                files.append(folder / f"part-{number}.parquet")
                pq.write_table(table, files[-1])
            token = driver.sink.stage_full(driver.epoch + 1, files)
            driver.check()
            weights = dict(rows) | dict.fromkeys(driver.model, -1)
            driver.publish(driver.sink.commit(token), weights)
            driver.check()
            driver.apply({next(iter(rows)): -1, (5, "e"): 1})
            driver.check()
            driver.apply({(5, "e"): -1})

    def test_full_content_rolled_back(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1})
        file = driver.sink.staging(2) / "x.parquet"
        pq.write_table(pa.table({"k": [5], "g": ["e"]}), file)
        driver.sink.commit(driver.sink.stage_full(2, [file]))
        driver.restart()
        driver.sink.rollback(None, driver.published)
        driver.check()

    def test_equal_rows_are_counted(self, harness: SinkHarness) -> None:
        driver = Driver(harness, view_schema((), ("k", "g")))
        driver.apply({(1, "a"): 3, (None, None): 2})
        driver.apply({(1, "a"): 2, (2, "b"): 1})
        driver.check()
        driver.apply({(1, "a"): -4, (None, None): -1})
        driver.check()

    def test_values_that_are_easily_lost(self, harness: SinkHarness) -> None:
        zone = dt.timezone.utc
        first = (
            None, "it's \"q\" \n\\ ü 𝄞", Decimal("-9999999999.99"), "NaN", dt.date(1, 1, 1),
            dt.datetime(1900, 1, 1, 0, 0, 0, 1, zone), dt.datetime(9999, 12, 31, 23, 59, 59),
            b"\x00\xff'", -128, None,
        )  # fmt: skip
        second = (2**63 - 1, "", Decimal("0.01"), float("inf"), None, None, None, b"", 127, True)
        driver = Driver(harness, self.KEYED)
        driver.apply({first: 1, second: 1})
        driver.check()
        changed = (*first[:3], 0.5, *first[4:])
        driver.apply({first: -1, changed: 1, second: -1})
        driver.check()

    @pytest.mark.parametrize("kind", ["large_string", "string_view", "dictionary", "uint64"])
    def test_arrow_types_that_mean_the_same(self, harness: SinkHarness, kind: str) -> None:
        driver = Driver(harness, self.SMALL)
        delta = delta_of(self.SMALL, {(1, "a"): 1, (2, None): 1})
        name, column = ("k", delta["k"]) if kind == "uint64" else ("g", delta["g"])
        column = (
            pa.chunked_array([column.combine_chunks().dictionary_encode()])
            if kind == "dictionary"
            else column.cast(getattr(pa, kind)())
        )
        place = delta.column_names.index(name)
        token = driver.sink.stage(1, delta.set_column(place, name, column))
        driver.publish(driver.sink.commit(token), {(1, "a"): 1, (2, None): 1})
        driver.apply({(1, "a"): -1, (1, "b"): 1})
        driver.check()

    @pytest.mark.parametrize("seed", some_today(seeds(3), 3))
    @pytest.mark.parametrize("keyed", [True, False])
    def test_random_deltas_equal_a_counter(
        self, harness: SinkHarness, keyed: bool, seed: int
    ) -> None:
        random_epochs(Driver(harness, self.KEYED if keyed else self.KEYLESS), seed, 25)

    def test_drop(self, harness: SinkHarness) -> None:
        driver = Driver(harness, self.SMALL)
        driver.apply({(1, "a"): 1})
        driver.sink.drop()
        assert harness.read() == []
        driver = Driver(harness, self.KEYLESS)
        driver.apply({(1, "a", None, b"x"): 2})
        driver.check()


def random_epochs(driver: Driver, seed: int, epochs: int) -> None:
    """Random deltas that cancel often, with restarts and roll-backs in between."""
    rng = random.Random(seed)
    for _ in range(epochs):
        weights = random_delta(rng, driver)
        fate = rng.random()
        if fate < 0.15:
            token = driver.stage(weights)
            if rng.random() < 0.5:
                driver.sink.commit(token)
            driver.restart()
            driver.sink.rollback(token, driver.published)
        else:
            driver.apply(weights)
        if fate > 0.9:
            driver.restart()
        driver.check()


def random_delta(rng: random.Random, driver: Driver) -> dict[Row, int]:
    names = driver.schema.names
    weights: Counter[Row] = Counter()
    present = list(driver.model)
    for row in rng.sample(present, min(len(present), rng.randrange(8))):
        weights[row] -= 1 if driver.schema.key else rng.randint(1, driver.model[row])
    taken = {row[:2] for row in driver.model if not weights[row]}
    for _ in range(rng.randrange(12)):
        row = tuple(normal(_random_value(rng, name)) for name in names)
        if driver.schema.key:
            if row[:2] in taken:
                continue
            taken.add(row[:2])
        weights[row] += 1
    return {row: weight for row, weight in weights.items() if weight}


def _random_value(rng: random.Random, name: str) -> Any:
    if rng.random() < 0.1:
        return None
    number = rng.randrange(6)
    return {
        "k": number * 10 ** rng.randrange(4),
        "g": "ab'c"[:number],
        "amount": Decimal(number) / 4,
        "ratio": rng.choice([float("nan"), -0.0, 0.0, 1.5]),
        "day": dt.date(2020, 1, 1) + dt.timedelta(number),
        "at": dt.datetime(2020, 1, 1, number, tzinfo=dt.timezone.utc),
        "wall": dt.datetime(2020, 1, 1, number, 30),
        "raw": bytes([number, 0]),
        "small": number - 3,
        "flag": number % 2 == 0,
    }[name]
