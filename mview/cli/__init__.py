"""The command line: arguments in, engine called, answers and errors as text."""

from mview.cli.app import main

__all__ = ["main"]
