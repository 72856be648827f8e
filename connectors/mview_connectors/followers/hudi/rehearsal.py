"""A table's life in a few calls: what a new environment has to be able to do."""

from __future__ import annotations

import base64
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from mview.errors import ConfigError
from mview_connectors.followers.worker_follower import KIND_THERE
from mview_connectors.followers.workers import Worker, WorkerError

_ROWS = pa.schema(
    [
        ("k", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def rehearse(worker: Worker) -> None:
    """Have a process make, fill, change, maintain and read a table; ends the process.

    Raises:
        ConfigError: it cannot, with what was said.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            keys = _play(worker, Path(folder) / "t")
    except WorkerError as error:
        raise ConfigError("the environment for Hudi does not work", got=str(error)[:800]) from error
    finally:
        worker.end()
    if keys != [2, 3, 4]:
        raise ConfigError("the environment for Hudi does not work", got=f"rows {keys}")


def _play(worker: Worker, table: Path) -> list[int]:
    schema = base64.b64encode(_ROWS.serialize()).decode()
    about = {"schema": schema, "key": ["k"], "buckets": 1, "is_append": False, "comment": ""}
    worker.call("connect", table=str(table), **about)
    worker.call("make", options={"mview.rehearsal": "true"})
    for step, kinds in enumerate(({}, {1: "+I", 2: "+I", 3: "+I"}, {1: "-D", 2: "+U", 4: "+I"})):
        look = worker.call("look")
        arguments = {"base": look["latest"], "carried": look["carried"], "mark": f"{step}"}
        if not kinds:
            worker.call("move", **arguments)
            continue
        columns = [[key, "x", None, 0] for key in kinds]
        rows = pa.table([list(column) for column in zip(*columns, strict=True)], _ROWS)
        if step > 1:
            rows = rows.append_column(KIND_THERE, pa.array(kinds.values(), pa.string()))
        token = worker.call("stage", rows.to_reader(), is_fill=step == 1, **arguments)
        assert worker.call("holds", token=token)
        worker.call("commit", token=token)
    worker.call("maintain", before=int(time.time() * 1000), thorough=True)
    return sorted(worker.call("read").read_all()["k"].to_pylist())
