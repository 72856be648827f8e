"""`mview verify --source` against the load of the same table, one right after the other.

    python -m tests.bench.verify_source --rows 1000000

Load: plan the chunks, read and stage each in a Spark task, register all in the mirror's base, as
the bulk load's bench does. Verified is then that mirror: chunks are planned anew, all rows are read
from the database and hashed, and compared with the mirror's. Rows are equal, so none is read twice.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from mview.admin.against_source import verify_tables
from mview.config import Config
from mview.store.identity import claim_store
from mview.store.layout import Store
from tests.bench.bulk_load import Loads, make_rows, session
from tests.bench.results import Result
from tests.bench.seed import publish
from tests.relations import rel

_ROUNDS = 3


def verify(config: Config, loads: Loads, connection: str, rows: int) -> tuple[float, float]:
    """Seconds of a load into a new store, and of the comparison after it."""
    config = config.model_copy(update={"store": Path(tempfile.mkdtemp(dir=config.path.parent))})
    store, table = Store(config.store), rel(f"{connection}.big")
    claim_store(store.root)
    seconds, state = loads.mview(store.mirror(table))
    publish(store, connection, {str(table): state}, {})
    start = time.perf_counter()
    (result,) = verify_tables(config, [table])
    took = time.perf_counter() - start
    assert (result.equal, result.rows, result.error) == (True, rows, ""), result
    shutil.rmtree(store.root)
    return seconds, took


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--databases", default="postgresql,mariadb")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    result = Result(
        "verify_source",
        f"`mview verify --source` of {options.rows:,} rows against the load of them",
        ["database", "rows", "load rows/s", "verify rows/s", "verify to load"],
    )
    rows = make_rows(options.rows)
    with session(options.databases.split(","), rows, options.master) as (spark, config):
        for kind in config.connections:
            loads = Loads(spark, config, kind, rows.num_rows)
            times = [verify(config, loads, kind, rows.num_rows) for _ in range(_ROUNDS + 1)][1:]
            load, verified = (median(part) for part in zip(*times, strict=True))
            count = rows.num_rows
            result.add(kind, count, count / load, count / verified, load / verified)
    result.notes.append(f"median of {_ROUNDS} rounds after one to warm up, both in turns")
    result.save()


if __name__ == "__main__":
    main()
