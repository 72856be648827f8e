"""A real ClickHouse server, out of Debian's packages: unpacked into the cache, not installed."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from mview.java.jars import cache_folder
from tests.services.process import ServerProcess, ServiceError, free_port

_PASSWORD_VARIABLE = "MVIEW_TEST_CLICKHOUSE_PASSWORD"
_PASSWORD = "clickhouse-of-the-tests"
_CONFIG = """<yandex>
<logger><level>warning</level><console>1</console></logger>
<http_port>{http}</http_port><tcp_port>{tcp}</tcp_port><listen_host>127.0.0.1</listen_host>
<path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path>
<mark_cache_size>67108864</mark_cache_size><users_config>{folder}/users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<merge_tree><old_parts_lifetime>1</old_parts_lifetime></merge_tree>
</yandex>
"""
_USERS = """<yandex>
<profiles><default><max_memory_usage>2000000000</max_memory_usage></default></profiles>
<users><default><password>{password}</password><networks><ip>127.0.0.1</ip></networks>
<profile>default</profile><quota>default</quota></default></users>
<quotas><default/></quotas>
</yandex>
"""
#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def unpacked() -> Path:
    """The folder that `.ci/services` unpacks the packages into."""
    return cache_folder().parent / "clickhouse"


class ClickhouseServer:
    """A running server and what tests do with it."""

    def __init__(self, folder: Path) -> None:
        root = unpacked()
        program = root / "usr" / "sbin" / "clickhouse-server"
        if not program.exists():
            raise ServiceError(f"there is no {program}; run `make services`")
        self.port = free_port()
        self._names = count(1)
        config = folder / "config.xml"
        config.write_text(_CONFIG.format(http=self.port, tcp=free_port(), folder=folder))
        (folder / "users.xml").write_text(_USERS.format(password=_PASSWORD))
        libraries = [str(path) for path in sorted(root.glob("**/lib/*-linux-gnu"))]
        self._environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
        self._command = [program, f"--config-file={config}"]
        self._log = folder / "clickhouse.log"
        os.environ[_PASSWORD_VARIABLE] = _PASSWORD
        self.restart()

    @property
    def url(self) -> str:
        """Its HTTP interface."""
        return f"http://127.0.0.1:{self.port}"

    def settings(self, database: str) -> dict[str, Any]:
        """Keyword arguments of ClickhouseSettings."""
        password = f"${{env:{_PASSWORD_VARIABLE}}}"
        return {"type": "clickhouse", "url": self.url, "password": password, "database": database}

    @property
    def pid(self) -> int:
        """Its process."""
        return self._server.pid

    def restart(self) -> None:
        """Start it, with what it has on disk."""
        self._server = ServerProcess("ClickHouse", self._command, self._log, env=self._environment)
        self._server.wait_until_ready(lambda: self.execute("SELECT 1 AS a"))

    def kill(self) -> None:
        """End it at once."""
        self._server.kill()

    def stop(self) -> None:
        """End it."""
        self._server.kill()

    def execute(self, sql: str, database: str = "default") -> list[list[Any]]:
        """The rows of a SELECT as JSON has them; numbers of 64 bits are texts.

        Raises:
            ServiceError: the server's own words.
        """
        is_select = sql.lstrip().startswith("SELECT")
        query = f"{sql} FORMAT JSONCompact" if is_select else sql
        options = {"database": database, "user": "default", "password": _PASSWORD}
        request = urllib.request.Request(
            f"{self.url}/?{urllib.parse.urlencode(options)}", query.encode(), method="POST"
        )
        try:
            with _OPENER.open(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(error.read().decode(errors="replace")) from None
        if not is_select:
            return []
        rows: list[list[Any]] = json.loads(content)["data"]
        return rows

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The name of a fresh database, dropped at the end."""
        name = f"shop{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        yield name
        self.execute(f"DROP DATABASE {name}")
