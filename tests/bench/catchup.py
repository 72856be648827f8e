"""A burst of changes through Kafka: how fast does a live view catch up?

    python -m tests.bench.catchup --sf 0.1 --changes 100000

From the first send until a manifest covers all offsets, the view being live and idle before. A real
`mview run` process; afterwards `mview verify`.
"""

from __future__ import annotations

import argparse
import time

from tests.bench.results import MEMORY, Result, variant_of
from tests.bench.running import running
from tests.bench.w1 import CONNECTION, Changes, make_tables, message


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--memory", type=int, default=MEMORY)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--deletion-vectors", action="store_true")
    options = parser.parse_args()
    tables = make_tables(options.sf)
    result = Result(
        "catchup",
        f"A burst of {options.changes:,} changes through Kafka, W1 at scale {options.sf:g}"
        + (", deletion vectors" if options.deletion_vectors else ""),
        ["what", "value"],
        variant_of(options),
    )
    stamp = int(time.time() * 1000)
    encoded = [
        (f"{CONNECTION}.{change.table}", message(change, number + 1, stamp))
        for number, change in enumerate(Changes(tables).take(options.changes))
    ]
    extra = (
        f"engine: {{executor: {options.executor}, memory: {options.memory}}}\n"
        f"spark: {{master: '{options.master}'}}"
    )
    with running(tables, extra, options.deletion_vectors) as run:
        run.wait_until_live()
        time.sleep(10)
        cpu, begin, epochs = run.meter.cpu_seconds(), time.time(), len(run.watch.epochs)
        for number, (topic, value) in enumerate(encoded):
            run.send_encoded(topic, value)
            if number % 500 == 0:
                run.poll()
        sent = time.time() - begin
        last = run.drain()
        seconds, cpu = last.at - begin, run.meter.cpu_seconds() - cpu
        epochs = sum(seen.at <= last.at for seen in run.watch.epochs) - epochs
        peak = run.meter.peak_bytes
        run.stop()
        disk = run.disk_bytes()
        verified = run.verify()
    result.add("changes/s", options.changes / seconds)
    result.add("seconds", seconds)
    result.add("of these until all was sent", sent)
    result.add("epochs", epochs)
    result.add("CPU seconds", cpu)
    result.add("peak RSS, MB", peak / 1e6)
    result.add("store on disk, MB", sum(disk.values()) / 1e6)
    result.add("mview verify", verified)
    result.save()


if __name__ == "__main__":
    main()
