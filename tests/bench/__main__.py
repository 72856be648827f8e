"""All benches, or the named ones, and then the report: `python -m tests.bench [names] [--sf …]`.

Each runs in a process of its own, so that none warms up or burdens another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

#: In the order in which they run; those with `--sf` in the second part.
_NAMES = ("bulk_load", "epoch", "freshness", "catchup", "load_live")
_WITHOUT_SCALE = ("bulk_load",)


def main() -> int:
    """Run the benches; returns 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", default=_NAMES, help=", ".join(_NAMES))
    parser.add_argument("--sf", default="0.1", help="scale factors, e.g. 0.1,1")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in _NAMES]:
        parser.error(f"there is no bench {unknown[0]!r}; there are {', '.join(_NAMES)}")
    failed = 0
    for name in options.names:
        scales = [None] if name in _WITHOUT_SCALE else options.sf.split(",")
        for scale in scales:
            arguments = [] if scale is None else ["--sf", scale]
            command = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
            print(" ".join(command[1:]), flush=True)
            failed |= subprocess.run(command, check=False).returncode != 0
    return subprocess.run([sys.executable, "-m", "tests.bench.report"], check=False).returncode or (
        1 if failed else 0
    )


if __name__ == "__main__":
    sys.exit(main())
