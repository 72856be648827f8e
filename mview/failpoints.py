"""Faults on purpose, for tests: at a place with a name a process is killed, paused, or fails.

`MVIEW_FAILPOINT=[begin>]name[:nth][=fault[:argument]]`, for example `after-sink:2` or
`after-intent=pause:/tmp/go`; `in-build>after-intent` is the first `after-intent` behind an
`in-build`. Faults: `kill` this process (the default), `kill-tree` the driver and all that it has
started, `kill-jvm` only its Java, `pause` until the file of the argument is there (or for that many
seconds), `raise` an error: behind a commit, one that was made and is reported as failed.
`MVIEW_FAILPOINT_HIT` names a file that is made when the place is reached; in it is which Java
processes are killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

#: Every place that can fail, and what has been done there.
FAILPOINTS = {
    "after-plan": "a table's chunks are planned, its mirror is not made",
    "in-chunk": "a part of a chunk is staged",
    "after-net": "an epoch knows its changes",
    "after-mirrors": "the changes are in the changelogs",
    "after-views": "the views' changes are known, some are staged",
    "after-stage": "all is durable, nothing decided",
    "after-lease": "the lease was looked at before an epoch is decided",
    "after-intent": "an epoch is decided",
    "before-sink": "a sink is about to commit",
    "after-sink": "a sink has committed",
    "after-commit": "all sinks have committed",
    "after-publish": "an epoch is published, its intent is still there",
    "after-clear": "the intent is gone, memory does not know of the epoch",
    "log-committed": "a version of a Delta log is written",
    "file-linked": "a manifest or an intent is written",
    "in-build": "the rows of a new view are written, nothing is staged",
    "after-build": "new views are staged",
    "build-followed": "a view that is built beside the epochs is closer to them",
    "build-closed": "it is at the published epoch, nothing of it is shown or staged",
    "after-compact": "a base is compacted, no manifest takes it over",
    "in-clean": "it is known what may be deleted, nothing is",
    "after-prune": "old manifests are gone, their files are not",
    "recover-begin": "a runner has the lease, nothing else",
    "recover-decided": "the next epoch is a take-over, or what an intent says",
    "recover-committed": "the sinks of an intent have committed again",
    "recover-published": "the epoch of the take-over is published",
    "recover-sink": "a sink is back at the published epoch",
    "recover-mirror": "a mirror is back at the published epoch",
    "recover-fenced": "no older runner can write any more",
    "taken-away": "what is to be deleted has another name",
    "forget-folder": "a folder that no manifest names is on its way out",
    "apply-taken": "a request was looked at and is sound, nothing of it is done",
    "apply-begun": "the loads of its new tables have begun, its views are not known yet",
    "apply-removed": "its views that go are gone from the manifest, their tables are there",
    "apply-answered": "all of it is live and told, the request is still there",
    "drop-published": "a dropped view is gone from the manifest, its table is there",
    "drop-sink": "the table of a dropped view is deleted, its mirrors are not",
}


#: The process that was armed first: workers of Spark are of its tree, too.
_ROOT = "MVIEW_FAILPOINT_ROOT"


class FaultError(OSError):
    """What a fault raises: it looks as a disk or network that went away does."""


@dataclass
class _Armed:
    name: str
    begin: str
    left: int
    act: Callable[[], None]
    hit: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_armed: list[_Armed] = []


def failpoint(name: str) -> None:
    """A place that can fail; does nothing unless it was asked to."""
    if _armed:
        _reached(name)


def _reached(name: str) -> None:
    with _lock:
        for fault in _armed:
            if fault.begin:
                if fault.begin == name:
                    fault.begin = ""
            elif fault.name == name:
                fault.left -= 1
                if fault.left == 0:
                    break
        else:
            return
    fault.hit.set()
    fault.act()


@contextmanager
def armed(name: str, act: Callable[[], None], nth: int = 1) -> Iterator[threading.Event]:
    """For tests in one process: the nth to reach a place does something; yields whether one did."""
    fault = _arm(name, nth, act)
    try:
        yield fault.hit
    finally:
        with _lock:
            _armed.remove(fault)


def _arm(name: str, nth: int, act: Callable[[], None], begin: str = "") -> _Armed:
    for text in filter(None, (begin, name)):
        if text not in FAILPOINTS:
            raise ValueError(f"there is no fail point {text!r}; there are {', '.join(FAILPOINTS)}")
    fault = _Armed(name, begin, nth, act)
    with _lock:
        _armed.append(fault)
    return fault


def arm(text: str, note: str = "") -> None:
    """Arm a fault of this process, as the environment would.

    Args:
        text: `[begin>]name[:nth][=fault[:argument]]`.
        note: a file that is made when the place is reached; "" for none.
    """
    place, _, fault = text.partition("=")
    begin, _, place = place.rpartition(">")
    name, _, nth = place.partition(":")
    kind, _, argument = fault.partition(":")
    act = {
        "": _kill,
        "kill": _kill,
        "kill-tree": _kill_tree,
        "kill-jvm": _kill_jvm,
        "pause": lambda: _pause(argument),
        "raise": _raise,
    }[kind]

    def noted() -> None:
        if note:
            killed = _jvms() if kind in ("kill-tree", "kill-jvm") else []
            Path(note).write_text(" ".join(map(str, killed)))
        act()

    _arm(name, int(nth or 1), noted, begin)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_tree() -> None:
    for pid in _tree():
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _kill()


def _kill_jvm() -> None:
    for pid in _jvms():
        os.kill(pid, signal.SIGKILL)


def _pause(argument: str) -> None:
    if argument.isdigit():
        time.sleep(int(argument))
        return
    while not Path(argument).exists():
        time.sleep(0.01)


def _raise() -> None:
    raise FaultError("a fault on purpose")


def _jvms() -> list[int]:
    """What of the tree is Java."""
    running = []
    for pid in _tree():
        with suppress(OSError):
            if Path(f"/proc/{pid}/exe").readlink().name == "java":
                running.append(pid)
    return running


def _tree() -> list[int]:
    """The driver and what it has started, also where this is a worker of it."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
    processes = [int(os.environ.get(_ROOT, os.getpid()))]
    for pid in processes:
        processes += [child for child, parent in parents.items() if parent == pid]
    return processes


if _wanted := os.environ.get("MVIEW_FAILPOINT"):
    os.environ.setdefault(_ROOT, str(os.getpid()))
    arm(_wanted, os.environ.get("MVIEW_FAILPOINT_HIT", ""))
