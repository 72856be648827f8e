"""The server's side of the MySQL protocol, as much of it as a client with text results needs.

See https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html.
"""

from __future__ import annotations

import hashlib
import secrets
import socketserver
import ssl
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

#: Types of columns in the protocol.
TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, DATE, DATETIME = 1, 2, 3, 4, 5, 8, 10, 12
DECIMAL, TEXT = 246, 253

_CAPABILITIES = 0x00000001 | 0x00000008 | 0x00000200 | 0x00002000 | 0x00008000 | 0x00080000
_TLS = 0x00000800
_QUIT, _INIT_DB, _QUERY, _PING = 1, 2, 3, 14
_UTF8 = 45


class Result(NamedTuple):
    """What a statement gives: names and types of columns, and rows of texts."""

    columns: Sequence[tuple[str, int]]
    rows: Sequence[Sequence[str | None]]


class SqlError(Exception):
    """What a statement gives instead."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


#: Runs a statement of a session; None: there are no rows.
Execute = Callable[[str], Result | None]


class MysqlServer(socketserver.ThreadingTCPServer):
    """A server of one user.

    Args:
        port: where it listens, on the loopback.
        user: who may come in.
        password: with this.
        session: makes what runs a session's statements.
        tls: whoever comes in must speak TLS; None: nobody can.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        port: int,
        user: str,
        password: str,
        session: Callable[[], Execute],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.user, self.password, self.session, self.tls = user, password, session, tls
        super().__init__(("127.0.0.1", port), _Session)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Session(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    #: What comes after the request for TLS is for TLS: nothing is read ahead.
    rbufsize = 0
    wbufsize = -1
    server: MysqlServer

    def handle(self) -> None:
        salt = bytes(1 + byte % 127 for byte in secrets.token_bytes(20))
        self._number = 0
        tls = self.server.tls
        able = _CAPABILITIES | (_TLS if tls is not None else 0)
        self._send(
            b"\x0a5.1.0\0"
            + struct.pack("<I", 1)
            + salt[:8]
            + b"\0"
            + struct.pack("<HBHH", able & 0xFFFF, _UTF8, 2, able >> 16)
            + bytes([21])
            + bytes(10)
            + salt[8:]
            + b"\0mysql_native_password\0"
        )
        answer = self._read()
        if tls is not None:
            if answer is None or not struct.unpack("<I", answer[:4])[0] & _TLS:
                return
            self.connection = tls.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
            answer = self._read()
        if answer is None:
            return
        name, _, rest = answer[32:].partition(b"\0")
        told = rest[1 : 1 + rest[0]] if rest else b""
        if name.decode() != self.server.user or told != _scramble(self.server.password, salt):
            self._fail(SqlError(1045, f"Access denied for user '{name.decode()}'"))
            return
        self._ok()
        execute = self.server.session()
        while (request := self._read()) is not None and request[0] != _QUIT:
            if request[0] == _QUERY:
                self._answer(execute, request[1:].decode())
            elif request[0] in (_PING, _INIT_DB):
                self._ok()
            else:
                self._fail(SqlError(1047, "Unknown command"))

    def finish(self) -> None:
        """With TLS it is another socket than the server's own."""
        with suppress(OSError):
            super().finish()
        self.rfile.close()
        self.connection.close()

    def _answer(self, execute: Execute, sql: str) -> None:
        try:
            result = execute(sql)
        except SqlError as error:
            self._fail(error)
            return
        if result is None:
            self._ok()
            return
        self._send(_length(len(result.columns)))
        for name, kind in result.columns:
            parts = [b"def", b"", b"", b"", name.encode(), name.encode()]
            head = b"".join(_length(len(part)) + part for part in parts)
            self._send(head + struct.pack("<BHIBHBH", 12, _UTF8, 1 << 20, kind, 0, 31, 0))
        self._send(b"\xfe\0\0\2\0")
        for row in result.rows:
            cells = [None if cell is None else cell.encode() for cell in row]
            self._send(b"".join(b"\xfb" if c is None else _length(len(c)) + c for c in cells))
        self._send(b"\xfe\0\0\2\0")

    def _ok(self) -> None:
        self._send(b"\0\0\0\2\0\0\0")

    def _fail(self, error: SqlError) -> None:
        self._send(b"\xff" + struct.pack("<H", error.number) + b"#HY000" + str(error).encode())

    def _read(self) -> bytes | None:
        self.wfile.flush()
        head = self._take(4)
        if len(head) < 4:
            return None
        self._number = head[3] + 1
        return self._take(int.from_bytes(head[:3], "little"))

    def _take(self, size: int) -> bytes:
        """So many bytes; fewer where the client has gone."""
        taken = b""
        while len(taken) < size and (part := self.rfile.read(size - len(taken))):
            taken += part
        return taken

    def _send(self, payload: bytes) -> None:
        assert len(payload) < 0xFFFFFF
        self.wfile.write(len(payload).to_bytes(3, "little") + bytes([self._number & 255]) + payload)
        self._number += 1


def _length(value: int) -> bytes:
    if value < 251:
        return bytes([value])
    if value < 1 << 16:
        return b"\xfc" + struct.pack("<H", value)
    return b"\xfd" + value.to_bytes(3, "little") if value < 1 << 24 else _eight(value)


def _eight(value: int) -> bytes:
    return b"\xfe" + struct.pack("<Q", value)


def _scramble(password: str, salt: bytes) -> bytes:
    if not password:
        return b""
    first = hashlib.sha1(password.encode()).digest()
    second = hashlib.sha1(salt + hashlib.sha1(first).digest()).digest()
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def rows_of(names: Sequence[tuple[str, int]], rows: Sequence[Sequence[Any]]) -> Result:
    """A result of Python values, as texts."""
    return Result(names, [[None if v is None else str(v) for v in row] for row in rows])
