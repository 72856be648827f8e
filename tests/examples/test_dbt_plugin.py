"""The example of dbt without dbt: what its plugin leaves of a model that is refused."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

PLUGIN = Path(__file__).parents[2] / "docs/examples/dbt/mview_dbt.py"

#: Refuses what says `bad`, in whichever file; else has a view per file, and a halted one.
_MVIEW = """
import json, pathlib, sys
files = sorted(pathlib.Path("views").glob("*.sql"))
if sys.argv[1] != "status":
    sys.exit(any("bad" in file.read_text() for file in files))
views = [{"name": f.stem, "halted": "halts" * ("odd" in f.read_text())} for f in files]
print(json.dumps({"running": False, "views": views}))
"""


class RefusedError(Exception):
    pass


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    def module(name, **names):
        made = ModuleType(name)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    for name in ("dbt", "dbt.adapters", "dbt.adapters.duckdb"):
        module(name)
    module("dbt.adapters.duckdb.plugins", BasePlugin=object)
    module("dbt_common")
    module("dbt_common.exceptions", DbtRuntimeError=RefusedError)
    made = runpy.run_path(str(PLUGIN))["Plugin"]()
    (tmp_path / "mview.py").write_text(_MVIEW)
    monkeypatch.chdir(tmp_path)
    made.initialize({"command": [sys.executable, "mview.py"]})
    return made


def store(plugin, name, query):
    model = SimpleNamespace(config=SimpleNamespace(meta={}), compiled_code=query)
    relation = SimpleNamespace(identifier=name)
    plugin.store(SimpleNamespace(relation=relation, config=SimpleNamespace(model=model)))


@pytest.mark.parametrize("query", ["SELECT bad", "SELECT odd"])
def test_a_model_that_is_refused_leaves_what_was_there(plugin, query):
    with pytest.raises(RefusedError):
        store(plugin, "a", query)
    assert list(Path("views").iterdir()) == []
    file = Path("views/a.sql")
    file.write_bytes(b"SELECT 1\r\n")
    with pytest.raises(RefusedError):
        store(plugin, "a", query)
    assert file.read_bytes() == b"SELECT 1\r\n"
