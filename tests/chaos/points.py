"""Every place that can fail, in all that passes it, and how a run comes by it for certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.chaos.processes import COLD, Life
from tests.chaos.warm import cold

#: What every publication passes; one that shows something in sinks.
_PLAIN = ("after-lease", "after-commit", "file-linked", "after-publish", "after-clear")
_SHOWN = (*_PLAIN, "after-intent", "before-sink", "log-committed", "after-sink")
_STAGED = ("after-mirrors", "after-views", "after-stage", *_SHOWN)


def _behind(begin: str, points: Sequence[str]) -> tuple[str, ...]:
    return begin, *(f"{begin}>{point}" for point in points)


_BUILD = (*_behind("in-build", _SHOWN), "after-build")

#: The places of `mview.failpoints` by what must go on for a run to come by them: the same step is
#: another one where other things are half done.
SCENES: dict[str, tuple[str, ...]] = {
    "follow": _behind("after-net", _STAGED),
    "begin": _behind("after-plan", (*_PLAIN, "log-committed")),
    "load": (*_behind("after-net", _STAGED), "in-chunk"),
    "edited view": _BUILD,
    "added view": _BUILD,
    "first build": _BUILD,
    "compaction": (*_behind("after-compact", _PLAIN), "after-clear>log-committed"),
    "upkeep": ("after-prune", "in-clean"),
    "drop": (
        "recover-fenced>file-linked", "drop-published", "drop-published>taken-away", "drop-sink",
        "forget-folder",
    ),
    "left by a drop": ("taken-away", "drop-sink", "drop-sink>taken-away", "forget-folder"),
    "recover": (
        "recover-begin", "recover-begin>file-linked", "recover-decided",
        "recover-decided>log-committed", "recover-committed", "recover-committed>file-linked",
        "recover-published", "recover-published>log-committed", "recover-sink", "recover-mirror",
        "recover-fenced",
    ),
    "view in a load": _BUILD,
    "built beside": (
        "in-build", "build-followed", *_behind("build-closed", _SHOWN), "after-build",
    ),
    "apply": (
        *_behind("apply-taken", _PLAIN), "apply-begun",
        *_behind("apply-removed", ("taken-away", "drop-sink", "forget-folder", *_SHOWN)),
        "apply-answered",
    ),
}  # fmt: skip

#: Scenes in which no Spark was started yet, or none is needed.
WITHOUT_JVM = ("begin", "follow", "compaction", "upkeep", "drop", "left by a drop", "recover")


class Place(NamedTuple):
    """A step where a fault is to be met.

    Attributes:
        scene: of `SCENES`.
        text: see `mview.failpoints`.
    """

    scene: str
    text: str

    @property
    def point(self) -> str:
        """The fail point."""
        return self.text.rpartition(">")[2]


PLACES = [Place(scene, text) for scene, texts in SCENES.items() for text in texts]

#: One place of every fail point: the one with the simplest way to it.
POINTS: Mapping[str, Place] = {place.point: place for place in reversed(PLACES)}


def places_of(fault: str) -> list[Place]:
    """Where a fault can be met: a JVM is killed where there is one."""
    return [p for p in PLACES if fault != "kill-jvm" or p.scene not in WITHOUT_JVM]


def meet_at(life: Life, place: Place, fault: str) -> None:
    """Come by a place and meet a fault there; the truth afterwards.

    Args:
        life: a store whose views were built.
        place: where.
        fault: one of `FAULTS` or `COLD`.
    """
    scene, text = place
    has_jvm = scene not in WITHOUT_JVM
    # Spark's workers have the fail points of their JVM; a JVM that is killed must be the run's.
    start = cold if has_jvm and (fault in COLD or place.point == "in-chunk") else None
    life.change_all()
    _PREPARED[scene](life, text)
    action, names = ("drop", ["priced"]) if scene == "drop" else ("once", [])
    if scene == "built beside":
        action = "live"
    reached = life.meet(action, text, fault, start, names, epochs=None)
    assert reached, f"{place} was not reached; {life.said}"
    if fault in COLD and has_jvm:
        assert life.killed, f"no JVM was killed at {place}"
    if fault in COLD and scene == "load":
        assert life.is_loading("shop.lines"), f"{place} was met behind the load"
    if scene == "drop":
        life.leave_out("priced")
    life.look()


def _settled(life: Life, text: str = "") -> None:
    """All that a fault has left undone is done."""
    if not life.is_settled():
        life.perform("once")
        life.change_all()


def _begun(life: Life, text: str) -> None:
    """A table is to be loaded, while a view goes on."""
    if not life.is_published("names"):
        _settled(life)
    life.perform("drop", ["shop.lines"])


def _unbuilt(life: Life, text: str) -> None:
    """The tables are loaded, and no view was ever built."""
    if life.has_decided():
        life.perform("once")
    latest = life.log.latest()
    if latest is None or latest.views or not life.is_loaded():
        life.perform("drop", life.known())
        assert life.meet("once", "in-build", "kill"), f"nothing was built; {life.said}"
        life.look()


def _added(life: Life, text: str) -> None:
    _settled(life)
    if life.is_published("priced"):
        life.perform("drop", ["priced"])
    life.write("priced")


def _added_in_a_load(life: Life, text: str) -> None:
    """A view is to be built while a table is loaded that it does not read."""
    _begun(life, text)
    life.perform("drop", ["names"])


def _edited(life: Life, text: str) -> None:
    _settled(life)
    life.edit("totals")


def _edited_and_added(life: Life, text: str) -> None:
    _added(life, text)
    life.edit("totals")


def _due(life: Life, text: str) -> None:
    """So much changes that it is folded into the base."""
    _settled(life)
    life.change_most()


def _asked(life: Life, text: str) -> None:
    """A run is asked for another text of a view, and that another view goes."""
    if life.is_asked():
        life.perform("once")
    _settled(life)
    life.write("priced")
    life.perform("once")
    life.leave_out("priced")
    life.ask("totals", "priced")


def _dropped(life: Life, text: str) -> None:
    """A view is there that can go."""
    life.write("priced")
    life.perform("once")


def _half_dropped(life: Life, text: str) -> None:
    """A view was dropped, and what it had is there."""
    _dropped(life, text)
    assert life.meet("drop", "drop-published", "kill", names=["priced"]), life.said
    life.leave_out("priced")


def _undone(life: Life, text: str) -> None:
    """Something is decided, or not: the one is done again, the other is taken back."""
    _settled(life)
    before = "after-stage" if text.startswith("recover-begin") else "after-net>after-intent"
    assert life.meet("once", before, "kill"), f"{before} was not reached; {life.said}"
    life.look()


_PREPARED: Mapping[str, Callable[[Life, str], None]] = {
    "follow": _settled,
    "begin": _begun,
    "load": _begun,
    "first build": _unbuilt,
    "added view": _added,
    "edited view": _edited,
    "view in a load": _added_in_a_load,
    "built beside": _edited_and_added,
    "apply": _asked,
    "compaction": _due,
    "upkeep": _settled,
    "drop": _dropped,
    "left by a drop": _half_dropped,
    "recover": _undone,
}
