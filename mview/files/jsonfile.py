"""Small JSON files of ours: they tell whether they are whole, and are read strictly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from mview.errors import CorruptionError, UserError
from mview.files.records import Parse, T


def checked(body: Mapping[str, Any]) -> bytes:
    """The content of a JSON file that tells whether it is whole."""
    content = orjson.dumps(body)
    # The first line tells a torn or edited file from a whole one.
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content + b"\n"


def read_checked(
    file: Path, parse: Parse[T], what: str, hint: str, safe: str = "nothing was changed"
) -> T:
    """What a file of `checked` says.

    Args:
        parse: makes the result of the JSON value, see `mview.files.records`.
        what: cannot be read.
        hint: what to do then.
        safe: what happened to the data.

    Raises:
        CorruptionError: it is not what was written, or has another form.
    """
    with damage_told(file, what, hint, safe):
        checksum, _, content = file.read_bytes().partition(b"\n")
        content = content.rstrip()  # a full disk takes only what is as long as what was there
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            raise ValueError("the checksum does not fit the content")
        body = orjson.loads(content)
        try:
            return parse(body)
        except (ValueError, UserError) as error:
            reason = error.what if isinstance(error, UserError) else error
            raise ValueError(
                f"it has another form: {reason}; perhaps another version of mview wrote it"
            ) from None


@contextmanager
def damage_told(
    file: Path, what: str, hint: str, safe: str = "nothing was changed"
) -> Iterator[None]:
    """Tell with its file what is wrong with a file of ours; see `read_checked`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise CorruptionError(what, where=str(file), got=str(error), safe=safe, hint=hint) from None
