"""ClickHouse's HTTP interface: one request, one answer, never asked twice.

A client that repeats a request by itself may attach a partition twice; and the vendor's one does
not speak with old servers. So this is Python's own HTTP.
"""

from __future__ import annotations

import base64
import http.client
import re
import selectors
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson

#: Seconds after which an idle connection is not used again: servers close them after three.
_IDLE = 1.0

#: Errors that may pass: time-outs, limits, a network or disk that fails, a table that was renamed.
_PASSING = frozenset({60, 159, 160, 164, 202, 203, 209, 210, 236, 241, 242, 243, 252, 319, 425})

_CODE = re.compile(r"Code: (\d+)")

#: What a server says of an error: its number before, in old ones its class, in new ones its name
#: and their version behind.
_WORDS = re.compile(
    r"^Code: \d+[,.] (?:e\.displayText\(\) = )?DB::Exception: (.*?)"
    r"(?:, e\.what\(\) = DB::Exception.*| \(version [^()]*(?:\([^()]*\))?\))?$"
)


class ServerError(Exception):
    """What the server answered instead.

    Attributes:
        code: ClickHouse's number of the error; 0: there is none.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code

    @property
    def is_passing(self) -> bool:
        """Whether the same may succeed later."""
        return self.code in _PASSING


def told_in_words(error: Exception) -> str:
    """What went wrong, without what only ClickHouse's programmers read.

    >>> told_in_words(ServerError("Code: 192, e.displayText() = DB::Exception: Unknown user u, "
    ...     "e.what() = DB::Exception", 192))
    'Unknown user u (192)'
    """
    text = " ".join(str(error).split())
    if not isinstance(error, ServerError):
        return f"{type(error).__name__}: {text}"
    words = _WORDS.sub(r"\1", text)
    return f"{words} ({error.code})" if error.code else words


class Server:
    """A server, or one shard.

    Args:
        url: `http://host:port` or `https://…`.
        user: who asks.
        password: its password.
        database: of names without one.
        timeout: seconds for an answer.
    """

    def __init__(self, url: str, user: str, password: str, database: str, timeout: float) -> None:
        parts = urlsplit(url)
        self._host, self._is_tls = parts.hostname or "localhost", parts.scheme == "https"
        self._port = parts.port or (8443 if self._is_tls else 8123)
        self._path = parts.path or "/"
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {secret}"}
        self._database, self._timeout = database, timeout
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0

    def run(self, sql: str, content: bytes = b"") -> bytes:
        """Run a statement to its end.

        Args:
            sql: the statement; with `content` an INSERT that names its format.
            content: the rows to insert.

        Raises:
            ServerError: the server refused.
            OSError, http.client.HTTPException: no answer came: what was done is not known.
        """
        with self._answer(sql, content, {"wait_end_of_query": "1"}) as answer:
            return answer.read()

    def rows(self, sql: str) -> list[list[Any]]:
        """The rows of a small answer; numbers of 64 bits as text."""
        parsed = orjson.loads(self.run(f"{sql} FORMAT JSONCompact"))
        rows: list[list[Any]] = parsed["data"]
        return rows

    @contextmanager
    def stream(self, sql: str) -> Iterator[http.client.HTTPResponse]:
        """An answer as it comes."""
        with self._answer(sql, b"", {}) as answer:
            yield answer

    @contextmanager
    def _answer(
        self, sql: str, content: bytes, options: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        options = {"database": self._database, **options}
        body = sql.encode()
        if content:
            options["query"], body = sql, content
        connection = self._open()
        try:
            path = f"{self._path}?{urlencode(options)}"
            connection.request("POST", path, body, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                text = answer.read().decode(errors="replace")
                code = _CODE.search(text)
                raise ServerError(text or answer.reason, int(code[1]) if code else 0)
            yield answer
            if not answer.isclosed():  # not read to its end
                self.close()
        except ServerError:
            raise
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()

    def _open(self) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is not None and (
            time.monotonic() - self._used > _IDLE or _is_dropped(connection.sock)
        ):
            self.close()
        if self._connection is None:
            place = (self._host, self._port)
            self._connection = (
                http.client.HTTPSConnection(
                    *place, timeout=self._timeout, context=ssl.create_default_context()
                )
                if self._is_tls
                else http.client.HTTPConnection(*place, timeout=self._timeout)
            )
        return self._connection

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_dropped(connection: socket.socket | None) -> bool:
    """Whether the other side has ended an idle connection: there is something to read."""
    if connection is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


def quoted(name: str) -> str:
    """A name as an identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
