"""What is damaged or cannot be deleted of one view is that view's, and a command mends it."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from mview.admin.drop import drop
from mview.admin.mending.repair import repair
from mview.admin.status import status
from mview.catalog.definitions import all_definitions
from mview.delta import log
from mview.delta.log import DeltaLog
from mview.errors import CorruptionError, MviewError, TargetError, UserError, known_error
from mview.failpoints import armed
from mview.files import durable
from mview.files.jsonfile import checked
from mview.store.history import ManifestLog
from mview.store.identity import store_id
from mview.store.manifest import Manifest
from tests.epoch.runners import (
    DEFINITION,
    TABLE,
    VIEW,
    CrashError,
    Runner,
    SetClock,
    check,
    crash,
    target_of,
)
from tests.seeds import seeds


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(durable, "force", lambda path: None)
    runner = Runner(tmp_path, SetClock()).start()
    for _ in range(3):
        runner.epoch()
    runner.stop()
    return runner


def again(runner: Runner) -> Runner:
    return Runner(runner.config.path.parent, runner.clock)


def recovered(runner: Runner) -> Manifest:
    """What the next start begins with."""
    other = again(runner)
    try:
        return other.recover()
    finally:
        other.stop()


def definition_of(runner: Runner) -> Path:
    (file,) = runner.store.view(VIEW).glob("definition-*.json")
    return file


@pytest.mark.parametrize("damage", ["gone", "cut", "folder"])
def test_a_view_without_its_definition_halts_alone(runner: Runner, damage: str) -> None:
    file = definition_of(runner)
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[:-5])
    elif damage == "folder":
        file.mkdir()
    (view,) = status(runner.config).views
    assert "the definition of a view cannot be read" in view.halted
    assert "`mview drop` the view" in view.halted
    manifest = recovered(runner)
    assert manifest.views[VIEW].stale
    assert str(file) in manifest.views[VIEW].halted
    wanted = all_definitions(runner.store, manifest, [])
    assert (wanted.views, set(wanted.damaged)) == ([], {VIEW})
    assert not all_definitions(runner.store, manifest, [DEFINITION]).damaged
    with pytest.raises(CorruptionError, match="definition of a view"):
        repair(runner.config, [VIEW])
    # Its table is at a path that only the definition named.
    assert drop(runner.config, [VIEW]).damaged == [VIEW]
    assert not runner.store.view(VIEW).exists()
    assert target_of(runner).exists()
    assert not status(runner.config).views
    recovered(runner)


def test_a_damaged_definition_does_not_keep_others_from_being_dropped(runner: Runner) -> None:
    definition_of(runner).write_text("{}")
    # Nobody knows what the view reads: the table stays loaded.
    with pytest.raises(UserError, match="no view or table"):
        drop(runner.config, ["other"])
    drop(runner.config, [str(TABLE)])
    assert [view.name for view in status(runner.config).views] == [VIEW]


def test_a_table_that_cannot_be_deleted_ends_no_start(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(table: DeltaLog) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(table.folder))

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "drop", refuse)
        with pytest.raises(TargetError, match=r"(?s)cannot be deleted.*read-only.*mview run"):
            drop(runner.config, [VIEW])
        assert not status(runner.config).views
        recovered(runner)
        assert definition_of(runner).exists()
    assert list(target_of(runner).glob("*.parquet"))
    recovered(runner)
    assert not target_of(runner).exists()
    assert not runner.store.view(VIEW).exists()


def test_a_damaged_intent_of_a_view_without_definition(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the intent and the sinks, and the definition is gone: the epoch goes on."""
    other = again(runner).start()
    with monkeypatch.context() as patch:
        patch.setattr(type(other.engine.manifests), "publish", _crash)
        with pytest.raises(KeyboardInterrupt):
            other.epoch()
    other.die()
    file = definition_of(runner)
    content = file.read_bytes()
    file.write_bytes(b"")
    manifest = recovered(runner)
    assert manifest.offsets["shop"]["log"] == 4
    assert "definition of a view" in manifest.views[VIEW].halted
    file.write_bytes(content)
    assert repair(runner.config, [VIEW]) == [VIEW]


def _crash(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_start_after_damage_is_as_any(runner: Runner) -> None:
    started = again(runner).start()
    started.epoch()
    assert check(started) == 4
    started.stop()


def checkpointed(root: Path) -> Runner:
    """A store with a file of every kind."""
    root.mkdir()
    clock = SetClock()
    runner = Runner(root, clock).start()
    for _ in range(12):
        runner.epoch()
        clock.ms += 1000
    runner.upkeep_round()
    runner.epoch()
    runner.stop()
    return runner


def cut(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content) * 8)
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)


def empty(file: Path, rng: random.Random) -> None:
    file.write_bytes(b"")


def folder(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def gone(file: Path, rng: random.Random) -> None:
    file.unlink()


def told(error: Exception, file: Path) -> None:
    """It says which file, whether the data is safe, and what to do."""
    block = known_error(error)
    assert "unexpected" not in block.what, (file, block)
    assert block.hint, block
    assert block.safe, block
    assert block.where, block
    # A commit whose note is damaged is nobody's we know: it is told by its version.
    table = file.parent.parent if file.parent.name == "_delta_log" else file.parent
    assert block.where.startswith(str(table)), (file, block)


def _kind(file: Path) -> str:
    """Files of one kind have one name."""
    return re.sub(r"[0-9a-f]{16}|\d{12,}", "N", str(file))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(1))
def test_damage_of_every_kind_to_files_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """It is told with the file and a command, or mended; it is never other rows."""
    monkeypatch.setattr(durable, "force", lambda path: None)
    monkeypatch.setattr(log, "_CHECKPOINT_EVERY", 4)
    good, rng = checkpointed(tmp_path / "good"), random.Random(seed)
    # Nobody is at its old place: a copy is the store itself, moved.
    root = good.config.path.parent.rename(tmp_path / "kept")
    files = [file.relative_to(root) for file in root.rglob("*") if file.is_file()]
    files.remove(Path(good.config.path.name))
    by_kind: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(files):
        by_kind[_kind(file)].append(file)
    assert len(by_kind) >= 15
    ends: Counter[str] = Counter()
    for some in by_kind.values():
        for damage in (cut, flip, empty, folder, gone):
            # The newest, which counts, and any.
            for file in {some[-1], rng.choice(some)}:
                shutil.rmtree(tmp_path / "copy", ignore_errors=True)
                shutil.copytree(root, tmp_path / "copy")
                damage(tmp_path / "copy" / file, rng)
                ends[_goes_on(tmp_path / "copy", file, good.clock)] += 1
    assert ends["told"] > 20
    assert ends["right"] > 20
    assert ends["halted"] > 2


def _goes_on(root: Path, file: Path, clock: SetClock) -> str:
    """Start after damage, with an epoch; returns how it ended."""
    try:
        runner = Runner(root, clock)
    except Exception as error:
        told(error, root / file)
        return "told"
    try:
        manifest = runner.recover()
        if manifest.views[VIEW].stale:
            assert str(root / file) in manifest.views[VIEW].halted
            return "halted"
    except Exception as error:
        told(error, root / file)
        return "told"
    finally:
        runner.stop()
    started = Runner(root, clock)
    try:
        started.start().epoch()
        # Other readers have no seals to hold checkpoints against.
        check(started, shown="checkpoint" not in file.name)
    except (MviewError, OSError) as error:
        told(error, root / file)
        return "told"
    finally:
        started.stop()
    return "right"


def test_a_damaged_mark_of_a_table_is_put_again(runner: Runner) -> None:
    mark = target_of(runner) / "_mview.json"
    for damage in (empty, folder, flip):
        good = mark.read_bytes()
        damage(mark, random.Random(1))
        if damage is flip:
            mark.write_bytes(good.replace(b"view", b"wiew"))
        assert repair(runner.config, [VIEW]) == []
        assert mark.read_bytes() == good
    mark.write_bytes(b"")
    drop(runner.config, [VIEW])
    assert not target_of(runner).exists()


def test_a_repair_does_not_publish_over_an_epoch_that_was_decided(runner: Runner) -> None:
    """Its sinks may have it already, and so may those who read them."""
    decided = again(runner).start()
    with armed("after-sink", crash), suppress(CrashError):
        decided.epoch()
    decided.stop()
    epoch = decided.engine.manifest.epoch + 1
    assert repair(runner.config, [VIEW]) == []
    assert ManifestLog(runner.store.manifests).read(epoch).offsets["shop"] == {"log": 4}
    assert not [*runner.store.intents.glob("*.json")]
    assert check(runner) == 4
    then = again(runner).start()
    then.epoch()
    assert check(then) == 5
    then.stop()


@pytest.mark.parametrize("point", ["before-sink", "after-sink"])
@pytest.mark.parametrize("theirs", ["id = 1", "id = 4"])
def test_a_repair_takes_back_what_others_wrote_and_keeps_what_was_decided(
    runner: Runner, point: str, theirs: str
) -> None:
    """Whether the target had the epoch before the foreign write, or never."""
    decided = again(runner).start()
    with armed(point, crash), suppress(CrashError):
        decided.epoch()
    decided.stop()
    epoch = decided.engine.manifest.epoch + 1
    deltalake = DeltaTable(target_of(runner))
    deltalake.delete("id = 2")
    deltalake.delete(theirs)
    assert repair(runner.config, [VIEW]) == []
    published = ManifestLog(runner.store.manifests).read(epoch)
    assert published.offsets["shop"] == {"log": 4}
    assert not published.views[VIEW].stale
    assert check(runner) == 4
    then = again(runner).start()
    then.epoch()
    assert check(then) == 5
    then.stop()


def test_a_decided_epoch_over_a_foreign_write_halts_the_view_until_it_is_repaired(
    runner: Runner,
) -> None:
    decided = again(runner).start()
    with armed("before-sink", crash), suppress(CrashError):
        decided.epoch()
    decided.stop()
    DeltaTable(target_of(runner)).delete("id = 2")
    assert recovered(runner).views[VIEW].stale


def test_an_epoch_whose_manifest_was_moved_away_comes_back_by_its_intent(runner: Runner) -> None:
    """It was damaged, say; the sinks may have it. Of a later one nothing is left."""
    decided = again(runner).start()
    with armed("after-publish", crash), suppress(CrashError):
        decided.epoch()
    decided.stop()
    manifests = ManifestLog(runner.store.manifests)
    epoch = manifests.epochs()[-1]
    (runner.store.manifests / manifests._file(epoch).name).rename(runner.store.root / "moved")
    manifest = recovered(runner)
    assert manifest.offsets["shop"] == {"log": 4}
    assert check(runner) == 4


def test_a_commit_of_a_view_whose_note_is_damaged_is_repaired(runner: Runner) -> None:
    """It looks as if somebody else had written it."""
    commit = max((target_of(runner) / "_delta_log").glob("*.json"))
    good = commit.read_bytes()
    commit.write_bytes(good.replace(rb"\"mview\"", rb"\"mvieu\""))
    assert commit.read_bytes() != good
    started = again(runner).start()
    with pytest.raises(TargetError, match=r"(?s)somebody else changed rows.*`mview repair v`"):
        started.epoch()
    started.stop()
    assert repair(runner.config, [VIEW]) == []
    started = again(runner).start()
    started.epoch()
    assert check(started) == 4
    started.stop()


def test_a_store_whose_id_is_damaged_is_not_another_store(runner: Runner) -> None:
    """Its tables elsewhere would be somebody else's, and the file to restore not be named."""
    mark, good = runner.store.root / "mview-store.json", store_id(runner.store.root)
    other = f"{int(good[0], 16) ^ 1:x}{good[1:]}"
    mark.write_text(mark.read_text().replace(good, other))
    with pytest.raises(CorruptionError, match=r"mview-store.json") as caught:
        again(runner)
    told(caught.value, mark)


def test_a_store_that_has_lost_its_mark_is_told(runner: Runner) -> None:
    (runner.store.root / "mview-store.json").unlink()
    with pytest.raises(MviewError, match=r"(?s)not a store of mview.*mview-store.json from a copy"):
        Runner(runner.config.path.parent, runner.clock)


def test_what_a_sink_has_kept_in_another_form_halts_its_view_alone(runner: Runner) -> None:
    """Manifest and intent are whole; what a sink has put into them is not what it puts there."""
    good = max(runner.store.manifests.glob("*.json"))
    manifest = ManifestLog(runner.store.manifests).latest()
    assert manifest is not None
    view = manifest.views[VIEW]
    facts: list[object] = [{}, *({**view.sink, name: [7]} for name in view.sink)]
    facts += [{k: v for k, v in view.sink.items() if k != name} for name in view.sink]
    for sink in facts[1:]:
        changed = replace(view, sink=cast(dict[str, Any], sink))
        good.write_bytes(checked(replace(manifest, views={VIEW: changed}).to_json()))
        kept = recovered(runner)
        assert kept.views[VIEW].stale, sink
        assert "has another form" in kept.views[VIEW].halted, sink
        for later in runner.store.manifests.glob("*.json"):
            if later > good:
                later.unlink()


def test_a_token_of_another_form_halts_its_view_alone(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(runner).start()
    with monkeypatch.context() as patch:
        patch.setattr(type(other.engine.manifests), "publish", _crash)
        with pytest.raises(KeyboardInterrupt):
            other.epoch()
    other.die()
    (file,) = runner.store.intents.glob("*.json")
    body = json.loads(file.read_bytes().splitlines()[1])
    del body["tokens"][VIEW]["adds"]
    file.write_bytes(checked(body))
    manifest = recovered(runner)
    assert manifest.offsets["shop"]["log"] == 4, "the epoch was decided: it is published"
    assert "'adds' is missing" in manifest.views[VIEW].halted
