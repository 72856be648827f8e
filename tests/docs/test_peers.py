"""The page of other engines is what its program makes of the files of results."""

from __future__ import annotations

from pathlib import Path

from tests.bench.results import read_all
from tests.bench.side_by_side import lines, page, picture

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_and_its_picture_are_those_of_the_results() -> None:
    known = lines(read_all())
    assert (DOCS / "peers.md").read_text() == page(known)
    assert (DOCS / "peers.svg").read_text() == picture(known)
    assert {line.engine.split()[0] for line in known} == {"**mview**,", "Flink", "Pathway,"}
    assert all(line.measured for line in known)
