"""Incremental materialized views over databases and their changelogs, on Spark, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mview.notebook import Project

__all__ = ["connect"]


def connect(config: str | Path = "conf/mview.yml") -> Project:
    """Open the store of a configuration for reading; `mview run` may run beside it.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    # Only now: `import mview` must be cheap.
    from mview.config.file import load_config
    from mview.notebook import Project

    return Project(load_config(config))
