"""Changes that cannot be taken are put aside, once, and come back; the table's others go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from mview.admin.content import StoredView, published
from mview.admin.mending.backfill import backfill
from mview.admin.mending.quarantine import QuarantinedChange, mend, quarantined
from mview.admin.status import not_fresh, status
from mview.admin.verify import verify
from mview.cli import main
from mview.cli.render import status_text, verified_text
from mview.config import Config
from mview.config.file import load_config
from mview.errors import DataLostError, UserError
from mview.failpoints import FaultError, armed
from mview.store.layout import Store
from tests.e2e.running import Live, run_once, views_of
from tests.e2e.shop import Shop
from tests.relations import rel
from tests.seeds import of_today

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

VIEWS = {
    "bodies": "select id, body from shop.notes",
    "lengths": "select id, length(body) as n from bodies",
    "codes": "select code, price from shop.products",
}


@pytest.fixture
def shop(tmp_path: Path, loaded_shop: Callable[[Path], Shop]) -> Iterator[Shop]:
    shop = loaded_shop(tmp_path)
    shop.insert("notes", {"id": 1, "body": "one"})
    shop.heartbeat()
    yield shop
    shop.close()


def with_quarantine(shop: Shop, **settings: Any) -> Config:
    file = shop.config().path
    body = yaml.safe_load(file.read_text())
    body["changes"]["shop"] |= {"on_error": "quarantine", **settings}
    file.write_text(yaml.safe_dump(body))
    return load_config(file)


def bodies(config: Config) -> dict[int, str]:
    rows = StoredView(config, "bodies").arrow().to_pylist()
    return {row["id"]: row["body"] for row in rows}


def raw(shop: Shop, text: str) -> None:
    with shop.file.open("a") as file:
        file.write(text + "\n")


def wrong(shop: Shop, key: int, body: object = 5) -> None:
    """A change whose text is a number: the row in the database has it as text."""
    shop.log(table="notes", op="update", after={"id": key, "body": body})


def test_a_change_that_does_not_fit_is_put_aside_and_the_others_go_on(shop: Shop) -> None:
    config, views = with_quarantine(shop), views_of(**VIEWS)
    wrong(shop, 2)
    shop.insert("notes", {"id": 3, "body": "three"})
    notes = run_once(config, *views)
    assert bodies(config) == {1: "one", 3: "three"}
    (told,) = (text for text in notes.messages if "put into quarantine" in text)
    assert "mview quarantine list" in told
    assert "table notes)" in told, "its place in the log"
    (change,) = quarantined(config, with_messages=True)
    assert change.table == "shop.notes"
    assert "cannot hold the value" in change.what
    assert [dict(key) for key in change.keys] == [{"id": "2"}]
    assert change.way == "retry"
    assert json.loads(str(change.message))["after"] == {"id": 2, "body": 5}
    # Whoever reads the table is told, through views, and nobody else.
    told = {view.name: view.degraded for view in status(config).views}
    assert told == {
        "bodies": "1 change of shop.notes is in quarantine",
        "lengths": "1 change of shop.notes is in quarantine",
        "codes": "",
    }
    assert "DEGRADED: 1 change of shop.notes is in quarantine" in status_text(status(config))
    assert "bodies: degraded: 1 change of shop.notes is in quarantine" in not_fresh(status(config))
    results = verify(config, views)
    assert all(result.equal for result in results)
    assert {r.view for r in results if not r.is_right} == {"bodies", "lengths"}
    assert "bodies: DEGRADED" in verified_text(results)
    # A second run does not put it aside again; what is wrong still is told once more.
    run_once(config)
    assert [change.id for change in quarantined(config)] == [change.id]
    assert mend(config, "retry", "shop.notes", [], lambda _: None)[0].state == "asked"
    run_once(config)
    (again,) = quarantined(config)
    assert (again.id, again.tried_ms > 0) == (change.id, True)
    assert mend(config, "discard", "shop.notes", [change.id], lambda _: None)[0].state == "asked"
    run_once(config)
    assert quarantined(config) == []
    assert all(result.is_right for result in verify(config, views))
    # The store may go back by one epoch.
    folder = Store(config.store).quarantined(rel("shop.notes"))
    assert len([*folder.glob("*.list.json")]) == 1
    shop.insert("notes", {"id": 9, "body": "nine"})
    run_once(config)
    assert not [*folder.glob("*.json")]


def test_taken_again_a_newer_change_of_its_key_wins(shop: Shop, monkeypatch: Any) -> None:
    """The format learns to read what it could not; all of it while the run goes on."""
    from mview_connectors.formats.unified import UnifiedFormat

    config, views = with_quarantine(shop), views_of(bodies=VIEWS["bodies"])
    running = Live(config, *views)
    try:
        running.until(lambda: shop.heartbeat() or _is_built(config))
        for key in (1, 2, 4):
            wrong(shop, key)
        shop.insert("notes", {"id": 2, "body": "newer"})
        shop.log(table="notes", op="insert", after={"id": 3, "body": "three"})
        running.until(lambda: shop.heartbeat() or len(quarantined(config)) == 3)
        running.until(lambda: shop.heartbeat() or bodies(config).get(3) == "three")
        assert bodies(config) == {1: "one", 2: "newer", 3: "three"}
        assert [change.way for change in quarantined(config)] == ["retry", "newer", "retry"]
        (answer,) = mend(config, "retry", "shop.notes", [quarantined(config)[0].id], print)
        assert (answer.state, "cannot hold" in answer.why) == ("stays", True)
        convert = UnifiedFormat.convert

        def lenient(self: Any, values: Any, column: Any) -> Any:
            texts = [str(v) if type(v) is int and column.name == "body" else v for v in values]
            return convert(self, texts, column)

        monkeypatch.setattr(UnifiedFormat, "convert", lenient)
        answers = mend(config, "retry", "shop.notes", [], print)
        assert [answer.state for answer in answers] == ["taken", "overtaken", "taken"]
        assert bodies(config) == {1: "5", 2: "newer", 3: "three", 4: "5"}
        assert quarantined(config) == []
        assert not any(view.degraded for view in status(config).views)
    finally:
        running.stop()
    assert running.error is None
    assert all(result.is_right for result in verify(config, views))


def _is_built(config: Config) -> bool:
    return {view.name: view.rows for view in status(config).views} == {"bodies": 1}


@pytest.mark.long
def test_a_message_whose_key_is_unknown_needs_its_table_read_anew(shop: Shop) -> None:
    config, views = with_quarantine(shop), views_of(bodies=VIEWS["bodies"])
    run_once(config, *views)
    with shop._lock:
        shop._insert("notes", {"id": 7, "body": "seven"})
    raw(shop, '{"table": "notes", "op": "insert", "after": {"id": 7, "bo')
    shop.insert("notes", {"id": 8, "body": "eight"})
    run_once(config)
    assert bodies(config) == {1: "one", 8: "eight"}
    # Nobody knows of which table it was.
    changes = quarantined(config)
    assert {(change.table, change.way) for change in changes} == {
        (str(name), "backfill") for name in published(config).source_tables
    }
    assert status(config).views[0].degraded == "1 change of shop.notes is in quarantine"
    (change,) = quarantined(config, ["shop.notes"])
    with pytest.raises(UserError, match="its key is unknown") as caught:
        mend(config, "retry", "shop.notes", [change.id], print)
    assert "mview backfill shop.notes" in str(caught.value)
    assert backfill(config, ["shop.notes"], print)[0].state == "asked"
    run_once(config)
    run_once(config)
    assert bodies(config) == {1: "one", 7: "seven", 8: "eight"}
    assert quarantined(config, ["shop.notes"]) == []
    assert all(result.is_right for result in verify(config, views))


@pytest.mark.long
def test_no_more_is_put_aside_than_may_be(shop: Shop) -> None:
    config, views = with_quarantine(shop, quarantine_changes=2), views_of(**VIEWS)
    run_once(config, *views)
    for key in (2, 3):
        wrong(shop, key)
    run_once(config)
    assert len(quarantined(config)) == 2
    wrong(shop, 4)
    shop.insert("products", {"code": "after", "price": "1.00"})
    with pytest.raises(UserError, match="the quarantine of connection shop is full") as caught:
        run_once(config)
    assert "quarantine_changes" in str(caught.value)
    assert "or allow more of them under changes.shop; then `mview apply`" in str(caught.value)
    # The table halts, alone; loaded anew it has all, and nothing of it is in quarantine.
    assert {v.name for v in status(config).views if v.halted} == {"bodies", "lengths"}
    assert "after" in StoredView(config, "codes").arrow()["code"].to_pylist()
    run_once(config)
    assert quarantined(config) == []
    assert all(result.is_right for result in verify(config, views))


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("after-net", marks=pytest.mark.long),
        "after-intent",
        "after-publish",
        pytest.param("after-clear", marks=pytest.mark.long),
    ],
)
def test_a_run_that_ends_anywhere_puts_it_aside_once(shop: Shop, place: str) -> None:
    config, views = with_quarantine(shop), views_of(**VIEWS)
    run_once(config, *views)
    wrong(shop, 2)
    shop.insert("notes", {"id": 3, "body": "three"})

    def end() -> None:
        raise FaultError

    with armed(place, end) as hit, pytest.raises(FaultError):
        run_once(config)
    assert hit.is_set()
    run_once(config)
    assert bodies(config) == {1: "one", 3: "three"}
    (change,) = quarantined(config)
    assert change.way == "retry"
    # And it goes once, wherever the run ends that lets it go.
    mend(config, "discard", "shop.notes", [change.id], print)
    shop.insert("notes", {"id": 4, "body": "four"})
    with armed(place, end), pytest.raises(FaultError):
        run_once(config)
    run_once(config)
    assert quarantined(config) == []
    assert bodies(config) == {1: "one", 3: "three", 4: "four"}
    shop.insert("notes", {"id": 5, "body": "five"})
    run_once(config)  # the store might have gone back by one epoch until then
    left = [file for file in Store(config.store).quarantine.rglob("*") if file.is_file()]
    assert left == []


def test_what_is_asked_for_is_done_though_the_log_is_lost(shop: Shop) -> None:
    config, views = with_quarantine(shop), views_of(bodies=VIEWS["bodies"])
    wrong(shop, 2)
    run_once(config, *views)
    (change,) = quarantined(config)
    mend(config, "discard", "shop.notes", [change.id], print)
    shop.file.write_text("")
    with pytest.raises(DataLostError):
        run_once(config)
    assert quarantined(config) == []


#: Where a process is killed: what an epoch passes that puts something aside, from its changes on.
KILLED = ["after-net", "after-mirrors", "after-stage", "after-intent", "after-sink", "file-linked",
          "after-publish", "after-clear"]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("place", of_today(KILLED, 8))
def test_a_process_that_is_killed_puts_it_aside_once(shop: Shop, place: str) -> None:
    config, views = with_quarantine(shop), views_of(bodies=VIEWS["bodies"])
    run_once(config, *views)
    wrong(shop, 2)
    shop.insert("notes", {"id": 3, "body": "three"})
    (shop.root / "bodies.sql").write_text(VIEWS["bodies"])

    def process(fault: str) -> int:
        command = [sys.executable, "-m", "mview", "run", "bodies.sql", "--once", "-c", "mview.yml"]
        env = {**os.environ, "MVIEW_FAILPOINT": fault}
        return subprocess.run(command, cwd=shop.root, env=env, capture_output=True).returncode

    # A take-over is an epoch, too: that of the changes comes behind `after-net`.
    assert process(place if place == "after-net" else f"after-net>{place}") == -signal.SIGKILL
    run_once(config)
    assert bodies(config) == {1: "one", 3: "three"}
    (change,) = quarantined(config)
    mend(config, "discard", "shop.notes", [change.id], print)
    shop.insert("notes", {"id": 4, "body": "four"})
    assert process(place if place == "after-net" else f"after-net>{place}") == -signal.SIGKILL
    run_once(config)
    assert quarantined(config) == []
    assert bodies(config) == {1: "one", 3: "three", 4: "four"}


@pytest.mark.long
def test_what_is_put_aside_while_the_table_is_loaded(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    try:
        shop.insert("notes", {"id": 1, "body": "one"})
        config, views = with_quarantine(shop), views_of(bodies=VIEWS["bodies"])
        running = Live(config, *views)
        try:
            # Changes go on all along: some stand in the log before the load, some behind.
            number = 10

            def more() -> bool:
                nonlocal number
                number += 1
                wrong(shop, number)
                shop.insert("notes", {"id": 1_000 + number, "body": "x"})
                shop.heartbeat()
                return _has_rows(config)

            running.until(more)
            running.to_the_end(shop)
        finally:
            running.stop()
        assert running.error is None
        # Those before the load are in what was read of the database.
        keys = {key["id"] for change in quarantined(config) for key in change.keys}
        assert keys
        assert keys <= {str(n) for n in range(11, number + 1)}
        assert set(bodies(config)) == {1} | {1_000 + n for n in range(11, number + 1)}
    finally:
        shop.close()


def _has_rows(config: Config) -> bool:
    try:
        return bool(bodies(config))
    except UserError:
        return False


def test_the_command(shop: Shop) -> None:
    config, views = with_quarantine(shop), views_of(bodies=VIEWS["bodies"])
    at = ["--config", str(config.path)]

    def said(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["quarantine", *words, *at])
        assert result.exit_code == code, result.output
        return result.output

    run_once(config, *views)
    assert said("list") == "nothing is in quarantine\n"
    assert "nothing of shop.notes" in said("retry", "shop.notes")
    wrong(shop, 2)
    run_once(config)
    (change,) = quarantined(config)
    assert isinstance(change, QuarantinedChange)
    shown = said("list")
    assert f"shop.notes {change.id}: id=2, since" in shown
    assert f"next: `mview quarantine retry shop.notes {change.id}`" in shown
    assert json.loads(said("list", "--json"))[0]["id"] == change.id
    assert '"body": 5' in said("list", "shop.notes", "--messages")
    assert "no table shop.nots" in said("list", "shop.nots", code=1)
    assert "no change 9.9" in said("discard", "shop.notes", "9.9", code=1)
    assert "name the table" in said("retry", code=2)
    assert "asked, nobody runs the store" in said("retry", "shop.notes", change.id)
    run_once(config)
    result = CliRunner().invoke(main, ["status", "--check-freshness", *at])
    assert result.exit_code == 5, result.output
    assert "bodies: degraded" in result.output
