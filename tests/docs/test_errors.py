"""Every error has a code that stays what it is, whoever makes it, and the page has all of them."""

from __future__ import annotations

import pickle
import re
from decimal import Decimal
from importlib.util import find_spec

import pytest

from mview.catalog.analyze import SparkRefusesError
from mview.codes import AREAS, ELSEWHERE, area_of, code_of
from mview.config.file import load_config
from mview.errors import (
    ConfigError,
    CorruptionError,
    DataLostError,
    MviewError,
    UserError,
    known_error,
    of_the_system,
    rows_text,
    several,
)
from mview.plan.definition import parse_view
from mview.store.layout import folder_name
from tests.docs.errors import CLASSES, PAGE, all_told

TOLD = all_told()


def test_every_message_is_of_an_area() -> None:
    """Who adds a room or a connector whose errors have none, adds it to `mview/codes.py`."""
    assert len(TOLD) > 500
    without = {told.module for told in TOLD if area_of(told.module) is ELSEWHERE}
    assert without == set()


def test_every_area_is_of_modules_that_there_are() -> None:
    for area in AREAS:
        for module in area.modules:
            assert find_spec(module), module


def test_numbers_mean_one_thing() -> None:
    numbers = [area.number for area in AREAS]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 100 for number in numbers)
    modules = [module for area in AREAS for module in area.modules]
    assert len(set(modules)) == len(modules)
    own = [kind for name, kind in CLASSES.items() if name != "MistakesError"]
    assert len({kind.kind for kind in own}) == len(own) == len(CLASSES) - 1
    assert all(9 < kind.kind < 100 for kind in own)


#: What was told once keeps its code: people search for it. A line is added, none is changed.
KEPT = {
    ConfigError: ("mview.config.file", "MV2002"),
    UserError: ("mview.plan.text.place", "MV1003"),
    DataLostError: ("mview_connectors.changelogs.kafka.errors", "MV5021"),
    CorruptionError: ("mview.store.history", "MV5107"),
    MviewError: ("mview.errors", "MV9001"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_codes_are_kept(kind: type[MviewError]) -> None:
    module, code = KEPT[kind]
    assert code_of(kind.kind, module) == code


def test_an_error_has_the_code_of_the_place_that_made_it(tmp_path) -> None:
    with pytest.raises(UserError) as text:
        parse_view("SELECT FROM", "v")
    assert text.value.code == "MV1003"
    assert "\n  code:    MV1003" in str(text.value)
    with pytest.raises(UserError) as name:
        folder_name("view", "../v")
    assert name.value.code == "MV1007"
    (tmp_path / "mview.yml").write_text("stor: x\n")
    with pytest.raises(ConfigError) as config:
        load_config(tmp_path / "mview.yml")
    assert config.value.code == "MV2002"
    assert known_error(ZeroDivisionError()).code == "MV9001"
    full = of_the_system(OSError(28, "No space left on device"))
    assert full is not None
    assert full.code == "MV3001"


def test_a_constructor_of_an_error_is_no_place() -> None:
    """Of a class that makes its message itself, the place is who makes the error."""

    class OwnError(UserError):
        def __init__(self) -> None:
            super().__init__("own")

    assert OwnError().code == "MV1000"
    assert SparkRefusesError.kind == UserError.kind


def test_an_error_made_of_another_keeps_its_code() -> None:
    with pytest.raises(UserError) as text:
        parse_view("SELECT FROM", "v")
    again = UserError(**{**text.value.parts, "hint": "another"})
    assert again.code == "MV1003"
    assert pickle.loads(pickle.dumps(again)).code == "MV1003"
    other = UserError("made here")
    assert several([other, again]).code == other.code == "MV1000"
    assert re.findall(r"code: +(\w+)", str(several([other, again]))) == ["MV1000", "MV1003"]


def test_the_page_has_every_code() -> None:
    shown = re.findall(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted({told.code for told in TOLD})
    assert "MV1003" in shown


def test_a_row_is_one_line_whatever_is_in_it() -> None:
    text = rows_text([{"note": "a\nb's", "n": None}, {"n": Decimal("1E+2")}])
    assert text == "note='a\\nb''s', n=NULL; n=100"
    assert len(rows_text([{"note": "x" * 900}])) == 600
