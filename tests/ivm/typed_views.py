"""Random views over columns of all common types, with values that meet across types."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tests.ivm.world import NAN, Row, World, random_changes, table_schema

D = Decimal
_UTC = dt.timezone.utc
_LATE = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)
#: Per column, its type and its values: few, so that rows meet, and at the edges.
COLUMNS: Mapping[str, tuple[str, list[Any]]] = {
    "i": ("int", [0, 1, 2, -1, 2**31 - 1]),
    "b": ("bigint", [0, 1, 2, -1, 2**53 + 1]),
    "ti": ("tinyint", [0, 1, 2, -1, 127]),
    "n": ("decimal(12,2)", [D("0.00"), D("1.00"), D("1.50"), D("-1.00"), D("2.00")]),
    "m": ("decimal(10,4)", [D("0.0000"), D("1.0000"), D("1.5000"), D("-1.0000"), D("0.0001")]),
    "f": ("double", [0.0, -0.0, 1.0, 1.5, NAN, -1.0, 1e300]),
    "s": ("string", ["", "a", "A", "a ", "ä", "ab", "a%", "1"]),
    "t": ("string", ["", "a", "b", "ä", "0", "1"]),
    "d": ("date", [dt.date(2024, 1, 31), dt.date(2024, 2, 29), dt.date(1970, 1, 1)]),
    "e": ("date", [dt.date(2024, 1, 31), dt.date(2023, 12, 31)]),
    "at": ("timestamp_ntz", [dt.datetime(2024, 1, 31), _LATE, dt.datetime(1969, 12, 31, 23)]),
    "tz": ("timestamp", [dt.datetime(2024, 1, 31, tzinfo=_UTC), _LATE.replace(tzinfo=_UTC)]),
    "ok": ("boolean", [True, False]),
}
SCHEMAS = {
    name: table_schema("id bigint, " + ", ".join(f"{c} {k}" for c, (k, _) in COLUMNS.items()), "id")
    for name in ("o", "p")
}
EXACT, TEXTS, DAYS = ("i", "b", "ti", "n", "m"), ("s", "t"), ("d", "e", "at", "tz")
#: Columns that are compared with one another.
PAIRS = [
    *(("i", "b"), ("i", "i"), ("n", "m"), ("n", "i"), ("m", "ti"), ("b", "n"), ("ti", "b")),
    *(("d", "at"), ("at", "tz"), ("d", "e"), ("tz", "e"), ("s", "t"), ("s", "s"), ("ok", "ok")),
]
FORMATS = ("yyyy-MM", "yyyy-mm-dd", "E", "dd.MM.yy HH")


def row(chance: random.Random, key: int) -> Row:
    """A row of either table."""
    values = (None if chance.random() < 0.2 else chance.choice(v) for _, v in COLUMNS.values())
    return (key, *values)


def run_epochs(world: World, seed: int) -> None:
    """Six epochs of random changes; each is checked."""
    chance = random.Random(seed)
    rows: dict[str, dict[int, Row]] = {name: {} for name in SCHEMAS}
    for _ in range(6):
        changes = {
            name: random_changes(
                chance, there, range(10), chance.randrange(6), 0.75, lambda key: row(chance, key)
            )
            for name, there in rows.items()
        }
        world.epoch({name: moved for name, moved in changes.items() if moved})


class TypedViews:
    """Generates SQL."""

    def __init__(self, seed: int) -> None:
        self.chance, self.count = random.Random(seed), 0

    def view(self) -> str:
        """A query."""
        a, b = self.name("r"), self.name("r")
        of_a, of_b = (f"{self.chance.choice('op')} {alias}" for alias in (a, b))
        kinds: Sequence[Callable[[str, str, str, str], str]] = (
            self.plain, self.grouped, self.grouped, self.joined, self.joined, self.joined_groups,
            self.distinct, self.set_operation, self.windows, self.windows, self.within, self.there,
            self.value, self.top, self.nested,
        )  # fmt: skip
        return self.chance.choice(kinds)(a, of_a, b, of_b)

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    # --- expressions -----------------------------------------------------------------------------

    def column(self, alias: str, names: Sequence[str]) -> str:
        return f"{alias}.{self.chance.choice(names)}"

    def number(self, a: str, among: Sequence[str] = (*EXACT, "f")) -> str:
        x, y = self.column(a, among), self.column(a, ("i", "ti", "n", "m"))
        day, other = self.column(a, DAYS), self.column(a, DAYS)
        text = self.column(a, TEXTS)
        made = [
            *(f"coalesce({x}, 0)", f"({x} * 2)", f"({y} - 1)", f"round({y}, 1)", f"nullif({y}, 1)"),
            *(f"abs({self.column(a, ('ti', 'n', 'm'))})", f"length({text})", f"({a}.ti % 2)"),
            *(
                f"datediff({day}, {other})",
                f"month({day})",
                f"timestampdiff(month, {day}, {other})",
            ),
            *(f"(case when {a}.ok then {y} else 3 end)", f"greatest({y}, 1)", f"instr({a}.s, 'a')"),
            *(f"floor({self.column(a, ('n', 'm'))})", f"({y} / 3)", f"try_cast({text} as int)"),
        ]
        return self.chance.choice([x] * 4 + made)

    def text(self, a: str) -> str:
        x, day = self.column(a, TEXTS), self.column(a, DAYS)
        made = [
            *(f"upper({x})", f"trim({x})", f"coalesce({x}, 'z')", f"substring({x}, -1)"),
            *(f"concat({x}, '-', {self.column(a, (*EXACT, *DAYS))})", f"replace({x}, 'a', 'b')"),
            *(f"date_format({day}, '{self.chance.choice(FORMATS)}')", f"nullif({x}, '')"),
            *(f"({x} || {self.column(a, ('i', 'ok', 'd'))})", f"lpad({a}.ti, 3, '0')"),
            *(f"cast({self.column(a, (*EXACT, *DAYS))} as string)", f"dayname({day})"),
        ]
        return self.chance.choice([x] * 4 + made)

    def day(self, a: str) -> str:
        x = self.column(a, DAYS)
        made = [
            *(f"date_trunc('month', {self.column(a, ('at', 'tz', 'd'))})", f"last_day({x})"),
            *(f"to_date({self.column(a, ('at', 'tz'))})", f"({self.column(a, ('d', 'e'))} + 1)"),
            *(f"date_add({x}, {a}.ti)", f"trunc({x}, 'MM')"),
            f"coalesce({a}.d, {self.column(a, ('at', 'e', 'tz'))})",
        ]
        return self.chance.choice([x] * 3 + made)

    def any(self, a: str) -> str:
        kinds = (self.number, self.number, self.text, self.day)
        return self.chance.choice(kinds)(a) if self.chance.random() < 0.9 else f"{a}.ok"

    def key(self, a: str) -> str:
        """Any but a double."""
        while True:
            made = self.any(a)
            if f"{a}.f" not in made and " / " not in made:
                return made

    def test(self, a: str) -> str:
        chance = self.chance
        operator, bound = (
            chance.choice([">", "<", "=", "<=", "<>"]),
            chance.choice(["0", "1", "1.5"]),
        )
        patterns = ["= 'a'", "< 'a'", "like 'a%'", "like '%a%'"]
        made: Sequence[Callable[[], str]] = (
            lambda: f"{self.number(a)} {operator} {self.number(a)}",
            lambda: f"{self.number(a)} {operator} {bound}",
            lambda: f"{self.text(a)} {chance.choice(patterns)}",
            lambda: f"{self.day(a)} {operator} {self.day(a)}",
            lambda: f"{self.any(a)} is {chance.choice(['', 'not '])}null",
            lambda: f"{a}.ok",
            lambda: f"not ({self.test(a)})",
            lambda: f"({self.test(a)} or {self.test(a)})",
            lambda: f"{self.number(a, EXACT)} in (0, 1, {chance.choice(['2', 'null', '1.5'])})",
            lambda: f"{self.day(a)} between '2024-01-31' and '2024-02-29'",
            lambda: f"{a}.s like any ('a%', '%b')",
            lambda: f"{a}.i <=> {a}.b",
        )
        return chance.choice(made)()

    def where(self, a: str) -> str:
        return f" where {self.test(a)}" if self.chance.random() < 0.5 else ""

    def items(self, aliases: Sequence[str]) -> str:
        chosen = [self.chance.choice(aliases) for _ in range(self.chance.randint(1, 3))]
        return ", ".join(f"{self.any(alias)} as {self.name('c')}" for alias in chosen)

    def aggregate(self, a: str) -> str:
        chance, extreme = self.chance, self.chance.choice(["min", "max"])
        truth = chance.choice(["bool_or", "bool_and", "every", "some", "count_if"])
        made = chance.choice(
            [
                *("count(*)", f"count({self.any(a)})", f"sum({self.number(a, EXACT)})"),
                *(f"avg({self.column(a, ('i', 'ti', 'n', 'm'))})", f"{extreme}({self.any(a)})"),
                *(f"count(distinct {self.key(a)})", f"{truth}({self.test(a)})"),
                f"max_by({self.text(a)}, {self.number(a, EXACT)})",
                f"{chance.choice(['bit_or', 'bit_and', 'bit_xor'])}({a}.b)",
            ]
        )
        filtered = f" filter (where {self.test(a)})" if chance.random() < 0.2 else ""
        more = [
            f"sort_array(collect_set({self.column(a, ('s', 'i', 'd'))}))",
            f"sum({a}.n) / count(*)",
        ]
        return made + filtered if chance.random() < 0.85 else chance.choice(more)

    def window(self, a: str) -> str:
        chance, value = self.chance, self.any(a)
        part = f"partition by {self.key(a)} " if chance.random() < 0.8 else ""
        if chance.random() < 0.3:
            call = chance.choice(
                [f"sum({self.number(a, EXACT)})", f"count({value})", f"max({value})"]
            )
            frame = chance.choice(
                [
                    f"{a}.i desc range between 1 preceding and current row",
                    f"{a}.d range between interval 30 days preceding and current row",
                    f"{a}.at nulls last range between interval 1 day preceding and interval 2 days "
                    "following",
                    f"{a}.b, {a}.id rows between 1 preceding and 1 following",
                    f"{a}.tz range between unbounded preceding and current row",
                ]
            )  # fmt: skip
            return f"{call} over ({part}order by {frame})"
        by = self.column(a, (*EXACT, *TEXTS, *DAYS, "ok"))
        call = chance.choice(
            [
                *("row_number()", "rank()", "dense_rank()", f"sum({self.number(a, EXACT)})"),
                *(f"lag({value})", f"lead({value}, 2)", f"first_value({value})"),
                *(f"last_value({value}) ignore nulls", f"nth_value({value}, 2)"),
            ]
        )
        way = chance.choice(["", " desc", " nulls last"])
        return f"{call} over ({part}order by {by}{way}, {a}.id)"

    def on(self, a: str, b: str) -> str:
        left, right = self.chance.choice([*PAIRS, ("f", "f"), ("f", "i")])
        made = f"{a}.{left} {self.chance.choice(['=', '=', '=', '<=>'])} {b}.{right}"
        if self.chance.random() < 0.3:
            made += f" and {a}.ok = {b}.ok"
        if self.chance.random() < 0.2:
            made += f" and {self.number(a)} < {self.number(b)}"
        return made

    # --- queries: of two tables with their aliases -----------------------------------------------

    def plain(self, a: str, of_a: str, b: str, of_b: str) -> str:
        return f"select {a}.id, {self.items([a])} from {of_a}{self.where(a)}"

    def grouped(self, a: str, of_a: str, b: str, of_b: str) -> str:
        keys = [self.key(a) for _ in range(self.chance.choice([0, 1, 1, 2]))]
        calls = [self.aggregate(a) for _ in range(self.chance.randint(1, 3))]
        items = ", ".join(f"{item} as {self.name('c')}" for item in (*keys, *calls))
        tail = f" group by {', '.join(keys)}" if keys else ""
        if keys and self.chance.random() < 0.3:
            tail += f" having {self.chance.choice(['count(*) > 1', f'max({a}.n) > 0'])}"
        return f"select {items} from {of_a}{self.where(a)}{tail}"

    def joined(self, a: str, of_a: str, b: str, of_b: str) -> str:
        kind = self.chance.choice(["", "left ", "right ", "full ", "left semi ", "left anti "])
        shown = [a] if kind in ("left semi ", "left anti ") else [a, b]
        ids = ", ".join(f"{alias}.id as {self.name('c')}" for alias in shown)
        source = f"{of_a} {kind}join {of_b} on {self.on(a, b)}"
        return f"select {ids}, {self.items(shown)} from {source}{self.where(a)}"

    def joined_groups(self, a: str, of_a: str, b: str, of_b: str) -> str:
        key, kind = self.key(a), self.chance.choice(["", "left "])
        items = (key, self.aggregate(a), self.aggregate(self.chance.choice([a, b])))
        shown = ", ".join(f"{item} as {self.name('c')}" for item in items)
        source = f"{of_a} {kind}join {of_b} on {self.on(a, b)}"
        return f"select {shown} from {source}{self.where(a)} group by {key}"

    def distinct(self, a: str, of_a: str, b: str, of_b: str) -> str:
        return f"select distinct {self.key(a)} as x, {self.key(a)} as y from {of_a}{self.where(a)}"

    def set_operation(self, a: str, of_a: str, b: str, of_b: str) -> str:
        left, right = self.chance.choice(PAIRS)
        kind = self.chance.choice(["union", "intersect", "except"]) + self.chance.choice(
            ["", " all"]
        )
        side = f"select {a}.{left} as x, {a}.ok as y from {of_a}{self.where(a)}"
        return f"{side} {kind} select {b}.{right}, {b}.ok from {of_b}{self.where(b)}"

    def windows(self, a: str, of_a: str, b: str, of_b: str) -> str:
        calls = f"{self.window(a)} as w, {self.window(a)} as v"
        return f"select {a}.id, {calls} from {of_a}{self.where(a)}"

    def within(self, a: str, of_a: str, b: str, of_b: str) -> str:
        left, right = self.chance.choice(PAIRS)
        inner = f"select {b}.{right} from {of_b}{self.where(b)}"
        how = self.chance.choice(["in", "not in"])
        return f"select {a}.id, {self.items([a])} from {of_a} where {a}.{left} {how} ({inner})"

    def there(self, a: str, of_a: str, b: str, of_b: str) -> str:
        how = self.chance.choice(["", "not "])
        inner = f"select 1 from {of_b} where {self.on(a, b)}"
        return f"select {a}.id from {of_a} where {how}exists ({inner})"

    def value(self, a: str, of_a: str, b: str, of_b: str) -> str:
        name = self.chance.choice(["i", "s", "d"])
        inner = f"select {self.aggregate(b)} from {of_b} where {a}.{name} = {b}.{name}"
        return f"select {a}.id, ({inner}) as z from {of_a}"

    def top(self, a: str, of_a: str, b: str, of_b: str) -> str:
        by = self.column(a, (*EXACT, *TEXTS, *DAYS))
        way, most = self.chance.choice(["", " desc", " nulls last"]), self.chance.choice([1, 3])
        return f"select {a}.id, {a}.s from {of_a} order by {by}{way}, {a}.id limit {most}"

    def nested(self, a: str, of_a: str, b: str, of_b: str) -> str:
        key = self.key(a)
        inner = f"select {key} as k, max({a}.i) as i from {of_a} group by {key}"
        return (
            f"select q.k as x, count(*) as c, max({b}.s) as s from ({inner}) q "
            f"left join {of_b} on q.i = {b}.i group by q.k"
        )
