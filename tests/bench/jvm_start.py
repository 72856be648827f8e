"""What a start of Spark costs with the archive of its classes, and without.

    python -m tests.bench.jvm_start

Each start is a process of its own: a session, and a Delta table of a thousand rows that is written
and grouped. Seconds, and CPU seconds of the process with its JVM and workers, in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from mview.config import Config
from mview.java.jars import cache_folder
from mview.session.spark import spark_session
from tests.bench.results import Result

#: Who decides about archives has Java's own alone.
_WITHOUT = "-Xshare:auto"
_WAIT_S = 120.0


def _cpu() -> float:
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def start(options: str) -> dict[str, list[float]]:
    """Start Spark in this process; returns seconds and CPU seconds, by what was done."""
    folder = Path(tempfile.mkdtemp(prefix="mview-bench-"))
    section = {"master": "local[2]", "conf": {"spark.driver.extraJavaOptions": options}}
    config = Config(path=folder / "mview.yml", store=folder / "store", spark=section)
    began, used = time.monotonic(), _cpu()
    spark = spark_session(config)
    there, used_there = time.monotonic(), _cpu()
    rows = spark.range(1000).selectExpr("id", "id % 7 AS k")
    rows.write.format("delta").save(str(folder / "table"))
    spark.read.format("delta").load(str(folder / "table")).groupBy("k").count().collect()
    return {
        "session": [there - began, used_there - used],
        "first Delta table": [time.monotonic() - there, _cpu() - used_there],
    }


def _started(options: str) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "tests.bench.jvm_start", f"--start={options}"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    return measured


def _have_archive() -> None:
    """Start until there is one: a JVM writes it after its process has ended."""
    end = time.monotonic() + _WAIT_S
    while not list(cache_folder().parent.glob("classes-*/*.jsa")):
        if time.monotonic() > end:
            raise TimeoutError("no archive was written")
        _started("")


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start is not None:
        print(json.dumps(start(options.start)))
        return
    columns = ["archive of classes", "what", "seconds", "CPU s"]
    result = Result("jvm_start", "A start of Spark and a first Delta table", columns)
    _have_archive()
    kinds = {"without": _WITHOUT, "with": ""}
    _started("")
    rounds = [{k: _started(said) for k, said in kinds.items()} for _ in range(options.rounds)]
    for what in rounds[0]["with"]:
        for kind in kinds:
            seconds, used = zip(*(measured[kind][what] for measured in rounds), strict=True)
            result.add(kind, what, median(seconds), median(used))
    result.notes.append(f"medians of {options.rounds} rounds in turns")
    result.save()


if __name__ == "__main__":
    main()
