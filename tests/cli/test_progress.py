"""What a run shows: plain lines without a terminal, bars and live lines with one."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest

from mview.cli.output import Output
from mview.cli.progress import LineDisplay, duration_text
from mview.epoch.report import EpochReport, ViewChange
from tests.patience import end_of


def change(inserted, updated=0, deleted=0):
    return ViewChange(inserted, updated, deleted, 5000, "LINEAR", "local")


def epoch(number, lag_ms, **views):
    return EpochReport(number, 100, lag_ms, {"shop.orders": 3}, views)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "-"), (0, "0.0 s"), (840, "0.8 s"), (12_300, "12 s"), (180_000, "3 min")],
)
def test_durations_are_for_people(ms, text):
    assert duration_text(ms) == text


def test_lines_of_a_load_come_every_few_seconds_and_at_the_end(capsys):
    clock = iter([0.0, 1.0, 6.0, 7.0, 10.0])
    display = LineDisplay(Output(), now=lambda: next(clock))
    steps = ((0, False), (100, False), (600, False), (700, False), (1000, True), (1010, True))
    for rows, done in steps:
        display.on_load("shop.orders", rows, 990, done)
    assert capsys.readouterr().out.splitlines() == [
        "shop.orders: loading, 0 of about 990 rows",
        "shop.orders: loading, 600 of about 990 rows, 100 rows/s, 3.9 s left",
        "shop.orders: loaded, 1,000 rows, 100 rows/s",
    ]


def test_a_line_per_changed_view_and_epoch(capsys):
    display = LineDisplay(Output())
    display.on_epoch(epoch(7, 840, totals=change(1234, 5, 6), untouched=change(0)))
    assert capsys.readouterr().out == "totals: epoch 7, lag 0.8 s, +1,234 ~5 -6, 5,000 rows\n"


def test_a_view_that_was_computed_as_a_whole_says_why(capsys):
    chosen = "FULL this epoch: 41 % of shop.orders changed, estimated 0.9 s against 4.2 s"
    LineDisplay(Output()).on_epoch(epoch(7, None, totals=replace(change(3), chosen=chosen)))
    assert capsys.readouterr().out == f"totals: epoch 7, +3 ~0 -0, 5,000 rows; {chosen}\n"


def test_changes_that_were_sent_again_are_told(capsys):
    LineDisplay(Output()).on_epoch(EpochReport(8, 100, None, dropped=1200))
    assert capsys.readouterr().out == "epoch 8: 1,200 sent again, dropped\n"


SCRIPT = """
from mview.cli.output import Output
from mview.cli.progress import display_for
from mview.secrets import Mask
from mview.epoch.report import EpochReport, ViewChange

output = Output()
output.hide(Mask(["hush"]))
with display_for(output) as display:
    display.on_load("shop.orders", 0, 0, False)
    display.on_load("shop.orders", 50_000, 60_000, False)
    display.on_load("shop.orders", 61_000, 60_000, True)
    display.on_message("the word is hush")
    for number in (1, 2):
        changed = ViewChange(10, 2, 1, 5000 + number, "LINEAR", "local")
        display.on_epoch(EpochReport(number, 100, 840, {}, {"totals": changed}))
    display.on_epoch(EpochReport(3, 100, None, dropped=7))
    print("a line from elsewhere")
"""


def run_on_a_terminal(script):
    """What a person sees: everything the program writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        os.close(ours)
        assert end_of(process, 20) == 0, seen.decode()
    return seen.decode()


def test_bars_and_live_lines_on_a_terminal():
    seen = run_on_a_terminal(SCRIPT)
    last = seen.rsplit("shop.orders", 1)[1]
    assert "━" in last
    assert "100%" in last
    assert "61,000 rows" in last
    for part in (
        "totals",
        "epoch 3",
        "lag 0.8 s",
        "+20",
        "~4",
        "-2",
        "5,002 rows",
        "0 errors",
        "7 sent again, dropped",
    ):
        assert part in last
    assert "a line from elsewhere" in seen
    assert "hush" not in seen
    assert seen.rstrip().endswith("\x1b[?25h"), "the cursor must be shown again"


def test_the_line_that_stays_says_that_the_run_ended_by_an_error():
    failing = SCRIPT.replace('print("a line from elsewhere")', "raise SystemExit(0)")
    assert "0 errors" in run_on_a_terminal(failing).rsplit("totals", 1)[1]
    failing = SCRIPT.replace(
        "with display_for(output)",
        "import contextlib\nwith contextlib.suppress(ValueError), display_for(output)",
    ).replace('print("a line from elsewhere")', "raise ValueError")
    assert "1 errors" in run_on_a_terminal(failing).rsplit("totals", 1)[1]


FORGED = "shop.t\n[red]Error: forged\x1b[2J"


def test_names_begin_no_lines_of_their_own(capsys):
    display = LineDisplay(Output())
    display.on_load(FORGED, 0, 10, False)
    display.on_load(FORGED, 10, 10, True)
    display.on_message("a\x1b[2J")
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 3
    assert "\x1b" not in said


def test_names_draw_nothing_on_a_terminal():
    seen = run_on_a_terminal(SCRIPT.replace('"shop.orders"', repr(FORGED)))
    assert "[red]Error: forged" in seen
    assert "\nError: forged" not in seen
    assert "\x1b[2J" not in seen
