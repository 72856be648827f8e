"""A log, a marker or a plan that somebody changed by hand leads nowhere outside its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mview.clock import SourceMs
from mview.delta.actions import table_actions
from mview.delta.log import DeltaLog
from mview.delta.parquet import write_parquet
from mview.errors import CorruptionError
from mview.ingest.load_plan import LoadPlan, LoadStart, read_plan, write_plan
from mview.snapshot import ChunkPlan
from mview.store.mirror import Mirror
from tests.store.mirrors import SCHEMA, stage

ROWS = pa.table({"id": [1, 2]})
OUT = ("../secret.parquet", "a/../../secret.parquet", "%2E%2E/secret.parquet", "..\\secret.parquet")


def elsewhere(tmp_path: Path) -> list[str]:
    """Paths that lead to a file outside of a table."""
    pq.write_table(ROWS, tmp_path / "secret.parquet")
    absolute = str(tmp_path / "secret.parquet")
    return [*OUT, absolute, f"file:{absolute}", f"file://{absolute}", "s3://bucket/f.parquet", ""]


def table_in(folder: Path) -> DeltaLog:
    log = DeltaLog(folder)
    log.commit([], [], {"mview": "x"}, table=table_actions(ROWS.schema))
    log.commit([write_parquet(folder, "1.parquet", ROWS)], [], {"mview": "x"})
    return log


@pytest.mark.parametrize("action", ["add", "remove"])
def test_a_commit_that_names_files_elsewhere(tmp_path: Path, action: str) -> None:
    for number, path in enumerate(elsewhere(tmp_path)):
        folder = tmp_path / str(number)
        table_in(folder)
        foreign = folder / "_delta_log" / f"{2:020d}.json"
        foreign.write_text(json.dumps({action: {"path": path, "size": 1, "dataChange": True}}))
        with pytest.raises(CorruptionError, match="not in the table's folder") as caught:
            DeltaLog(folder).refresh()
        assert caught.value.where == str(foreign)
        DeltaLog(folder).drop()
        assert not list(folder.glob("**/*.parquet"))
    assert (tmp_path / "secret.parquet").exists()


def test_a_checkpoint_that_names_files_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    log = table_in(folder)
    for number in range(2, 102):
        log.commit([write_parquet(folder, f"{number}.parquet", ROWS)], [], {"mview": "x"})
    log.clean(101)
    (file,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    content = pq.read_table(file)
    rows = content.to_pylist()
    next(row["add"] for row in rows if row["add"])["path"] = "../e.parquet"
    pq.write_table(pa.Table.from_pylist(rows, content.schema), file)
    with pytest.raises(CorruptionError, match="not in the table's folder") as caught:
        DeltaLog(folder).refresh()
    assert caught.value.where == str(file)


def test_a_token_that_names_files_elsewhere(tmp_path: Path) -> None:
    log = table_in(tmp_path / "t")
    (file,) = log.head.files.values()
    for path in elsewhere(tmp_path):
        if "%" in path:  # a token has names as they are
            continue
        with pytest.raises(CorruptionError, match="not in the table's folder"):
            log.commit([replace(file, path=path)], [], {"mview": "x"})
    assert DeltaLog(tmp_path / "t").refresh().version == 1


def test_a_marker_that_names_files_elsewhere(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "m", SCHEMA)
    mirror.create()
    marker = stage(mirror, [("v", 1, "p", None)])
    outside = mirror.base.folder.parent / "f.parquet"
    (mirror.base.folder / marker.file).rename(outside)
    for path in ("../f.parquet", str(outside)):
        with pytest.raises(CorruptionError, match=r"(?s)not in the table's folder.*mview drop"):
            mirror.register(1, [replace(marker, file=path)], {})
    assert not mirror.base.refresh().files


def test_a_plan_that_somebody_changed(tmp_path: Path) -> None:
    file = tmp_path / "plans" / "t.json"
    plan = LoadPlan(
        LoadStart({}, -1, 0),
        ChunkPlan("s.t", ("id",), ((5,),), (9,), 9),
        {"t": "1"},
        {},
        SourceMs(7),
    )
    write_plan(file, plan)
    assert read_plan(file) == plan
    good = file.read_bytes()
    for bad in (good.replace(b"[9]", b"[4]"), good[:-9], b"", b"{}"):
        file.write_bytes(bad)
        with pytest.raises(CorruptionError, match=r"(?s)plan of a load.*mview drop") as caught:
            read_plan(file)
        assert caught.value.where == str(file)
