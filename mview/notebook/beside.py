"""The process of a run that a notebook has begun: `python -m mview.notebook.beside run …`.

It ends as a run that is interrupted does when its input ends: so also with the notebook's kernel,
however that ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from mview.cli import main

#: Seconds between two looks whether who began us is there: a process that it has forked may hold
#: our input open.
_LOOK_S = 1.0


def _drain_when_left(beginner: int) -> None:
    ended = threading.Event()

    def read() -> None:
        # Not by sys.stdin: its lock would be held when the interpreter ends.
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    while not ended.wait(_LOOK_S) and os.getppid() == beginner:
        pass
    # What an interrupt does: the running epoch is finished, and nothing is left behind.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    began = int(sys.argv.pop(1))
    threading.Thread(target=_drain_when_left, args=[began], daemon=True).start()
    main()
