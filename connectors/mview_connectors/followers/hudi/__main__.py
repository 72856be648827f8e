"""Makes the side environment of Hudi sinks."""

from __future__ import annotations

import sys

from mview_connectors.followers.hudi.environment import ENVIRONMENT

if __name__ == "__main__":
    sys.exit(ENVIRONMENT.main())
