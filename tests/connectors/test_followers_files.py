"""Folders of files as sinks: the contract, read back by DuckDB and pandas; ages; types."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from mview_connectors.followers.files.follower import FilesFollower, FilesSettings

from mview.errors import ConfigError, ElsewhereError, RetryableError, TargetError, UserError
from mview.follower import Follower, FollowerSettings, FollowerTarget
from mview.schema import Column, TableSchema, type_name
from mview.testing import FollowerContract, FollowerHarness
from mview.testing.contract import normal, raised, raised_or_not, schema_of
from mview.testing.view import Row, rows_of


class FilesHarness(FollowerHarness):
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.more = folder, settings

    def settings(self, **options: Any) -> FollowerSettings:
        return FilesSettings(type="files", path=str(self.folder), **{**self.more, **options})

    def open(self, target: FollowerTarget) -> Follower:
        return FilesFollower(target)

    def read(self, target: FollowerTarget) -> list[Row] | None:
        folder = self.folder / target.table
        manifests = sorted(folder.glob("manifests/*.json"))
        if not manifests:
            return None
        if target.settings.mode == "changelog":
            return changed(folder, target)
        newest = json.loads(manifests[-1].read_text())
        assert newest["columns"] == [
            {"name": c.name, "type": type_name(c.type)} for c in target.schema.columns
        ]
        files = [folder / file["path"] for file in newest["files"]]
        return rows_of(found_in(files, target)) if files else []

    def foreign(self, target: FollowerTarget) -> bool:
        folder = self.folder / target.table
        folder.mkdir()
        (folder / "mine.csv").write_text("k,g,amount,at\n1,x,1,\n")
        return True

    def backup(self, target: FollowerTarget) -> Callable[[], None]:
        folder, copy = self.folder / target.table, self.folder / "_copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)

        def restore() -> None:
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)

        return restore

    def drop(self, target: FollowerTarget) -> bool:
        shutil.rmtree(self.folder / target.table)
        return True

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        """As of a network file system."""
        link = os.link

        def lost(old: Path, new: Path) -> None:
            link(old, new)
            raise FileExistsError(new)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "link", lost)
            yield


#: DuckDB's types of ours, where another name or form is meant.
_TYPES = {
    "string": "VARCHAR",
    "binary": "VARCHAR",
    "float": "REAL",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "array<string>": "VARCHAR[]",
    "array<bigint>": "BIGINT[]",
}
_CSV = (
    "header=true, delim=',', quote='\"', escape='\"', nullstr='', allow_quoted_nulls=false, "
    "auto_detect=false"
)


def found_in(files: list[Path], target: FollowerTarget, *more: str) -> pa.Table:
    """What DuckDB finds in files: the view's columns, and more of them."""
    schema, form = target.schema, target.settings.format
    types = {name: _TYPES.get(type_name(c.type), type_name(c.type)) for name, c in named(schema)}
    if more:
        types = {"__kind": "VARCHAR", **types, "__epoch": "BIGINT"}
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    fields = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    reading = {
        "parquet": "read_parquet($1)",
        "csv": f"read_csv($1, columns={{{fields}}}, {_CSV})",
        "jsonl": f"read_json($1, columns={{{fields}}}, format='newline_delimited')",
    }[form]
    columns = []
    for name in (*schema.names, *more):
        quoted = '"' + name.replace('"', '""') + '"'
        is_text = form != "parquet" and name in schema.names
        if is_text and type_name(schema.column(name).type) == "binary":
            quoted = f"from_base64({quoted})"
        columns.append(quoted)
    sql = f"SELECT {', '.join(columns)} FROM {reading}"
    return connection.sql(sql, params=[[str(file) for file in files]]).to_arrow_table()


def named(schema: TableSchema) -> list[tuple[str, Column]]:
    return [(column.name, column) for column in schema.columns]


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def changed(folder: Path, target: FollowerTarget) -> list[Row]:
    """What the changes come to; each old row must be what was there."""
    manifests = [json.loads(file.read_text()) for file in sorted(folder.glob("manifests/*.json"))]
    numbers = [int(file.stem) for file in sorted(folder.glob("manifests/*.json"))]
    begins = manifests[-1]["begins"]
    content: dict[Any, Row] = {}
    places = [target.schema.names.index(name) for name in target.schema.key]
    last = 0
    for number, manifest in zip(numbers, manifests, strict=True):
        if number < begins or not manifest["files"]:
            continue
        assert len(manifest["files"]) == 1
        files = [folder / file["path"] for file in manifest["files"]]
        rows = rows_of(found_in(files, target, "__kind", "__epoch"))
        assert len(rows) == manifest["files"][0]["rows"]
        assert {row[-1] for row in rows} <= {manifest["epoch"]}
        assert manifest["epoch"] > last
        last = manifest["epoch"]
        for *row, kind, _ in rows:
            (normalized,) = normal([row])
            key = tuple(normalized[place] for place in places)
            if kind[0] == "-":
                assert content.pop(key) == normalized
            else:
                assert key not in content
                content[key] = normalized
    return list(content.values())


class TestParquet(FollowerContract):
    steps, share = 30, 4

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FilesHarness(tmp_path)


@pytest.mark.long
class TestCsv(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FilesHarness(tmp_path, format="csv")


@pytest.mark.long
class TestJsonLines(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FilesHarness(tmp_path, format="jsonl")


@pytest.mark.long
class TestBuckets(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FilesHarness(tmp_path, buckets=7)


@pytest.mark.long
class TestChangelogParquet(FollowerContract):
    steps, share = 20, 8

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FollowerHarness:
        return FilesHarness(tmp_path, mode="changelog")


# --- what is there for readers -------------------------------------------------------------------


def test_changes_as_csv_and_json_lines(tmp_path: Path) -> None:
    for form in ("csv", "jsonl"):
        harness = FilesHarness(tmp_path / form, mode="changelog", format=form)
        with FollowerContract().filled(harness) as world:
            world.view.publish([world.row(1, "b"), world.row(9, None)], [(2,)])
            world.sync()
            world.check()
            folder = tmp_path / form / "t"
            *_, newest = sorted(folder.glob("manifests/*.json"))
            (file,) = json.loads(newest.read_text())["files"]
            whole = (folder / file["path"]).read_text()
            assert "-U" in whole
            assert whole.index("-U") < whole.index("+U")


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_pandas_reads_what_the_newest_manifest_lists(tmp_path: Path, form: str) -> None:
    with FollowerContract().filled(FilesHarness(tmp_path, format=form, buckets=3)) as world:
        folder = tmp_path / "t"
        newest = json.loads(max(folder.glob("manifests/*.json")).read_text())
        assert newest["epoch"] == world.view.epoch
        assert newest["key"] == ["k"]
        files = [folder / file["path"] for file in newest["files"]]
        if form == "parquet":
            parts = [pd.read_parquet(file) for file in files]
        elif form == "csv":
            parts = [pd.read_csv(file, dtype={"amount": str}) for file in files]
        else:
            parts = [pd.read_json(file, lines=True, dtype={"amount": False}) for file in files]
        whole = pd.concat([part for part in parts if len(part)])
        assert sorted(whole["k"]) == [0, 1, 2, 3, 4]
        assert {Decimal(str(amount)) for amount in whole["amount"]} == {
            Decimal(n) / 100 for n in range(5)
        }
        whole["at"] = pd.to_datetime(whole["at"], utc=True)
        micros = sorted(at.value // 1000 for at in whole["at"])
        assert micros == [1_700_000_000_000_000 + n for n in range(5)]


def test_a_step_writes_the_buckets_that_it_changes_only(tmp_path: Path) -> None:
    with FollowerContract().filled(FilesHarness(tmp_path, buckets=8), rows=100) as world:
        before = named_by(tmp_path / "t")
        world.view.publish([world.row(1, "b")])
        world.sync()
        after = named_by(tmp_path / "t")
        assert len(before) == len(after) == 8
        assert len(before & after) == 7
        world.check()


def named_by(folder: Path) -> set[str]:
    newest = json.loads(max(folder.glob("manifests/*.json")).read_text())
    return {file["path"] for file in newest["files"]}


def age(folder: Path, ms: int) -> None:
    """Have all that is there be so much older."""
    for file in folder.rglob("*.*"):
        at = file.stat().st_mtime_ns - ms * 1_000_000
        os.utime(file, ns=(at, at))


def test_no_file_goes_that_a_manifest_names_after_a_copy_was_put_back(tmp_path: Path) -> None:
    """Beside a run: other manifests come under the numbers of those that it knew."""
    with FollowerContract().filled(FilesHarness(tmp_path, keep=0)) as world:
        restore = world.harness.backup(world.target())
        assert restore is not None
        world.view.publish([world.row(1, "lost")])
        world.sync()
        restore()
        world.view.publish([world.row(2, "kept")])
        raised(world.sync, ElsewhereError)
        world.sync()
        world.faulty.maintain(thorough=True)
        world.check()


def test_what_is_old_goes_and_what_is_new_stays(tmp_path: Path) -> None:
    with FollowerContract().filled(FilesHarness(tmp_path, keep="1 min")) as world:
        folder = tmp_path / "t"
        for number in range(3):
            world.view.publish([world.row(1, f"old {number}")])
            world.sync()
        (folder / "data" / "aborted-0000.parquet").write_bytes(b"")
        killed, writing = (folder / "manifests" / f"_{letter * 32}.tmp" for letter in "0f")
        killed.write_bytes(b"{")
        age(folder, 120_000)
        writing.write_bytes(b"{")
        kept = named_by(folder)
        world.view.publish([world.row(1, "new")])
        world.sync()
        world.faulty.maintain(thorough=True)
        # The last old one was the newest until now: who has just read it still needs its files.
        names = {f"data/{file.name}" for file in (folder / "data").iterdir()}
        assert names == kept | named_by(folder)
        assert len(list(folder.glob("manifests/*.json"))) == 2
        assert list(folder.glob("manifests/_*")) == [writing]
        world.check()
        world.start()
        world.sync()
        world.check()


def test_a_file_that_somebody_has_deleted_is_made_anew(tmp_path: Path) -> None:
    with FollowerContract().filled(FilesHarness(tmp_path, buckets=2), rows=20) as world:
        (tmp_path / "t" / min(named_by(tmp_path / "t"))).unlink()
        world.view.publish([world.row(number, "b") for number in range(20)])
        assert "is filled anew" in str(raised(world.sync, RetryableError))
        world.sync()
        world.check()
        (tmp_path / "t" / min(named_by(tmp_path / "t"))).unlink()
        world.start()
        world.sync()
        world.check()


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("parquet", lambda _: b"PAR1 nothing PAR1"),
        ("parquet", lambda content: bytes(len(content))),
        # As whole lines are gone, all that is there can be read.
        ("jsonl", lambda content: content[content.index(b"\n") + 1 :]),
        ("csv", lambda content: content[: content.rindex(b"\n", 0, -1) + 1]),
    ],
)
def test_a_file_that_is_damaged_is_told_with_what_to_do(
    tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    with FollowerContract().filled(FilesHarness(tmp_path, format=kind)) as world:
        (file,) = named_by(tmp_path / "t")
        content = (tmp_path / "t" / file).read_bytes()
        (tmp_path / "t" / file).write_bytes(damage(content))
        raised(lambda: rows_of(world.faulty.read()), TargetError)
        world.view.publish([world.row(1, "b")])
        told = raised(world.sync, TargetError)
        assert (told.where, told.hint) == (
            str(tmp_path / "t" / file),
            "delete that file: the folder is filled anew",
        )
        (tmp_path / "t" / file).unlink()
        world.start()
        world.sync()
        world.check()


def test_changes_stay_unless_an_age_is_given(tmp_path: Path) -> None:
    for keep in (None, "1 min"):
        place = tmp_path / str(keep)
        harness = FilesHarness(place, mode="changelog", keep=0, keep_changes=keep)
        with FollowerContract().filled(harness) as world:
            for number in range(3):
                world.view.publish([world.row(1, f"{number}")])
                world.sync()
            world.faulty.maintain(thorough=True)
            assert len(list(place.glob("t/manifests/*.json"))) == 4
            age(place, 120_000)
            world.view.publish([world.row(1, "new")])
            world.sync()
            world.faulty.maintain(thorough=True)
            assert len(list(place.glob("t/manifests/*.json"))) == (5 if keep is None else 2)
            assert len(list(place.glob("t/data/*"))) == (5 if keep is None else 2)


def test_an_older_runner_deletes_nothing(tmp_path: Path) -> None:
    with FollowerContract().filled(FilesHarness(tmp_path, keep=0)) as world:
        older = world.faulty.inner
        newer = world.harness.open(world.target(world.fence + 1))
        newer.create()
        before = sorted((tmp_path / "t").rglob("*"))
        older.maintain(thorough=True)
        assert sorted((tmp_path / "t").rglob("*")) == before


@pytest.mark.parametrize("name", ["a/b", "..", "_hidden", ".hidden"])
def test_names_that_are_no_folder_of_ours(tmp_path: Path, name: str) -> None:
    harness = FilesHarness(tmp_path)
    target = FollowerTarget("v", "s", schema_of([("k", "int")]), harness.settings(table=name), "o")
    with pytest.raises(UserError, match="name"):
        harness.open(target).check()


def test_an_object_store_is_no_folder(tmp_path: Path) -> None:
    """It was a folder `s3:` where mview runs."""

    def at(path: str) -> FilesFollower:
        settings = FilesSettings(type="files", path=path)
        return FilesFollower(FollowerTarget("v", "s", schema_of([("k", "int")]), settings, "o"))

    assert "is no folder" in str(raised(at("s3://lake/x").check, ConfigError))
    assert at(f"file://{tmp_path}/x").folder == tmp_path / "x" / "v"


def test_what_csv_cannot_hold(tmp_path: Path) -> None:
    harness = FilesHarness(tmp_path, format="csv")
    for columns, told in (
        ([("k", "int")], "one column"),
        ([("k", "int"), ("v", "array<int>")], "lists"),
    ):
        target = FollowerTarget("v", "s", schema_of(columns), harness.settings(table="t"), "o")
        with pytest.raises(UserError, match=told):
            harness.open(target).check()


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
@pytest.mark.parametrize("when", ["beside a run", "between two runs"])
def test_a_manifest_that_somebody_gave_a_far_higher_number(
    tmp_path: Path, mode: str, when: str
) -> None:
    """Readers take it for the newest: what comes after it must come beyond it."""
    with FollowerContract().world(FilesHarness(tmp_path), mode=mode) as world:
        for number in range(3):
            world.view.publish([world.row(1, f"{number}"), world.row(10 + number)])
            world.sync()
        manifests = sorted((tmp_path / "t" / "manifests").glob("*.json"))
        shutil.copy(manifests[-2], manifests[-2].with_name(f"{10**9:020}.json"))
        if when == "between two runs":
            world.start()
        world.view.publish([world.row(2, "after")])
        raised_or_not(world.sync, ElsewhereError)
        world.sync()
        world.check()
        world.start()
        world.view.publish([world.row(3, "later")])
        world.sync()
        world.check()
