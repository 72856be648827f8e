"""Packages of Python that only tests' servers and readers need, in folders of their own."""

from __future__ import annotations

import sys
from pathlib import Path

from mview_connectors.followers.environments import run


def install(name: str, lock: Path, folder: Path) -> None:
    """Install what a lock file names, each against its digest, and nothing else.

    Raises:
        ConfigError: it cannot be had, with what was said.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    run(
        name,
        "it needs a package index",
        *(uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"),
        *("--require-hashes", "--target", str(folder), "--requirement", str(lock)),
    )
