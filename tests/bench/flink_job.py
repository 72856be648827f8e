"""A Flink SQL job from a JSON file: `python flink_job.py job.json`, by the Python that has Flink.

The file has `settings` (names and values) and `statements`; the last one runs until it is ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyflink.table import (  # type: ignore[import-not-found, unused-ignore]
    EnvironmentSettings,
    TableEnvironment,
)


def main() -> None:
    """Run the job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in job["settings"].items():
        tables.get_config().set(name, value)
    for statement in job["statements"][:-1]:
        tables.execute_sql(statement)
    tables.execute_sql(job["statements"][-1]).wait()


if __name__ == "__main__":
    main()
