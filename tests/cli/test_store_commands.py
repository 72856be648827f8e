"""`status`, `verify`, `drop`: text, JSON, exit codes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import CliRunner

from mview.admin.drop import Remains
from mview.admin.lights import LightStatus
from mview.admin.status import (
    SinkStatus,
    SourceStatus,
    StoreStatus,
    TableStatus,
    ViewStatus,
    not_fresh,
)
from mview.admin.verify import VerifyResult
from mview.catalog.definitions import digest_of, save_definition
from mview.cli import main
from mview.cli.render import sink_lines, status_text, verified_text
from mview.clock import SystemClock
from mview.epoch.views.cost import Costs, Ran, with_run
from mview.errors import DecodeError, FencedError, UserError, concerning, several
from mview.plan.definition import parse_view
from mview.schema import Column, TableSchema
from mview.secrets import Mask
from mview.store.away import Away, write_away
from mview.store.failure import Failure, failure_kept, last_failure
from mview.store.history import ManifestLog
from mview.store.identity import claim_store
from mview.store.layout import Store
from mview.store.lease import Lease
from mview.store.manifest import Cut, Manifest, TableState, ViewState
from mview.store.requests.asked import keep_asked
from tests.relations import rel

ORDERS = TableSchema((Column("id", pa.int64()), Column("status", pa.string())), ("id",))
BORN = 1_700_000_000_000


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Publish a store with one view that has this declared freshness, and a watermark long ago."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mview.yml").write_text("store: data")

    def publish(freshness):
        promise = f"WITH (freshness='{freshness}')" if freshness else ""
        sql = f"CREATE MATERIALIZED VIEW v {promise} AS SELECT id, status FROM shop.orders"
        store = Store(tmp_path / "data")
        claim_store(store.root)
        view = parse_view(sql, "v")
        save_definition(store, view)
        state = ViewState(digest_of(view), "LINEAR", ORDERS, {"version": 3}, 1, rows=41)
        table = TableState(ORDERS, 0, 0, phase="loaded", rows=1234)
        ManifestLog(store.manifests).publish(
            Manifest(
                1,
                1,
                BORN,
                1,
                0,
                {},
                {},
                BORN,
                {rel("shop.orders"): table},
                {"v": state},
                cuts={"shop": Cut(BORN, None)},
            )
        )

    return publish


class FixedClock:
    def __init__(self, ms=BORN):
        self._ms = ms

    def now(self):
        return self._ms


def mview(*arguments, **options):
    return CliRunner().invoke(main, [*arguments, "-c", "mview.yml"], **options)


def test_an_empty_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mview.yml").write_text("store: data")
    result = mview("status")
    assert result.exit_code == 0
    assert result.stdout == f"store {tmp_path}/data: nobody runs it\nnothing was published yet\n"
    result = mview("status", "--check-freshness")
    assert result.exit_code == 5, "whoever is alerted by it is alerted by a store in a wrong place"
    assert "no view was published yet" in result.stderr
    assert mview("drop", "v", "--yes").exit_code == 1


def test_a_folder_that_is_no_store_is_told_from_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mview.yml").write_text("store: data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.txt").write_text("mine")
    commands = (("status",), ("drop", "v", "--yes"), ("repair", "v"), ("migrate",))
    for command in commands:
        result = mview(*command)
        assert result.exit_code == 2
        assert "not a store of mview" in result.stderr
    (tmp_path / "mview.yml").write_text("store: data/mine.txt")
    for command in commands:
        assert "mine.txt (a file)" in mview(*command).stderr


@pytest.mark.parametrize(("freshness", "code"), [("10 seconds", 5), ("900000 h", 0)])
def test_a_view_older_than_it_promised(publish, freshness, code):
    publish(freshness)
    result = mview("status")
    assert result.exit_code == 0
    assert ("MISSED" in result.stdout) is (code == 5)
    result = mview("status", "--check-freshness")
    assert result.exit_code == code
    assert ("v: older than promised" in result.stderr) is (code == 5)
    (view,) = json.loads(mview("status", "--json").stdout)["views"]
    assert view["missed"] is (code == 5)
    assert view["rows"] == 41


def fresh(**more):
    """A store that somebody runs, with a view that promised nothing and has no fault."""
    view = ViewStatus("v", "LINEAR", 1234, "/views/v", None, 800, False)
    return replace(StoreStatus("data", "process 7", 12, 1, 2, (), (view,)), **more)


def test_what_is_not_fresh_is_told_for_each_reason():
    assert not not_fresh(fresh())
    (view,) = fresh().views
    promised = replace(view, freshness_ms=10_000)
    assert not not_fresh(fresh(running=None, views=(promised,))), "it has its promise to go by"
    broken = SinkStatus("cache", "v", 3, 1, 10, 0, 0, error="refused")
    failure = Failure(BORN, 12, None, "MV3001", "the disk is full")
    light = LightStatus("l", "cache", "l", "live")
    away = SourceStatus("crm", 96_126, True, True)
    assert not not_fresh(fresh(sources=(replace(away, silent=False),))), "it may be silent"
    assert not not_fresh(fresh(sources=(away,), views=(promised,))), "it has its promise to go by"
    for more, reason in (
        ({"running": None}, "nobody runs the store, and v promises no freshness"),
        (
            {"running": None, "views": (), "lights": (light, replace(light, sink="other"))},
            "nobody runs the store, and l promises no freshness",
        ),
        ({"sources": (away,)}, "crm: nothing of its log was read for 96 s, and v promises no"),
        ({"failure": failure}, "the last run ended by an error: the disk is full"),
        ({"unbuilt": ("w",)}, "w: not built yet"),
        ({"views": (), "unbuilt": ("w",)}, "w: not built yet"),
        ({"views": ()}, "no view was published yet"),
        ({"views": (replace(view, halted="why"),)}, "v: halted"),
        ({"views": (replace(promised, missed=True),)}, "v: older than promised"),
        ({"views": (replace(view, sinks=(broken,)),)}, "v: sink cache does not get on"),
    ):
        (told,) = not_fresh(fresh(**more))
        assert reason in told


def test_for_whom_a_sink_waits_is_told_below_it():
    sink = SinkStatus("cache", "v", None, -1, 0, 0, 0, waits_for="target", waits_since_ms=1_000)
    line, waits = sink_lines([sink])
    assert "not filled yet" in line
    assert waits.strip() == (
        "waits for its target, which has not answered since 1970-01-01 00:00:01 UTC"
    )
    assert len(sink_lines([replace(sink, waits_for="", waits_since_ms=0)])) == 1
    (_, refused) = sink_lines([replace(sink, error="refused")])
    assert refused.strip() == "refused"


_PG = "{drivername: postgresql+psycopg, host: localhost, database: shop}"
_FILES = "{source: files, format: debezium, path: changes, T: 1s}"


@pytest.mark.parametrize(
    ("changes", "silent"),
    [
        ("{source: postgresql, T: 1s}", True),
        ("{source: files, format: debezium, path: changes, T: 1s}", False),
    ],
)
def test_a_database_that_is_away_is_not_fresh(publish, tmp_path, changes, silent):
    """Its own log tells the time when nothing changes; files may have nothing to tell."""
    publish(None)
    text = f"store: data\nconnections: {{shop: {_PG}}}\nchanges: {{shop: {changes}}}\n"
    (tmp_path / "mview.yml").write_text(text)
    store, now = Store(tmp_path / "data"), SystemClock().now()
    newest = replace(ManifestLog(store.manifests).latest(), epoch=2)
    with Lease(store.lease, SystemClock()):
        for epoch, age_ms, code in ((2, 5_000, 0), (3, 90_000, 5 if silent else 0)):
            cuts = {"shop": Cut(now - age_ms, True)}
            ManifestLog(store.manifests).publish(replace(newest, epoch=epoch, cuts=cuts))
            result = mview("status", "--check-freshness")
            assert result.exit_code == code, result.stderr
    assert ("shop: nothing of its log was read for" in result.stderr) is silent
    assert ("next:    mview lag" in result.stderr) is silent
    (source,) = json.loads(mview("status", "--json").stdout)["sources"]
    assert source["silent"] is silent


def test_a_connection_that_the_run_cannot_read_is_told(publish, tmp_path):
    publish(None)
    text = f"store: data\nconnections: {{shop: {_PG}}}\nchanges: {{shop: {_FILES}}}\n"
    (tmp_path / "mview.yml").write_text(text)
    store, since = Store(tmp_path / "data"), SystemClock().now() - 90_000
    told = {"shop": Away(since, "no answer")}
    with Lease(store.lease, SystemClock()) as replaced:
        write_away(store, replaced.token, told)
    assert "away" not in mview("status").stdout, "nobody runs it: nobody knows"
    with Lease(store.lease, SystemClock()) as lease:
        assert "away" not in mview("status").stdout, "this one has not said so"
        write_away(store, lease.token, told)
        assert "  shop" in mview("status").stdout
        assert "    away for 9" in mview("status").stdout
        (source,) = json.loads(mview("status", "--json").stdout)["sources"]
        assert (source["away"], source["away_since_ms"]) == ("no answer", since)
        assert source["silent"]
        (file,) = store.away.iterdir()
        file.write_text("{")
        assert "away" not in mview("status").stdout
        write_away(store, lease.token, told)
        write_away(store, lease.token, {})
        assert "away" not in mview("status").stdout
        # It was paused, and wakes up.
        write_away(store, replaced.token, told)
        assert "away" not in mview("status").stdout
        write_away(store, lease.token, {})
    assert not list(store.away.iterdir())


def test_views_that_are_asked_for_are_told_before_they_are_built(publish, tmp_path):
    publish(None)
    store = Store(tmp_path / "data")
    keep_asked(store, ["v", "later"])
    assert "later  asked for, not built yet" in mview("status").stdout
    assert json.loads(mview("status", "--json").stdout)["unbuilt"] == ["later"]
    assert "later: not built yet" in mview("status", "--check-freshness").stderr
    for file in store.manifests.iterdir():
        file.unlink()
    assert "asked for, not built yet: v" in mview("status").stdout
    store.asked.write_text("{")
    assert mview("status").exit_code == 0


def test_the_text_of_a_status_is_aligned():
    found = StoreStatus(
        "data",
        "process 7 on here",
        12,
        1,
        2,
        (TableStatus("shop.orders", "loading", 10, 3), TableStatus("shop.x", "loaded", 5, 1)),
        (ViewStatus("v", "LINEAR", 1234, "/views/v", 10_000, 800, False),),
        unbuilt=("later",),
    )
    lines = status_text(found).splitlines()
    assert lines[0] == "store data: process 7 on here"
    assert lines[1].startswith("epoch 12, published ")
    assert lines[3:] == [
        "tables",
        "  shop.orders  10 rows  loading, 3 chunks done",
        "  shop.x       5 rows   loaded",
        "",
        "views",
        "  later  asked for, not built yet",
        "  v      1,234 rows  LINEAR  lag 0.8 s of 10 s  /views/v",
    ]


FOLLOWED = Ran(2, "incremental", "0.3 % of shop.orders changed", "local", 4, 12, 8, 0.0123)
COMPUTED = Ran(
    3,
    "FULL",
    "41 % of shop.orders changed, estimated 0.9 s against 4.2 s",
    "spark",
    4_100,
    10_000,
    8_200,
    0.8,
)


def test_how_a_view_got_to_its_last_epochs(publish, tmp_path):
    publish(None)
    log = ManifestLog(Store(tmp_path / "data").manifests)
    assert "epoch 1," not in mview("status").stdout.split("views")[1]
    for ran in (FOLLOWED, COMPUTED):
        before = log.latest()
        view = before.views["v"]
        facts = with_run(view.facts, rel("v"), ran, Costs())
        views = {"v": replace(view, facts=facts)}
        log.publish(replace(before, epoch=ran.epoch, views=views))
    # An epoch in which nothing changed for the view.
    log.publish(replace(log.latest(), epoch=4))
    last = (
        "    epoch 3  FULL         spark  4,100 rows changed  10,000 read  0.80 s"
        "  41 % of shop.orders changed, estimated 0.9 s against 4.2 s"
    )
    first = (
        "    epoch 2  incremental  local  4 rows changed      12 read      0.01 s"
        "  0.3 % of shop.orders changed"
    )
    assert mview("status", "--history", "9").stdout.splitlines()[-2:] == [last, first]
    (line,) = [one for one in mview("status").stdout.splitlines() if "epoch 3" in one]
    assert line.split() == last.split()
    (view,) = json.loads(mview("status", "--history", "2", "--json").stdout)["views"]
    assert [(one["epoch"], one["strategy"]) for one in view["runs"]] == [
        (3, "FULL"),
        (2, "incremental"),
    ]
    assert mview("status", "--history", "-1").exit_code == 2


def test_an_error_that_ended_the_last_run_is_shown_until_an_epoch_follows(publish, tmp_path):
    publish(None)
    store = Store(tmp_path / "data")
    error = DecodeError(
        "a change message is not JSON",
        where="shop.orders/0, offset 7",
        got='{"id": 1, hush-hush',
        safe="nothing after it was taken",
        hint="look at what writes shop.orders",
    )
    mask = Mask(["hush-hush"])
    kept = failure_kept(store, 1, FixedClock(), mask)
    with pytest.raises(DecodeError), kept, concerning("table shop.orders"):
        raise error
    assert mview("status").stdout.splitlines()[3:9] == [
        "the last run ended by an error, 2023-11-14 22:13:20 UTC, table shop.orders:",
        "  a change message is not JSON",
        "    where:   shop.orders/0, offset 7",
        '    got:     {"id": 1, ******',
        "    data:    nothing after it was taken",
        "    next:    look at what writes shop.orders",
    ]
    shown = json.loads(mview("status", "--json").stdout)["failure"]
    assert (shown["subject"], shown["epoch"]) == ("table shop.orders", 1)
    assert "hush-hush" not in next(store.failures.iterdir()).read_text()
    log = ManifestLog(store.manifests)
    log.publish(replace(log.latest(), epoch=2))
    assert json.loads(mview("status", "--json").stdout)["failure"] is None


def new_store(root):
    claim_store(root)
    return Store(root)


def test_of_several_errors_all_are_kept(tmp_path):
    store, wrong = new_store(tmp_path), [UserError("no", where="a.sql:1"), UserError("nor this")]
    with pytest.raises(UserError), failure_kept(store, 1, FixedClock(), Mask([])):
        raise several(wrong, "views are refused")
    said = last_failure(store, 0).error.render()
    for part in ("2 views are refused:", "no\n", "a.sql:1", "nor this"):
        assert part in said


def test_the_newest_error_is_told(tmp_path):
    store = new_store(tmp_path)
    for token, ms in ((1, 2), (2, 3), (3, 1)):
        with pytest.raises(UserError), failure_kept(store, token, FixedClock(ms), Mask([])):
            raise UserError(f"at {ms}")
    assert last_failure(store, 0).what == "at 3"


def test_where_the_store_was_taken_away_nothing_is_put(tmp_path):
    store, away = new_store(tmp_path / "data"), tmp_path / "away"
    with pytest.raises(IsADirectoryError), failure_kept(store, 1, FixedClock(), Mask([])):
        store.root.rename(away).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["away"]


def test_which_ends_of_a_run_are_kept(tmp_path):
    store = new_store(tmp_path)
    with pytest.raises(ZeroDivisionError), failure_kept(store, 1, FixedClock(), Mask([])):
        1 / 0  # noqa: B018
    assert last_failure(store, 0).what == "unexpected ZeroDivisionError: division by zero"
    with pytest.raises(KeyboardInterrupt), failure_kept(store, 1, FixedClock(), Mask([])):
        raise KeyboardInterrupt
    assert last_failure(store, 0).what.startswith("unexpected")
    for token in (1, 2):  # also where the end of an older runner comes after its successor's
        with failure_kept(store, 2, FixedClock(), Mask([])):
            pass
        assert last_failure(store, 0) is None
        with pytest.raises(FencedError), failure_kept(store, token, FixedClock(), Mask([])):
            raise FencedError("taken over")
        assert last_failure(store, 0).what == "taken over"
    (store.failures / "00000000000000000009.json").write_text('{"at_ms": 1, "epo')
    assert last_failure(store, 0).what == "taken over"
    with failure_kept(store, 3, FixedClock(), Mask([])):
        pass
    assert last_failure(store, 0) is None


GOOD = VerifyResult("good", 9, 1234, True, (), ())
BAD = VerifyResult("bad", 9, 3, False, ({"id": 1, "n": None},), ({"id": 2, "n": 5},))


def test_the_text_of_a_verification():
    assert verified_text([GOOD, BAD]).splitlines() == [
        "good: OK, 1,234 rows equal at epoch 9",
        "bad: DIFFERS from its batch query at epoch 9",
        "  missing in the sink: id=1, n=NULL",
        "  only in the sink: id=2, n=5",
    ]


@pytest.mark.parametrize(("results", "code"), [([GOOD], 0), ([GOOD, BAD], 1)])
def test_verify_ends_with_1_when_a_view_differs(publish, tmp_path, monkeypatch, results, code):
    publish(None)
    (tmp_path / "v.sql").write_text("SELECT id FROM shop.orders")
    fake = SimpleNamespace(verify=lambda config, views: results)
    monkeypatch.setitem(sys.modules, "mview.admin.verify", fake)
    result = mview("verify", "v.sql")
    assert result.exit_code == code
    assert "good: OK" in result.stdout
    shown = json.loads(mview("verify", "v.sql", "--json").stdout)
    assert [one["equal"] for one in shown] == [one.equal for one in results]


def test_drop_says_what_goes_and_asks(publish, monkeypatch):
    publish(None)
    dropped = []
    monkeypatch.setattr(
        "mview.admin.drop.drop",
        lambda config, names, with_tables: dropped.append((*names, with_tables)) or Remains(),
    )
    kept = mview("drop", "v", input="n\n")
    assert kept.exit_code == 1
    assert kept.stdout.splitlines()[:2] == [
        "goes:  view v, 41 rows",
        "stays: our copy of shop.orders, 1,234 rows, kept up though no view reads it; "
        "to remove it: `mview drop shop.orders`",
    ]
    gone = mview("drop", "v", "--drop-tables", input="n\n").stdout
    assert "goes:  our copy of shop.orders, 1,234 rows" in gone
    assert "stays: view v, built anew" in mview("drop", "shop.orders", input="n\n").stdout
    asked = mview("drop", "v", "--json", input="n\n")
    assert (asked.stdout, asked.stderr.startswith("goes:  view v, 41 rows\n")) == ("", True)
    assert not dropped
    assert mview("drop", "v", input="y\n").exit_code == 0
    assert mview("drop", "v", "--yes", "--drop-tables").stdout.endswith("dropped: v, shop.orders\n")
    assert dropped == [("v", False), ("v", True)]


def test_a_drop_beside_a_run_is_refused_before_it_asks(publish, tmp_path):
    publish(None)
    with Lease(Store(tmp_path / "data").lease):
        for name in ("v", "shop.orders"):
            result = mview("drop", name, input="y\n")
            assert result.exit_code == 4
            assert "goes:" not in result.output
            assert "Drop that?" not in result.output
            assert ("mview apply --prune; or stop it" in result.stderr) is (name == "v")
        assert "there is no view or table 'w'" in mview("drop", "w").stderr


def test_an_unknown_view_to_drop_is_named(publish):
    publish(None)
    result = mview("drop", "vv", "--yes")
    assert result.exit_code == 1
    assert "there is no view or table 'vv'" in result.stderr
    assert "did you mean 'v'?" in result.stderr
