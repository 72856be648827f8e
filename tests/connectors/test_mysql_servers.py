"""Servers that are no MySQL server, or a hostile one: a message, whatever they send."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from mview_connectors import silence
from mview_connectors.databases import mysql

from mview.config import ConnectionSettings
from mview.errors import MviewError

Behaviour = Callable[[socket.socket], None]

BROKEN = "the server's answer breaks the MySQL protocol"
OK = b"\0\0\0\2\0\0\0"


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


def greeting(plugin: bytes) -> bytes:
    able = 0xFFFFFF & ~0x800  # all but TLS
    parts = [b"\x0a8.0.30\0", struct.pack("<I", 7), b"12345678\0", struct.pack("<H", able & 0xFFFF)]
    parts += [b"\x2d", struct.pack("<HH", 2, able >> 16), b"\x15", bytes(10), b"123456789012\0"]
    return packet(0, b"".join(parts) + plugin + b"\0")


def greets(sent: bytes) -> Behaviour:
    return lambda client: client.sendall(sent)


def logs_in(*answers: bytes, plugin: bytes = b"mysql_native_password") -> Behaviour:
    """Greets, and answers one thing after the other that it gets."""

    def behave(client: socket.socket) -> None:
        client.sendall(greeting(plugin))
        for answer in answers:
            client.recv(4096)
            client.sendall(answer)

    return behave


def asked(answer: bytes) -> Behaviour:
    return logs_in(packet(2, OK), packet(1, OK), packet(1, OK), *[answer] * 9)


def switches_for_ever(client: socket.socket) -> None:
    client.sendall(greeting(b"mysql_native_password"))
    for number in range(2, 250, 2):
        client.recv(4096)
        client.sendall(packet(number, b"\xfemysql_native_password\0" + b"a" * 20 + b"\0"))


#: What a server does, and what is told of it.
SERVERS: dict[str, tuple[Behaviour, str]] = {
    "other protocol": (greets(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "failed while connecting"),
    "says nothing": (lambda client: client.recv(1), "Lost connection"),
    "claims 60,000 bytes": (greets(b"\x60\xea\0\0\x0a5"), "Lost connection"),
    "nothing in a greeting": (greets(packet(0, b"")), BROKEN),
    "old greeting": (greets(packet(0, b"\x09")), BROKEN),
    "half a greeting": (greets(packet(0, b"\x0a8.0.30\0abc")), BROKEN),
    "no version": (greets(packet(0, b"\x0a\xff\xfe\0" + b"x" * 60)), BROKEN),
    "garbage after it": (logs_in(b"\xca\xfe" * 50), "sequence number"),
    "nothing after it": (logs_in(packet(2, b"")), BROKEN),
    "half an error": (logs_in(packet(2, b"\xff")), BROKEN),
    "switches for ever": (switches_for_ever, "multiple auth switch"),
    "half a switch": (logs_in(packet(2, b"\xfe")), "auth switch"),
    "half a step": (logs_in(packet(2, b"\1"), plugin=b"caching_sha2_password"), "failed while"),
    "wants a file": (asked(packet(1, b"\xfb/etc/passwd")), "LOAD_LOCAL"),
    "nothing as a result": (asked(packet(1, b"")), BROKEN),
    "2^64 columns": (asked(packet(1, b"\xfe" + b"\xff" * 8)), "failed while"),
    "half a column": (asked(packet(1, b"\1") + packet(2, b"\3de")), "failed while"),
    "closes": (asked(b"\1\0"), "Lost connection"),
}


@contextmanager
def serving(behave: Behaviour) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client, suppress(OSError):
                        behave(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", SERVERS)
def test_a_hostile_server_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "GREETING_S", 2)
    behave, told = SERVERS[name]
    with serving(behave) as port:
        settings = ConnectionSettings(
            name="shop",
            drivername="mysql+pymysql",
            host="127.0.0.1",
            port=port,
            database="d",
            timeout=2_000,
        )
        with pytest.raises(MviewError) as caught:
            mysql.MysqlDatabase(settings).query("SELECT 1")
    assert told in str(caught.value)
    assert not str(caught.value.got).startswith("("), "a pair of Python says nothing to people"
    assert "mysql database 127.0.0.1" in caught.value.what
