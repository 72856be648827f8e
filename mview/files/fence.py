"""What keeps a runner that was replaced from writing, deleting or showing anything.

A look at the lease is no fence: a pause may come after it. So every log holds the token of the
runner that writes to it; taking over puts the new token there, as the next commit, before anything
is rolled back or deleted. An older runner's commit to that place fails by itself, and one to a
later place sees the token. Files are deleted only where they were listed before a look at the
lease: what a newer runner wrote is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Fence(Protocol):
    """One runner's right to write."""

    @property
    def token(self) -> int:
        """Greater than that of every runner before."""
        ...

    @property
    def takes_over(self) -> bool:
        """Whether the runner before may still be there: it did not give its right back."""
        ...

    def check(self) -> None:
        """Look whether a newer runner has taken over.

        Raises:
            FencedError: it has.
        """
        ...


@dataclass(frozen=True)
class Unfenced:
    """Of who only reads, and where there is one writer only."""

    token: int = 0
    takes_over: bool = False

    def check(self) -> None:
        """There is nobody else."""


UNFENCED = Unfenced()
