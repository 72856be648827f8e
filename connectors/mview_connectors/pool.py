"""Pools of connections to SQL databases, for sources and sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from mview.errors import ConfigError


def pool_of(driver: str, connect: Callable[[], Any], place: str) -> sa.Engine:
    """A pool that opens its connections itself; connects to nothing yet.

    Args:
        driver: SQLAlchemy's dialect and driver, e.g. `mysql+pymysql`.
        connect: opens a connection of the driver.
        place: the section of the configuration, for the error.

    Raises:
        ConfigError: the driver is not installed.
    """
    try:
        return sa.create_engine(f"{driver}://", creator=connect, pool_size=2, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        extra = driver.partition("+")[0]
        raise ConfigError(
            f"the driver {error.name} is not installed",
            where=place,
            hint=f"pip install 'mview-engine[{extra}]'",
        ) from None
