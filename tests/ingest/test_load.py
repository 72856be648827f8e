"""How the query of a load ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mview.errors import RetryableError
from mview.ingest.load import LoadQuery


class Ended:
    """A query of Spark that has ended, and says nothing."""

    isActive = False  # noqa: N815  # the name is of Spark

    def __init__(self) -> None:
        self.stopped = False

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.stopped = True


def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Ended) -> LoadQuery:
    spec: Any = SimpleNamespace(write=str)
    monkeypatch.setattr(LoadQuery, "_start", lambda self, spec: query)
    spark: Any = None
    return LoadQuery(spark, spec, tmp_path, [], lambda rows, offsets, batch: None)


def test_an_end_that_nobody_here_asked_for_is_no_end_of_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Ended()
    with pytest.raises(RetryableError, match="ended by somebody else"):
        load(tmp_path, monkeypatch, query).run(lambda: False)
    assert query.stopped


def test_an_end_after_the_last_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Ended()
    load(tmp_path, monkeypatch, query).run(lambda: True)
    assert query.stopped
