"""Why an executor does not run a query that another one can."""

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
        return f"{self.detail} cannot run in process ({self.code})"


class RefusalError(Exception):
    """An executor does not run a query: Spark must, and its outcome is the one that counts."""


class NotAdmittedError(RefusalError):
    """Carries a `Reason` out of a translation."""

    def __init__(self, code: str, detail: str) -> None:
        self.reason = Reason(code, detail)
        super().__init__(str(self.reason))


class EvaluationError(RefusalError):
    """DuckDB refused at run time (overflow, division by zero …)."""
