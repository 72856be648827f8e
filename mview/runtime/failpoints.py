"""Crash on purpose, for tests: `MVIEW_FAILPOINT=name` or `name:nth` kills the process there."""

from __future__ import annotations

import os
import signal

_wanted, _, _nth = os.environ.get("MVIEW_FAILPOINT", "").partition(":")
_hits_left = int(_nth or 1)


def failpoint(name: str) -> None:
    """Die here, as by a power cut of this process, when the environment says so."""
    if name == _wanted:
        _hit()


def _hit() -> None:
    global _hits_left
    _hits_left -= 1
    if _hits_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
