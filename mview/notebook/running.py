"""A run in a process of its own, begun and ended by a notebook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import IO, Any

from mview.catalog.definitions import is_another
from mview.catalog.functions import declared_functions, with_functions
from mview.clock import SystemClock
from mview.config import Config
from mview.errors import ExitCode, MviewError, RetryableError, UserError, counted
from mview.plan.definition import ViewDefinition, load_views
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease

#: Events and lines of errors that are kept.
_KEPT = 1_000

#: Lines that are shown.
_SHOWN = 8

#: Seconds that a run gets to finish its epoch, and then to end at all.
_END_S, _KILL_S = 120.0, 10.0

#: Seconds between two looks at a run that is waited for.
_LOOK_S = 0.1


class RunFailedError(MviewError):
    """A run has ended by an error; its block is the run's own."""

    def __init__(self, block: str) -> None:
        self._block = block
        super().__init__(block.splitlines()[0])

    def render(self) -> str:
        """What the run said."""
        return self._block


class ChildRun:
    """A run of this store, in a process that ends with this one.

    Args:
        config: of the store.
        files: view files and folders.
        once: it ends when all that is there now was taken.
    """

    def __init__(self, config: Config, files: Sequence[str | Path], once: bool) -> None:
        self.files = tuple(str(Path(file).resolve()) for file in files)
        self.is_once = once
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._said: deque[str] = deque(maxlen=_KEPT)
        self._stopping, self._is_stopped = threading.Lock(), False
        options = ["--config", str(config.path), "--log-format", "json", *["--once"][:once]]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mview.notebook.beside", str(os.getpid())),
                *("run", *options, "--", *self.files),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            # Interrupting the kernel is no word to the run.
            start_new_session=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        self._readers = [
            threading.Thread(target=self._read, args=[pipe, take], daemon=True)
            for pipe, take in (
                (self._process.stdout, self._take_event),
                (self._process.stderr, self._said.append),
            )
        ]
        for reader in self._readers:
            reader.start()

    # --- what it does ----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self._process.poll() is None

    @property
    def error(self) -> RunFailedError | None:
        """What it has ended by; None: it goes on, was stopped, or all went well."""
        if self.is_running or self._process.returncode in (ExitCode.OK, ExitCode.INTERRUPTED):
            return None
        for reader in self._readers:
            reader.join(_KILL_S)
        said = "\n".join(self._said)
        _, begins, block = said.rpartition("Error: ")
        if not begins:
            code = self._process.returncode
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            block = MviewError(
                f"the run has ended {how}, and told no error",
                got="\n".join([*self._said][-_SHOWN:]),
                safe="what was published stays; the next run goes on from there",
                hint="p.run(…)",
            ).render()
        return RunFailedError(block)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has told, as `mview run --log-format json` does: the newest thousand."""
        return [*self._events]

    def log(self, lines: int = 20) -> str:
        """The newest lines of what it has told, for people."""
        return "\n".join([*map(_line, self.events), *self._said][-lines:])

    # --- what is done with it --------------------------------------------------------------------

    def wait(self, until: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until something is so, or the run has ended; an interrupt ends the waiting alone.

        Returns:
            Whether it is so.

        Raises:
            RunFailedError: the run has ended by an error.
        """
        begin = time.monotonic()
        while True:
            running = self.is_running  # before: what is so may be the last thing
            if until():
                return True
            if not running:
                if (error := self.error) is not None:
                    raise error
                return until()
            if seconds is not None and time.monotonic() - begin >= seconds:
                return False
            time.sleep(_LOOK_S)

    def stop(self, seconds: float = _END_S) -> None:
        """End it: the running epoch is finished. A second time does nothing.

        Args:
            seconds: until it is ended at once, which loses nothing that was published.
        """
        with self._stopping:
            self._is_stopped = self._is_stopped or self.is_running
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.terminate()  # the second word ends it at once
                try:
                    self._process.wait(_KILL_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            for reader in self._readers:
                reader.join(_KILL_S)

    def __repr__(self) -> str:
        if self.is_running:
            return f"<run of {', '.join(self.files)}, process {self.pid}>"
        halted = sorted({event["view"] for event in self.events if event.get("event") == "halt"})
        if self._is_stopped and halted:
            return f"<run that was stopped; halted: {', '.join(halted)}>"
        return f"<run that has ended{': by an error' if self.error else ''}>"

    def _repr_html_(self) -> str:
        error = self.error
        told = self.log(_SHOWN) if error is None else error.render()
        return f"<p>{escape(repr(self)[1:-1])}</p><pre>{escape(told)}</pre>"

    # --- its output ------------------------------------------------------------------------------

    def _read(self, pipe: IO[str], take: Callable[[str], object]) -> None:
        with pipe:
            for line in pipe:
                take(line.rstrip("\n"))

    def _take_event(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            self._said.append(line)
        else:
            self._events.append(event if isinstance(event, dict) else {"event": str(event)})


def _line(event: dict[str, Any]) -> str:
    """An event for people."""
    return f"{event.get('time', '')}  {_words(event)}"


def _words(event: dict[str, Any]) -> str:
    kind = event.get("event")
    if kind == "load":
        done = (
            "loaded"
            if event["done"]
            else f"{event['read']:,} of {counted(event['total'], 'row')} read"
        )
        return f"load {event['table']}: {done}"
    if kind == "epoch":
        changed = [f"{table} {counted(n, 'change')}" for table, n in event["changes"].items()]
        views = [
            f"{name} +{view['inserted']:,} ~{view['updated']:,} -{view['deleted']:,}"
            for name, view in event["views"].items()
        ]
        return f"epoch {event['epoch']}: {'; '.join([*changed, *views]) or 'no changes'}"
    if kind == "halt":
        return f"view {event['view']} has halted: {event['error']}"
    return str(event.get("text", event))


#: The runs that this process has begun, by store.
_runs: dict[Path, ChildRun] = {}


def begun(config: Config) -> ChildRun | None:
    """The run of a store that this process has begun last."""
    return _runs.get(config.store)


def begin(
    config: Config, files: Sequence[str | Path], *, once: bool, wait: bool, seconds: float | None
) -> ChildRun:
    """Begin a run; see `Project.run`."""
    _check_files(files)
    before = begun(config)
    if before is not None and before.is_running:
        raise UserError(
            "a run of this store was begun here, and goes on",
            got=f"process {before.pid}, of {', '.join(before.files)}",
            hint="p.stop() ends it; %%mview NAME has it take one more view",
        )
    views = load_views([Path(file) for file in files])  # told at once where they are wrong
    run = _runs[config.store] = ChildRun(config, files, once)
    if not wait:
        return run
    there = (lambda: not run.is_running) if once else (lambda: _are_live(config, run, views))
    if not run.wait(there, seconds):
        raise RetryableError(
            f"the views are not live after {seconds:g} s" if seconds else "the run was stopped",
            got=run.log(_SHOWN),
            safe="the run goes on" if run.is_running else "what was published stays",
            hint="p.running shows it, p.stop() ends it",
        )
    if once and run.error is not None:
        raise run.error
    return run


def end(config: Config) -> None:
    """End the run that this process has begun."""
    if (run := begun(config)) is not None:
        run.stop()


def _are_live(config: Config, run: ChildRun, views: Sequence[ViewDefinition]) -> bool:
    """Whether the run holds the store, and each view is built as it is written, or has halted."""
    store = Store(config.store)
    owner = Lease(store.lease, SystemClock()).holder()
    manifest = ManifestLog(store.manifests).latest()
    if owner is None or owner.pid != run.pid:
        return False
    full = with_functions([v for v in views if v.mode == "full"], declared_functions(config))
    if not full:
        return True
    return manifest is not None and all(
        not is_another(view, manifest)
        and (manifest.views[view.name].halted or not manifest.views[view.name].stale)
        for view in full
    )


def _check_files(files: Sequence[str | Path]) -> None:
    """Refuse names of nothing before a process is begun for them.

    Raises:
        UserError: none is given, or one is not there.
    """
    if not files:
        raise UserError("a run takes files or folders of views", hint="p.run('views')")
    for file in files:
        if not Path(file).exists():
            raise UserError(f"there is no file or folder {str(file)!r}", where=str(Path.cwd()))
