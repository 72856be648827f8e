"""The keys that changes have touched while a table is loaded, in bounded work per step.

What a step touches stands in its progress. When that is larger than a step should write, it goes
into a file of its own, which the progress names and nobody ever changes; the newest of these are
made one when they are of about a size. So a key is written some ten times at the most, however
long a load is paused, and not with each step.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mview.files.durable import put
from mview.files.fence import Fence
from mview.files.jsonfile import checked, read_checked
from mview.files.records import fields
from mview.rows.key_sets import KeySet

#: Characters of keys that a progress holds at the most, beside names of files.
MOST = 1 << 16

#: Of a progress: by number of a chunk its keys, and by name of a file how many characters it has.
Seen = Mapping[str, str]

#: How names of files end.
SUFFIX = ".seen"


class SeenKeys:
    """The touched keys of the progress of one sink. For one thread.

    Args:
        folder: of the progress.
        fence: the runner's right to write.
        key: the columns of the table's key.
    """

    def __init__(self, folder: Path, fence: Fence, key: pa.Schema) -> None:
        self._folder, self._fence, self._key = folder, fence, key
        self._files: dict[str, Mapping[int, KeySet]] = {}

    def of_rows(self, seen: Seen, chunk: int, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """For each row of a chunk whether a change has touched its key."""
        touched = np.zeros(rows.num_rows, np.bool_)
        self._files = {name: self._file(name) for name in files_of(seen)}
        for keys in [_decoded(seen), *self._files.values()]:
            if chunk in keys:
                touched |= keys[chunk].contains(rows, self._key)
        return touched

    def with_more(self, seen: Seen, more: Mapping[int, KeySet], first: int, step: int) -> Seen:
        """Also keys that a step has touched.

        Args:
            seen: the keys before.
            more: its keys by chunk.
            first: the first chunk that is not there yet; keys of those before are of no use.
            step: its number.
        """
        files = {name: seen[name] for name in files_of(seen)}
        keys = _encoded(_united([_decoded(seen), more], first))
        if (size := sum(map(len, keys.values()))) <= MOST:
            return {**files, **keys}
        parts: list[Mapping[int, KeySet]] = [_decoded(keys)]
        while files and int(files[max(files)]) <= 2 * size:
            newest = max(files)
            size += int(files.pop(newest))
            parts.append(self._file(newest))
        whole = _united(parts, first)
        keys = _encoded(whole)
        self._fence.check()
        name = f"{step:020d}-{self._fence.token:012d}-{uuid.uuid4().hex}{SUFFIX}"
        put(self._folder / name, checked(keys))
        self._files = {old: self._files[old] for old in files if old in self._files} | {name: whole}
        return {**files, name: str(sum(map(len, keys.values())))}

    def _file(self, name: str) -> Mapping[int, KeySet]:
        if name not in self._files:
            self._files[name] = read_checked(
                self._folder / name,
                _parsed,
                "the progress of a light view cannot be read",
                "remove its folder: the table in the sink is filled anew",
            )
        return self._files[name]


def files_of(seen: Seen) -> list[str]:
    """The files that hold keys of a progress, the oldest first."""
    return sorted(name for name in seen if name.endswith(SUFFIX))


def without_chunk(seen: Seen, chunk: int, *, is_last: bool) -> Seen:
    """The keys that are of use when a chunk is there."""
    if is_last:
        return {}
    return {name: text for name, text in seen.items() if name != str(chunk)}


def _decoded(seen: Seen) -> dict[int, KeySet]:
    return {
        int(name): KeySet.from_bytes(base64.b64decode(text))
        for name, text in seen.items()
        if not name.endswith(SUFFIX)
    }


def _encoded(keys: Mapping[int, KeySet]) -> dict[str, str]:
    return {str(c): base64.b64encode(some.to_bytes()).decode() for c, some in keys.items()}


def _united(parts: Collection[Mapping[int, KeySet]], first: int) -> dict[int, KeySet]:
    whole: dict[int, KeySet] = {}
    for chunk, keys in (item for part in parts for item in part.items() if item[0] >= first):
        whole[chunk] = whole[chunk].union(keys) if chunk in whole else keys
    return whole


def _parsed(data: object) -> Mapping[int, KeySet]:
    if not isinstance(data, dict):
        raise ValueError("no object")
    return _decoded(fields(data, dict.fromkeys(data, str)))
