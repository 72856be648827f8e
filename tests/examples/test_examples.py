"""The worked examples of docs/examples, by the way in which anybody's package is found."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from mview.catalog.functions import declared_functions, folder_of
from mview.changelog import encode_position
from mview.clock import END_OF_TIME
from mview.config import Config
from mview.config.file import load_config
from mview.connector import Format, load
from mview.errors import DataLostError, DecodeError
from mview.execute.calls import Callee
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.ingest.decode.split import decode_split
from mview.ingest.spec import TableSpec, open_changelog, open_format
from mview.ivm.tracing.trace import trace
from mview.plan.definition import parse_view
from mview.plan.operators import ir
from mview.plan.operators.build import build
from mview.plan.operators.rules import rewrite, with_children
from mview.plan.operators.tree import print_tree
from mview.schema import Column, TableSchema, parse_type
from mview.testing import (
    FollowerContract,
    FollowerHarness,
    FormatContract,
    FormatHarness,
    RowChange,
)
from mview.testing.formats import Written
from mview.testing.view import Row
from tests.ivm.test_dispatch import DISPATCHES, NEVER_MET
from tests.relations import keyed, rel

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
CONFIG = """
store: data
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop:
    source: sqlite_log
    format: csv_lines
    path: log.db
    T: 0s
    options: {columns.orders: "id,amount"}
functions:
  net: {python: "money:net", returns: "decimal(12,2)", deterministic: true}
"""
ORDERS = TableSchema(
    (Column("id", parse_type("bigint"), nullable=False), Column("amount", parse_type("int"))),
    ("id",),
)


@pytest.fixture(autouse=True, scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As pip installs a package: its modules, and what it says of them."""
    folder = tmp_path_factory.mktemp("site")
    about = folder / "examples-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 1\n")
    shutil.copy(EXAMPLES / "entry_points.txt", about)
    added = [str(folder), str(EXAMPLES)]
    sys.path[:0] = added
    yield
    for place in added:
        sys.path.remove(place)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "mview.yml").write_text(CONFIG)
    return load_config(tmp_path / "mview.yml")


# --- a source and a format -----------------------------------------------------------------------


@pytest.fixture
def write(config: Config) -> Callable[..., None]:
    """Add lines to the log."""

    def write(*lines: str) -> None:
        path = config.changes["shop"].path
        assert path is not None
        with sqlite3.connect(path) as log:
            log.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, line TEXT)")
            log.executemany("INSERT INTO log (line) VALUES (?)", [(line,) for line in lines])
        log.close()

    return write


def test_a_source_and_a_format(config: Config, write: Callable[..., None]) -> None:
    write("orders,1,c,1,10")
    log, decoder = open_changelog(config, "shop", ["orders"]), open_format(config, "shop")
    log.check()
    begin = log.begin()
    assert log.sent("orders", begin) == {"log": (1,)}
    assert log.advance(begin, 10, 0).offsets == begin
    write("orders,2,u,1,", "carts,3,c,9,9", "orders,4,d,1,", "orders,5,c,2,20")
    reached = log.advance(begin, 3, 0)
    assert (reached.offsets, reached.backlog, reached.watermark) == ({"log": 5}, 1, None)
    log.finish()
    last = log.advance(reached.offsets, 10, 0)
    assert (last.backlog, last.watermark) == (0, END_OF_TIME)
    table = TableSpec(rel("shop.orders"), ORDERS, Path(), "", None)
    messages = log.read(log.splits(begin, last.offsets))
    with pytest.raises(DecodeError, match="cannot read a message"):
        decode_split(messages, decoder, {"orders": table})  # it does not know the carts
    messages = [m for m in log.read(log.splits(begin, last.offsets)) if m.offset != 3]
    (changes,) = (one.changes for one in decode_split(messages, decoder, {"orders": table}))
    assert changes.select(["__op", "id", "amount"]).to_pydict() == {
        "__op": ["u", "d", "c"],
        "id": [1, 1, 2],
        "amount": [None, None, 20],
    }
    assert changes["__position"].to_pylist() == [encode_position((n,)) for n in (2, 4, 5)]
    with sqlite3.connect(config.path.parent / "log.db") as file:
        file.execute("DELETE FROM log WHERE id < 4")
    file.close()
    with pytest.raises(DataLostError):
        log.advance(begin, 3, 0)


class CsvHarness(FormatHarness):
    values: ClassVar = {"v": (" ", "a", 'a,"b', "é😀")}
    truncates = False

    def open(self) -> Format:
        columns = {f"columns.{table}": "id,v" for table in ("t", "other")}
        decoder: Format = load("formats", "csv_lines")(columns)
        return decoder

    def write(self, change: RowChange) -> Iterator[Written]:
        before, after = change.before, change.after
        if before and after and before["id"] != after["id"]:  # a line has one row
            yield self._line(change, "d", before)
            yield self._line(change, "c", after)
        else:
            yield self._line(change, change.kind, after or before or {})

    def _line(self, change: RowChange, kind: str, row: dict[str, Any]) -> Written:
        line = io.StringIO()
        csv.writer(line).writerow([change.table, change.number, kind, row["id"], row["v"]])
        return None, line.getvalue().encode()


class TestCsvLines(FormatContract):
    @pytest.fixture
    def harness(self) -> FormatHarness:
        return CsvHarness()


# --- a sink --------------------------------------------------------------------------------------


class ArrowHarness(FollowerHarness):
    large = 2000

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self, **options: Any) -> FollowerSettings:
        factory = load("followers", "arrow_file")
        settings: FollowerSettings = factory.settings(
            type="arrow_file", folder=self.folder, **options
        )
        return settings

    def open(self, target: FollowerTarget) -> Follower:
        follower: Follower = load("followers", "arrow_file")(target)
        return follower

    def _file(self, target: FollowerTarget) -> Path:
        return self.folder / f"{target.table}.arrow"

    def read(self, target: FollowerTarget) -> list[Row] | None:
        if not self._file(target).exists():
            return None
        with pa.ipc.open_file(self._file(target)) as reader:
            rows = reader.read_all()
        return [*zip(*(column.to_pylist() for column in rows.columns), strict=True)]

    def foreign(self, target: FollowerTarget) -> bool:
        rows = target.schema.arrow.empty_table()
        with pa.ipc.new_file(self._file(target), rows.schema) as writer:
            writer.write_table(rows)
        return True

    def drop(self, target: FollowerTarget) -> bool:
        self._file(target).unlink()
        return True


class TestArrowFile(FollowerContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return ArrowHarness(tmp_path)


# --- a function ----------------------------------------------------------------------------------


def test_a_function(config: Config) -> None:
    shutil.copy(EXAMPLES / "money.py", config.path.parent)
    (net,) = declared_functions(config)
    gross = pa.array([Decimal("119.00"), None], pa.decimal128(12, 2))
    found = Callee(net, folder_of(config))(gross, pa.array([19, 19]))
    assert found.to_pylist() == [Decimal("100.00"), None]
    assert found.type == pa.decimal128(12, 2)


# --- an operator ---------------------------------------------------------------------------------


def test_an_operator() -> None:
    from hint import Hint  # type: ignore[import-not-found]

    for name, (dispatch, _) in DISPATCHES.items():
        left_out = NEVER_MET.get(name.rpartition(".")[2], set())
        assert Hint in dispatch.registry or "Filter" in left_out, name  # type: ignore[attr-defined]

    def hinted(node: ir.Node) -> ir.Node:
        if isinstance(node, ir.Scan):
            return Hint(node, "broadcast")
        return with_children(node, tuple(hinted(child) for child in node.children))

    lines = TableSchema((*ORDERS.columns, Column("order_id", parse_type("bigint"))), ("id",))
    schemas = keyed({"shop.orders": ORDERS, "shop.lines": lines})
    joined = "shop.orders o join shop.lines l on l.order_id = o.id"
    sql = f"select o.id, sum(l.amount) as total from {joined} group by o.id"
    plain = rewrite(build(parse_view(sql, "v"), schemas).root)
    root = rewrite(hinted(plain))
    assert print_tree(root).count("Hint broadcast") == 2
    for scan in ir.scans(plain):
        assert trace(root, scan, schemas, (), root)[0] == trace(plain, scan, schemas, (), plain)[0]
