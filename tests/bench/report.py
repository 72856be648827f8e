"""Write README.md of this folder and the plot from the results: `python -m tests.bench.report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.bench import side_by_side
from tests.bench.plot import Point, line_plot
from tests.bench.results import Result, as_markdown, read_all

#: What the benches are about, in the order of the page; the programs of each.
_TOPICS = {
    "Loading": ("bulk_load", "verify_source", "load_live", "first_build"),
    "An epoch": ("epoch", "growth", "views", "strategies", "full"),
    "Reading changes": ("decode", "connections"),
    "Freshness and catching up": ("freshness", "catchup", "restart", "jvm_start"),
    "Memory, and pauses": ("memory", "pauses", "keys"),
    "The pilot's workload": ("w2",),
    "Sinks": ("write_amplification", "followers", "light"),
    "Beside other engines": ("peers", "flink_cdc", "peers_noted"),
}

_HEAD = """# Benches

`make bench` runs all of them at scale 0.1 and writes this page from `measured/*.json`; none of its
figures is written by hand. `python -m tests.bench epoch freshness --sf 0.1,1` runs some. Compare
ratios within one run; the load average before and after tells how busy the machine was.
"""

_PLOT = Path(__file__).parents[2] / "docs" / "growth.svg"


def _facts(machine: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in machine.items() if "load" not in name)


def _section(result: Result, common: str) -> str:
    facts = _facts(result.machine)
    other = "" if facts == common else f"{facts}; "
    load = "; ".join(f"{name} {value}" for name, value in result.machine.items() if "load" in name)
    notes = "".join(f"\n- {note}" for note in result.notes)
    return (
        f"### {result.title}\n\n`{result.command}` ({result.when})\n\n{as_markdown(result)}\n"
        f"{notes}\n\n<sub>{other}{load}</sub>\n"
    )


def page(results: Sequence[Result], plot: str | None) -> str:
    """The page.

    Args:
        results: all of them.
        plot: where the plot is, as seen from the page; None without one.
    """
    machines = Counter(_facts(result.machine) for result in results)
    common = machines.most_common(1)[0][0] if machines else ""
    parts = [_HEAD, f"Machine, where nothing else is said: {common}.\n"]
    for topic, benches in _TOPICS.items():
        of_topic = [one for bench in benches for one in results if one.bench == bench]
        if not of_topic:
            continue
        parts.append(f"## {topic}\n")
        if plot is not None and "growth" in {one.bench for one in of_topic}:
            parts.append(f"![Epoch time against table size]({plot})\n")
        parts += [_section(one, common) for one in of_topic]
    return "\n".join(parts)


def growth_plot(result: Result) -> str:
    """Epoch time against the rows of the tables, by kind of keys."""
    series: dict[str, list[Point]] = {}
    points = zip(result.numbers("rows"), result.numbers("p50 ms"), strict=True)
    for row, (rows, milliseconds) in zip(result.rows, points, strict=True):
        series.setdefault(f"{row[0]} keys", []).append((rows / 1e6, milliseconds))
    labels = "rows of all tables, millions", "p50 of an epoch, ms"
    return line_plot(result.title, labels, series, log_x=True)


def main() -> None:
    """Write the page and the plot."""
    results = read_all()
    if unknown := {one.bench for one in results} - {n for names in _TOPICS.values() for n in names}:
        raise SystemExit(f"no topic for the results of {', '.join(sorted(unknown))}")
    target = Path(__file__).with_name("README.md")
    plot = None
    growth = [one for one in results if one.bench == "growth"]
    if growth:
        _PLOT.write_text(growth_plot(growth[0]))
        plot = f"../../docs/{_PLOT.name}"
    target.write_text(page(results, plot))
    side_by_side.write(results)
    print(f"{target.name}: {len(results)} results")


if __name__ == "__main__":
    main()
