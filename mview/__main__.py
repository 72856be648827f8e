"""`python -m mview`: the `mview` command, where its script is not on the path."""

from mview.cli import main

main(prog_name="python -m mview")
