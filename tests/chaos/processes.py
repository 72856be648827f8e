"""One store through many runs with Spark, each of which meets a fault."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from mview.catalog.definitions import digest_of
from mview.errors import ExitCode
from mview.failpoints import FAILPOINTS
from mview.plan.definition import load_views
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.requests.applies import ApplyLog, ApplyRequest
from tests.chaos.warm import Order, Running, Warm, cold
from tests.e2e.running import views_of
from tests.e2e.shop import Changes, Shop
from tests.e2e.truth import Truth
from tests.patience import Patience
from tests.relations import rel

#: Texts of views; a view that gets another one is an edited view.
TEXTS = {
    "names": (
        "select id, name from shop.customers where segment is not null",
        "select id, name, segment from shop.customers",
    ),
    "totals": (
        "select product, count(*) as n, sum(amount) as total from shop.lines group by product",
        "select product, sum(amount) as total from shop.lines group by product",
    ),
    "priced": (
        "select l.order_id, l.line, p.price from shop.lines l"
        " left join shop.products p on p.code = l.product",
    ),
}
#: Views that always are there; the other one comes and goes.
ALWAYS = ("names", "totals")
#: What may be dropped: a view is built again, a table is loaded again.
DROPPED = ("names", "priced", "shop.customers", "shop.lines", "shop.products")

#: What a driver may meet at a fail point, and what may be done to it from outside, at any moment.
FAULTS = ("kill", "raise", "pause")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP")
#: What takes a JVM along: it takes a cold start. So do Spark's workers.
COLD = ("kill-tree", "kill-jvm")

#: What a run without a fault may end with: what a fault before it has left, or a drop too early.
_MAY_SAY = ("there is no view or table", "nothing was published yet")

#: With nothing decided, and with something: what was staged is taken back, or an epoch done again.
UNDECIDED = ("after-stage", "after-intent")

#: The lease of these runs, in milliseconds: a runner that hangs is soon taken over.
_TTL_MS = 1500

#: Seconds in which what is waited for happens, on a quiet machine.
_PATIENCE = 240


def _may_reach(action: str, point: str) -> bool:
    """Whether an action of a process with a warm JVM may come by a fail point."""
    if point.startswith(("recover-", "forget-", "taken-", "log-", "file-")):
        return True
    return point != "in-chunk" and point.startswith("drop-") == (action == "drop")


class Life:
    """The store, its source, and what is run on it.

    Args:
        root: an empty folder.
        chosen: all that is random.
        warm: starts the processes.
        java: more options of JVMs that are the drivers' own.
    """

    def __init__(self, root: Path, chosen: random.Random, warm: Warm, java: str = "") -> None:
        self._root, self._random, self._warm = root, chosen, warm
        self._shop = Shop(root, size=24)
        self._shop.java = java
        self.config = self._shop.config()
        self._changes = Changes(self._shop, random.Random(chosen.random()))
        (root / "views").mkdir()
        definitions = [
            view for n, texts in TEXTS.items() for text in texts for view in views_of(**{n: text})
        ]
        self.truth = Truth(self.config, self._shop, definitions)
        self.log = ManifestLog(Store(self.config.store).manifests)
        for name in ALWAYS:
            self.write(name)
        #: The faults that were hit: of what kind, in which action, at which place.
        self.faults: Counter[tuple[str, str, str]] = Counter()
        #: What the last run met, and what it said; the JVMs that it was to lose by it.
        self.last, self.said, self.killed = "", "", list[str]()
        self._seen, self._files = 0, 0

    # --- a random life ---------------------------------------------------------------------------

    def step(self) -> None:
        """Changes at the source and perhaps to the views, and a run with a fault."""
        self.change()
        if self._random.random() < 0.3:
            self._change_views()
        self._random.choices((self._at_a_point, self._from_outside, self._cold), (30, 20, 1))[0]()
        self.look()

    def change(self) -> None:
        """Some changes at the source, and a last heartbeat."""
        for _ in range(self._random.randint(1, 20)):
            self._changes.one()
        self._shop.heartbeat()

    def change_all(self) -> None:
        """Changes of which every view has some, and a last heartbeat."""
        shop = self._shop
        self._files += 1
        key = 1000 + self._files
        shop.insert("customers", {"id": key, "name": "one more", "segment": "gold"})
        shop.insert("lines", {"order_id": key, "line": 1, "product": "new", "amount": "1.50"})
        self.change()

    def change_most(self) -> None:
        """Changes of all rows of a table, and a last heartbeat."""
        self._files += 1
        for old in self._shop.rows("customers"):
            self._shop.update("customers", old, {**old, "name": f"all {self._files}"})
        self._shop.heartbeat()

    # --- what is published -----------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether there is nothing to load or to build."""
        latest = self.log.latest()
        return (
            latest is not None
            and not self.has_decided()
            and self.is_loaded()
            and all(
                self.is_published(view.name)
                and latest.views[view.name].definition == digest_of(view)
                for view in load_views([self._root / "views"])
            )
        )

    def has_decided(self) -> bool:
        """Whether the next start publishes what a killed one has decided."""
        latest = self.log.latest()
        intents = IntentLog(Store(self.config.store).intents)
        return latest is not None and intents.read(latest.epoch + 1) is not None

    def known(self) -> list[str]:
        """All views and tables of the store."""
        latest = self.log.latest()
        assert latest is not None
        return [*latest.views, *map(str, latest.source_tables)]

    def is_loaded(self) -> bool:
        """Whether there are tables, and all are loaded."""
        latest = self.log.latest()
        states = [] if latest is None else [*latest.source_tables.values()]
        return bool(states) and all(state.phase == "loaded" for state in states)

    def is_published(self, view: str) -> bool:
        """Whether a view is, and goes on."""
        latest = self.log.latest()
        state = None if latest is None else latest.views.get(view)
        return state is not None and not state.stale

    def is_loading(self, table: str) -> bool:
        """Whether a table's load has begun and not ended."""
        latest = self.log.latest()
        return latest is not None and latest.tables[rel(table)].phase == "loading"

    def look(self) -> None:
        """Hold the epochs that were not looked at yet against the truth."""
        if any(epoch > self._seen for epoch in self.log.epochs()):
            self._seen = self.truth.check(self._seen).epoch

    def end(self) -> None:
        """All views are there again, all that was changed is in them, and what was right, is."""
        for name in ALWAYS:
            self.write(name)
        # The second one builds anew what had halted.
        self.perform("once")
        last = self.begin("once")
        assert last.end() == ExitCode.OK, f"the last run fails: {last.said}"
        newest = self.truth.check_end()
        assert set(ALWAYS) <= set(newest.views), "views are gone"
        assert not [name for name, view in newest.views.items() if view.stale], "views have halted"

    def close(self) -> None:
        """Let the source go."""
        self._shop.close()

    def write(self, name: str) -> None:
        """Give a view one of its texts."""
        (self._root / "views" / f"{name}.sql").write_text(self._random.choice(TEXTS[name]))

    def edit(self, name: str) -> None:
        """Give a view a text that is not the published one."""
        (self._root / "views" / f"{name}.sql").write_text(self._other_text(name))

    def _other_text(self, name: str) -> str:
        latest = self.log.latest()
        state = None if latest is None else latest.views.get(name)
        texts = {text: digest_of(*views_of(**{name: text})) for text in TEXTS[name]}
        others = [t for t, digest in texts.items() if state is None or digest != state.definition]
        return others[0]

    def is_asked(self) -> bool:
        """Whether a request waits for the next run."""
        return bool(ApplyLog(Store(self.config.store).applies).files())

    def ask(self, edited: str, removed: str) -> None:
        """Ask the next run for another text of a view, and that one goes."""
        (view,) = views_of(**{edited: self._other_text(edited)})
        ApplyLog(Store(self.config.store).applies).ask(ApplyRequest((view,), (removed,)))

    def leave_out(self, name: str) -> None:
        """Take the file of a view away; what is published of it stays."""
        (self._root / "views" / f"{name}.sql").unlink()

    def _change_views(self) -> None:
        name = self._random.choice(sorted(TEXTS))
        if name not in ALWAYS and (self._root / "views" / f"{name}.sql").exists():
            self.leave_out(name)
        else:
            self.write(name)

    def _at_a_point(self) -> None:
        action = self._random.choices(("once", "live", "drop"), (4, 2, 1))[0]
        fault = self._random.choices(FAULTS, (4, 1, 1))[0]
        place = self._random.choice([p for p in FAILPOINTS if _may_reach(action, p)])
        if place.startswith("recover-"):
            self.meet("once", f"{self._random.choice(UNDECIDED)}:1", "kill")  # to be recovered
            self.look()
        if place.startswith("apply-"):
            self.ask(self._random.choice(ALWAYS), "priced")
        self.meet(action, f"{place}:{self._random.choice((1, 1, 1, 2, 3))}", fault)

    def _from_outside(self) -> None:
        """The source goes on while a driver starts, loads, builds and follows, up to any moment."""
        action = self._random.choices(("once", "live", "drop"), (2, 4, 1))[0]
        kind = self._random.choices(SIGNALS, (4, 1, 1))[0]
        end = time.monotonic() + self._random.choice((0.3, 1, 3, 6)) * self._random.random()
        with self.busy():
            running = self.begin(action, names=self._names())
            self.wait(lambda: time.monotonic() > end, running, _PATIENCE)
            hit = running.code is None
            if kind == "SIGSTOP" and hit:
                self._take_over(running)
            else:
                running.send(signal.Signals[kind])
                # Also SIGTERM ends what has just begun, or drops.
                self.finish(running, -signal.Signals[kind])
        self._note(kind, action, "any moment", hit)

    def _cold(self) -> None:
        kind = self._random.choice((*COLD, "in-chunk"))
        if kind == "in-chunk":
            place, fault = "in-chunk:1", "kill"
            self.perform("drop", ["shop.lines"])
        else:
            place, fault = f"{self._random.choice([*FAILPOINTS])}:1", kind
        with self.busy():
            self.meet("once", place, fault, start=cold)

    # --- one fault -------------------------------------------------------------------------------

    def meet(
        self,
        action: str,
        place: str,
        fault: str,
        start: Callable[[Order, Path], Running] | None = None,
        names: Sequence[str] = (),
        epochs: int | None = 5,
    ) -> bool:
        """A run that comes to a place and meets a fault there; returns whether it did.

        Args:
            epochs: after so many a live run has not come there; None: it will.
        """
        note = self._root / "hit"
        note.unlink(missing_ok=True)
        go = self._root / "go"
        go.unlink(missing_ok=True)
        text = f"{place}={fault}" + (f":{go}" if fault == "pause" else "")
        running = self.begin(action, text, names or self._names(), start)
        latest, halts = self._epoch(), self._halts()
        if action == "live":
            with self.busy():
                last = sys.maxsize if epochs is None else latest + epochs
                self.wait(lambda: note.exists() or self._epoch() > last, running, _PATIENCE)
        elif fault == "pause":
            self.wait(note.exists, running, _PATIENCE)
        if fault == "pause" and note.exists():
            running.send(signal.SIGSTOP)  # it stays where it is
            go.touch()
            self._take_over(running)
        else:
            go.touch()
            if action == "live":
                # What fails beside the epochs, or in one view, ends no run.
                self.wait(lambda: not note.exists(), running, 1)
                running.send(signal.SIGTERM)
            running.end()
            if not note.exists():
                self.finish(running)
            else:
                self._check_end(running, place, fault)
        self.killed = note.read_text().split() if note.exists() else []
        if fault == "kill-jvm" and self.killed:
            blamed = "Spark's Java process has ended" in running.said
            blamed = blamed and "killed by SIGKILL" in running.said
            assert blamed or running.code != ExitCode.CHECK_FAILED, running.said
            assert self._halts() <= halts, f"a view is blamed: {running.said}"
        self._note(fault, action, place.partition(":")[0], note.exists())
        self.said = f"exit code {running.code}: {running.said}"
        return note.exists()

    def _check_end(self, running: Running, place: str, fault: str) -> None:
        """How a process ends that met a fault."""
        told = "FaultError" in running.said
        if fault == "kill-tree" or (fault == "kill" and not place.startswith("in-chunk")):
            assert running.code == -signal.SIGKILL, f"was not killed: {running.said}"
        elif not (fault == "raise" and told):
            self.finish(running, *((ExitCode.CHECK_FAILED,) if fault != "pause" else ()))

    def perform(self, action: str, names: Sequence[str] = ()) -> None:
        """Something without a fault."""
        self.finish(self.begin(action, names=names))

    def _take_over(self, old: Running) -> None:
        """One hangs, the next one takes over and ends well, then the first wakes."""
        old.send(signal.SIGSTOP)  # also what renews the lease
        lease = Lease(Store(self.config.store).lease)

        def holds() -> bool:
            holder = lease.holder()
            return holder is not None and holder.pid == old.pid

        had = holds()
        self.wait(lambda: lease.holder() is None, None, _PATIENCE)
        try:
            self.perform("once")
        finally:
            old.send(signal.SIGCONT)
        if not had:  # it had not begun, and begins now
            self.wait(holds, old, _PATIENCE)
            old.send(signal.SIGTERM)
        # Nothing of it was published after its successor began, or it had ended its work.
        self.finish(old, ExitCode.ALREADY_RUNNING, -signal.SIGTERM if not had else ExitCode.OK)

    def finish(self, running: Running, *more: int) -> None:
        """Wait for an end as it may be: what is to be dropped may not be there.

        Args:
            running: the process.
            more: exit codes that are fine, too.
        """
        code = running.end()
        fine = code in (ExitCode.OK, ExitCode.INTERRUPTED, *more) or (
            code == ExitCode.CHECK_FAILED and any(text in running.said for text in _MAY_SAY)
        )
        assert fine, f"{self.last}, then {code}: {running.said}"

    def _note(self, kind: str, action: str, place: str, hit: bool) -> None:
        self.last = f"{action} {kind} at {place}{'' if hit else ' (not reached)'}"
        if hit:
            self.faults[kind, action, place] += 1

    # --- processes -------------------------------------------------------------------------------

    def begin(
        self,
        action: str,
        fault: str = "",
        names: Sequence[str] = (),
        start: Callable[[Order, Path], Running] | None = None,
    ) -> Running:
        """Start a process; see `Order`."""
        self._files += 1
        order = Order(
            self._root,
            action,
            _TTL_MS,
            names if action == "drop" else (),
            fault,
            str(self._root / "hit"),
        )
        return (start or self._warm.start)(order, self._root / f"said-{self._files}")

    def _names(self) -> list[str]:
        return [self._random.choice(DROPPED)]

    def busy(self) -> AbstractContextManager[None]:
        """Changes at the source, all the time."""
        return self._shop.busy(pause=0.1, random_=random.Random(self._random.random()))

    def _halts(self) -> set[str]:
        latest = self.log.latest()
        return set() if latest is None else {n for n, v in latest.views.items() if v.stale}

    def _epoch(self) -> int:
        latest = self.log.latest()
        return 0 if latest is None else latest.epoch

    def wait(
        self, condition: Callable[[], object], running: Running | None, seconds: float
    ) -> None:
        """Wait for a condition, the end of a process, or so long."""
        patience = Patience(seconds)
        while not condition() and not (running is not None and running.code is not None):
            if patience.is_over():
                return
            time.sleep(0.01)
