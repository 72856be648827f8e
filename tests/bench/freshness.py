"""A steady stream of changes through Kafka: how old is a change when it can be read in the view?

    python -m tests.bench.freshness --sf 0.1 --rate 300 --seconds 60

Freshness is from the call that sends a change to Kafka until a manifest covers its offset, which is
after the commit of the Delta table. A real `mview run` process; afterwards `mview verify`. With
`--kill`, the process is killed (-9) in the middle and started again by the same command. With
`--sinks clickhouse,kafka` these follow the view, and it is told how old a change is when they have
it: until the store notes their commit. With `--joins` there are three views over the same tables: a
join, and two aggregates of one; a change counts when all of them have it, as they share epochs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.bench.results import MEMORY, Result, variant_of
from tests.bench.running import W1_VIEW, Run, running
from tests.bench.strategies import VIEWS
from tests.bench.w1 import VIEW, Change, Changes, make_tables
from tests.connectors.every_sink import PLACES

#: Three joins of all tables: a row per line, per order, and per nation.
_JOINS = {
    W1_VIEW: VIEW,
    "lines": VIEWS["join"],
    "nation_revenue": VIEWS["join, aggregate by nation"],
}

#: Seconds at the full rate before the measurement: the JVM compiles its hot code.
_WARM_UP = 15.0
#: Seconds without changes before those that count as idle, for what the JVM still compiles.
_SETTLE, _IDLE = 15.0, 10.0
#: Seconds between two sends.
_TICK = 0.01
#: Seconds of freshness at which a run counts as recovered from a kill.
_FRESH = 2.0


@dataclass
class Steady:
    """The measured part of a stream of changes: times of the wall clock, and CPU seconds."""

    begin: float
    end: float = 0.0
    cpu: float = 0.0
    killed: float | None = None


def main() -> None:
    """Measure and keep the result."""
    options = _options()
    tables = make_tables(options.sf)
    vectors = options.deletion_vectors
    sinks = [name for name in options.sinks.split(",") if name]
    result = Result(
        "freshness",
        f"{options.rate:,} changes/s through Kafka, W1 at scale {options.sf:g}"
        + (", three join views" if options.joins else "")
        + (f", {options.executor} executor" if options.executor != "auto" else "")
        + (f", {options.memory / 1e6:,.0f} MB for mirrors" if options.memory != MEMORY else "")
        + (", deletion vectors" if vectors else "")
        + (f", into {', '.join(sinks)}" if sinks else "")
        + (f", a commit every {options.every}" if options.every else "")
        + (", kill -9 in the middle" if options.kill else ""),
        ["what", "value"],
        variant_of(options, "rate", "joins", "sinks", "every"),
    )
    extra = (
        f"engine: {{executor: {options.executor}, memory: {options.memory}}}\n"
        f"spark: {{master: '{options.master}'}}"
    )
    changes = Changes(tables).take(int(options.rate * (options.seconds + _WARM_UP)))
    views = _JOINS if options.joins else {W1_VIEW: VIEW}
    with running(tables, extra, vectors, sinks, options.every, views) as run:
        run.wait_for_sinks(run.wait_until_live())
        time.sleep(_SETTLE)
        idle = _cores(run, _IDLE)
        kill_after = _WARM_UP + options.seconds / 2 if options.kill else None
        steady = feed(run, changes, options.rate, kill_after)
        run.wait_for_sinks(run.drain())
        add_freshness(result, run, steady)
        for sink in sinks:
            add_percentiles(result, f"in {sink}", run.delays(steady.begin, steady.end, sink)[:, 1])
        result.add("CPU cores, idle", idle)
        result.add("peak RSS, MB", run.meter.peak_bytes / 1e6)
        run.stop()
        for name, size in run.disk_bytes().items():
            result.add(f"store on disk, {name}, MB", size / 1e6)
        result.add("mview verify", run.verify())
    result.save()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", type=int, default=MEMORY, help="bytes for mirrors in process")
    parser.add_argument("--sinks", default="", help=", ".join(PLACES))
    parser.add_argument("--every", default="", help="between two commits, for sinks that wait")
    parser.add_argument("--joins", action="store_true", help="three views instead of one")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--deletion-vectors", action="store_true")
    return parser.parse_args()


def _cores(run: Run, seconds: float) -> float:
    before = run.meter.cpu_seconds()
    time.sleep(seconds)
    return (run.meter.cpu_seconds() - before) / seconds


def feed(run: Run, changes: Sequence[Change], rate: int, kill_after: float | None) -> Steady:
    """Send all changes at the rate; measured is what comes after the warm-up.

    Args:
        run: it is live.
        changes: all of W1.
        rate: changes per second.
        kill_after: seconds after which the process is killed and started again, if at all.
    """
    start = time.time()
    steady, measured, sent = Steady(start + _WARM_UP), False, 0
    while sent < len(changes):
        now = time.time()
        if not measured and now >= steady.begin:
            measured = True
            steady.begin, steady.cpu = now, run.meter.cpu_seconds()
        if kill_after is not None and steady.killed is None and now >= start + kill_after:
            steady.killed = now
            run.kill_and_restart()
        due = min(len(changes), int((now - start) * rate))
        run.send(changes[sent:due], sent + 1)
        sent = due
        run.poll()
        run.check()
        time.sleep(_TICK)
    steady.end, steady.cpu = time.time(), run.meter.cpu_seconds() - steady.cpu
    return steady


def add_freshness(result: Result, run: Run, steady: Steady) -> None:
    """Rows for how fresh the view was in the measured part, and after a kill."""
    sent = run.delays(steady.begin, steady.end)
    add_percentiles(result, "freshness", sent[:, 1])
    if steady.killed is not None:
        after = [epoch.at for epoch in run.watch.epochs if epoch.at > steady.killed]
        result.add("from the kill to the next epoch, s", after[0] - steady.killed)
        seen = sent.sum(axis=1)
        late = seen[(sent[:, 1] > _FRESH) & (seen > steady.killed)]
        recovered = late.max() if len(late) else after[0]
        result.add(
            f"from the kill until fresh within {_FRESH:g} s again, s", recovered - steady.killed
        )
        quiet = sent[(seen <= steady.killed) | (sent[:, 0] > recovered)]
        if len(quiet):
            add_percentiles(result, "freshness outside of that", quiet[:, 1])
    epochs = sum(steady.begin <= epoch.at < steady.end for epoch in run.watch.epochs)
    seconds = steady.end - steady.begin
    result.add("changes measured", len(sent))
    result.add("epochs/s", epochs / seconds)
    result.add("CPU cores, steady", steady.cpu / seconds)


def add_percentiles(result: Result, what: str, delays: npt.NDArray[np.float64]) -> None:
    """Rows for p50, p95, p99 and the maximum of some delays (seconds)."""
    for percent in (50, 95, 99):
        result.add(f"{what} p{percent}, s", float(np.percentile(delays, percent)))
    result.add(f"{what} max, s", float(delays.max()))


if __name__ == "__main__":
    main()
