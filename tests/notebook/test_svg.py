"""Pictures: XML that anybody can read, whatever names and values are in them."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mview.cli.explore.lineage import ViewLineage
from mview.notebook.project import lineage_picture
from mview.notebook.svg import Box, Picture, bar_chart, graph, line_chart

ODD = "<script>alert('1')</script> & \"x\" \x1b[31m ü" + "n" * 200


def texts(svg: str) -> list[str]:
    tree = ElementTree.fromstring(svg)
    return [element.text or "" for element in tree.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(
    "svg",
    [
        line_chart([], ODD, "s"),
        line_chart([(5.0, 0.0)], "lag", "s"),
        line_chart([(n, n % 7) for n in range(300)], "lag", "s"),
        bar_chart([], ODD),
        bar_chart([(ODD, 1.0), ("zero", 0.0), ("below", -5.5)], "bars"),
        graph([], {}, "empty"),
        graph([Box(ODD, "table"), Box("v", "view", (ODD,)), Box("s", "sink", ("v",))], {}, ODD),
    ],
)
def test_every_picture_is_xml_without_a_script_or_a_link(svg: str) -> None:
    tree = ElementTree.fromstring(svg)
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert tags <= {"svg", "text", "path", "polyline", "rect", "g", "title"}
    assert not any("href" in name for element in tree.iter() for name in element.attrib)
    assert "\x1b" not in svg
    assert svg == svg.encode().decode()
    for name in ("width", "height"):
        assert float(tree.attrib[name]) > 0


def test_bars_have_their_lengths() -> None:
    tree = ElementTree.fromstring(bar_chart([("a", 4.0), ("b", 2.0), ("c", -1.0)], "t"))
    rects = list(tree.iter("{http://www.w3.org/2000/svg}rect"))
    left = [float(rect.attrib["x"]) for rect in rects]
    wide = [float(rect.attrib["width"]) for rect in rects]
    assert wide[0] / wide[1] == pytest.approx(2, rel=0.01)
    assert left[2] + wide[2] == pytest.approx(left[0], abs=0.2)


def test_a_line_ends_at_the_newest_value() -> None:
    svg = line_chart([(10.0, 1.0), (20.0, 4.0)], "lag", "s")
    assert texts(svg)[0] == "lag: 4.0 s"
    assert "10 s ago" in texts(svg)
    line = next(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline"))
    places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    assert places[0][0] < places[1][0]
    assert places[0][1] > places[1][1]  # down is more
    assert not any(math.isnan(number) for place in places for number in place)


def lineage(view: str, *reads: str, sinks: tuple[str, ...] = ("delta",)) -> ViewLineage:
    return ViewLineage(view, f"{view}.sql", reads, (), sinks, None)


def test_a_lineage_goes_from_left_to_right(tmp_path: Path) -> None:
    views = [
        lineage("a", "shop.t", "shop.u"),
        lineage("b", "a", "shop.u", sinks=("delta", "kafka")),
        lineage("c", "b", "a"),
    ]
    picture = lineage_picture(views)
    tree = ElementTree.fromstring(picture._repr_svg_())
    place = {}
    for group in tree.iter("{http://www.w3.org/2000/svg}g"):
        title, rect, *_ = group
        place.setdefault(title.text, float(rect.attrib["x"]))
    assert place["shop.t"] == place["shop.u"] < place["a"] < place["b"] < place["c"]
    assert len([text for text in texts(picture.svg) if text == "delta"]) == 3
    assert "kafka" in texts(picture.svg)
    picture.save(tmp_path / "lineage.svg")
    assert (tmp_path / "lineage.svg").read_text() == picture.svg
    assert repr(Picture("<svg/>")) == "<picture, 6 letters of SVG>"
    assert lineage_picture(views) == picture
