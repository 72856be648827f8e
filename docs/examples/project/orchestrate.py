"""What a scheduler asks of mview: whether views are fresh, and how far they are.

Plain functions over the commands, for a PythonSensor or PythonOperator of Airflow, a sensor or an
asset check of Dagster, or a cron job. None of those is needed to import this file.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

#: `mview status --check-freshness` ends so where something is not fresh, and says why.
NOT_FRESH = 5
_SAID = "Error: not fresh: "


def status(config: str = "mview.yml") -> dict[str, Any]:
    """What `mview status --json` says: tables, views with their lag, sinks, the last failure.

    Raises:
        RuntimeError: the command failed, with its words.
    """
    answer: dict[str, Any] = json.loads(_mview("status", "--json", "--config", config).stdout)
    return answer


def not_fresh(config: str = "mview.yml") -> str:
    """Why something is not fresh, in one line; empty: all is. For an asset check, or an alert.

    Raises:
        RuntimeError: the command failed, with its words.
    """
    asked = _mview("status", "--check-freshness", "--config", config, also=NOT_FRESH)
    said = [line for line in asked.stderr.splitlines() if line.startswith(_SAID)]
    return "" if asked.returncode == 0 else said[0].removeprefix(_SAID)


def is_fresh(config: str = "mview.yml") -> bool:
    """Whether all views are as fresh as they promise: what a sensor pokes."""
    return not not_fresh(config)


def caught_up(view: str, since_ms: int, config: str = "mview.yml") -> bool:
    """Whether a view shows what was committed up to a time: for a job that must read its own write.

    Args:
        view: its name.
        since_ms: milliseconds since 1970, by the clock of the database.
        config: the configuration.
    """
    answer = status(config)
    published = {row["name"]: row for row in answer["views"]}
    watermark = answer["watermark"]
    if view not in published or published[view]["halted"]:
        return False
    return watermark is not None and watermark >= since_ms


def wait_until_fresh(config: str = "mview.yml", seconds: float = 600, every: float = 5) -> None:
    """Wait until all is fresh. For a task before those that read the views.

    Raises:
        TimeoutError: the reasons that are left.
        RuntimeError: the command failed, with its words.
    """
    until = time.monotonic() + seconds
    while reasons := not_fresh(config):
        if time.monotonic() > until:
            raise TimeoutError(reasons)
        time.sleep(every)


def _mview(*arguments: str, also: int = 0) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(["mview", *arguments], capture_output=True, text=True, check=False)
    if answer.returncode not in (0, also):
        raise RuntimeError(answer.stderr.strip() or f"mview ended with {answer.returncode}")
    return answer
