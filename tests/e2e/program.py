"""A run in a process of its own, to be killed.

`python -m tests.e2e.program FOLDER once|live|drop TTL [NAME …]`: the folder has `mview.yml` and
`views/`; TTL is the lease's, in milliseconds; the names are of what is dropped.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mview.admin import drop
from mview.cli.interrupt import run_until_interrupted
from mview.config.file import load_config
from mview.epoch import upkeep
from mview.epoch.views import beside
from mview.errors import ExitCode, MviewError
from mview.plan.definition import load_views
from mview.run import pipeline
from mview.store.lease import Lease

#: The exit code after an error that is none of ours: a user would read of a bug.
UNEXPECTED = 70


def main(folder: Path, action: str, ttl_ms: int, names: Sequence[str] = ()) -> int:
    """Run or drop; returns the exit code."""
    pipeline.Lease = drop.Lease = partial(Lease, ttl_ms=ttl_ms)
    # A run of seconds does, too, what keeps a store small: it may be killed while that is done.
    upkeep._TAIL_ROWS, upkeep._CLEAN_EVERY, upkeep._CLEAN_EVERY_S = 1, 4, 0.0
    # As few changes come as were few enough to be left to the swap.
    beside._CLOSE_ROWS = -1
    try:
        config = load_config(folder / "mview.yml")
        if action == "drop":
            drop.drop(config, names)
            return ExitCode.OK
        line = pipeline.Pipeline(config, load_views([folder / "views"]))
        once = {"once": True, "live": False}[action]
        interrupted = run_until_interrupted(line, once=once, on_drain=lambda: None)
    except MviewError as error:
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)
    except Exception:
        traceback.print_exc()
        return UNEXPECTED
    return ExitCode.INTERRUPTED if interrupted else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
