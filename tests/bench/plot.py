"""A line plot as SVG: what the report needs, and no library for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 40, 50
#: Told apart by colour-blind readers, too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-size:14px}.grid{stroke:#ddd}.axis{stroke:#333}"
)


@dataclass(frozen=True)
class Axis:
    """One axis: from `low` to `high` in data, from `start` to `end` in the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value stands in the picture."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return self.start + (at - low) / ((high - low) or 1) * (self.end - self.start)


def _ticks(high: float) -> list[float]:
    """Four to ten round numbers from 0 to at least `high`."""
    step = 10.0 ** math.floor(math.log10(high)) / 2
    while high / step > 10:
        step *= 2
    return [step * number for number in range(math.ceil(high / step) + 1)]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def line_plot(
    title: str, labels: tuple[str, str], series: Mapping[str, Sequence[Point]], log_x: bool = False
) -> str:
    """The picture.

    Args:
        title: above it.
        labels: of the axes, x and y.
        series: points by name, in the order of x; values are positive.
        log_x: whether x is logarithmic; its ticks are the points' own x.
    """
    xs = sorted({x for points in series.values() for x, _ in points})
    ticks = _ticks(max(y for points in series.values() for _, y in points))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    across = Axis(xs[0], xs[-1], _LEFT, right, log_x)
    up = Axis(0, ticks[-1], bottom, _TOP)
    middle = ' text-anchor="middle"'
    parts = [
        _text((_LEFT + right) / 2, 22, title, middle + ' class="title"'),
        _text((_LEFT + right) / 2, _HEIGHT - 12, labels[0], middle),
        _text(
            16, 0, labels[1], f'{middle} transform="translate(0 {_HEIGHT / 2}) rotate(-90 16 0)"'
        ),
    ]
    for tick in ticks:
        parts += [
            _line("grid", _LEFT, up.place(tick), right, up.place(tick)),
            _text(_LEFT - 6, up.place(tick) + 4, f"{tick:,.4g}", ' text-anchor="end"'),
        ]
    for x in xs:
        parts += [
            _line("axis", across.place(x), bottom, across.place(x), bottom + 4),
            _text(across.place(x), bottom + 18, f"{x:,.4g}", middle),
        ]
    parts.append(_line("axis", _LEFT, bottom, right, bottom))
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(across.place(x), up.place(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(_text(right + 10, places[-1][1] + 4, name, f' style="fill:{colour}"'))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">\n'
        f'<style>{_STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def range_plot(title: str, spans: Mapping[str, tuple[float, float]]) -> str:
    """Spans beneath each other, on a logarithmic scale.

    Args:
        title: above them.
        spans: by name, from the least to the largest; all are positive.
    """
    left, right, step = 330, _WIDTH - 30, 34
    bottom = _TOP + step * len(spans)
    low = 10.0 ** math.floor(math.log10(min(start for start, _ in spans.values())))
    high = 10.0 ** math.ceil(math.log10(max(end for _, end in spans.values())))
    across = Axis(low, high, left, right, log=True)
    middle = ' text-anchor="middle"'
    parts = [_text(_WIDTH / 2, 22, title, middle + ' class="title"')]
    tick = low
    while tick <= high * 1.001:
        at = across.place(tick)
        parts.append(_line("grid", at, _TOP, at, bottom))
        parts.append(_text(at, bottom + 18, f"{tick:g}", middle))
        tick *= 10
    for number, (name, (start, end)) in enumerate(spans.items()):
        y, x1, x2 = _TOP + step * (number + 0.5), across.place(start), across.place(end)
        colour = _COLOURS[1] if name.startswith("mview") else _COLOURS[0]
        parts.append(_text(left - 10, y + 4, name, ' text-anchor="end"'))
        size = f'width="{x2 - x1:.1f}" height="14"'
        parts.append(f'<rect x="{x1:.1f}" y="{y - 7:.1f}" {size} fill="{colour}"/>')
        parts.append(_text(x2 + 6, y + 4, f"{start:g} to {end:g}"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 30}">\n'
        f'<style>{_STYLE}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
