"""The worked example in docs/notebook: it runs, and shows what it shows on its page."""

from __future__ import annotations

import re
from base64 import b64decode
from io import BytesIO
from itertools import zip_longest
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from tests.notebook.example import BOOK, FAILS, LINEAGE, SAME, results, run, without_places


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_runs_and_shows_the_same(tmp_path: Path) -> None:
    kept, book = (nbformat.read(BOOK, as_version=4) for _ in range(2))
    run(book, tmp_path)
    again = nbformat.reads(without_places(book, tmp_path), as_version=4)
    for before, after in zip_longest(kept.cells, again.cells):
        assert before.source == after.source
        if SAME in before.metadata.get("tags", ()):
            assert results(after) == results(before), before.source
        errors = [o for o in after.get("outputs", ()) if o.output_type == "error"]
        assert bool(errors) == (FAILS in before.metadata.get("tags", ())), before.source


def test_what_is_kept_is_small_whole_and_of_no_machine() -> None:
    text = BOOK.read_text(encoding="utf-8")
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert len(text) < 150_000
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    (failed,) = (o for cell in code for o in cell.outputs if o.output_type == "error")
    assert len(failed.traceback) < 10
    assert failed.traceback[0] == "Error: unknown column 'prize'"
    shown = [kind for cell in code for o in cell.outputs for kind in o.get("data", ())]
    for kind in ("text/html", "image/svg+xml", "image/png"):
        assert kind in shown
    (chart,) = (o.data["image/png"] for cell in code for o in cell.outputs
                if "image/png" in o.get("data", ()))  # fmt: skip
    with Image.open(BytesIO(b64decode(chart))) as picture:
        picture.load()
    places = set(re.findall(r"/(?:home|root|tmp|work|private)/[\w./-]*", text))
    assert places
    assert all(place.startswith("/home/you/auctions") for place in places)
    assert LINEAGE.read_text(encoding="utf-8") in [
        o.data["image/svg+xml"] for cell in code for o in cell.outputs
        if "image/svg+xml" in o.get("data", ())
    ]  # fmt: skip
