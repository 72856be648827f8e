"""Who may ask: the address that is listened on, the names it is called by, and the token."""

from __future__ import annotations

import base64
import binascii
import hmac
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from mview.errors import ConfigError
from mview.secrets import REFERENCE, reveal

#: Characters of a token: fewer can be guessed by trying.
_LEAST_TOKEN = 16

#: Connections that wait to be taken.
_BACKLOG = 64


@dataclass(frozen=True)
class Access:
    """What is listened on, and for whom.

    Attributes:
        host: an address of this machine.
        port: 0: any that is free.
        names: what other machines call this one; none: it is for this machine alone.
        token: what who asks must know; empty: nothing.
    """

    host: IPv4Address | IPv6Address
    port: int
    names: tuple[str, ...] = ()
    token: str = ""

    @classmethod
    def of(cls, listen: str, names: Sequence[str], token: str) -> Access:
        """What the options say.

        Args:
            listen: `127.0.0.1:8080`, `localhost:8080`, `[::1]:8080`.
            names: of `--remote`.
            token: `${env:NAME}` or `${file:PATH}`; empty: none.

        Raises:
            ConfigError: it is no address, or others could read without a token.
        """
        host, port = _address(listen)
        if not host.is_loopback and not names:
            raise ConfigError(
                "other machines could read what the views hold",
                where="--listen",
                got=listen,
                allowed="an address of this machine alone: 127.0.0.1:8080",
                hint="for others add --remote NAME, what they call this machine, and --token",
            )
        if names and not token:
            raise ConfigError(
                "what other machines read needs a token",
                where="--remote",
                hint="--token '${env:MVIEW_TOKEN}', or '${file:/run/secrets/mview}'",
            )
        if token and not REFERENCE.fullmatch(token):
            raise ConfigError(
                "a token is never written in plain text: others see the command line",
                where="--token",
                allowed="'${env:NAME}' or '${file:PATH}'",
            )
        secret = reveal(token, "--token").strip() if token else ""
        if token and (len(secret) < _LEAST_TOKEN or not secret.isascii()):
            raise ConfigError(
                "the token is too easy to guess",
                where="--token",
                allowed=f"at least {_LEAST_TOKEN} characters of ASCII",
                hint="openssl rand -hex 16",
            )
        return cls(host, port, tuple(name.lower() for name in names), secret)

    def bind(self) -> socket.socket:
        """The socket, listening.

        Raises:
            ConfigError: the address is taken, or not of this machine.
        """
        family = socket.AF_INET6 if self.host.version == 6 else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((str(self.host), self.port))
            opened.listen(_BACKLOG)
        except OSError as error:
            opened.close()
            raise ConfigError(
                "this address cannot be listened on",
                where="--listen",
                got=f"{_spelled(self.host)}:{self.port}: {error.strerror}",
                hint="take another port: --listen 127.0.0.1:0 takes any that is free",
            ) from None
        return opened

    def url(self, opened: socket.socket) -> str:
        """Where the page is."""
        return f"http://{_spelled(self.host)}:{opened.getsockname()[1]}/"

    def knows(self, host: str) -> bool:
        """Whether a Host header is one of ours.

        A page of somebody else's whose name was made to lead to this machine (DNS rebinding) asks
        with its own name.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self.names:
            return True
        with suppress(ValueError):
            return ip_address(name).is_loopback
        return False

    def admits(self, authorization: str) -> bool:
        """Whether an Authorization header has the token: as Bearer, or as password of Basic."""
        if not self.token:
            return True
        kind, _, given = authorization.strip().partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token.encode())


def _address(listen: str) -> tuple[IPv4Address | IPv6Address, int]:
    with suppress(ValueError):
        split = urlsplit(f"//{listen}")
        host = "127.0.0.1" if split.hostname == "localhost" else split.hostname or ""
        if split.port is not None and split.netloc == listen and split.username is None:
            return ip_address(host), split.port
    raise ConfigError(
        "that is no address to listen on",
        where="--listen",
        got=listen,
        allowed="ADDRESS:PORT, such as 127.0.0.1:8080, [::1]:8080 or localhost:0",
    )


def _spelled(host: IPv4Address | IPv6Address) -> str:
    return f"[{host}]" if host.version == 6 else str(host)
