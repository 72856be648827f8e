"""What Spark raises, as the error it was: ours come through Spark as text."""

from __future__ import annotations

import re
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors.exceptions.base import PySparkException

from mview import errors
from mview.errors import MviewError, RetryableError, about, of_the_system

#: What an error of Java begins with: what was called, and names of classes.
_JAVA = re.compile(r"^(?:An error occurred while calling \S+\n: )?(?:[\w$]+\.)+([\w$]+): ")

#: Spark's advice to switch an error off by a setting that is the same for all views
#: (`mview.config.meaning`): who followed it would be refused.
_ADVICE = re.compile(
    r"\s*If (?:necessary|you have to)\b[^\n]*?\"spark\.sql\.ansi\.enabled\"[^\n]*?\.(?=\s|$)"
)

#: What Spark raises here; the second where it has no class of its own for what Java raised.
SPARK_ERRORS = (PySparkException, Py4JError)

#: Spark's words for it.
_NO_WORKER = "Python worker failed to connect back"
_WORKER_GONE = (
    "Python worker exited unexpectedly",
    # Of the process that makes workers.
    "occurred while reading the port number from pyspark.daemon",
)
_WAITED = "Exception thrown in awaitResult"
#: What stands before each further exception in a trace of Java.
_CAUSE = "\nCaused by: "

#: Of a file that Spark could not read, in whatever it raises for it; not of one that is gone, as
#: a run may have replaced it meanwhile.
_UNREAD = re.compile(
    r"\[FAILED_READ_FILE(?!\.FILE_NOT_EXIST)[.A-Z_]*\] [^\n]*?file:/*(/[^\n]*?\.parquet)\b"
)

#: A field of an error's block, and what goes on in the next line.
_FIELD = re.compile(r"  (in|where|got|allowed|data|next|code): +(.*)")
_MORE = re.compile(r" {11}(.*)")

_ARGUMENTS = {
    "where": "where",
    "got": "got",
    "allowed": "allowed",
    "data": "safe",
    "next": "hint",
    "code": "code",
}


class SparkWorkerError(RetryableError):
    """A Python worker of Spark is not there: the same may pass when it is tried again."""


class WorkerStartError(SparkWorkerError):
    """Spark waits ten seconds for a Python worker to start, which no setting changes."""


class WorkerEndedError(SparkWorkerError):
    """A Python worker of Spark has ended under a task: the system ended it, or what it ran did."""


def unwrapped(error: PySparkException) -> PySparkException:
    """What made the part of a query fail that others waited for."""
    cause = getattr(error, "_cause", None)
    while isinstance(cause, PySparkException) and _WAITED in str(error):
        error, cause = cause, getattr(cause, "_cause", None)
    return error


def unread_file(error: BaseException) -> str | None:
    """The data file that Spark could not read, where it failed by that."""
    cause: BaseException | None = error
    while cause is not None:
        if said := _UNREAD.search(str(cause)):
            return unquote(said.group(1))  # a URL
        cause = getattr(cause, "_cause", None)
    return None


def without_advice(text: str) -> str:
    """Words of Spark, without its advice to switch the error off."""
    return _ADVICE.sub("", text)


def first_words(error: Exception) -> str:
    """What an error is and says, in one line: `<class>: <words>`."""
    if isinstance(error, PySparkException):
        error = unwrapped(error)
    text, kind = _waited_for(str(error).strip()), type(error).__name__
    if (java := _JAVA.match(text)) is not None:
        text, kind = text[java.end() :], java.group(1)
    line = without_advice(text.partition("\n")[0].partition(" SQLSTATE")[0])
    return f"{kind}: {line[:600]}" if line else kind


def _waited_for(text: str) -> str:
    """Java's words from where they tell what others waited for: pyspark has no class for some."""
    head, _, cause = text.partition(_CAUSE)
    while cause and _WAITED in head:
        text = cause
        head, _, cause = text.partition(_CAUSE)
    return text


def translate_failure(text: str) -> MviewError:
    """An error that came through Spark as text: the block our own worker printed, or the head."""
    marker = "mview.errors."
    if marker in text:
        name, _, rest = text.split(marker, 1)[1].partition(": ")
        kind = getattr(errors, name.strip(), None)
        if not (isinstance(kind, type) and issubclass(kind, MviewError)):
            kind = RetryableError
        return _of_block(kind, rest.partition(" SQLSTATE:")[0].split("\n"))
    if _NO_WORKER in text:
        return WorkerStartError(
            "a Python worker of Spark did not start in time",
            safe="published epochs are untouched; the failed one was not published",
            hint="the machine is overloaded, or out of memory: run the same command again",
        )
    if (refused := of_the_system(RuntimeError(text))) is not None:
        return refused
    if any(words in text for words in _WORKER_GONE):
        return WorkerEndedError(
            "a Python worker of Spark was killed, or has crashed",
            safe="published epochs are untouched; the failed one was not published",
            hint="run the same command again; if the system ends it for lack of memory, "
            "lower engine.chunk_rows or spark.driver.memory",
        )
    return RetryableError(
        "a query failed on Spark",
        got=text[:2000],
        safe="published epochs are untouched; the failed one was not published",
        hint="run the same command again; add --debug for Spark's own words",
    )


def _of_block(kind: type[MviewError], lines: list[str]) -> MviewError:
    """The error whose block `MviewError.render` wrote; lines that are none of it end it."""
    what, fields, label = lines[0], {}, ""
    for line in lines[1:]:
        if field := _FIELD.fullmatch(line):
            label = field[1]
            fields[label] = field[2]
        elif label and (more := _MORE.fullmatch(line)):
            fields[label] += "\n" + more[1]
        else:
            break
    subject = fields.pop("in", None)
    error = kind(what, **{_ARGUMENTS[label]: text for label, text in fields.items()})
    return error if subject is None else about(error, subject)
