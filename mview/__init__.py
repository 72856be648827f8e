"""Incremental materialized views over databases and their changelogs, on Spark, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from mview.notebook.project import Project

__all__ = ["connect"]


def connect(config: str | Path | None = None) -> Project:
    """Open the store of a configuration; `mview run` may run beside it.

    Args:
        config: its file; None: conf/mview.yml, or mview.yml where that alone is there.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    # Only now: `import mview` must be cheap.
    from mview.cli.options import default_config
    from mview.config.file import load_config
    from mview.notebook.project import open_project

    return open_project(load_config(config or default_config()))


def load_ipython_extension(ipython: Any) -> None:
    """Make `%mview` and `%%mview` known: `%load_ext mview`."""
    from mview.notebook.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Take them back: `%unload_ext mview`."""
    from mview.notebook.magics import unload

    unload(ipython)
