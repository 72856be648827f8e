"""A proxy around a sink that fails on request: before a call is made, or after it has succeeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyarrow as pa

from mview.failpoints import FaultError
from mview.follower import Facts, Follower, Mark, State, Step, Token

When = Literal["before", "after"]

#: The methods of a sink that reach out.
CALLS = ("create", "position", "stage", "fill", "commit", "state", "abort")


class Faulty:
    """A sink whose calls fail once each, as planned.

    Args:
        follower: the real one.
    """

    def __init__(self, follower: Follower) -> None:
        self.inner = follower
        self.capabilities = follower.capabilities
        self._planned: dict[tuple[str, When], Callable[[], object]] = {}
        #: Happens once, while rows are read: after a step was begun, before it is staged.
        self.while_read: Callable[[], object] | None = None
        #: Faults that were hit.
        self.hit: list[tuple[str, When]] = []

    def fail(self, call: str, when: When) -> None:
        """Have the next call fail: before it is made, or after it has succeeded."""

        def fault() -> None:
            raise FaultError(f"{call} failed on request, {when} it was done")

        self.at(call, when, fault)

    def at(self, call: str, when: When, act: Callable[[], object]) -> None:
        """Have something happen once, before or after the next such call."""
        assert call in CALLS
        self._planned[call, when] = act

    def _do(self, name: str, call: Callable[[], Any]) -> Any:
        self._reach(name, "before")
        result = call()
        self._reach(name, "after")
        return result

    def _reach(self, name: str, when: When) -> None:
        act = self._planned.pop((name, when), None)
        if act is not None:
            self.hit.append((name, when))
            act()

    def _read(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        def read() -> Iterator[pa.RecordBatch]:
            act, self.while_read = self.while_read, None
            if act is not None:
                act()
            yield from rows

        return pa.RecordBatchReader.from_batches(rows.schema, read())

    # --- Follower --------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Follower`."""
        self.inner.check()

    def caution(self) -> str | None:
        """See `Follower`."""
        return self.inner.caution()

    def create(self) -> None:
        """See `Follower`."""
        self._do("create", self.inner.create)

    def position(self) -> Mark | None:
        """See `Follower`."""
        mark: Mark | None = self._do("position", self.inner.position)
        return mark

    def stage(self, step: Step, delta: pa.RecordBatchReader) -> Token:
        """See `Follower`."""
        token: Token = self._do("stage", lambda: self.inner.stage(step, self._read(delta)))
        return token

    def fill(self, step: Step, rows: pa.RecordBatchReader) -> Token:
        """See `Follower`."""
        token: Token = self._do("fill", lambda: self.inner.fill(step, self._read(rows)))
        return token

    def commit(self, token: Token) -> Facts:
        """See `Follower`."""
        facts: Facts = self._do("commit", lambda: self.inner.commit(token))
        return facts

    def state(self, step: Step, token: Token | None) -> State:
        """See `Follower`."""
        state: State = self._do("state", lambda: self.inner.state(step, token))
        return state

    def abort(self, step: Step, token: Token | None) -> None:
        """See `Follower`."""
        self._do("abort", lambda: self.inner.abort(step, token))

    def read(self) -> pa.RecordBatchReader:
        """See `Follower`."""
        return self.inner.read()

    def maintain(self, *, thorough: bool) -> Facts:
        """See `Follower`."""
        return self.inner.maintain(thorough=thorough)

    def close(self) -> None:
        """See `Follower`."""
        self.inner.close()
