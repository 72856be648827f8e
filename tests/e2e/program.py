"""A run in a process of its own, to be killed: `python -m tests.e2e.program FOLDER [live] [TTL]`.

The folder has `mview.yml` and `views/`; TTL is the lease's, in milliseconds.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from mview.config import load_config
from mview.errors import MviewError
from mview.plan.definition import load_views
from mview.runtime import pipeline, upkeep
from mview.store.lease import TTL_MS, Lease


def main(folder: Path, live: bool, ttl_ms: int) -> int:
    pipeline.Lease = partial(Lease, ttl_ms=ttl_ms)
    # Small tables are compacted, too: a run may be killed while that is done.
    upkeep._TAIL_ROWS = 1
    views = load_views([folder / "views"])
    try:
        pipeline.Pipeline(load_config(folder / "mview.yml"), views).run(once=not live)
    except MviewError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    numbers = [int(arg) for arg in sys.argv[2:] if arg.isdigit()]
    sys.exit(main(Path(sys.argv[1]), "live" in sys.argv, *(numbers or [TTL_MS])))
