"""Write README.md of this folder from the results: `python -m tests.bench.report`."""

from __future__ import annotations

from pathlib import Path

from tests.bench.results import Result, as_markdown, read_all

_HEAD = """# Benches

`make bench` runs all of them at scale 0.1 and writes this page from `measured/*.json`; none of its
figures is written by hand. `python -m tests.bench epoch freshness --sf 0.1,1` runs some. Compare
ratios within one run; the load average before and after tells how busy the machine was.
"""


def _section(result: Result) -> str:
    facts = "; ".join(f"{name} {value}" for name, value in result.machine.items())
    notes = "".join(f"\n- {note}" for note in result.notes)
    return (
        f"## {result.title}\n\n`{result.command}` ({result.when})\n\n{as_markdown(result)}\n"
        f"{notes}\n\n<sub>{facts}</sub>\n"
    )


def main() -> None:
    """Write the page."""
    sections = [_section(result) for result in read_all()]
    page = Path(__file__).with_name("README.md")
    page.write_text("\n".join([_HEAD, *sections]))
    print(f"{page.name}: {len(sections)} results")


if __name__ == "__main__":
    main()
