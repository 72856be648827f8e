"""Processes with pypaimon: calls and rows go in and out by pipes; `worker/main.py` answers."""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from mview_connectors.followers.paimon.environment import interpreter

_START = "import sys; sys.path.insert(0, sys.argv[1]); from worker.main import main; main()"

#: Seconds that a process has to end by itself, when nobody asks it any more.
_END_S = 10

#: Processes that wait for a next sink: it takes seconds to start one.
_idle: list[Worker] = []
_IDLE = 2
_lock = threading.Lock()


class WorkerError(Exception):
    """A call failed.

    Attributes:
        kind: the name of the exception's class there; `Gone`: the process ended.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """One process. For one thread."""

    def __init__(self) -> None:
        python = str(interpreter())
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        self._process = subprocess.Popen(
            [python, "-I", "-c", _START, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls, self._answers = self._process.stdin, self._process.stdout
        #: Whether a call is under way: its pipes cannot take another one.
        self._is_busy = False

    def call(self, name: str, rows: pa.RecordBatchReader | None = None, **arguments: Any) -> Any:
        """The result of a call.

        Args:
            name: of a method of `worker.table.PaimonSink`.
            rows: go with it.
            arguments: JSON-able.

        Returns:
            What is JSON-able, or a reader of rows, to be read to its end.

        Raises:
            WorkerError: it failed there.
        """
        self._is_busy = True
        answer = self._asked(name, rows, arguments)
        if answer.get("has_rows"):
            return self._rows()
        self._is_busy = False
        if "kind" in answer:
            raise WorkerError(answer["kind"], answer["error"])
        return answer["result"]

    def _asked(
        self, name: str, rows: pa.RecordBatchReader | None, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        request = {"call": name, "arguments": arguments, "has_rows": rows is not None}
        try:
            self._calls.write(json.dumps(request).encode() + b"\n")
            self._calls.flush()
            if rows is not None:
                self._send(rows)
            answer = self._answers.readline()
        except OSError as error:
            if self._process.poll() is None and not isinstance(error, BrokenPipeError):
                raise  # of the rows' source, not of the pipe
            answer = b""
        if not answer:
            raise WorkerError("Gone", f"the process with pypaimon ended: {self._last_words()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _send(self, rows: pa.RecordBatchReader) -> None:
        # Without an end where the source fails: what was sent must not pass for all.
        stream = pa.ipc.new_stream(self._calls, rows.schema)
        for batch in rows:
            stream.write_batch(batch)
        stream.close()
        self._calls.write(b"end\n")
        self._calls.flush()

    def _rows(self) -> pa.RecordBatchReader:
        try:
            stream = pa.ipc.open_stream(self._answers)
        except pa.ArrowInvalid as error:
            raise WorkerError("Gone", f"{error}: {self._last_words()}") from error

        def read() -> Iterator[pa.RecordBatch]:
            try:
                yield from stream
            except (pa.ArrowInvalid, OSError) as error:
                raise WorkerError("Gone", f"{error}: {self._last_words()}") from error
            self._is_busy = False

        return pa.RecordBatchReader.from_batches(stream.schema, read())

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.poll()}"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it can be called."""
        return not self._is_busy and self._process.poll() is None

    def end(self) -> None:
        """End the process: it removes what it has under way, unless it takes too long."""
        with suppress(OSError):
            self._calls.close()
        self._answers.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def take() -> Worker:
    """A process that waits, or a new one."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.is_idle:
                return worker
            worker.end()
    return Worker()


def give_back(worker: Worker) -> None:
    """Keep a process for the next sink, or end it."""
    with _lock:
        if worker.is_idle and len(_idle) < _IDLE:
            _idle.append(worker)
            return
    worker.end()


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()
