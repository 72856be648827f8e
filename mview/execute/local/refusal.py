"""Why a query does not run in process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """Why a query cannot run in process.

    Attributes:
        code: what kind of thing is not admitted: `operator`, `type`, `clause`, `name`.
        detail: the thing, in one line.
    """

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.detail} is not admitted in process ({self.code})"


class NotAdmittedError(Exception):
    """Carries a `Reason` out of a translation."""

    def __init__(self, code: str, detail: str) -> None:
        self.reason = Reason(code, detail)
        super().__init__(str(self.reason))
