"""All benches, or the named ones, and then the report: `python -m tests.bench [names] [--sf …]`.

Each runs in a process of its own, so that none warms up or burdens another. Names may be given
with `:` and a set of options, e.g. `freshness:kill`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

#: The default set in its order: program, then options. {sf} is each scale in turn, {scales} all.
_BENCHES: dict[str, tuple[str, ...]] = {
    "bulk_load": (),
    "verify_source": (),
    "epoch": ("--sf", "{sf}"),
    "epoch:vectors": ("--sf", "{sf}", "--deletion-vectors", "--executors", "local"),
    "epoch:nation": ("--sf", "{sf}", "--view", "nation", "--executors", "local"),
    "first_build": ("--sf", "{sf}"),
    "growth": ("--sf", "{scales}"),
    "views": ("--sf", "{sf}"),
    "strategies": ("--sf", "{sf}"),
    "full": ("--sf", "{sf}"),
    "freshness": ("--sf", "{sf}"),
    "freshness:slow": ("--sf", "{sf}", "--rate", "30"),
    "freshness:fast": ("--sf", "{sf}", "--rate", "3000"),
    "freshness:joins": ("--sf", "{sf}", "--rate", "10000", "--joins", "--seconds", "180"),
    "freshness:vectors": ("--sf", "{sf}", "--deletion-vectors"),
    "freshness:kill": ("--sf", "{sf}", "--kill"),
    "freshness:memory": ("--sf", "{sf}", "--memory", "1000000"),
    "beside": ("--sf", "{sf}"),
    "catchup": ("--sf", "{sf}"),
    "catchup:vectors": ("--sf", "{sf}", "--deletion-vectors"),
    "decode": (),
    "connections": (),
    "restart": ("--sf", "{sf}"),
    "restart:views": ("--sf", "{sf}", "--views", "50"),
    "jvm_start": (),
    "memory": (),
    "memory:wide": ("--rows", "1200", "--width", "900000", "--changes", "80"),
    "pauses": (),
    "keys": (),
    "load_live": ("--sf", "{sf}"),
    "w2": (),
    "write_amplification": (),
    "followers": (),
    "light": (),
    "peers": ("--sf", "{sf}"),
}

#: Not in the default set: it fetches a large package first.
_ON_DEMAND = ("peers",)


def _commands(name: str, scales: str) -> list[list[str]]:
    options = _BENCHES[name]
    program = [sys.executable, "-m", f"tests.bench.{name.partition(':')[0]}"]
    # What does not depend on the scale runs once.
    turns = scales.split(",") if "{sf}" in options else [""]
    return [[*program, *(o.format(sf=sf, scales=scales) for o in options)] for sf in turns]


def main() -> int:
    """Run the benches; returns 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    usual = [name for name in _BENCHES if name not in _ON_DEMAND]
    parser.add_argument("names", nargs="*", default=usual, help=", ".join(_BENCHES))
    parser.add_argument("--sf", default="0.1", help="scale factors, e.g. 0.1,1")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in _BENCHES]:
        parser.error(f"there is no bench {unknown[0]!r}; there are {', '.join(_BENCHES)}")
    failed = 0
    for name in options.names:
        for command in _commands(name, options.sf):
            print(" ".join(command[1:]), flush=True)
            failed |= subprocess.run(command, check=False).returncode != 0
    return subprocess.run([sys.executable, "-m", "tests.bench.report"], check=False).returncode or (
        1 if failed else 0
    )


if __name__ == "__main__":
    sys.exit(main())
