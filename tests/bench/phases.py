"""`mview run` that notes what its start costs: CPU seconds by phase, of itself and its children.

    python tests/bench/phases.py NOTES run VIEWS -c mview.yml --once

For `tests/bench/restart.py`, which runs it by other versions of mview, too: it imports no more.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

#: Where the phases are: what is called, by the names that it has had, and what it is for.
_PLACES = {
    "recovery": (("mview.run.pipeline", "recover"),),
    "JVM and session": (
        ("mview.session.lazy", "spark_session"),
        ("mview.run.pipeline", "spark_session"),
    ),
    "sources": (("mview.run.pipeline", "register_sources"),),
    "views opened": (("mview.run.pipeline", "open_views"),),
    "mirrors": (("mview.execute.executors", "Executors.warm"),),
    "first epoch": (("mview.run.pipeline", "run_epoch"),),
}
_noted: dict[str, float] = {}
_lock = threading.RLock()
_inside: list[float] = []


def _cpu() -> float:
    """CPU seconds of this process and its children."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:4])
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def _timed(phase: str, call: Callable[..., Any], notes: Path) -> Callable[..., Any]:
    """A function whose first call is a phase, without the phases inside."""

    def timed(*args: Any, **more: Any) -> Any:
        if phase in _noted:
            return call(*args, **more)
        with _lock:
            before = _cpu()
            _inside.append(0.0)
            try:
                return call(*args, **more)
            finally:
                took = _cpu() - before
                _noted[phase] = took - _inside.pop()
                if _inside:
                    _inside[-1] += took
                _write(notes)

    return timed


def _write(notes: Path) -> None:
    """Write what is noted, whole or not at all: the process may be killed meanwhile."""
    new = notes.with_suffix(".new")
    new.write_text(json.dumps(_noted))
    new.replace(notes)


def main() -> None:
    """Run the command line."""
    notes = Path(sys.argv.pop(1))
    sys.path.pop(0)  # this folder
    import importlib

    importlib.import_module("mview.run.pipeline")
    _noted["imports"] = _cpu()
    for phase, places in _PLACES.items():
        for module, name in places:
            try:
                owner: Any = importlib.import_module(module)
            except ImportError:
                continue
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            if hasattr(owner, last):
                setattr(owner, last, _timed(phase, getattr(owner, last), notes))
                break
    from mview.cli import main as command

    try:
        command()
    finally:
        _noted["all"] = _cpu()
        _write(notes)


if __name__ == "__main__":
    main()
