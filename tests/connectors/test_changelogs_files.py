"""The changelog in files: partial lines, new and deleted files, and what is never skipped."""

from __future__ import annotations

import os
import threading
import time

import pytest
from mview_connectors.changelogs import lines
from mview_connectors.changelogs.files import FilesChangelog, _At
from mview_connectors.changelogs.kafka.changelog import fair_shares
from mview_connectors.formats.unified import UnifiedFormat

from mview.clock import END_OF_TIME
from mview.config import ChangesSettings
from mview.errors import (
    AwayError,
    ConfigError,
    CorruptionError,
    DataLostError,
    DecodeError,
    UserError,
)
from tests.connectors.test_changelogs import beat, line
from tests.patience import Patience


@pytest.fixture
def settings(tmp_path):
    return ChangesSettings(connection="c", source="files", format="unified", path=tmp_path)


@pytest.fixture
def changelog(settings):
    return FilesChangelog(settings, UnifiedFormat({}), ["t"])


def put(folder, name, *parts):
    with (folder / name).open("ab") as out:
        out.write(b"".join(parts))


def rows(*numbers):
    return b"".join(line(n, n) + b"\n" for n in numbers)


def numbers(changelog, start, end):
    return [
        event.after["id"]
        for split in changelog.splits(start, end)
        for message in changelog.read([split])
        for event in UnifiedFormat({}).decode(message)
    ]


def test_an_incomplete_last_line_waits(tmp_path, changelog):
    start = changelog.begin()
    put(tmp_path, "1.jsonl", rows(1), line(2, 2)[:10])
    first = changelog.advance(start, 100, 0).offsets
    assert numbers(changelog, start, first) == [1]
    assert changelog.advance(first, 100, 0).offsets == first
    put(tmp_path, "1.jsonl", line(2, 2)[10:], b"\n")
    second = changelog.advance(first, 100, 0).offsets
    assert numbers(changelog, first, second) == [2]


def test_begin_in_the_middle_of_a_line(tmp_path, changelog):
    put(tmp_path, "1.jsonl", rows(1), line(2, 2)[:10])
    start = changelog.begin()
    put(tmp_path, "1.jsonl", line(2, 2)[10:], b"\n")
    assert numbers(changelog, start, changelog.advance(start, 100, 0).offsets) == [2]


def test_files_in_byte_order_and_one_growing_offset(tmp_path, changelog):
    put(tmp_path, "10.jsonl", rows(1, 2))
    start = {"log": ["10.jsonl", 0, 0]}
    put(tmp_path, "9.jsonl", rows(3))
    put(tmp_path, "a.jsonl", rows(4))
    put(tmp_path, "notes.txt", b"not a change")
    end = changelog.advance(start, 100, 0).offsets
    assert numbers(changelog, start, end) == [1, 2, 3, 4]
    offsets = [m.offset for s in changelog.splits(start, end) for m in changelog.read([s])]
    assert offsets == [0, len(rows(1)), len(rows(1, 2)), len(rows(1, 2, 3))]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_any_limit_reads_all_lines_once_over_files(tmp_path, changelog, limit):
    start = at = {"log": ["1.jsonl", 0, 0]}
    put(tmp_path, "1.jsonl", rows(1, 2))
    put(tmp_path, "2.jsonl", b"")
    put(tmp_path, "3.jsonl", rows(3), line(4, 4))
    put(tmp_path, "4.jsonl", rows(5, 6))
    seen = []
    for _ in range(8):
        end = changelog.advance(at, limit, 0).offsets
        assert len(numbers(changelog, at, end)) <= limit
        seen += numbers(changelog, at, end)
        at = end
    assert seen == [1, 2, 3, 4, 5, 6] == numbers(changelog, start, at)


def test_blank_lines_and_windows_line_ends(tmp_path, changelog):
    start = changelog.begin()
    put(tmp_path, "1.jsonl", b"\n  \n", line(1, 1), b"\r\n\r\n")
    (message,) = (
        m
        for s in changelog.splits(start, changelog.advance(start, 100, 0).offsets)
        for m in changelog.read([s])
    )
    assert (message.value, message.offset) == (line(1, 1), 4)


def test_deleted_files_do_not_change_offsets(tmp_path, changelog):
    put(tmp_path, "1.jsonl", rows(1, 2))
    put(tmp_path, "2.jsonl", rows(3))
    at = changelog.advance({"log": ["1.jsonl", 0, 0]}, 100, 0).offsets
    (tmp_path / "1.jsonl").unlink()
    put(tmp_path, "2.jsonl", rows(4))
    end = changelog.advance(at, 100, 0).offsets
    (message,) = (m for s in changelog.splits(at, end) for m in changelog.read([s]))
    assert message.offset == len(rows(1, 2, 3))


def test_a_file_that_vanished_before_it_was_read(tmp_path, changelog):
    put(tmp_path, "1.jsonl", rows(1, 2))
    start = changelog.begin()
    (tmp_path / "1.jsonl").rename(tmp_path / "1.done")
    with pytest.raises(DataLostError, match=r"1\.jsonl"):
        changelog.advance(start, 100, 0)


def test_a_file_that_shrank(tmp_path, changelog):
    put(tmp_path, "1.jsonl", rows(1, 2))
    start = changelog.begin()
    (tmp_path / "1.jsonl").write_bytes(rows(1))
    with pytest.raises(DataLostError, match="bytes"):
        changelog.advance(start, 100, 0)


@pytest.mark.parametrize("more", [0, 5, 900])
def test_a_file_that_was_replaced_by_one_as_long_or_longer(tmp_path, settings, more):
    """Its name and its size are right, and it is another one."""
    put(tmp_path, "1.jsonl", rows(*range(100, 150)))
    at = FilesChangelog(settings, UnifiedFormat({}), ["t"]).begin()
    kept = (tmp_path / "1.jsonl").read_bytes()
    (tmp_path / "1.jsonl").write_bytes(rows(*range(200, 250 + more)))
    with pytest.raises(DataLostError, match="replaced") as caught:
        FilesChangelog(settings, UnifiedFormat({}), ["t"]).advance(at, 100, 0)
    assert "mview drop" in caught.value.hint
    # Put back, as is advised, also where it is another file of the same lines.
    (tmp_path / "1.jsonl").unlink()
    (tmp_path / "1.jsonl").write_bytes(kept + rows(7))
    changelog = FilesChangelog(settings, UnifiedFormat({}), ["t"])
    assert numbers(changelog, at, changelog.advance(at, 100, 0).offsets) == [7]


def test_a_planned_file_that_is_cut_before_it_is_read(tmp_path, changelog):
    start = changelog.begin()
    put(tmp_path, "1.jsonl", rows(1, 2))
    (split,) = changelog.splits(start, changelog.advance(start, 100, 0).offsets)
    (tmp_path / "1.jsonl").write_bytes(rows(1))
    with pytest.raises(DataLostError, match="planned"):
        list(changelog.read([split]))


@pytest.mark.parametrize("name", ["1.jsonl", "0.jsonl"])
def test_lines_slipped_in_behind_halt_also_after_a_restart(tmp_path, settings, changelog, name):
    put(tmp_path, "1.jsonl", rows(1))
    put(tmp_path, "2.jsonl", rows(2))
    at = changelog.begin()
    changelog.advance(at, 100, 0)
    put(tmp_path, name, rows(3))
    for reader in (changelog, FilesChangelog(settings, UnifiedFormat({}), ["t"])):
        with pytest.raises(UserError, match="behind"):
            reader.advance(at, 100, 0)


def test_a_closed_file_that_grew_after_others_were_deleted(tmp_path, changelog):
    for n in (1, 2, 3):
        put(tmp_path, f"{n}.jsonl", rows(n))
    at = changelog.begin()
    changelog.advance(at, 100, 0)
    (tmp_path / "1.jsonl").unlink()
    put(tmp_path, "2.jsonl", rows(9))
    with pytest.raises(UserError, match="behind"):
        changelog.advance(at, 100, 0)


def test_a_file_that_grew_between_planning_and_reading(tmp_path, changelog):
    start = changelog.begin()
    put(tmp_path, "1.jsonl", rows(1))
    put(tmp_path, "2.jsonl", rows(2))
    end = changelog.advance(start, 100, 0).offsets
    put(tmp_path, "1.jsonl", rows(3))
    with pytest.raises(UserError, match="behind"):
        changelog.splits(start, end)


class TestBounded:
    def test_an_empty_log_is_read_at_once(self, changelog):
        start = changelog.begin()
        changelog.finish()
        assert changelog.advance(start, 100, 0).watermark == END_OF_TIME

    def test_a_last_line_without_line_break_counts(self, tmp_path, settings, changelog):
        start = changelog.begin()
        put(tmp_path, "1.jsonl", rows(1), line(2, 2))
        changelog.finish()
        progress = changelog.advance(start, 100, 0)
        assert numbers(changelog, start, progress.offsets) == [1, 2]
        assert progress.watermark == END_OF_TIME
        put(tmp_path, "1.jsonl", b"\n", rows(3))
        later = FilesChangelog(settings, UnifiedFormat({}), ["t"])
        end = later.advance(progress.offsets, 100, 0).offsets
        assert numbers(later, progress.offsets, end) == [3]

    def test_a_line_that_is_being_written_does_not(self, tmp_path, changelog):
        start = changelog.begin()
        put(tmp_path, "1.jsonl", rows(1), line(2, 2)[:-1])
        changelog.finish()
        progress = changelog.advance(start, 100, 0)
        assert numbers(changelog, start, progress.offsets) == [1]
        assert progress.watermark == END_OF_TIME

    def test_files_that_come_later_are_not_read(self, tmp_path, changelog):
        start = changelog.begin()
        put(tmp_path, "1.jsonl", rows(1))
        changelog.finish()
        put(tmp_path, "2.jsonl", rows(2))
        progress = changelog.advance(start, 100, 0)
        assert numbers(changelog, start, progress.offsets) == [1]
        assert progress.watermark == END_OF_TIME


def test_it_waits_for_news_and_wakes(tmp_path, changelog):
    start = changelog.begin()
    began = time.monotonic()
    assert changelog.advance(start, 100, 60).offsets == start
    assert time.monotonic() - began >= 0.06
    threading.Timer(0.05, put, (tmp_path, "1.jsonl", rows(1))).start()
    patience = Patience(5)
    assert changelog.advance(start, 100, 10_000).offsets != start
    assert not patience.is_over()


def test_the_time_of_an_older_file_when_the_new_one_has_none(tmp_path, changelog):
    put(tmp_path, "1.jsonl", beat(77) + b"\n")
    start = changelog.begin()
    put(tmp_path, "2.jsonl", line(1, None) + b"\n")
    assert changelog.advance(start, 100, 0).watermark == 77


def test_a_bad_line_halts_with_file_and_byte(tmp_path, changelog):
    start = changelog.begin()
    put(tmp_path, "1.jsonl", rows(1), b'{"table": "t", oops}\n')
    split = changelog.splits(start, changelog.advance(start, 100, 0).offsets)[0]
    _, bad = changelog.read([split])
    with pytest.raises(DecodeError) as caught:
        list(UnifiedFormat({}).decode(bad))
    assert caught.value.where == f"{tmp_path / '1.jsonl'}, byte {len(rows(1))}"


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "name"])
def test_what_cannot_be_read_is_not_passed_over(tmp_path, changelog, kind):
    """Its lines may be there again later, when those of a later file are published."""
    start = changelog.begin()
    put(tmp_path, "2.jsonl", rows(2))
    file = tmp_path / "1.jsonl"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "link to nothing":
        file.symlink_to(tmp_path / "not mounted" / "1.jsonl")
    else:
        file = tmp_path / os.fsdecode(b"\xff.jsonl")
        file.write_bytes(rows(1))
    with pytest.raises(UserError, match="a change file ") as caught:
        changelog.advance(start, 100, 0)
    assert caught.value.where == str(file)
    assert not set(caught.value.render()) & {"\udcff"}


def test_a_file_that_is_deleted_while_the_folder_is_listed(tmp_path, changelog, monkeypatch):
    put(tmp_path, "1.jsonl", rows(1))
    put(tmp_path, "2.jsonl", rows(2))
    at = changelog.advance({"log": ["", 0, 0]}, 100, 0).offsets
    put(tmp_path, "2.jsonl", rows(3))
    look = changelog._check_entry

    def deleted(entry):
        look(entry)
        (tmp_path / "1.jsonl").unlink(missing_ok=True)

    monkeypatch.setattr(changelog, "_check_entry", deleted)
    assert numbers(changelog, at, changelog.advance(at, 100, 0).offsets) == [3]


def test_a_folder_that_is_gone_is_waited_for(tmp_path, changelog):
    put(tmp_path, "1.jsonl", rows(1))
    at = changelog.begin()
    away = tmp_path.rename(tmp_path.with_name("away"))
    with pytest.raises(AwayError, match="cannot be listed") as caught:
        changelog.advance(at, 100, 0)
    assert caught.value.where == str(tmp_path)
    away.rename(tmp_path)
    assert changelog.advance(at, 100, 0).offsets == at


def test_check(tmp_path, changelog):
    changelog.check()
    put(tmp_path, "1.json", b"{}")
    with pytest.raises(ConfigError, match="jsonl"):
        changelog.check()
    missing = ChangesSettings(source="files", format="unified", path=tmp_path / "none")
    with pytest.raises(ConfigError, match="not there"):
        FilesChangelog(missing, UnifiedFormat({}), []).check()


def test_lines_over_block_borders(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_BLOCK", 7)
    monkeypatch.setattr(lines, "_TAIL", 5)
    texts = [b"a" * n for n in range(12)]
    path = tmp_path / "x"
    path.write_bytes(b"\n".join(texts) + b"\nrest")
    size = path.stat().st_size
    assert lines.complete(path, size) == size - 4
    assert list(lines.backwards(path, size - 4)) == [t for t in reversed(texts) if t]
    for limit in range(1, 13):
        end, found, full = lines.reach(path, 0, size, limit, size)
        assert (end, found, full) == (sum(len(t) + 1 for t in texts[:limit]), limit, True)
    assert lines.reach(path, 0, size, 100, size) == (size - 4, 12, False)


@pytest.mark.parametrize("block", [3, 7, 1 << 20])
def test_lines_within_some_bytes(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lines, "_BLOCK", block)
    texts = [b"a" * 20, b"b", b"c" * 3, b"d" * 30, b"e"]
    ends = [sum(len(t) + 1 for t in texts[: n + 1]) for n in range(5)]
    path = tmp_path / "x"
    path.write_bytes(b"\n".join(texts) + b"\n")
    for start in range(5):
        at = ends[start - 1] if start else 0
        for most in range(70):
            fit = [n for n in range(start, 5) if ends[n] - at <= most]
            last = fit[-1] if fit else start  # a line longer than all bytes comes alone
            found = lines.reach(path, at, ends[-1], 100, most)
            assert (found.end, found.lines) == (ends[last], last - start + 1)
            assert found.is_full or last == 4


def test_bytes_over_several_files(tmp_path, changelog):
    log = [("1", [50, 10]), ("2", [10]), ("3", [10, 10, 40]), ("4", [5])]
    for name, sizes in log:
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(b"x" * (n - 1) + b"\n" for n in sizes))
    at, taken = _At("", 0, 0), []
    while (end := changelog._reach(at, 100, 31)[0]) != at:
        taken.append(end.before + end.byte - at.before - at.byte)
        at = end
    # The first is too long for the bytes; what is begun goes on over the ends of files.
    assert taken == [50, 30, 10, 40, 5]


@pytest.mark.parametrize(
    ("backlog", "rows", "expected"),
    [
        ({}, 10, {}),
        ({"a": 5}, 10, {"a": 5}),
        ({"a": 50, "b": 50}, 11, {"a": 6, "b": 5}),
        ({"a": 1, "b": 100, "c": 100}, 21, {"a": 1, "b": 10, "c": 10}),
        ({"a": 9, "b": 9, "c": 9}, 1, {"a": 1, "b": 0, "c": 0}),
    ],
)
def test_fair_shares(backlog, rows, expected):
    assert fair_shares(backlog, rows) == expected


@pytest.mark.parametrize(
    "offsets", [{}, {"log": 7}, {"log": ["a.jsonl", "0", 0]}, {"log": ["a.jsonl", 0]}]
)
def test_offsets_of_another_form_are_told(changelog, offsets):
    log = changelog
    for use in (log.first, lambda o: log.advance(o, 1, 0), lambda o: log.splits(o, o), log.begin):
        with pytest.raises(CorruptionError, match=r"(?s)another form.*mview drop"):
            use(offsets)
