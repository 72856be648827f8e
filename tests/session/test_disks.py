"""Which disk an error names that says only that one is full."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from mview.errors import MviewError, RetryableError
from mview.session.disks import disks_told

FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("free", [5_000_000, 34 << 30])
def test_a_disk_with_room_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, *, behind: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    error = RetryableError(f"sink lake: {FULL}") if behind else ValueError(FULL)
    with pytest.raises(MviewError) as told, disks_told(lambda: [tmp_path]):
        raise error
    text = str(told.value.render())
    assert FULL in text
    assert ("where 4,882 kB are free" in text) == (free < 1 << 30)
    assert ("are free" in text) == (free < 1 << 30)
