"""How Python shares its time."""

from __future__ import annotations

import gc
import weakref

from mview.session.worker import settled


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_settled_is_not_looked_through_and_nothing_stays_for_ever() -> None:
    before = _Cycle()
    gone = weakref.ref(before)
    with settled():
        assert not any(known is before for known in gc.get_objects())
        after = _Cycle()
        came = weakref.ref(after)
        del after, before
        gc.collect()
        assert came() is None
        assert gone() is not None
    gc.collect()
    assert gone() is None
    assert gc.get_freeze_count() == 0
