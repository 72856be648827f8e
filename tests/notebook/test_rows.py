"""Views and tables read from Python: exact, at one epoch, and no more of them than is asked for."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mview.clock import DAY_MS, SystemClock, last_time_of_day
from mview.errors import DataError, UserError
from mview.notebook import extra
from mview.notebook.frames import query, to_pandas, to_polars
from tests.notebook.shelf import Shelf

#: Values that a detour by DOUBLE, nanoseconds or text would spoil.
ROWS = [
    (1, 2**53 + 1, Decimal("1.10"), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), b"\x00", ["a"]),
    (2, None, None, None, None, None),
    (3, -(2**63), Decimal("999999999999999999999999999999999999.99"), dt.datetime(1, 1, 1), b"",
     ["ä", None]),
]  # fmt: skip


def utc(moment: dt.datetime | None) -> dt.datetime | None:
    return None if moment is None else moment.replace(tzinfo=dt.timezone.utc)


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:3], utc(row[3]), *row[4:])


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    made = Shelf(tmp_path)
    made.publish(ROWS)
    return made


@pytest.mark.parametrize("relation", ["view", "table"])
def test_values_stay_exact(shelf: Shelf, relation: str) -> None:
    p = shelf.project
    rows = p["v"] if relation == "view" else p.table("shop.t")
    frame = rows.df().sort_values("id")
    assert [type(value) for value in frame["price"][:1]] == [Decimal]
    as_python = [
        tuple(None if value is None or value is pd_na(value) else value for value in row)
        for row in frame.astype({"at": object}).itertuples(index=False, name=None)
    ]
    assert [(*row[:3], at(row[3]), *row[4:]) for row in as_python] == list(map(plain, ROWS))
    assert sorted(rows.polars().rows()) == sorted(map(plain, ROWS))
    assert len(rows) == 3
    assert rows.columns["price"] == "decimal128(38, 2)"


def pd_na(value: Any) -> Any:
    import pandas as pd

    return value if not isinstance(value, list) and pd.isna(value) else object()


def at(value: Any) -> Any:
    """A timestamp of pandas as Python has it."""
    return value if value is None else value.to_pydatetime()


def test_decimals_may_be_floats(shelf: Shelf) -> None:
    frame = shelf.project["v"].df(decimals="float")
    assert frame["price"].dtype == float
    assert frame["price"].sum() == pytest.approx(1e36)
    with pytest.raises(UserError, match="'exact' or 'float'"):
        shelf.project["v"].df(decimals="double")  # type: ignore[arg-type]


def test_decimals_inside_of_others_may_be_floats_too() -> None:
    kind = pa.decimal128(5, 1)
    rows = pa.table(
        {
            "l": pa.array([[Decimal("1.5")], None], pa.list_(kind)),
            "m": pa.array([[("a", Decimal("2.5"))], []], pa.map_(pa.string(), kind)),
            "s": pa.array([{"x": Decimal("3.5")}, None], pa.struct([("x", kind)])),
        }
    )
    frame = to_pandas(rows, "float")
    assert frame["l"].tolist() == [[1.5], None]
    assert frame["m"].tolist() == [[("a", 2.5)], []]
    assert frame["s"].tolist() == [{"x": 3.5}, None]
    assert to_pandas(rows)["l"].tolist() == [[Decimal("1.5")], None]


def test_no_rows_have_their_columns_and_types(shelf: Shelf) -> None:
    shelf.publish(delete=[1, 2, 3])
    for rows in (shelf.project["v"], shelf.project.table("shop.t")):
        assert list(rows.df().columns) == list(rows.columns)
        assert len(rows) == 0
        assert rows.head().empty
        assert "0 rows" in rows._repr_html_()


def test_a_large_view_is_not_read_to_be_shown(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mview_connectors.sinks import delta

    read: list[str] = []
    real = delta.read_live
    monkeypatch.setattr(
        delta, "read_live", lambda folder, file, schema: (
            read.append(file.path), real(folder, file, schema))[1]
    )  # fmt: skip
    monkeypatch.setattr("mview.delta.tiers.TARGET_ROWS", 64)
    shelf.publish([row(n) for n in range(10, 1010)])
    view = shelf.project["v"]
    files = len(shelf.sink._log.head.files)  # type: ignore[attr-defined]
    read.clear()
    html = view._repr_html_()
    assert "1,003 rows, of which 10 are shown" in html
    assert html.count("<tr") <= 11 + 1
    assert len(read) <= 2 < files
    assert repr(view) == f"<view v, epoch {view.epoch}: 1,003 rows>"
    assert len(view.head(3)) == 3
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(UserError, match="a number of rows"):
            view.head(wrong)  # type: ignore[arg-type]


def test_what_is_shown_is_no_html_of_the_rows(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, {"id": pa.int64(), "name": pa.string()})
    shelf.publish([(1, "<script>alert(1)</script>")])
    assert "<script>" not in shelf.project["v"]._repr_html_()
    assert "<script>" not in shelf.project.table("shop.t")._repr_html_()
    assert "1 file" not in shelf.project._repr_html_()


def test_a_project_is_shown_by_its_manifest_alone(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mview_connectors.sinks.delta.read_live", None)
    html = shelf.project._repr_html_()
    assert "nobody runs it" in html
    assert "<td>v</td><td>3</td><td>LINEAR</td>" in html
    assert "epoch 1" in shelf.project.snapshot()._repr_html_()


def test_a_time_of_day_is_the_last_one_that_has_passed(tmp_path: Path) -> None:
    now = int(SystemClock().now())
    shelf = Shelf(tmp_path)
    shelf.publish(ROWS[:1], ms=now - 3 * DAY_MS)
    shelf.publish(ROWS[1:2], ms=now - 60 * 60_000)
    shelf.publish(ROWS[2:], ms=now)
    hour_ago = dt.datetime.fromtimestamp((now - 30 * 60_000) / 1000, dt.timezone.utc)
    assert shelf.project["v"].as_of(f"{hour_ago:%H:%M:%S}").epoch == 2
    later = hour_ago + dt.timedelta(hours=2)  # of yesterday
    assert shelf.project.at(f"{later:%H:%M}").epoch == 1
    with pytest.raises(UserError, match="neither an epoch nor a time"):
        shelf.project.at("25:00")
    assert last_time_of_day("10:00+02:00", now) is None
    assert last_time_of_day("10", now) is None


def test_what_is_yet_to_come_is_refused(tmp_path: Path) -> None:
    now = int(SystemClock().now())
    shelf = Shelf(tmp_path)
    shelf.publish(ROWS, ms=now)
    view, tomorrow = (
        shelf.project["v"],
        dt.datetime.fromtimestamp(now / 1000 + 86_400, dt.timezone.utc),
    )
    for ask in (view.as_of, view.changes, shelf.project.at, shelf.project.table("shop.t").as_of):
        for when in (f"{tomorrow:%Y-%m-%d %H:%M}", tomorrow):
            with pytest.raises(
                UserError, match=rf"(?s){tomorrow:%Y-%m-%d %H:%M}.* UTC is yet to come"
            ):
                ask(when)
        with pytest.raises(UserError, match=r"(?s)epoch 2 is not published yet.*up to epoch 1,"):
            ask(2)
    # The clock of who publishes is ahead of ours.
    shelf.publish(ROWS[:1], ms=now + 60_000)
    ahead = dt.datetime.fromtimestamp(now / 1000 + 60, dt.timezone.utc)
    assert shelf.project.at(ahead.isoformat(timespec="milliseconds")).epoch == 2


def test_changes_read_the_files_alone_that_differ(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.publish([(4, 4, None, None, None, None)])
    view = shelf.project["v"]
    came = view.changes(1)
    assert came[["id", "__weight"]].values.tolist() == [[4, 1]]
    assert view.changes(2).empty
    assert view.changes(view.as_of(1).epoch)["id"].tolist() == [4]
    shelf.publish([(4, 5, None, None, None, None)], delete=[1])
    new = shelf.project["v"].changes(1)
    assert sorted(new[["id", "__weight"]].values.tolist()) == [[1, -1], [4, 1]]
    back = shelf.project["v"].as_of(2).changes(3)  # to the past
    assert sorted(back[["id", "big", "__weight"]].fillna(0).values.tolist()) == [
        [1, 2**53 + 1, 1],
        [4, 4, 1],
        [4, 5, -1],
    ]


def test_a_view_with_other_columns_is_not_compared(shelf: Shelf) -> None:
    other = Shelf.__new__(Shelf)
    other.__dict__.update(shelf.__dict__)
    columns = shelf.schema.columns[:-1]
    shelf.publish(schema=type(shelf.schema)(columns, shelf.schema.key))
    with pytest.raises(UserError, match="view v had other columns at epoch 1"):
        shelf.project["v"].changes(1)


# --- tables --------------------------------------------------------------------------------------


def kinds(rows: Any) -> list[tuple[int, str, int]]:
    return list(rows[["__epoch", "__kind", "id"]].itertuples(index=False, name=None))


def row(key: int, big: int = 0) -> tuple[Any, ...]:
    return (key, big, None, None, None, None)


def test_the_changelog_of_a_table_is_complete(shelf: Shelf) -> None:
    shelf.publish([row(1, 5), row(4)])
    shelf.publish([row(4, 1)], delete=[2])
    shelf.publish()
    log = shelf.project.table("shop.t").changes(1)
    assert kinds(log) == [(2, "-U", 1), (2, "+U", 1), (2, "+I", 4), (3, "-D", 2), (3, "-U", 4),
                          (3, "+U", 4)]  # fmt: skip
    assert log["big"].tolist()[:2] == [2**53 + 1, 5]
    assert kinds(shelf.project.table("shop.t").changes()) == kinds(log)
    assert shelf.project.table("shop.t").changes(4).empty
    assert kinds(shelf.project.table("shop.t").as_of(2).changes(1)) == kinds(log)[:3]


def test_what_was_compacted_older_epochs_have(shelf: Shelf) -> None:
    shelf.publish([row(1, 5), row(4)])
    shelf.publish([row(4, 1)], delete=[2])
    before = kinds(shelf.project.table("shop.t").changes(1))
    shelf.compact()
    shelf.publish([row(9)])
    shelf.trim()
    version = shelf.mirror.changelog.head.version
    shelf.table = replace(shelf.table, changelog_version=version)
    shelf.publish([row(9, 1)])
    table = shelf.project.table("shop.t")
    assert table._stored._mirror.trimmed(table._stored._state) == 3
    assert kinds(table.changes(1)) == [*before, (4, "+I", 9), (5, "-U", 9), (5, "+U", 9)]
    assert kinds(table.changes()) == kinds(table.changes(1))
    assert kinds(table.changes(4)) == [(5, "-U", 9), (5, "+U", 9)]
    for epoch in (2, 3, 4):
        shelf.log.prune([epoch])
    with pytest.raises(UserError, match=r"(?s)kept since epoch 3.*changes\(3\)"):
        table.changes(1)
    assert table.changes().empty  # since epoch 5, the first one that is kept from 3 on


def test_changes_begin_when_a_table_is_loaded(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.table = replace(shelf.table, phase="loading")
    shelf.publish(ROWS)
    shelf.table = replace(shelf.table, phase="loaded")
    shelf.publish([row(7)])
    with pytest.raises(UserError, match="was not loaded yet at epoch 1"):
        shelf.project.table("shop.t").changes(1)
    assert shelf.project.table("shop.t").changes(2).empty
    assert shelf.project.table("shop.t").changes().empty


def test_a_table_that_was_loaded_anew_is_told(shelf: Shelf) -> None:
    shelf.rows.pop(3)
    shelf.publish([row(7)])
    with pytest.raises(UserError, match="was loaded anew after epoch 1"):
        shelf.project.table("shop.t").changes(1)


def test_a_status_is_shown_as_the_command_prints_it(shelf: Shelf) -> None:
    store = shelf.project.status()
    assert store.epoch == 1
    first, *lines = repr(store).splitlines()
    assert first == f"store {store.store}: nobody runs it"
    assert any(line.startswith("  shop.t  3 rows") for line in lines), lines


def test_a_view_s_status_is_shown_as_the_command_prints_it(shelf: Shelf) -> None:
    view = shelf.project["v"].status()
    assert repr(view).startswith("  v  3 rows  ")
    assert repr(view).splitlines()[0].endswith(f"  {view.path}")


def test_names_that_are_none(shelf: Shelf) -> None:
    p = shelf.project
    for ask in (p.__getitem__, p.table, p.snapshot().__getitem__, p.snapshot().table):
        for name in (3, None, ("v",)):
            with pytest.raises(UserError, match="asked for by their names"):
                ask(name)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"it is a table: table\('shop.t'\)"):
        p["shop.t"]
    with pytest.raises(UserError, match="a query is a text"):
        p.sql(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"(?s)no table 'shop.x'.*shop.t"):
        shelf.project.table("shop.x")
    with pytest.raises(UserError, match="there is no view 'w'"):
        shelf.project["w"]


def test_who_looks_back_too_far_is_told_since_when_there_is_the_view(shelf: Shelf) -> None:
    """The view of the newest epoch was built in it, as one whose text was changed."""
    shelf.publish([row(4, 7)], stale=True)
    newest = shelf.publish([row(5, 7)])
    latest = shelf.log.latest()
    assert latest is not None
    view = replace(latest.views["v"], built_epoch=newest)
    shelf.log.publish(replace(latest, epoch=newest + 1, views={"v": view}))
    with pytest.raises(UserError, match=f"it was built in epoch {newest}: ask for that one"):
        shelf.project["v"].changes(newest - 1)
    with pytest.raises(UserError, match="there is no view 'w' at epoch 1") as unknown:
        shelf.project.at(1)["w"]
    assert "built in" not in str(unknown.value.hint)


# --- queries -------------------------------------------------------------------------------------


def test_queries_over_views_and_tables_of_one_epoch(shelf: Shelf) -> None:
    old = shelf.project.snapshot()
    shelf.publish([row(4, 7)])
    text = "SELECT count(*) AS n, max(a.price) AS s FROM v a JOIN shop.t USING (id)"
    assert shelf.project.sql(text)["n"].tolist() == [4]
    assert old.sql(text)["n"].tolist() == [3]
    assert old.sql(text)["s"].tolist() == [Decimal("999999999999999999999999999999999999.99")]
    assert shelf.project["v"].sql("FROM V WHERE big = 7")["id"].tolist() == [4]
    assert old.table("shop.t").sql("SELECT max(id) AS m FROM shop.t")["m"].tolist() == [3]
    assert old.sql("WITH v AS (SELECT 1 AS a) SELECT * FROM v")["a"].tolist() == [1]


def test_a_query_reads_what_it_names(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mview.store.mirror.Mirror.scan", None)
    assert len(shelf.project.sql("SELECT id FROM v")) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT nope FROM v", "(?s)the query is wrong.*nope"),
        ("SELECT 1 FROM w", r"(?s)the query is wrong.*name w does not exist!\n.*over v, shop.t"),
        ("SELEC", "not one query"),
        ("SELECT (", "cannot be read"),
        ("", "not one query"),
        ("SELECT 1; SELECT 2", "not one query"),
        ("DROP TABLE v", "not one query"),
        ("COPY v TO '/tmp/there'", "not one query"),
        ("SET enable_external_access = true", "not one query"),
        ("SELECT * FROM '/etc/passwd'", "the query is wrong"),
        ("SELECT getenv('HOME')", "the query is wrong"),
    ],
)
def test_queries_that_are_wrong(shelf: Shelf, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        shelf.project.sql(text)


@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM glob('/etc/*')",
     "SELECT CAST('x' AS INT) FROM v"],
)  # fmt: skip
def test_queries_that_fail(shelf: Shelf, text: str) -> None:
    with pytest.raises(DataError, match="the query fails"):
        shelf.project.sql(text)


def test_names_of_variables_are_no_tables(shelf: Shelf) -> None:
    rows = shelf.project["v"].arrow()
    assert rows.num_rows
    with pytest.raises(UserError, match="the query is wrong"):
        query("SELECT * FROM rows", {})


# --- following -----------------------------------------------------------------------------------


def test_following_has_every_epoch_that_changes_something(shelf: Shelf) -> None:
    view = shelf.project["v"]
    shelf.publish([row(4)])
    shelf.publish()
    shelf.publish([row(4, 1)], delete=[1])
    steps = list(view.follow(seconds=0))
    assert [(step.epoch, step.come, step.gone) for step in steps] == [(2, 1, 0), (4, 1, 2)]
    assert steps[0].df()["id"].tolist() == [4]
    assert repr(steps[1]) == "<epoch 4 of v: 1 row came, 2 went>"
    assert "<table" in steps[1]._repr_html_()


def test_following_waits_for_what_comes(shelf: Shelf) -> None:
    view = shelf.project["v"]
    steps = view.follow(seconds=60)
    timer = threading.Timer(0.1, lambda: shelf.publish([row(4)]))
    timer.start()
    assert next(steps).epoch == 2
    timer.join()
    assert list(shelf.project["v"].follow(seconds=0.1)) == []


def test_following_takes_epochs_that_are_gone_with_the_next(shelf: Shelf) -> None:
    view = shelf.project["v"]
    for big in range(4):
        shelf.publish([row(4, big)])
    shelf.log.prune([1, 2, 3])
    steps = list(view.follow(seconds=0))
    assert [step.epoch for step in steps] == [4, 5]
    assert steps[0].df()["big"].tolist() == [2]


def test_following_too_slowly_is_told(shelf: Shelf) -> None:
    steps = shelf.project["v"].follow(seconds=0)
    shelf.publish([row(4)])
    assert next(steps).epoch == 2
    files = {file.name for file in shelf.sink.folder.glob("*.parquet")}  # type: ignore[attr-defined]
    shelf.publish([row(n) for n in range(5)])
    shelf.publish([row(n, 1) for n in range(5)])
    shelf.log.prune([1, 2, 3])
    for name in files:
        (shelf.sink.folder / name).unlink()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"(?s)since epoch 2 cannot be told.*p\['v'\]"):
        next(steps)


def test_following_passes_over_a_halt(shelf: Shelf) -> None:
    view = shelf.project["v"]
    shelf.publish([row(4)], stale=True, halted="it fails\n  where: x")
    with pytest.raises(UserError, match="view v has halted: it fails"):
        shelf.project["v"]
    assert list(view.follow(seconds=0)) == []
    shelf.publish([row(5)])
    (step,) = view.follow(seconds=0)
    assert sorted(step.df()["id"].tolist()) == [4, 5]


# --- what is missing -----------------------------------------------------------------------------


def test_a_library_that_is_missing_is_named_with_its_extra(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

    monkeypatch.setattr(extra, "import_module", missing)
    view = shelf.project["v"]
    for call, library in (
        (view.polars, "polars"),
        (view.plot, "matplotlib"),
        (view.live, "IPython"),
    ):
        with pytest.raises(UserError, match=rf"(?s){library}.*mview-engine\[notebook\]"):
            call()

    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'what_it_needs'", name="what_it_needs")

    monkeypatch.setattr(extra, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        to_polars(view.arrow())
