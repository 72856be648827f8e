"""Golden epochs: `.slt` files of tables, views, epochs and the deltas they must give.

A file holds cases; a case begins with `# title`, and more comment lines may follow:

    # inner join, both sides change in one epoch
    table l(id bigint primary key, k bigint)
    table r(id bigint, n int not null, v string, primary key (id, n))
    function f tests.slt.python:f string      a declared function: Python, type[, pandas]
    view                      one view; or `view name` several times, to read each other
    select …                  until an empty line

    epoch                     `epoch 2026-03-01T12:00:00`: the pinned time moves to that
    l +I 1 10                 table, row kind, values: NULL, 'quoted text', numbers, dates, [1,2]
    ----
    +1 1 a                    weight and row of the view, sorted; `name +1 1 a` with several views

Each case runs twice, with exact and with generous look-ups; after every epoch the views must also
equal the batch query. `python -m tests.slt.runner --complete FILE…` fills the answers in; read
them.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview.catalog.spark_functions import register_functions
from mview.changelog import RowKind
from mview.plan.definition import parse_view
from mview.plan.functions.declared import Function
from mview.schema import Column, TableSchema, parse_type
from tests.ivm.world import NAN, Engine, Row, SparkEngine, World

_ROOT = Path(__file__).parents[2]
_COLUMN = re.compile(r"(\w+) (\S+(?:\(\d+,\d+\))?)( primary key| not null)?$")


@dataclass
class Epoch:
    """The lines of an epoch: changes and expected rows, and where the answer is in the file."""

    changes: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    first: int = 0
    last: int = 0
    pinned_ms: int | None = None


@dataclass
class SltCase:
    """One case of a file."""

    title: str
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)


def parse_table(text: str) -> tuple[str, TableSchema]:
    """`name(col type [primary key | not null], …[, primary key (a, b)])`."""
    name, body = re.fullmatch(r"([\w.]+)\((.*)\)", text.strip()).groups()  # type: ignore[union-attr]
    keys: list[str] = []
    if many := re.search(r",\s*primary key \((.*?)\)$", body):
        keys = [part.strip() for part in many.group(1).split(",")]
        body = body[: many.start()]
    columns = []
    for part in re.split(r",\s*(?![^(]*\))", body):
        column, kind, mark = _COLUMN.fullmatch(part.strip()).groups()  # type: ignore[union-attr]
        keys += [column] if mark == " primary key" else []
        columns.append(Column(column, parse_type(kind), mark is None and column not in keys))
    return name, TableSchema(tuple(columns), tuple(keys))


def parse_file(path: Path) -> list[SltCase]:
    """The cases of a file."""
    cases: list[SltCase] = []
    lines = path.read_text().splitlines()
    at, fresh = 0, True
    while at < len(lines):
        line = lines[at]
        if line.startswith("#"):
            if fresh:
                cases.append(SltCase(line.lstrip("# ")))
            fresh = False
        elif line.startswith("table "):
            fresh = True
            name, schema = parse_table(line[6:])
            cases[-1].schemas[name] = schema
        elif line.startswith("function "):
            name, python, returns, *kind = line.split()[1:]
            cases[-1].functions.append(Function(name, python, returns, *(kind or ["python"])))  # type: ignore[arg-type]
        elif line.startswith("view"):
            fresh, start = True, at + 1
            while at + 1 < len(lines) and lines[at + 1].strip():
                at += 1
            cases[-1].views[line[4:].strip() or "v"] = "\n".join(lines[start : at + 1])
        elif line.startswith("epoch"):
            fresh, epoch = True, Epoch(pinned_ms=parse_time(line[5:].strip()))
            at += 1
            while lines[at] != "----":
                epoch.changes.append(lines[at])
                at += 1
            epoch.first = at + 1
            while at + 1 < len(lines) and lines[at + 1].strip():
                at += 1
                epoch.expected.append(lines[at])
            epoch.last = at + 1
            cases[-1].epochs.append(epoch)
        at += 1
    return cases


def parse_time(text: str) -> int | None:
    """A time in UTC, in milliseconds."""
    if not text:
        return None
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.timezone.utc).timestamp() * 1000)


def parse_value(text: str, kind: pa.DataType) -> Any:
    """A value as the column's Python type."""
    if text == "NULL":
        return None
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_decimal(kind):
        return Decimal(text).normalize() + 0
    if pa.types.is_floating(kind):
        return NAN if text == "NaN" else float(text)
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        zone = dt.timezone.utc if kind.tz else None
        return dt.datetime.fromisoformat(text).replace(tzinfo=zone)
    if pa.types.is_list(kind):
        inner = text.strip("[]")
        return tuple(parse_value(one, kind.value_type) for one in inner.split(",")) if inner else ()
    return text


def parse_change(line: str, schemas: dict[str, TableSchema]) -> tuple[str, tuple[int, Row]]:
    """`table +I values…`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    table, kind, *values = list(lexer)
    columns = schemas[table].columns
    assert len(values) == len(columns), f"{line!r}: {len(columns)} values are needed"
    row = tuple(parse_value(v, c.type) for v, c in zip(values, columns, strict=True))
    return table, (RowKind(kind).weight, row)


def show(value: Any) -> str:
    """A value as a file has it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, tuple):
        return f"[{','.join(show(one) for one in value)}]"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if value is NAN:
        return "NaN"
    text = str(value)
    return (
        f"'{text}'" if isinstance(value, str) and (not text or re.search(r"[\s']", text)) else text
    )


def run_case(case: SltCase, engine: Engine, *, generous: bool) -> Iterator[tuple[Epoch, list[str]]]:
    """Run a case; gives every epoch with its answer."""
    functions = tuple(case.functions)
    views = [replace(parse_view(sql, n, n), functions=functions) for n, sql in case.views.items()]
    if functions:
        assert isinstance(engine, SparkEngine), "functions are known to Spark only"
        register_functions(engine.spark, views, str(_ROOT))
    world = World(case.schemas, views, engine, generous=generous)
    for epoch in case.epochs:
        changes: dict[str, list[tuple[int, Row]]] = {}
        for line in epoch.changes:
            table, change = parse_change(line, case.schemas)
            changes.setdefault(table, []).append(change)
        answer = []
        for name, rows in world.epoch(changes, epoch.pinned_ms).items():
            label = f"{name} " if len(case.views) > 1 else ""
            for weight, row in rows:
                answer.append(f"{label}{weight:+d} {' '.join(show(value) for value in row)}")
        yield epoch, answer


def complete(path: Path, engine: Engine) -> None:
    """Write the answers into a file."""
    lines = path.read_text().splitlines()
    found = [
        (epoch, answer)
        for case in parse_file(path)
        for epoch, answer in run_case(case, engine, generous=False)
    ]
    for epoch, answer in reversed(found):
        lines[epoch.first : epoch.last] = answer
    path.write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> None:
    """Fill answers in, on a Spark session of its own."""
    from pyspark.sql import SparkSession

    assert arguments[0] == "--complete", "use: --complete FILE…"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.wholeStage", "false")
        .getOrCreate()
    )
    for name in arguments[1:]:
        complete(Path(name), SparkEngine(session))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
