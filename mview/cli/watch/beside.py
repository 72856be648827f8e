"""The process of the page beside a run: `python -m mview.cli.watch.beside`."""

import sys

from mview.cli.watch.command import serve_beside
from mview.files.modes import private_files

if __name__ == "__main__":
    with private_files():
        serve_beside(sys.stdin)
