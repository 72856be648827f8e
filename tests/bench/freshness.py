"""A steady stream of changes through Kafka: how old is a change when it can be read in the view?

    python -m tests.bench.freshness --sf 0.1 --rate 300 --seconds 60

Freshness is from the call that sends a change to Kafka until a manifest covers its offset, which is
after the commit of the Delta table. A real `mview run` process; afterwards `mview verify`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from tests.bench.results import Result
from tests.bench.running import Run, running
from tests.bench.w1 import Change, Changes, make_tables

#: Seconds at the full rate before the measurement: the JVM compiles its hot code.
_WARM_UP = 15.0
_IDLE = 10.0
#: Seconds between two sends.
_TICK = 0.01


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", type=int, default=4 << 30)
    options = parser.parse_args()
    tables = make_tables(options.sf)
    variant = f"sf{options.sf:g}-{options.rate}"
    result = Result(
        "freshness",
        f"{options.rate} changes/s through Kafka, W1 at scale {options.sf:g}",
        ["what", "value"],
        variant if options.executor == "auto" else f"{variant}-{options.executor}",
    )
    extra = (
        f"engine: {{executor: {options.executor}, memory: {options.memory}}}\n"
        f"spark: {{master: '{options.master}'}}"
    )
    total = int(options.rate * (options.seconds + _WARM_UP))
    supply = Changes(tables)
    changes = supply.take(total)
    with running(tables, extra) as run:
        run.wait_until_live()
        time.sleep(5)
        idle = _cores(run, _IDLE)
        begin, end, cpu = _feed(run, changes, options.rate)
        run.drain()
        delays = np.array(run.delays(begin, end))
        epochs = sum(begin <= seen.at < end for seen in run.watch.epochs)
        peak = run.meter.peak_bytes
        run.stop()
        verified = run.verify()
    for percent in (50, 95, 99):
        result.add(f"freshness p{percent}, s", float(np.percentile(delays, percent)))
    result.add("freshness max, s", float(delays.max()))
    result.add("changes measured", len(delays))
    result.add("epochs/s", epochs / (end - begin))
    result.add("CPU cores, steady", cpu / (end - begin))
    result.add("CPU cores, idle", idle)
    result.add("peak RSS, MB", peak / 1e6)
    result.add("mview verify", verified)
    result.save()


def _cores(run: Run, seconds: float) -> float:
    before = run.meter.cpu_seconds()
    time.sleep(seconds)
    return (run.meter.cpu_seconds() - before) / seconds


def _feed(run: Run, changes: Sequence[Change], rate: int) -> tuple[float, float, float]:
    """Send all changes at the rate; returns begin and end of the measured part, and its CPU."""
    start = time.time()
    begin, cpu, sent = start + _WARM_UP, None, 0
    while sent < len(changes):
        now = time.time()
        if cpu is None and now >= begin:
            begin, cpu = now, run.meter.cpu_seconds()
        due = min(len(changes), int((now - start) * rate))
        run.send(changes[sent:due], sent + 1)
        sent = due
        run.poll()
        run.check()
        time.sleep(_TICK)
    assert cpu is not None
    return begin, time.time(), run.meter.cpu_seconds() - cpu


if __name__ == "__main__":
    main()
