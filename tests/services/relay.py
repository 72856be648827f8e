"""A relay of TCP connections that counts them: what a server sees of its clients."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Relay:
    """Hands all bytes on between a port of its own and that of a server.

    In a process of its own: what it costs is not that of who is measured.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, port: int, server: int) -> None:
        self.port = port
        context = multiprocessing.get_context("spawn")
        self._accepted = context.Value("i", 0)
        ready = context.Event()
        self._process = context.Process(
            target=_serve, args=(port, server, self._accepted, ready), daemon=True
        )
        self._process.start()
        assert ready.wait(60), "the relay does not start"

    @property
    def accepted(self) -> int:
        """How many connections clients have made so far."""
        return int(self._accepted.value)

    def stop(self) -> None:
        """End it, with all connections."""
        self._process.kill()
        self._process.join()


@contextmanager
def relay(port: int, server: int) -> Iterator[Relay]:
    """A relay for as long as the block takes."""
    opened = Relay(port, server)
    try:
        yield opened
    finally:
        opened.stop()


def _serve(port: int, server: int, accepted: Any, ready: Any) -> None:
    with socket.create_server(("127.0.0.1", port)) as listening:
        ready.set()
        while True:
            client, _ = listening.accept()
            with accepted.get_lock():
                accepted.value += 1
            try:
                behind = socket.create_connection(("127.0.0.1", server))
            except OSError:
                client.close()
                continue
            for source, target in ((client, behind), (behind, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        return  # one end has gone
    finally:
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
