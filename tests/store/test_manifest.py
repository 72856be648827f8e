from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mview.clock import SourceMs, WallMs
from mview.errors import CorruptionError, FencedError, UserError
from mview.files import durable
from mview.schema import Column, TableSchema, parse_type
from mview.store import invariants
from mview.store.history import IntentLog, ManifestLog
from mview.store.layout import Store
from mview.store.manifest import Manifest, TableState, ViewState
from tests.relations import keyed, rel

SCHEMA = TableSchema((Column("id", parse_type("bigint"), False, "bigint(20)"),), ("id",))
TABLE = TableState(SCHEMA, 3, 4, folded=1, phase="loading", rows=7, released=(0, 2))
VIEW = ViewState("hash", "LINEAR", SCHEMA, {"version": 5}, built_epoch=2, rows=3, facts={"a": [1]})
MANIFEST = Manifest(
    2,
    token=3,
    created_ms=1,
    generation=1,
    batch=4,
    offsets={"pg": {"pg.orders/0": 17}},
    positions={rel("pg.orders"): {"0": "00000000000000000005"}},
    watermark=SourceMs(100),
    tables={rel("pg.orders"): TABLE},
    views={"v": VIEW},
    pinned_ms=60_000,
)
FIRST = replace(MANIFEST, epoch=1, tables={rel("pg.orders"): replace(TABLE, folded=0)}, views={})


@pytest.fixture
def log(tmp_path: Path) -> ManifestLog:
    return ManifestLog(tmp_path / "manifest")


def test_round_trip(log: ManifestLog) -> None:
    assert log.latest() is None
    log.publish(FIRST)
    log.publish(MANIFEST)
    assert log.latest() == MANIFEST
    assert ManifestLog(log.folder).read(1) == FIRST
    assert MANIFEST.views["v"].key == ("id",)


def test_an_epoch_is_published_once(log: ManifestLog) -> None:
    log.publish(FIRST)
    with pytest.raises(FencedError, match="another runner has written epoch 1"):
        log.publish(FIRST)


@pytest.mark.parametrize("decided", [False, True])
def test_what_a_manifest_or_an_intent_names_is_on_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    log, intents = ManifestLog(tmp_path / "manifest"), IntentLog(tmp_path / "intent")
    named, forced = tmp_path / "rows.parquet", []
    folder = intents.folder if decided else log.folder
    folder.mkdir()
    durable.settle()  # what other tests of this process left to a manifest
    monkeypatch.setattr(durable, "force", lambda path: forced.append((path, [*folder.iterdir()])))
    durable.later(named)
    intents.write(FIRST, {}) if decided else log.publish(FIRST)
    assert forced[:2] in ([(named, []), (tmp_path, [])], [(tmp_path, []), (named, [])])


def test_of_many_racers_one_publishes(log: ManifestLog) -> None:
    barrier = threading.Barrier(8)

    def publish(token: int) -> int:
        barrier.wait(timeout=30)
        try:
            ManifestLog(log.folder).publish(replace(FIRST, token=token))
        except FencedError:
            return 0
        return token

    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(publish, range(1, 9)))
    assert [token for token in tokens if token] == [log.read(1).token]
    assert len(list(log.folder.iterdir())) == 1


@pytest.mark.parametrize("damage", ["half", "empty", "bit", "json"])
def test_an_unreadable_manifest_says_the_way_out(log: ManifestLog, damage: str) -> None:
    log.publish(FIRST)
    log.publish(MANIFEST)
    file = log.folder / f"{2:020d}.json"
    content = file.read_bytes()
    file.write_bytes(
        {
            "half": content[: len(content) // 2],
            "empty": b"",
            "bit": content.replace(b'"rows":7', b'"rows":8'),
            "json": b"{}\n",
        }[damage]
    )
    with pytest.raises(CorruptionError, match=r"(?s)0002\.json.*goes on from epoch 1"):
        log.latest()
    file.rename(file.with_suffix(".bad"))
    assert log.latest() == FIRST


def test_the_way_out_loses_no_more_epochs_than_it_must(log: ManifestLog) -> None:
    """It goes back to the newest epoch that can be read, past others that cannot."""
    for epoch in range(1, 5):
        log.publish(replace(FIRST, epoch=epoch))
    for epoch in (3, 4):
        (log.folder / f"{epoch:020d}.json").write_bytes(b"half")
    with pytest.raises(CorruptionError, match="goes on from epoch 2"):
        log.latest()


def test_an_epoch_that_is_pruned_while_it_is_looked_for(
    log: ManifestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the upkeep, beside a view that is built: the next one that is kept will do."""
    manifests = [replace(FIRST, epoch=epoch) for epoch in range(1, 6)]
    for manifest in manifests:
        log.publish(manifest)
    *_, newest = manifests
    assert [log.up_to(until, 1, newest).epoch for until in (1, 2, 4, 5, 9)] == [2, 2, 4, 5, 5]
    epochs, pruned = ManifestLog.epochs, iter([[4], [2, 3]])

    def late(self: ManifestLog) -> list[int]:
        listed = epochs(self)
        self.prune(next(pruned, []))
        return listed

    monkeypatch.setattr(ManifestLog, "epochs", late)
    assert log.up_to(4, 1, newest) == newest


def test_a_temporary_file_of_a_dead_writer_is_ignored(log: ManifestLog) -> None:
    log.publish(FIRST)
    (log.folder / "_abc.tmp").write_text("half")
    assert log.latest() == FIRST
    log.publish(MANIFEST)
    log.prune([1])
    assert log.epochs() == [2]
    durable.sweep(log.folder, lambda: None)
    assert [file.name for file in log.folder.iterdir()] == [f"{2:020d}.json"]


class Overtaken:
    """The right to write of a runner that was replaced."""

    token, takes_over = 1, False

    def check(self) -> None:
        raise FencedError("another runner has taken over")


def test_a_runner_that_was_replaced_prunes_nothing(log: ManifestLog) -> None:
    """What its successor still reads is no longer its to delete."""
    log.publish(FIRST)
    log.publish(MANIFEST)
    with pytest.raises(FencedError):
        ManifestLog(log.folder, Overtaken()).prune([1])
    assert log.epochs() == [1, 2]


class Sleeper:
    """The right to write of a runner that sleeps right behind its look at the lease.

    Args:
        meanwhile: what its successor does.
    """

    token, takes_over = 1, False

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile, self._looks = meanwhile, 0

    def check(self) -> None:
        self._looks += 1
        if self._looks > 1:
            raise FencedError("another runner has taken over")
        self._meanwhile()


@pytest.mark.parametrize("decided", [False, True])
def test_a_number_that_is_free_again_is_not_free_for_a_sleeper(
    tmp_path: Path, decided: bool
) -> None:
    """It wakes long after its epoch was published by another, and pruned."""
    new, intents = ManifestLog(tmp_path / "manifest"), IntentLog(tmp_path / "intent")
    new.publish(FIRST)

    def successor() -> None:
        new.publish(replace(FIRST, epoch=2, token=4))
        new.publish(replace(FIRST, epoch=3, token=4))
        for log in (new, intents):
            durable.sweep(log.folder, lambda: None)
        new.prune([1, 2])

    fence = Sleeper(successor)
    old, old_intents = ManifestLog(new.folder, fence), IntentLog(intents.folder, fence)
    assert old.latest() == FIRST
    late = replace(FIRST, epoch=2)
    with pytest.raises(FencedError, match="taken over"):
        old_intents.write(late, {}) if decided else old.publish(late)
    assert new.epochs() == [3]
    assert intents.read(2) is None


def test_a_pruned_epoch_is_not_there(log: ManifestLog) -> None:
    log.publish(FIRST)
    log.publish(MANIFEST)
    log.prune([1])
    with pytest.raises(UserError, match=r"(?s)epoch 1 is not kept.*epoch 2 \(.*the nearest: 2"):
        log.read(1)
    with pytest.raises(UserError, match=r"an epoch of 1969-12-31 23:59:59 UTC is not kept"):
        log.at(-1)
    assert log.at(10**14) == MANIFEST


def test_a_time_is_found_while_a_runner_prunes(
    log: ManifestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in range(1, 8):
        log.publish(replace(FIRST, epoch=epoch, created_ms=WallMs(1000 * epoch)))
    read = ManifestLog.read

    def beside(reader: ManifestLog, epoch: int) -> Manifest:
        log.prune({2, 3, 4, 5} & {epoch, epoch - 1})
        return read(reader, epoch)

    monkeypatch.setattr(ManifestLog, "read", beside)
    assert log.at(6500).epoch == 6
    assert log.at(5500).epoch == 1
    with pytest.raises(UserError, match="is not kept"):
        log.at(500)


def table(**changes: Any) -> dict[str, TableState]:
    return {"pg.orders": replace(TABLE, **changes)}


BROKEN: dict[Callable[..., str | None], Manifest] = {
    invariants.epochs_have_no_gap: replace(MANIFEST, epoch=3),
    invariants.tokens_never_go_back: replace(MANIFEST, token=2),
    invariants.batches_never_go_back: replace(MANIFEST, batch=3),
    invariants.watermark_never_goes_back: replace(MANIFEST, watermark=SourceMs(99)),
    invariants.positions_never_go_back: replace(MANIFEST, positions={}),
    invariants.mirror_versions_never_go_back: replace(
        MANIFEST, tables=keyed(table(base_version=2))
    ),
    invariants.folded_is_published: replace(MANIFEST, tables=keyed(table(folded=2))),
    invariants.loaded_tables_stay_loaded: replace(MANIFEST, tables=keyed(table(released=(2,)))),
    invariants.pinned_time_never_goes_back: replace(MANIFEST, pinned_ms=59_000),
    invariants.row_counts_are_possible: replace(MANIFEST, tables=keyed(table(rows=-1))),
    invariants.views_follow_their_tables: replace(
        MANIFEST, views={"v": replace(VIEW, built_epoch=3)}
    ),
}


@pytest.mark.parametrize("predicate", invariants.INVARIANTS, ids=lambda p: p.__name__)
def test_a_broken_invariant_is_named(log: ManifestLog, predicate: Callable[..., Any]) -> None:
    log.publish(FIRST)
    with pytest.raises(CorruptionError, match=predicate.__name__):
        log.publish(BROKEN[predicate])
    log.publish(MANIFEST)


@pytest.mark.parametrize(
    "allowed",
    [
        replace(
            MANIFEST, generation=2, batch=-1, tables=keyed(table(phase="loading", base_version=0))
        ),
        replace(
            MANIFEST, generation=2, watermark=SourceMs(50), offsets={"maria": {}, "pg": {"a": 1}}
        ),
        replace(MANIFEST, generation=2, tables={}),
    ],
    ids=["loaded again", "a new changelog is behind", "a table is dropped"],
)
def test_what_a_new_generation_may_do(log: ManifestLog, allowed: Manifest) -> None:
    log.publish(replace(FIRST, tables=keyed(table(phase="loaded", folded=0))))
    log.publish(allowed)


def test_a_loaded_table_does_not_load_again(log: ManifestLog) -> None:
    log.publish(replace(FIRST, tables=keyed(table(phase="loaded", folded=0))))
    with pytest.raises(CorruptionError, match="loaded_tables_stay_loaded"):
        log.publish(MANIFEST)


@pytest.mark.parametrize("version", ["base_version", "changelog_version"])
def test_no_version_of_a_mirror_goes_back(log: ManifestLog, version: str) -> None:
    log.publish(FIRST)
    with pytest.raises(CorruptionError, match=f"{version} of pg.orders is 2 after"):
        log.publish(replace(MANIFEST, tables=keyed(table(**{version: 2}))))


def test_a_position_never_sinks(log: ManifestLog) -> None:
    log.publish(FIRST)
    lower = {"pg.orders": {"0": "00000000000000000004"}}
    with pytest.raises(CorruptionError, match="positions_never_go_back"):
        log.publish(replace(MANIFEST, positions=keyed(lower)))
    higher = {"pg.orders": {"0": "00000000000000000006", "1": "00000000000000000001"}}
    log.publish(replace(MANIFEST, positions=keyed(higher)))


def test_a_sink_never_steps_back(log: ManifestLog) -> None:
    log.publish(FIRST)
    log.publish(MANIFEST)
    back = {"v": replace(VIEW, sink={"version": 4})}
    with pytest.raises(CorruptionError, match="version of view v is 4 after 5"):
        log.publish(replace(MANIFEST, epoch=3, views=back))
    back = {"v": replace(VIEW, sink={"version": 0}, built_epoch=3)}
    log.publish(replace(MANIFEST, epoch=3, views=back))


def test_the_intent(tmp_path: Path) -> None:
    intent = IntentLog(tmp_path / "store/intent")
    assert intent.read(2) is None
    intent.write(MANIFEST, {"v": {"adds": []}})
    assert IntentLog(intent.folder).read(2) == (MANIFEST, {"v": {"adds": []}})
    for token in (2, 4):  # who was first has decided, whoever it was
        with pytest.raises(FencedError):
            IntentLog(intent.folder).write(replace(MANIFEST, token=token), {})
    assert intent.read(2) == (MANIFEST, {"v": {"adds": []}})
    intent.write(replace(MANIFEST, epoch=3), {})
    intent.clear(2)
    intent.clear(2)
    assert intent.read(2) is None
    intent.clear_up_to(2)
    assert intent.read(3) is not None
    intent.clear_up_to(3)
    assert list(intent.folder.iterdir()) == []


def test_an_unreadable_intent_stops(tmp_path: Path) -> None:
    intent = IntentLog(tmp_path / "intent")
    intent.write(MANIFEST, {})
    file = intent.folder / f"{2:020d}.json"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(CorruptionError, match="intent of an epoch"):
        intent.read(2)


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "../x", "a\\b", ".hidden", "a\0b", "a\nb"]
)
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    for path in (store.view, store.view_target, lambda name: store.mirror(rel(name))):
        with pytest.raises(UserError, match="cannot be the name of a"):
            path(name)


def test_names_are_safe_and_different(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = ["pg.Orders", "pg.orders", "pg.a b", "pg.a~20b", "pg.é", "pg.e", "v:state", "a*[?]#%"]
    paths = {store.mirror(rel(name)) for name in names}
    assert len(paths) == len(names)
    assert {path.parent.name for path in paths} == {"tables", "beside"}
    assert store.mirror(rel("pg.a b")).name == "pg.a~20b"
    assert len({store.checkpoint(n, token) for n in (3, 4) for token in (1, 2)}) == 4
