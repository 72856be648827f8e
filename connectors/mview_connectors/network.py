"""Who may listen on the way to a server, or pretend to be it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Protocol

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
    if all(is_local(_host(one.strip())) for one in servers.split(",")):
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
