"""A real Prometheus that reads one page of metrics every second."""

from __future__ import annotations

import json
import os
import shutil
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from mview.java.jars import cache_folder
from tests.services.process import ServerProcess, ServiceError, free_port, run

#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def program(name: str) -> str:
    """One of Prometheus' programs: the system's, or what `.ci/services` has unpacked.

    Raises:
        ServiceError: it is not there.
    """
    unpacked = cache_folder().parent / "prometheus" / "usr" / "bin"
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}{unpacked}")
    if path is None:
        raise ServiceError(f"there is no {name}; run `make services`")
    return path


class PrometheusServer:
    """A running server.

    Args:
        folder: for its data.
        target: host and port that have `/metrics`.
        rules: a file of alerting rules, which is checked before.
    """

    def __init__(self, folder: Path, target: str, rules: Path) -> None:
        run("promtool", [program("promtool"), "check", "rules", rules])
        config = folder / "prometheus.yml"
        scraped = {"job_name": "mview", "static_configs": [{"targets": [target]}]}
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        told = {"global": every, "rule_files": [str(rules)], "scrape_configs": [scraped]}
        config.write_text(yaml.safe_dump(told))
        run("promtool", [program("promtool"), "check", "config", config])
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        command = [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._server = ServerProcess("Prometheus", command, folder / "prometheus.log")
        self._server.wait_until_ready(lambda: self.query("up == 1"))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now.

        Raises:
            OSError: Prometheus refuses it.
        """
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def values(self, label: str, series: str) -> list[str]:
        """The values that a label of a series has."""
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return values

    def rules(self) -> list[dict[str, Any]]:
        """The rules, with `health` and `lastError`."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **asked: str) -> Any:
        url = f"{self._url}/{what}?{urllib.parse.urlencode(asked)}"
        with _OPENER.open(url, timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def stop(self) -> None:
        """End it."""
        self._server.kill()
