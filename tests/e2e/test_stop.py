"""Stopping a streaming query while its next batch is just beginning."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from mview.runtime.query import LoadQuery, _StoppingError


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
    monkeypatch.setattr(epochs, "_start", lambda: query)
    epochs.run(lambda: True)
    assert len(query.refused) == 1
    assert not ran
