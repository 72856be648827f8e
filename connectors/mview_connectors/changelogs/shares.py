"""How the rows of a batch are shared out between partitions."""

from __future__ import annotations

from collections.abc import Mapping


def fair_shares(backlog: Mapping[str, int], rows: int) -> dict[str, int]:
    """Parts of `rows` for each partition: equal, but never more than its backlog.

    What a short partition leaves goes to the longer ones; at least one row is shared out.

    >>> fair_shares({"a": 2, "b": 100, "c": 7}, 20)
    {'a': 2, 'c': 7, 'b': 11}
    """
    shares = {}
    left = max(rows, 1)
    waiting = sorted(backlog, key=lambda partition: (backlog[partition], partition))
    for number, partition in enumerate(waiting):
        # Rounded up, so that a few rows over many partitions never come to nothing for all.
        equal = -(-left // (len(waiting) - number))
        shares[partition] = min(backlog[partition], equal)
        left -= shares[partition]
    return shares
