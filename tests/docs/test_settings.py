"""Every setting says what it means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mview.follower import FollowerSettings
from tests.docs.settings import _GIVEN, SECTIONS, followers, meanings, page, rows

MODELS = {**SECTIONS, **followers()}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MODELS)
def test_every_setting_has_a_meaning(name) -> None:
    """Who adds a field writes a comment `#:` above it: it stands on the page."""
    model = MODELS[name]
    told = meanings(model)
    assert [field for field in model.model_fields if not told.get(field)] in (
        [],
        [field for kind, field in _GIVEN if kind is model],
    )
    assert list(rows(model))


def test_the_page_has_settings_of_all_parts() -> None:
    text = page()
    for row in (
        "| `T` | duration | `10 seconds` |",
        "| `every` | duration | `0 seconds` |",
        "| `alignment` | `fresh`, `wait`, or a duration | `fresh` |",
        "| `drivername` | text | *needed* |",
        "| `mode` | `upsert`, `append`, `changelog` | `upsert` |",
        "| `buckets` | number | `1` | Rows are spread over so many by their key; ",
        "| `memory` | number above 0 | `4294967296` (4 GB) |",
        "## sinks.NAME, type `mariadb`, `mysql`, `postgresql`, `sqlite`",
        "| `columns` | `all`, or a list of texts |",
        "| `mariadb` | `server_id` |",
        "`format.decimal.handling.mode`",
    ):
        assert row in text, row


@pytest.mark.parametrize("model", SECTIONS.values(), ids=SECTIONS)
def test_the_file_of_all_settings_has_each(model) -> None:
    """`conf/mview.yml` shows every setting of the engine, at least in a comment."""
    if model is FollowerSettings:
        return  # of each sink there is a page
    text = (ROOT / "conf" / "mview.yml").read_text(encoding="utf-8")
    given = {field for kind, field in _GIVEN if kind is model}
    names = [f.alias or name for name, f in model.model_fields.items() if name not in given]
    assert [name for name in names if not re.search(rf"\b{name}:", text)] == []


def test_the_page_of_sinks_has_what_all_have() -> None:
    text = (ROOT / "docs" / "sinks.md").read_text(encoding="utf-8")
    assert [name for name in FollowerSettings.model_fields if f"`{name}`" not in text] == []


@pytest.mark.parametrize("sink", followers())
def test_the_page_of_a_sink_has_its_settings(sink) -> None:
    """Those of databases share `docs/sinks.md`, as those of every sink do."""
    own = ROOT / "docs" / "sinks" / f"{sink}.md"
    page = own if own.exists() else ROOT / "docs" / "sinks.md"
    text = page.read_text(encoding="utf-8")
    names = followers()[sink].model_fields.keys() - FollowerSettings.model_fields.keys()
    assert [name for name in sorted(names) if f"\n| `{name}` | " not in text] == []
