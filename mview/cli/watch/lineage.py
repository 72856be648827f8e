"""Events of OpenLineage while a run goes on: what views are made of, and what epochs did to them.

A run of a view's job begins (START) when the run has the view live. It ends with the run (COMPLETE,
or FAIL with its error), when the view halts (FAIL), and when it is dropped or gets another text
(COMPLETE). RUNNING tells what the epochs did since the event before, put together.

The run's threads only note what an epoch did. A thread of its own makes the events and sends them;
what cannot be sent is kept as one sum per view, and sent when it can. An event that is refused
holds up those of its own view alone, and is given up after some tries where that is for what it is.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from mview.catalog.definitions import digest_of, load_lights
from mview.cli.checking import Checker
from mview.cli.display.progress import Display, UnreadError
from mview.cli.display.tee import TeeDisplay
from mview.cli.explore.openlineage import Transition, ViewJobs, Wrote
from mview.clock import SystemClock
from mview.config import Config, OpenLineageSettings
from mview.epoch.report import EpochReport, Silence
from mview.errors import MviewError, one_line
from mview.files.lines import append_line
from mview.secrets import reveal
from mview.store.history import ManifestLog
from mview.store.layout import Store
from mview.store.manifest import NEVER, ViewState

#: Seconds for an answer, and for the last events of a run together.
_ANSWER_S, _END_S = 3.0, 5.0

#: Seconds until it is tried again, at least, where an event could not be sent.
_AGAIN_S = 1.0

#: Bytes of an answer that are told.
_TOLD = 200

#: Answers that an event gets for what it is, however often it is sent.
_FOR_GOOD = (400, 413, 415, 422)

#: Tries of such an event, or of one while those of other views are taken, before it is given up.
_TRIES = 10


class _UnsentError(Exception):
    """An event could not be sent, and why."""


class _RefusedError(_UnsentError):
    """The other end does not take an event, and why.

    Args:
        why: what it said.
        for_good: it never will.
    """

    def __init__(self, why: str, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What is sent goes to where the configuration says, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """To nowhere: the answer counts as a refusal."""


def _to_file(path: Path, event: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, event)
    except OSError as error:
        raise _UnsentError(error.strerror or str(error)) from None


def _to_url(url: str, key: str | None, event: bytes) -> None:
    revealed = None if key is None else reveal(key, "openlineage.api_key")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1"):
        # A proxy of the environment must not be asked for this machine.
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, event, method="POST")
        request.add_header("Content-Type", "application/json")
        if revealed is not None:
            request.add_unredirected_header("Authorization", f"Bearer {revealed}")
        with urllib.request.build_opener(*handlers).open(request, timeout=_ANSWER_S):
            return
    except urllib.error.HTTPError as error:
        said = ""
        # The code is told, too, where the text after it does not come.
        with suppress(OSError, http.client.HTTPException), error:
            said = error.read(_TOLD).decode(errors="replace")
        why = f"{error.code} {said}".strip()
        raise _RefusedError(why, error.code in _FOR_GOOD) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _UnsentError(f"{type(error).__name__}: {error}"[:_TOLD]) from None


@dataclass
class _ViewRun:
    """A run of a view's job that has begun.

    Attributes:
        id: its UUID.
        digest: of the view's text and what it reads.
        jobs: know what the view is by that text.
    """

    id: str
    digest: str
    jobs: ViewJobs


class LineageEvents(Silence):
    """Makes and sends the events of a run, in a thread of its own.

    Args:
        config: with `openlineage`.
        once: the run takes what is there, and ends.
        mask: hides secrets.
        say: is told when events cannot be sent, and when they can be again.
    """

    def __init__(
        self,
        config: Config,
        settings: OpenLineageSettings,
        once: bool,
        mask: Callable[[str], str],
        say: Callable[[str], None],
    ) -> None:
        self._config, self._settings, self._once = config, settings, once
        self._mask, self._say = mask, say
        self._store = Store(config.store)
        self._manifests = ManifestLog(self._store.manifests)
        #: Of what is below: epochs come from the run's threads.
        self._lock = threading.Lock()
        self._wrote: dict[str, Wrote] = {}
        self._halted: dict[str, str] = {}
        self._ended: tuple[Transition, str] | None = None
        self._wake = threading.Event()
        self._end = threading.Event()
        #: Views that were looked at once: what epochs do to them waits for its time.
        self._seen: frozenset[str] = frozenset()
        #: Of the thread alone.
        self._runs: dict[str, _ViewRun] = {}
        #: Runs whose START is not known to have arrived: sent again, it is of the same run.
        self._begun: dict[str, _ViewRun] = {}
        self._jobs: tuple[Mapping[str, str], ViewJobs] | None = None
        #: By view, of this round and of all of them: what was refused, and how often that counts.
        self._refused: dict[str, _RefusedError] = {}
        self._tries: dict[str, int] = {}
        self._is_heard, self._given_up = False, 0
        self._said = ""
        self._thread = threading.Thread(target=self._go, name="mview-lineage", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, error: BaseException | None) -> None:
        """The run has ended; send what is left, as far as that takes no longer than seconds."""
        why = "" if error is None else _text(error)
        self._ended = ("FAIL", why) if why else ("COMPLETE", "")
        self._end.set()
        self._wake.set()
        self._thread.join(_END_S)

    def on_epoch(self, epoch: EpochReport) -> None:
        """Note what an epoch did."""
        with self._lock:
            for name, change in epoch.views.items():
                wrote = Wrote(
                    epoch.epoch,
                    epoch.epoch,
                    change.inserted,
                    change.updated,
                    change.deleted,
                    change.rows,
                    epoch.watermark,
                )
                before = self._wrote.get(name)
                self._wrote[name] = before.and_then(wrote) if before else wrote
        if not self._settings.every or not epoch.views.keys() <= self._seen:
            self._wake.set()

    def on_halt(self, view: str, error: MviewError) -> None:
        """Note that a view halts."""
        with self._lock:
            self._halted[view] = _text(error)
        self._wake.set()

    # --- the thread ------------------------------------------------------------------------------

    def _go(self) -> None:
        every = self._settings.every / 1000
        why = ""
        while True:
            if why:  # no epoch hastens what could not be sent
                self._end.wait(max(every, _AGAIN_S))
            else:
                self._wake.wait(every or None)
            self._wake.clear()
            ended = self._ended
            try:
                self._send_news(ended)
                why = ""
            except _UnsentError as error:
                why = str(error)
            except MviewError as error:  # of the store, or of a view that cannot be checked now
                why = error.what
            except Exception as error:  # whatever it is: the thread goes on, and it is told
                why = type(error).__name__
            self._tell(why)
            if ended:
                if self._given_up:
                    self._speak(f"lineage: {self._lost_text()} in this run")
                return

    def _tell(self, why: str) -> None:
        """Say once that events cannot be sent, and once that they can be again."""
        if why == self._said:
            return
        was, self._said = self._said, why
        if why:
            kept = "they are lost" if self._ended else "they are kept, and sent together later"
            self._speak(
                f"events of lineage do not reach {self._settings.target}: "
                f"{one_line(self._mask(why))}; {kept}; the run goes on"
            )
        elif was:
            self._speak(f"events of lineage reach {self._settings.target} again")

    def _speak(self, text: str) -> None:
        with suppress(OSError, UnreadError):  # nobody may read it, and the run goes on
            self._say(text)

    def _lost_text(self) -> str:
        number = self._given_up
        return f"{number:,} event{' was' if number == 1 else 's were'} given up"

    def _send_news(self, ended: tuple[Transition, str] | None) -> None:
        """Send what has become of each view since the last time.

        Raises:
            _UnsentError: an event could not be sent; it and those after it are sent the next time.
        """
        with self._lock:
            told_of = self._wrote.keys() | self._seen
        self._refused, self._is_heard = {}, False
        manifest = self._manifests.latest()
        states = {} if manifest is None else manifest.views
        digests = {
            name: state.definition for name, state in states.items() if state.built_epoch != NEVER
        }
        lights = {
            name: digest_of(light.definition) for name, light in load_lights(self._store).items()
        }
        digests |= lights
        if not digests and not self._runs:
            return
        self._seen = frozenset(told_of | digests.keys())
        for name, run in [*self._runs.items()]:
            if digests.get(name) != run.digest:
                self._of_view(name, partial(self._finish, name, "COMPLETE"))
        jobs = self._jobs_of(digests)
        for name in [*jobs.names, *(self._runs.keys() - set(jobs.names))]:
            state = states.get(name)
            is_sound = name in lights or (
                name in digests and state is not None and not state.halted and not state.stale
            )
            digest = digests.get(name, "") if name in jobs.names else ""
            self._of_view(name, partial(self._send_view, name, state, is_sound, digest, jobs))
        self._jobs = digests, jobs
        with self._lock:  # of views that are not there any more
            for name in self._wrote.keys() - set(jobs.names):
                del self._wrote[name]
        if ended:
            for name in [*self._runs]:
                self._of_view(name, partial(self._finish, name, *ended))
        for name, error in self._refused.items():
            if error.for_good or self._is_heard:
                self._tries[name] = self._tries.get(name, 0) + 1
        for error in self._refused.values():
            raise error

    def _of_view(self, name: str, send: Callable[[], None]) -> None:
        """Send events of a view; those after one that is refused wait, those of others do not."""
        if name not in self._refused:
            try:
                send()
            except _RefusedError as error:
                self._refused[name] = error

    def _send_view(
        self, name: str, state: ViewState | None, is_sound: bool, digest: str, jobs: ViewJobs
    ) -> None:
        """Send what has become of a view.

        Args:
            state: as it is published; None: it is light, or gone.
            is_sound: its rows are right and go on.
            digest: of its text; empty: it cannot be checked any more.
            jobs: know the views that can be.
        """
        run = self._runs.get(name)
        if run is None:
            if not is_sound:
                return
            self._forget_halt(name)
            run = self._begun.get(name)
            if run is None or run.digest != digest:
                run = self._begun[name] = _ViewRun(str(uuid.uuid4()), digest, jobs)
            self._send(name, run, "START")
            self._runs[name] = self._begun.pop(name)
        if digest:
            run.jobs = jobs
        self._send_wrote(name)
        failed = self._failure(name, state, is_sound)
        if failed or not digest:
            self._finish(name, "FAIL" if failed else "COMPLETE", failed)
            self._forget_halt(name)

    def _failure(self, name: str, state: ViewState | None, is_sound: bool) -> str:
        """Why a view does not go on; empty: it does."""
        noted = self._halted.get(name, "")
        if is_sound:
            return noted
        kept = "" if state is None else state.halted
        return noted or kept or "a table that it reads is gone"

    def _forget_halt(self, name: str) -> None:
        with self._lock:
            self._halted.pop(name, None)

    def _send_wrote(self, name: str) -> None:
        with self._lock:
            wrote = self._wrote.pop(name, None)
        if wrote is None:
            return
        try:
            self._send(name, self._runs[name], "RUNNING", wrote=wrote)
        except Exception:
            with self._lock:
                later = self._wrote.get(name)
                self._wrote[name] = wrote.and_then(later) if later else wrote
            raise

    def _finish(self, name: str, transition: Transition, error: str = "") -> None:
        self._send(name, self._runs[name], transition, error=error)
        del self._runs[name]

    def _jobs_of(self, digests: Mapping[str, str]) -> ViewJobs:
        """The jobs of the views that are published, made anew where these are other ones."""
        if self._jobs is not None and self._jobs[0] == digests:
            return self._jobs[1]
        checker = Checker(self._config, offline=True, note=lambda _: None)
        sound = [view for view in checker.check_kept() if view.plan and not view.error]
        return ViewJobs(self._config, sound, checker.known_schemas)

    def _send(
        self,
        name: str,
        run: _ViewRun,
        transition: Transition,
        *,
        wrote: Wrote | None = None,
        error: str = "",
    ) -> None:
        every_s, now_ms = self._settings.every / 1000, SystemClock().now()
        try:
            try:
                event = run.jobs.run_event(
                    name,
                    run.id,
                    transition,
                    now_ms,
                    every_s=every_s,
                    once=self._once,
                    wrote=wrote,
                    error=error,
                )
                text = self._mask(json.dumps(event, ensure_ascii=False)).encode()
            except Exception as wrong:  # whatever it is: it is so the next time, too
                raise _RefusedError(type(wrong).__name__, for_good=True) from wrong
            if self._settings.file is not None:
                _to_file(self._settings.file, text)
            else:
                _to_url(str(self._settings.url), self._settings.api_key, text)
            self._is_heard = True
        except _RefusedError as refusal:
            if self._tries.get(name, 0) < _TRIES:
                raise
            self._given_up += 1
            self._speak(
                f"view {one_line(name)}: a {transition} event of lineage is given up, as "
                f"{self._settings.target} does not take it: {one_line(self._mask(str(refusal)))}; "
                f"{self._lost_text()} so far; the run goes on"
            )
        self._tries.pop(name, None)


def _text(error: BaseException) -> str:
    return str(error.render()) if isinstance(error, MviewError) else type(error).__name__


class LineageDisplay(TeeDisplay):
    """A display, and events of lineage beside it.

    Args:
        display: the run's.
        events: not begun yet.
    """

    def __init__(self, display: Display, events: LineageEvents) -> None:
        super().__init__(display, events)
        self._events = events

    def __enter__(self) -> LineageDisplay:
        self._display.__enter__()
        self._events.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._events.end(error)
        self._display.__exit__(kind, error, trace)
