"""Trying mutants out: which tests come to their places, and which of those notice them."""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import orjson
import pytest

from tests.mutation.faults import Functions, Mutant, StaleError, functions, put_in, put_probes
from tests.patience import Patience

#: Seconds that a test may take longer than without a fault: one that ends later hangs.
_LONGER = 20

#: Seconds of a test in a process of its own.
_ALONE = 600


class Outcome(NamedTuple):
    """What came of a mutant: `killed`, `survived`, `uncovered` or `stale`, and why."""

    mutant: Mutant
    what: str
    seconds: float
    why: str


class _Known(NamedTuple):
    """A test: its seconds, whether it passes without a fault, and the mutants it comes to."""

    seconds: float
    passes: bool
    hits: set[int]


class Trials:
    """A plugin of pytest that runs its tests over mutants.

    Args:
        mutants: what to try.
        tell: called with each outcome.
    """

    def __init__(self, mutants: Sequence[Mutant], tell: Callable[[Outcome], None]) -> None:
        self._mutants, self._tell = mutants, tell
        self._failed = False
        self.outcomes: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all mutants."""
        # Here: pytest wants to see its plugins before they are imported.
        from hypothesis import Phase, settings

        # A case that fails need not be made small, nor be kept for the next run.
        settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
        settings.load_profile("mutants")
        session.items = [
            one for one in session.items if "spark" not in getattr(one, "fixturenames", ())
        ]
        known = functions()
        gc.freeze()
        tests = self._look(session.items, known)
        for number, mutant in enumerate(self._mutants):
            mine = [item for item in session.items if number in tests[item.nodeid].hits]
            mine = [item for item in mine if tests[item.nodeid].passes]
            mine.sort(key=lambda item: tests[item.nodeid].seconds)
            outcome = self._try(mutant, mine, tests, known)
            self.outcomes.append(outcome)
            self._tell(outcome)
        return True

    def _look(self, items: Sequence[pytest.Item], known: Functions) -> dict[str, _Known]:
        """Run all tests without a fault."""
        found: dict[str, _Known] = {}

        def run() -> Iterator[object]:
            hits: set[int] = set()
            put_probes(self._mutants, known, hits.add)
            for item, after in zip_longest(items, items[1:]):
                hits.clear()
                began = time.monotonic()
                passes = self._passes(item, after)
                yield item.nodeid, time.monotonic() - began, passes, sorted(hits)

        with _forked(run) as child:
            for nodeid, seconds, passes, hits in child.said(lambda: _ALONE):
                found[nodeid] = _Known(seconds, passes, set(hits))
                if not passes:
                    print(f"fails without a fault, and is left out: {nodeid}", flush=True)
        if len(found) < len(items):
            raise pytest.UsageError(f"the tests ended at {items[len(found)].nodeid}")
        print(f"{len(items)} tests, {sum(one.seconds for one in found.values()):.0f} s", flush=True)
        return found

    def _try(
        self,
        mutant: Mutant,
        items: Sequence[pytest.Item],
        tests: dict[str, _Known],
        known: Functions,
    ) -> Outcome:
        began = time.monotonic()

        def outcome(what: str, why: str) -> Outcome:
            return Outcome(mutant, what, time.monotonic() - began, why)

        def run() -> Iterator[object]:
            try:
                put_in(mutant, known)
            except (StaleError, SyntaxError) as error:
                yield ["stale", str(error)]
                return
            for item, after in zip_longest(items, items[1:]):
                yield ["killed" if not self._passes(item, after) else "passed", item.nodeid]

        running = iter(items)
        item = next(running, None)

        def limit() -> float:
            return _LONGER + (0 if item is None else 10 * tests[item.nodeid].seconds)

        with _forked(run) as child:
            for what, why in child.said(limit):
                if what == "stale":
                    return outcome(what, why)
                if what == "killed":
                    break
                item = next(running, None)
        if item is not None and not self._passes_alone(item):
            return self._try(mutant, [one for one in items if one is not item], tests, known)
        if item is not None:
            return outcome("killed", f"{item.nodeid}{child.end}")
        if not items:
            return outcome("uncovered", "no test comes there")
        return outcome("survived", f"{len(items)} tests")

    def _passes_alone(self, item: pytest.Item) -> bool:
        """Whether a test that has noticed a fault passes without it, as it should."""
        with _forked(lambda: iter([self._passes(item, None)])) as child:
            return list(child.said(lambda: _ALONE)) == [True]

    def _passes(self, item: pytest.Item, after: pytest.Item | None) -> bool:
        self._failed = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        return not self._failed


class _Child:
    """A fork that says one line of JSON after the other."""

    def __init__(self, pid: int, lines: int) -> None:
        self._pid, self._lines = pid, lines
        self.hung = False

    @property
    def end(self) -> str:
        """How it ended, for people."""
        return ", which hangs" if self.hung else ""

    def said(self, seconds: Callable[[], float]) -> Iterator[Any]:
        """What it says, as long as it goes on saying something within so many seconds."""
        rest, patience = b"", Patience(seconds())
        while True:
            if not select.select([self._lines], [], [], 1)[0]:
                if patience.is_over():
                    self.hung = True
                    return
                continue
            more = os.read(self._lines, 1 << 16)
            if not more:
                return
            *lines, rest = (rest + more).split(b"\n")
            yield from map(orjson.loads, lines)
            patience = Patience(seconds())


@contextmanager
def _forked(run: Callable[[], Iterator[object]]) -> Iterator[_Child]:
    """Run something in a fork; what it started is ended with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    lines, out = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(lines)
        _say(run, out)
    os.close(out)
    try:
        yield _Child(pid, lines)
    finally:
        os.close(lines)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _say(run: Callable[[], Iterator[object]], out: int) -> NoReturn:
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    errors = os.dup(2)
    os.dup2(quiet, 2)
    try:
        for one in run():
            os.write(out, orjson.dumps(one) + b"\n")
    except BaseException:
        os.write(errors, traceback.format_exc().encode())
    os._exit(0)


def in_a_copy(mutant: Mutant) -> Outcome:
    """Run a mutant's own test over a copy of the tree."""
    began = time.monotonic()
    listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    files = subprocess.run(listed, check=True, capture_output=True).stdout.decode().split("\0")
    with tempfile.TemporaryDirectory(prefix="mview-mutant-") as root:
        for name in filter(os.path.isfile, files):
            target = Path(root, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, target)
        file = Path(root, mutant.file)
        text = file.read_text()
        if text.count(mutant.before) != 1:
            return Outcome(mutant, "stale", 0, "the text is not there once")
        if not _test_passes(mutant.test, root):
            return Outcome(mutant, "stale", 0, f"{mutant.test} fails without a fault")
        file.write_text(text.replace(mutant.before, mutant.after))
        what = "survived" if _test_passes(mutant.test, root) else "killed"
    return Outcome(mutant, what, time.monotonic() - began, mutant.test)


def _test_passes(test: str, root: str) -> bool:
    paths = os.pathsep.join([root, str(Path(root, "connectors"))])
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    with subprocess.Popen(
        command, cwd=root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        patience = Patience(_ALONE)
        while process.poll() is None:
            if patience.is_over():
                process.kill()
            time.sleep(0.5)
        return process.returncode == 0
