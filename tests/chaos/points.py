"""Every fail point, and how a run comes by it for certain."""

from __future__ import annotations

from tests.chaos.processes import Life
from tests.chaos.warm import cold

#: Fail points by what must go on for a run to come by them.
SCENES = {
    "load": ("after-plan", "in-build", "after-build"),
    "chunk": ("in-chunk",),
    "follow": (
        "after-net", "after-mirrors", "after-views", "after-stage", "after-lease", "after-intent",
        "before-sink", "after-sink", "after-commit", "after-publish", "after-clear",
        "log-committed", "file-linked", "after-compact", "after-prune", "in-clean",
    ),
    "recover": (
        "recover-begin", "recover-decided", "recover-committed", "recover-published",
        "recover-sink", "recover-mirror", "recover-fenced",
    ),
    "drop": ("drop-published", "drop-sink", "forget-folder", "taken-away"),
}  # fmt: skip
POINTS = {point: scene for scene, points in SCENES.items() for point in points}


def meet_at(life: Life, point: str, fault: str) -> None:
    """Come by a place and meet a fault there; the truth afterwards.

    Args:
        life: a store whose views are built.
        point: the place.
        fault: one of `FAULTS`.
    """
    scene = POINTS[point]
    action, names, start = "once", [], None
    life.change_all()
    if scene in ("load", "chunk"):
        life.perform("drop", ["shop.lines"])
    if scene == "chunk":
        start = cold  # Spark's workers have the fail points of their JVM
    if scene == "recover":
        # With something decided and without: the one is done again, the other is taken back.
        before = "after-stage:1" if point == "recover-begin" else "after-intent:1"
        assert life.meet("once", before, "kill"), f"{before} was not reached; {life.said}"
        life.look()
    if scene == "drop":
        life.write("priced")
        life.perform("once")
        action, names = "drop", ["priced"]
    assert life.meet(action, point, fault, start, names), f"{point} was not reached; {life.said}"
    life.look()
    if scene == "drop":
        life.leave_out("priced")
