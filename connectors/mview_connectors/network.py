"""Who may listen on the way to a server, or pretend to be it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Protocol
from urllib.parse import urlsplit

from mview.secrets import reveal


def is_local(host: str | None) -> bool:
    """Whether a host is this machine: nobody is between.

    >>> is_local("127.0.0.1"), is_local("/run/postgresql"), is_local("db.example.org")
    (True, True, False)
    """
    if not host or host.startswith(("/", "@")) or host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def caution(section: str, server: str, how: str, remedy: str) -> str:
    """The warning of a server that is not proven to be the one that is meant."""
    return (
        f"WARNING: {section}: the connection to {server} {how}: whoever is between can read the "
        f"data and the password, or answer with other data. {remedy}"
    )


def are_local(*settings: str | None) -> bool:
    """Whether all hosts that settings name are this machine; each may list several.

    >>> are_local(None, "localhost"), are_local("localhost,db.example.org")
    (True, False)
    """
    hosts = [_host(host.strip()) for text in settings if text for host in text.split(",")]
    return all(map(is_local, hosts))


#: What PostgreSQL says to those whom it does not let in: the driver gives no SQLSTATE of that.
POSTGRESQL_REFUSALS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password",
)


def postgresql_caution(section: str, server: str, mode: str | None) -> str | None:
    """The warning of a PostgreSQL server beyond this machine; `mode` is `sslmode`, if it is set."""
    if mode in (None, "verify-full"):
        return None
    how = "does not check the server's name" if mode == "verify-ca" else "is not verified"
    remedy = "Leave sslmode away, or set it to verify-full."
    return caution(section, server, f"{how} (sslmode: {mode})", remedy)


def mysql_caution(section: str, server: str, query: Iterable[str]) -> str | None:
    """The warning of a MySQL server beyond this machine; `query` has the names of options."""
    settings = {name for name in query if name.startswith("ssl")}
    off = {"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity", "ssl_check_hostname"}
    if not settings or ("ssl_ca" in settings and not settings & off):
        return None
    remedy = "Leave the ssl settings away, or set ssl_ca alone."
    how = f"may not be verified ({', '.join(sorted(settings))})"
    return caution(section, server, how, remedy)


def listed(urls: str) -> list[str]:
    """URLs that stand in one text, with commas between."""
    return [url.strip() for url in urls.split(",")]


def http_urls(value: str) -> str:
    """A setting of one URL of HTTP, or several with commas, without a user.

    Raises:
        ValueError: it is another text; the message does not have it.
    """
    for url in listed(value):
        try:
            parts = urlsplit(url)
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            is_http = False
        if not is_http:
            raise ValueError("must be http://host:port or https://…, several with commas")
        if parts.username or parts.password:
            raise ValueError("must have no user in it: write user: and password: ${env:NAME}")
    return value


def http_caution(section: str, urls: Iterable[str]) -> str | None:
    """The warning of servers beyond this machine that are asked without TLS."""
    parts = [urlsplit(url.strip()) for url in urls]
    if not any(url.scheme == "http" and not is_local(url.hostname) for url in parts):
        return None
    return caution(section, "its server", "is not encrypted", "Take https://.")


class Brokers(Protocol):
    """Where a Kafka cluster is, and who asks: a section of the configuration."""

    @property
    def section(self) -> str:
        """The section's place, for messages: `changes.shop`."""
        ...

    @property
    def bootstrap_servers(self) -> str | None:
        """`host:port`, several with commas."""
        ...

    @property
    def options(self) -> Mapping[str, str]:
        """Of the client; values may hold references to secrets."""
        ...


def kafka_caution(settings: Brokers) -> str | None:
    """The warning of brokers beyond this machine that are not proven to be those that are meant."""
    place = settings.section
    servers = reveal(settings.bootstrap_servers or "", f"{place}.bootstrap_servers")
    if are_local(servers):
        return None

    def option(name: str) -> str:
        return reveal(settings.options.get(name, ""), f"{place}.options.{name}").casefold()

    remedy = "Set options: {security.protocol: SASL_SSL} (or SSL), and ssl.ca.location."
    server = f"Kafka at {settings.bootstrap_servers}"
    if option("security.protocol") not in ("ssl", "sasl_ssl"):
        return caution(place, server, "is not encrypted", remedy)
    unverified = option("enable.ssl.certificate.verification") == "false"
    if unverified or option("ssl.endpoint.identification.algorithm") == "none":
        return caution(place, server, "is not verified", "Leave the verification on.")
    return None


def _host(server: str) -> str:
    """The host of `host:port`, `host` or `[address]:port`."""
    if server.startswith("["):
        return server[1:].partition("]")[0]
    return server.partition(":")[0] if server.count(":") == 1 else server
