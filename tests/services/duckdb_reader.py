"""DuckDB's reader of Iceberg: the tests' second opinion on what the sink writes.

Its extension is published for older versions of DuckDB than ours, so it is one apart, in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
from mview_connectors.followers.environments import SideEnvironment

from mview.testing.view import Row, rows_of
from tests.services.process import ending_with_parent
from tests.services.wheels import install

_LOCK = Path(__file__).with_name("duckdb_reader.lock")

ENVIRONMENT = SideEnvironment(
    name="DuckDB",
    tag=f"1.5-{sys.version_info.major}.{sys.version_info.minor}",
    sources=(_LOCK,),
    module="tests.services.duckdb_reader",
    build=partial(install, "DuckDB", _LOCK),
)

#: A request is the location of a table's metadata, and where the rows go, with a tab between.
_PROGRAM = """
import sys, duckdb, pyarrow as pa
from pathlib import Path
connection = duckdb.connect(config={"autoinstall_known_extensions": "false", "threads": 1})
for name in ("avro", "iceberg"):
    (file,) = Path(sys.argv[1]).glob(f"duckdb_extension_{name}/**/*.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
connection.execute("SET TimeZone = 'UTC'")
for line in sys.stdin:
    location, target = line.rstrip("\\n").split("\\t")
    try:
        rows = connection.execute("SELECT * FROM iceberg_scan(?)", [location]).to_arrow_table()
        with pa.OSFile(target, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        print("read", duckdb.__version__, flush=True)
    except Exception as error:
        print("error", " ".join(str(error).split()), flush=True)
"""


class DuckdbReader:
    """A process that reads tables on request."""

    def __init__(self, folder: Path) -> None:
        self._environment = ENVIRONMENT.made()
        self._target, self._log = folder / "rows.arrow", folder / "log"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ending_with_parent([sys.executable, "-c", _PROGRAM, self._environment]),
                env={**os.environ, "PYTHONPATH": str(self._environment)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )

    def read(self, metadata: str, names: Sequence[str]) -> list[Row]:
        """The rows of a table by its metadata file, timestamps as micros."""
        line = self._asked(metadata)
        if not line:
            # Once in some hundred reads it ended without a word: that is not what is tested.
            self.stop()
            self._process = self._start()
            line = self._asked(metadata)
        if line != "read 1.5.5":
            raise AssertionError(f"{line}\n{self._log.read_text()[-3000:]}")
        with pa.ipc.open_file(self._target) as file:
            return rows_of(file.read_all().select(list(names)))

    def _asked(self, metadata: str) -> str:
        """The answer; empty: the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(metadata, self._target, sep="\t", file=self._process.stdin, flush=True)
        return self._process.stdout.readline().rstrip()

    def stop(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main())
