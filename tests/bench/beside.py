"""How fresh a view stays while another one is built, and one that is there is built anew.

    python -m tests.bench.beside --sf 0.1 --rate 300

Changes come through Kafka all the time, to a real `mview run` process of W1's view. After a while
it is asked to take up another view of the same tables, as `mview apply` does; then for another
text of that one. Freshness is told as `freshness` does: of what was sent while nothing else went
on, and of what was sent from each request until an epoch shows what was asked for. In the end,
`mview verify`.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mview.plan.definition import parse_view
from mview.store.requests.applies import ApplyLog, ApplyRequest
from tests.bench.freshness import add_percentiles
from tests.bench.results import Result
from tests.bench.running import Run, Seen, running
from tests.bench.w1 import Changes, make_tables, view_sql

#: Seconds at the full rate before anything is measured, and of it with nothing beside.
_WARM_UP, _ALONE = 15.0, 20.0
#: Seconds between two sends.
_TICK = 0.01

_NAME = "built_beside"
_FIRST = (
    "SELECT c.c_nationkey, o.o_orderkey, count(*) AS lines, sum(l.l_extendedprice) AS total"
    " FROM {lineitem} l JOIN {orders} o ON o.o_orderkey = l.l_orderkey"
    " JOIN {customer} c ON c.c_custkey = o.o_custkey"
    " GROUP BY c.c_nationkey, o.o_orderkey"
)
_THEN = _FIRST.replace("count(*) AS lines", "count(*) AS many, max(l.l_linenumber) AS last")


@contextmanager
def feeding(run: Run, changes: Changes, rate: int) -> Iterator[None]:
    """Send changes at a rate, in a thread."""
    ended = threading.Event()

    def feed() -> None:
        start, sent = time.time(), 0
        while not ended.wait(_TICK):
            due = int((time.time() - start) * rate)
            run.send(changes.take(due - sent), sent + 1)
            sent = due
            run.poll()

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--rate", type=int, default=300)
    options = parser.parse_args()
    tables = make_tables(options.sf)
    result = Result(
        "beside",
        f"{options.rate} changes/s through Kafka while a view is built, W1 at scale {options.sf:g}",
        ["what", "value"],
        f"sf{options.sf:g}-{options.rate}",
    )
    with running(tables, "spark: {master: 'local[2]'}", True) as run:
        run.wait_until_live()
        with feeding(run, Changes(tables), options.rate):
            time.sleep(_WARM_UP)
            alone = (time.time(), time.time() + _ALONE)
            time.sleep(_ALONE)
            added = _asked(run, _FIRST, lambda seen: _NAME in seen.manifest.views)
            epoch = run.watch.epochs[-1].manifest.views[_NAME].built_epoch
            time.sleep(5)
            changed = _asked(
                run, _THEN, lambda seen: seen.manifest.views[_NAME].built_epoch > epoch
            )
            time.sleep(5)
        run.drain()
        spans = {"alone": alone, "view added": added, "view changed": changed}
        for what, (begin, end) in spans.items():
            if what != "alone":
                result.add(f"{what}: until it is shown, s", end - begin)
            add_percentiles(result, f"{what}: freshness", run.delays(begin, end)[:, 1])
        result.add("peak RSS, MB", run.meter.peak_bytes / 1e6)
        run.stop()
        result.add("mview verify", run.verify())
    result.save()


def _asked(run: Run, text: str, done: Callable[[Seen], bool]) -> tuple[float, float]:
    """Ask for a view; returns when that was, and when an epoch showed it."""
    view = parse_view(view_sql(text, _NAME), _NAME)
    begin, looked = time.time(), len(run.watch.epochs)
    ApplyLog(run.store.applies).ask(ApplyRequest((view,)))
    while True:
        run.check()
        fresh = run.watch.epochs[looked:]
        for seen in fresh:
            if done(seen):
                return begin, seen.at
        looked += len(fresh)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
