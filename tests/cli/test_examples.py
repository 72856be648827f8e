"""The examples in sql/ and conf/: they load, and the reference of settings is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mview.config import (
    ChangesSettings,
    Config,
    ConnectionSettings,
    EngineSettings,
    OpenLineageSettings,
    SparkSettings,
)
from mview.config.file import load_config
from mview.plan.definition import load_views

ROOT = Path(__file__).parents[2]


def test_the_reference_configuration_is_valid_and_reads_the_demo():
    config = load_config(ROOT / "conf/mview.yml")
    assert config.connections["shop"].database == str(ROOT / "demo/shop.db")
    assert config.changes["erp"].delay == ChangesSettings.model_fields["delay"].default


@pytest.mark.parametrize("section", ["engine", "spark"])
def test_the_reference_gives_every_default_as_it_is(section):
    model = {"engine": EngineSettings, "spark": SparkSettings}[section]
    written = yaml.safe_load((ROOT / "conf/mview.yml").read_text())[section]
    assert list(written) == list(model.model_fields)
    assert getattr(load_config(ROOT / "conf/mview.yml"), section) == model()


def test_the_reference_shows_every_setting():
    shown = yaml.safe_load((ROOT / "conf/mview.yml").read_text())
    names = {"connections": ConnectionSettings, "changes": ChangesSettings}
    for section, model in names.items():
        written = {name for part in shown[section].values() for name in part}
        known = {field.alias or name for name, field in model.model_fields.items()}
        assert written == known - {"name", "connection"}, section
    # By itself a run tells nobody: the reference has its settings as a comment.
    assert set(shown) == set(Config.model_fields) - {"path", "openlineage"}
    text = (ROOT / "conf/mview.yml").read_text().replace("\n# ", "\n").replace("\n#\n", "\n\n")
    told = yaml.safe_load(text[text.rindex("openlineage:") :])["openlineage"]
    assert {*told, "file"} == set(OpenLineageSettings.model_fields)


def test_the_demo_has_a_configuration_and_views_in_order():
    assert list(load_config(ROOT / "conf/demo.yml").connections) == ["shop"]
    names = [view.name for view in load_views([ROOT / "sql/shop"])]
    assert names.index("order_revenue") < names.index("region_revenue")
    assert "customer_totals" in names
