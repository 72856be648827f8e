"""A process beside this one that reads changelogs, so that a burst of changes has two cores.

To read a change takes twice as long as all the rest of its epoch, and threads of one Python share
one core. It reads what a task of Spark would, in the same way, and needs no Spark. What it cannot
read is read by who has asked: there an error has its place and its hint.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe

import pyarrow as pa

from mview.changelog import STREAM_ARROW, from_ipc, to_ipc
from mview.ingest.changelogs import Changelogs, Piece, import_readers

#: Seconds that a piece may take: twice as long as a broker that is away takes to be told.
_PATIENCE_S = 60.0


class ReaderProcess:
    """Reads pieces of a query's changelogs. For one thread.

    Args:
        spec: the query's, as `QuerySpec.write` names it.
        say: is told when the process has ended too early.
    """

    def __init__(self, spec: str, say: Callable[[str], None] = lambda _: None) -> None:
        self._spec, self._say = spec, say
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = self._is_over = False

    def begin(self) -> None:
        """Start it, unless that was done; nobody waits for it."""
        if self._connection is not None or self._is_over:
            return
        self._connection, theirs = Pipe()
        with theirs:
            handle = theirs.fileno()
            module = "mview.ingest.burst.process"
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(handle), self._spec],
                    pass_fds=[handle],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C is a word to the run, which finishes its epoch.
                    start_new_session=True,
                    env={**os.environ, "PYTHONSAFEPATH": "1"},
                )
            except OSError as error:
                self._give_up(str(error))

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none."""
        return None if self._process is None else self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked."""
        connection = self._connection
        if connection is not None and not self._is_ready:
            try:
                if connection.poll():
                    connection.recv_bytes()
                    self._is_ready = True
            except (EOFError, OSError):
                self._give_up()
        return self._is_ready

    def ask(self, pieces: Sequence[Piece]) -> bool:
        """Have it read pieces; whether it does. Then `answer` is to be called before the next."""
        if self._connection is None or not self.is_ready:
            return False
        try:
            self._connection.send(pieces)
        except OSError:
            self._give_up()
        return self.is_ready

    def waits(self, seconds: float) -> bool:
        """Whether it does not read any more, by then at the latest."""
        assert self._connection is not None, "nothing was asked for"
        return self._connection.poll(seconds)

    def answer(self) -> pa.Table | None:
        """What `Changelogs.rows` has of them (STREAM_ARROW); None: they are to be read here."""
        assert self._connection is not None, "nothing was asked for"
        try:
            if not self._connection.poll(_PATIENCE_S):
                raise TimeoutError
            answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._give_up()
            return None
        return from_ipc(pa.py_buffer(answer)) if answer else None

    def close(self) -> None:
        """End it at once: it has nothing that anybody would miss."""
        self._is_over, self._is_ready = True, False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _give_up(self, why: str = "") -> None:
        """Without it from now on: a second one might end as the first has."""
        self.close()
        code = "" if self._process is None else f"exit code {self._process.returncode}"
        self._say(
            f"the process that reads many changes at once has ended ({why or code}): they are read "
            "more slowly until the next start; nothing is lost"
        )


def _serve(connection: Connection, spec: str) -> None:
    """Read what is asked for until nobody asks any more."""
    import_readers(spec)
    logs = Changelogs(spec)
    connection.send_bytes(b"ready")
    while True:
        try:
            pieces = connection.recv()
        except (EOFError, OSError):
            return
        try:
            rows = [batch for piece in pieces for batch in logs.rows(piece, last=False)]
            answer = to_ipc(pa.Table.from_batches(rows, STREAM_ARROW))
            del rows
        except Exception:
            answer = b""
        connection.send_bytes(answer)
        del pieces, answer
        gc.collect()  # `import_readers` has ended those that come by themselves


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as ours:
        _serve(ours, sys.argv[2])
