"""Random views over three small tables: a grammar of everything that is maintained."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.ivm.world import Row, World, table_schema
from tests.relations import rel

SCHEMAS = {
    "t": table_schema("id bigint, k bigint, g bigint not null, v bigint", "id"),
    "u": table_schema("id bigint, k bigint, g bigint not null, w bigint", "id"),
    "s": table_schema("a bigint, b bigint, x bigint, y bigint", "a b"),
}

#: What an epoch does: (table, key, the rest of the row or None to delete).
Op = tuple[str, Row, Row | None]


@dataclass(frozen=True)
class Case:
    """A view and what happens to its tables."""

    sql: str
    epochs: tuple[tuple[Op, ...], ...]


class Views:
    """Generates SQL; all columns are bigint, so that engines agree."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def query(self, depth: int) -> tuple[str, list[str]]:
        """A query and its column names."""
        kinds: list[Callable[[int], tuple[str, list[str]]]] = [
            self.select,
            self.joined,
            self.grouped,
        ]
        if depth > 0:
            kinds += [
                self.joined, self.grouped, self.kept, self.kept, self.first, self.distinct,
                self.set_operation, self.windowed, self.top, self.with_cte, self.subquery_filter,
                self.scalar, self.using, self.staged, self.rows_of_all,
                self.beside_one_row, self.beside_one_row,
            ]  # fmt: skip
        return self.rng.choice(kinds)(depth)

    def source(self, depth: int) -> tuple[str, str, list[str]]:
        """An item of FROM: (sql, alias, columns)."""
        alias = self.name("r")
        if depth > 0 and self.rng.random() < 0.45:
            sql, columns = self.query(depth - 1)
            return f"({sql}) {alias}", alias, columns
        table = self.rng.choice(list(SCHEMAS))
        return f"{table} {alias}", alias, list(SCHEMAS[table].names)

    def predicate(self, columns: list[str]) -> str:
        rng, one = self.rng, self.rng.choice(columns)
        return rng.choice(
            [
                f"{one} > {rng.randrange(3)}",
                f"{one} = {rng.randrange(4)}",
                f"{one} is null",
                f"{one} is not null",
                f"coalesce({one}, 1) <= {rng.choice(columns)}",
                f"({one} in (0, 2) or {rng.choice(columns)} = 1)",
            ]
        )

    def where(self, columns: list[str]) -> str:
        return f" where {self.predicate(columns)}" if self.rng.random() < 0.4 else ""

    def items(self, columns: list[str], least: int = 1) -> tuple[str, list[str]]:
        """A select list out of qualified columns."""
        rng, names, parts = self.rng, [], []
        for _ in range(rng.randint(least, 3)):
            one, name = rng.choice(columns), self.name("c")
            body = one if rng.random() < 0.8 else rng.choice([f"coalesce({one}, 9)", f"{one} + 1"])
            parts.append(f"{body} as {name}")
            names.append(name)
        return ", ".join(parts), names

    def select(self, depth: int) -> tuple[str, list[str]]:
        source, alias, columns = self.source(depth)
        qualified = [f"{alias}.{c}" for c in columns]
        items, names = self.items(qualified)
        return f"select {items} from {source}{self.where(qualified)}", names

    def from_joins(self, depth: int) -> tuple[str, list[str]]:
        """FROM with one or two joins: (sql, qualified columns)."""
        rng = self.rng
        text, alias, columns = self.source(depth - 1)
        qualified = [f"{alias}.{c}" for c in columns]
        for _ in range(rng.choice([1, 1, 2])):
            other, name, more = self.source(depth - 1)
            theirs = [f"{name}.{c}" for c in more]
            kind = rng.choice(["join"] * 3 + ["left join"] * 3 + ["right join", "full join"])
            if rng.random() < 0.15:
                kind = rng.choice(["left semi join", "left anti join"])
            on = f"{rng.choice(qualified)} = {rng.choice(theirs)}"
            if rng.random() < 0.1:
                on = f"{rng.choice(qualified)} + 1 = coalesce({rng.choice(theirs)}, 2)"
            if rng.random() < 0.2:
                on += f" and {rng.choice(qualified)} = {rng.choice(theirs)}"
            if rng.random() < 0.15:
                on = on.replace(" = ", " <=> ", 1)
            if rng.random() < 0.2 and kind != "full join":
                on += f" and {rng.choice(qualified)} < {rng.choice(theirs)}"
            text += f" {kind} {other} on {on}"
            if "semi" not in kind and "anti" not in kind:
                qualified += theirs
        return text, qualified

    def joined(self, depth: int) -> tuple[str, list[str]]:
        text, qualified = self.from_joins(depth)
        items, names = self.items(qualified, 2)
        return f"select {items} from {text}{self.where(qualified)}", names

    def grouped(self, depth: int) -> tuple[str, list[str]]:
        rng = self.rng
        if rng.random() < 0.5:
            text, qualified = self.from_joins(depth)
        else:
            source, alias, columns = self.source(depth)
            text, qualified = source, [f"{alias}.{c}" for c in columns]
        keys = rng.sample(qualified, min(len(qualified), rng.choice([0, 1, 1, 1, 2])))
        where, parts, names = self.where(qualified), [], []
        group = []
        for key in keys:
            name = self.name("c")
            body = f"{key} % 2" if rng.random() < 0.2 else key
            group.append(body)
            parts.append(f"{body} as {name}")
            names.append(name)
        for _ in range(rng.randint(1, 2)):
            name = self.name("c")
            parts.append(f"{self.aggregate(qualified)} as {name}")
            names.append(name)
        by = f" group by {', '.join(group)}" if group else ""
        having = f" having count(*) > {rng.randrange(2)}" if rng.random() < 0.25 else ""
        if not keys and rng.random() < 0.5:
            # Values of all rows alone: no HAVING, DISTINCT as often as not.
            of = ", ".join(rng.sample(qualified, min(len(qualified), rng.randint(1, 2))))
            parts[0] = f"count(distinct {of}) as {names[0]}"
            if rng.random() < 0.3:
                parts[0] = f"nvl2(max({rng.choice(qualified)}), count(*), -1) as {names[0]}"
            elif "," not in of and rng.random() < 0.3:
                test = f"{rng.choice(qualified)} > {rng.randrange(2)}"
                parts[0] = f"count(distinct {of}) filter (where {test}) as {names[0]}"
            having = ""
        elif keys and rng.random() < 0.15:
            one, name = rng.choice([*group, "count(*)"]), self.name("c")
            parts.append(f"cast(sum({one}) over () as bigint) + count(*) over () as {name}")
            names.append(name)
        return f"select {', '.join(parts)} from {text}{where}{by}{having}", names

    def kept(self, depth: int) -> tuple[str, list[str]]:
        """Aggregates with a state table, over joins; HAVING, also against a value of all rows."""
        rng = self.rng
        text, qualified = self.from_joins(depth)
        key = rng.choice([*qualified, f"{rng.choice(qualified)} % 2", ""])
        names = [self.name("c") for _ in range(3)]
        one = rng.choice(qualified)
        calls = ["count(*)", f"count({one})", f"cast(sum({one}) as bigint)"]
        calls += [f"min({one})", f"max({one})"] * rng.randrange(2)
        if rng.random() < 0.3:
            test = f"{rng.choice(qualified)} > {rng.randrange(2)}"
            calls = [f"count(*) filter (where {test})",
                f"cast(sum({one}) filter (where {test}) as bigint)",
                f"max({one}) filter (where {test})", f"cast(bool_or({test}) as bigint)",
                f"cast(bool_and({test}) as bigint)"]  # fmt: skip
        chosen = rng.choices(calls, k=2)
        parts = [f"{key} as {names[0]}"] if key else []
        parts += [f"{call} as {name}" for call, name in zip(chosen, names[1:], strict=True)]
        by = f" group by {key}" if key else ""
        table, alias = rng.choice(list(SCHEMAS)), self.name("r")
        value = f"{rng.choice(['max', 'count', 'min'])}({alias}.{rng.choice(SCHEMAS[table].names)})"
        most = rng.choice(["0", "1", f"(select {value} from {table} {alias})"])
        having = (
            f" having {chosen[0]} {rng.choice(['>', '<='])} {most}" if rng.random() < 0.6 else ""
        )
        if key and " " not in key and rng.random() < 0.15:
            other = rng.choice([one for one in qualified if one != key])
            # Over no rows DuckDB gives a grand total, and Spark gives nothing.
            by = f" group by {rng.choice(['rollup', 'cube'])}({key}, {other})"
            having = " having count(*) > 0"
        sql = f"select {', '.join(parts)} from {text}{self.where(qualified)}{by}{having}"
        return sql, names if key else names[1:]

    def first(self, depth: int) -> tuple[str, list[str]]:
        """The first rows, in an order without ties."""
        rng, names = self.rng, [self.name("c"), self.name("c")]
        table, alias = rng.choice(["t", "u"]), self.name("r")
        limit = f"limit {rng.randint(1, 4)}" + (" offset 1" if rng.random() < 0.2 else "")
        chance = rng.random()
        if chance < 0.3:
            # Rows without a key: those that tie are equal.
            body = f"select k as {names[0]}, g as {names[1]} from {table} {alias}"
            if rng.random() < 0.5:
                kind = rng.choice(["union all", "union", "except"])
                body += f" {kind} select x, y from s {self.name('r')}"
            order = f"{names[0]} desc nulls last, {names[1]} nulls first"
        elif chance < 0.6:
            body = f"select k as {names[0]}, count(*) as {names[1]} from {table} {alias} group by k"
            order = f"{names[1]} desc, {names[0]} nulls last"
        else:
            last = rng.choice(SCHEMAS[table].names)
            body = f"select id as {names[0]}, {last} as {names[1]} from {table} {alias}"
            body += self.where([f"{alias}.{name}" for name in SCHEMAS[table].names])
            order = f"{rng.choice([names[1], f'{alias}.g'])} desc nulls last, {names[0]}"
        return f"{body} order by {order} {limit}", names

    def aggregate(self, columns: list[str]) -> str:
        rng, one = self.rng, self.rng.choice(columns)
        return rng.choice(
            [
                "count(*)", f"count({one})", f"cast(sum({one}) as bigint)", f"min({one})",
                f"max({one})", f"count(distinct {one})", f"cast(sum({one}) as bigint) + count(*)",
                f"count(*) filter (where {one} > 1)",
                f"cast(sum({one}) filter (where {rng.choice(columns)} > 0) as bigint)",
                f"max({one}) filter (where {rng.choice(columns)} > 0)",
                f"coalesce(min({one}), 7)", f"greatest(max({one}), 1)",
            ]
        )  # fmt: skip

    def distinct(self, depth: int) -> tuple[str, list[str]]:
        sql, names = self.select(depth)
        return sql.replace("select ", "select distinct ", 1), names

    def set_operation(self, depth: int) -> tuple[str, list[str]]:
        kind = self.rng.choice(
            [
                "union all",
                "union all",
                "union",
                "intersect",
                "except",
                "except all",
                "intersect all",
            ]
        )
        sides = []
        width = self.rng.randint(1, 2)
        for _ in range(2):
            sql, columns = self.query(depth - 1)
            while len(columns) < width:
                sql, columns = self.query(depth - 1)
            alias = self.name("r")
            chosen = [f"{alias}.{c} as {self.name('c')}" for c in self.rng.sample(columns, width)]
            sides.append((f"select {', '.join(chosen)} from ({sql}) {alias}", chosen))
        names = [one.rsplit(" ", 1)[1] for one in sides[0][1]]
        return f"{sides[0][0]} {kind} {sides[1][0]}", names

    def rows_of_all(self, depth: int) -> tuple[str, list[str]]:
        """Aggregates over all rows, one under the other."""
        rng, names, sides = self.rng, [self.name("c"), self.name("c")], []
        for number in range(rng.randint(2, 3)):
            source, alias, columns = self.source(depth - 1)
            qualified = [f"{alias}.{c}" for c in columns]
            one = rng.choice([str(number), f"min({rng.choice(qualified)})"])
            other = rng.choice(
                ["count(*)", f"count({rng.choice(qualified)}) + (select max(k) from t)"]
            )
            items = (
                [f"{one} as {names[0]}", f"{other} as {names[1]}"] if not number else [one, other]
            )
            sides.append(f"select {', '.join(items)} from {source}{self.where(qualified)}")
        kind = rng.choice(["union all", "union all", "union", "except", "intersect"])
        return f" {kind} ".join(sides), names

    def windowed(self, depth: int) -> tuple[str, list[str]]:
        rng = self.rng
        source, alias, columns = self.source(depth)
        qualified = [f"{alias}.{c}" for c in columns]
        items, names = self.items(qualified)
        order = ", ".join(f"{c} nulls first" for c in qualified)
        partition = rng.choice([*qualified, f"coalesce({rng.choice(qualified)}, 1) % 2"])
        name = self.name("c")
        call = rng.choice(
            [
                f"row_number() over (partition by {partition} order by {order})",
                f"count(*) over (partition by {partition})",
                "count(*) over ()",
                f"max({rng.choice(qualified)}) over (partition by 1)",
                f"lag({rng.choice(qualified)}) over (partition by {partition} order by {order})",
                f"cast(sum({rng.choice(qualified)}) over (partition by {partition} order by {order} "  # noqa: E501
                "rows between unbounded preceding and current row) as bigint)",
            ]
        )
        return f"select {items}, {call} as {name} from {source}", [*names, name]

    def top(self, depth: int) -> tuple[str, list[str]]:
        source, alias, columns = self.source(depth)
        qualified = [f"{alias}.{c}" for c in columns]
        items, names = self.items(qualified)
        order = ", ".join(f"{c} desc nulls last" for c in qualified)
        rank = self.name("rn")
        inner = (
            f"select {items}, row_number() over (partition by {self.rng.choice(qualified)} "
            f"order by {order}) as {rank} from {source}"
        )
        outer = self.name("r")
        return f"select {', '.join(names)} from ({inner}) {outer} where {rank} <= 1", names

    def with_cte(self, depth: int) -> tuple[str, list[str]]:
        cte, columns = self.query(depth - 1)
        name, one, other = self.name("cte"), self.name("r"), self.name("r")
        shared = self.rng.choice(columns)
        qualified = [f"{alias}.{c}" for alias in (one, other) for c in columns]
        items, names = self.items(qualified, 2)
        return (
            f"with {name} as ({cte}) select {items} from {name} {one} join {name} {other} "
            f"on {one}.{shared} = {other}.{self.rng.choice(columns)}"
        ), names

    def subquery_filter(self, depth: int) -> tuple[str, list[str]]:
        rng = self.rng
        source, alias, columns = self.source(depth)
        qualified = [f"{alias}.{c}" for c in columns]
        items, names = self.items(qualified)
        inner, name, more = self.source(depth - 1)
        theirs = [f"{name}.{c}" for c in more]
        mine, other = rng.choice(qualified), rng.choice(theirs)
        condition = rng.choice(
            [
                f"exists (select 1 from {inner} where {other} = {mine})",
                f"not exists (select 1 from {inner} where {other} = {mine})",
                f"exists (select 1 from {inner} where {other} = {mine} and {rng.choice(theirs)} > 1)",  # noqa: E501
                f"{mine} in (select {other} from {inner})",
                f"{mine} not in (select {other} from {inner})",
                f"({mine} in (select {other} from {inner}) or {rng.choice(qualified)} = 1)",
                f"{mine} not in (select {other} from {inner} where {rng.choice(theirs)} = "
                f"{rng.choice(qualified)})",
                f"{mine} in (select max({other}) from {inner} group by {rng.choice(theirs)})",
            ]
        )
        return f"select {items} from {source} where {condition}", names

    def scalar(self, depth: int) -> tuple[str, list[str]]:
        rng = self.rng
        source, alias, columns = self.source(depth)
        qualified = [f"{alias}.{c}" for c in columns]
        items, names = self.items(qualified)
        inner, name, more = self.source(depth - 1)
        theirs = [f"{name}.{c}" for c in more]
        one = rng.choice(theirs)
        call = rng.choice(
            ["count(*)", f"max({one})", f"min({one})", f"coalesce(max({one}), -1)", "count(*) + 1"]
        )
        where = rng.choice([f" where {rng.choice(theirs)} = {rng.choice(qualified)}"] * 3 + [""])
        value = self.name("c")
        if rng.random() < 0.3:
            test = f"{rng.choice(qualified)} {rng.choice(['in', 'not in'])} "
            test += f"(select {rng.choice(theirs)} from {inner})"
            more = rng.choice(["", f" and {self.predicate(qualified)}", " or 1 = 0"])
            flag, row = self.name("b"), self.name("r")
            tested = f"(select {items}, {test}{more} as {flag} from {source}) {row}"
            shown = f"{', '.join(names)}, cast({flag} as bigint) as {value}"
            return f"select {shown} from {tested}", [*names, value]
        return (
            f"select {items}, (select {call} from {inner}{where}) as {value} from {source}",
            [*names, value],
        )

    def beside_one_row(self, depth: int) -> tuple[str, list[str]]:
        """Rows beside the one row of an aggregate over all rows."""
        rng = self.rng
        source, alias, columns = self.source(depth - 1)
        qualified = [f"{alias}.{c}" for c in columns]
        inner, name, more = self.source(depth - 1)
        theirs = [f"{name}.{c}" for c in more]
        row, one, two = self.name("r"), self.name("c"), self.name("c")
        body = f"(select max({rng.choice(theirs)}) as {one}, count(*) as {two} from {inner}) {row}"
        items, names = self.items(qualified)
        found, value = self.name("c"), rng.choice([one, two])
        where = rng.choice(["", f" where {rng.choice(qualified)} <= {row}.{value}"])
        both = [
            f"{source} cross join {body}",
            f"{body}, {source}",
            f"{source} left join {body} on true",
        ]
        sql = f"select {items}, {row}.{value} as {found} from {rng.choice(both)}{where}"
        if rng.random() < 0.3:
            return f"with {row} as {body.removesuffix(row)} {sql.replace(body, row)}", [
                *names,
                found,
            ]
        return sql, [*names, found]

    def using(self, depth: int) -> tuple[str, list[str]]:
        kind, other = self.rng.choices(["join", "left join", "right join", "full join"], k=2)
        names = ["k", self.name("c"), self.name("c")]
        joined = f"t {kind} u using (k)"
        if self.rng.random() < 0.5:
            third = self.rng.choice(["select k, y from s join t on a = id", "select k, 1 from u"])
            joined += f" {other} ({third}) {self.name('r')} using (k)"
        if self.rng.random() < 0.4:
            items = f"count(*) as {names[1]}, min(v) as {names[2]}"
            return f"select k, {items} from {joined} group by k", names
        return f"select k, v as {names[1]}, w as {names[2]} from {joined}", names

    def staged(self, depth: int) -> tuple[str, list[str]]:
        """As models of dbt: all columns of a table, then some by other values, and bare names."""
        rng, table = self.rng, self.rng.choice(list(SCHEMAS))
        columns = list(SCHEMAS[table].names)
        chosen = rng.sample(columns[:-1], 3)
        key, value, last = chosen
        first, second = self.name("m"), self.name("m")
        source = rng.choice([table, f"(select * from {table})", f"(select x.* from {table} x) y"])
        star = rng.choice(["*", f"* except ({columns[-1]})"])
        items = ", ".join(
            rng.choice([name, name, f"coalesce({name}, 9) as {name}", f"{name} + 1 as {name}"])
            for name in chosen
        )
        where = rng.choice(["", f" where {key} is not null and {value} < 3"])
        text = f"with {first} as (select {star} from {source}), "
        text += f"{second} as (select {items} from {first}{where}) "
        if rng.random() < 0.5:
            return f"{text}select {', '.join(chosen)} from {second}", chosen
        items = f"{key}, sum({value}) as {value}, count(*) as {last}"
        return f"{text}select {items} from {second} group by {key}", chosen


def random_case(seed: int, depth: int, epochs: int = 4) -> Case:
    """A view and epochs from a seed."""
    rng = random.Random(seed)
    sql, _ = Views(rng).query(depth)
    return Case(sql, tuple(_epoch(rng, number) for number in range(epochs)))


def _epoch(rng: random.Random, number: int) -> tuple[Op, ...]:
    ops: list[Op] = []
    for table in rng.sample(sorted(SCHEMAS), rng.randint(1, 3)):
        schema = SCHEMAS[table]
        if rng.random() < 0.07:
            keys = [(i,) if table != "s" else (i, j) for i in range(5) for j in range(3)]
            ops += [(table, key, None) for key in dict.fromkeys(keys)]
            continue
        for _ in range(rng.randint(1, 7 if number == 0 else 4)):
            key = tuple(rng.randrange(5 if table != "s" else 3) for _ in schema.key)
            if rng.random() < (0.1 if number == 0 else 0.35):
                ops.append((table, key, None))
                continue
            rest = []
            for column in schema.columns[len(schema.key) :]:
                null = column.nullable and rng.random() < 0.25
                rest.append(None if null else rng.randrange(4))
            ops.append((table, key, tuple(rest)))
    return tuple(ops)


def variants(case: Case) -> dict[str, Case]:
    """Other epochs that end with the same tables."""
    halves = (part for ops in case.epochs for part in (ops[: len(ops) // 2], ops[len(ops) // 2 :]))
    pairs = (
        tuple(op for ops in case.epochs[at : at + 2] for op in ops)
        for at in range(0, len(case.epochs), 2)
    )
    return {
        "split": Case(case.sql, tuple(half for half in halves if half)),
        "merged": Case(case.sql, tuple(pairs)),
    }


def run_case(case: Case, world: World, *, cancelling: bool = False) -> None:
    """Run the epochs; the world asserts after each.

    Args:
        case: the view and its epochs.
        world: holds the view as `v`.
        cancelling: every epoch also inserts and deletes a row.
    """
    for ops in case.epochs:
        changes: dict[str, list[tuple[int, Row]]] = {}
        last = {(table, key): rest for table, key, rest in ops}
        for (table, key), rest in last.items():
            old = [row for row in world.mirrors[rel(table)].rows if row[: len(key)] == key]
            # An update to the same values stays in: it must change nothing.
            rows = [(-1, row) for row in old] + ([(1, (*key, *rest))] if rest is not None else [])
            changes.setdefault(table, []).extend(rows)
        if cancelling:
            for table, schema in SCHEMAS.items():
                row = (99,) * len(schema.columns)
                changes.setdefault(table, []).extend([(1, row), (-1, row)])
        world.epoch(changes)


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A smaller case that still fails: fewer epochs, fewer operations."""
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(case):
            if fails(smaller):
                case, progress = smaller, True
                break
    return case


def _smaller(case: Case) -> list[Case]:
    found = []
    for i, epoch in enumerate(case.epochs):
        found.append(Case(case.sql, case.epochs[:i] + case.epochs[i + 1 :]))
        for j in range(len(epoch)):
            fewer = epoch[:j] + epoch[j + 1 :]
            found.append(Case(case.sql, (*case.epochs[:i], fewer, *case.epochs[i + 1 :])))
    return found
