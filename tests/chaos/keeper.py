"""Keeps a JVM for drivers that come and go: `python -m tests.chaos.keeper FOLDER`.

Prints where it is. For every line that it gets it ends what the last driver has left behind, and
says so; at the end of its input the JVM ends.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from mview.configfile import load_config
from mview.session.spark import spark_session

#: Milliseconds that a query may take to end.
_STOP_MS = "20000"


def main(folder: Path) -> None:
    config = load_config(folder / "mview.yml")
    session = spark_session(config)
    session.conf.set("spark.sql.streaming.stopTimeout", _STOP_MS)
    parameters = SparkContext._gateway.java_parameters
    place = {
        "PYSPARK_GATEWAY_PORT": str(parameters.port),
        "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
    }
    print(json.dumps(place), flush=True)
    for _ in sys.stdin:
        forget(session)
        print("done", flush=True)
    session.stop()


def forget(session: SparkSession) -> None:
    """End and forget all that is as if the JVM were a new one."""
    for query in session.streams.active:
        with suppress(Exception):  # it fails at the driver that is gone
            query.stop()
    session.sparkContext.cancelAllJobs()
    session.catalog.clearCache()
    getattr(session.sparkContext._jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
