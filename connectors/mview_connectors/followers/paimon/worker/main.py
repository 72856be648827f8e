"""Calls come in by the standard input, answers go out by the standard output.

Their form: `workers.py`, on the other side. The end of the input ends the process.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import pyarrow as pa

from .table import PaimonSink

END = b"end\n"


def main() -> None:
    """Answer until nobody asks any more."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What libraries print must not come between answers.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    sink = PaimonSink()
    while line := calls.readline():
        request = json.loads(line)
        rows = _whole(calls) if request["has_rows"] else None
        _answer(answers, *_called(sink, request["call"], request["arguments"], rows))


def _whole(calls: BinaryIO) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(calls)
    if calls.readline() != END:
        raise EOFError("the rows are cut off")


def _called(
    sink: PaimonSink, name: str, arguments: dict[str, Any], rows: Any
) -> tuple[dict[str, Any], Any]:
    """The answer to a call, and rows that go with it."""
    given = {} if rows is None else {"rows": rows}
    try:
        result = getattr(sink, name)(**arguments, **given)
    except Exception as error:
        # The rest of the rows is in the way of the next call; a stream that broke ends us there.
        with suppress(Exception):
            for _ in rows or ():
                pass
        return _failure(error), None
    if isinstance(result, pa.RecordBatchReader):
        return {"has_rows": True}, result
    return {"result": result}, None


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": _told(error), "kind": type(error).__name__}


def _told(error: BaseException) -> str:
    """An error with what it came of: pypaimon says the reason there."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 4:
        texts.append(f"{type(cause).__name__}: {' '.join(str(cause).split())}")
        cause = cause.__cause__
    return "; as ".join(texts)


def _answer(answers: BinaryIO, answer: dict[str, Any], rows: Any) -> None:
    _write(answers, answer)
    if rows is not None:
        last: dict[str, Any] = {"result": None}
        with pa.ipc.new_stream(answers, rows.schema) as stream:
            try:
                for batch in rows:
                    stream.write_batch(batch)
            except Exception as error:
                last = _failure(error)
        _write(answers, last)
    answers.flush()


def _write(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
