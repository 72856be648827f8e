"""Processes beside this one that write what Python here cannot: calls and rows go by pipes.

A call is a line of JSON, `{"call": …, "arguments": {…}, "has_rows": …}`; an answer is one, too:
`{"result": …}` or `{"error": …, "kind": …}`. Rows are an Arrow stream right behind the line that
`has_rows`. A stream that is cut off between two batches looks whole: so rows of a call have a line
`end` behind them, and those of an answer one more answer, which says whether these are all. The end
of the input ends the process.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from mview.errors import RetryableError

#: Seconds that a process has to end by itself, when nobody asks it any more.
_END_S = 10

#: Processes of a kind at once: each takes 85 MB or more, however many views there are.
_MOST = 8

#: Seconds that one is waited for.
_TURN_S = 30.0

#: Processes of a kind that wait for a next sink: it takes seconds to start one.
_IDLE = 2


class WorkerError(Exception):
    """A call failed.

    Attributes:
        kind: the name of the exception's class there; `Gone`: the process ended.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """One process. For one thread.

    Args:
        what: what runs there, for messages.
        command: of the process.
    """

    def __init__(self, what: str, command: Sequence[str]) -> None:
        self._what = what
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls, self._answers = self._process.stdin, self._process.stdout
        #: Whether a call is under way: its pipes cannot take another one.
        self._is_busy = False
        #: The sink whose table it has connected to; None: any.
        self.user: object = None

    def call(self, name: str, rows: pa.RecordBatchReader | None = None, **arguments: Any) -> Any:
        """The result of a call.

        Args:
            name: of the call.
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
        return _result(answer)

    def _asked(
        self, name: str, rows: pa.RecordBatchReader | None, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        request = {"call": name, "arguments": arguments, "has_rows": rows is not None}
        try:
            self._calls.write(json.dumps(request).encode() + b"\n")
            self._calls.flush()
            if rows is not None:
                self._send(rows)
            line = self._answers.readline()
        except OSError as error:
            if self._process.poll() is None and not isinstance(error, BrokenPipeError):
                raise  # of the rows' source, not of the pipe
            line = b""
        return self._answer(line)

    def _answer(self, line: bytes) -> dict[str, Any]:
        if not line:
            raise WorkerError("Gone", f"the process with {self._what} ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

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
            answer = self._answer(self._answers.readline())
            self._is_busy = False
            _result(answer)

        return pa.RecordBatchReader.from_batches(stream.schema, read())

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return "; ".join((f"exit code {self._process.poll()}", *lines[-1:]))

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


def _result(answer: dict[str, Any]) -> Any:
    if "kind" in answer:
        raise WorkerError(answer["kind"], answer["error"])
    return answer["result"]


class WorkerPool:
    """Processes of one kind, each lent for a call or some: sinks may be more.

    Args:
        what: what runs there, for messages.
        command: of a process; asked when one is started.
        most: processes at once.
    """

    def __init__(self, what: str, command: Callable[[], Sequence[str]], most: int = _MOST) -> None:
        self._what, self._command, self._most = what, command, most
        #: Those that are not lent, the one that waits longest first.
        self._idle: list[Worker] = []
        self._started = 0
        self._changed = threading.Condition()
        atexit.register(self._end_all)

    def check(self) -> None:
        """Look whether there is what processes run with.

        Raises:
            ConfigError: it has not been made.
        """
        self._command()

    def take(self, before: Worker | None = None) -> Worker:
        """A process: the one that the sink had before, another one that waits, or a new one.

        Raises:
            ConfigError: what it runs with has not been made.
            RetryableError: all are lent.
        """
        until = time.monotonic() + _TURN_S
        while True:
            with self._changed:
                if before is not None and before in self._idle:
                    worker: Worker | None = before
                    self._idle.remove(before)
                elif free := [worker for worker in self._idle if worker.user is None]:
                    worker = free[-1]
                    self._idle.remove(worker)
                elif self._started < self._most:
                    worker = None
                    self._started += 1
                elif self._idle:
                    worker = self._idle.pop(0)
                elif self._changed.wait(until - time.monotonic()):
                    continue
                else:
                    raise RetryableError(
                        f"all processes for {self._what} are in use by other sinks",
                        got=f"{self._most} processes",
                        safe="nothing was written; what waits is kept",
                        hint="it is tried again; a first fill takes one until it is done",
                    )
            if worker is None:
                return self._new()
            if worker.is_idle:
                return worker
            self._end(worker)

    def give_back(self, worker: Worker) -> None:
        """Keep a process for who asks next; one that cannot be called is ended."""
        if not worker.is_idle:
            self._end(worker)
            return
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()

    def leave(self, user: object) -> None:
        """A sink needs none any more: the processes that were last its own are free, a few stay."""
        with self._changed:
            for worker in self._idle:
                if worker.user is user:
                    worker.user = None
            free = [worker for worker in self._idle if worker.user is None][_IDLE:]
            self._idle = [worker for worker in self._idle if worker not in free]
        for worker in free:
            self._end(worker)

    def _new(self) -> Worker:
        try:
            return Worker(self._what, self._command())
        except BaseException:
            self._less()
            raise

    def _end(self, worker: Worker) -> None:
        try:
            worker.end()
        finally:
            self._less()

    def _less(self) -> None:
        with self._changed:
            self._started -= 1
            self._changed.notify()

    def _end_all(self) -> None:
        while self._idle:
            self._idle.pop().end()
