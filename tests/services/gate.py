"""A port before a server's: what is sent to it can be held, and new connections led elsewhere."""

from __future__ import annotations

import contextlib
import socket
import threading

_BLOCK = 1 << 16


class Gate:
    """Passes on what comes to its port; an address that a server can be told to be known by.

    Args:
        port: of the server, on this machine; it need not answer yet.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_open, self._speaks = threading.Event(), threading.Event()
        self._is_open.set()
        self._speaks.set()
        #: Bytes that the server may still say before it falls silent; None: it does not.
        self._left: int | None = None
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True, name="gate").start()

    def lead_to(self, port: int) -> None:
        """Lead connections that come from now on to another server; those that are there stay."""
        self._target = port

    def hold(self) -> None:
        """From now on nothing comes to the server; what is sent comes once it is let go."""
        self._is_open.clear()

    def fall_silent(self) -> None:
        """From now on nothing passes either way, and connections that come are taken all the same.

        As of a server that hangs, and of a balancer before one that is gone.
        """
        self._speaks.clear()
        self.hold()

    def fall_silent_after(self, size: int) -> None:
        """Fall silent in the middle of what the server says from now on.

        Who reads slowly has megabytes of it in the system's buffers: to fall silent after the first
        of them was read may be after the last was sent.

        Args:
            size: bytes that still pass, at most a block less.
        """
        self._left = size

    def let_go(self) -> None:
        """Pass on what was held, and all that comes."""
        self._left = None
        self._speaks.set()
        self._is_open.set()

    def stop(self) -> None:
        """Take no more connections."""
        self.let_go()
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is stopped
            while True:
                client, _ = self._door.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # it is away: so are we
                    client.close()
                    continue
                ways = (client, server, True), (server, client, False)
                threads = [
                    threading.Thread(target=self._pass, args=way, daemon=True) for way in ways
                ]
                ending = threading.Thread(
                    target=_end_after, args=(threads, client, server), daemon=True
                )
                for thread in [*threads, ending]:
                    thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_sent: bool) -> None:
        with contextlib.suppress(OSError):  # one of the two has gone
            while block := source.recv(_BLOCK):
                if not is_sent and self._left is not None:
                    self._left -= len(block)
                    if self._left < 0:
                        self.fall_silent()
                (self._is_open if is_sent else self._speaks).wait()
                sink.sendall(block)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _end_after(threads: list[threading.Thread], *ends: socket.socket) -> None:
    for thread in threads:
        thread.join()
    for end in ends:
        end.close()
