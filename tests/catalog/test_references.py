"""Files that `${file:…}` names are found from everywhere: a worker of Spark has its own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mview.config.file import load_config
from mview.secrets import reveal

SECRETS = """
store: ${file:where}
connections:
  shop: {drivername: sqlite, database: "${file:where}/shop.db", password: "${file:secrets/shop}"}
  crm: {drivername: postgresql, password: "${file:~/crm}", username: "${env:WHO}"}
  erp: {drivername: postgresql, password: "${file:/run/secrets/erp}"}
changes:
  shop: {source: kafka, format: debezium, bootstrap_servers: k, topic: t,
        options: {sasl.password: "${file:secrets/shop}"}}
sinks:
  out: {type: kafka, sasl.password: "${file:secrets/shop}"}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A configuration, read from the folder that has it, while another process is elsewhere."""
    (tmp_path / "conf/secrets").mkdir(parents=True)
    (tmp_path / "conf/secrets/shop").write_text("s3cret\n")
    (tmp_path / "conf/where").write_text("data\n")
    (tmp_path / "conf/mview.yml").write_text(SECRETS)
    monkeypatch.chdir(tmp_path)
    config = load_config("conf/mview.yml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return config


def test_files_are_relative_to_the_configuration(config: Any, tmp_path: Path) -> None:
    shop = config.connections["shop"]
    assert reveal(shop.password, "password") == "s3cret"
    assert shop.database == str(tmp_path / "conf/data/shop.db")
    assert config.store == tmp_path / "conf/data"
    assert reveal(str(config.changes["shop"].options["sasl.password"]), "options") == "s3cret"
    assert reveal(str(config.sinks["out"]["sasl.password"]), "sink") == "s3cret"


def test_files_of_a_home_or_the_root_and_variables_stay_as_they_are(config: Any) -> None:
    crm = config.connections["crm"]
    assert (crm.password, crm.username) == ("${file:~/crm}", "${env:WHO}")
    assert config.connections["erp"].password == "${file:/run/secrets/erp}"
