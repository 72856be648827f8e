"""Spark of a run starts when it is needed, once, and what fails then is told to who needs it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mview.epoch.halts import halting
from mview.errors import ConfigError
from mview.session.lazy import Spark
from mview.store.layout import Store
from tests.patience import join


class Session:
    """In the place of a session that has two slots."""

    sparkContext = SimpleNamespace(  # noqa: N815 (Spark's name)
        defaultParallelism=2, _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=bool))
    )


class Starts:
    """Starts sessions when it is let, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked, self.let = 0, threading.Event()

    def __call__(self) -> Any:
        self.asked += 1
        assert self.let.wait(60)
        return Session()


def refused() -> Any:
    raise ConfigError("Spark does not start", hint="mend it")


def test_nothing_starts_that_nobody_needs() -> None:
    starts = Starts()
    spark = Spark(starts, slots=4)
    assert (spark.running, spark.slots) == (None, 4)
    assert not spark.is_to_blame(ConfigError("of a view"))
    spark.settle()
    assert starts.asked == 0


def test_all_who_need_it_get_the_same() -> None:
    starts = Starts()
    spark = Spark(starts)
    spark.begin()
    spark.begin()
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(spark.session())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert spark.running is None
    starts.let.set()
    for thread in threads:
        join(thread, 60)
    spark.settle()
    assert starts.asked == 1
    assert got == [spark.running] * 4
    assert spark.slots == 2


def test_it_is_prepared_before_anybody_has_it() -> None:
    starts, seen = Starts(), []
    spark = Spark(starts)
    spark.once_started(lambda session: seen.append((session, spark.running)))
    starts.let.set()
    session = spark.session()
    assert seen == [(session, None)]
    spark.once_started(lambda session: seen.append((session, spark.running)))
    assert seen == [(session, None), (session, session)]


def test_one_that_cannot_start_beside_a_run_is_told_and_then_raised(tmp_path: Any) -> None:
    said: list[str] = []
    spark = Spark(refused, said.append)
    spark.begin()
    spark.settle()
    (told,) = said
    assert "views in process go on" in told
    assert "mend it" in told
    with pytest.raises(ConfigError) as raised:
        spark.session()
    # It is no view's error: the run ends, and nothing halts.
    with pytest.raises(ConfigError):
        halting(raised.value, "v", Store(tmp_path), spark)
    # Nor is Spark to blame for what a view does without it.
    other = ConfigError("of a view")
    assert halting(other, "v", Store(tmp_path), spark) is other


def test_one_that_fails_while_it_is_prepared_is_never_used() -> None:
    spark = Spark(lambda: cast(Any, Session()))

    def fail(session: object) -> None:
        raise ConfigError("not this")

    spark.once_started(fail)
    for _ in range(2):
        with pytest.raises(ConfigError):
            spark.session()
    assert spark.running is None
