"""Pathway as a process: fetched once, one program over topics, all of it in memory.

It writes what it has every 20 ms; a reader sees at once what is written, and sees it again after a
failure. Its tables come through the topics, too: a row that came from a file could not be taken
back by a change.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import duckdb
import orjson

from tests.bench.peer import GROUP, OUT, Feed, Peer, Running, Shown, python_with, running
from tests.bench.w1 import KEYS, Change, Tables

_PACKAGE = "pathway==0.33.0"
_COMMIT_MS = 20
#: Rows whose messages are made at once.
_ROWS = 50_000


class PathwayPeer(Peer):
    """Pathway over topics as Debezium writes them."""

    name = "Pathway, in memory, at least once"
    loads_from = "Kafka"
    note = f"{_PACKAGE}, output every {_COMMIT_MS} ms, the tables were in the topics at the start"
    isolation = "read_uncommitted"
    idle = 12.0

    def __init__(self) -> None:
        self._python = python_with(_PACKAGE)

    def fill(self, tables: Tables, folder: Path, feed: Feed) -> None:
        """See `Peer`."""
        with duckdb.connect() as database:
            for name, rows in tables.items():
                database.register(name, rows)
                after = "{" + ", ".join(f"'{c}': {c}" for c in rows.column_names) + "}"
                key = "{" + ", ".join(f"'{c}': {c}" for c in KEYS[name]) + "}"
                messages = database.sql(
                    f"SELECT to_json({{'payload': {key}}}), to_json({{'payload':"
                    f" {{'before': NULL, 'after': {after}, 'op': 'c'}}}}) FROM {name}"
                )
                for batch in messages.to_arrow_reader(_ROWS):
                    for its_key, value in zip(*batch.to_pydict().values(), strict=True):
                        feed.send(name, its_key.encode(), value.encode())
        feed.flush()

    def run(self, tables: Tables, folder: Path, servers: str) -> AbstractContextManager[Running]:
        """See `Peer`."""
        file = folder / "job.json"
        file.write_text(json.dumps({"servers": servers, "out": OUT, "commit_ms": _COMMIT_MS}))
        command = [self._python, Path(__file__).with_name("pathway_job.py"), file]
        return running("Pathway", command, folder / "pathway.log")

    def message(self, change: Change) -> tuple[bytes | None, bytes]:
        """See `Peer`: as Debezium writes it, with the key and with room for a schema."""
        row = change.after or change.before or {}
        key = {name: row[name] for name in KEYS[change.table]}
        op = {"insert": "c", "update": "u", "delete": "d"}[change.op]
        value = {"before": change.before, "after": change.after, "op": op}
        return orjson.dumps({"payload": key}), orjson.dumps({"payload": value})

    def shown(self, key: bytes, value: bytes | None) -> Shown:
        """See `Peer`: a row comes or goes by its `diff`."""
        row = orjson.loads(value or b"{}")
        place = tuple(row[name] for name in GROUP)
        return Shown(place, (row["n_lines"], row["revenue"]), row["diff"] > 0)
