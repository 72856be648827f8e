"""A port that takes connections and never answers, as a server that hangs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_port() -> Iterator[int]:
    """The port; the system itself takes the connections, as nobody asks for them."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield int(door.getsockname()[1])
