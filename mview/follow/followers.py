"""The sinks that follow the views of a run: a thread each, beside the epochs.

One that is down holds nothing but its own changes in the store: it is tried again with back-off,
and the views and the other sinks go on. What waits for it is bounded; beyond, it is compared with
its view and brought right, or filled anew.

A target that goes silent holds its own thread alone. That is shown after `patience`, and whoever
waits for the sink stops then: nobody can end a call of a driver, so the thread is left in it, with
no right to write any more.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from mview.catalog.followers import bounds_of, check_original, open_follower
from mview.clock import Clock, WallMs, awake_s
from mview.config import Config
from mview.errors import (
    CorruptionError,
    FencedError,
    MviewError,
    RetryableError,
    UserError,
    counted,
    known_error,
    of_the_system,
)
from mview.files.durable import put, sweep
from mview.files.fence import Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record
from mview.follow.cursor import CursorLog
from mview.follow.following import Following, Source
from mview.follow.source import ViewSource
from mview.follow.waiting import NOTED_S, Wait, note_wait
from mview.follower import GOES_ON, Follower, FollowerSettings, FollowerTarget
from mview.plan.definition import ViewDefinition
from mview.schema import TableSchema
from mview.secrets import Mask
from mview.store.layout import Store
from mview.store.manifest import Manifest

if TYPE_CHECKING:
    from mview.follow.light.view import LightView

#: Seconds between two tries: of what passes by itself, and of what somebody must act on.
_PASSING = (0.2, 30.0)
_STANDING = (5.0, 300.0)

#: Tries of a sink that has not caught up when a bounded run has come to its end.
_LAST_TRIES = 4

#: Seconds between these.
_LAST_PAUSE_S = 1.0

#: Milliseconds between two calls of `maintain`, over all runs.
_MAINTAIN_EVERY_MS = 600_000

#: Seconds that threads in the middle of a step are waited for: when the run ends, and when others
#: take over from them, which epochs wait for.
_END_S, HAND_OVER_S = 20.0, 2.0

#: Seconds between two looks for sinks that are silent.
_LOOK_S = 5.0

#: What differs in two texts of one error.
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f-]{32,}|[\d.]+")

_PROBLEM, _MAINTAINED = "problem.json", "maintained.json"


@dataclass(frozen=True)
class Problem:
    """Why a sink does not get on.

    Attributes:
        text: the error, without secrets.
        since_ms: wall time of the first one since it last got on.
        tries: how often it was tried since.
    """

    text: str
    since_ms: int
    tries: int


@dataclass(frozen=True)
class _Maintained:
    """When a sink was last maintained by a runner.

    Attributes:
        at_ms: wall time; of a sink that never was, that at which a runner first could have.
    """

    at_ms: int


def read_problem(folder: Path) -> Problem | None:
    """What a sink's folder says of its trouble; None: it has none."""
    with suppress(CorruptionError):
        return read_checked(folder / _PROBLEM, partial(record, Problem), "", "")
    return None


class Followers:
    """All sinks that follow views in a run.

    Args:
        definitions: the views that are kept.
        say: tells people; called from threads of sinks.
        lights: the views in light mode, which follow their tables by themselves.
        once: these take what is there.
    """

    def __init__(
        self,
        config: Config,
        definitions: Iterable[ViewDefinition],
        fence: Fence,
        clock: Clock,
        mask: Mask,
        say: Callable[[str], None],
        lights: Iterable[LightView] = (),
        once: bool = False,
    ) -> None:
        store, one_at_a_time = Store(config.store), threading.Lock()
        self._closing = threading.Event()

        def tell(text: str) -> None:
            with one_at_a_time:
                say(text)

        def thread(definition: ViewDefinition, sink: str, source: _Source) -> _Thread:
            return _Thread(config, store, definition, sink, source, fence, clock, mask, tell)

        self._threads = [
            thread(definition, sink, ViewSource(store, definition.name))
            for definition in definitions
            for sink in definition.sinks
        ]
        for view in lights:
            # Here: `mview status` needs no engine.
            from mview.follow.light.source import LightSource

            for sink in view.definition.sinks:
                folder = store.follower(view.name, sink, light=True)
                source = LightSource(config, view, sink, folder, fence, once, tell)
                self._threads.append(thread(view.definition, sink, source))

    def start(self, manifest: Manifest, former: Followers | None = None) -> None:
        """Begin to follow.

        Args:
            manifest: what is published.
            former: those that followed before and were closed. A sink of theirs that is still in a
                call is waited for by its own thread: never do two of a run write to one target.
        """
        self.published(manifest)
        left = {} if former is None else former._left()
        for thread in self._threads:
            thread.start(left.get((thread.view, thread.sink)))
        if self._threads:
            threading.Thread(target=self._look, name="mview-sinks", daemon=True).start()

    def _left(self) -> dict[tuple[str, str], _Thread]:
        return {(t.view, t.sink): t for t in self._threads if not t.is_over()}

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_S):
            for thread in self._threads:
                thread.look()

    def published(self, manifest: Manifest) -> None:
        """An epoch was published: called by the thread that has; takes no time."""
        for thread in self._threads:
            thread.move(manifest)

    def floor(self, view: str) -> int:
        """The epoch after which changes of a view are still needed."""
        return min((t.floor() for t in self._threads if t.view == view), default=sys.maxsize)

    def finish(self, stop: threading.Event | None = None) -> list[MviewError]:
        """Wait until all have caught up or given up; returns why some have not.

        Args:
            stop: set when nobody is to wait any more.
        """
        for thread in self._threads:
            thread.hurry()
        for thread in self._threads:
            thread.wait(stop or threading.Event())
        return [error for thread in self._threads if (error := thread.why_behind()) is not None]

    def close(self, seconds: float = _END_S) -> None:
        """End after the running step of each; after so many seconds, in the middle of it.

        What became of such a step is asked of the target before the next one.
        """
        self._closing.set()
        for thread in self._threads:
            thread.end()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            thread.release()


class _Source(Source, Protocol):
    """What a sink follows, and what its thread asks of it beside."""

    @property
    def schema(self) -> TableSchema | None:
        """The view's columns; None: there is nothing to follow yet."""

    def move(self, manifest: Manifest) -> bool:
        """Follow a published epoch; whether something may be new in it."""

    def give(self, columns: TableSchema) -> None:
        """Give rows of these columns alone, from now on."""

    def waiting_bytes(self, after: int) -> int:
        """Bytes in the store that wait for who stands at an epoch."""

    def look(self, after: int) -> bool:
        """Look for what has come; whether more may come without an epoch that is published."""

    @property
    def is_reading(self) -> bool:
        """Whether it waits for a server that it reads; asked by another thread."""

    def close(self) -> None:
        """Close what is open; it may be asked again."""


class _Hold:
    """The run's right to write to a target, for as long as it is one thread's."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self.is_over = False

    @property
    def token(self) -> int:
        """That of the run."""
        return self._fence.token

    @property
    def takes_over(self) -> bool:
        """As of the run."""
        return self._fence.takes_over

    def check(self) -> None:
        """Look whether another thread, or a newer runner, has taken over."""
        if self.is_over:
            raise FencedError(
                "a sink was left in the middle of a step",
                safe="what became of the step is asked of the target before the next one",
            )
        self._fence.check()


class _Thread:
    """One sink of one view."""

    def __init__(
        self,
        config: Config,
        store: Store,
        definition: ViewDefinition,
        sink: str,
        source: _Source,
        fence: Fence,
        clock: Clock,
        mask: Mask,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._store, self._definition = config, store, definition
        self.view, self.sink = definition.name, sink
        self._fence, self._clock, self._mask, self._say = _Hold(fence), clock, mask, say
        self._folder = store.follower(self.view, sink, light=definition.mode == "light")
        # Asked for before the sink is opened, too: it may lack a secret, or the thread its turn.
        self._bounds = bounds_of(config, definition, sink)
        self._source = source
        self._wake, self._end, self._idle = (threading.Event() for _ in range(3))
        #: Ends all waiting: it is to come to an end, by catching up or at once.
        self._haste = threading.Event()
        self._lock = threading.Lock()
        self._hurry = False
        self._opened: tuple[Follower, FollowerTarget, Following] | None = None
        self._problem = read_problem(self._folder)
        self._told = "" if self._problem is None else self._problem.text
        self._error: MviewError | None = None
        self._committed = time.monotonic()
        self._behind_since: float | None = None
        self._is_dropped = False
        self._maintained: _Maintained | None = None
        self._last_tries = _LAST_TRIES
        self._noting = threading.Lock()
        #: When it last got on with what it is at, by `awake_s`: nobody is silent while we are
        #: stopped. None: it is at nothing.
        self._alive_at: float | None = None
        #: That of the silence that was noted.
        self._silent_since: float | None = None
        #: That of the waiting that was noted; infinite: what another run noted may be there.
        self._waiting_since: float | None = math.inf
        #: Who followed before, and is still in a call.
        self._former: _Thread | None = None
        self._thread = threading.Thread(target=self._run, name=f"mview-sink-{sink}", daemon=True)

    # --- called by others ------------------------------------------------------------------------

    def start(self, former: _Thread | None) -> None:
        self._former = former
        self._thread.start()

    def is_over(self) -> bool:
        """Whether neither it nor who was before it will touch the target any more."""
        return not self._thread.is_alive() and (self._former is None or self._former.is_over())

    def move(self, manifest: Manifest) -> None:
        # Of hundreds of sinks most have nothing to do in an epoch.
        if self._source.move(manifest):
            self._rouse()

    def hurry(self) -> None:
        """Bring all that is there now, without a pause."""
        self._hurry = True
        self._haste.set()
        self._rouse()

    def _rouse(self) -> None:
        with self._lock:
            self._idle.clear()
            self._wake.set()

    def _rest(self) -> None:
        """Say that nothing is left to do, unless there is something new."""
        with self._lock:
            if not self._wake.is_set():
                self._idle.set()

    def wait(self, stop: threading.Event) -> None:
        """Wait until it has caught up, has given up, or is silent."""
        while self._thread.is_alive() and not self._idle.wait(0.2) and not stop.is_set():
            self._fence.check()
            if self._is_silent():
                self.look()
                break

    def look(self) -> None:
        """Note where it waits, and where its target is silent: it cannot do that itself."""
        with self._noting:
            since = self._alive_at
            self._note_waiting(since)
            if since is None or since == self._silent_since or not self._is_silent():
                return
            self._silent_since = since
            whom = self._whom()
            self._note(
                RetryableError(
                    f"the {whom} of sink {self.sink} of view {self.view} is silent",
                    got=f"no sign of it for {awake_s() - since:.0f} s",
                    safe="what is missing is brought later; the views and other sinks go on",
                    hint=f"look at the {whom} and the network; when it answers, the sink goes on "
                    f"by itself. How long is waited says sinks.{self.sink}.patience",
                ),
                is_told=True,
            )

    def _note_waiting(self, since: float | None) -> None:
        silent_s = 0.0 if since is None else awake_s() - since
        waits = since if silent_s > NOTED_S else None
        if waits == self._waiting_since or not self._is_ours():
            return
        wait = None
        if waits is not None:
            since_ms = WallMs(self._clock.now() - round(silent_s * 1000))
            wait = Wait(self._fence.token, self._whom(), since_ms)
        with suppress(OSError):  # the disk is full, maybe: the store says so itself
            note_wait(self._folder, wait)
            self._waiting_since = waits

    def _whom(self) -> Literal["source", "target"]:
        """Who gives no sign."""
        return "source" if self._source.is_reading else "target"

    def _is_silent(self) -> bool:
        settings = self._bounds if self._opened is None else self._opened[1].settings
        since = self._alive_at
        return since is not None and awake_s() - since > settings.patience / 1000

    def _live(self) -> None:
        """It gets on with what it is at."""
        self._alive_at = awake_s()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """For what may never come to an end."""
        self._live()
        try:
            yield
        finally:
            self._alive_at = None

    def why_behind(self) -> MviewError | None:
        """Why it has not caught up; None: it has."""
        if self._error is None and (self._source.schema is None or not self._is_behind()):
            return None
        return RetryableError(
            f"sink {self.sink} of view {self.view} has not caught up",
            got=None if self._error is None else self._mask(str(self._error.render())),
            safe="what is missing is brought later; the views and the other sinks are published",
            hint="mend that and run again: it goes on where it was",
        )

    def floor(self) -> int:
        """The epoch after which it needs changes; none where they would not be enough."""
        if self._source.schema is None:
            return sys.maxsize
        opened = self._opened
        cursor = CursorLog(self._folder).latest() if opened is None else opened[2].cursor
        settings = self._bounds if opened is None else opened[1].settings
        stands = -1 if cursor.epoch is None else cursor.epoch
        if cursor.epoch is not None and stands >= self._source.newest():
            return sys.maxsize
        is_kept = cursor.epoch is not None and stands >= self._source.begins()
        if is_kept and not self._is_beyond(settings, stands, self._behind_ms()):
            return stands
        if (intent := cursor.intent) is not None and intent.way in ("difference", "fill"):
            # It is brought to that epoch, however long that takes, and goes on from there.
            age_ms = self._clock.now() - intent.began_ms
            if not self._is_beyond(settings, intent.step.epoch, age_ms):
                return intent.step.epoch
        return sys.maxsize

    def _behind_ms(self) -> float:
        """For how long something waits, or, over runs that each were short, nothing succeeds."""
        since, problem = self._behind_since, self._problem
        here = 0 if since is None else (time.monotonic() - since) * 1000
        return max(here, 0 if problem is None else self._clock.now() - problem.since_ms)

    def _is_beyond(self, settings: FollowerSettings, epoch: int, age_ms: float) -> bool:
        """Whether so much waits that it is dropped."""
        size = self._source.waiting_bytes(epoch)
        if age_ms <= settings.spool_age and size <= settings.spool_bytes:
            return False
        if not self._is_dropped:
            self._is_dropped = True
            self._say(
                f"sink {self.sink} of view {self.view} is too far behind ({size >> 20} MB, "
                f"{age_ms / 60_000:.0f} minutes): nothing more is kept for it; it will be brought "
                "right by what differs, or filled anew"
            )
        return True

    def end(self) -> None:
        self._end.set()
        self._haste.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def release(self) -> None:
        """Have it write nothing any more, in whatever call it is."""
        self._fence.is_over = True

    # --- its own thread --------------------------------------------------------------------------

    def _run(self) -> None:
        self._wait_for_former()
        delay = 0.0
        while not self._end.is_set():
            if delay:
                self._wait_back_off(delay)
            else:
                self._wake.wait(_MAINTAIN_EVERY_MS / 1000)
            if self._end.is_set():
                break
            self._wake.clear()
            try:
                self._follow()
                delay = 0.0
            except Exception as error:
                if self._fence.is_over:
                    break  # whoever has taken over says what there is to say
                known = self._noted(error)
                if isinstance(error, FencedError):
                    break
                delay = self._delay(delay, known)
                if self._hurry:
                    self._last_tries -= 2 if isinstance(self._error, UserError) else 1
                    if self._last_tries <= 0:
                        self._idle.set()
        return self._close()

    def _wait_for_former(self) -> None:
        if self._former is not None:
            with self._at_work():
                while not self._former.is_over() and not self._end.wait(0.1):
                    continue

    def _wait_back_off(self, seconds: float) -> None:
        began = time.monotonic()
        if self._haste.wait(seconds):  # as often as it is tried now, and no longer between
            self._end.wait(max(0.0, began + min(seconds, _LAST_PAUSE_S) - time.monotonic()))

    def _follow(self) -> None:
        """Bring what is there."""
        if self._source.schema is None:
            self._rest()
            return
        with self._at_work():  # what opens it imports its client, which may wait for another one
            following = self._following()
        while not self._end.is_set():
            self._throttle()
            if self._end.is_set():
                return
            with self._at_work():
                done = following.advance()
                more = done is not None or self._source.look(following.cursor.epoch or 0)
            self._fence.check()
            self._well()
            if done is not None:
                self._committed = time.monotonic()
                if done.way == "difference":
                    self._say(
                        f"sink {self.sink} of view {self.view} was compared with its view and "
                        f"brought right: {counted(done.rows, 'row')} had changed"
                    )
                continue
            self._behind_since, self._is_dropped = None, False
            if not more:
                self._rest()
            self._maintain()
            if not more:
                return

    def _throttle(self) -> None:
        """Wait until the next commit may come; more epochs go into it meanwhile."""
        assert self._opened is not None
        _, target, following = self._opened
        if self._behind_since is None and following.is_behind:
            self._behind_since = time.monotonic()
        if following.cursor.epoch is None or not following.is_behind:
            return
        due = self._committed + target.settings.every / 1000
        # Without a look at the clock between: of hundreds of sinks that alone takes time.
        self._haste.wait(max(0.0, due - time.monotonic()))

    def _following(self) -> Following:
        """The open one, or a new one where the view has other columns now."""
        schema = self._source.schema
        assert schema is not None
        if self._opened is not None and self._opened[1].schema == schema:
            return self._opened[2]
        self._close()
        check_original(self._store, self.view, self.sink)
        self._sweep()
        follower, target = open_follower(
            self._config, self._store, self._definition, self.sink, schema, self._fence.token
        )
        self._source.give(schema)
        cursors = CursorLog(self._folder, self._fence)
        now = self._clock.now
        check, alive = self._fence.check, self._live
        following = Following(follower, target, self._source, cursors, check, now, alive)
        self._opened = follower, target, following
        return following

    def _sweep(self) -> None:
        """Delete what runs that were killed were writing here."""
        with self._noting:
            for folder in (self._folder, *self._folder.glob("*/")):
                sweep(folder, self._fence.check)

    def _is_behind(self) -> bool:
        return self._opened is None or self._opened[2].is_behind

    def _maintain(self) -> None:
        """Take a bite of maintenance when it is time, also where each run is shorter than that."""
        if self._opened is None:
            return
        now = self._clock.now()
        if self._maintained is None:
            file = self._folder / _MAINTAINED
            with suppress(CorruptionError):
                self._maintained = read_checked(file, partial(record, _Maintained), "", "")
        if self._maintained is None or now < self._maintained.at_ms:
            self._note_maintained(now)
        elif now - self._maintained.at_ms > _MAINTAIN_EVERY_MS:
            self._note_maintained(now)
            with self._at_work():
                self._opened[0].maintain(thorough=False)

    def _note_maintained(self, now: int) -> None:
        self._maintained = _Maintained(now)
        put(self._folder / _MAINTAINED, checked(asdict(self._maintained)))

    def _well(self) -> None:
        """It gets on."""
        with self._noting:
            if self._told:
                self._say(f"sink {self.sink} of view {self.view} gets on again")
            # Whether or not it is known here: a run that was stopped may have noted one since.
            (self._folder / _PROBLEM).unlink(missing_ok=True)
            self._told = ""
            self._problem = self._error = None
            self._last_tries = _LAST_TRIES

    def _noted(self, error: Exception) -> MviewError:
        with self._noting:
            return self._note(error)

    def _note(self, error: Exception, *, is_told: bool = False) -> MviewError:
        """Note why it does not get on, and tell it once; what passes is not told at first.

        Maintenance that came between is gone with the next try, as is most that passes.

        Args:
            error: why.
            is_told: it is told at once.
        """
        if not isinstance(error, MviewError):
            error = of_the_system(error, f"sinks.{self.sink}", GOES_ON) or error
        known = known_error(error)
        self._error = known
        if not self._is_ours():
            return known  # the run ends and says so; how the sink is says who has taken over
        text, now = self._mask(str(known.render())), self._clock.now()
        before = self._problem
        passes = isinstance(known, RetryableError) and before is None and not is_told
        if not passes and not self._is_told(known, text):
            self._told = text
            self._say(f"sink {self.sink} of view {self.view} does not get on, alone: {text}")
        if self._behind_since is None:
            self._behind_since = time.monotonic()
        if before is None:
            self._problem = Problem(text, now, 1)
        else:
            self._problem = replace(before, text=text, tries=before.tries + 1)
        try:
            put(self._folder / _PROBLEM, checked(asdict(self._problem)))
        except OSError:
            return known  # the disk is full, maybe: the store says so itself
        return known

    def _is_ours(self) -> bool:
        """Whether the store is this run's still: nothing is noted in that of another one."""
        try:
            self._fence.check()
        except (MviewError, OSError):
            return False
        return True

    def _is_told(self, error: MviewError, text: str) -> bool:
        """Whether it is what was told last; of what passes, also with other numbers in it.

        Clients tell of places in memory, times and names that are other ones in each try.
        """
        if isinstance(error, RetryableError):
            return _NUMBER.sub("", self._told) == _NUMBER.sub("", text)
        return self._told == text

    def _delay(self, before: float, error: MviewError) -> float:
        first, most = _STANDING if isinstance(error, UserError) else _PASSING
        is_first = self._problem is not None and self._problem.tries == 1
        return first if is_first else min(most, max(first, 2 * before))

    def _close(self) -> None:
        self._source.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened[0].close()
            except Exception as error:
                self._say(f"sink {self.sink}: {self._mask(str(error))}")


__all__: Sequence[str] = ("Followers", "Problem", "read_problem")
