"""Stopping a streaming query while its next batch is just beginning."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from mview.errors import RetryableError
from mview.ingest.load import LoadQuery, _StoppingError


class Query:
    """What Spark gives: `stop` waits for the batch that has begun."""

    isActive = True  # noqa: N815 (Spark's name)

    def __init__(self, begin_batch) -> None:
        self._begin_batch = begin_batch
        self.refused: list[BaseException] = []

    def awaitTermination(self, seconds: float) -> None:
        """Nothing to wait for."""

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        batch = threading.Thread(target=self._batch, daemon=True)
        batch.start()
        batch.join(5)
        assert not batch.is_alive(), "stop waits for the batch, and the batch for stop"

    def _batch(self) -> None:
        with pytest.raises(_StoppingError) as error:
            self._begin_batch(None, 7)
        self.refused.append(error.value)


def test_stop_does_not_wait_for_a_batch_that_waits_for_stop(tmp_path, monkeypatch) -> None:
    ran: list[int] = []
    spec = SimpleNamespace(write=lambda file: None)
    epochs = LoadQuery(None, spec, tmp_path, [], lambda rows, offsets, batch: ran.append(batch))
    query = Query(epochs._batch)
    monkeypatch.setattr(epochs, "_start", lambda file: query)
    epochs.run(lambda: True)
    assert len(query.refused) == 1
    assert not ran


def test_what_java_raises_in_a_batch_is_told_as_sparks(tmp_path, monkeypatch) -> None:
    """A killed worker fails the batch where its rows are fetched, with an error of py4j's."""

    class Frame:
        def toArrow(self):
            raise Py4JError("SparkException: Python worker exited unexpectedly (crashed)")

    class Failing:
        isActive = False  # noqa: N815 (Spark's name)

        def __init__(self, begin_batch) -> None:
            with pytest.raises(Py4JError) as raised:
                begin_batch(Frame(), 7)
            self.exception = lambda: raised.value

        def stop(self) -> None:
            """It has ended."""

    monkeypatch.setattr("mview.ingest.load.batch_offsets", lambda folder, batch: None)
    spec = SimpleNamespace(write=lambda file: None)
    epochs = LoadQuery(None, spec, tmp_path, [], lambda rows, offsets, batch: None)
    monkeypatch.setattr(epochs, "_start", lambda file: Failing(epochs._batch))
    with pytest.raises(RetryableError, match="was killed, or has crashed"):
        epochs.run(lambda: False)
