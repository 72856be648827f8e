"""What others do to a view's table: what changes no rows is taken in, the rest can be repaired."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mview.errors import CorruptionError, TargetError
from tests.connectors.sinks_contract import Driver, SinkContract
from tests.connectors.test_sinks_delta import DeltaHarness, VectorHarness
from tests.seeds import of_today

Act = Callable[[Path], object]


def optimize_without_statistics(folder: Path) -> None:
    """As writers do that are told not to collect them."""
    DeltaTable(folder).optimize.compact()
    commit = sorted((folder / "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


HARMLESS: dict[str, Act] = {
    "OPTIMIZE without statistics": optimize_without_statistics,
    "OPTIMIZE": lambda folder: DeltaTable(folder).optimize.compact(),
    "OPTIMIZE ZORDER": lambda folder: DeltaTable(folder).optimize.z_order(["g"]),
    "SET TBLPROPERTIES": lambda folder: DeltaTable(folder).alter.set_table_properties(
        {"delta.checkpointInterval": "7"}
    ),
    "checkpoint": lambda folder: DeltaTable(folder).create_checkpoint(),
    "VACUUM": lambda folder: DeltaTable(folder).vacuum(dry_run=False),
    "all of them": lambda folder: [
        HARMLESS[name](folder) for name in ("SET TBLPROPERTIES", "OPTIMIZE", "checkpoint", "VACUUM")
    ],
}


def delete_by_a_vector(folder: Path) -> None:
    """As Spark does where a table may have deletion vectors: they are in a file of their own."""
    log = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log[-1].read_text().splitlines()]
    add = next(action["add"] for action in actions if "add" in action)
    where = {"storageType": "u", "pathOrInlineDv": "ab^-aqEn[0TnwBH3:2M7", "offset": 1}
    vector = {**where, "sizeInBytes": 34, "cardinality": 1}
    info = {"operation": "DELETE", "engineInfo": "a vector by delta-rs"}
    theirs = [
        {"commitInfo": info},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": vector}},
    ]
    (folder / "_delta_log" / f"{len(log):020d}.json").write_text(
        "".join(json.dumps(action) + "\n" for action in theirs)
    )


HARMFUL: dict[str, Act] = {
    "DELETE by a vector": delete_by_a_vector,
    "DELETE": lambda folder: DeltaTable(folder).delete("k = 1"),
    "UPDATE": lambda folder: DeltaTable(folder).update(new_values={"g": "'theirs'"}),
    "DELETE, OPTIMIZE": lambda folder: (HARMFUL["DELETE"](folder), HARMLESS["OPTIMIZE"](folder)),
}


@pytest.fixture(
    params=[DeltaHarness, pytest.param(VectorHarness, marks=pytest.mark.long)],
)
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Driver:
    driver = Driver(request.param(tmp_path / "v"), SinkContract.SMALL)
    for number in range(4):
        driver.apply({(number, "a"): 1})
    return driver


@pytest.mark.parametrize("moment", ["between epochs", "staged", "stopped", "after a crash"])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_no_rows_is_taken_in(
    driver: Driver, tmp_path: Path, name: str, moment: str
) -> None:
    weights = {(1, "a"): -1, (1, "b"): 1, (2, "a"): -1, (9, "a"): 1}
    if moment == "between epochs":
        HARMLESS[name](tmp_path / "v")
        driver.check()
        driver.apply(weights)
    elif moment == "staged":
        token = driver.stage(weights)
        HARMLESS[name](tmp_path / "v")
        facts = driver.sink.commit(token)
        assert driver.sink.commit(token) == facts
        driver.publish(facts, weights)
    elif moment == "stopped":
        HARMLESS[name](tmp_path / "v")
        driver.restart()
        driver.sink.rollback(None, driver.published)
        driver.check()
        driver.restart()
        driver.apply(weights)
    else:
        token = driver.stage(weights)
        driver.sink.commit(token)
        HARMLESS[name](tmp_path / "v")
        driver.restart()
        facts = driver.sink.commit(token)
        driver.publish(facts, weights)
        driver.restart()
        driver.sink.rollback(None, facts)
    driver.check()
    driver.restart()
    driver.apply({(3, "a"): -1})
    driver.check()
    if "TBL" in name or "all" in name:
        settings = DeltaTable(tmp_path / "v").metadata().configuration
        assert settings["delta.checkpointInterval"] == "7"
        assert settings["mview.view"] == "v"


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("running", [True, False])
def test_what_changes_rows_halts_and_is_repaired(
    driver: Driver, tmp_path: Path, name: str, running: bool
) -> None:
    assert driver.published is not None
    HARMFUL[name](tmp_path / "v")
    assert driver.sink.rows(driver.published).num_rows == 4
    if not running:
        driver.restart()
    with pytest.raises(TargetError, match=r"(?s)changed rows.*`mview repair v`"):
        driver.stage({(9, "a"): 1})
    driver.restart()
    with pytest.raises(TargetError, match=r"(?s)version [45].*by delta-rs"):
        driver.sink.rollback(None, driver.published)
    with pytest.raises(TargetError):
        driver.sink.stage_full(5, [])
    driver.restart()
    for _ in range(2):
        assert driver.sink.repair(driver.published)
        driver.check()
    driver.restart()
    driver.sink.rollback(None, driver.published)
    driver.restart()
    driver.apply({(1, "a"): -1, (9, "a"): 1})
    driver.check()


@pytest.mark.parametrize("others", [False, True])
def test_a_published_commit_whose_note_is_damaged_is_repaired(
    driver: Driver, tmp_path: Path, others: bool
) -> None:
    """Nobody can say any more that it is ours, but what was published names it."""
    assert driver.published is not None
    commit = tmp_path / "v" / "_delta_log" / f"{driver.published['version']:020d}.json"
    good = commit.read_bytes()
    commit.write_bytes(good.replace(rb"\"mview\"", rb"\"mvieu\""))
    assert commit.read_bytes() != good
    if others:
        HARMFUL["DELETE"](tmp_path / "v")
    driver.restart()
    with pytest.raises(TargetError, match=r"(?s)changed rows.*`mview repair v`"):
        driver.stage({(9, "a"): 1})
    driver.restart()
    for _ in range(2):
        assert driver.sink.repair(driver.published)
        driver.check()
    driver.restart()
    driver.sink.rollback(None, driver.published)
    driver.apply({(1, "a"): -1, (9, "a"): 1})
    driver.check()


@pytest.mark.parametrize("moment", ["plan", "_commit"])
def test_cleaning_beside_an_epoch_takes_nothing_in(
    driver: Driver, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread cleans while rows are staged or committed, just after somebody's DELETE."""
    assert driver.published is not None
    sink, published = driver.sink, driver.published
    owner = sink._rewriter if moment == "plan" else sink
    step = getattr(owner, moment)

    def beside(*args: Any, **more: Any) -> Any:
        HARMFUL["DELETE"](tmp_path / "v")
        sink.maintain(published, [])
        return step(*args, **more)

    monkeypatch.setattr(owner, moment, beside)
    with pytest.raises(TargetError, match="somebody else changed rows"):
        sink.commit(driver.stage({(9, "a"): 1}))
    driver.restart()
    assert driver.sink.repair(published)
    driver.check()


def test_a_table_that_is_not_whole_any_more_is_built_anew(driver: Driver, tmp_path: Path) -> None:
    assert driver.published is not None
    HARMFUL["UPDATE"](tmp_path / "v")
    DeltaTable(tmp_path / "v").vacuum(0, dry_run=False, enforce_retention_duration=False)
    driver.restart()
    assert not driver.sink.repair(driver.published)
    driver.restart()
    driver.publish(driver.sink.commit(driver.sink.stage_full(5, [])), {})
    driver.model.clear()
    driver.before = None  # of it, nothing is there to compare
    driver.check()


@pytest.mark.parametrize("gone", ["*", "_delta_log", "_delta_log/*3.json"])
def test_nothing_is_written_after_what_is_gone(tmp_path: Path, gone: str) -> None:
    """Rows that only come look at no file: the next version would stand alone in the log."""
    driver = Driver(DeltaHarness(tmp_path / "v"), SinkContract.KEYLESS)
    for number in range(4):
        driver.apply({(number, "a", None, None): 1})
    for path in [*(tmp_path / "v").glob(gone)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(CorruptionError, match="cannot be read"):
        driver.apply({(9, "a", None, None): 1})
    log = tmp_path / "v" / "_delta_log"
    assert not [*log.glob("*4.json")]
    assert driver.published is not None
    driver.restart()
    assert not driver.sink.repair(driver.published)
    driver.restart()
    driver.publish(driver.sink.commit(driver.sink.stage_full(5, [])), {})
    driver.model.clear()
    driver.before = None  # of it, nothing is there to compare
    driver.check()
    assert DeltaTable(tmp_path / "v").metadata().id


def test_a_readers_epoch_survives_optimize_and_vacuum(driver: Driver, tmp_path: Path) -> None:
    assert driver.published is not None
    HARMLESS["OPTIMIZE"](tmp_path / "v")
    DeltaTable(tmp_path / "v").vacuum(0, dry_run=False, enforce_retention_duration=False)
    driver.restart()
    driver.before = None  # the vacuum kept files of the newest epoch alone
    driver.check()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("harness", of_today([DeltaHarness, VectorHarness], 2))
def test_spark_on_our_table(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    harness: type[DeltaHarness],
) -> None:
    folder = tmp_path / "v"
    driver = Driver(harness(folder), SinkContract.KEYED)

    def row(number: int, text: str) -> tuple[object, ...]:
        return (number, text, *[None] * (len(driver.schema.names) - 2))

    for number in range(4):
        driver.apply({row(number, "a"): 1})
    table = f"delta.`{folder}`"
    # Closed in our own sessions; theirs name a table by its path.
    spark.conf.set("spark.sql.runSQLOnFiles", "true")
    request.addfinalizer(lambda: spark.conf.set("spark.sql.runSQLOnFiles", "false"))
    for text in (
        # Spark's VACUUM does not know vectors that stand in the log: it fails, and deletes nothing.
        f"VACUUM {table}" if harness is DeltaHarness else f"OPTIMIZE {table} ZORDER BY (k)",
        # From here on Spark writes checkpoints, too.
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')",
        f"OPTIMIZE {table}",
    ):
        spark.sql(text)
        driver.check()
        driver.apply(
            {row(driver.epoch + 10, "b"): 1, row(driver.epoch % 4, "a"): -1}
            if driver.epoch < 8
            else {row(driver.epoch + 10, "b"): 1}
        )
        driver.check()
        driver.restart()
        driver.sink.rollback(None, driver.published)
        driver.check()
    assert spark.read.format("delta").load(str(folder)).count() == len(driver.model)
    for text in (
        f"DELETE FROM {table} WHERE k = 15",
        f"ALTER TABLE {table} ADD COLUMNS (extra int)",
        f"UPDATE {table} SET g = 'theirs'",
    ):
        spark.sql(text)
        driver.restart()
        with pytest.raises(TargetError, match="somebody else changed"):
            driver.stage({row(1, "z"): 1})
        assert driver.published is not None
        assert driver.sink.repair(driver.published)
        driver.restart()
        driver.sink.rollback(None, driver.published)
        driver.check()
        driver.apply({row(100 + driver.epoch, "c"): 1})
        driver.check()
    frame = spark.read.format("delta").load(str(folder))
    assert frame.columns == list(driver.schema.names)
    assert frame.count() == len(driver.model)
