"""The `mview` command. Imports nothing heavy: `mview check` must answer in under two seconds."""

from mview.cli.app import main

__all__ = ["main"]
