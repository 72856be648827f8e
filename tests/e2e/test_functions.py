"""Views with declared functions: run, verified, built anew when declared anew, halted by errors."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from mview.admin.content import StoredView
from mview.admin.verify import verify
from mview.catalog.definitions import digest_of, load_definition, save_definition
from mview.cli import main
from mview.config import Config
from mview.config.file import load_config
from mview.errors import MviewError, UserError
from mview.plan.definition import parse_view
from mview.store.history import ManifestLog, checked
from mview.store.layout import Store
from mview.store.manifest import ViewState
from tests.e2e.running import run_once, views_of
from tests.e2e.shop import Shop
from tests.ivm.world import to_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = '''
from decimal import Decimal


def tier(segment, size):
    """1 to 3; what has no segment has the last tier."""
    return 3 if segment is None else 1 + (len(segment) + size) % 2


def fee(amount):
    if amount is not None and amount < 0:
        raise ValueError("no fee for a negative amount")
    return None if amount is None else (amount / 10).quantize(Decimal("0.01"))


def no_fee(amount):
    return Decimal(0)


def shout(names):
    return names.str.upper() + "!"
'''
#: Line of the module at which `fee` raises.
RAISES = next(i for i, line in enumerate(PYTHON.split("\n"), 1) if "raise " in line)
LOUD = "select id, shout(segment) as loud from shop.customers where tier(segment, id) <> 2"
FEES = (
    "select tier(c.segment, c.id) as tier, count(*) as n, sum(fee(l.amount)) as fees"
    " from shop.lines l join shop.orders o on o.id = l.order_id"
    " join shop.customers c on c.id = o.customer_id group by tier(c.segment, c.id)"
)
PLAIN = "select id, lower(name) as name from shop.customers"


class Project:
    """A shop whose configuration declares functions of a module beside it."""

    def __init__(self, root: Path) -> None:
        self.shop = Shop(root, size=40)
        # A name of its own: Python keeps the modules that it has imported.
        self.module = f"functions_{root.name.replace('-', '_')}"
        (root / f"{self.module}.py").write_text(PYTHON)

    def config(self, **fee: Any) -> Config:
        """The configuration; with another `fee`."""
        file = self.shop.config().path
        declared = {
            "tier": {"python": "tier", "returns": "int"},
            "fee": {"python": "fee", "returns": "decimal(10,2)", **fee},
            "shout": {"python": "shout", "returns": "string", "kind": "pandas"},
        }
        for one in declared.values():
            one |= {"python": f"{self.module}:{one['python']}", "deterministic": True}
        settings = yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump({**settings, "functions": declared}))
        return load_config(file)

    def change(self) -> None:
        """An insert, an update and a delete that reach every view."""
        old = self.shop.rows("customers")[4]
        self.shop.update("customers", old, {**old, "name": "anna", "segment": None})
        self.shop.delete("customers", self.shop.rows("customers")[1])
        self.shop.insert("customers", {"id": 99, "name": "new", "segment": None})
        line = self.shop.rows("lines")[6]
        self.shop.update("lines", line, {**line, "amount": "77.70"})
        self.shop.heartbeat()


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.shop.close()


def states(config: Config) -> dict[str, ViewState]:
    manifest = ManifestLog(Store(config.store).manifests).latest()
    assert manifest is not None
    return dict(manifest.views)


def mview(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.long
def test_run_and_verify(project: Project, tmp_path: Path) -> None:
    config = project.config()
    files = []
    for name, sql in {"loud": LOUD, "fees": FEES}.items():
        files.append(str(tmp_path / f"{name}.sql"))
        Path(files[-1]).write_text(
            f"CREATE MATERIALIZED VIEW {name} WITH (policy='incremental_only') AS {sql}"
        )
    options = [*files, "--config", str(config.path)]
    for command in ("check", "run --once", "verify"):
        result = mview(*command.split(), *options)
        assert result.exit_code == 0, result.output
    project.change()
    for command in ("run --once", "verify"):
        result = mview(*command.split(), *options)
        assert result.exit_code == 0, result.output
    kept = states(config)
    assert {name: one.strategy for name, one in kept.items()} == {
        "fees": "SELF_MAINTAINED",
        "loud": "LINEAR",
    }
    assert all(one.facts["epoch"] > one.built_epoch for one in kept.values())
    loud = dict(to_rows(StoredView(config, "loud").arrow()))
    assert (loud[0], loud[4], loud[99]) == ("GOLD!", None, None)
    assert 1 not in loud


@pytest.mark.long
def test_another_declaration_builds_the_views_that_call_it_again(project: Project) -> None:
    config = project.config()
    views = views_of(fees=FEES, loud=LOUD, plain=PLAIN)
    run_once(config, *views)
    before = states(config)
    config = project.config(python="no_fee")
    run_once(config)
    after = states(config)
    assert after["fees"].built_epoch > before["fees"].built_epoch
    assert after["loud"].built_epoch == before["loud"].built_epoch
    assert after["plain"].built_epoch == before["plain"].built_epoch
    assert {row[2] for row in to_rows(StoredView(config, "fees").arrow())} == {0}
    assert all(result.equal for result in verify(config, views))


@pytest.mark.long
def test_an_error_in_a_function_halts_before_the_epoch(project: Project) -> None:
    config = project.config()
    (view,) = views_of(fees=FEES)
    run_once(config, view)
    published = states(config)["fees"]
    line = project.shop.rows("lines")[6]
    project.shop.update("lines", line, {**line, "amount": "-1.00"})
    project.shop.heartbeat()
    with pytest.raises(UserError) as found:
        run_once(config)
    message = found.value.render()
    assert "function fee() raised ValueError: no fee for a negative amount" in message
    assert "in:      view fees" in message
    assert f"{project.module}.py:{RAISES}" in message
    assert "got:     (-1.00)" in message
    assert states(config)["fees"] == published
    project.shop.update("lines", line, line)
    project.shop.heartbeat()
    run_once(config)
    assert all(result.equal for result in verify(config, [view]))


@pytest.mark.long
def test_an_error_in_a_function_halts_before_the_first_build(project: Project) -> None:
    line = project.shop.rows("lines")[6]
    project.shop.update("lines", line, {**line, "amount": "-1.00"})
    with pytest.raises(UserError) as found:
        run_once(project.config(), *views_of(fees=FEES))
    assert "function fee() raised" in found.value.what
    assert "in:      view fees" in found.value.render()


@pytest.mark.long
def test_a_function_that_is_not_declared_any_more(project: Project) -> None:
    run_once(project.config(), *views_of(fees=FEES))
    project.shop.config()
    with pytest.raises(UserError, match=r"tier\(\) is neither built in nor declared"):
        run_once(load_config(project.shop.root / "mview.yml"))


class _Pickled:
    """What runs code when somebody unpickles it."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


@pytest.mark.long
def test_a_store_that_somebody_changed_runs_nothing(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the driver, not in Spark's workers: whatever the store names, digests that fit too."""
    config, ran = project.config(), tmp_path / "ran"
    (tmp_path / "planted_by_hand.py").write_text(
        f"open({str(ran)!r}, 'w').close()\ndef tier(*a): return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    view = parse_view(LOUD, "loud")
    run_once(config, view)
    store = Store(config.store)
    good = tmp_path / "good"
    shutil.copytree(store.root, good)
    planted = f"{project.module}:tier", "planted_by_hand:tier"

    def definition() -> None:
        (file,) = store.view("loud").glob("definition-*.json")
        file.write_text(file.read_text().replace(*planted))

    def definition_that_fits() -> None:
        manifest = ManifestLog(store.manifests).latest()
        assert manifest is not None
        known = load_definition(store, manifest, "loud")
        functions = tuple(
            replace(one, python=one.python.replace(*planted)) for one in known.functions
        )
        other = replace(known, functions=functions)
        assert other != known
        save_definition(store, other)
        views = {"loud": replace(manifest.views["loud"], definition=digest_of(other))}
        changed = replace(manifest, epoch=manifest.epoch + 1, views=views)
        (store.manifests / f"{changed.epoch:020d}.json").write_bytes(checked(changed.to_json()))

    def manifest_without_digest() -> None:
        newest = max(store.manifests.glob("*.json"))
        newest.write_bytes(newest.read_bytes().replace(b"LINEAR", b"planted_by_hand:tier"))

    def pickles() -> None:
        evil = pickle.dumps(_Pickled(f"touch {ran}"))
        assert pickle.loads(pickle.dumps(_Pickled("true"))) == 0
        for folder in (store.root, *(f for f in store.root.rglob("*") if f.is_dir())):
            (folder / "functions.pkl").write_bytes(evil)
        for file in store.checkpoints.rglob("*.json"):
            file.write_bytes(evil)

    def code() -> None:
        for folder in (store.root, *(f for f in store.root.rglob("*") if f.is_dir())):
            for name in ("sitecustomize.py", "pyarrow.py", "__init__.py"):
                (folder / name).write_text(f"open({str(ran)!r}, 'w').close()\n")

    told = {}
    for change in (definition, definition_that_fits, manifest_without_digest, pickles, code):
        shutil.rmtree(store.root)
        shutil.copytree(good, store.root)
        change()
        project.change() if change is definition else project.shop.heartbeat()
        for command in (run_once, partial(verify, views=[view])):
            try:
                command(config)
            except MviewError as error:
                told[change.__name__] = str(error)
        assert not ran.exists(), change.__name__
    assert "definition of a view cannot be read" in told["definition"]
    assert "the manifest of epoch" in told["manifest_without_digest"]
    assert not {"pickles", "code"} & told.keys()
    project.module = "planted_by_hand"
    with suppress(Exception):
        run_once(project.config())
    assert ran.exists(), "the module would have been seen"
