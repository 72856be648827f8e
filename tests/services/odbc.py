"""ODBC drivers, which Debian's packages add to those of the system."""

from __future__ import annotations

from tests.services.process import ServiceError

DRIVERS = ("MariaDB Unicode", "PostgreSQL Unicode")


def check_drivers() -> None:
    """Raise where a driver is not there.

    Raises:
        ServiceError: with what installs it.
    """
    import pyodbc

    if missing := sorted({*DRIVERS} - {*pyodbc.drivers()}):
        raise ServiceError(
            f"no ODBC driver {', '.join(missing)}; `make services` or: "
            "apt-get install --no-install-recommends unixodbc odbc-mariadb odbc-postgresql"
        )
