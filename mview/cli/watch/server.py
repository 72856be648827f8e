"""HTTP with bounds: few threads, few seconds, few requests a second; GET and HEAD alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mview.cli.watch.access import Access

#: Requests that are answered at a time; further ones are told to come again.
_THREADS = 16

#: Seconds that a connection may take in all, however slowly it sends or reads.
_LIFE_S = 15.0

#: Seconds between two bytes.
_SILENT_S = 5.0

#: Requests a second that are taken when more come, and how many are taken at once before that.
_PACE, _BURST = 100, 100

#: Characters of a path with its query.
_LONGEST = 2_000

#: No script or style but our own files, no text that becomes HTML, no frame around it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    body: bytes
    kind: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> Answer:
        """Plain text with a line end."""
        return cls(f"{text}\n".encode(), status=status, headers=headers)


class WatchServer(ThreadingHTTPServer):
    """Answers until `shutdown`.

    Args:
        opened: the socket, listening.
        access: who may ask.
        answer: makes an answer of a path with its query; called in several threads.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, opened: socket.socket, access: Access, answer: Callable[[str], Answer]
    ) -> None:
        super().__init__(opened.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.address_family = opened, opened.family
        self.access, self.answer = access, answer
        self._free = threading.BoundedSemaphore(_THREADS)
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        self._left, self._counted = float(_BURST), time.monotonic()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, where one is free."""
        self._keep_pace()
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(0)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        with self._lock:
            self._since[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system has no thread for it, or an interrupt came
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer; see `process_request`."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        """End what takes too long; called twice a second, and between requests."""
        late = time.monotonic() - _LIFE_S
        with self._lock:
            for request in [request for request, since in self._since.items() if since < late]:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who went away in the middle is no error of ours."""

    def _forget(self, request: socket.socket) -> None:
        """Take a request for answered, once: when an interrupt comes its thread may have begun."""
        with self._lock:
            is_known = self._since.pop(request, None) is not None
        if is_known:
            self._free.release()

    def _keep_pace(self) -> None:
        """Wait where too many come: they wait, too, in the system's own queue."""
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._counted) * _PACE) - 1
        self._counted = now
        if self._left < 0:
            time.sleep(-self._left / _PACE)


class _Handler(BaseHTTPRequestHandler):
    """One request on one connection."""

    server: WatchServer
    server_version, sys_version = "mview", ""
    timeout = _SILENT_S

    def do_GET(self) -> None:
        """Answer."""
        self._send(self._answer())

    do_HEAD = do_GET  # noqa: N815

    def _refuse(self) -> None:
        text = "this page is for reading"
        self._send(Answer.text(text, HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD"))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _answer(self) -> Answer:
        if len(self.path) > _LONGEST:
            return Answer.text("too long", HTTPStatus.REQUEST_URI_TOO_LONG)
        if self.path == "/healthz":  # it says nothing that is not known by the port being open
            return Answer.text("ok")
        access, hosts = self.server.access, self.headers.get_all("Host") or []
        if len(hosts) != 1 or not access.knows(hosts[0]):
            text = "this machine is not called that here; see --remote"
            return Answer.text(text, HTTPStatus.FORBIDDEN)
        if not access.admits(self.headers.get("Authorization", "")):
            ask = {"WWW-Authenticate": 'Basic realm="mview", charset="UTF-8"'}
            text = "the token is asked for, as password or as Bearer"
            return Answer.text(text, HTTPStatus.UNAUTHORIZED, **ask)
        return self.server.answer(self.path)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What cannot be understood, without a word of it."""
        self._send(Answer.text("not understood", HTTPStatus(code)))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in (_HEADERS | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
