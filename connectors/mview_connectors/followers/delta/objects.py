"""A folder, or what lies below a URL of an object store: bytes by name, put if absent.

Only what uses a sink imports this module: it needs obstore.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, from_url

from mview.files.durable import force
from mview.files.modes import make_shared_folder, readers_of, share
from mview_connectors.followers.folders import LOST, folder_of

#: Options of connections, which obstore takes apart from those of a store.
_OF_CLIENTS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "proxy_url",
    "timeout",
    "user_agent",
}


class UnfitOptionsError(Exception):
    """There is no object store of such a URL, or with such options."""


#: What obstore says where it has no kind of error for it: to list where nobody may, or where
#: nothing is; and 400, which S3 answers to a token that has expired, and to another region's.
_REFUSED = re.compile(r"status code: 40[13]\b")
_UNFIT = re.compile(r"status code: 400\b")
_NO_PLACE = re.compile(
    r"NoSuchBucket|ContainerNotFound|Error performing (PUT|list)\b.* status code: 404\b", re.DOTALL
)

#: What differs in the words of the same error.
_TOOK = re.compile(r" in [\d.]+(ns|µs|ms|s)\b")


def told(error: BaseException) -> str:
    """What obstore says of an error, for people: the same for each try."""
    return _TOOK.sub("", " ".join(str(error).partition("Debug source")[0].split()))


def to_be_looked_at(error: BaseException) -> str | None:
    """What somebody must see to after an error; None: the same may succeed later."""
    text = told(error) if isinstance(error, (BaseError, FileNotFoundError)) else ""
    if isinstance(error, UnfitOptionsError):
        return "path and options"
    if isinstance(error, (UnauthenticatedError, PermissionDeniedError)) or _REFUSED.search(text):
        return "the credentials in options, and their rights"
    if _UNFIT.search(text):
        return "options: a token that has expired, or another region, is refused so"
    if _NO_PLACE.search(text):
        return "path: its bucket or container is not there"
    if isinstance(error, FileNotFoundError):
        return LOST
    return None


class Entry(NamedTuple):
    """An object: its name below the place, and wall milliseconds of when it was written."""

    path: str
    modified_ms: int


class Objects:
    """The objects of one place.

    Args:
        place: a folder, or a URL as `s3://bucket/path`.
        options: of the store, by the names that object stores of Rust have, e.g.
            `aws_access_key_id`; without references to secrets.
    """

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        self.place = place
        self._store: Any
        self._folder = folder_of(place)
        if self._folder is not None:
            self._store = LocalStore(self._folder, mkdir=True)
            return
        plain = {name.casefold(): value for name, value in options.items()}
        client: dict[str, Any] = {
            name: value == "true" if name.startswith("allow_") else value
            for name, value in plain.items()
            if name in _OF_CLIENTS
        }
        config = {name: value for name, value in plain.items() if name not in client}
        try:
            self._store = from_url(place, config=config, client_options=client)
        except BaseError as error:
            raise UnfitOptionsError(str(error)) from error

    def get(self, path: str) -> bytes | None:
        """The content; None: there is no such object."""
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        """The bytes of an object; None: there is no such object."""
        try:
            return int(obstore.head(self._store, path)["size"])
        except FileNotFoundError:
            return None

    def put(self, path: str, content: bytes) -> None:
        """Write an object, also over another one."""
        obstore.put(self._store, path, content)
        self.settle(path)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Write an object, whole or not at all; False: there is one of that name.

        It may be this one: where an answer is lost, obstore sends it again.
        """
        try:
            # In parts it would be written without the condition.
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        self.settle(path)
        return True

    def make_shared(self, folder: str) -> None:
        """Make a folder for all whom the user's umask lets in; object stores have none."""
        if self._folder is not None:
            make_shared_folder(self._folder / folder)

    def settle(self, path: str) -> None:
        """Have an object of a folder on the disk, for those to read who may list the folder.

        Object stores have what they say that they have.
        """
        if self._folder is not None:
            file = self._folder / path
            share(file, readers_of(self._folder))
            for made in (file, file.parent):
                force(made)

    def list(self, folder: str = "") -> Iterator[Entry]:
        """All objects below a folder, in no order."""
        for listed in obstore.list(self._store, folder or None):
            for entry in listed:
                modified = entry["last_modified"]
                yield Entry(entry["path"], int(modified.timestamp() * 1000))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        for path in paths:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                continue

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """An object to read from: as a whole, or by parts where its size is known."""
        if size is None:
            return pa.BufferReader(pa.py_buffer(obstore.get(self._store, path).bytes()))
        return pa.PythonFile(io.BufferedReader(_Parts(self._store, path, size), 1 << 20), "r")


class _Parts(io.RawIOBase):
    """An object, read by parts."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._size)
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        part = obstore.get_range(self._store, self._path, start=self._at, length=length)
        buffer[:length] = memoryview(part)
        self._at += length
        return length
