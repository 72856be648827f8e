"""What a bench found: printed as a table, and kept as JSON for the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mview.config import EngineSettings

FOLDER = Path(__file__).with_name("measured")
#: Environment variable: where results go that are no measurements, e.g. of a trial.
_ELSEWHERE = "MVIEW_BENCH_RESULTS"

#: Bytes for mirrors in process that benches give by default: the engine's own default.
MEMORY = EngineSettings().memory

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "duckdb", "pyarrow", "confluent-kafka")


def machine() -> dict[str, str]:
    """What the figures depend on: cores, memory, versions, and how busy the machine is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


@dataclass
class Result:
    """The table of one bench.

    Attributes:
        bench: name of the program.
        title: what was measured.
        columns: heads of the table.
        rows: cells, as shown.
        notes: how the figures were got.
        variant: sets runs with other options apart, e.g. `sf1`.
    """

    bench: str
    title: str
    columns: Sequence[str]
    variant: str = ""
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=machine)
    when: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    command: str = field(default_factory=lambda: _command())

    def add(self, *cells: Any) -> None:
        """Add a row and print it."""
        self.rows.append([_shown(cell) for cell in cells])
        print("  ".join(self.rows[-1]), flush=True)

    def keep(self) -> None:
        """Write what there is so far; replaces the last result of the same variant."""
        self.machine["load after"] = " ".join(f"{load:.1f}" for load in os.getloadavg())
        folder = Path(os.environ.get(_ELSEWHERE, FOLDER))
        folder.mkdir(exist_ok=True)
        name = f"{self.bench}-{self.variant}" if self.variant else self.bench
        (folder / f"{name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    def save(self) -> None:
        """Print the whole table and keep it."""
        self.keep()
        print(as_text(self))

    def numbers(self, column: str) -> list[float]:
        """The cells of a column as they are shown, as numbers."""
        place = list(self.columns).index(column)
        return [float(row[place].replace(",", "")) for row in self.rows]


def variant_of(options: argparse.Namespace, *more: str) -> str:
    """The name of a variant: the scale, and options that are not at their default.

    Args:
        options: as parsed; `sf`, and if there `executor`, `memory`, `deletion_vectors`, `kill`.
        more: other options to tell variants by.
    """
    parts = [f"sf{options.sf:g}"]
    usual = {"executor": "auto", "memory": MEMORY, "keys": "uniform", "view": "order"}
    for name in (*more, "executor", "memory", "deletion_vectors", "kill"):
        value = getattr(options, name, None)
        if value is True:
            parts.append(name.replace("_", "-"))
        elif value not in (None, False, "", usual.get(name)):
            parts.append(f"memory{value >> 20}" if name == "memory" else str(value))
    return "-".join(parts)


def _command() -> str:
    return " ".join(["python -m", f"tests.bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def _shown(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def as_markdown(result: Result) -> str:
    """The table for the report."""
    lines = [" | ".join(result.columns), " | ".join("---" for _ in result.columns)]
    lines += [" | ".join(row) for row in result.rows]
    return "\n".join(f"| {line} |" for line in lines)


def as_text(result: Result) -> str:
    """The table for a terminal, machine and versions on top."""
    head = [f"{name}: {value}" for name, value in result.machine.items()]
    return "\n".join([result.title, *head, as_markdown(result), *result.notes])


def read_all() -> list[Result]:
    """All results that are kept."""
    return [Result(**json.loads(file.read_text())) for file in sorted(FOLDER.glob("*.json"))]
