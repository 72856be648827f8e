"""A standalone Spark cluster out of pyspark: a master and two workers of one core."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pyspark

from tests.services.process import ServerProcess, free_port

_WORKERS = 2


class SparkCluster:
    """A running cluster. The test process may have a local session: use another process."""

    def __init__(self, folder: Path) -> None:
        home = Path(pyspark.__file__).parent
        self._environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            # The REST server has a fixed port, which a second cluster on this machine would take.
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:+UseSerialGC",
        }
        self._spark_class, self._folder = home / "bin" / "spark-class", folder
        self._servers: list[ServerProcess] = []
        port, page = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._page = f"http://127.0.0.1:{page}/json/"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        place = ("--host", "127.0.0.1")
        try:
            self._start(
                "master.Master", "master", *place, "--port", port, "--webui-port", page
            ).wait_until_ready(lambda: self._state()["status"] == "ALIVE")
            for number in range(_WORKERS):
                size = ("--cores", 1, "--memory", "1g", "--webui-port", 0)
                work = ("--work-dir", folder / f"work{number}", self.master)
                self._start("worker.Worker", f"worker{number}", *place, *size, *work)
            self._servers[-1].wait_until_ready(lambda: self._state()["aliveworkers"] == _WORKERS)
        except BaseException:
            self.stop()
            raise

    def _start(self, main: str, name: str, *arguments: object) -> ServerProcess:
        command = [self._spark_class, f"org.apache.spark.deploy.{main}", *map(str, arguments)]
        server = ServerProcess(
            f"Spark {name}", command, self._folder / f"{name}.log", env=self._environment
        )
        self._servers.append(server)
        return server

    def _state(self) -> dict[str, Any]:
        with self._opener.open(self._page, timeout=10) as answer:
            state: dict[str, Any] = json.loads(answer.read())
        return state

    def settings(self, **conf: str) -> dict[str, Any]:
        """The `spark:` section of a configuration that runs on this cluster."""
        small = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "768m",
            "spark.executor.cores": "1",
        }
        return {"master": self.master, "conf": small | conf}

    def stop(self) -> None:
        """End all processes, executors too."""
        for server in reversed(self._servers):
            server.kill()
