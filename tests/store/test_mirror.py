from __future__ import annotations

import random
import shutil
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from mview.delta import rewrite, tiers
from mview.errors import CorruptionError, FencedError, UserError
from mview.files.fence import Unfenced
from mview.schema import Column, TableSchema, parse_type
from mview.store.mirror import EPOCH, KIND, Mirror, fold
from tests.seeds import seeds
from tests.store.mirrors import SCHEMA, MirrorDriver, Row, delta_of, stage


def rows_of(table: pa.Table) -> Counter[Row]:
    columns = [table[name].to_pylist() for name in SCHEMA.names]
    return Counter(zip(*columns, strict=True))


def check(driver: MirrorDriver) -> None:
    truth = Counter(driver.truth.values())
    assert rows_of(driver.mirror.scan(driver.state)) == truth
    parts = list(driver.mirror.parts(driver.state))
    assert rows_of(pa.concat_tables(parts, promote_options="default")) == truth
    assert driver.mirror.nbytes(driver.state) > 0 or not truth
    assert driver.mirror.scan_within(driver.state, 0) is None or not driver.state.base_version


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "m", SCHEMA)


@pytest.mark.parametrize("seed", seeds(4))
def test_random_epochs_equal_a_dict(tmp_path: Path, seed: int) -> None:
    driver = MirrorDriver(tmp_path / "m", seed)
    oldest = 1
    for _ in range(40):
        fate = driver.rng.random()
        if fate < 0.1:
            driver.crash()
        elif fate < 0.2:
            driver.compact()
        elif fate < 0.25:
            driver.compact_beside()
        elif fate < 0.3 and driver.epoch > 4:
            oldest = max(oldest, driver.epoch - 3)
            driver.mirror.maintain(driver.state, driver.history[oldest][0], generation=1)
        else:
            driver.publish(driver.epoch_once())
        check(driver)
    for epoch in range(oldest, driver.epoch + 1):
        state, rows = driver.history[epoch]
        assert rows_of(driver.mirror.scan(state)) == Counter(rows), f"epoch {epoch}"
        assert rows_of(Mirror(tmp_path / "m", SCHEMA).scan(state)) == Counter(rows)


@pytest.mark.parametrize("seed", seeds(3))
def test_any_subset_by_value_folds_right(tmp_path: Path, seed: int) -> None:
    driver = MirrorDriver(tmp_path / "m", seed, chunks=2)
    for _ in range(12):
        driver.publish(driver.epoch_once(20))
    files = driver.mirror.files(driver.state)
    # Files of chunks and of changes differ in which columns they call not null.
    base, tail = (
        pa.concat_tables([pq.read_table(path) for path, _ in some], promote_options="permissive")
        for some in (files.base, files.tail)
    )
    for value in ("x", "y", None):
        same = pc.is_null if value is None else lambda column, v=value: pc.equal(column, v)
        part = fold(base.filter(same(base["v"])), tail.filter(same(tail["v"])), SCHEMA.key)
        expected = Counter(row for row in driver.truth.values() if row[0] == value)
        assert rows_of(part) == expected


def test_columns_of_a_scan(mirror: Mirror) -> None:
    state = mirror.create()
    version = mirror.append(1, delta_of([("+I", ("x", 1, "a", None))]))
    found = mirror.scan(replace(state, changelog_version=version), ["v"])
    assert found.to_pylist() == [{"v": "x"}]


def test_other_readers_see_the_versions(tmp_path: Path) -> None:
    driver = MirrorDriver(tmp_path / "m", 5)
    for _ in range(10):
        driver.publish(driver.epoch_once())
    state = driver.state
    base = DeltaTable(tmp_path / "m/base", version=state.base_version).to_pyarrow_table()
    log = DeltaTable(tmp_path / "m/changelog", version=state.changelog_version).to_pyarrow_table()
    assert rows_of(fold(base, log, SCHEMA.key)) == Counter(driver.truth.values())
    first = DeltaTable(tmp_path / "m/changelog").to_pyarrow_table(filters=[(EPOCH, "=", 1)])
    assert set(first[EPOCH].to_pylist()) == {1}


def test_two_rows_for_one_key_in_an_epoch_are_refused(mirror: Mirror) -> None:
    tail = delta_of([("+I", ("x", 1, "a", None)), ("+U", ("y", 1, "a", None))])
    tail = tail.append_column(EPOCH, pa.array([4, 4]))
    with pytest.raises(CorruptionError, match=r"(?s)epoch 4.*id=1"):
        fold(tail.drop_columns([EPOCH, KIND]).slice(0, 0), tail, SCHEMA.key)


def test_chunk_files_are_not_rewritten(mirror: Mirror) -> None:
    mirror.create()
    marker = stage(mirror, [("x", 1, "a", None)])
    version = mirror.register(3, [marker, replace(marker, file="")], {})
    assert list(mirror.base.at(version).files) == [marker.file]
    stats = DeltaTable(mirror.folder / "base").get_add_actions(flatten=True)
    assert pa.table(stats).select(["num_records", "min.id", "max.part"]).to_pylist() == [
        {"num_records": 1, "min.id": 1, "max.part": "a"}
    ]


@pytest.mark.parametrize("damage", ["torn", "other", "missing", "columns"])
def test_a_damaged_chunk_file_is_refused(mirror: Mirror, damage: str) -> None:
    state = mirror.create()
    marker = stage(mirror, [("x", 1, "a", None)])
    file = mirror.folder / "base" / marker.file
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:-9])
    if damage == "other":
        stage(mirror, [("y", 1, "a", None)])
    if damage == "missing":
        file.unlink()
    if damage == "columns":
        pq.write_table(pa.table({"id": [1]}), file)
        content = file.read_bytes()
        marker = replace(marker, size=len(content), digest=f"{zlib.crc32(content):08x}")
    with pytest.raises(UserError if damage == "columns" else CorruptionError):
        mirror.register(1, [marker], {})
    assert mirror.scan(state).num_rows == 0


def test_the_same_epoch_again_after_a_restore_has_its_own_rows(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "m", SCHEMA)
    state = mirror.create()
    mirror.append(1, delta_of([("+I", ("lost", 1, "a", None))]))
    mirror = Mirror(tmp_path / "m", SCHEMA)
    mirror.restore(state)
    version = mirror.append(1, delta_of([("+I", ("kept", 2, "a", None))]))
    found = mirror.scan(replace(state, changelog_version=version))
    assert found["v"].to_pylist() == ["kept"]


def test_a_second_writer_is_fenced(tmp_path: Path) -> None:
    ours = Mirror(tmp_path / "m", SCHEMA)
    ours.create()
    theirs = Mirror(tmp_path / "m", SCHEMA)
    theirs.append(1, delta_of([("+I", ("x", 1, "a", None))]))
    with pytest.raises(FencedError):
        ours.append(1, delta_of([("+I", ("y", 1, "a", None))]))


def test_create_begins_anew_and_leaves_what_was(mirror: Mirror) -> None:
    state = mirror.create()
    version = mirror.append(1, delta_of([("+I", ("x", 1, "a", None))]))
    published = replace(state, changelog_version=version)
    anew = mirror.create()
    assert mirror.scan(anew).num_rows == 0
    assert mirror.scan(published).num_rows == 1
    again = mirror.append(1, delta_of([("+I", ("y", 2, "b", None))]))
    assert mirror.scan(replace(anew, changelog_version=again))["id"].to_pylist() == [2]
    mirror.restore(published)
    assert mirror.scan(published).num_rows == 1


def test_what_is_copied_again_leaves_what_was(mirror: Mirror, tmp_path: Path) -> None:
    """Also where the other one has written its file anew, under the name that it had."""
    copied = []
    for epoch, value in enumerate(("old", "new"), 1):
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        other = Mirror(tmp_path / "other", SCHEMA)
        state = other.create()
        version = other.register(1, [stage(other, [(value, 1, "a", None)])], {})
        state = replace(state, base_version=version, rows=1, phase="loaded")
        copied.append(mirror.copy(other, state, epoch, 1 << 20))
    assert [mirror.scan(state)["v"].to_pylist() for state in copied] == [["old"], ["new"]]


def test_compaction_beside_running_epochs(mirror: Mirror) -> None:
    state = mirror.create()
    version = mirror.append(1, delta_of([("+I", ("old", 1, "a", None))]))
    published = replace(state, changelog_version=version)
    base, folded = mirror.compact(published)
    assert folded == 1
    # Epoch 2 is published with the old base while the new one is not named yet.
    changes = [("-U", ("old", 1, "a", None)), ("+U", ("new", 1, "a", None))]
    version = mirror.append(2, delta_of(changes))
    marker = stage(mirror, [("other", 2, "a", None)])
    register = mirror.register(2, [marker], {})
    state = replace(published, changelog_version=version, base_version=register)
    assert sorted(mirror.scan(state)["v"].to_pylist()) == ["new", "other"]
    state = replace(state, base_version=max(base, register), folded=folded)
    assert sorted(mirror.scan(state)["v"].to_pylist()) == ["new", "other"]
    assert len(mirror.files(state).tail) == 1


def test_a_compaction_that_was_not_taken_over_leaves_nothing(mirror: Mirror) -> None:
    state = mirror.create()
    version = mirror.append(1, delta_of([("+I", ("a", 1, "a", None)), ("+I", ("b", 2, "a", None))]))
    state = replace(state, changelog_version=version)
    mirror.compact(state)
    assert mirror.scan(state).num_rows == 2
    base, folded = mirror.compact(state)
    assert mirror.scan(state).num_rows == 2
    assert mirror.scan(replace(state, base_version=base, folded=folded)).num_rows == 2


def test_a_long_tail_is_folded_in_parts(mirror: Mirror) -> None:
    state = mirror.create()
    for epoch in range(1, 4):
        changes = [("+I", (f"{epoch}" * 9, epoch, "a", None))]
        if epoch > 1:
            old = (f"{epoch - 1}" * 9, epoch - 1, "a", None)
            changes += [("-U", old), ("+U", (f"then {epoch}", epoch - 1, "a", None))]
        version = mirror.append(epoch, delta_of(changes))
        state = replace(state, changelog_version=version)
        mirror._written.forget(())
    whole = rows_of(mirror.scan(state))
    sizes = mirror.tail_sizes(state)
    assert [epoch for epoch, _, _ in sizes] == [1, 2, 3]
    for expected, most in ((1, 0), (3, sizes[1][2] + sizes[2][2])):
        base, folded = mirror.compact(state, most)
        assert folded == expected
        state = replace(state, base_version=base, folded=folded)
        assert rows_of(mirror.scan(state)) == whole
    assert mirror.tail_sizes(state) == []


@pytest.mark.parametrize("gone", [0, 9, 10, 15, 19, None])
def test_a_row_at_the_edge_of_a_file_that_stays_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int | None
) -> None:
    """Nothing but its key leads to the file, and NULL is in no range."""
    monkeypatch.setattr(rewrite, "is_small", lambda file: False)
    schema = TableSchema((Column("id", pa.int64()), Column("v", pa.string())), ("id",))
    mirror = Mirror(tmp_path / "m", schema)
    ids: list[list[int | None]] = [list(range(10)), [*range(10, 20), None]]
    files = [
        stage(mirror, [(i, "x") for i in chunk], name=f"f{number}")
        for number, chunk in enumerate(ids)
    ]
    state = replace(mirror.create(), base_version=mirror.register(1, files, {}))
    version = mirror.append(2, delta_of([("-D", (gone, "x"))], schema))
    base, folded = mirror.compact(replace(state, changelog_version=version))
    state = replace(state, changelog_version=version, base_version=base, folded=folded)
    found = mirror.scan(state)["id"].to_pylist()
    assert Counter(found) == Counter([one for chunk in ids for one in chunk if one != gone])


def test_wide_rows_make_files_of_few_rows(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are bounded in bytes, too: while they are written, and in what is merged."""
    monkeypatch.setattr(tiers.LARGE, "nbytes", 1 << 20)
    draw = random.Random(1)
    state = mirror.create()
    for epoch in range(1, 21):
        rows = [(draw.randbytes(100_000).hex(), 3 * epoch + n, "a", None) for n in range(3)]
        version = mirror.append(epoch, delta_of([("+I", row) for row in rows]))
        state = replace(state, changelog_version=version)
    assert len(mirror.files(state).tail) == 20
    base, folded = mirror.compact(state)
    state = replace(state, base_version=base, folded=folded)
    counts = [rows for _, rows in mirror.files(state).base]
    assert sum(counts) == 60
    assert max(counts) <= 8


def test_compaction_keeps_files_sorted_and_of_a_size(mirror: Mirror) -> None:
    state = mirror.create()
    ids = list(range(300_000))
    chunks = [ids[:140_000], ids[140_000:280_000], ids[280_000:]]
    markers = [
        stage(mirror, [("x", i, "a", None) for i in chunk], name=str(n))
        for n, chunk in enumerate(chunks)
    ]
    base = mirror.register(1, markers, {})
    changed = [5, 139_999, 140_500, 299_999]
    updates = [(k, (v, i, "a", None)) for i in changed for k, v in (("-U", "x"), ("+U", "y"))]
    inserts = [("+I", ("y", 300_000 + i, "a", None)) for i in range(100)]
    version = mirror.append(2, delta_of(updates + inserts))
    state = replace(state, base_version=base, changelog_version=version)
    base, folded = mirror.compact(state)
    state = replace(state, base_version=base, folded=folded)
    files = mirror.files(state)
    assert files.tail == ()
    assert [rows for _, rows in files.base] == [140_000, 140_000, 20_100]
    for path, _ in files.base:
        ids_found = pq.read_table(path)["id"].to_numpy()
        assert (ids_found[1:] > ids_found[:-1]).all()
    assert pc.sum(pc.equal(mirror.scan(state, ["v"])["v"], "y")).as_py() == 104


def test_maintenance_keeps_staged_files_of_this_generation_only(mirror: Mirror) -> None:
    state = mirror.create()
    old = stage(mirror, [("x", 1, "a", None)], generation=1)
    new = stage(mirror, [("x", 1, "a", None)], generation=2)
    assert mirror.maintain(state, state, generation=2) == 1
    assert not (mirror.folder / "base" / old.file).exists()
    assert (mirror.folder / "base" / new.file).exists()
    loaded = replace(state, phase="loaded")
    assert mirror.maintain(loaded, loaded, generation=2) == 1


def test_maintenance_keeps_what_this_runner_reads_anew(tmp_path: Path) -> None:
    """A chunk of a loaded table waits there for the log: seconds, or longer behind many others."""
    before, now = (Mirror(tmp_path / "m", SCHEMA, Unfenced(token)) for token in (1, 2))
    loaded = replace(before.create(), phase="loaded")
    files = [mirror.reread_folder() / "000000-x.parquet" for mirror in (before, now)]
    for file in files:
        file.write_bytes(b"")
    now.base.refresh()
    assert now.maintain(loaded, loaded, generation=2) == 1
    assert [file.exists() for file in files] == [False, True]


def test_a_long_run_keeps_few_files_and_a_short_log(mirror: Mirror) -> None:
    state = mirror.create()
    for epoch in range(1, 151):
        version = mirror.append(epoch, delta_of([("+I", ("x", epoch, "a", None))]))
        state = replace(state, changelog_version=version)
    assert len(mirror.files(state).tail) < 16
    assert mirror.scan(state).num_rows == 150
    assert mirror.maintain(state, state, generation=1) > 100
    log = mirror.folder / "changelog/_delta_log"
    assert len(list(log.glob("*.json"))) < 5
    assert Mirror(mirror.folder, SCHEMA).scan(state).num_rows == 150
    fresh = Mirror(mirror.folder, SCHEMA)
    version = fresh.append(151, delta_of([("+I", ("x", 151, "a", None))]))
    assert version == state.changelog_version + 1
    assert DeltaTable(mirror.folder / "changelog").to_pyarrow_table().num_rows == 151


@pytest.mark.parametrize("fact", [{"rows": 2}, {"size": 1}, {"digest": "00000000"}])
def test_a_file_is_what_its_marker_says_in_every_fact(mirror: Mirror, fact: dict[str, Any]) -> None:
    marker = stage(mirror, [("x", 1, "a", None)])
    with pytest.raises(CorruptionError, match="not the one its marker speaks of"):
        mirror.register(1, [replace(marker, **fact)], {})
    assert not mirror.base.head.files


def test_marker_like_objects_are_enough(mirror: Mirror) -> None:
    mirror.create()
    marker = stage(mirror, [("x", 1, "a", None)])
    like = SimpleNamespace(**{n: getattr(marker, n) for n in ("file", "rows", "size", "digest")})
    assert mirror.register(1, [like], {}) == 1


@pytest.mark.parametrize("kind", ["string", "double"])
def test_null_and_nan_keys_are_compacted(tmp_path: Path, kind: str) -> None:
    """An aggregate's state is keyed by group, and a group may be NULL or NaN."""
    schema = TableSchema((Column("g", parse_type(kind)), Column("n", parse_type("bigint"))), ("g",))
    mirror = Mirror(tmp_path / "m", schema)
    state = mirror.create()
    value, odd = ("a", "z") if kind == "string" else (1.0, float("nan"))
    rows = [(None, 1), (value, 1), (odd, 1)]
    # A file that is large enough to be left alone, if nothing touched it.
    padding = [(f"p{n}" if kind == "string" else n + 10.0, 0) for n in range(70_000)]
    base = mirror.register(1, [stage(mirror, rows + padding)], {})
    changes = [("-U", (None, 1)), ("+U", (None, 2))]
    if kind == "double":
        changes.append(("-D", (odd, 1)))
    state = replace(
        state, base_version=base, changelog_version=mirror.append(1, delta_of(changes, schema))
    )
    base, folded = mirror.compact(state)
    state = replace(state, base_version=base, folded=folded)
    found = mirror.scan(state)
    assert not mirror.files(state).tail
    left = [1, 1, 2] if kind == "string" else [1, 2]
    assert sorted(n for n in found["n"].to_pylist() if n) == left
    assert found.num_rows == 70_000 + len(left)


def test_a_tail_file_that_begins_before_the_fold(mirror: Mirror) -> None:
    """Small epochs are merged around a large one: what is folded of them must not come back."""
    state = mirror.create()
    many = [("+I", ("x", 100 + n, "a", None)) for n in range(2000)]
    first, second = ("first", 1, "a", None), ("second", 1, "a", None)
    mirror.append(1, delta_of([("+I", first)]))
    for epoch in range(2, 8):
        mirror.append(epoch, delta_of([("+I", ("x", epoch, "a", None))]))
    version = mirror.append(8, delta_of([("-U", first), ("+U", second), *many]))
    state = replace(state, changelog_version=version)
    base, folded = mirror.compact(state)
    for epoch in range(9, 12):
        version = mirror.append(epoch, delta_of([("+I", ("x", epoch, "a", None))]))
    state = replace(state, base_version=base, folded=folded, changelog_version=version)
    assert any("000000000001-" in path for path, _ in mirror.files(state).tail)
    found = mirror.scan(state)
    assert [row["v"] for row in found.to_pylist() if row["id"] == 1] == ["second"]
    mirror.maintain(state, state, generation=1)
    state = replace(state, changelog_version=mirror.append(12, delta_of([("-D", second)])))
    assert mirror.scan(state).num_rows == found.num_rows - 1


def test_only_what_is_folded_is_trimmed(mirror: Mirror) -> None:
    state = mirror.create()
    mirror.append(1, delta_of([("+I", ("x", 1, "a", None))]))
    state = replace(state, changelog_version=mirror.changelog.head.version)
    base, folded = mirror.compact(state)
    mirror.append(2, delta_of([("+I", ("x", 2, "a", None))]))
    state = replace(
        state, base_version=base, folded=folded, changelog_version=mirror.changelog.head.version
    )
    mirror.maintain(state, state, generation=1)
    assert [file.rows for file in mirror.changelog.head.files.values()] == [1]
    version = mirror.append(3, delta_of([("+I", ("x", 3, "a", None))]))
    assert mirror.scan(replace(state, changelog_version=version)).num_rows == 3
