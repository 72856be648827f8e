"""Declared functions in `mview check`: what is wrong with them is found without Spark."""

from __future__ import annotations

import sqlite3

import pytest
from click.testing import CliRunner

from mview.cli import main

CONFIG = """
connections:
  shop: {drivername: sqlite, database: shop.db}
changes:
  shop: {source: files, format: unified, path: changes, T: 1 second}
functions:
  vat:
    python: %(module)s:vat
    returns: decimal(10,2)
    deterministic: true
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a shop and a module of functions; returns the text of its configuration."""
    # A name of its own: Python keeps the modules that it has imported.
    module = f"functions_{abs(hash(tmp_path))}"
    database = sqlite3.connect(tmp_path / "shop.db")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total DECIMAL(10,2))")
    database.close()
    (tmp_path / "changes").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / f"conf/{module}.py").write_text("def vat(price): return price\nrate = 7\n")
    (tmp_path / f"conf/broken_{module}.py").write_text("import not_there_at_all\n")
    (tmp_path / "v.sql").write_text("SELECT id, vat(total) AS vat FROM shop.orders")
    monkeypatch.chdir(tmp_path)
    text = CONFIG.replace("shop.db", "../shop.db").replace("changes,", "../changes,")
    return text % {"module": module}


def check(folder, config):
    (folder / "conf/mview.yml").write_text(config)
    return CliRunner().invoke(main, ["check", "v.sql"])


def test_a_view_with_a_declared_function_is_sound(project, tmp_path):
    result = check(tmp_path, project)
    assert result.exit_code == 0, result.output
    assert "v: ok, key id" in result.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("deterministic: true", "kind: python"), "write 'deterministic: true' if equal arguments"),
        (("deterministic: true", "deterministic: false"), "functions.vat.deterministic: write"),
        (("decimal(10,2)", "decimal(x,y)"), "functions.vat.returns: 'decimal(x,y)' is not a type"),
        (("decimal(10,2)", "decimal(99,2)"), "functions.vat.returns: 'decimal(99,2)' is not a"),
        (("decimal(10,2)", "text"), "'text' is not a type; write one such as string"),
        (("true\n", "true\n    knd: pandas\n"), "did you mean 'kind'?"),
        (("    returns: decimal(10,2)\n", ""), "functions.vat.returns: is missing"),
        ((":vat\n", ".vat\n"), "functions.vat.python: must look like my_package.my_module:my_f"),
        (("  vat:\n", "  Vat:\n"), "'Vat' is no name: write lower case"),
        (("  vat:\n", "  lower:\n"), "lower() is a built-in function, or a word of SQL"),
        (("python: f", "python: no_such_f"), "cannot be imported: ModuleNotFoundError"),
        (("python: f", "python: broken_f"), "No module named 'not_there_at_all'"),
        ((":vat\n", ":vta\n"), "functions.vat: nothing is called 'vta' in functions_"),
        ((":vat\n", ":rate\n"), "functions.vat: no function is called 'rate' in functions_"),
        (("true\n", "true\n    kind: panda\n"), "functions.vat.kind"),
    ],
)
def test_a_wrong_declaration_ends_with_2(project, tmp_path, change, said):
    assert change[0] in project
    result = check(tmp_path, project.replace(*change))
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_an_undeclared_function_ends_with_1_and_the_fix(project, tmp_path):
    (tmp_path / "v.sql").write_text("SELECT id, vta(total) AS vat FROM shop.orders")
    result = check(tmp_path, project)
    assert result.exit_code == 1, result.output
    assert "did you mean 'vat'? Or declare it:" in result.output
    assert 'python: "my_module:vta"' in result.output
