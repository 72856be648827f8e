"""Screens of 80 and of 60 columns: nothing is cut, and no line is wider that can be folded."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable

import pytest

from mview.admin.doctor import Finding
from mview.admin.explore.epochs import PastEpoch, ViewPoint
from mview.admin.explore.lag import Lag, ViewLag
from mview.admin.lights import LightStatus
from mview.admin.status import SinkStatus, SourceStatus, StoreStatus, TableStatus, ViewStatus
from mview.admin.verify import VerifyResult
from mview.cli.display.folding import columns, folded
from mview.cli.explore.lineage import ViewLineage, lineage_text
from mview.cli.explore.past import history_text, lag_text
from mview.cli.output import Output
from mview.cli.planning import Planned, PlannedView
from mview.cli.render import doctor_text, planned_text, status_text, verified_text
from mview.epoch.views.cost import Ran
from mview.errors import UserError
from mview.secrets import Mask
from mview.store.failure import Failure

#: They differ in their ends.
NAMES = tuple(f"revenue_of_customers_by_region_and_day_{last}" for last in "ab")
ERROR = UserError(
    f"view {NAMES[0]} fails on the data: [ARITHMETIC_OVERFLOW] overflow of a long in the sum of "
    "all amounts of a day, as its batch query would",
    where="shop.orders",
    got="id=17, customer=4, amount=9223372036854775807; id=18, customer=5, amount=12",
    safe="the view keeps the rows of its last good epoch, the other views go on",
    hint="correct the row or the query; `mview apply` or the next run builds the view anew",
)
CAUSE = "the last epoch took 12 s, of which 9 s are the look-ups in shop.orders, on Spark"
SINK = SinkStatus(
    "warehouse", f"analytics.{NAMES[0]}", 12, 3, 12_345, 9_000, 1, ERROR.render(), 1, ""
)


def status() -> str:
    runs = (Ran(12, "incremental", "0.3 % of shop.orders changed", "local", 4, 12, 8, 0.01),)
    views = tuple(
        ViewStatus(
            name,
            "GROUP_AFFECTED",
            1_234_567,
            f"data/views/{name}",
            10_000,
            90_000,
            missed=True,
            runs=runs,
            halted=ERROR.render() if name == NAMES[0] else "",
            sinks=(SINK,),
            cause="" if name == NAMES[0] else CAUSE,
            degraded="3 changes of shop.orders, which it shows, are in quarantine since yesterday",
        )
        for name in NAMES
    )
    table = TableStatus(
        f"shop.{NAMES[0]}", "loaded", 5, 1, refused=ERROR.what, next=str(ERROR.hint)
    )
    held = TableStatus("shop.b", "halted", 5, 1, held=ERROR.what)
    light = LightStatus(
        NAMES[0], "warehouse", f"analytics.{NAMES[0]}", "live", error=ERROR.render()
    )
    source = SourceStatus("shop", 900, False, False)
    failed = Failure(1, 1, NAMES[1], **{"allowed": None, **ERROR.parts})
    return status_text(
        StoreStatus(
            "data", "process 7 on here", 12, 1, 2, (table, held), views, failed, (light,),
            sources=(source,),
        )
    )  # fmt: skip


def history() -> str:
    change = ViewPoint(1_234_567, 12, 345, 6, "local", 0.25)
    return history_text(
        [
            PastEpoch(1_234 + n, 1_700_000_000_000, 1_200, dict.fromkeys(NAMES, change), 450)
            for n in (0, 1)
        ]
    )


def lag() -> str:
    views = tuple(
        ViewLag(name, 90_000, 10_000, CAUSE, 120, 900, 12_000, 90_000, 5, (SINK,)) for name in NAMES
    )
    return lag_text(Lag("process 7 on here", 600_000, (), views))


def lineage() -> str:
    made = {name: tuple(f"shop.orders.{column}" for column in NAMES) for name in NAMES}
    return lineage_text(
        [ViewLineage(NAMES[0], f"sql/{NAMES[0]}.sql", NAMES, NAMES[1:], ("delta", "pg"), made)]
    )


def plan() -> str:
    views = tuple(
        PlannedView(name, "rebuilt", f"it reads {NAMES[0]}, whose columns change: {ERROR.what}")
        for name in NAMES
    )
    return planned_text(Planned(views, ("shop.orders",), {"shop.orders": ERROR.what}, NAMES))


def doctor() -> str:
    return doctor_text(
        [Finding(f"shop.{name}", "wrong", ERROR.what, str(ERROR.hint)) for name in NAMES]
    )


def verified() -> str:
    wrong = (dict.fromkeys(NAMES, "a value of some letters"),)
    return verified_text(
        [
            VerifyResult(NAMES[0], 12, 1_234, False, (), (), error=ERROR.what, sink="warehouse"),
            VerifyResult(NAMES[1], 12, 1_234, False, wrong, (), sink="warehouse"),
        ]
    )


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("made", [status, history, lag, lineage, plan, doctor, verified])
def test_screens(made: Callable[[], str], width: int) -> None:
    text = made()
    lines = folded(text, width).split("\n")
    assert [line for line in lines if len(line) > width] == []
    assert "".join(lines).replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_words() -> None:
    text = "  a  1 row  lag 0.1 s of 10 s\n    next:    `mview apply` or `mview run` builds it"
    assert folded(text, 26).split("\n") == [
        "  a  1 row",
        "      lag 0.1 s of 10 s",
        "    next:    `mview apply`",
        "        or `mview run`",
        "        builds it",
    ]
    assert folded("x" * 30 + " y", 26) == "x" * 30 + "\n    y", "what has no blank is as it is"
    marked = "  SELECT a,  b, c, d, e, f, g FROM t\n             ^^^"
    assert folded(marked, 26) == marked
    changed = "          +  WHERE status = 'a   b' AND other = 'c'"
    assert folded(changed, 26) == changed


LINE = f"  {NAMES[0]}  1,234,567 rows  INCREMENTAL  lag 0.1 s of 10 s"
FOLDED = f"  {NAMES[0]}\n      1,234,567 rows  INCREMENTAL\n      lag 0.1 s of 10 s\n"
SCRIPT = f"from mview.cli.output import Output; Output().line({LINE!r}, fold=True)"


@pytest.mark.parametrize(("width", "shown"), [("", f"{LINE}\n"), ("45", FOLDED)])
def test_a_pipe_gets_whole_lines_unless_somebody_says_how_wide_it_is(
    monkeypatch: pytest.MonkeyPatch, width: str, shown: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert told.stdout == shown


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 45, 0, 0))
    subprocess.run([sys.executable, "-c", SCRIPT], stdin=theirs, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1024)
    os.close(ours)
    assert shown.decode().replace("\r\n", "\n") == FOLDED


def test_a_secret_is_masked_before_it_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert columns() == 20
    output = Output()
    output.hide(Mask(["my very own and long pass phrase"]))
    output.result({}, "cannot log in with my very own and long pass phrase", fold=True)
    assert capsys.readouterr().out == "cannot log in with\n    ******\n"
