"""What a run shows: plain lines without a terminal, bars and live lines with one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console

from mview.cli.display.progress import (
    JsonDisplay,
    LineDisplay,
    LiveDisplay,
    QuietDisplay,
    UnreadError,
    duration_text,
)
from mview.cli.output import Output
from mview.epoch.report import BuildReport, EpochReport, LoadReport, ViewChange
from mview.errors import UserError
from mview.secrets import Mask
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


def texts(capsys):
    """The lines without their times."""
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("1970-01-01 00:00:01  ") for line in lines)
    return [line.split("  ", 1)[1] for line in lines]


class Clock:
    """Seconds that pass as told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def lines_display(clock=time.monotonic, **more):
    return LineDisplay(Output(), now=clock, wall=lambda: 1000, **more)


def test_lines_of_a_load_come_every_few_seconds_and_at_the_end(capsys):
    clock = iter([0.0, 1.0, 6.0, 7.0, 10.0])
    display = lines_display(lambda: next(clock))
    steps = ((0, 0), (0, 100), (300, 600), (300, 700))
    for rows, read in steps:
        display.on_load(LoadReport("shop.orders", rows, read, 990, False))
    for rows in (1000, 1010):
        display.on_load(LoadReport("shop.orders", rows, rows, 990, True))
    assert texts(capsys) == [
        "shop.orders: loading, 0 of about 990 rows; 0 read",
        "shop.orders: loading, 300 of about 990 rows, 50 rows/s, 14 s left; 600 read",
        "shop.orders: loaded, 1,000 rows, 100 rows/s",
    ]


def test_no_log_tells_how_long_what_nobody_can_tell_takes(capsys):
    clock = Clock()
    display = lines_display(clock)
    for second, (rows, read) in enumerate([(0, 0), (30, 400), (400, 990)]):
        clock.seconds = second * 6.0
        display.on_load(LoadReport("shop.orders", rows, read, 990, False))
    _, changes_alone, all_read = texts(capsys)
    assert changes_alone == "shop.orders: loading, 30 of about 990 rows, 5 rows/s; 400 read"
    assert all_read == "shop.orders: loading, 400 of about 990 rows, 33 rows/s; 990 read"


def test_a_load_that_goes_on_has_the_rate_of_this_run(capsys):
    clock = iter([0.0, 6.0])
    display = lines_display(lambda: next(clock))
    for rows in (900, 960):
        display.on_load(LoadReport("shop.orders", rows, 970, 990, False, "paused"))
    assert texts(capsys) == [
        "shop.orders: loading, 900 of about 990 rows; 970 read; paused",
        "shop.orders: loading, 960 of about 990 rows, 10 rows/s, 3.0 s left; 970 read; paused",
    ]


def test_the_first_epoch_is_told_at_once(capsys):
    lines_display().on_epoch(epoch(7, 840, totals=change(1234, 5, 6), untouched=change(0)))
    assert texts(capsys) == ["totals: epoch 7, lag 0.8 s, +1,234 ~5 -6, 5,000 rows"]


def test_further_epochs_are_told_together(capsys):
    clock = Clock()
    with lines_display(clock) as display:
        display.on_epoch(epoch(7, 840, totals=change(1)))
        assert len(texts(capsys)) == 1
        clock.seconds = 1.0
        display.on_epoch(epoch(8, 100, totals=change(1), other=change(2)))
        clock.seconds = 9.9
        display.on_epoch(epoch(9, 300, totals=change(1, 2, 3)))
        assert not texts(capsys)
        clock.seconds = 10.1
        display.on_epoch(epoch(11, 200, totals=change(1)))
        assert texts(capsys) == [
            "totals: epochs 8 to 11, lag up to 0.3 s, +3 ~2 -3, 5,000 rows",
            "other: epoch 8, lag 0.1 s, +2 ~0 -0, 5,000 rows",
        ]
        clock.seconds = 11.0
        display.on_epoch(epoch(12, 200, totals=change(4)))
        assert not texts(capsys)
    told, summary = texts(capsys)
    assert told == "totals: epoch 12, lag 0.2 s, +4 ~0 -0, 5,000 rows", "at the end"
    assert summary == "ran for 00:00:11: epochs 7 to 12, 15 changes, largest lag 0.8 s"


def test_what_came_last_is_told_though_nothing_follows(monkeypatch, capsys):
    monkeypatch.setattr("mview.cli.display.progress._SUMMARY_EVERY", 0.05)
    display = lines_display()
    display.on_epoch(epoch(7, 840, totals=change(1)))
    display.on_epoch(epoch(8, 840, totals=change(1)))
    said = texts(capsys)
    end = time.monotonic() + 20
    while len(said) < 2 and time.monotonic() < end:
        time.sleep(0.01)
        said += texts(capsys)
    assert [line.split(",")[0] for line in said] == ["totals: epoch 7", "totals: epoch 8"]


def test_a_reader_that_is_gone_is_no_word_of_the_timer(monkeypatch, capfd):
    """It is the run that meets it, by its next line."""
    monkeypatch.setattr("mview.cli.display.progress._SUMMARY_EVERY", 0.01)
    tried = threading.Event()

    class Gone(Output):
        def line(self, text=""):
            tried.set()
            raise BrokenPipeError

    clock = Clock()
    display = LineDisplay(Gone(), now=clock)
    clock.seconds = -0.01  # just told: the next is for the timer
    display._told = clock.seconds
    display.on_epoch(epoch(7, 840, totals=change(1)))
    assert tried.wait(20)
    with pytest.raises(UnreadError, match="nobody reads any more"):
        display.on_message("next")
    with pytest.raises(UnreadError), display:
        pass
    assert "Traceback" not in capfd.readouterr().err


def test_each_epoch_has_its_line_where_that_is_asked(capsys):
    display = lines_display(verbose=True)
    for number in (1, 2, 3):
        display.on_epoch(epoch(number, 100, totals=change(1)))
    assert len(texts(capsys)) == 3


def test_a_view_that_was_computed_as_a_whole_says_why(capsys):
    chosen = "FULL this epoch: 41 % of shop.orders changed, estimated 0.9 s against 4.2 s"
    lines_display().on_epoch(epoch(7, None, totals=replace(change(3), chosen=chosen)))
    assert texts(capsys) == [f"totals: epoch 7, +3 ~0 -0, 5,000 rows; {chosen}"]


def test_changes_that_were_sent_again_are_told(capsys):
    lines_display().on_epoch(EpochReport(8, 100, None, dropped=1200))
    assert texts(capsys) == ["1,200 sent again, dropped"]


def test_events_as_json(capsys):
    output = Output()
    output.hide(Mask(["hush"]))
    with JsonDisplay(output) as display:
        display.on_load(LoadReport("shop.orders", 1, 2, 3, False))
        display.on_epoch(
            replace(epoch(7, 840, totals=change(1)), halted={"v": UserError("what", where="hush")})
        )
        display.on_build(BUILD)
        display.on_halt("v", UserError("why", where="hush"))
        display.on_message("a\nb")
    load, done, build, halt, message = map(json.loads, capsys.readouterr().out.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", load.pop("time"))
    assert load == {
        "event": "load",
        "table": "shop.orders",
        "rows": 1,
        "read": 2,
        "total": 3,
        "done": False,
        "held": "",
    }
    assert (done["event"], done["epoch"], done["lag_ms"]) == ("epoch", 7, 840)
    assert done["views"]["totals"]["inserted"] == 1
    assert "what" in done["halted"]["v"]
    assert "hush" not in done["halted"]["v"]
    assert (build["event"], build["view"], build["expected"]) == ("build", "totals", 10.0)
    assert (halt["event"], halt["view"]) == ("halt", "v")
    assert halt["error"].splitlines()[0] == "why"
    assert "hush" not in halt["error"]
    assert message["text"] == "a\nb"


SCRIPT = """
from mview.cli.output import Output
from mview.cli.display.progress import display_for
from mview.secrets import Mask
from mview.epoch.report import BuildReport, EpochReport, LoadReport, ViewChange
from rich.console import Console

def text_of(display):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(display._draw())
    return capture.get().splitlines()[0]

output = Output()
output.hide(Mask(["hush"]))
with display_for(output) as display:
    display.on_load(LoadReport("shop.orders", 0, 0, 0, False))
    display.on_load(LoadReport("shop.orders", 0, 60_000, 60_000, False))
    display.on_message("bar: " + text_of(display))
    display.on_load(LoadReport("shop.orders", 20_000, 30_000, 60_000, False, "paused by you"))
    display.on_message("held: " + text_of(display))
    display.on_load(LoadReport("shop.orders", 61_000, 61_000, 60_000, True))
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
    bar = seen.split("bar: ", 1)[1].replace("\r\n", "")[:200]
    assert "0%" in bar, "nothing counts yet"
    assert "60,000 rows read, waiting for the changelog" in bar
    slow = seen.split("held: ", 1)[1].replace("\r\n", "")[:200]
    assert "33%" in slow, "what counts, not what is read"
    assert "20,000 rows, paused by you" in slow
    last = seen.rsplit("shop.orders loaded", 1)[1]
    assert "━" not in last, "bars give way to what is live"
    for part in (
        "61,000 rows",
        "live 00:00:0",
        "epoch 3",
        "last change 0.",
        " s ago, shown after 0.8 s",
        "7 sent again, dropped",
        "totals",
        "+20",
        "~4",
        "-2",
        "5,002 rows",
    ):
        assert part in last
    assert "error" not in last
    assert "a line from elsewhere" in seen
    assert "hush" not in seen
    assert seen.rstrip().endswith("\x1b[?25h"), "the cursor must be shown again"


def test_the_line_that_stays_says_that_the_run_ended_by_an_error():
    failing = SCRIPT.replace('print("a line from elsewhere")', "raise SystemExit(0)")
    assert "error" not in run_on_a_terminal(failing).rsplit("live 00", 1)[1]
    failing = SCRIPT.replace(
        "with display_for(output)",
        "import contextlib\nwith contextlib.suppress(ValueError), display_for(output)",
    ).replace('print("a line from elsewhere")', "raise ValueError")
    assert "1 error" in run_on_a_terminal(failing).rsplit("live 00", 1)[1]


def drawn(display, width=80):
    """What the live part shows now."""
    console = Console(width=width, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(display._draw())
    return capture.get()


def test_the_lag_goes_on_when_nothing_comes_any_more():
    """A connector that died: the lag grows from its newest sign of life on, as in `status`."""
    clock = Clock()
    display = LiveDisplay(Output(), now=clock, wall=lambda: int(clock.seconds * 1000) + 100_000)
    display.on_epoch(replace(epoch(7, 840, totals=change(1)), watermark=99_000))
    assert " · lag 1.0 s" in drawn(display)
    assert "last change 0.0 s ago, shown after 0.8 s" in drawn(display)
    clock.seconds = 60.0
    late = drawn(display)
    assert "\x1b[1;31mlag 61 s" in late, "in red"
    assert late.count("lag ") == 1, "and no other that stands still"
    assert "last change 60 s ago, shown after 0.8 s" in late
    display.on_epoch(replace(epoch(8, None), watermark=159_000))
    alive = drawn(display)
    assert " · lag 1.0 s" in alive, "a heartbeat is a sign of life"
    assert "last change 60 s ago" in alive


BUILD = BuildReport("totals", 2, 3, 281_330, 10.0)


def test_a_build_has_a_bar_where_it_is_known_how_long_it_takes():
    clock = Clock()
    display = LiveDisplay(Output(), now=clock, wall=lambda: 0)
    display.on_build(replace(BUILD, expected=None))
    clock.seconds = 4.0
    new = drawn(display)
    assert "building from 281,330 rows, 2 of 3 4.0 s" in re.sub("\x1b[^m]*m", "", new)
    assert "━" not in new, "nobody knows how long it takes"
    display.on_build(BUILD)
    clock.seconds = 9.0
    again = re.sub("\x1b[^m]*m", "", drawn(display))
    assert "5.0 s of about 10 s" in again
    assert again.count("━") + again.count("╸") + again.count("╺") == 16
    assert all(len(line) <= 80 for line in again.splitlines())
    clock.seconds = 60.0
    assert "56 s of about 10 s" in drawn(display), "it is late, and says so"
    display.on_build(replace(BUILD, done=True))
    assert "building" not in drawn(display)


def test_a_build_that_fails_is_no_longer_shown():
    display = LiveDisplay(Output(), now=Clock(), wall=lambda: 0)
    display.on_build(BUILD)
    display.on_halt("totals", UserError("divided by zero"))
    assert "building" not in drawn(display)


def test_lines_say_what_is_built(capsys):
    display = lines_display()
    display.on_build(BUILD)
    display.on_build(replace(BUILD, done=True))
    display.on_build(BuildReport("other", 1, 1, 5, None))
    assert texts(capsys) == [
        "totals: building from 281,330 rows, 2 of 3, about 10 s",
        "other: building from 5 rows",
    ]


def test_what_a_run_has_done_stays_at_the_end(capsys):
    clock = Clock()
    with lines_display(clock) as display:
        display.on_build(replace(BUILD, done=True))
        for view in ("v", "totals"):
            display.on_halt(view, UserError("why"))
        display.on_build(replace(BUILD, done=True))  # anew: it has not halted any more
        clock.seconds = 3723.0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("  ran for 01:02:03: 1 view built, no epoch, halted: v")
    last = run_on_a_terminal(SCRIPT).rsplit("totals", 1)[1]
    assert "ran for 00:00:0" in last
    assert "epochs 1 to 3, 0 changes, largest lag 0.8 s" in last


def test_halts_are_said_in_every_display(capsys):
    """Also those of a first build, which belong to no epoch."""
    error = UserError("divided by zero", hint="correct the row")
    for display in (lines_display(), QuietDisplay(Output())):
        display.on_halt("v", error)
        said = capsys.readouterr()
        assert "view v halts, alone: divided by zero\n" in said.out + said.err
        assert "correct the row" in said.out + said.err


def test_the_live_screen_counts_halts():
    display = LiveDisplay(Output(), now=Clock(), wall=lambda: 0)
    display.on_epoch(epoch(7, 840, totals=change(1), ratios=change(2)))
    assert "error" not in drawn(display)
    display.on_halt("ratios", UserError("divided by zero"))
    assert "1 error" in drawn(display)
    assert re.search(r"ratios\S* .*HALTED", drawn(display))
    display.on_epoch(epoch(8, 840, ratios=change(2)))
    assert "HALTED" not in drawn(display)


def test_a_narrow_terminal_cuts_no_name_that_could_stand():
    display = LiveDisplay(Output(), now=Clock(), wall=lambda: 0)
    long = "revenue_by_customer_and_region"
    full = replace(change(123456, 7, 8), chosen="FULL this epoch: 41 % of shop.orders changed")
    display.on_epoch(epoch(7, 840, **{long: full}))
    assert long in drawn(display, 80)
    assert all(len(line) <= 80 for line in re.sub("\x1b[^m]*m", "", drawn(display)).splitlines())


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_cuts_the_end_of_a_name_and_no_number(width):
    display = LiveDisplay(Output(), now=Clock(), wall=lambda: 0)
    many = replace(change(1_234_567, 65_432, 123_456), rows=7_654_321)
    display.on_epoch(epoch(7, 840, **{"orders_with_all_that_belongs_to_them_and_more": many}))
    shown = re.sub("\x1b[^m]*m", "", drawn(display, width))
    for number in ("7,654,321 rows", "+1,234,567", "~65,432", "-123,456"):
        assert number in shown
    assert re.search(r"^orders_with\S*(…|\.\.\.) ", shown, re.MULTILINE)
    assert all(len(line) <= width for line in shown.splitlines())


def test_before_it_is_live_the_screen_tells_how_long_it_takes():
    clock = Clock()
    display = LiveDisplay(Output(), now=clock, wall=lambda: 0)
    clock.seconds = 83.0
    assert "not live yet\x1b[0m · 00:01:23" in drawn(display)


FORGED = "shop.t\n[red]Error: forged\x1b[2J"


def test_names_begin_no_lines_of_their_own(capsys):
    display = LineDisplay(Output())
    display.on_load(LoadReport(FORGED, 0, 0, 10, False))
    display.on_load(LoadReport(FORGED, 10, 10, 10, True))
    display.on_message("a\x1b[2J")
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 3
    assert "\x1b" not in said


def test_names_draw_nothing_on_a_terminal():
    seen = run_on_a_terminal(SCRIPT.replace('"shop.orders"', repr(FORGED)))
    assert "[red]Error: forged" in seen
    assert "\nError: forged" not in seen
    assert "\x1b[2J" not in seen
