"""A function of SQL, declared in mview.yml: `net(amount, percent)`.

functions:
  net:
    python: money:net
    returns: decimal(12,2)
    deterministic: true
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal


def net(gross: Decimal | None, percent: int | None) -> Decimal | None:
    """An amount without the tax in it; NULL of NULL."""
    if gross is None or percent is None:
        return None
    return (gross * 100 / (100 + percent)).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
