"""The page of other engines is what its program makes of the files of results."""

from __future__ import annotations

from pathlib import Path

from tests.bench.results import read_all
from tests.bench.side_by_side import lines, numbers, page, picture

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_page_and_its_picture_are_those_of_the_results() -> None:
    known = lines(read_all())
    assert (DOCS / "peers.md").read_text() == page(known)
    assert (DOCS / "peers.svg").read_text() == picture(known)
    assert {line.engine.split()[0] for line in known} == {"**mview**,", "Flink", "Pathway,"}
    assert all(line.measured for line in known)


def test_the_readme_has_the_freshness_that_was_measured() -> None:
    ours = lines(read_all())[0]
    (p50,) = numbers(ours.p50)
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"after {p50:.2f} s at the median, with 300 changes a second" in said
