"""For what a sink has been waiting for a while, noted for those who look at the status."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from mview.clock import WallMs
from mview.errors import CorruptionError
from mview.files.durable import put
from mview.files.jsonfile import checked, read_checked
from mview.files.records import record

#: Seconds without a sign after which it is noted: most steps are shorter.
NOTED_S = 10.0

_FILE = "waiting.json"


@dataclass(frozen=True)
class Wait:
    """Somebody who gives no sign in the middle of a step.

    Attributes:
        token: of the lease of the run that waits: what another one noted does not count.
        whom: `target`, or `source`: what a view in light mode is read from.
        since_ms: wall time of the last sign.
    """

    token: int
    whom: Literal["source", "target"]
    since_ms: WallMs


def read_wait(folder: Path, token: int | None) -> Wait | None:
    """For what a sink waits; None: it does not.

    Args:
        folder: the sink's.
        token: of the run that goes on; None: none does.
    """
    if token is not None:
        with suppress(CorruptionError):
            wait = read_checked(folder / _FILE, partial(record, Wait), "", "")
            return wait if wait is not None and wait.token == token else None
    return None


def note_wait(folder: Path, wait: Wait | None) -> None:
    """Note for what a sink waits; None: it goes on."""
    if wait is None:
        (folder / _FILE).unlink(missing_ok=True)
    else:
        put(folder / _FILE, checked(asdict(wait)))
