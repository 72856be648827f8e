"""A driver within a budget, in a process of its own: `python -m tests.epoch.within FOLDER BYTES`.

Wide changes are read as messages, netted with the rows before them, written to a mirror that is
looked up in files and compacted, and to a view's table; then both are compared as a view that is
computed as a whole. No Spark: this is the part that grows with the rows. Ends with a line of JSON:
by how many bytes the process grew at the most, and what it did.
"""

from __future__ import annotations

from mview.memory import Memory, give_back_what_is_freed, use_the_systems_allocator
from tests.relations import rel

use_the_systems_allocator()

import json  # noqa: E402
import random  # noqa: E402
import sys  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import Any, cast  # noqa: E402

import pyarrow as pa  # noqa: E402
from mview_connectors.changelogs.files import FilesChangelog  # noqa: E402
from mview_connectors.formats.unified import UnifiedFormat  # noqa: E402
from mview_connectors.sinks.delta import DeltaSink  # noqa: E402

from mview.connector import SinkTarget  # noqa: E402
from mview.delta import recent, tiers  # noqa: E402
from mview.execute.delta import Delta  # noqa: E402
from mview.execute.local.evaluate import LocalEvaluator  # noqa: E402
from mview.execute.pieces import differences  # noqa: E402
from mview.execute.queries import limit_memory  # noqa: E402
from mview.execute.relations import Relation  # noqa: E402
from mview.execute.scan import scan_files  # noqa: E402
from mview.ingest.decode.split import decode_split  # noqa: E402
from mview.ingest.spec import TableSpec  # noqa: E402
from mview.merge.net import net_changes, old_and_new  # noqa: E402
from mview.schema import Column, TableSchema  # noqa: E402
from mview.store.mirror import Mirror  # noqa: E402

#: Rows that are changed again and again; hundreds of messages of nearly a megabyte change them.
ROWS, MESSAGES, WIDE = 40, 150, 1_000_000

SCHEMA = TableSchema((Column("id", pa.int64(), nullable=False), Column("v", pa.string())), ("id",))


class Driver:
    """What the driver does with one table and one view of it.

    Args:
        folder: for all files.
        memory: the shares.
    """

    def __init__(self, folder: Path, memory: Memory) -> None:
        self.memory, self.draw = memory, random.Random(1)
        changes = folder / "changes"
        changes.mkdir(parents=True)
        self.file, self.position, self.epochs, self.compactions = changes / "1.jsonl", 0, 0, 0
        self.format = UnifiedFormat({})
        self.log = FilesChangelog(cast(Any, SimpleNamespace(path=changes)), self.format, ["t"])
        self.spec = TableSpec(rel("t"), SCHEMA, folder / "base", "s", None)
        self.mirror = Mirror(folder / "mirror", SCHEMA)
        self.state = replace(self.mirror.create(), phase="loaded")
        self.relation = Relation(self.mirror, self.state, memory.tails)
        self.sink = DeltaSink(SinkTarget("v", SCHEMA, "w", {"path": str(folder / "view")}))
        self.local, self.facts = LocalEvaluator(), cast(Any, None)
        self.offsets: Any = {"log": ["1.jsonl", 0, 0], "mark": ""}

    def write(self, messages: int, size: int) -> None:
        """Changes that nothing can pack."""
        with self.file.open("a") as out:
            for _ in range(messages):
                self.position += 1
                row = {"id": self.position % ROWS, "v": self.draw.randbytes(size // 2).hex()}
                change = {"op": "insert", "after": row, "position": self.position, "ts": 1}
                out.write(json.dumps({"table": "t", **change}) + "\n")

    def follow(self) -> None:
        """Take what is there, epoch by epoch."""
        while (end := self.log.advance(self.offsets, 50_000, 0, self.memory.batch).offsets) != (
            self.offsets
        ):
            splits = self.log.splits(self.offsets, end)
            self.offsets, self.epochs = end, self.epochs + 1
            decoded = decode_split(self.log.read(splits), self.format, self.specs)
            self._epoch([one.changes for one in decoded])
            if self.relation.tail_bytes >= self.memory.folded:
                version, folded = self.mirror.compact(self.state, self.memory.folded)
                self.state = replace(self.state, base_version=version, folded=folded)
                self.relation.move(self.state, None, self.epochs)
                self.compactions += 1

    @property
    def specs(self) -> dict[str, TableSpec]:
        return {"t": self.spec}

    def _epoch(self, taken: list[pa.Table]) -> None:
        netted = net_changes(taken, SCHEMA, {}, {})
        delta, _ = old_and_new(netted, self._before(netted.upserts.select(["id"])), SCHEMA)
        changes = Delta(delta, SCHEMA.key).changelog
        version = self.mirror.append(self.epochs, changes)
        self.state = replace(self.state, changelog_version=version)
        self.relation.move(self.state, changes, self.epochs)
        view = delta.rename_columns([*SCHEMA.names, "w"])
        changed = self.local.run("select id, v, w from n", {"n": view}, None)
        changed = changed.rename_columns(["id", "v", "__weight"])
        self.facts = self.sink.commit(self.sink.stage(self.epochs, changed))

    def _before(self, keys: pa.Table) -> pa.Table:
        one, relation = SCHEMA.names, self.relation
        base = [path for path, _ in relation.base_files]
        tail = [path for path, _ in relation.tail_files()]
        found = scan_files(base, relation.base_schema(), keys, False)
        newer = scan_files(tail, relation.tail_schema(), keys, False)
        return relation.rows(found, newer, keys, one, False).select(one)

    def compare(self) -> int:
        """How many rows differ between the view and its table."""
        schema = self.relation.base_schema()
        view, table = self.sink.parts(self.facts), self.mirror.parts(self.state)
        return sum(one.num_rows for one in differences(view, table, schema, self.memory.whole))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def main(folder: Path, budget: int) -> None:
    give_back_what_is_freed(budget)
    memory = Memory(budget)
    limit_memory(memory.queries)
    recent.POOL.limit = memory.files
    tiers.LARGE.nbytes = memory.file
    driver = Driver(folder, memory)
    for _ in range(2):
        driver.write(ROWS, 20)
        driver.follow()
    assert driver.compare() == 0
    warm = _status("VmHWM")
    began = driver.epochs
    driver.write(MESSAGES, WIDE)
    driver.follow()
    live = _status("VmHWM") - warm
    differ = driver.compare()
    whole = _status("VmHWM") - warm
    told = {"live": live, "whole": whole, "differ": differ, "epochs": driver.epochs - began}
    print(json.dumps({**told, "compactions": driver.compactions}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
