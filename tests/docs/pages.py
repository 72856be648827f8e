"""The pages of docs that are made of the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs import errors, results, settings
from tests.execute.local import common_functions

#: What makes each page.
PAGES: Mapping[Path, Callable[[], str]] = {
    common_functions.PAGE: common_functions.page,
    errors.PAGE: errors.page,
    results.PAGE: results.page,
    settings.PAGE: settings.page,
}
