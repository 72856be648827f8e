"""Server processes of the tests: free ports, start, readiness, and an end even after a crash."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.patience import Patience

#: Seconds; a server takes 3 to 8 s on a quiet machine, much longer beside two Spark JVMs.
START_TIMEOUT = 180.0


class ServiceError(Exception):
    """A server cannot be had or does not start; the message has the reason."""


#: Ports that were given: a server binds its own some time after it has asked for all.
_given: set[int] = set()


def free_port() -> int:
    """A free loopback port below the range that client connections take theirs from; each once."""
    for port in random.sample([*{*range(20_000, 32_000)} - _given], 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise ServiceError("no free port between 20000 and 32000")


def ending_with_parent(command: Sequence[str | Path]) -> list[str]:
    """The command, so that the kernel kills it when this process dies (Linux only).

    A test run that is killed cannot clean up. A `preexec_fn` would do it, too, but then Python
    forks beside the threads of the JVM gateway, Arrow and DuckDB: the child crashed at times.
    """
    plain = [str(part) for part in command]
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *plain] if setpriv else plain


class ServerProcess:
    """One server, its log file, and its end."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, **popen: Any) -> None:
        self.name, self.log = name, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ending_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **popen,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    def wait_until_ready(self, is_ready: Callable[[], object]) -> None:
        """Wait until `is_ready` gives something true; what it raises means "not yet"."""
        try:
            wait_until(is_ready, f"{self.name} to answer", START_TIMEOUT, self.check)
        except ServiceError:
            self.kill()
            raise

    def check(self) -> None:
        """Raise with the end of the log when the process has ended."""
        if self._process.poll() is not None:
            code = self._process.returncode
            raise ServiceError(f"{self.name} ended with {code}: {self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(lines)

    def kill(self) -> None:
        """End it at once with its children: its folder is temporary, nothing needs saving."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)


def wait_until(
    condition: Callable[[], object],
    what: str,
    timeout: float = 60.0,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Wait until `condition` gives something true.

    Args:
        condition: asked about ten times a second; what it raises means "not yet".
        what: what is waited for, for the message.
        timeout: seconds, see `Patience`.
        check: raises when there is no point in waiting any longer.

    Raises:
        ServiceError: time is up.
    """
    patience = Patience(timeout)
    while True:
        check()
        last: object = None
        try:
            if condition():
                return
        except Exception as error:
            last = error
        if patience.is_over():
            raise ServiceError(f"waited {timeout:.0f} s for {what}; last: {last}")
        time.sleep(0.1)


def run(name: str, command: Sequence[str | Path], **options: Any) -> str:
    """Run a set-up command to its end and give its output.

    Raises:
        ServiceError: it failed.
    """
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=START_TIMEOUT,
        **options,
    )
    if done.returncode != 0:
        raise ServiceError(f"{name} failed with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout
