"""What Spark raises, as the error it was: ours come through Spark as text."""

from __future__ import annotations

from mview.errors import MviewError, RetryableError

#: Spark's words for it.
_NO_WORKER = "Python worker failed to connect back"


class WorkerStartError(RetryableError):
    """Spark waits ten seconds for a Python worker to start, which no setting changes."""


def translate_failure(text: str) -> MviewError:
    """An error that came through Spark as text: the block our own worker printed, or the head."""
    marker = "mview.errors."
    if marker in text:
        name, _, rest = text.split(marker, 1)[1].partition(": ")
        kind = getattr(__import__("mview.errors", fromlist=[name]), name.strip(), RetryableError)
        lines = rest.partition(" SQLSTATE:")[0].splitlines()
        block = [lines[0]]
        fields: dict[str, str] = {}
        labels = {
            "where": "where",
            "got": "got",
            "allowed": "allowed",
            "data": "safe",
            "next": "hint",
        }
        for line in lines[1:]:
            label, separator, value = line.strip().partition(":")
            if not separator or label not in labels or not line.startswith("  "):
                break
            fields[labels[label]] = value.strip()
        error: MviewError = kind(block[0], **fields)
        return error
    if _NO_WORKER in text:
        return WorkerStartError(
            "a Python worker of Spark did not start in time",
            safe="published epochs are untouched; the failed one was not published",
            hint="the machine is overloaded, or out of memory: run the same command again",
        )
    return RetryableError(
        "a query failed on Spark",
        got=text[:2000],
        safe="published epochs are untouched; the failed one was not published",
        hint="run the same command again; add --debug for Spark's own words",
    )
