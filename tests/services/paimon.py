"""Paimon's own reader, of its Java bundle: the tests' second opinion on what the sink writes."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark

from mview.java.jars import resolve
from tests.services.kafka import LOCK
from tests.services.process import ServiceError, ending_with_parent

_SOURCE = Path(__file__).with_name("PaimonReader.java")

Row = tuple[Any, ...]


class PaimonReader:
    """A JVM that reads tables on request."""

    def __init__(self, folder: Path) -> None:
        java, javac = shutil.which("java"), shutil.which("javac")
        if java is None or javac is None:
            raise ServiceError("there is no javac: apt-get install openjdk-17-jdk-headless")
        jars = Path(pyspark.__file__).parent / "jars"
        # The bundle has no Hadoop, whose settings its catalogs look for.
        hadoop = sorted(jars.glob("hadoop-client-*.jar"))
        path = ":".join(str(one) for one in (folder, *resolve("paimon", LOCK), *hadoop))
        subprocess.run([javac, "-cp", path, "-d", str(folder), str(_SOURCE)], check=True)
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ending_with_parent([java, "-Xmx512m", "-cp", path, "PaimonReader"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        self._log = folder / "log"

    def read(
        self, warehouse: Path, database: str, table: str, schema: pa.Schema
    ) -> list[Row] | None:
        """The rows of a table by their columns, timestamps as micros; None: there is none."""
        lines = self._asked("rows", warehouse, database, table)
        if lines is None:
            return None
        kinds = schema.types
        return [
            tuple(_value(one, kind) for one, kind in zip(json.loads(line), kinds, strict=True))
            for line in lines
        ]

    def files(self, warehouse: Path, database: str, table: str) -> int:
        """How many files a reader of a table opens."""
        lines = self._asked("files", warehouse, database, table)
        assert lines is not None
        return int(lines[0])

    def _asked(self, *request: object) -> list[str] | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*request, sep="\t", file=self._process.stdin, flush=True)
        lines: list[str] = []
        for line in self._process.stdout:
            if line == "end\n":
                return lines
            if line == "none\n":
                return None
            if line.startswith("error"):
                raise AssertionError(f"{line}\n{self._log.read_text()[-3000:]}")
            lines.append(line)
        raise AssertionError(f"the reader ended\n{self._log.read_text()[-3000:]}")

    def stop(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        self._process.kill()
        self._process.wait()


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if pa.types.is_list(kind):
        return [_value(one, kind.value_type) for one in value]
    if pa.types.is_binary(kind):
        return bytes.fromhex(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_floating(kind):
        # Java's shortest text of a float is that of its own precision.
        return pa.scalar(float(value), pa.float64()).cast(kind).as_py()
    if pa.types.is_date(kind):
        return pa.scalar(int(value), pa.int32()).cast(kind).as_py()
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        return int(value)
    return value
