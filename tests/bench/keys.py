"""What a commit of changes anywhere takes, by the part of a view's keys that may be remembered.

    python -m tests.bench.keys --rows 1000000 --parts 1.2,0.9,0.5

All files of a view are looked through for the keys that change. The CPU time is what counts: other
work on the machine does not change it much.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from mview.delta.recent import POOL
from tests.bench.results import Result
from tests.bench.write_amplification import Table, View


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--commits", type=int, default=10)
    parser.add_argument("--parts", default="1.2,0.9,0.5", help="of the bytes of all keys")
    options = parser.parse_args()
    title = f"A commit of {options.changes:,} changes anywhere in {options.rows:,} rows"
    result = Result("keys", title, ["keys remembered", "of bytes", "CPU ms", "max CPU ms"])
    for part in (float(text) for text in options.parts.split(",")):
        POOL.limit = 1 << 40
        with tempfile.TemporaryDirectory(prefix="mview-bench-") as temp:
            view = View(options.rows)
            table = Table(Path(temp) / "t", "true", view)
            table.commit(view.delta(options.changes))
            need = POOL.used
            POOL.limit = int(need * part)
            for _ in range(options.commits + 3):
                table.commit(view.delta(options.changes))
            cpu = [seconds * 1000 for seconds in table.cpu[-options.commits :]]
            result.add(f"{part:.0%}", need, median(cpu), max(cpu))
    result.save()


if __name__ == "__main__":
    main()
