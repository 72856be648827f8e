"""Which queries stay planned, where there are more than may be."""

from __future__ import annotations

import threading

import pyarrow as pa

from mview.execute.queries import Queries

ROWS = pa.table({"a": [1, 2, 3]})


def run(queries: Queries, number: int) -> int:
    answer = queries.run(f"SELECT sum(a) + {number} AS s FROM t", {"t": ROWS})
    assert answer["s"].to_pylist() == [6 + number]
    return queries.plans


def test_going_round_more_queries_than_stay_planned_finds_those_that_do() -> None:
    queries = Queries(most=20)
    for _ in range(3):
        for number in range(25):
            run(queries, number)
    before = queries.plans
    for _ in range(10):
        for number in range(25):
            run(queries, number)
    # Five of each round have no room; with the oldest gone for the newest, it were all 25.
    assert queries.plans - before <= 10 * 5 + 10
    queries.close()


def test_what_is_asked_for_now_takes_the_place_of_what_was_once() -> None:
    queries = Queries(most=10)
    for _ in range(30):
        for number in range(10):
            run(queries, number)
    for _ in range(30):
        for number in range(100, 110):
            run(queries, number)
    before = queries.plans
    for number in range(100, 110):
        run(queries, number)
    assert queries.plans == before
    queries.close()


def test_threads_run_queries_of_which_each_takes_the_place_of_another() -> None:
    queries, failed = Queries(most=2), []

    def many(seed: int) -> None:
        try:
            for turn in range(200):
                run(queries, (turn * seed) % 5)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    queries.close()
