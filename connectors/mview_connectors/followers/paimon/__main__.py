"""Makes the side environment of Paimon sinks."""

from __future__ import annotations

import sys

from mview.errors import ConfigError
from mview_connectors.followers.paimon.environment import make


def main() -> int:
    """Make it and say where it is."""
    try:
        print(f"Paimon sinks run with {make()}")
    except ConfigError as error:
        print(error.render(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
