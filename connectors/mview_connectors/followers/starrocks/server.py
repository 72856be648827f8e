"""StarRocks from outside: its HTTP interface for loads, its MySQL protocol for tables.

A request is sent once. What did not come back is not sent again: the caller asks for the label.

A front end (FE) sends whoever loads on to its leader or to a back end (BE): another host, with the
same method, headers and password. See "Stream Load transaction interface" in
https://docs.starrocks.io/docs/loading/Stream_Load_transaction_interface/.
"""

from __future__ import annotations

import base64
import http.client
import selectors
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import orjson

from mview.errors import ConfigError, TargetError
from mview_connectors.network import is_local

#: Seconds after which an idle connection is not used again.
_IDLE = 1.0

#: Seconds to wait for "100 Continue" before the content is sent without it.
_CONTINUE = 2.0

#: A follower FE, its leader, a BE: more are a loop.
_HOPS = 5


class RefusedError(Exception):
    """StarRocks answered, and not with what was asked for.

    Attributes:
        status: its word for what happened, e.g. `FAILED`, `LABEL_ALREADY_EXISTS`, `HTTP 401`.
        message: its own text.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Frontends:
    """The HTTP interface of a cluster: its front ends, one of which is asked.

    Args:
        urls: `http://host:port` or `https://…`; after a failure the next is asked.
        user: who asks.
        password: its password.
        timeout: seconds for an answer.
        may_leave_tls: whether an FE with TLS may send us, and the password, to a BE without.
        place: the section of the configuration, for errors.
    """

    def __init__(
        self,
        urls: list[str],
        user: str,
        password: str,
        timeout: float,
        may_leave_tls: bool,
        place: str,
    ) -> None:
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._secret = f"Basic {secret}"
        self._urls, self._timeout, self._place = urls, timeout, place
        self._may_leave_tls = may_leave_tls
        self._now = 0
        self._open: dict[tuple[bool, str, int], tuple[http.client.HTTPConnection, float]] = {}

    @property
    def url(self) -> str:
        """The front end that is asked."""
        return self._urls[self._now % len(self._urls)]

    def turn(self) -> None:
        """Ask the next front end from now on."""
        self._now += 1

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes = b""
    ) -> dict[str, Any]:
        """The answer to a request, wherever it leads.

        Raises:
            RefusedError: the answer is no JSON object, or has no HTTP status 200.
            OSError, http.client.HTTPException: no answer came: what was done is not known.
        """
        url = f"{self.url.rstrip('/')}{path}"
        try:
            for _ in range(_HOPS):
                status, location, answer = self._request(method, url, headers, content)
                if not location:
                    return _parsed(status, answer)
                self._check_redirect(url, location)
                url = location
        except (OSError, http.client.HTTPException):
            self.turn()
            raise
        raise RefusedError("HTTP 307", "it sends us on and on")

    def _check_redirect(self, url: str, location: str) -> None:
        to = urlsplit(location)
        if to.scheme not in ("http", "https") or not to.hostname:
            raise RefusedError("HTTP 307", "it sends us to no HTTP address")
        leaves = urlsplit(url).scheme == "https" and to.scheme == "http"
        if leaves and not self._may_leave_tls and not is_local(to.hostname):
            raise TargetError(
                "StarRocks sends loads on to a server without TLS",
                where=f"{self._place}.url",
                got=f"http://{to.hostname}:{to.port}",
                safe="neither the password nor rows were sent there",
                hint="turn TLS on in the back ends; or, where the network between is safe, set "
                "plain_backends: true",
            )

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, str, bytes]:
        """HTTP status, where it sends us, and the body."""
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        place = (is_tls, parts.hostname or "localhost", parts.port or (443 if is_tls else 80))
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection = self._connection(place)
        try:
            connection.putrequest(method, path)
            connection.putheader("Authorization", self._secret)
            for name, value in headers.items():
                connection.putheader(name, value)
            if method != "GET":
                connection.putheader("Expect", "100-continue")
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders()
            # Who answers before the content has come (a redirect, an error) does not want it.
            if content and _is_awaited(connection.sock):
                connection.send(content)
            answer = connection.getresponse()
            body = answer.read()
        except BaseException:
            connection.close()
            raise
        sends_on = answer.status in (301, 302, 303, 307, 308)
        location = answer.headers.get("Location", "") if sends_on else ""
        if answer.will_close or content:
            connection.close()  # of content that was not sent the other side still waits for some
        else:
            self._open[place] = (connection, time.monotonic())
        return answer.status, location, body

    def _connection(self, place: tuple[bool, str, int]) -> http.client.HTTPConnection:
        kept = self._open.pop(place, None)
        if kept is not None:
            connection, used = kept
            if time.monotonic() - used < _IDLE and not _is_readable(connection.sock, 0):
                return connection
            connection.close()
        is_tls, host, port = place
        if is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def close(self) -> None:
        """Close the connections; the next request opens others."""
        for connection, _ in self._open.values():
            connection.close()
        self._open.clear()


def _parsed(status: int, answer: bytes) -> dict[str, Any]:
    text = answer.decode(errors="replace")
    if status != 200:
        raise RefusedError(f"HTTP {status}", text[:500])
    try:
        parsed = orjson.loads(answer)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise RefusedError("HTTP 200", text[:500])
    return parsed


def _is_readable(connection: socket.socket | None, seconds: float) -> bool:
    """Whether there is something to read: an idle connection that has something was ended."""
    if connection is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _is_awaited(connection: socket.socket | None) -> bool:
    """Whether the other side wants the content: it says so, or says nothing."""
    if connection is None or isinstance(connection, ssl.SSLSocket):
        return True  # what has come cannot be looked at without taking it
    if not _is_readable(connection, _CONTINUE):
        return True
    begin = connection.recv(12, socket.MSG_PEEK)
    return len(begin) < 12 or begin.endswith(b" 100")


class Sql:
    """One connection of the MySQL protocol, opened when it is needed.

    Args:
        host: a front end.
        port: its query port.
        user: who asks.
        password: its password.
        is_tls: whether the connection is encrypted and the server proves who it is.
        timeout: seconds for an answer.
        place: the section of the configuration, for errors.
    """

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        is_tls: bool,
        timeout: float,
        place: str,
    ) -> None:
        try:
            import pymysql
            import pymysql.cursors
        except ModuleNotFoundError:
            raise ConfigError(
                "the driver pymysql is not installed",
                where=place,
                hint="pip install 'mview-engine[starrocks]' --find-links DIR, where mview's wheel "
                "is",
            ) from None
        self._driver = pymysql
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": user,
            "password": password,
            "charset": "utf8mb4",
            "autocommit": True,
            "connect_timeout": min(60, max(1, int(timeout))),
            "read_timeout": max(1, int(timeout)),
            "write_timeout": max(1, int(timeout)),
        }
        if is_tls:
            self._options["ssl"] = ssl.create_default_context()
        else:
            self._options["ssl_disabled"] = True
        self._connection: Any = None

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""
        return (self._driver.MySQLError,)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement; none where it has none."""
        with self._cursor(self._driver.cursors.Cursor) as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def stream(self, sql: str, rows: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a statement as they come, so many at once."""
        with self._cursor(self._driver.cursors.SSCursor) as cursor:
            cursor.execute(sql)
            while part := cursor.fetchmany(rows):
                yield list(part)

    @contextmanager
    def _cursor(self, kind: Any) -> Iterator[Any]:
        if self._connection is None:
            self._connection = self._driver.connect(**self._options)
        try:
            cursor = self._connection.cursor(kind)
            yield cursor
            cursor.close()
        except BaseException:
            # Also of statements that were refused: a connection is cheap, a doubtful one is not.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next statement opens another."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None


def quoted(name: str) -> str:
    """A name as an identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
