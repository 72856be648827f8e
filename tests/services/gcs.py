"""A conformance server for Google Cloud Storage: the part of its XML API that sinks use, in memory.

Written from Google's reference of the XML API, as no emulator that can be had honours the condition
of a put there: `x-goog-if-generation-match: 0`, put if absent. It runs in a process of its own, as
readers hold Python's lock while they wait for an answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import threading
import urllib.request
from datetime import datetime, timezone
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.services.process import ServerProcess, free_port

_KEY_VARIABLE = "MVIEW_TEST_GCS_KEY"

#: Loopback only: a proxy of the environment must not be asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_ROOT = Path(__file__).parents[2]

#: Entries of a page of a listing: few, so that tests come to a second one.
_PAGE = 50


class _Object(NamedTuple):
    content: bytes
    generation: int
    modified: datetime

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


class GcsServer:
    """A running server.

    Attributes:
        bucket: a bucket that is there.
    """

    def __init__(self, folder: Path) -> None:
        port, self.bucket = free_port(), "lake"
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tests.services.gcs", f"{port}"]
        self._process = ServerProcess("GCS", command, folder / "gcs.log", cwd=_ROOT)
        self._process.wait_until_ready(lambda: _OPENER.open(f"{self.url}/lake?list-type=2"))
        os.environ[_KEY_VARIABLE] = self._key()

    def _key(self) -> str:
        """The key of a service account, as Rust's object stores have it for emulators."""
        texts = dict.fromkeys(("private_key", "private_key_id", "client_email"), "")
        return json.dumps({"gcs_base_url": self.url, "disable_oauth": True, **texts})

    def place(self, folder: str) -> str:
        """The URL of a folder."""
        return f"gs://{self.bucket}/{folder}"

    def options(self, *, plain: bool = False) -> dict[str, str]:
        """What Rust's object stores need to reach it; the secret by reference, unless plain."""
        key = self._key() if plain else f"${{env:{_KEY_VARIABLE}}}"
        return {"google_service_account_key": key, "allow_http": "true"}

    def stop(self) -> None:
        """End it."""
        self._process.kill()


class _Storage(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        #: One at a time: a condition and the write that it is of are one step.
        self.lock = threading.Lock()
        self.objects: dict[str, _Object] = {}
        self.generations = count(1_700_000_000_000_000)
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Storage

    def do_PUT(self) -> None:
        """Put an object, on a condition."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        condition = self.headers.get("x-goog-if-generation-match")
        if urlsplit(self.path).query or "x-goog-copy-source" in self.headers:
            self._fail(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented")
            return
        if (digest := self.headers.get("Content-MD5")) is not None:
            assert base64.b64decode(digest) == hashlib.md5(content).digest()
        storage = self.server
        with storage.lock:
            there = storage.objects.get(self._name)
            # 0 is the generation of what is not there.
            if condition is not None and int(condition) != (there.generation if there else 0):
                self._fail(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
                return
            made = _Object(content, next(storage.generations), datetime.now(timezone.utc))
            storage.objects[self._name] = made
        self._answer(HTTPStatus.OK, b"", made)

    def do_GET(self) -> None:
        """An object, a part of one, or a page of a listing."""
        query = {name: one[0] for name, one in parse_qs(urlsplit(self.path).query).items()}
        if "list-type" in query:
            self._list(query)
            return
        there = self.server.objects.get(self._name)
        if there is None:
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchKey")
            return
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if part is None:
            self._answer(HTTPStatus.OK, there.content, there)
            return
        size = len(there.content)
        begin, end = int(part[1]), min(int(part[2]) + 1, size)
        if begin >= size:
            self._fail(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            return
        place = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        self._answer(HTTPStatus.PARTIAL_CONTENT, there.content[begin:end], there, place)

    def do_HEAD(self) -> None:
        """The same without the content."""
        self.do_GET()

    def do_DELETE(self) -> None:
        """Delete an object."""
        with self.server.lock:
            gone = self.server.objects.pop(self._name, None)
        if gone is None:
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchKey")
        else:
            self._answer(HTTPStatus.NO_CONTENT, b"")

    @property
    def _name(self) -> str:
        """The name of the object, in the bucket."""
        return unquote(urlsplit(self.path).path).partition("/lake/")[2]

    def _list(self, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        delimiter, start = query.get("delimiter"), query.get("start-after", "")
        with self.server.lock:
            there = sorted(self.server.objects.items())
        found: dict[str, str] = {}
        for name, one in there:
            if not name.startswith(prefix) or name <= start:
                continue
            folder, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut:
                text = f"<Prefix>{escape(prefix + folder + cut)}</Prefix>"
                found[prefix + folder + cut] = f"<CommonPrefixes>{text}</CommonPrefixes>"
                continue
            at = one.modified.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            found[name] = (
                f"<Contents><Key>{escape(name)}</Key><Size>{len(one.content)}</Size>"
                f"<LastModified>{at}</LastModified><ETag>{one.etag}</ETag></Contents>"
            )
        names = [name for name in sorted(found) if name > after]
        page, more = names[:_PAGE], names[_PAGE:]
        more_at = (
            f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        )
        body = "".join(
            (
                '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>',
                f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more_at}",
                *(found[name] for name in page),
                "</ListBucketResult>",
            )
        )
        self._answer(HTTPStatus.OK, body.encode())

    def _fail(self, status: HTTPStatus, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        of: _Object | None = None,
        more: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        headers = {"Content-Length": f"{len(body)}", **(more or {})}
        if of is not None:
            headers["ETag"] = of.etag
            headers["x-goog-generation"] = f"{of.generation}"
            headers["Last-Modified"] = format_datetime(of.modified, usegmt=True)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    _Storage(int(sys.argv[1])).serve_forever()
