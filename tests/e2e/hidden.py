"""What a shop's log does not tell."""

from __future__ import annotations

from tests.e2e.shop import Shop


class Hidden(Shop):
    """Changes the database of a shop; the log has nothing of it."""

    def __init__(self, shop: Shop) -> None:
        self.__dict__ = dict(shop.__dict__)

    def log(self, **change: object) -> None:
        """Nothing."""
