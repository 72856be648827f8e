"""Incremental materialized views over databases and their changelogs, on Spark, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from mview.notebook.project import Project

__all__ = ["connect"]


def connect(config: str | Path = "conf/mview.yml") -> Project:
    """Open the store of a configuration; `mview run` may run beside it.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    # Only now: `import mview` must be cheap.
    from mview.config.file import load_config
    from mview.notebook.project import open_project

    return open_project(load_config(config))


def load_ipython_extension(ipython: Any) -> None:
    """Make `%mview` and `%%mview` known: `%load_ext mview`."""
    from mview.notebook.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take them back: `%unload_ext mview`."""
    from mview.notebook.magics import unload

    unload(ipython)
