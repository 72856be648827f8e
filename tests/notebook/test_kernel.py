"""Magics and errors in a real IPython kernel, and magics called as they are."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import mview
from mview.admin.apply import ApplyAnswer
from mview.admin.content import StoredView
from mview.clock import SourceMs, SystemClock
from mview.errors import AwayError, MistakesError, UserError, without_secrets_in
from mview.notebook import declaring
from mview.notebook.magics import CommandFailedError
from mview.notebook.magics import mview as magic
from mview.notebook.project import Project, _last
from mview.secrets import Mask
from mview.store.lease import Lease
from mview.store.manifest import Cut
from tests.notebook.shelf import Shelf

#: Rows of the table.
SIZE = 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project over SQLite whose store is empty; the current folder."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, kind TEXT, n BIGINT)")
        database.executemany(
            "INSERT INTO items VALUES (?, ?, ?)", [(n, f"k{n % 3}", n) for n in range(SIZE)]
        )
        database.commit()
    magic("init sqlite:///shop.db --triggers")
    monkeypatch.setattr(declaring, "_written", {})
    mview.connect("mview.yml")
    yield tmp_path
    _last.clear()


# --- a kernel ------------------------------------------------------------------------------------

CELLS = [
    "%load_ext mview\nimport mview\np = mview.connect('mview.yml')\np",
    "first = 1\np['revenue']",
    "%%mview kinds\nSELECT kind,\n  sum(m) AS s\nFROM shop.items GROUP BY kind",
    "%%mview kinds --dry\nSELECT kind, sum(n) AS s FROM shop.items GROUP BY kind",
    "%mview check nowhere.sql",
    "%mview plan --nonsense",
    "import os\np.sql('SELECT 1 AS a')",
    "1 / 0",
    "%unload_ext mview\n%mview status",
]


@pytest.mark.slow
def test_errors_in_a_kernel_are_blocks(folder: Path) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(book, timeout=120, allow_errors=True, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in book.cells]
    (shown,) = outputs[0]
    assert "nothing was published yet" in shown["data"]["text/html"]

    unpublished = block(outputs[1])
    assert unpublished[0] == "Error: nothing was published yet"
    assert unpublished[-1] == "  cell:    line 2: p['revenue']"

    wrong = "\n".join(block(outputs[2]))
    assert wrong.startswith("Error: unknown column 'm'\n2 |   sum(m) AS s\n")
    assert "kinds.sql:2:7" in wrong
    assert "one of id, kind, n" in wrong

    (told,) = (o for o in outputs[3] if o.output_type == "execute_result")
    assert "over all rows of the databases; 3 rows" in told["data"]["text/html"]
    assert "SELF_MAINTAINED" in told["data"]["text/html"]
    assert not (folder / "views").exists()

    assert any("nowhere.sql" in o.get("text", "") for o in outputs[4])
    assert block(outputs[4])[0] == "Error: mview check ended with 1; what it said is above"
    assert any("No such option" in o.get("text", "") for o in outputs[5])
    assert "nothing was published yet" in block(outputs[6])[0]
    assert any("ZeroDivisionError" in line for line in block(outputs[7]))  # others are as they were
    assert not any("store " in o.get("text", "") for o in outputs[8])
    for output in outputs[1:3]:
        assert len(block(output)) < 10


def block(outputs: list[Any]) -> list[str]:
    """What an error shows, a line each."""
    (error,) = (output for output in outputs if output.output_type == "error")
    lines: list[str] = list(error["traceback"])
    return lines


# --- a view in a cell ----------------------------------------------------------------------------

KINDS = "SELECT kind, sum(n) AS s FROM shop.items GROUP BY kind\n"


def test_a_cell_becomes_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = magic("kinds", KINDS)
    file = folder / "views" / "kinds.sql"
    assert file.read_text() == KINDS
    assert done.done == f"written to {file}; nobody runs the store: p.run('{folder / 'views'}')"
    rows = done.rows.to_dict("records")
    expected = {f"k{k}": sum(n for n in range(SIZE) if n % 3 == k) for k in range(3)}
    assert {row["kind"]: row["s"] for row in rows} == expected
    assert "new       view kinds" in done._repr_html_()
    assert "kinds" in repr(done)
    # The same again, and what the cell says after that.
    magic("kinds", KINDS)
    magic("kinds", KINDS.replace("sum", "max"))
    assert "max" in file.read_text()
    # By others.
    file.write_text("SELECT 1")
    with pytest.raises(UserError, match=r"(?s)no cell of this session wrote it.*--replace"):
        magic("kinds", KINDS)
    assert file.read_text() == "SELECT 1"
    magic("kinds --replace", KINDS)
    assert file.read_text() == KINDS
    magic("other --folder more", KINDS)
    assert (folder / "more" / "other.sql").exists()


@pytest.mark.parametrize(
    ("line", "cell", "told"),
    [
        ("", KINDS, r"(?s)%%mview:.*name.*allowed"),
        ("kinds --nonsense", KINDS, r"(?s)%%mview:.*nonsense"),
        ("kinds 'open", KINDS, "the line cannot be read"),
        ("kinds", "", "the view is empty"),
        ("kinds", "SELECT", r"kinds\.sql:1"),
        ("kinds", "DROP TABLE shop.items", r"kinds\.sql:1"),
        ("kinds", "SELECT * FROM shop.nope", "nope"),
        ("kinds", "CREATE MATERIALIZED VIEW other AS SELECT 1 AS a", "says view 'other'"),
        ("../kinds", KINDS, "is not a view name"),
        ("kinds --config nowhere.yml", KINDS, "nowhere.yml"),
    ],
)
def test_cells_that_are_wrong_write_nothing(folder: Path, line: str, cell: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        magic(line, cell)
    assert not list(folder.rglob("*kinds*"))


def test_lines_that_are_wrong(folder: Path) -> None:
    with pytest.raises(UserError, match=r"in a terminal: mview ui"):
        magic("ui")
    with pytest.raises(UserError, match=r"%mview run"):
        magic("run")
    with pytest.raises(CommandFailedError, match="mview nonsense ended with 2"):
        magic("nonsense")
    assert isinstance(magic(""), Project)
    assert magic("stop") is None


def test_a_line_goes_by_the_project_that_is_connected(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    magic("status")
    assert f"store {folder / 'store'}" in capsys.readouterr().out
    (folder / "other.yml").write_text("store: elsewhere\n")
    magic("status --config other.yml")
    assert f"store {folder / 'elsewhere'}" in capsys.readouterr().out


def test_a_preview_says_of_which_rows_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declaring, "_SAMPLE", 7)
    done = magic("kinds --dry", "SELECT id FROM shop.items")
    assert len(done.rows) == 7
    assert "over the first 7 rows of shop.items: sums are too small" in done._repr_html_()


def test_a_preview_that_cannot_be_had_is_no_reason_to_refuse(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise UserError("division by zero", where="a row")

    monkeypatch.setattr(declaring, "preview", fails)
    done = magic("v", "SELECT id, 1 / n AS r FROM shop.items")
    assert done.preview is None
    assert "no preview: division by zero" in done._repr_html_()
    assert "no preview: division by zero" in repr(done)
    assert (folder / "views" / "v.sql").exists()


def test_a_cell_may_read_another_that_is_not_built_yet(folder: Path) -> None:
    magic("kinds", KINDS)
    done = magic("above", "SELECT count(*) AS c FROM kinds WHERE s > 0")
    assert done.rows["c"].tolist() == [3]
    long = magic("long --dry", f"{KINDS} -- {'a remark, ' * 50}")
    assert len(long.rows) == 3
    with pytest.raises(UserError, match="unknown table 'missing'"):
        magic("more", "SELECT nope FROM above a JOIN missing b ON a.c = b.c")


# --- taken up by a run ---------------------------------------------------------------------------


def running(monkeypatch: pytest.MonkeyPatch, answer: ApplyAnswer | Exception) -> list[str]:
    """Make believe that a run has the store, and answers so; returns the views that it gets."""
    given: list[str] = []

    def apply(config: object, views: Any, remove: object, say: object) -> ApplyAnswer:
        given.extend(view.name for view in views)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(declaring, "apply_views", apply)
    monkeypatch.setattr(Lease, "holder", lambda lease: SimpleNamespace(pid=1))
    return given


def test_a_run_takes_the_view_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = running(monkeypatch, ApplyAnswer("done", {"kinds": "built"}, epoch=7))
    done = magic("kinds", KINDS)
    assert given == ["kinds"]
    assert done.done.endswith("view kinds: built\nlive at epoch 7")


def test_a_file_is_as_it_was_where_the_run_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    magic("kinds", KINDS)
    running(monkeypatch, ApplyAnswer("refused", error="it has no key"))
    with pytest.raises(UserError, match=r"refuses view kinds: it has no key"):
        magic("kinds", KINDS.replace("sum", "max"))
    assert (folder / "views" / "kinds.sql").read_text() == KINDS
    with pytest.raises(UserError, match="refuses view fresh"):
        magic("fresh", KINDS)
    assert not (folder / "views" / "fresh.sql").exists()


def test_secrets_are_starred_out_of_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declaring, "secret_values", lambda config: {"Pa55word!"})

    def check(checker: object, views: object) -> None:
        raise AwayError("no answer", got="user:Pa55word!@host", hint="Pa55word! is wrong")

    monkeypatch.setattr("mview.cli.checking.Checker.check", check)
    with pytest.raises(AwayError) as raised:
        magic("kinds", KINDS)
    assert "Pa55word" not in f"{raised.value}{raised.value.render()}{raised.value.args}"
    assert "no answer" in str(raised.value)


def test_secrets_are_starred_out_of_several_errors() -> None:
    error = MistakesError([UserError("a", got="s3cretword"), UserError("b s3cretword")], "mistakes")
    hidden = without_secrets_in(error, Mask(["s3cretword"]))
    assert hidden is error
    assert "s3cret" not in f"{error}{error.render()}"
    assert len(error.errors) == 2


# --- live ----------------------------------------------------------------------------------------


class Shown:
    """A notebook's place for something that is brought up."""

    def __init__(self) -> None:
        self.html: list[str] = []

    def update(self, what: Any) -> None:
        self.html.append(what.data)


def watched(monkeypatch: pytest.MonkeyPatch) -> Shown:
    shown = Shown()

    def display(what: Any, *, display_id: bool) -> Shown:
        shown.update(what)
        return shown

    monkeypatch.setattr("IPython.display.display", display)
    return shown


def until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_live_view_goes_on_by_itself_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, shelf = watched(monkeypatch), Shelf(tmp_path)
    shelf.publish([(1, 5, None, None, None, None)])
    live = shelf.project["v"].live(x="id", y="big", every=0.1)
    assert live.is_running
    assert "v, epoch 1: 1 row; nobody runs the store" in shown.html[0]
    shelf.publish([(2, 9, None, None, None, None)])
    until(lambda: "epoch 2" in shown.html[-1])
    assert shown.html[-1].count("<rect") == 2
    shelf.publish(stale=True, halted="it fails")
    until(lambda: "view v has halted: it fails" in shown.html[-1])
    shelf.publish()
    until(lambda: "epoch 4" in shown.html[-1])
    other = shelf.project["v"].live(every=0.1)  # the cell is run again
    assert not live.is_running
    with other:
        assert other.is_running
    other.stop()
    assert not other.is_running
    assert "not kept up any more" in shown.html[-1]
    count = len(shown.html)
    time.sleep(0.3)
    assert len(shown.html) == count


def test_the_lag_of_a_live_view_is_that_of_the_connections_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, shelf = watched(monkeypatch), Shelf(tmp_path)
    # No wait makes less of a lag than a day, or more than none of what is ahead of the clock.
    late, early = (Cut(SourceMs(SystemClock().now() + days * 86_400_000), None) for days in (-1, 1))
    rows = [(1, 5, None, None, None, None)]
    for cuts, told in (
        ({"shop": late, "other": early}, "lag: 86,4"),
        ({"shop": early, "other": late}, "lag: 0.0 s"),
        ({"other": early}, "lag<"),
    ):
        shelf.publish(rows, cuts=cuts)
        with shelf.project["v"].live(every=60):
            assert told in shown.html[-1]


def test_a_live_view_that_cannot_be(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.publish([(1, 5, None, None, None, None)])
    view = shelf.project["v"]
    for wrong, told in (({"x": "id"}, "two columns"), ({"every": 0}, "too short"),
                        ({"x": "nope", "y": "big"}, "no column 'nope'"),
                        ({"every": float("nan")}, "too short"),
                        ({"every": "1 s"}, "too short")):  # fmt: skip
        with pytest.raises(UserError, match=told):
            view.live(**wrong)  # type: ignore[arg-type]
    assert StoredView(shelf.config, "v").num_rows == 1


# --- what is drawn -------------------------------------------------------------------------------


def test_a_plot_has_the_rows_in_order(tmp_path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    shelf = Shelf(tmp_path)
    shelf.publish([(n, n * n, None, None, None, None) for n in (3, 1, 2)])
    view = shelf.project["v"]
    axes = view.plot(x="id", y="big")
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata().tolist() == [1, 4, 9]
    with pytest.raises(UserError, match=r"(?s)no column 'nope'.*big"):
        view.plot(x="id", y=["big", "nope"])
    for how in ({"kind": "foo"}, {"x": "id", "y": "tags"}, {"x": "id", "y": "big", "foo": 1}):
        with pytest.raises(UserError, match=r"(?s)v cannot be drawn so: .*kind is") as told:
            view.plot(**how)
        assert told.value.__suppress_context__


def test_nothing_of_a_notebook_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, mview; import mview.notebook.project; mview.load_ipython_extension;"
        "extra = {'IPython', 'matplotlib', 'polars'};"
        "print(*sorted(extra & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []
