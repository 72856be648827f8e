"""What ends a run on a full disk is kept as it was told: `status` says which disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mview.errors import RetryableError
from mview.plan.definition import parse_view
from mview.run import pipeline
from mview.store.failure import last_failure
from mview.store.layout import Store
from tests.conftest import small_config


def test_which_disk_was_full_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        # As writers of Parquet say it: without a file.
        raise OSError(errno.ENOSPC, f"Error writing bytes to file. {os.strerror(errno.ENOSPC)}")

    config = small_config(tmp_path)
    monkeypatch.setattr(pipeline, "recover", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=5_000_000))
    run = pipeline.Pipeline(config, [parse_view("SELECT id FROM crm.people", "v")])
    with pytest.raises(RetryableError) as told:
        run.run(once=True)
    kept = last_failure(Store(config.store), 0)
    assert kept is not None
    assert "where 4,882 kB are free" in str(kept.where)
    assert kept.where == told.value.where
