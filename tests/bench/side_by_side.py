"""Write docs/peers.md and its picture from the result files: `python -m tests.bench.side_by_side`.

Nothing is measured here: what mview and other engines took for W1 at scale 1 is read from
`measured`, each with its day and the load of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.plot import range_plot
from tests.bench.results import Result, read_all

_DOCS = Path(__file__).parents[2] / "docs"
_PICTURE = _DOCS / "peers.svg"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_MISSING = ""

_HEAD = """# Side by side

The same work for each: TPC-H's customers, orders and lines at scale 1 (7.6 million rows), a view
that joins the three and groups by order (758,000 groups), 300 changes a second through Kafka, on
two cores. Every result was compared with the right one. Lines with the same day are of one sitting;
each says when, and how busy the machine was (load, of two cores). Machines differ by the day:
mview's p50 was 0.065 to 0.125 s, its bursts 21,000 to 55,000 changes/s, its load 34 to 54 s, so
compare within a day. This page is made from `tests/bench/measured` by
`python -m tests.bench.side_by_side`.

![Freshness at 300 changes a second](peers.svg)

"""
_TAIL = """
- *exactly once*: after a failure no change is lost or counted twice. mview shows its rows in a
  Delta table, each epoch a complete cut; Flink and Pathway send rows to Kafka.
- *freshness*: from the time that a change is sent until its row may be read.
- *load*: mview and Flink CDC from PostgreSQL, with planning and first build; the others from CSV
  files or Kafka, which is not the same work.

## Where mview loses

- **Pathway is fresher and takes a burst faster.** It keeps all in memory and is at least once.
- **Flink at least once takes a burst faster**, by half in one sitting. It may show rows twice after
  a failure.
- RisingWave and Materialize are not here: they could not be had where this was measured. dbsp,
  which Feldera is made of, is a library without sources and sinks: not the same work.

Programs: `tests/bench/peers.py` for Flink and Pathway, `flink_cdc.py`, and for mview
`freshness.py`, `catchup.py` and `load_live.py`.
"""


@dataclass(frozen=True)
class Line:
    """What an engine took, as text; "" where it was not measured."""

    engine: str
    p50: str = _MISSING
    p95: str = _MISSING
    catchup: str = _MISSING
    load: str = _MISSING
    memory: str = _MISSING
    measured: str = _MISSING

    @property
    def freshness(self) -> tuple[float, float] | None:
        """From the least p50 to the largest p95, in seconds."""
        if not self.p50:
            return None
        return min(numbers(self.p50)), max(numbers(self.p95))


def numbers(text: str) -> list[float]:
    """The numbers in a cell: `0.18 to 0.35`."""
    return [float(number.replace(",", "")) for number in _NUMBER.findall(text)]


def _values(result: Result | None) -> Mapping[str, str]:
    """The second column by the first."""
    return {} if result is None else {row[0]: row[1] for row in result.rows}


def _when(results: list[Result | None]) -> str:
    days = []
    for result in results:
        if result is not None:
            days.append(f"{result.when}, load {result.machine['load before']}")
    return "; ".join(dict.fromkeys(days))


def _gigabytes(megabytes: str) -> str:
    return f"{numbers(megabytes)[0] / 1000:.1f}" if megabytes else _MISSING


def lines(results: list[Result]) -> list[Line]:
    """What is known of each engine."""
    by_name = {f"{one.bench}-{one.variant}": one for one in results}

    def get(name: str) -> Result | None:
        return by_name.get(name)

    fresh = get("freshness-sf1-300-deletion-vectors")
    burst = get("catchup-sf1-deletion-vectors")
    load = get("load_live-sf1")
    ours, bursts = _values(fresh), _values(burst)
    mview = Line(
        "**mview**, exactly once",
        ours.get("freshness p50, s", _MISSING),
        ours.get("freshness p95, s", _MISSING),
        bursts.get("changes/s", _MISSING),
        _values(load).get("until the view is live, s", _MISSING),
        _gigabytes(bursts.get("peak RSS, MB", ours.get("peak RSS, MB", _MISSING))),
        _when([fresh, burst, load]),
    )
    known = [mview]
    if peers := get("peers-sf1"):
        for number, engine in enumerate(peers.columns[1:], start=1):
            said = {row[0]: row[number] for row in peers.rows}
            known.append(
                Line(
                    engine,
                    said["freshness p50, s"],
                    said["freshness p95, s"],
                    said["catch-up, changes/s"],
                    f"{said['load, s']} ({said['loaded from']})",
                    _gigabytes(said["peak RSS, MB"]),
                    _when([peers]),
                )
            )
    if cdc := get("flink_cdc-sf1"):
        said = _values(cdc)
        known.append(
            Line(
                "Flink CDC",
                load=said["until the view is complete, s"],
                memory=_gigabytes(said["peak RSS, MB"]),
                measured=_when([cdc]),
            )
        )
    if noted := get("peers_noted-sf1"):
        measured = {line.engine for line in known}
        known += [
            Line(f"{engine} (noted)", *cells, measured="noted earlier, day and load unknown")
            for engine, *cells in noted.rows
            if engine not in measured
        ]
    return known


def page(known: list[Line]) -> str:
    """The page."""
    heads = ["engine", "freshness p50, s", "p95, s", "burst, changes/s", "load, s", "memory, GB"]
    heads.append("measured")
    table = [heads, ["---"] * len(heads)]
    for line in known:
        cells = [line.engine, line.p50, line.p95, line.catchup, line.load, line.memory]
        table.append([*cells, line.measured])
    rows = "\n".join("| " + " | ".join(cells) + " |" for cells in table)
    return _HEAD + rows + "\n" + _TAIL


def picture(known: list[Line]) -> str:
    """Freshness of all that were measured, the freshest above."""
    spans = {
        line.engine.replace("*", ""): span for line in known if (span := line.freshness) is not None
    }
    ordered = dict(sorted(spans.items(), key=lambda item: item[1]))
    return range_plot("Freshness at 300 changes/s: from p50 to p95, seconds", ordered)


def write(results: list[Result]) -> None:
    """Write both."""
    known = lines(results)
    (_DOCS / "peers.md").write_text(page(known))
    _PICTURE.write_text(picture(known))


if __name__ == "__main__":
    write(read_all())
