"""Small pictures as SVG: a line over time, bars, a graph from left to right. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from mview.errors import printable

#: Colours that can be read on light and on dark ground, also by people who do not see red.
_LINE, _AXIS = "#3778bf", "#888888"
_FILLS = {"table": "#dbe9f6", "view": "#fdecc8", "sink": "#e3e3e3"}

_FONT = 'font-family="sans-serif" font-size="12"'

#: Pixels: of a chart, of a node of a graph, between two of them.
_WIDTH, _HEIGHT, _MARGIN = 560, 120, 48
_BOX_HEIGHT, _GAP_X, _GAP_Y, _LETTER = 28, 60, 14, 7

#: Letters of a name that are shown.
_LETTERS = 40


@dataclass(frozen=True)
class Picture:
    """An SVG picture; a notebook shows it.

    Attributes:
        svg: its text.
    """

    svg: str

    def save(self, path: str | Path) -> None:
        """Write it into a file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<picture, {len(self.svg):,} letters of SVG>"


def line_chart(points: Sequence[tuple[float, float]], title: str, unit: str) -> str:
    """A line of values over time.

    Args:
        points: seconds and values, in order.
        title: what is shown.
        unit: of the values.
    """
    left, right, bottom, top = _MARGIN, _WIDTH - 8, _HEIGHT - 20, 22
    begin, end = (points[0][0], points[-1][0]) if points else (0.0, 0.0)
    most = max([value for _, value in points] or [0]) or 1
    places = [
        (
            left + (right - left) * (at - begin) / ((end - begin) or 1),
            bottom - (bottom - top) * value / most,
        )
        for at, value in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        _text(left, 14, f"{title}: {points[-1][1]:,.1f} {unit}" if points else title),
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="{_AXIS}"/>',
        _text(left - 4, top + 8, f"{most:,.3g} {unit}", "end"),
        _text(left - 4, bottom, "0", "end"),
        _text(left, _HEIGHT - 5, f"{end - begin:,.0f} s ago" if points else ""),
        _text(right, _HEIGHT - 5, "now", "end"),
        f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>',
    ]
    return _svg(_WIDTH, _HEIGHT, title, parts)


def bar_chart(bars: Sequence[tuple[str, float]], title: str) -> str:
    """A bar for each name.

    Args:
        bars: names and values; a value below zero goes to the left.
        title: what is shown.
    """
    row, names = 20, 150
    values = [0.0, *(value for _, value in bars)]
    low, high = min(values), max(values)
    scale = (_WIDTH - names - 90) / ((high - low) or 1)
    zero = names - low * scale
    parts = [_text(0, 14, title)]
    for number, (name, value) in enumerate(bars):
        y = 24 + number * row
        x, width = zero + min(value, 0) * scale, abs(value) * scale
        parts.append(_text(names - 6, y + 13, _short(name, 20), "end"))
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{row - 5}" fill="{_LINE}"/>'
        )
        parts.append(_text(zero + max(value, 0) * scale + 4, y + 13, f"{value:,.6g}"))
    return _svg(_WIDTH, 30 + len(bars) * row, title, parts)


@dataclass(frozen=True)
class Box:
    """What a graph has.

    Attributes:
        name: unique, and what is shown.
        kind: `table`, `view` or `sink`.
        reads: names of the nodes that it is made of.
    """

    name: str
    kind: str
    reads: tuple[str, ...] = ()


def graph(boxes: Sequence[Box], labels: Mapping[str, str], title: str) -> str:
    """Boxes in columns, each to the right of all that it is made of, with lines between.

    A line that goes over a column has a free row there, so that it crosses no box.

    Args:
        boxes: in an order in which each comes after what it reads.
        labels: what is shown instead of a name.
    """
    column: dict[str, int] = {}
    for box in boxes:
        column[box.name] = max((column[name] + 1 for name in box.reads), default=0)
    #: By column and name, where the lines from a name end in this column: a box, or a free row.
    slots: list[dict[str, list[str]]] = [{} for _ in range(max(column.values(), default=0) + 1)]
    for box in boxes:
        slots[column[box.name]][box.name] = [*box.reads]
        for name in box.reads:
            for between in range(column[name] + 1, column[box.name]):
                slots[between][name] = [name]
    places: list[dict[str, _Place]] = []
    left = 8
    for number, inside in enumerate(slots):
        rows = {name: _mean_row(reads, places) for name, reads in inside.items()}
        shown = [len(_label(labels, name)) for name in inside if column[name] == number]
        width = 20 + _LETTER * max(shown, default=0)
        places.append(
            {
                name: _Place(left, 8 + row * (_BOX_HEIGHT + _GAP_Y), width)
                for row, name in enumerate(sorted(inside, key=rows.__getitem__))
            }
        )
        left += width + _GAP_X
    lines = [
        _edge(places[number - 1][read], place, column[name] != number)
        for number, inside in enumerate(places)
        for name, place in inside.items()
        for read in slots[number][name]
    ]
    drawn = [
        _box(box, _label(labels, box.name), places[column[box.name]][box.name]) for box in boxes
    ]
    height = 16 + max(map(len, slots)) * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y
    return _svg(max(left - _GAP_X + 8, 60), max(height, 44), title, [*lines, *drawn])


class _Place(NamedTuple):
    left: int
    top: int
    width: int


def _mean_row(reads: Sequence[str], places: Sequence[Mapping[str, _Place]]) -> float:
    """Where what a box reads is in the column before: beside it, few lines cross."""
    rows = [places[-1][name].top for name in reads if name in places[-1]] if places else []
    return sum(rows) / len(rows) if rows else 0.0


def _label(labels: Mapping[str, str], name: str) -> str:
    return _short(labels.get(name, name), _LETTERS)


def _box(box: Box, label: str, place: _Place) -> str:
    return (
        f'<g><title>{_plain(label)}</title><rect x="{place.left}" y="{place.top}"'
        f' width="{place.width}" height="{_BOX_HEIGHT}" rx="{14 if box.kind == "table" else 3}"'
        f' fill="{_FILLS[box.kind]}" stroke="{_AXIS}"/>'
        f"{_text(place.left + 10, place.top + 18, label, fill='#222222')}</g>"
    )


def _edge(begin: _Place, end: _Place, passes: bool) -> str:
    """A line from one column to the next; through it where it passes a free row."""
    x1, y1 = begin.left + begin.width, begin.top + _BOX_HEIGHT // 2
    x2, y2 = end.left, end.top + _BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    on = f"H{end.left + end.width}" if passes else ""
    return (
        f'<path d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}{on}" fill="none"'
        f' stroke="{_AXIS}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", fill: str = "currentColor") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{fill}">{_plain(text)}</text>'
    )


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{_plain(title)}" {_FONT}>{"".join(parts)}</svg>'
    )


def _short(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _plain(text: str) -> str:
    """A text of anybody's as a part of XML."""
    return escape(printable(text))
