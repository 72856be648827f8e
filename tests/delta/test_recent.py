"""What is remembered of files stays within its bytes, over all owners."""

from __future__ import annotations

import gc
import random
import threading

import pyarrow as pa

from mview.delta.recent import Pool, Recent


def rows(count: int) -> pa.Table:
    """So many times 8 bytes."""
    return pa.table({"id": pa.array(range(count), pa.int64())})


def test_the_oldest_go_first_whosever_they_are() -> None:
    pool = Pool(250)
    one, other = (Recent[pa.Table](200, pool) for _ in range(2))
    one.add("a", rows(10))
    other.add("b", rows(10))
    assert one.get("a") is not None  # asked for: b is older now
    one.add("c", rows(10))
    assert other.get("b") is not None
    other.add("d", rows(10))
    assert "a" not in one
    assert ("b" in other, "c" in one, "d" in other) == (True, True, True)
    assert pool.used == 240


def test_an_owner_has_a_limit_too_and_what_is_too_large_is_not_kept() -> None:
    pool = Pool(1_000)
    recent = Recent[pa.Table](200, pool)
    for name in "abc":
        recent.add(name, rows(10))
    assert [name in recent for name in "abc"] == [False, True, True]
    recent.add("large", rows(26))
    assert [name in recent for name in ("b", "c", "large")] == [True, True, False]
    recent.add("c", rows(5))
    assert pool.used == 120
    recent.forget({"c"})
    assert ("b" in recent, "c" in recent, pool.used) == (False, True, 40)


def test_going_round_more_files_than_there_is_room_for_finds_those_that_stay() -> None:
    pool = Pool(80 * 20)
    looked, written = Recent[pa.Table](10_000, pool, scanned=True), Recent[pa.Table](160, pool)

    def go_round(first: int) -> int:
        """All files once; how many were not there."""
        missed = 0
        for number in range(first, first + 24):
            if looked.get(str(number)) is None:
                missed += 1
                looked.add(str(number), rows(10))
        return missed

    go_round(0)
    # With the newest in the place of the oldest, each round missed all 24.
    assert [go_round(0) for _ in range(20)] == [4] * 20
    written.add("new", rows(10))  # what was just written is read soon: it comes first
    assert "new" in written
    assert [go_round(0) for _ in range(4)][-1] <= 6
    # Other files that are asked for instead have come in after some rounds.
    assert [go_round(100) for _ in range(25)][-1] == 4
    assert pool.used <= pool.limit


def test_what_the_pool_lets_go_of_makes_room_for_its_owner() -> None:
    """The bytes of an owner are counted on; what others have driven out must not count for ever."""
    pool = Pool(400)
    recent, other = Recent[pa.Table](240, pool), Recent[pa.Table](400, pool)
    for turn in range(5):
        for name in "abc":
            recent.add(f"{name}{turn}", rows(10))
        assert [f"{name}{turn}" in recent for name in "abc"] == [True] * 3
        other.add(f"x{turn}", rows(50))
        assert not any(f"{name}{turn}" in recent for name in "abc")
    recent.add("a", rows(10))
    recent.forget({"a"})
    recent.add("b", rows(20))
    assert "a" in recent
    assert "b" in recent


def test_an_owner_that_is_freed_leaves_room() -> None:
    pool = Pool(1_000)
    Recent[pa.Table](500, pool).add("a", rows(10))
    gc.collect()
    kept = Recent[pa.Table](500, pool)
    kept.add("b", rows(10))
    assert pool.used == 80


def test_many_threads_keep_within_the_bytes() -> None:
    pool = Pool(5_000)
    owners = [Recent[pa.Table](4_000, pool) for _ in range(3)]
    most = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(1_000):
            owner, path = draw.choice(owners), str(draw.randrange(30))
            if draw.random() < 0.5:
                owner.add(path, rows(draw.randrange(200)))
            elif draw.random() < 0.1:
                owner.forget({str(n) for n in range(draw.randrange(30))})
            else:
                owner.get(path)
            with pool.lock:
                most.append(pool.used)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < max(most) <= 5_000
    for owner in owners:
        owner.forget(())
    assert pool.used == 0
